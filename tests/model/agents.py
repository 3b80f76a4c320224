"""What an agent may do next: one move a decision of the product, in the product's words."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.shape import BACK, GRACE, HOME, LEASE, LINK, OUTAGE, Config, Entry, Gen, Node, State, Txn, line, top
from tests.model.store import WAIT, beyond, heard, linked, with_node

Move = tuple[tuple[object, ...], State]
"""((node, text, details …), the state after it)."""


# ---- small questions
def reaches(s: State, n: int) -> bool:
    return s.up and not s.nodes[n].cut & 1


def talks(s: State, a: int, b: int) -> bool:
    """Is there a way between the hosts of a and b, and does a's agent run?"""
    return s.nodes[a].life == "R" and not (s.nodes[a].cut | s.nodes[b].cut) & 2


def verdict(s: State, g: int) -> tuple[str, int, int] | None:
    return s.gens[g - 1].verdict if g else None


def over(s: State) -> bool:
    """Has the run ended?"""
    v = verdict(s, s.cur)
    return v is not None and v[0] == "finish"


def waits(s: State, n: int, purpose: str) -> bool:
    return any(e[0] and e[1][0] == purpose and e[1][1] == n for e in s.net)


def send(s: State, t: Txn) -> State:
    return s._replace(net=(*s.net, (1, t)))


def drop(s: State, n: int, keep: tuple[str, ...] = ()) -> State:
    """Nobody waits for n's transactions any more; what is under way may still land."""
    return s._replace(net=tuple(e for e in (_alone(e) if e[1][1] == n and e[1][0] not in keep else e for e in s.net) if e is not None))


def _alone(e: Entry) -> Entry | None:
    return None if e[0] == 2 else (0, e[1])


def riding(c: Config, s: State, n: int) -> bool:
    """A store outage that a healthy group may train through."""
    d = s.nodes[n]
    if not 0 < d.out <= OUTAGE or d.phase != "running":
        return False
    if "7 links" in c.off:
        return True
    return linked(s, n)


def may_run(c: Config, s: State, n: int) -> bool:
    d = s.nodes[n]
    if d.own > 0:
        return True
    if d.out >= BACK:
        return d.phase == "running" and d.out < BACK + LINK
    return riding(c, s, n)


def proven(s: State, n: int, m: int, inc: int) -> bool:
    """A refused connection (nobody listens, and the guardian has the workers), told by link that they are reaped, or the
    same agent under a later incarnation."""
    d = s.nodes[m]
    if d.inc != inc:
        return talks(s, n, m) or (d.cand is not None and d.cand[1] == d.inc)
    if not talks(s, n, m) or d.work is not None:
        return False
    return d.life == "D" or (d.life == "R" and not d.g)


def lost(s: State, n: int, m: int, inc: int) -> bool:
    d = s.nodes[m]
    if talks(s, n, m) and ((d.life == "D" and d.work is None) or (d.inc != inc and d.life == "R")):
        return True
    return (d.cand is None or d.cand[1] != inc) and d.gone >= LINK


# ---- endings
def stop(s: State, n: int) -> State:
    """To `stopping`; workers are gone within GRACE, also those of a group beyond everybody's reach, at its bound."""
    d = s.nodes[n]
    s = with_node(s, n, d._replace(phase="stopping", page=GRACE if d.work else 0, excused=d.excused or beyond(s, n)))
    return drop(s, n, ("join", "ready", "form", "verdict"))


def rejoin(s: State, n: int) -> State:
    """Without a lease this incarnation is over; its lease is given back if the store can be asked."""
    d = s.nodes[n]
    cand = None if reaches(s, n) else d.cand
    node = d._replace(phase="joining", inc=d.inc + 1, cand=cand, g=0, own=LEASE, out=0, page=0, link=LINK, gone=0 if cand else d.gone)
    return drop(with_node(s, n, node), n)


def leave(s: State, n: int) -> State:
    d = s.nodes[n]
    node = d._replace(phase="left", g=0, cand=None if reaches(s, n) else d.cand, work=None, page=0)
    return drop(with_node(s, n, node), n)


def reap(s: State, n: int) -> State:
    """Workers are gone: what comes after `stopping`."""
    d = s.nodes[n]
    ended = d.asked or (d.g and (verdict(s, d.g) or ("",))[0] == "finish")
    s = with_node(s, n, d._replace(work=None, page=0, excused=False))
    if ended:
        return leave(s, n)
    if d.own == 0:
        return rejoin(s, n)
    return with_node(s, n, s.nodes[n]._replace(phase="checking", g=0, out=0, link=LINK))


# ---- moves that can't wait: what must have happened by now
def urgent(c: Config, s: State, n: int) -> Iterator[Move]:
    d = s.nodes[n]
    if d.life == "D" and d.work is not None:
        yield (n, "the guardian of the dead agent ends its workers"), with_node(s, n, d._replace(work=None, excused=False))
    elif d.life == "P" and d.work is not None and d.page == 0 and "7 page" not in c.off:
        yield (n, "workers end by the deadline on their page"), with_node(s, n, d._replace(work=None, excused=False))
    elif d.life != "R":
        return
    elif d.phase in HOME and not may_run(c, s, n):
        yield (n, "stops its workers: it could not renew its lease"), stop(s, n)
    elif d.phase == "stopping" and d.work is not None and d.page == 0:
        yield (n, "has ended its workers"), reap(s, n)


def must_hear(s: State, n: int) -> bool:
    """Its candidate is gone and it works on under a verdict: it is told, by a peer or the store, before a tick passes."""
    d = s.nodes[n]
    told = d.life == "R" and d.phase in HOME and d.cand is None and not d.excused and verdict(s, d.g) is not None
    return told and (heard(s, n) or reaches(s, n))


# ---- all other moves of a running agent
def moves(c: Config, s: State, n: int) -> Iterator[Move]:
    d = s.nodes[n]
    if d.phase == "joining":
        yield from _joining(s, n, d)
    elif d.phase == "checking":
        yield from _checking(s, n, d)
    elif d.phase == "ready":
        yield from _ready(c, s, n, d)
    elif d.phase == "stopping":
        yield (n, "has ended its workers"), reap(s, n)
        if "9 reaped" in c.off and d.own == 0 and d.work is not None:
            yield (n, "joins again beside its old workers"), rejoin(s, n)
    elif d.phase in HOME:
        yield from _at_work(c, s, n, d)
    if d.phase == "joining" and d.work is not None:
        yield (n, "has ended its old workers"), with_node(s, n, d._replace(work=None))


def _joining(s: State, n: int, d: Node) -> Iterator[Move]:
    if d.asked or (over(s) and reaches(s, n)):
        yield (n, "leaves"), leave(s, n)
    elif d.own == 0:
        yield (n, "has lost its lease"), rejoin(s, n)
    elif reaches(s, n) and d.cand is None and not waits(s, n, "join"):
        yield (n, "sends join"), send(with_node(s, n, d._replace(own=LEASE, store=LEASE)), ("join", n, d.inc))


def _checking(s: State, n: int, d: Node) -> Iterator[Move]:
    if d.asked or (over(s) and reaches(s, n)):
        yield (n, "leaves"), leave(s, n)
    elif d.own == 0:
        yield (n, "has lost its lease"), rejoin(s, n)
    elif reaches(s, n) and d.cand is not None and not waits(s, n, "ready"):
        yield (n, "passes its checks and sends ready"), send(s, ("ready", n, d.inc, d.cand[0]))
    elif reaches(s, n) and d.cand is None:
        yield (n, "finds its lease gone"), rejoin(s, n)


def _ready(c: Config, s: State, n: int, d: Node) -> Iterator[Move]:
    conn = reaches(s, n)
    if d.asked or (over(s) and conn):
        yield (n, "leaves"), leave(s, n)
    elif d.own == 0 or (conn and (d.cand is None or d.cand[1] != d.inc)):
        yield (n, "has lost its lease"), rejoin(s, n)
    elif conn and s.cur and verdict(s, s.cur) is None:
        yield from _beside_a_generation(c, s, n, d)
    elif conn and not waits(s, n, "form") and d.cand == ("ready", d.inc):
        yield from _form(c, s, n)


def _beside_a_generation(c: Config, s: State, n: int, d: Node) -> Iterator[Move]:
    gen, g = s.gens[-1], s.cur
    if (n, d.inc) not in gen.members:
        if "1" not in c.off:
            yield from _judge_lost(s, n)
    elif gen.kind == "in place" or d.last == g:
        if not waits(s, n, "verdict") and "5" not in c.off:
            yield (n, f"has no workers any more and sends the verdict on {g}"), send(s, ("verdict", n, g, ("restart", -1, 0), ()))
    elif "9 member" in c.off:
        yield (n, f"starts in generation {g}"), with_node(s, n, d._replace(phase="starting", g=g, last=g))
    elif not waits(s, n, "member"):
        yield (n, f"sends member of {g}"), send(s, ("member", n, d.inc, g))


def _judge_lost(s: State, n: int) -> Iterator[Move]:
    if waits(s, n, "verdict"):
        return
    gone = [(m, i) for m, i in s.gens[-1].members if (m, i) != (n, s.nodes[n].inc) and lost(s, n, m, i)]
    if gone:
        dead = tuple((m, i) for m, i in gone if s.nodes[m].life == "D" and talks(s, n, m))
        text = f"misses {', '.join('ABC'[m] for m, _ in gone)} and sends the verdict on {s.cur}"
        yield (n, text), send(s, ("verdict", n, s.cur, ("restart", -1, 0), dead))


# ---- forming
def missing(c: Config, s: State, n: int, full: bool) -> bool:
    """Does anything stand against leaving out the members of the last generation that are not ready?"""
    if not s.cur or "7 wait" in c.off:
        return False
    for m, inc in s.gens[-1].members:
        d = s.nodes[m]
        if d.cand == ("ready", inc) or proven(s, n, m, inc):
            continue
        if d.cand is not None and d.cand[1] == inc:
            if d.cand[0] == "member" or not full:
                return True
        elif d.gone < WAIT:
            return True
    return False


def _form(c: Config, s: State, n: int) -> Iterator[Move]:
    if s.cur >= c.gens:
        return
    fit = [(m, d.cand[1]) for m, d in enumerate(s.nodes) if d.cand is not None and d.cand[0] == "ready"]
    if len(fit) < c.least or missing(c, s, n, len(fit) >= c.most):
        return
    old = s.gens[-1].members if s.cur else ()
    members = tuple(sorted(sorted(fit, key=lambda who: (who not in old, who))[: c.most]))
    plan, windows, leave_ = choose(c, s)
    text = f"sends form of {s.cur + 1} with {''.join('ABC'[m] for m, _ in members)} from {plan}"
    yield (n, text), send(s, ("form", n, s.nodes[n].inc, s.cur, "formed", members, plan, windows, leave_))


def choose(c: Config, s: State) -> tuple[int, int, tuple[int, ...]]:
    """The next generation's plan: (checkpoint, windows, checkpoints to abandon)."""
    if not s.cur:
        return -1, 0, ()
    gen, v = s.gens[-1], s.gens[-1].verdict
    assert v is not None
    if v[0] == "rollback" and "2" not in c.off:
        good = line(s.ckpts, v[1])
        leave_ = tuple(i for i, k in enumerate(s.ckpts) if k.state == "committed" and k.left)
        return _usable(s, good), gen.windows | v[2], leave_
    if "8" in c.off:
        return gen.plan, gen.windows, ()
    return _usable(s, line(s.ckpts, top(s, s.cur))), gen.windows, ()


def _usable(s: State, names: list[int]) -> int:
    return next((i for i in names if s.ckpts[i].state == "committed"), -1)


# ---- a member
def _at_work(c: Config, s: State, n: int, d: Node) -> Iterator[Move]:
    conn, gen, v = reaches(s, n), s.gens[d.g - 1], verdict(s, d.g)
    if conn and v is not None:
        yield from _under_a_verdict(c, s, n, d, v)
    elif conn and s.cur > d.g and d.phase != "holding":
        yield (n, f"sees generation {s.cur} and stops its workers"), stop(s, n)
    elif v is not None and not d.excused and heard(s, n):
        yield (n, "is told of the verdict by a peer"), stop(s, n)
    elif d.phase == "holding":
        yield (n, "gives the rollback in place up"), stop(s, n)
    if conn and d.out >= BACK and d.phase == "running" and v is None and not waits(s, n, "reattach"):
        yield (n, "sends its candidate again"), send(with_node(s, n, d._replace(store=LEASE)), ("reattach", n, d.inc, d.g))
    if d.phase == "running" and d.work is None and d.own == 0:
        yield (n, "stops: a worker has ended while the store is out"), stop(s, n)
    if not conn or d.own == 0:
        return
    if v is None and d.g == s.cur:
        yield from _with_the_store(c, s, n, d)
    # It may not know yet that its generation has ended: what it writes then is up to the fence.
    if d.phase == "running" and d.work is not None and not d.work[3] and (gen.members[0] == (n, d.inc) or "9 rank 0" in c.off):
        yield from _lead(c, s, n, d)


def _with_the_store(c: Config, s: State, n: int, d: Node) -> Iterator[Move]:
    g, asked = d.g, waits(s, n, "verdict")
    if d.phase == "starting":
        yield (n, f"spawns workers of {g}"), spawned(s, n)
    if asked:
        return
    if d.asked:
        yield (n, f"is to leave and sends the verdict on {g}"), send(s, ("verdict", n, g, ("restart", -1, 0), ()))
    elif d.phase == "running" and d.work is None:
        yield (n, f"has lost a worker and sends the verdict on {g}"), send(s, ("verdict", n, g, ("restart", -1, 0), ()))
    else:
        yield from _judge_lost(s, n)
    if d.phase == "running" and d.work is not None and d.work[3] and s.gens[g - 1].members[0] == (n, d.inc):
        bit = d.work[1] - 1
        target = next((i for i in line(s.ckpts, top(s, g)) if s.ckpts[i].state == "committed" and s.ckpts[i].pos <= bit), -1)
        yield (n, f"sends a rollback of {g} to {target}"), send(s, ("verdict", n, g, ("rollback", target, 1 << bit), ()))


def spawned(s: State, n: int) -> State:
    d = s.nodes[n]
    i = s.gens[d.g - 1].plan
    at = (s.ckpts[i].pos, s.ckpts[i].mask) if i >= 0 else (0, 0)
    return with_node(s, n, d._replace(phase="running", work=(d.g, *at, False)))


def _under_a_verdict(c: Config, s: State, n: int, d: Node, v: tuple[str, int, int]) -> Iterator[Move]:
    g, gen, now = d.g, s.gens[d.g - 1], s.gens[-1]
    if d.phase == "running" and v[0] == "rollback" and d.work is not None and not d.asked:
        held = d.work if "4" in c.off else (*d.work[:3], True)
        s = with_node(s, n, d._replace(phase="holding", work=held))
        yield (n, "holds its workers for the rollback"), drop(s, n, ("join", "ready", "form", "verdict", "member", "reattach"))
        return
    if d.phase != "holding":
        yield (n, f"sees the verdict on {g} and stops its workers"), stop(s, n)
        return
    yield (n, "gives the rollback in place up"), stop(s, n)
    if d.own == 0 or d.work is None:
        return
    if s.cur == g + 1 and now.kind == "in place":
        i = now.plan
        at = (s.ckpts[i].pos, s.ckpts[i].mask) if i >= 0 else (0, 0)
        yield (n, f"takes up generation {s.cur} in place"), with_node(s, n, d._replace(phase="running", g=s.cur, work=(s.cur, *at, False)))
    elif s.cur == g and gen.members[0] == (n, d.inc) and not waits(s, n, "form") and s.cur < c.gens and _all_members(s, gen):
        text = f"sends form of {g + 1} in place from {choose(c, s)[0]}"
        yield (n, text), send(s, ("form", n, d.inc, g, "in place", gen.members, *choose(c, s)))


def _all_members(s: State, gen: Gen) -> bool:
    return all(s.nodes[m].cand == ("member", i) for m, i in gen.members)


def _lead(c: Config, s: State, n: int, d: Node) -> Iterator[Move]:
    """Rank 0 of a generation that it takes for the current one."""
    assert d.work is not None
    g, (_, pos, mask, _) = d.g, d.work
    head = top(s, g)
    done = s.ckpts[head].pos if head >= 0 else 0
    if pos > done and not waits(s, n, "commit"):
        yield (n, f"sends commit of position {pos}"), send(s, ("commit", n, g, head, pos, mask))
    live = [i for i in line(s.ckpts, head) if s.ckpts[i].state == "committed"]
    if len(live) > c.keep and not waits(s, n, "delete"):
        yield (n, f"sends delete of checkpoint {live[-1]}"), send(s, ("delete", n, g, live[-1]))
    if pos == done == c.steps and not waits(s, n, "verdict") and g == s.cur:
        yield (n, f"sends the verdict on {g}: finished"), send(s, ("verdict", n, g, ("finish", -1, 0), ()))
