"""Lines of a tool's output as people store it: terminal colours and carriage returns gone, and whether the last line is whole.

Law: no line of the tool is lost or joined; a text of any length is read in linear time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_COLOUR = re.compile(r"\x1b\[[0-9;:?]{0,32}[ -/]{0,4}[@-~]|[\x00\ufeff]")
_LINE_END = re.compile(r"\r{0,2}\n|\r")


@dataclass(frozen=True)
class Lines:
    """The lines of a text.

    Attributes:
        texts: in order, without line ends.
        whole: False when the text ends without a line end, so that its last line may be cut.
    """

    texts: tuple[str, ...]
    whole: bool


def lines_of(text: str) -> Lines:
    """Splits at LF, CR LF and a bare CR; strips colours, NUL and the byte order mark."""
    found = _LINE_END.split(_COLOUR.sub("", text))
    if found[-1] == "":
        return Lines(tuple(found[:-1]), True)
    return Lines(tuple(found), False)
