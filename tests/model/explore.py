"""Visit every reachable state, breadth first: a history that breaks an invariant is a shortest one."""

from __future__ import annotations

import gc
import itertools
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass

from tests.model.shape import Broken, Config, State
from tests.model.world import successors


@dataclass(frozen=True)
class Found:
    """What an exploration saw.   broken: an invariant's name and what went against it, with the shortest history to it.
    ways: all changes of phase that were seen.   whole: nothing was left unvisited."""

    config: Config
    states: int
    moves: int
    depth: int
    seconds: float
    ways: frozenset[tuple[str, str]]
    faults: frozenset[str]
    broken: str = ""
    history: tuple[str, ...] = ()
    whole: bool = True


class _Seen:
    """States by number.  A state is kept as a tuple of numbers of its parts, which are few."""

    def __init__(self) -> None:
        self._parts: dict[object, int] = {}
        self._values: list[object] = []
        self._numbers: dict[tuple[int, ...], int] = {}
        self._keys: list[tuple[int, ...]] = []

    def __len__(self) -> int:
        return len(self._keys)

    def number(self, s: State) -> tuple[int, bool]:
        """The number of `s`, and whether it is new."""
        parts, get = [], self._parts.get
        for part in (*s.nodes, s.gens, s.ckpts, s.net, s[4:]):
            i = get(part)
            parts.append(self._part(part) if i is None else i)
        key = tuple(parts)
        k = self._numbers.setdefault(key, len(self._keys))
        if k == len(self._keys):
            self._keys.append(key)
            return k, True
        return k, False

    def state(self, k: int) -> State:
        *nodes, gens, ckpts, net, rest = (self._values[i] for i in self._keys[k])
        return State(tuple(nodes), gens, ckpts, net, *rest)  # type: ignore[arg-type, misc]

    def _part(self, part: object) -> int:
        i = self._parts[part] = len(self._values)
        self._values.append(part)
        return i


def explore(c: Config, tell: Callable[[int, int, int], None] | None = None, until: float = float("inf")) -> Found:
    """All states of `c`, or until an invariant breaks.   tell: called now and then with (states, states done, depth).
    until: monotonic second at which to give up (`whole` is then False)."""
    collects = gc.isenabled()
    gc.disable()  # millions of small tuples, and no rings among them
    try:
        return _explore(c, tell or _silent, until)
    finally:
        if collects:
            gc.enable()


def _silent(*_: int) -> None:
    """Nobody wants to hear of progress."""


def _explore(c: Config, tell: Callable[[int, int, int], None], until: float) -> Found:
    began = time.monotonic()
    seen, parent, depth = _Seen(), array("i", [-1]), array("H", [0])
    src, dst = array("i"), array("i")
    ways: set[tuple[str, str]] = set()
    struck: set[str] = set()
    seen.number(c.start())
    k = moves = 0

    def found(broken: str = "", history: tuple[str, ...] = (), whole: bool = True) -> Found:
        took = time.monotonic() - began
        return Found(c, len(seen), moves, depth[-1], took, frozenset(ways), frozenset(struck), broken, history, whole)

    while k < len(seen):
        s = seen.state(k)
        if ended(c, s):
            dst.append(-1)
            src.append(k)
            k += 1
            continue
        try:
            after = successors(c, s)
        except Broken as e:
            return found(str(e), _history(c, seen, parent, k))
        for label, fault, t in after:
            j, new = seen.number(t)
            moves += 1
            if new:
                parent.append(k)
                depth.append(depth[k] + 1)
            if fault:
                struck.add(str(label[1]))
                continue
            src.append(k)
            dst.append(j)
            for a, b in zip(s.nodes, t.nodes, strict=True):
                if a.phase is not b.phase and a.life == b.life == "R":
                    ways.add((a.phase, b.phase))
        k += 1
        if not k % 2000:
            if time.monotonic() > until:
                return found(whole=False)
            tell(len(seen), k, depth[k])
    stuck = _stuck(len(seen), src, dst)
    if stuck is not None:
        return found("I6: from here no generation can end any more", _history(c, seen, parent, stuck))
    return found()


def ended(c: Config, s: State) -> bool:
    """Nothing more is to be seen: all have left, or the last generation of this exploration has ended."""
    if not s.gens:
        return all(d.phase == "left" for d in s.nodes)
    v = s.gens[-1].verdict
    if c.brief and (s.cur == c.gens or (v is not None and v[0] == "finish")):
        return True
    if v is not None and v[0] != "finish":
        return s.cur == c.gens or sum(d.phase != "left" for d in s.nodes) < c.least
    return all(d.phase == "left" for d in s.nodes)


def _stuck(n: int, src: array[int], dst: array[int]) -> int | None:
    """I6: the first state from which, without more faults, no end can be reached."""
    first = array("i", [0]) * (n + 2)
    for b in dst:
        first[b + 2] += 1
    for i in range(1, n + 2):
        first[i] += first[i - 1]
    order, at = array("i", [0]) * len(src), first[:]
    for e, b in enumerate(dst):
        order[at[b + 1]] = e
        at[b + 1] += 1
    ok = bytearray(n)
    todo = [src[order[i]] for i in range(first[0], first[1])]
    for k in todo:
        ok[k] = 1
    while todo:
        b = todo.pop()
        for i in range(first[b + 1], first[b + 2]):
            a = src[order[i]]
            if not ok[a]:
                ok[a] = 1
                todo.append(a)
    return next((k for k in range(n) if not ok[k]), None)


def _history(c: Config, seen: _Seen, parent: array[int], k: int) -> tuple[str, ...]:
    """The moves from the start to state k, found again by doing them."""
    chain = [k]
    while parent[chain[-1]] >= 0:
        chain.append(parent[chain[-1]])
    chain.reverse()
    lines = []
    for a, b in itertools.pairwise(chain):
        want = seen.state(b)
        label, fault, _ = next(x for x in successors(c, seen.state(a)) if x[2] == want)
        lines.append(say(label, fault))
    return tuple(lines)


def say(label: tuple[object, ...], fault: bool) -> str:
    n, *text = label
    return f"{'! ' if fault else '  '}{'' if n is None else 'ABC'[int(str(n))] + ': '}{' '.join(map(str, text))}"
