"""Mistakes in a YAML file, all of them at once, each with file, line, field, what was expected and what was found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from elastic_health.errors import ConfigError


@dataclass(frozen=True)
class Mistake:
    """One mistake.  `line` counts from 1; `field` is dotted (`restarts.per_hour`), "" for the file as a whole."""

    line: int
    field: str
    expected: str
    found: str


class ConfigMistakes(ConfigError):
    """A file with mistakes.  Its text is one line a mistake, in the order of the file."""

    def __init__(self, path: str, mistakes: Iterable[Mistake]) -> None:
        self.path = path
        self.mistakes = tuple(sorted(mistakes, key=lambda m: (m.line, m.field)))
        super().__init__("a valid configuration", f"{len(self.mistakes)} mistake(s) in {path}", "correct the lines named")

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> tuple[str, ...]:
        """The text, line by line."""
        count = len(self.mistakes)
        head = f"{self.path}: {count} mistake{'s' if count != 1 else ''}; correct and try again:"
        return (head, *(self._line(m) for m in self.mistakes))

    def _line(self, m: Mistake) -> str:
        field = f"{m.field}: " if m.field else ""
        return f"  {self.path}:{m.line}: {field}expected {m.expected}; found {m.found}"
