"""The pair check's meetings as plain data: who meets whom in which round, and what a node does next.

Nodes of one type that wait to be let in meet in pairs: first neighbours in order of arrival, then with other partners, so that
each is measured with two different ones.  With an odd number one sits out a round, and a third round makes up for it.  Who has
lost a partner, or could not be measured with it, is paired with a third node.  Nodes that were let in before are left alone.

Laws:
 - every round, and the end, is one record that is created once: whoever decides first decides for all;
 - nobody is waited for without limit: a meeting has at most `MOST_ROUNDS` rounds, and each its time;
 - nobody meets the same partner twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field, replace

MOST_MEMBERS = 32
"""Of one meeting: it is begun in one transaction, and two different partners are enough for each."""
PARTNERS = 2
MOST_ROUNDS = 6
"""Two, a third for odd numbers, and three more for those whose partners have died."""
TURN_S = 0.3
"""Who came later leaves it to the earlier ones for so long to begin a meeting or a round."""
Pair = tuple[str, str]
"""Two nodes; the first hosts."""


def route(pair: Pair) -> str:
    """The name of the way between two nodes, as quarantine spells it: `a+b`, in order."""
    return "+".join(sorted(pair))


@dataclass(frozen=True)
class Here:
    """A node that is there.

    Attributes:
        incarnation: of the process: a node that comes back is another one.
        host: the address at which the others reach it.
        meeting: where it takes part, "" while it waits.
    """

    node: str
    incarnation: str
    host: str
    meeting: str = ""


@dataclass(frozen=True)
class Seat:
    """A node that is there, as the store has it.  `order`: of arrival.  `revision`: of the last change."""

    here: Here
    order: int
    revision: int = 0
    lease: int = 0


@dataclass(frozen=True)
class Roll:
    """Who takes part in a meeting, in order of arrival.  `lease`: under which all of its records are kept."""

    members: tuple[Here, ...]
    lease: int = 0


@dataclass(frozen=True)
class Round:
    """Who meets whom."""

    pairs: tuple[Pair, ...]

    def partner(self, node: str) -> str | None:
        """With whom it has an appointment, None for nobody."""
        return next((b if a == node else a for a, b in self.pairs if node in (a, b)), None)


@dataclass(frozen=True)
class Told:
    """What one of a pair tells of an appointment.

    Attributes:
        figures: (size in bytes, bus bandwidth in GB/s).
        wrong: in which way results were wrong.
        stalled: it began, and had not ended at its limit.
        failed: why there is no figure, "" if there is one, or if the partner tells.
        broke: it failed while the two were connected, as it does when the partner is ended at its limit.
    """

    figures: tuple[tuple[int, float], ...] = ()
    wrong: tuple[str, ...] = ()
    stalled: bool = False
    failed: str = ""
    broke: bool = False

    @property
    def measured(self) -> bool:
        return bool(self.figures or self.wrong) and not self.stalled and not self.failed


@dataclass(frozen=True)
class View:
    """What a node sees of the hall: who is there, and its own meeting (empty before there is one)."""

    seats: Mapping[str, Seat] = field(default_factory=dict)
    roll: Roll | None = None
    rounds: tuple[Round, ...] = ()
    told: Mapping[tuple[int, str], Told] = field(default_factory=dict)
    offers: Mapping[tuple[int, str], str] = field(default_factory=dict)
    closed: bool = False

    def alive(self, node: str) -> bool:
        """Whether this member is still there, as the process that it was when the meeting began."""
        was = next((m for m in self.roll.members if m.node == node), None) if self.roll else None
        seat = self.seats.get(node)
        return was is not None and seat is not None and seat.here.incarnation == was.incarnation

    @property
    def waiting(self) -> tuple[Seat, ...]:
        """Who has no meeting yet, in order of arrival."""
        return tuple(sorted((s for s in self.seats.values() if not s.here.meeting), key=lambda s: (s.order, s.here.node)))


@dataclass(frozen=True)
class Pace:
    """How long what is waited for.

    Attributes:
        wait_s: for other nodes.
        settle_s: once nobody has come for so long, those who are there begin.
        expect: how many are to come, 0 if nobody knows: then they begin as soon as all are there, and don't before `wait_s`.
        round_s: of a round, from when it is seen: beyond it, who has not told is taken for absent.
    """

    wait_s: float = 60.0
    settle_s: float = 10.0
    expect: int = 0
    round_s: float = 75.0


@dataclass(frozen=True)
class Since:
    """When this node saw what, on its own clock: its arrival, the last change of who waits, the newest round."""

    arrived: float
    crowd: float
    round: float


def noticed(since: Since, before: View, after: View, now: float) -> Since:
    """`since` after the view has changed."""
    names = [[(s.here.node, s.here.incarnation) for s in view.waiting] for view in (before, after)]
    since = replace(since, crowd=now) if names[0] != names[1] else since
    return replace(since, round=now) if len(before.rounds) != len(after.rounds) or before.roll != after.roll else since


# ---- who meets whom


def next_round(members: Sequence[str], present: AbstractSet[str], met: Mapping[frozenset[str], bool], rounds: int) -> tuple[Pair, ...]:
    """The pairs of the next round; () when there is nothing left to find out.

    Args:
        members: all, in order of arrival.
        present: those who are there and have come to all of their appointments.
        met: who had an appointment, and whether it was measured.
        rounds: how many there were.
    """
    if rounds >= MOST_ROUNDS:
        return ()
    alive = [m for m in members if m in present]
    had = {m: sum(done for pair, done in met.items() if m in pair) for m in alive}
    turned = alive[rounds % len(alive) :] + alive[: rounds % len(alive)] if alive else []
    needy = sorted((m for m in turned if had[m] < PARTNERS), key=lambda m: had[m])
    pairs: list[Pair] = []
    taken: set[str] = set()
    for one in needy:
        if one in taken:
            continue
        free = [m for m in (*needy, *turned) if m != one and m not in taken and frozenset((one, m)) not in met]
        if free:
            pairs.append((one, free[0]))
            taken |= {one, free[0]}
    left = [m for m in needy if m not in taken]
    return _squeezed(pairs, left, met)


def _squeezed(pairs: list[Pair], left: Sequence[str], met: Mapping[frozenset[str], bool]) -> tuple[Pair, ...]:
    """Two who are left over because they have met before, and a pair of others: perhaps they can change partners."""
    for x, y in zip(left[::2], left[1::2], strict=False):
        for i, (a, b) in enumerate(pairs):
            swaps = (((x, a), (y, b)), ((x, b), (y, a)))
            new = next((swap for swap in swaps if not any(frozenset(pair) in met for pair in swap)), None)
            if new is not None:
                pairs[i : i + 1] = new
                break
    return tuple(pairs)


def measured(told: Sequence[Told | None]) -> bool:
    """Whether the two of a pair have told a figure, and neither that it failed."""
    return any(t is not None and t.measured for t in told) and not any(t is not None and t.failed for t in told)


def stalled(told: Sequence[Told | None]) -> bool:
    """Whether a pair's operation did not end in its time: the one that is ended first breaks it for the other."""
    return all(t is not None and (t.stalled or t.broke) for t in told) and any(t is not None and t.stalled for t in told)


def held(view: View) -> dict[frozenset[str], bool]:
    """Who had an appointment, and whether anything came of it."""
    return {
        frozenset(pair): measured(both) or stalled(both)
        for number, round_ in enumerate(view.rounds)
        for pair in round_.pairs
        for both in [told_of(view, number, pair)]
    }


def told_of(view: View, number: int, pair: Pair) -> tuple[Told | None, Told | None]:
    """What the two have told of an appointment."""
    return view.told.get((number, pair[0])), view.told.get((number, pair[1]))


def present(view: View) -> frozenset[str]:
    """Members who are there and have told of all their appointments (whose partner has died may not have to)."""
    members = [m.node for m in view.roll.members] if view.roll else []
    silent = {node for number, round_ in enumerate(view.rounds) for pair in round_.pairs for node in _silent(view, number, pair)}
    return frozenset(m for m in members if view.alive(m) and m not in silent)


def _silent(view: View, number: int, pair: Pair) -> Iterable[str]:
    """Those of a pair who live and have not told yet."""
    return (node for node in pair if view.alive(node) and (number, node) not in view.told)


# ---- what a node does next


@dataclass(frozen=True)
class Wait:
    """For a change, and at most until then."""

    until: float


@dataclass(frozen=True)
class Form:
    """Begin a meeting of these."""

    seats: tuple[Seat, ...]


@dataclass(frozen=True)
class Open:
    """Begin a round."""

    number: int
    pairs: tuple[Pair, ...]


@dataclass(frozen=True)
class Close:
    """End the meeting: what has not been told by now does not count."""


@dataclass(frozen=True)
class Meet:
    """Go to an appointment."""

    number: int
    partner: Here
    host: bool


@dataclass(frozen=True)
class Tell:
    """Tell of an appointment that can't take place."""

    number: int
    told: Told


@dataclass(frozen=True)
class Over:
    """The meeting has ended: judge."""


@dataclass(frozen=True)
class Leave:
    """Nothing can be measured here."""

    reason: str
    advice: str = ""


Act = Wait | Form | Open | Close | Meet | Tell | Over | Leave
GONE = "its partner has gone"
ALONE = "no other node came within {:g} s: a pair needs two that wait to be let in"


def step(view: View, me: Here, since: Since, pace: Pace, now: float) -> Act:
    """What this node does next."""
    seat = view.seats.get(me.node)
    if seat is None or seat.here.incarnation != me.incarnation:
        why = (
            "another process of this name has come"
            if seat is not None
            else "its lease has ended, or the store was out of reach for as long"
        )
        return Leave(f"it lost its place among the nodes that wait: {why}", "give each agent a node name of its own; look at the store")
    if not seat.here.meeting:
        return _gather(view, seat, since, pace, now)
    if view.closed:
        return Over()
    if view.roll is None:
        last = max(since.crowd, since.round) + pace.round_s
        return Leave("the records of its meeting are gone", "look at the store") if now >= last else Wait(last)
    return _appointment(view, me) or _next(view, me, since, pace, now)


def _gather(view: View, mine: Seat, since: Since, pace: Pace, now: float) -> Act:
    waiting = view.waiting
    last = since.arrived + pace.wait_s
    if len(waiting) < 2:
        return Leave(ALONE.format(pace.wait_s), "start the nodes together, or raise wait_s") if now >= last else Wait(last)
    if pace.expect and len(waiting) >= pace.expect:
        begin = since.crowd
    else:
        begin = last if pace.expect else min(since.crowd + pace.settle_s, last)
    begin += TURN_S * waiting.index(mine)
    if now < begin:
        return Wait(begin)
    most = MOST_MEMBERS - 1 if len(waiting) == MOST_MEMBERS + 1 else MOST_MEMBERS  # nobody is left behind alone
    return Form(waiting[:most])


def _appointment(view: View, me: Here) -> Act | None:
    """Where this node is expected now."""
    if not view.rounds or view.roll is None:
        return None
    number = len(view.rounds) - 1
    name = view.rounds[number].partner(me.node)
    if name is None or (number, me.node) in view.told:
        return None
    partner = next(m for m in view.roll.members if m.node == name)
    if not view.alive(name):
        return Tell(number, Told(failed=GONE))
    host = any(pair[0] == me.node for pair in view.rounds[number].pairs)
    return Meet(number, partner, host)


def _next(view: View, me: Here, since: Since, pace: Pace, now: float) -> Act:
    """The round after this one, once all of this one have told or its time is over."""
    members = [m.node for m in view.roll.members] if view.roll else []
    number = len(view.rounds)
    ends = since.round + pace.round_s if view.rounds and _unsettled(view) else since.round
    ends += TURN_S * [m for m in members if view.alive(m)].index(me.node)
    if now < ends:
        return Wait(ends)
    pairs = next_round(members, present(view), held(view), number)
    return Open(number, pairs) if pairs else Close()


def _unsettled(view: View) -> bool:
    number = len(view.rounds) - 1
    return any(True for pair in view.rounds[number].pairs for _ in _silent(view, number, pair))
