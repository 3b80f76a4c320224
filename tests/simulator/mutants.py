"""Bugs to plant into the shipped modules, each against one law: a simulator that misses one proves nothing.

Each is a change of text in one file of the product.  `mutation` plants it into a copy of the source tree, runs the ordinary
unit tests there, which have to pass, and the simulator, which has to fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """`old` stands exactly once in `file`, and is replaced by `new`.  `what`: the mistake, as somebody might make it.

    `seen`: ordinary unit tests find it too (kept because the simulator must find it without them).
    """

    what: str
    file: str
    old: str
    new: str
    seen: bool = False


MUTANTS: Mapping[str, Mutant] = {
    # ---- the fence
    "no_fence": Mutant(
        "the first commit of a generation has shown that it is current, so the next ones need no fence",
        "rendezvous/lead.py",
        "    d.send(Purpose.COMMIT, fence.commit(d.fence(), full.record, d.stamp()), request",
        "    txn = fence.commit(d.fence(), full.record, d.stamp())\n"
        "    txn = dataclasses.replace(txn, compare=txn.compare[2:]) if s.commits else txn\n"
        "    d.send(Purpose.COMMIT, txn, request",
    ),
    "fence_without_verdict": Mutant(
        "once something was committed, `current` alone fences the next commits",
        "rendezvous/lead.py",
        "    d.send(Purpose.COMMIT, fence.commit(d.fence(), full.record, d.stamp()), request",
        "    txn = fence.commit(d.fence(), full.record, d.stamp())\n"
        '    kept = tuple(c for c in txn.compare if "/verdicts/" not in c.key)\n'
        "    txn = dataclasses.replace(txn, compare=kept) if s.commits else txn\n"
        "    d.send(Purpose.COMMIT, txn, request",
    ),
    "fence_never_closes": Mutant(
        "a fence of `current` alone",
        "rendezvous/fence.py",
        "self.token), Compare(self.keys.verdict(self.generation), Target.CREATE, 0))",
        "self.token),)",
        seen=True,
    ),
    "retention_unfenced": Mutant(
        "the records' own revisions guard a deletion well enough",
        "rendezvous/draft.py",
        "            self.send(Purpose.DELETE, fence.mark_deleting(self.fence(), self.s.view, live, self.stamp()), names=live)",
        "            txn = fence.mark_deleting(self.fence(), self.s.view, live, self.stamp())\n"
        "            self.send(Purpose.DELETE, dataclasses.replace(txn, compare=txn.compare[2:]), names=live)",
    ),
    # ---- writes without an answer
    "blind_retry": Mutant(
        "a verdict that is sent again is ours, so it need not be absent",
        "rendezvous/draft.py",
        "            self.do(ev.Send(sent.id, sent.txn))\n",
        "            again = sent.txn.compare[1:] if sent.purpose is Purpose.VERDICT else sent.txn.compare\n"
        "            self.do(ev.Send(sent.id, dataclasses.replace(sent.txn, compare=again)))\n",
    ),
    "verdict_overwritten": Mutant(
        "of a generation with a dead member nobody says anything else, so the verdict need not be absent",
        "rendezvous/fence.py",
        "    compares = [Compare(key, Target.CREATE, 0), *(Compare(k",
        "    compares = [*([] if dead else [Compare(key, Target.CREATE, 0)]), *(Compare(k",
    ),
    # ---- the lease
    "lease_from_the_reply": Mutant(
        "after trouble with the store a lease counts from the answer",
        "rendezvous/membership.py",
        "e.sent_at + e.ttl_s",
        "(e.sent_at if d.s.store_lost_since is None else d.now) + e.ttl_s",
    ),
    # ---- what the watch tells
    "watch_gap": Mutant(
        "a list after a compaction is taken for the changes that were missed: what is gone stays",
        "rendezvous/view.py",
        '            if (name == "quarantined") == fleet and part',
        '            if (name == "quarantined") == fleet and not self._view.revision and part',
        seen=True,
    ),
    "watch_gap_while_it_runs": Mutant(
        "while a generation runs its members' candidates go one by one, also over a compaction",
        "rendezvous/view.py",
        '(name != "candidates" or part is Part.ALL):',
        '(name != "candidates" or (part is Part.ALL and not (self._view.complete and self._view.current '
        "and self._view.current not in self._view.verdicts))):",
    ),
    "watch_gap_at_the_candidates": Mutant(
        "candidates come and go one by one, also over a compaction",
        "rendezvous/view.py",
        '(name != "candidates" or part is Part.ALL):',
        '(name != "candidates" or (part is Part.ALL and not self._view.candidates)):',
        seen=True,
    ),
    "abandon_only_the_newest": Mutant(
        "a rollback leaves one checkpoint behind",
        "rendezvous/gather.py",
        "    txn = fence.form(s.settings.keys, view, s.who, g, budget, choice.abandon, ",
        "    txn = fence.form(s.settings.keys, view, s.who, g, budget, choice.abandon[-1:], ",
    ),
    "abandoned_of_this_generation_only": Mutant(
        "a rollback leaves what its own generation wrote",
        "elastic_health/checkpoints/line.py",
        "if r.generation <= verdict.generation and",
        "if r.generation == verdict.generation and",
        seen=True,
    ),
    "back_is_proof": Mutant(
        "an agent that is seen among the candidates has ended its workers",
        "rendezvous/loss.py",
        "later.get((m.node, name), -1) > int(n))",
        "later.get((m.node, name), -1) >= int(n))",
        seen=True,
    ),
    "grace_forgotten": Mutant(
        "workers end as soon as the link is found broken",
        "rendezvous/forming.py",
        "        over = since + policy.bounds.link_timeout_s + policy.bounds.kill_grace_s",
        "        over = since + policy.bounds.link_timeout_s",
        seen=True,
    ),
    "late_copy_of_ready": Mutant(
        "nobody else writes the own candidate, so a change of it need not be compared",
        "rendezvous/fence.py",
        "    return Txn((Compare(key, Target.MOD, mod),), (Put(key, stamp.value(candidate), lease),), (Get(key),))\n\n\ndef member",
        "    return Txn((), (Put(key, stamp.value(candidate), lease),), (Get(key),))\n\n\ndef member",
        seen=True,
    ),
    "parent_deleted_unseen": Mutant(
        "records that are rewritten for a new parent need not be as they were read",
        "rendezvous/fence.py",
        "for name in touched)),",
        "for name in what.names)),",
    ),
    # ---- forming
    "double_former": Mutant(
        "nobody but rank 0 forms in place, so nothing of its transaction need be compared",
        "rendezvous/gather.py",
        "    d.send(Purpose.FORM, txn, names=(str(g.number),))",
        "    d.send(Purpose.FORM, Txn(txn.compare[1:2], txn.then, txn.otherwise), names=(str(g.number),))",
    ),
    "gone_since_the_phase_began": Mutant(
        "the time to wait for one who is gone counts from when the own phase began",
        "rendezvous/membership.py",
        "d.s.gone_since.get(m.who, d.now)",
        "d.s.gone_since.get(m.who, d.s.since)",
        seen=True,
    ),
    "end_of_stream_is_death": Mutant(
        "a link that ends with an end of stream proves the process dead",
        "rendezvous/membership.py",
        "    _peer(d, e.who, up_since=None, down_since=d.now)",
        '    _peer(d, e.who, up_since=None, down_since=d.now, dead=e.reason == "eof")',
    ),
    # ---- ready, member
    "ready_before_preflight": Mutant(
        "the checks of a restart take seconds: `ready` is said meanwhile",
        "rendezvous/joining.py",
        "    elif s.preflight is True and s.under_way(Purpose.CHECKING) is None:",
        '    elif (s.preflight is True or s.stage == "restart") and s.under_way(Purpose.CHECKING) is None:',
    ),
    "only_members_miss_members": Mutant(
        "a spare leaves it to the members to say that one is lost",
        "rendezvous/joining.py",
        "            lost_members(d, record)\n            d.say",
        "            d.say",
        seen=True,
    ),
    # ---- verdicts
    "own_verdict_applied": Mutant(
        "whoever writes a verdict acts by its own at once, whichever won",
        "rendezvous/answers.py",
        "    won, winner = r.succeeded, sent.verdict\n",
        "    won, winner = r.succeeded, sent.verdict\n    d.set(peer_verdict=sent.verdict)\n",
    ),
    "target_as_it_was_told": Mutant(
        "a rollback's target is the one that the judge named, whatever became of it",
        "rendezvous/judging.py",
        "    what = _with_live_target(d.s, _meant(d.s, what))\n",
        "    what = _meant(d.s, what)\n",
    ),
    # ---- checkpoints and data
    "abandoned_checkpoint_restored": Mutant(
        "only a generation in place marks what the rollback left; one that is formed instead does not",
        "rendezvous/gather.py",
        "    txn = fence.form(s.settings.keys, view, s.who, g, budget, choice.abandon, ",
        "    txn = fence.form(s.settings.keys, view, s.who, g, budget, (), ",
        seen=True,
    ),
    "windows_of_people_ignored_in_place": Mutant(
        "a rollback knows its own windows; those that people recorded wait for the next restart",
        "rendezvous/gather.py",
        "    return choose(view.checkpoints, view.generation, view.verdict, view.skip_windows)",
        "    held = d.s.generation == view.current\n"
        "    return choose(view.checkpoints, view.generation, view.verdict, () if held else view.skip_windows)",
    ),
    "parent_from_a_lagging_view": Mutant(
        "a checkpoint's parent is the newest one in view",
        "rendezvous/lead.py",
        "    parent = s.last_commit or top(",
        "    parent = top(",
        seen=True,
    ),
    "parent_on_the_branch_left": Mutant(
        "after a rollback in place the next checkpoint goes on from the last commit",
        "rendezvous/turns.py",
        "                pending_incident=None,\n                last_commit=None,\n            )\n            d.do(ev.TakeUp(record))",
        "                pending_incident=None,\n            )\n            d.do(ev.TakeUp(record))",
    ),
    "commit_kept_for_the_next": Mutant(
        "a commit that waits when a generation ends is made by the next one",
        "rendezvous/draft.py",
        "        self.drop(Purpose.COMMIT)\n        self.set(waiting_commits=())",
        "        self.drop(Purpose.COMMIT)",
    ),
    "torn_checkpoint_costs_nothing": Mutant(
        "a restart after a torn checkpoint is not the program's fault, and not counted",
        "elastic_health/recovery/budget.py",
        "DELIBERATE = frozenset({Cause.SCALE_UP, Cause.DRAIN, Cause.REQUESTED})",
        "DELIBERATE = frozenset({Cause.SCALE_UP, Cause.DRAIN, Cause.REQUESTED, Cause.CHECKPOINT_UNUSABLE})",
        seen=True,
    ),
    # ---- leaving on purpose
    "leaves_without_a_word": Mutant(
        "a node that leaves has closed its links, which tells the others enough",
        "rendezvous/leaving.py",
        "        judge(d, incident(d, Cause.DRAIN, text, nodes=(own, *others)))\n    return d.s.under_way(Purpose.VERDICT) is not None",
        "        d.say('leaves', text)\n    return True",
        seen=True,
    ),
    "drain_without_deadline": Mutant(
        "a node that leaves waits for its checkpoint, however long",
        "rendezvous/leaving.py",
        "    return Over.DEADLINE if now >= drain.until else None",
        "    return None",
        seen=True,
    ),
    "stop_binds_those_who_come_later": Mutant(
        "a run that was stopped for want of nodes is over",
        "rendezvous/refusal.py",
        "v.kind is VerdictKind.STOP and v.generation > s.found_ended:",
        "v.kind is VerdictKind.STOP:",
        seen=True,
    ),
}
