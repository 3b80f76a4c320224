"""Reads the file, or standard input, that a command was told to judge: whatever its encoding, and only so much of it."""

from __future__ import annotations

import codecs
import os
import stat
import sys
from dataclasses import dataclass
from typing import BinaryIO

from elastic_health.codec import shown
from elastic_health.errors import InputError

MAX_BYTES = 64 * 1024 * 1024
STDIN = "-"
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_SAMPLE = 4096


@dataclass(frozen=True)
class Input:
    """What was read.  `cut`: there was more than `MAX_BYTES`."""

    name: str
    text: str
    size_bytes: int
    cut: bool


def read_input(path: str, most: int = MAX_BYTES) -> Input:
    """The text of a file, or of standard input for "-"; bytes that are no text become replacement characters.

    Raises:
        InputError: there is no such file, it is a folder, or it can't be read.
    """
    try:
        if path == STDIN:
            raw = _at_most(sys.stdin.buffer, most + 1)
        else:
            if stat.S_ISDIR(os.stat(path).st_mode):
                raise InputError("a file, or - for standard input", f"the folder {shown(path)}", "name a file in it")
            with open(path, "rb") as file:
                raw = _at_most(file, most + 1)
    except (OSError, ValueError) as e:
        found = f"{shown(path)}: {getattr(e, 'strerror', None) or e}"
        raise InputError("a file that can be read, or - for standard input", found, "check the name and its rights") from None
    cut = len(raw) > most
    return Input("standard input" if path == STDIN else path, decoded(raw[:most]), min(len(raw), most), cut)


def _at_most(file: BinaryIO, most: int) -> bytes:
    """Pipes give less than they are asked for."""
    parts, left = [], most
    while left > 0 and (part := file.read(min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def decoded(raw: bytes) -> str:
    """Bytes as text: by their byte order mark, else UTF-16 if every second byte is 0, else UTF-8."""
    for mark, encoding in _BOMS:
        if raw.startswith(mark):
            return raw.decode(encoding, "replace")
    sample = raw[:_SAMPLE]
    for first, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        if len(sample) >= 8 and sample[first::2].count(0) > 0.9 * len(sample[first::2]) and sample[1 - first :: 2].count(0) == 0:
            return raw.decode(encoding, "replace")
    return raw.decode("utf-8", "replace")
