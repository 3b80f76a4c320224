"""States and error counters of NVLinks, read from `dcgmi nvlink -e` (JSON and text), `dcgmi nvlink -s` and `nvidia-smi nvlink -s | -e`.

Sources: NVIDIA/DCGM dcgmi/Nvlink.cpp and dcgmi/DcgmiOutput.cpp; public outputs of nvidia-smi of drivers 470 to 595.

Law: an output whose end is not there is torn.  nvidia-smi prints no end: there a GPU or a link of which less is said than of the
others makes it torn; expected numbers, where the caller has them, show the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from elastic_health.preflight.dcgm_runs import once
from elastic_health.preflight.tool_json import documents
from elastic_health.preflight.tool_text import lines_of

HEADER = "NVLINK Error Counts"
BLANK = 0x7FFFFFFFFFFFFFF0
"""DCGM's "no value", and its kin above it."""
MAX_LINK = 1023


class LinkState(Enum):
    UP = "up"
    DOWN = "down"
    DISABLED = "disabled"


@dataclass
class LinkFacts:
    """One link of one GPU; `link` -1: counters of a whole GPU (Blackwell and later in dcgmi)."""

    gpu: str
    link: int
    state: LinkState | None = None
    speed_gbs: float | None = None
    counters: dict[str, float] = field(default_factory=dict)


@dataclass
class Links:
    """All that a text says.  `switches_down`: ports of NVSwitches, by switch; `gpus`: in order, those without links too."""

    facts: dict[tuple[str, int], LinkFacts] = field(default_factory=dict)
    gpus: list[str] = field(default_factory=list)
    switches_down: dict[str, list[int]] = field(default_factory=dict)
    torn: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def at(self, gpu: str, link: int) -> LinkFacts:
        self.see(gpu)
        return self.facts.setdefault((gpu, link), LinkFacts(gpu, link))

    def see(self, gpu: str) -> None:
        if gpu not in self.gpus:
            self.gpus.append(gpu)


_GPU_LINE = re.compile(r"\bGPU (\d{1,4}): (?:[^\n]{0,200}\(UUID: ?[^)\n]{0,80}\)?|[^:|\n]{1,120}\s*$)")
_LINK_SPEED = re.compile(r"\bLink (\d{1,4}): (?:(\d{1,6}(?:\.\d{1,6})?) GB/s|<(inactive)>)", re.IGNORECASE)
_LINK_COUNT = re.compile(r"\bLink (\d{1,4}): ([A-Za-z][\w /-]{1,60}?): (\d[\d.eE+-]{0,40})\s*$")
_ALL_INACTIVE = re.compile(r"all links are in ?active", re.IGNORECASE)
_GPU_ID = re.compile(r"\bgpuId (\d{1,4}):\s*$")
_SWITCH_ID = re.compile(r"\bphysicalId (\d{1,6}):\s*$")
_LETTERS = re.compile(r"(?:^|\s)([UDX_](?: [UDX_]){1,1023})\s*$")
_STATUS_HEAD = re.compile(r"NvLink Link Status")
_STATUS_KEY = re.compile(r"Key: Up=U, .{0,80}=_\s*$")
_TREE_GPU = re.compile(r"\|\s{0,4}GPU (\d{1,4})\s*\|\s*$")
_TREE_ROW = re.compile(r"\|\s?(Link (\d{1,4})|Error Detail|-> ?([^|\n]{1,60}?))\s*\|\s*([^|\n]{0,60}?)\s*\|\s*$")
_RULE = re.compile(r"\+-{3,}\+-{3,}\+\s*$")
_UNRETRIEVED = re.compile(r"(?:Error|Warning): (Unable to (?:retrieve|get|add)[^\n]{1,300}|.{0,40}nvlink[^\n]{1,300})", re.IGNORECASE)
_HINT = re.compile('"(?:body|header)"')
_STATES: Mapping[str, LinkState] = {"U": LinkState.UP, "D": LinkState.DOWN, "X": LinkState.DISABLED}


def read_links(output: str) -> Links:
    """What an output says of links, unjudged."""
    lines, found = lines_of(output), Links()
    documents_seen = _read_json(lines, found)
    if not documents_seen:
        reader = _Reader(found)
        reader.run(lines)
        if reader.endless:
            _compare(found)
    return found


def _is_ours(value: Mapping[str, Any]) -> bool:
    header = value.get("header")
    return isinstance(value.get("body"), dict) or (isinstance(header, list) and HEADER in header)


def _read_json(lines: Sequence[str], links: Links) -> bool:
    read = documents(lines, _is_ours, _HINT)
    for document in read.documents:
        header = document.value.get("header")
        gpu = _gpu_of(header)
        if not document.whole:
            links.torn.append(f"the JSON document that begins in line {document.line + 1} is cut or damaged")
        if not gpu:
            links.torn.append("a document does not say of which GPU it speaks")
        links.see(gpu or "?")
        body = document.value.get("body")
        for name, value in (body if isinstance(body, dict) else {}).items():
            match = re.match(r"Link (\d{1,4})$", name)
            facts = links.at(gpu or "?", int(match[1]) if match else -1)
            facts.counters.update(_counters(value))
    if read.stray and read.documents:
        links.torn.append("most of a JSON document is missing")
    return bool(read.documents)


def _gpu_of(header: object) -> str:
    words = [h for h in header if isinstance(h, str)] if isinstance(header, list) else []
    return next((m[1] for h in words if (m := re.match(r"GPU (\d{1,4})$", h))), "")


def _counters(value: object) -> Iterator[tuple[str, float]]:
    children = value.get("children") if isinstance(value, dict) else None
    for name, held in (children if isinstance(children, dict) else {}).items():
        number = _number(held.get("value") if isinstance(held, dict) else held)
        if number is not None:
            yield str(name)[:80], number


def _number(value: object) -> float | None:
    """A counter; None for DCGM's blanks and for words."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number < BLANK else None


class _Reader:
    """Reads text line by line; knows which GPU is spoken of."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._gpu: str | None = None
        self._switch: str | None = None
        self._link: int | None = None
        self._status_open = self._tree_open = False
        self.endless = False
        """Whether nvidia-smi speaks, whose output has no end of its own."""

    def run(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._line(line[:4096])
        if self._status_open:
            self._links.torn.append("the list of link states was cut before its end")
        if self._tree_open:
            self._links.torn.append("a table of error counts was cut before its end")

    def _line(self, line: str) -> None:
        if HEADER in line:
            self._tree_open, self._gpu, self._link = True, None, None
        elif self._tree_open and _RULE.search(line):
            self._tree_open = self._gpu is None
        elif self._tree_open and "|" in line:
            self._tree(line)
        else:
            self._plain(line)

    def _tree(self, line: str) -> None:
        gpu, row = _TREE_GPU.search(line), _TREE_ROW.search(line)
        if gpu:
            self._gpu = gpu[1]
            self._links.see(gpu[1])
        elif row and self._gpu is not None:
            if row[3] is None:
                self._link = int(row[2]) if row[2] else -1
                self._links.at(self._gpu, self._link)
            elif self._link is not None and (number := _number(row[4])) is not None:
                self._links.at(self._gpu, self._link).counters[row[3].strip()] = number

    def _plain(self, line: str) -> None:
        gpu_id, switch = _GPU_ID.search(line), _SWITCH_ID.search(line)
        if _STATUS_HEAD.search(line):
            self._status_open = True
        elif _STATUS_KEY.search(line):
            self._status_open = False
        elif gpu_id or switch:
            self._gpu, self._switch = (gpu_id[1] if gpu_id else None), (switch[1] if switch else None)
            self._status_open = True
            if gpu_id:
                self._links.see(gpu_id[1])
        elif self._status_open and (letters := _LETTERS.search(line)):
            self._letters(letters[1].split())
        else:
            self._nvidia_smi(line)

    def _letters(self, letters: Sequence[str]) -> None:
        for number, letter in enumerate(letters):
            state = _STATES.get(letter)
            if self._gpu is not None and state is not None:
                self._links.at(self._gpu, number).state = state
            elif self._switch is not None and state is LinkState.DOWN:
                self._links.switches_down.setdefault(self._switch, []).append(number)
        self._gpu = self._switch = None  # one line of letters for each

    def _nvidia_smi(self, line: str) -> None:
        gpu = _GPU_LINE.search(line)
        if gpu:
            self.endless = True
            self._gpu = gpu[1]
            self._links.see(gpu[1])
            return
        if self._gpu is not None:
            speed, count = _LINK_SPEED.search(line), _LINK_COUNT.search(line)
            if speed and int(speed[1]) <= MAX_LINK:
                facts = self._links.at(self._gpu, int(speed[1]))
                facts.state = LinkState.DOWN if speed[3] else LinkState.UP
                facts.speed_gbs = float(speed[2]) if speed[2] else None
                return
            number = _number(count[3]) if count else None
            if count and number is not None and int(count[1]) <= MAX_LINK:
                self._links.at(self._gpu, int(count[1])).counters[count[2].strip()] = number
                return
            if _ALL_INACTIVE.search(line):
                self._links.at(self._gpu, -1).state = LinkState.DOWN
                return
        error = _UNRETRIEVED.search(line)
        if error and len(self._links.errors) < 16:
            self._links.errors.append(error[1].strip())


def _compare(links: Links) -> None:
    """The signs of a cut in outputs that have no end of their own."""
    numbered = [f for f in links.facts.values() if f.link >= 0]
    counts = {gpu: sum(f.gpu == gpu for f in numbered) for gpu in links.gpus}
    whole_gpus = {f.gpu for f in links.facts.values() if f.link < 0}
    most = max(counts.values(), default=0)
    fewer = [gpu for gpu, n in counts.items() if n < most and gpu not in whole_gpus]
    if fewer:
        links.torn.append(f"fewer links are told of GPU {','.join(fewer[:16])} than of the others")
    names = max((set(f.counters) for f in numbered), key=len, default=set())
    lacking = once(f"GPU {f.gpu} link {f.link}" for f in numbered if names and set(f.counters) < names)
    if lacking:
        links.torn.append(f"not all counters are told of {', '.join(lacking[:4])}")
