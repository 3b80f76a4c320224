"""States that behave alike become one state: what can no longer matter is forgotten."""

from __future__ import annotations

import functools
from typing import Any

from tests.model.shape import HOME, LEASE, LINK, Config, Entry, Gen, Node, State

_WEAK = frozenset(("fence current", "fence verdict", "first writer"))
_NOBODY: frozenset[int] = frozenset()


def tidy(c: Config, s: State) -> State:
    members = s.gens[-1].members if s.gens else ()
    asks = {e[1][1] for e in s.net if e[0] and e[1][0] in ("join", "reattach")} if s.net else _NOBODY
    nodes = tuple([_node(d, n in asks, any(m == n for m, _ in members), s.cur) for n, d in enumerate(s.nodes)])
    s = s._replace(nodes=nodes)
    net = tuple(sorted(_net(c, s))) if s.net else ()
    gens = s.gens
    if s.cur > 1:
        used = {d.g for d in nodes} | {d.work[0] for d in nodes if d.work} | {e[1][3] for e in net if e[1][0] in ("member", "reattach")}
        gens = tuple([x if g == s.cur or g in used else _old(x) for g, x in enumerate(s.gens, 1)])
    return _renumber(s._replace(net=net, gens=gens) if net is not s.net or gens is not s.gens else s)


@functools.cache
def _node(d: Node, asks: bool, member: bool, cur: int) -> Node:
    """Deadlines that nothing hangs on get their resting value."""
    ch: dict[str, Any] = {}
    if d.phase not in HOME:
        ch["out"] = 0
        if d.phase != "stopping" or d.work is None:
            ch["link"] = LINK
    if d.life == "H" and d.g and d.link == 0:
        ch["phase"], ch["g"] = "joining", 0
    if d.cand is None and not (asks and d.life in "RPZ"):
        ch["store"] = 0
        if d.phase == "joining":
            ch["own"] = LEASE
    if d.life in "DH" or d.phase == "left":
        ch["own"] = LEASE
    if d.work is None:
        ch["page"], ch["excused"] = 0, False
    if d.last != cur:
        ch["last"] = 0
    if not member or (d.cand is not None and d.cand[1] == d.inc and d.phase != "joining"):
        ch["gone"], ch["answered"] = 0, False
    if d.phase == "left":
        ch["cut"] = 0
    return d._replace(**ch)


def _net(c: Config, s: State) -> list[Entry]:
    """Without what nobody waits for and what can't be accepted any more.  Two copies alike are one."""
    found: list[Entry] = []
    for e in s.net:
        if (e[0] or not _vain(c, s, e)) and not (e[0] == 0 and e in found):
            found.append(e)
    return found


def _vain(c: Config, s: State, e: Entry) -> bool:
    t = e[1]
    kind, n = t[0], t[1]
    if kind in ("commit", "delete", "member", "reattach"):
        g = t[3] if kind in ("member", "reattach") else t[2]
        if not c.off & _WEAK and "old verdict deleted" not in c.kinds and (g < s.cur or s.gens[g - 1].verdict is not None):
            return True
        if kind in ("member", "reattach"):
            return bool(s.nodes[n].inc != t[2])
        return kind == "delete" and s.ckpts[t[3]].state != "committed"
    if kind == "form":
        return bool(t[3] < s.cur)
    if kind == "verdict":
        return "first writer" not in c.off and s.gens[t[2] - 1].verdict is not None
    if kind == "ready":
        return s.nodes[n].cand != (t[3], t[2])
    return bool(s.nodes[n].inc != t[2])


@functools.cache
def _old(g: Gen) -> Gen:
    return g._replace(members=(), plan=-1, verdict=g.verdict and ("restart", -1, 0))


def _renumber(s: State) -> State:
    """Only the order of a node's incarnations matters."""
    if not any(d.inc for d in s.nodes):
        return s
    names = []
    for n, d in enumerate(s.nodes):
        used = {d.inc} | ({d.cand[1]} if d.cand else set()) | {i for g in s.gens for m, i in g.members if m == n}
        for _, t in s.net:
            if t[1] == n and t[0] in ("join", "ready", "member", "reattach", "form"):
                used.add(t[2])
            if t[0] == "form":
                used |= {i for m, i in t[5] if m == n}
            if t[0] == "verdict":
                used |= {i for m, i in t[4] if m == n}
        names.append({i: k for k, i in enumerate(sorted(used))})
    if all(k == i for name in names for i, k in name.items()):
        return s
    nodes = tuple(d._replace(inc=names[n][d.inc], cand=d.cand and (d.cand[0], names[n][d.cand[1]])) for n, d in enumerate(s.nodes))
    gens = tuple(g._replace(members=tuple((m, names[m][i]) for m, i in g.members)) for g in s.gens)
    return s._replace(nodes=nodes, gens=gens, net=tuple(sorted((w, _renamed(t, names)) for w, t in s.net)))


def _renamed(t: tuple[object, ...], names: list[dict[int, int]]) -> tuple[object, ...]:
    out: list[object] = list(t)
    n = t[1]
    assert isinstance(n, int)
    if t[0] in ("join", "ready", "member", "reattach", "form"):
        out[2] = names[n][t[2]]  # type: ignore[index]
    at = {"form": 5, "verdict": 4}.get(str(t[0]))
    if at is not None:
        out[at] = tuple((m, names[m][i]) for m, i in t[at])  # type: ignore[attr-defined]
    return tuple(out)
