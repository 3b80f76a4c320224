"""Text that a tool printed and a launcher, a pod or a terminal passed on: made plain before it is read.

Law: total and linear: any text gives lines, whatever its colours, line ends, escapes or prefixes.
"""

from __future__ import annotations

import json
import re

MAX_TEXT = 64 * 1024 * 1024
"""Characters that are read of one text; more is as if it were cut there."""
_ANSI = re.compile(r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b\n]{0,512}(?:\x07|\x1b\\)|[@-Z\\^_])")
_NEWLINES = re.compile(r"\r\n|\n\r|\r")
_DOCKER = re.compile(r'\s{0,8}\{"log":\s?"')
_CRI = re.compile(r"\S{10,40} std(?:out|err) ([FP]) ")
# What launchers and log collectors set before each line; tried again and again, so that two of them may stand together.
_PREFIX = re.compile(
    r"""\s{0,64}(?:
      \[?\d{4}-\d\d-\d\d[T\ ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:\ ?(?:Z|UTC|[+-]\d\d:?\d\d))?\]?:?   # ISO times
    | [A-Z][a-z]{2}\ {1,2}\d{1,2}\ \d\d:\d\d:\d\d(?:\ [\w.-]{1,64}\ [\w./-]{1,64}(?:\[\d{1,9}\])?:)?   # syslog, journal
    | \[\d{1,6},\d{1,7}\]<std(?:out|err)>:                                                       # mpirun --tag-output
    | \[(?:default|rank)\ ?\d{1,7}\]:                                                            # torchrun
    | \[\ {0,8}\d{1,9}(?:\.\d{1,9})?\]                                                           # [seconds], [line number]
    | \[pod/[^\]\n]{1,256}\]                                                                     # kubectl logs --prefix
    | std(?:out|err)\ [FP]\b                                                                     # container runtime
    | \d{1,7}:(?=\ )                                                                             # srun --label
    | [\w.-]{1,128}(?:\ [\w.-]{1,128})?\ {1,32}\|\ ?                                             # compose, stern
    | (?:[A-Za-z][\w-]{0,62}\.)*[A-Za-z][\w-]{0,62}:(?=\ )                                       # pdsh, clush: the host
    | \[?(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR)\]?:?(?=\ )                               # loggers
    )\s?""",
    re.VERBOSE,
)
_MOST_PREFIXES = 4


def clean(text: str) -> str:
    """`text` without colours, NULs and byte order marks, with plain line ends; at most `MAX_TEXT` characters of it."""
    cut = text[:MAX_TEXT].replace("\x00", "").replace("\ufeff", "")
    if "\r" in cut:
        cut = _NEWLINES.sub("\n", cut)
    return _ANSI.sub("", cut) if "\x1b" in cut else cut


def lines_of(text: str) -> list[str]:
    """Lines of cleaned text; what a container's log driver wrapped line by line is unwrapped."""
    lines = clean(text).split("\n")
    if any(_DOCKER.match(line) for line in lines[:64]):
        lines = "".join(_docker(line) for line in lines).split("\n")
    if any(_CRI.match(line) for line in lines[:64]):
        lines = _cri(lines)
    return lines


def _docker(line: str) -> str:
    """Docker's json-file driver: one object a line, the tool's own line in `log`."""
    if _DOCKER.match(line):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            return line + "\n"
        if isinstance(found, dict) and isinstance(found.get("log"), str):
            return str(found["log"])
    return line + "\n"


def _cri(lines: list[str]) -> list[str]:
    """The runtime's own format: time, stream and F (whole) or P (goes on in the next line)."""
    joined: list[str] = []
    begun = False
    for line in lines:
        found = _CRI.match(line)
        text = line[found.end() :] if found else line
        if begun and found:
            joined[-1] += text
        else:
            joined.append(text)
        begun = bool(found and found[1] == "P")
    return joined


def unprefixed(line: str) -> list[str]:
    """What remains of a line after one, two, … known prefixes; empty if it has none."""
    rest, found = line, []
    for _ in range(_MOST_PREFIXES):
        match = _PREFIX.match(rest)
        if match is None:
            break
        rest = rest[match.end() :]
        found.append(rest)
    return found
