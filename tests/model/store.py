"""The store: one transaction lands, all at once, or is refused.  Each branch says what the product's `fence` compares."""

from __future__ import annotations

from tests.model.shape import GRACE, HOME, LEASE, LINK, Broken, Ckpt, Config, Gen, Node, State, Txn, line


def with_node(s: State, n: int, node: Node) -> State:
    return s._replace(nodes=(*s.nodes[:n], node, *s.nodes[n + 1 :]))


def fenced(c: Config, s: State, g: int) -> bool:
    """Both halves of the fence of generation g."""
    if g != s.cur and "fence current" not in c.off:
        return False
    return s.gens[g - 1].verdict is None or "fence verdict" in c.off


def land(c: Config, s: State, t: Txn) -> tuple[State, bool]:
    """The state after `t` was decided, and whether it was accepted."""
    return _LAND[t[0]](c, s, t)


def _join(c: Config, s: State, t: Txn) -> tuple[State, bool]:
    _, n, inc = t
    node = s.nodes[n]
    if node.cand is not None or node.inc != inc or not node.store:  # created, under a lease that must be there
        return s, False
    return with_node(s, n, node._replace(cand=("checking", inc), store=LEASE)), True


def _ready(c: Config, s: State, t: Txn) -> tuple[State, bool]:
    """Compares the mod revision of the own candidate, as `member` does: what was sent over an older one is refused."""
    _, n, inc, was = t
    node = s.nodes[n]
    if node.cand != (was, inc):
        return s, False
    s = with_node(s, n, node._replace(cand=("ready", inc)))
    if "late member" not in c.off:
        s = s._replace(net=tuple(e for e in s.net if e[1][:2] != ("member", n)))
    return s, True


def _member(c: Config, s: State, t: Txn) -> tuple[State, bool]:
    _, n, inc, g = t
    node = s.nodes[n]
    if not fenced(c, s, g) or node.cand != ("ready", inc):
        return s, False
    _still(s, g, f"`member` of {_name(n)}")
    return with_node(s, n, node._replace(cand=("member", inc))), True


def _reattach(c: Config, s: State, t: Txn) -> tuple[State, bool]:
    _, n, inc, g = t
    node = s.nodes[n]
    if not fenced(c, s, g) or node.cand is not None or node.inc != inc or not node.store:
        return s, False
    _still(s, g, f"the candidate that {_name(n)} put back")
    return with_node(s, n, node._replace(cand=("member", inc), gone=0, store=LEASE)), True


def _verdict(c: Config, s: State, t: Txn) -> tuple[State, bool]:
    """Created only; a rollback compares its target as committed; candidates of proven dead members go with it."""
    _, _, g, v, dead = t
    gen = s.gens[g - 1]
    if gen.verdict is not None and "first writer" not in c.off:
        return s, False
    if v[0] == "rollback" and v[1] >= 0 and s.ckpts[v[1]].state != "committed" and "3" not in c.off:
        return s, False
    if gen.verdict not in (None, v):
        raise Broken(f"I3: the verdict on generation {g} was {gen.verdict[0]} and becomes {v[0]}")
    s = s._replace(gens=(*s.gens[: g - 1], gen._replace(verdict=v), *s.gens[g:]))
    if v[0] == "rollback":
        if v[1] >= 0 and s.ckpts[v[1]].state != "committed":
            raise Broken(f"I7: a rollback to checkpoint {v[1]}, which is {s.ckpts[v[1]].state}")
        good = line(s.ckpts, v[1])
        s = s._replace(ckpts=tuple(k._replace(left=k.left or (k.gen <= g and i not in good)) for i, k in enumerate(s.ckpts)))
    return s._replace(nodes=tuple(_told_of(s, g, m, node, dead) for m, node in enumerate(s.nodes))), True


def _told_of(s: State, g: int, m: int, node: Node, dead: tuple[tuple[int, int], ...]) -> Node:
    """A member that answers peers is told of the verdict, so a former counts its time from now; one that nobody reaches
    may train on until its ride-through bound."""
    if node.cand is not None and (m, node.cand[1]) in dead:
        node = node._replace(cand=None)
    if g == s.cur and node.cand is None and (m, node.inc) in s.gens[g - 1].members:
        if node.answered or heard(s, m):
            return node._replace(gone=0, answered=True)
        return node._replace(excused=node.excused or beyond(s, m))
    return node


def heard(s: State, m: int) -> bool:
    """Is there a way from somebody who has the store to the agent of `m`?"""
    return not s.nodes[m].cut & 2 and any(k != m and d.life == "R" and not d.cut for k, d in enumerate(s.nodes))


def linked(s: State, n: int) -> bool:
    """Are n's links up: rank 0's to all members, the others' to rank 0?"""
    d = s.nodes[n]
    hub, *others = s.gens[d.g - 1].members
    if n != hub[0]:
        return d.link > 0 and _end(s, hub[0], hub[1], d.g)
    return all(_end(s, m, i, d.g) and s.nodes[m].link > 0 for m, i in others)


def _end(s: State, a: int, inc: int, g: int) -> bool:
    """The end of a link at member (a, inc) of generation g is there still."""
    d = s.nodes[a]
    return d.inc == inc and d.life != "D" and (d.phase in HOME or (d.phase == "stopping" and d.work is not None)) and d.g == g


def beyond(s: State, n: int) -> bool:
    """It trains on without the store, rightly (its links are up), and nobody who has the store reaches it."""
    d = s.nodes[n]
    return d.life == "R" and d.phase == "running" and bool(d.cut & 1) and d.work is not None and not heard(s, n) and linked(s, n)


def _form(c: Config, s: State, t: Txn) -> tuple[State, bool]:
    """`current` unchanged, the verdict there, the former's own candidate alive, the plan's record as it was read."""
    _, n, inc, last, kind, members, plan, windows, leave = t
    cand = s.nodes[n].cand
    if last != s.cur or (last and s.gens[-1].verdict is None) or cand is None or cand[1] != inc:
        return s, False
    if any(s.ckpts[i].state != "committed" for i in ({plan} if plan >= 0 else set()) | set(leave)):
        return s, False
    g = last + 1
    _may_form(c, s, g, kind, members, plan, windows)
    ckpts = tuple(k._replace(state="abandoned") if i in leave else k for i, k in enumerate(s.ckpts))
    for i, k in enumerate(ckpts):
        if k.left and k.state == "committed":
            raise Broken(f"I7: generation {g} leaves checkpoint {i} committed, which a rollback left")
    if kind == "formed":
        _overlap(s, g)
    gen = Gen(kind, s.gens[-1].comm if kind == "in place" else g, members, plan, windows, None)
    nodes = tuple(d._replace(gone=0, excused=d.excused or (kind == "formed" and d.work is not None)) for d in s.nodes)
    return s._replace(nodes=nodes, gens=(*s.gens, gen), ckpts=ckpts), True


def _may_form(c: Config, s: State, g: int, kind: str, members: tuple[tuple[int, int], ...], plan: int, windows: int) -> None:
    if len({m for m, _ in members}) != len(members) or not c.least <= len(members) <= c.most:
        raise Broken(f"I2: generation {g} of {len(members)} members, bounds {c.least}:{c.most}")
    if plan >= 0 and s.ckpts[plan].left:
        raise Broken(f"I7: generation {g} restores checkpoint {plan} of a branch that a rollback left")
    best = max((k.pos for k in s.ckpts if k.state == "committed" and not k.left), default=0)
    if (s.ckpts[plan].pos if plan >= 0 else 0) < best:
        raise Broken(f"I7: generation {g} restores position {s.ckpts[plan].pos if plan >= 0 else 0}, though {best} is committed")
    v = s.gens[-1].verdict if s.gens else None
    if s.gens and v is not None and (s.gens[-1].windows | v[2]) & ~windows:
        raise Broken(f"I4: generation {g} forgets a window")


def _overlap(s: State, g: int) -> None:
    """Rule 7: nothing of an older group runs any more when a new one forms, apart from what nobody can bound: a frozen
    node, one that has woken too late and ends its workers now, a group that trains on where nobody reaches it."""
    for m, d in enumerate(s.nodes):
        if d.work is not None and d.life != "Z" and not d.excused and not beyond(s, m):
            how = {"R": "runs", "P": "is stopped", "D": "is dead"}[d.life]
            raise Broken(f"R7: generation {g} forms while workers of generation {d.work[0]} on {_name(m)}, whose agent {how}, still run")


def _commit(c: Config, s: State, t: Txn) -> tuple[State, bool]:
    _, _, g, parent, pos, mask = t
    if not fenced(c, s, g) or any(k.gen == g and k.pos == pos for k in s.ckpts):
        return s, False
    _still(s, g, f"the commit of position {pos}")
    if mask != ((1 << pos) - 1) & ~s.gens[g - 1].windows:
        raise Broken(f"I4: the checkpoint at {pos} of generation {g} has consumed {mask:b}")
    if any(k.parent == parent and k.gen == g for k in s.ckpts):
        raise Broken(f"I1: two checkpoints of generation {g} have one parent")
    return s._replace(ckpts=(*s.ckpts, Ckpt(g, parent, pos, mask, "committed", False))), True


def _delete(c: Config, s: State, t: Txn) -> tuple[State, bool]:
    _, _, g, i = t
    if not fenced(c, s, g) or s.ckpts[i].state != "committed":
        return s, False
    _still(s, g, f"the deletion of checkpoint {i}")
    plan = s.gens[-1].plan
    if i == plan and not any(k.gen == s.cur and k.state == "committed" for k in s.ckpts):
        raise Broken(f"I8: the only restore point of generation {g}, checkpoint {i}, goes away")
    return s._replace(ckpts=(*s.ckpts[:i], s.ckpts[i]._replace(state="deleting"), *s.ckpts[i + 1 :])), True


def _still(s: State, g: int, what: str) -> None:
    if g != s.cur or s.gens[g - 1].verdict is not None:
        raise Broken(f"I1: {what} of generation {g} took effect after its end")


def _name(n: int) -> str:
    return "ABC"[n]


_LAND = {
    "join": _join,
    "ready": _ready,
    "member": _member,
    "reattach": _reattach,
    "verdict": _verdict,
    "form": _form,
    "commit": _commit,
    "delete": _delete,
}
WAIT = LINK + GRACE
"""Ticks from a candidate's end until its workers are surely gone (rule 7)."""
