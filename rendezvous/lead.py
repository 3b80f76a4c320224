"""What only the rank-0 agent of a running generation does: commit, retain, finish, scale, and miss members.  Pure."""

from __future__ import annotations

import dataclasses

from elastic_health.checkpoints.line import top
from elastic_health.checkpoints.retention import Keep, expendable, forgettable
from elastic_health.generations import CheckpointState, Generation
from elastic_health.policies import GATHER_MOST, ScaleUp
from elastic_health.rendezvous import events as ev, fence
from elastic_health.rendezvous.draft import Draft
from elastic_health.rendezvous.forming import ready
from elastic_health.rendezvous.judging import incident, judge
from elastic_health.rendezvous.state import Peer, Purpose, State, Workers
from elastic_health.rendezvous.view import Who
from elastic_health.verdicts import Cause

COMMIT_PATIENCE_S = 0.5
"""How long a worker's commit waits for the store before it is told to go on: far above a healthy store's answer
(milliseconds), far below what anyone would call a pause."""
def lead(d: Draft, record: Generation) -> None:
    """One look at everything that is rank 0's to do."""
    _commit(d, record)
    _let_go_on(d)
    _retain(d, record)
    _forget(d, record)
    if _all_done(d, record):
        if d.leads() and not _commits_left(d):
            judge(d, incident(d, Cause.FINISHED, "all workers ended with status 0"))
        return
    _missing_links(d, record)
    _scale_up(d, record)


def _commit(d: Draft, record: Generation) -> None:
    """One commit at a time; in a store outage it waits."""
    s = d.s
    if not s.waiting_commits or not d.leads() or not d.can_send(Purpose.COMMIT):
        return
    asked, *rest = s.waiting_commits
    # The view may lag behind the last answer.
    parent = s.last_commit or top(s.view.checkpoints, s.generation, record.plan.checkpoint)
    full = dataclasses.replace(asked, record=dataclasses.replace(asked.record, generation=s.generation, parent=parent))
    d.set(waiting_commits=tuple(rest))
    d.send(Purpose.COMMIT, fence.commit(d.fence(), full.record, d.stamp()), request=asked.request, commit=full)


def _let_go_on(d: Draft) -> None:
    """Nobody's training waits for the store: a commit without an answer is said to wait, at once while the store is known to
    be out, else after `COMMIT_PATIENCE_S`."""
    s = d.s
    out = s.store_lost_since is not None or not s.fresh(d.now)
    late = [r for r, at in s.unanswered_commits.items() if out or d.now >= at + COMMIT_PATIENCE_S]
    for request in late:
        d.do(ev.CommitAnswered(request, False, "it waits for the store", waits=True))
    left = {r: at for r, at in s.unanswered_commits.items() if r not in late}
    if late:
        d.set(unanswered_commits=left)
    if left:
        d.wake(min(left.values()) + COMMIT_PATIENCE_S)


def _commits_left(d: Draft) -> bool:
    """Training has ended, but a checkpoint still waits to be committed: the run isn't finished without it."""
    return bool(d.s.waiting_commits) or d.s.under_way(Purpose.COMMIT) is not None


def _retain(d: Draft, record: Generation) -> None:
    """After a commit, once the view shows it: what may go is marked, behind the fence."""
    s = d.s
    shown = s.last_commit is None or s.last_commit in s.view.checkpoints
    if not s.retain_due or not shown or not d.leads() or not d.can_send(Purpose.DELETE):
        return
    d.set(retain_due=False)
    d.ask_deletion(expendable(s.view.checkpoints, s.generation, record.plan.checkpoint, _keep(s)))


def _forget(d: Draft, record: Generation) -> None:
    """What is on its way out: its files are removed here (who began it may be dead), and a record goes, behind the fence,
    once its files are gone."""
    s, known = d.s, d.s.view.checkpoints
    if not s.forget_due or not d.leads() or not d.can_send(Purpose.FORGET):
        return
    going = frozenset(n for n, r in known.items() if r.state is CheckpointState.DELETING)
    for name in sorted(going - s.removing):
        d.do(ev.RemoveFiles(known[name]))
    d.set(forget_due=False, removing=(s.removing | going) & frozenset(known), files_gone=s.files_gone & frozenset(known))
    what = forgettable(known, d.s.files_gone, record.plan.checkpoint)
    if what.names:
        d.send(Purpose.FORGET, fence.forget(d.fence(), s.view, what, d.stamp()), names=what.names)


def _keep(s: State) -> Keep:
    """The script's own number goes before the YAML's."""
    return dataclasses.replace(s.settings.keep, newest=s.keep) if s.keep > 0 else s.settings.keep


def _all_done(d: Draft, record: Generation) -> bool:
    others = record.members[1:]
    return d.s.workers is Workers.DONE and all(d.s.peers.get(m.who, Peer()).done == d.s.generation for m in others)


def _missing_links(d: Draft, record: Generation) -> None:
    """A member that doesn't link up by the deadline, or whose link stays broken for so long, ends the generation."""
    for m in record.members[1:]:
        peer = d.s.peers.get(m.who, Peer())
        if peer.up_since is not None:
            continue
        at = (peer.down_since if peer.down_since is not None else d.s.workers_since) + record.bounds.start_s
        d.wake(at)
        if d.now >= at and d.leads():
            ranks = tuple(range(m.first_rank, m.first_rank + m.workers))
            cause = Cause.NOT_STARTED if peer.down_since is None else Cause.LOST_MEMBER
            judge(d, incident(d, cause, f"no link to {m.node} for {record.bounds.start_s:g} s", nodes=(m.node,), ranks=ranks))


def _scale_up(d: Draft, record: Generation) -> None:
    """Nodes wait and the group is not full: at the next commit, or at once where nothing is ever committed."""
    s, how = d.s, d.s.settings.policies.membership.scale_up
    waiting = [e for e in ready(s.view, d.wall) if record.member(*e.who) is None]
    if how is ScaleUp.OFF or not waiting or len(record.members) >= record.spec.max_nodes or not d.leads():
        d.set(scale_wanted_since=None, scale_waiting=frozenset())
        return
    until = _gathered(d, frozenset(e.who for e in waiting), len(record.members) + len(waiting) >= record.spec.max_nodes)
    if d.now < until:
        d.set(commits=0)  # only a commit after that is one at which the group may grow
        d.wake(until)
        return
    if how is ScaleUp.AT_ONCE or not s.view.checkpoints or d.s.commits > 0:
        nodes = tuple(e.candidate.node for e in waiting)
        judge(d, incident(d, Cause.SCALE_UP, f"{', '.join(nodes)} joined and the group is not full"))


def _gathered(d: Draft, waiting: frozenset[Who], full: bool) -> float:
    """When to stop waiting for further nodes: a group that grew for each one of them would do little else."""
    s, gather_s = d.s, d.s.settings.policies.membership.gather_s
    if s.scale_wanted_since is None:
        d.set(scale_wanted_since=d.now, scale_newest_at=d.now, scale_waiting=waiting, commits=0)
    elif waiting - s.scale_waiting:
        d.set(scale_newest_at=d.now, scale_waiting=s.scale_waiting | waiting)
    since = d.s.scale_wanted_since
    assert since is not None
    return d.now if full else min(d.s.scale_newest_at + gather_s, since + GATHER_MOST * gather_s)
