"""Calls a person, once a run: claims `runs/<run>/paged`, then runs the command and posts to the webhook of the YAML.

Law: whoever creates the key pages, nobody else does; so a run pages at most once, and a page that could not be
delivered is reported, not repeated.  Reopening a run deletes the key.  Nothing here raises or takes longer than its
time limits.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from elastic_health.codec import dump, plain
from elastic_health.policies import PagePolicy
from elastic_health.rendezvous.keys import RunKeys
from elastic_health.rendezvous.store import Compare, Get, Put, Store, StoreAmbiguous, StoreError, Target, Txn

_TRIES = 3


@dataclass(frozen=True)
class Page:
    """What a person is told.  `id` (the record's or verdict's) makes it this agent's own in the store."""

    id: str
    run: str
    generation: int
    reason: str
    exit_status: int
    node: str
    at: str

    def text(self) -> str:
        """For the command's standard input."""
        where = f"generation {self.generation}, exit status {self.exit_status}, {self.at}"
        return f"elastic-health: run {self.run} ended ({where}): {self.reason}\n"


@dataclass(frozen=True)
class Paged:
    """What became of it.  `claimed` False: another agent pages, or the store can't say.  `trouble`: for the log."""

    claimed: bool
    delivered: bool
    trouble: tuple[str, ...] = ()


def page_once(store: Store, keys: RunKeys, policy: PagePolicy, page: Page, environ: Mapping[str, str]) -> Paged:
    """Claim the run's one page and deliver it.  Takes at most a few store deadlines and twice `policy.timeout_s`."""
    try:
        claimed = _claim(store, keys, page)
    except StoreError as e:
        return Paged(False, False, (f"the page could not be claimed: {e}",))
    if not claimed:
        return Paged(False, False)
    return deliver(policy, page, environ)


def _claim(store: Store, keys: RunKeys, page: Page) -> bool:
    value = dump(page, at=page.at, by=page.node)
    txn = Txn((Compare(keys.paged, Target.CREATE, 0),), (Put(keys.paged, value),), (Get(keys.paged),))
    for left in reversed(range(_TRIES)):
        try:
            done = store.txn(txn)
        except StoreAmbiguous:
            if not left:
                raise
            continue
        # Refused by our own earlier try, whose answer was lost?
        return done.succeeded or any(kv.value == value for read in done.reads for kv in read.kvs)
    return False


def deliver(policy: PagePolicy, page: Page, environ: Mapping[str, str]) -> Paged:
    """Run the command and post to the webhook, each within its time limit; delivered when one of them took it."""
    trouble: list[str] = []
    taken = False
    if policy.command:
        problem = _run(policy.command, page.text(), policy.timeout_s)
        taken, trouble = problem is None, [problem] if problem else []
    url = environ.get(policy.webhook_env, "") if policy.webhook_env else policy.webhook
    if policy.webhook_env and not url:
        trouble.append(f"page.webhook_env: the variable {policy.webhook_env} is not set")
    if url:
        problem = _post(url, page, policy.timeout_s)
        taken, trouble = taken or problem is None, [*trouble, *([problem] if problem else [])]
    return Paged(True, taken, tuple(trouble))


def _run(command: tuple[str, ...], text: str, timeout_s: float) -> str | None:
    """None, or what went wrong.  The command's whole session is killed at its time limit."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, text=True
        )
    except OSError as e:
        return f"page.command could not be started: {e}"
    try:
        process.communicate(text, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"page.command took longer than {timeout_s:g} s"
    return None if process.returncode == 0 else f"page.command ended with status {process.returncode}"


def _post(url: str, page: Page, timeout_s: float) -> str | None:
    """None, or what went wrong; never the URL, which may hold a secret."""
    body = json.dumps({"text": page.text().strip(), **plain(page)}).encode()
    try:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:
            return None if 200 <= reply.status < 300 else f"page.webhook answered {reply.status}"
    except (OSError, ValueError, http.client.HTTPException) as e:
        return f"page.webhook failed: {type(e).__name__}"
