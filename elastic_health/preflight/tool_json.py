"""JSON out of a log: documents among other lines, cut at either end, or with strange lines inside.

Law: nothing is repaired silently.  A document is `whole` only if its own tokens, with whole foreign lines left out, are
valid JSON from its first brace to its last; anything else keeps what was read and says `whole = False`.  Time is linear
in the text, memory in the document, and depth is bounded.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastic_health.preflight.tool_text import unprefixed

MAX_DEPTH = 64
_START = re.compile(r"\{\s{0,64}(?:[\"}]|$)")
_OWN_LINE = re.compile(r'"(?:status|name|results|tests|test_summary|gpu_ids?|entity_id|warnings?|children|value)"?\s*:')
"""A line with such a key that can't be read is a damaged line of ours, not a foreign one."""
_MOST_FOREIGN, _MOST_BEFORE = 1000, 32
"""Foreign lines one after the other after which a document is given up: in it, and before anything of it was read."""
_LONGEST_PREFIX = 512
_JOIN_LINES = 16
"""Lines that a terminal may have broken one string into."""
_TOKEN = re.compile(r'\s*(?:("[^"\\\n]*(?:\\.[^"\\\n]*)*")|([{}\[\],:])|(-?\d[\d.eE+-]*|true|false|null)(?![\w.]))\s*')
_SEAM = "\ue000"
"""Marks where two lines were joined; no tool prints it."""
_LOGGER_KEYS = frozenset(("level", "msg", "message", "time", "timestamp", "ts", "event", "log", "logger", "severity"))
_OWN_KEYS = frozenset(("results", "tests", "test_summary", "gpu_id", "gpu_ids", "entity_id", "warning", "children"))


@dataclass(frozen=True)
class Document:
    """One outermost object.  `whole`: see the law; `line`: where it began, counted from 0."""

    value: Mapping[str, Any]
    whole: bool
    line: int


@dataclass(frozen=True)
class Found:
    """All documents of a text.  `stray`: one begins, or ends, of which the rest is missing."""

    documents: tuple[Document, ...]
    stray: bool


Token = tuple[str, str, int]
"""(`s` string, `p` punctuation, `v` other value; its text; where it ends)."""


def tokens_of(text: str) -> tuple[list[Token], bool]:
    """The tokens with which a text begins, and whether there is nothing else in it."""
    found: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            return found, not text[at:].strip()
        at = match.end()
        found.append(_token(match))
    return found, True


def _token(match: re.Match[str]) -> Token:
    string, mark, value = match.groups()
    return ("s", string, match.end()) if string is not None else ("p", mark, match.end()) if mark is not None else ("v", value, match.end())


class _Reader:
    """Builds one document from tokens, with its own stack: no recursion, whatever the nesting."""

    def __init__(self, line: int) -> None:
        self.root: dict[str, Any] = {}
        self.whole, self.closed, self.line, self.passed_over = True, False, line, 0
        self._stack: list[dict[str, Any] | list[Any]] = []
        self._key: str | None = None
        self._expect = "{"  # one of: { K(ey or close) k(ey) : v(alue) V(alue or close) , (comma or close)
        self._too_deep = 0

    @property
    def depth(self) -> int:
        return len(self._stack) + self._too_deep

    def feed(self, token: Token) -> None:
        kind, text, _ = token
        self.passed_over = 0
        if self._too_deep:
            self._too_deep += {"{": 1, "[": 1, "}": -1, "]": -1}.get(text, 0) if kind == "p" else 0
        elif kind == "p":
            self._mark(text)
        else:
            self._scalar(kind, text)

    def wants_key(self) -> bool:
        return self._expect in "Kk,:" and bool(self._stack) and isinstance(self._stack[-1], dict)

    def _mark(self, mark: str) -> None:
        if mark in "{[":
            self._open({} if mark == "{" else [])
        elif mark in "}]":
            self._close(dict if mark == "}" else list)
        elif mark == ":":
            self.whole &= self._expect == ":"
            self._expect = "v"
        else:
            self.whole &= self._expect == ","
            self._expect = "k" if self._stack and isinstance(self._stack[-1], dict) else "v"

    def _open(self, made: dict[str, Any] | list[Any]) -> None:
        if not self._stack and isinstance(made, dict):
            self.root = made
        elif len(self._stack) >= MAX_DEPTH:
            self.whole, self._too_deep = False, 1
            return
        else:
            self._put(made)
        self._stack.append(made)
        self._expect = "K" if isinstance(made, dict) else "V"

    def _close(self, kind: type) -> None:
        if not isinstance(self._stack[-1], kind):
            self.whole = False
            if not any(isinstance(s, kind) for s in self._stack):
                return
            while not isinstance(self._stack[-1], kind):
                self._stack.pop()
        self.whole &= self._expect in "KV,"
        self._stack.pop()
        self._expect, self._key = ",", None
        self.closed = not self._stack

    def _scalar(self, kind: str, text: str) -> None:
        wants = self._expect in "Kk" or (self._expect == "," and isinstance(self._stack[-1], dict))
        if wants and kind == "s":
            self.whole &= self._expect in "Kk"
            self._key, self._expect = str(_value(text)), ":"
        else:
            self._put(_value(text))
            self._expect = ","

    def _put(self, value: Any) -> None:
        into = self._stack[-1]
        self.whole &= self._expect in "vV"
        if isinstance(into, list):
            into.append(value)
        elif self._key is not None:
            self.whole &= self._key not in into
            into[self._key] = value
            self._key = None
        else:
            self.whole = False


def _value(text: str) -> Any:
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):  # an escape that isn't one, or 5,000 digits
        return text.strip('"')


class _Scan:
    """Walks the lines; holds at most one document that is open."""

    def __init__(self, lines: Sequence[str], wanted: Callable[[Mapping[str, Any]], bool], hint: re.Pattern[str] | None) -> None:
        self._lines, self._wanted, self._hint = lines, wanted, hint
        self._open: _Reader | None = None
        self._prefix: re.Pattern[str] | None = None
        self._used = 1
        self._lists = 0  # lists around documents: `[{…}, {…}]`
        self.found: list[Document] = []
        self.stray = False

    def run(self) -> Found:
        at = 0
        while at < len(self._lines):
            self._used = 1
            text, column = self._lines[at], 0
            if self._open:
                rest = self._inside(self._open, at, text)
                text, column = (rest or ""), 0
            while column >= 0 and not self._open:
                column = self._outside(at, text, column)
            at += self._used
        if self._open:
            self.stray |= not self._open.root and not self._lines[self._open.line].partition("{")[0].strip()
            self._finish(self._open, cut=True)
        return Found(tuple(self.found), self.stray)

    def _finish(self, reader: _Reader, *, cut: bool) -> None:
        self._open = None
        if self._wanted(reader.root):
            self.found.append(Document(reader.root, reader.whole and not cut, reader.line))

    def _outside(self, at: int, text: str, column: int) -> int:
        """Looks for the next document in the line, and reads it to its end or the line's; returns where to go on, -1 for nowhere."""
        match = _START.search(text, column)
        if match is None:
            if text[column : column + 1]:
                self._between(text[column:])
            return -1
        if self._hint and not column and text.rstrip().endswith("}") and not self._hint.search(text):
            return -1  # a logger's line: read by the million, kept by nobody
        before = text[max(column, match.start() - _LONGEST_PREFIX) : match.start()]
        self._lists += before.rstrip().endswith("[")
        if column:
            self._between(before)
        else:
            self._prefix = _prefix_like(before)
        self._open = reader = _Reader(at)
        column = match.start()
        while token := _TOKEN.match(text, column):
            column = token.end()
            reader.feed(_token(token))
            if reader.closed:
                self._finish(reader, cut=False)
                return column
        if text[column:].strip():
            joined = self._joined(at, text[column:])
            reader.whole &= joined is not None
            if joined is not None:
                rest = self._feed(at, *joined)
                if rest is not None:
                    self._between(rest)
        return -1

    def _inside(self, reader: _Reader, at: int, text: str) -> str | None:
        forms = list(_forms(text, self._prefix))
        for form in forms:
            tokens, all_of_it = tokens_of(form)
            if all_of_it:
                return None if _is_foreign(form, tokens) else self._feed(at, form, tokens)
        for form in forms:
            joined = self._joined(at, form)
            if joined is not None:
                return self._feed(at, *joined)
            tokens, _ = tokens_of(form)
            closers = list(itertools.takewhile(lambda t: t[0] == "p" and t[1] in "}]", tokens))
            if len(closers) >= reader.depth:
                return self._feed(at, form, closers)
        reader.whole &= _OWN_LINE.search(text) is None
        reader.passed_over += 1
        if reader.passed_over > (_MOST_FOREIGN if reader.root else _MOST_BEFORE):
            self._finish(reader, cut=True)
        return None

    def _joined(self, at: int, text: str) -> tuple[str, list[Token]] | None:
        """`text` with the next lines, if a terminal broke a string there and the whole is JSON."""
        if not _unterminated(text):
            return None
        for used in range(1, min(_JOIN_LINES, len(self._lines) - at)):
            text += _SEAM + self._lines[at + used]
            if not _unterminated(text):
                tokens, all_of_it = tokens_of(text)
                if not all_of_it or any(_SEAM in t[1] and after[1] == ":" for t, after in itertools.pairwise(tokens)):
                    return None
                self._used = used + 1
                return text, [(kind, word.replace(_SEAM, ""), end) for kind, word, end in tokens]
        return None

    def _feed(self, at: int, text: str, tokens: list[Token]) -> str | None:
        """Gives the tokens to the open document; returns the text behind its end, None if it goes on."""
        for token in tokens:
            if self._open is None:
                return None
            if token[1] == "{" and token[0] == "p" and self._open.wants_key():
                self._finish(self._open, cut=True)  # a document begins where no value may stand: the one before was cut
                self._open = _Reader(at)
            self._open.feed(token)
            if self._open.closed:
                self._finish(self._open, cut=False)
                return text[token[2] :]
        return None

    def _between(self, text: str) -> None:
        """A line, or the rest of one, outside documents."""
        bare = text.strip()
        if bare == "[":
            self._lists += 1
        elif bare in ("]", ",", "],") and self._lists:
            self._lists -= bare != ","
        else:
            self.stray |= _is_stray(text)


def _prefix_like(prefix: str) -> re.Pattern[str] | None:
    """Matches what stood before the opening brace, with other numbers and blanks."""
    if not prefix.strip() or len(prefix) >= _LONGEST_PREFIX:
        return None
    parts = re.split(r"(\d+|\s+)", prefix)
    made = "".join(r"\d{1,20}" if p.isdigit() else r"\s{0,64}" if p.isspace() else re.escape(p) for p in parts if p)
    return re.compile(made)


def _forms(line: str, prefix: re.Pattern[str] | None) -> Iterator[str]:
    match = prefix.match(line) if prefix else None
    if match:
        yield line[match.end() :]
    yield line
    yield from unprefixed(line)


def _unterminated(text: str) -> bool:
    return re.sub(r"\\.", "", text).count('"') % 2 == 1


def _is_foreign(form: str, tokens: list[Token]) -> bool:
    """A logger's own object, whole in one line: not part of a document that spans lines."""
    bare = form.strip()
    if not (bare.startswith("{") and bare.endswith("}")):
        return False
    keys = {str(_value(t[1])) for t, after in itertools.pairwise(tokens) if t[0] == "s" and after[1] == ":"}
    return bool(keys & _LOGGER_KEYS) and not keys & _OWN_KEYS


def _is_stray(line: str) -> bool:
    bare = line.strip()
    for form in (bare, *unprefixed(line)):
        if form.lstrip()[:1] in ("}", "]", '"', ",") and form.rstrip(" ,")[-1:] in ("}", "]"):
            return tokens_of(form)[1]
    return False


def documents(lines: Sequence[str], wanted: Callable[[Mapping[str, Any]], bool], hint: re.Pattern[str] | None = None) -> Found:
    """The JSON objects in `lines` that are `wanted`, in order; no others are kept in memory.

    Args:
        hint: found in every line that begins and ends a wanted object; lines without it are passed over unread.
    """
    return _Scan(lines, wanted, hint).run()
