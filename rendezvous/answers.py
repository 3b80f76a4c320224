"""What the answer to a transaction means, by its purpose.

Law: an answer only records facts (this was written, that was refused); decisions follow in `turns`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from elastic_health.codec import load
from elastic_health.errors import BadValue
from elastic_health.generations import Candidate, CandidateState, CheckpointRecord, CheckpointState
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.draft import Draft
from elastic_health.rendezvous.refusal import calls_a_person
from elastic_health.rendezvous.state import Phase, Purpose, Sent, Workers
from elastic_health.rendezvous.store import TxnResult
from elastic_health.verdicts import Verdict

_MEMBER_PAUSE_S = 0.1
"""After a refusal: the view shows in a moment what has changed."""
_AGAIN_S = 0.2


def answered(d: Draft, sent: Sent, result: TxnResult) -> None:
    """Take the answer of a transaction in."""
    handler = _ANSWERS.get(sent.purpose)
    if handler is not None:
        handler(d, sent, result)


def _join(d: Draft, _: Sent, r: TxnResult) -> None:
    if d.s.phase is not Phase.JOINING:
        return
    found = r.reads[0].kvs if r.reads and not r.succeeded else ()
    # Refused with the key there: an earlier try of ours has landed (no one else uses this incarnation).
    d.set(created=r.revision if r.succeeded else found[0].create_revision if found else 0)
    d.set(candidate_mod=r.revision if r.succeeded else found[0].mod_revision if found else 0, checking_told=True)
    if not d.s.created and any(read.kvs for read in r.reads[1:]):
        d.set(view=dataclasses.replace(d.s.view, deleting=True))  # the view may not show it yet, or not any more
    # Not told how many are older: as if it were the oldest.
    d.set(before=r.reads[0].count if r.succeeded and r.reads else 0, deaths_before=d.s.view.deaths)
    if d.s.created:
        d.go(Phase.CHECKING)


def _ready(d: Draft, _: Sent, r: TxnResult) -> None:
    if d.s.phase is Phase.CHECKING and _own_candidate(d, r) is CandidateState.READY:
        d.go(Phase.READY)


def _checking(d: Draft, _: Sent, r: TxnResult) -> None:
    if d.s.phase is Phase.CHECKING:
        d.set(checking_told=_own_candidate(d, r) is not None)


def _leaving(d: Draft, _: Sent, r: TxnResult) -> None:
    """Refused may mean that an earlier try has landed; what matters is only the revision for the next write."""
    key = d.s.settings.keys.candidate(*d.s.who)
    mine = next((kv for read in r.reads for kv in read.kvs if kv.key == key), None)
    if r.succeeded or mine is not None:
        d.set(candidate_mod=r.revision if r.succeeded or mine is None else mine.mod_revision)


def _own_candidate(d: Draft, r: TxnResult) -> CandidateState | None:
    """What the own candidate says after a write of it: as asked, or refused because an earlier try of ours landed, or
    None when it is gone."""
    if r.succeeded:
        d.set(candidate_mod=r.revision)
        return CandidateState.READY
    found = r.reads[0].kvs if r.reads else ()
    if not found:
        d.set(lease_gone=True)
        return None
    d.set(candidate_mod=found[0].mod_revision)
    try:
        return load(Candidate, found[0].value, found[0].key).state
    except BadValue as e:
        d.say("bad_candidate", str(e), warn=True)
        return CandidateState.CHECKING


def _member(d: Draft, sent: Sent, r: TxnResult) -> None:
    """Refused may mean that an earlier try has landed: the own candidate then says `member` of this generation."""
    if d.s.phase is not Phase.READY:
        return
    key = d.s.settings.keys.candidate(*d.s.who)
    mine = next((kv for read in r.reads for kv in read.kvs if kv.key == key), None)
    if r.succeeded or (mine is not None and f'"generation":{sent.generation},'.encode() in mine.value and b'"member"' in mine.value):
        d.set(candidate_mod=mine.mod_revision if mine is not None and not r.succeeded else r.revision)
        d.set(
            was_member=True,
            last_started=sent.generation,
            workers=Workers.NONE,
            peers={},
            opened=0,
            store_address=None,
            held=0,
            ended=None,
            peer_verdict=None,
        )
        d.set(pending_incident=None, scale_wanted_since=None, last_commit=None, forget_due=True, drain=None)
        d.go(Phase.STARTING)
        return
    d.set(generation=0, token=0)
    d.quiet(Purpose.MEMBER, _MEMBER_PAUSE_S)
    if mine is None:
        d.set(lease_gone=True)


def _reattach(d: Draft, _: Sent, r: TxnResult) -> None:
    mine = next((kv for read in r.reads for kv in read.kvs if kv.lease == d.s.lease), None)
    if r.succeeded or mine is not None:  # refused with the key there under our lease: an earlier try has landed
        fresh = r.revision if not d.s.reattach_over else d.s.created
        created, mod = (fresh, r.revision) if mine is None else (mine.create_revision, mine.mod_revision)
        d.set(created=created, candidate_mod=mod, lease_gone=False, lease_gone_at=None, reattach_over=0)
        d.say("reattached", "the candidate was lost and is back; the generation goes on")
        return
    key = d.s.settings.keys.candidate(*d.s.who)
    theirs = next((kv for read in r.reads for kv in read.kvs if kv.key == key), None)
    d.quiet(Purpose.REATTACH, 0.2)
    if theirs is not None:  # someone else wrote there: this key is ours to put right
        d.set(reattach_over=theirs.mod_revision, created=theirs.create_revision)


def _shard(d: Draft, sent: Sent, _: TxnResult) -> None:
    listing = d.s.listing
    if listing is not None and sent.names == listing.names[listing.done : listing.done + 1]:
        d.set(listing=dataclasses.replace(listing, done=listing.done + 1))


def _form(d: Draft, sent: Sent, r: TxnResult) -> None:
    """It has landed; the view shows it in a moment, and a second try would only be refused."""
    if r.succeeded:
        d.set(formed=max(d.s.formed, *map(int, sent.names)))


def _store(d: Draft, sent: Sent, r: TxnResult) -> None:
    """As for a formation.  Refused: the view shows in a moment whether an earlier try has landed or the fence has moved."""
    if r.succeeded:
        d.set(published=sent.generation)
    else:
        d.quiet(Purpose.STORE, _AGAIN_S)


def _verdict(d: Draft, sent: Sent, r: TxnResult) -> None:
    if sent.verdict is None:
        return
    won, winner = r.succeeded, sent.verdict
    if won or (r.reads and r.reads[0].kvs):
        d.set(judged=max(d.s.judged, sent.verdict.generation))
    if not won and r.reads and r.reads[0].kvs:
        kv = r.reads[0].kvs[0]
        try:
            winner = load(Verdict, kv.value, kv.key)
        except BadValue as e:
            d.say("bad_verdict", str(e), warn=True)
            return
        won = winner.writer == sent.verdict.writer
    if not won and r.reads and not r.reads[0].kvs:
        _back_again(d, r)
    if won and calls_a_person(winner):
        d.do(ev.PageHuman(winner))
    if won:
        d.do(ev.WriteRecord("verdict", winner))


def _back_again(d: Draft, r: TxnResult) -> None:
    """No verdict, since somebody who was called lost has put its candidate back (see `reattach`)."""
    there = {kv.key for read in r.reads[1:] for kv in read.kvs}
    keys = d.s.settings.keys
    d.set(view=dataclasses.replace(d.s.view, gone=frozenset(who for who in d.s.view.gone if keys.candidate(*who) not in there)))
    d.set(gone_since={who: at for who, at in d.s.gone_since.items() if keys.candidate(*who) not in there})
    d.quiet(Purpose.VERDICT, _AGAIN_S)


def _commit(d: Draft, sent: Sent, r: TxnResult) -> None:
    if sent.commit is None:
        return
    record, done = sent.commit.record, r.succeeded
    if not done and r.reads and r.reads[0].kvs:
        kv = r.reads[0].kvs[0]
        try:
            stored = load(CheckpointRecord, kv.value, kv.key)
            done = stored.manifest == record.manifest and stored.state is CheckpointState.COMMITTED
        except BadValue as e:
            d.say("bad_checkpoint", str(e), warn=True)
    why = "" if done else f"generation {sent.generation} has ended, or a checkpoint of this name exists"
    d.answer_commit(sent.request, done, why, record if done else None)
    if done:
        d.set(commits=d.s.commits + 1, retain_due=True, keep=sent.commit.keep, last_commit=record.name)


def _delete(d: Draft, sent: Sent, r: TxnResult) -> None:
    d.set(forget_due=True)
    if not r.succeeded:
        return
    d.set(removing=d.s.removing | frozenset(sent.names))
    for name in sent.names:
        record = d.s.view.checkpoints.get(name)
        if record is not None:
            d.do(ev.RemoveFiles(dataclasses.replace(record, state=CheckpointState.DELETING)))


def _forget(d: Draft, sent: Sent, r: TxnResult) -> None:
    """Refused: something was newer than the view; look again."""
    d.set(forget_due=True)
    if r.succeeded:
        d.set(files_gone=d.s.files_gone - frozenset(sent.names))


_ANSWERS: Mapping[Purpose, Callable[[Draft, Sent, TxnResult], None]] = {
    Purpose.JOIN: _join,
    Purpose.CHECKING: _checking,
    Purpose.READY: _ready,
    Purpose.MEMBER: _member,
    Purpose.LEAVING: _leaving,
    Purpose.REATTACH: _reattach,
    Purpose.SHARD: _shard,
    Purpose.FORM: _form,
    Purpose.STORE: _store,
    Purpose.VERDICT: _verdict,
    Purpose.COMMIT: _commit,
    Purpose.DELETE: _delete,
    Purpose.FORGET: _forget,
}
