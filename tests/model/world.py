"""Everything around the agents: the clock, workers' steps, answers of the store, faults and what ends them."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.agents import Move, drop, moves, must_hear, over, reaches, spawned, talks, urgent, verdict
from tests.model.shape import BACK, HOME, LEASE, LINK, OUTAGE, RESENT, Broken, Config, Node, State, Txn
from tests.model.store import WAIT, heard, land, with_node
from tests.model.tidy import tidy

OWN = frozenset(("join", "ready", "member", "reattach"))
"""What an agent writes of its own candidate alone."""


def successors(c: Config, s: State) -> list[tuple[tuple[object, ...], bool, State]]:
    """All that may happen next: (label, is it a fault, the state after it)."""
    found = [(label, True, t) for label, t in faults(c, s)] if s.faults else []
    now = [m for n in range(c.nodes) for m in urgent(c, s, n)]
    if now:
        found += [(label, False, t) for label, t in now]
    else:
        found += [(label, False, t) for label, t in _calm(c, s)]
    return [(label, fault, tidy(c, t)) for label, fault, t in found]


def _calm(c: Config, s: State) -> Iterator[Move]:
    yield from _store(c, s)
    for n, d in enumerate(s.nodes):
        yield from ((label, _seen_now(s, n, t)) for label, t in _recovery(c, s, n, d))
        if d.life == "R" and d.phase != "left":
            yield from (_at_once(c, s, m) for m in moves(c, s, n)) if c.coarse else moves(c, s, n)
            yield from _answers(s, n, d)
        elif d.life == "P" and d.work is not None and d.phase == "stopping" and "7 page" in c.off:
            yield (n, "its workers run on"), s
    yield from _steps(c, s)
    yield from _halts(c, s)
    later = tick(c, s)
    if later is not s and not any(must_hear(s, n) for n in range(c.nodes)):
        yield (None, "a tick passes"), later


def _at_once(c: Config, s: State, move: Move) -> Move:
    """With `Config.coarse`: what an agent sends is answered at once."""
    label, after = move
    t = _sent(c, s, after)
    if t is None:
        return move
    after, done = land(c, after._replace(net=after.net[:-1]), t)
    return label, _answered(c, after, t[1], t, done)


def _sent(c: Config, s: State, after: State) -> Txn | None:
    """The write that a move has sent, if this exploration lets it land at once."""
    if len(after.net) <= len(s.net):
        return None
    t = after.net[-1][1]
    return t if c.coarse > 1 or t[0] in OWN else None


# ---- the store answers, now or late
def _store(c: Config, s: State) -> Iterator[Move]:
    if not s.up:
        return
    for k, (w, t) in enumerate(s.net):
        if w == 2:
            continue
        n = t[1]
        rest = s._replace(net=s.net[:k] + s.net[k + 1 :])
        after, done = land(c, rest, t)
        if w == 0:
            if done:
                yield (n, f"a late {t[0]} lands"), after
        elif s.nodes[n].life == "R" and not s.nodes[n].cut & 1:
            yield (n, f"{t[0]} is {'done' if done else 'refused'}"), _answered(c, after, n, t, done)
        else:
            yield (n, f"{t[0]} is {'done' if done else 'refused'}, unheard"), _again(c, after, t)


def _again(c: Config, s: State, t: tuple[object, ...]) -> State:
    return s._replace(net=(*s.net, (2, t))) if t[0] in RESENT and "6" not in c.off else s


def _answers(s: State, n: int, d: Node) -> Iterator[Move]:
    """An unanswered write is sent again."""
    if not reaches(s, n):
        return
    for k, (w, t) in enumerate(s.net):
        if w == 2 and t[1] == n:
            yield (n, f"sends {t[0]} again"), s._replace(net=(*s.net[:k], (1, t), *s.net[k + 1 :]))


def _answered(c: Config, s: State, n: int, t: tuple[object, ...], done: bool) -> State:
    """What the answer tells its sender; refused with the own value there means that an earlier try has landed."""
    d = s.nodes[n]
    mine = d.cand == ({"join": "checking", "ready": "ready"}.get(str(t[0]), "member"), d.inc)
    if t[0] == "join" and d.phase == "joining" and mine:
        return with_node(s, n, d._replace(phase="checking"))
    if t[0] == "join" and d.phase == "joining":
        return with_node(s, n, d._replace(own=0))
    if t[0] == "ready" and d.phase == "checking" and mine:
        return with_node(s, n, d._replace(phase="ready"))
    if t[0] == "member" and d.phase == "ready" and mine:
        s = with_node(s, n, d._replace(phase="starting", g=int(str(t[3])), last=int(str(t[3]))))
        return spawned(s, n) if c.coarse else s
    if t[0] == "reattach" and d.phase == "running" and mine:
        return with_node(s, n, d._replace(out=0, own=LEASE))
    return s


# ---- time
def tick(c: Config, s: State) -> State:
    nodes = tuple([_older(s, n, d) for n, d in enumerate(s.nodes)])
    return s if nodes == s.nodes else s._replace(nodes=nodes)


def _older(s: State, n: int, d: Node) -> Node:
    conn, held = reaches(s, n), d.cand is not None and d.cand[1] == d.inc
    own, store, out, page, gone = d.own, d.store, d.out, d.page, d.gone
    asks = d.phase == "joining" and d.cand is None and store > 0
    if d.life == "R" and d.phase != "left" and conn and (held or asks) and out < BACK:
        own, store, out = LEASE, LEASE, 0
    else:
        own, store = max(0, own - 1), max(0, store - 1)
    if out >= BACK or (d.life == "R" and conn and d.phase == "running" and not held):
        out = min(max(out, BACK) + 1, BACK + LINK)
    elif d.phase in HOME and not conn:
        out = min(out + 1, OUTAGE + 1)
    if d.work is not None and (d.life == "P" or (d.life == "R" and d.phase == "stopping")):
        page = max(0, page - 1)
    if s.cur and not held and any(m == n for m, _ in s.gens[-1].members):
        gone = min(gone + 1, WAIT)
    link, answered = _link(s, n, d), d.answered or (d.life == "R" and not held and heard(s, n))
    if (own, store, out, page, gone, link, answered) == (d.own, d.store, d.out, d.page, d.gone, d.link, d.answered):
        return d
    return d._replace(own=own, store=store, out=out, page=page, gone=gone, link=link, answered=answered)


def _link(s: State, n: int, d: Node) -> int:
    if not d.g or (d.phase not in HOME and d.phase != "stopping"):
        return d.link
    hub = s.gens[d.g - 1].members[0][0]
    up = hub == n or (talks(s, n, hub) and talks(s, hub, n))
    return LINK if up and d.link else max(0, d.link - 1)


def _seen_now(s: State, n: int, t: State) -> State:
    """A former counts from when it has seen itself that a candidate is gone and that there is a verdict.  When nobody else had
    the store until n has it again, that is now."""
    if not reaches(t, n) or t.nodes[n].life != "R" or (reaches(s, n) and s.nodes[n].life == "R"):
        return t
    for m, d in enumerate(t.nodes):
        if d.gone and not any(k != m and reaches(s, k) and x.life == "R" for k, x in enumerate(s.nodes)):
            t = with_node(t, m, d._replace(gone=0))
    return t


# ---- leases in the store, faults that end, agents that notice
def _recovery(c: Config, s: State, n: int, d: Node) -> Iterator[Move]:
    if d.cand is not None and d.store == 0 and s.up:
        yield (n, "its lease ends in the store"), with_node(s, n, d._replace(cand=None, store=0, answered=d.life == "R" and heard(s, n)))
    if d.life == "P":
        yield (n, "its agent goes on"), with_node(s, n, d._replace(life="R", page=0))
    elif d.life == "Z":
        late = d.excused or (d.work is not None and d.cand is None)
        yield (n, "thaws"), with_node(s, n, d._replace(life="R", page=0, excused=late))
    elif d.life in "DH" and (d.work is None or "9 reaped" in c.off):
        work = d.work if "9 reaped" in c.off else None
        new = Node(inc=d.inc + 1, cand=d.cand, store=d.store, gone=d.gone, cut=d.cut, work=work)
        yield (n, "its agent is started again"), with_node(s, n, new)
    if d.cut:
        yield (n, "its network is whole again"), with_node(s, n, d._replace(cut=0))
    if not s.up and n == 0:
        yield (None, "the store is back"), s._replace(up=True)
    if d.life == "R" and d.phase == "running" and reaches(s, n) and d.g == s.cur and d.out < BACK:
        if d.cand is None:
            yield (n, "finds its lease gone"), with_node(s, n, d._replace(own=0, out=BACK))
        elif d.out:
            yield (n, "renews its lease"), with_node(s, n, d._replace(own=LEASE, store=LEASE, out=0))


# ---- workers
def _teams(s: State) -> Iterator[tuple[int, list[int]]]:
    for comm in sorted({s.gens[d.work[0] - 1].comm for d in s.nodes if d.work is not None}):
        one = next(d.work[0] for d in s.nodes if d.work is not None and s.gens[d.work[0] - 1].comm == comm)
        yield comm, [m for m, _ in s.gens[one - 1].members]


def _steps(c: Config, s: State) -> Iterator[Move]:
    """One collective over all workers of a communicator."""
    for comm, team in _teams(s):
        works = [s.nodes[m].work for m in team]
        there = [w for w in works if w is not None and s.gens[w[0] - 1].comm == comm and not (w[3] and "4" not in c.off)]
        apart = len(team) > 1 and any(s.nodes[m].cut & 2 for m in team)
        if len(there) < len(team) or apart or any(s.nodes[m].life in "ZH" for m in team):
            continue
        if len({w[:2] for w in there}) > 1:
            raise Broken(f"I4: one collective mixes workers at {sorted({w[:2] for w in there})} (generation, position)")
        g, pos, mask, _ = there[0]
        while pos < c.steps and s.gens[g - 1].windows >> pos & 1:
            pos += 1
        if there[0][1] >= c.steps:
            continue
        if pos < c.steps:
            if mask >> pos & 1:
                raise Broken(f"I4: position {pos} is consumed twice")
            mask, pos = mask | 1 << pos, pos + 1
        nodes = tuple(d._replace(work=(g, pos, mask, d.work[3])) if m in team and d.work else d for m, d in enumerate(s.nodes))
        yield (None, f"workers of {g} step to {pos}"), s._replace(nodes=nodes)


def _halts(c: Config, s: State) -> Iterator[Move]:
    """All ranks of the current generation agree to halt after the step that they have just done (rule 4)."""
    if not s.rollbacks or not s.cur or verdict(s, s.cur) is not None:
        return
    gen = s.gens[-1]
    works = [s.nodes[m].work for m, _ in gen.members]
    start = s.ckpts[gen.plan].pos if gen.plan >= 0 else 0
    if any(w is None or w[0] != s.cur or w[3] or w[1] != (works[0] or w)[1] for w in works):
        return
    _, pos, mask, _ = works[0] or (0, 0, 0, False)
    if pos > start and mask >> (pos - 1) & 1:
        team = {m for m, _ in gen.members}
        nodes = tuple(d._replace(work=(*d.work[:3], True)) if m in team and d.work else d for m, d in enumerate(s.nodes))
        yield (None, f"all ranks halt at {pos}"), s._replace(nodes=nodes, rollbacks=s.rollbacks - 1)


# ---- faults
def faults(c: Config, s: State) -> Iterator[Move]:
    """Every fault that may strike here; the product's duty is to bear them, so each counts against `Config.faults`."""
    s = s._replace(faults=s.faults - 1)
    if s.up and "store outage" in c.kinds:
        yield (None, "store outage"), s._replace(up=False)
    if "no answer" in c.kinds:
        for k, (w, t) in enumerate(s.net):
            if w == 1:
                lost = s._replace(net=(*s.net[:k], (0, t), *s.net[k + 1 :]))
                yield (t[1], "no answer", f"to {t[0]}"), _again(c, lost, t)
        if c.coarse:
            yield from _unanswered(c, s)
    if "old verdict deleted" in c.kinds:
        for g in range(1, s.cur):
            if s.gens[g - 1].verdict is not None:
                gen = s.gens[g - 1]._replace(verdict=None)
                yield (None, "old verdict deleted", f"(on {g})"), s._replace(gens=(*s.gens[: g - 1], gen, *s.gens[g:]))
    for n, d in enumerate(s.nodes):
        for kind, t in _strikes(s, n, d):
            if kind in c.kinds:
                yield (n, kind), t


def _unanswered(c: Config, s: State) -> Iterator[Move]:
    for n, d in enumerate(s.nodes):
        if d.life == "R":
            for _, after in moves(c, s, n):
                t = _sent(c, s, after)
                if t is not None:
                    yield (n, "no answer", f"to {t[0]}, sent now"), _again(c, after._replace(net=(*after.net[:-1], (0, t))), t)


def _strikes(s: State, n: int, d: Node) -> Iterator[tuple[str, State]]:
    if d.life in "DH" or d.phase == "left":
        return
    yield "agent killed", drop(with_node(s, n, _dead(d, "D")), n)
    yield "host lost", drop(with_node(s, n, _dead(d, "H")._replace(work=None)), n)
    if d.life != "R":
        return
    left = d.page if d.phase == "stopping" else d.own + LINK
    yield "agent stopped", with_node(s, n, d._replace(life="P", page=left))
    if d.work is not None or d.phase == "ready":
        yield "node frozen", with_node(s, n, d._replace(life="Z"))
    if not d.cut:
        for cut, kind in ((1, "cut from the store"), (2, "cut from peers"), (3, "cut from all")):
            yield kind, with_node(s, n, d._replace(cut=cut))
    if d.phase in HOME and d.work is not None:
        yield "worker exits", with_node(s, n, d._replace(work=None))
    if not d.asked and not over(s):
        yield "asked to stop", with_node(s, n, d._replace(asked=True))


def _dead(d: Node, life: str) -> Node:
    """A dead agent's links end at once, a lost host's are silent."""
    phase, g = (d.phase, d.g) if life == "H" and d.phase in HOME else ("joining", 0)
    return d._replace(life=life, phase=phase, g=g, page=0, out=0, own=LEASE, asked=False)
