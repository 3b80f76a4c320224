"""What the rendezvous benchmark's trials amount to: medians, fitted exponents, bars.  Pure.

Law: an exponent is the slope of a least-squares line through (log n, log value) of the medians, from `FROM` nodes on; bars
are judged on the worse of one etcd member and three, and on the formation that needs more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

FROM = 128
MOST_OF_STOCK = 0.2
MOST_WRITES = 5.0
MOST_EXPONENT = 1.1

Trials = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Outcome:
    """`held` is None where the bar was not measured; `said` says what was compared."""

    bar: str
    held: bool | None
    said: str


def exponent(points: Iterable[tuple[float, float]]) -> float | None:
    """Slope in log-log of (n, value); None with fewer than two sizes."""
    logs = [(math.log(n), math.log(v)) for n, v in points if v > 0]
    if len({x for x, _ in logs}) < 2:
        return None
    mx, my = (sum(part) / len(logs) for part in zip(*logs, strict=True))
    return float(sum((x - mx) * (y - my) for x, y in logs)) / sum((x - mx) ** 2 for x, _ in logs)


def _groups(found: Trials) -> list[tuple[int, str, str]]:
    """(members, decoding, formation) that occur, in order."""
    return sorted({(t["members"], t["decoding"], t["formation"]) for t in found if t["side"] == "ours"}, key=lambda g: (g[0], g[1] != "shared", g[2] != "first"))


def _of(found: Trials, group: tuple[int, str, str], n: int) -> list[Mapping[str, Any]]:
    return [t for t in found if t["side"] == "ours" and (t["members"], t["decoding"], t["formation"], t["n"]) == (*group, n) and t["formed"]]


def _sizes(found: Trials, group: tuple[int, str, str]) -> list[int]:
    return sorted({t["n"] for t in found if t["side"] == "ours" and (t["members"], t["decoding"], t["formation"]) == group})


def medians(found: Trials, group: tuple[int, str, str], what: Callable[[Mapping[str, Any]], float]) -> list[tuple[int, float]]:
    """(n, median over the repeats) where it formed."""
    return [(n, median(what(t) for t in its)) for n in _sizes(found, group) if (its := _of(found, group, n))]


def table(found: Trials) -> list[str]:
    """Markdown, one row a size and kind of formation; stock first."""
    rows = ["| side | etcd members | decoding | formation | n | s | writes a node | kB written a node | kB delivered a node | events a node | etcd CPU s | database MB |"]
    rows.append("| --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for n in sorted({t["n"] for t in found if t["side"] == "stock"}):
        times = stock_times(found, n)
        said = f"{median(times):.2f}" if times else "not formed"
        rows.append(f"| stock c10d | | | first | {n} | {said} | | | | | | |")
    for group in _groups(found):
        for n in _sizes(found, group):
            rows.append(_row(found, group, n))
    return rows


def _row(found: Trials, group: tuple[int, str, str], n: int) -> str:
    its = _of(found, group, n)
    head = f"| ours | {group[0]} | {group[1]} | {group[2]} | {n} |"
    if not its:
        return f"{head} not formed | | | | | | |"

    def mid(name: str) -> float:
        return float(median(t[name] for t in its))

    a_node = f"{mid('writes') / n:.2f} | {mid('written_bytes') / n / 1e3:.2f} | {mid('delivered_bytes') / n / 1e3:.1f} | {mid('events') / n:.1f}"
    return f"{head} {mid('time_s'):.2f} | {a_node} | {mid('etcd_cpu_s'):.1f} | {mid('db_bytes') / 1e6:.1f} |"


def stock_times(found: Trials, n: int) -> list[float]:
    return [t["time_s"] for t in found if t["side"] == "stock" and t["n"] == n and t["formed"]]


FITTED = ("time_s", "writes", "written_bytes", "delivered_bytes", "events")


def exponents(found: Trials) -> list[str]:
    """One line a group."""
    out = []
    for group in _groups(found):
        fits = {name: fit(found, group, name) for name in FITTED}
        if any(v is not None for v in fits.values()):
            said = ", ".join(f"{name} {v:.2f}" for name, v in fits.items() if v is not None)
            out.append(f"{group[0]} member(s), decoding {group[1]}, {group[2]}: {said}")
    return out


def fit(found: Trials, group: tuple[int, str, str], name: str) -> float | None:
    return exponent((n, v) for n, v in medians(found, group, lambda t: t[name]) if n >= FROM)


def outcomes(found: Trials) -> list[Outcome]:
    return [_formed(found), _against_stock(found), _writes(found), *(_exponent(found, name) for name in ("writes", "written_bytes"))]


def _formed(found: Trials) -> Outcome:
    ours = [t for t in found if t["side"] == "ours"]
    formed = sum(t["formed"] for t in ours)
    return Outcome("every formation is there in time", formed == len(ours) if ours else None, f"{formed} of {len(ours)}")


def _against_stock(found: Trials) -> Outcome:
    name = f"{FROM} nodes form first in <= {MOST_OF_STOCK:g} x stock c10d"
    theirs = stock_times(found, FROM)
    tried = any(t["side"] == "stock" and t["n"] == FROM for t in found)
    mine, in_turn = (_slowest(found, decoding) for decoding in ("shared", "each"))
    if mine is None or not tried:
        return Outcome(name, None, "not measured")
    if not theirs:
        return Outcome(name, True, "stock did not form")
    ratio = mine / median(theirs)
    said = f"{mine:.2f} s (the slower of one and three members) to {median(theirs):.2f} s: {ratio:.2f}"
    more = f"; {in_turn:.2f} s where the one process decodes the record {FROM} times, one after the other" if in_turn is not None else ""
    return Outcome(name, ratio <= MOST_OF_STOCK, said + more)


def _slowest(found: Trials, decoding: str) -> float | None:
    """Of one member and three: the median first formation of `FROM` nodes.  n machines each decode their own copy, at the same
    time: `shared` is the nearer to them."""
    groups = [g for g in _groups(found) if g[1] == decoding and g[2] == "first"]
    times = [dict(medians(found, g, lambda t: t["time_s"])).get(FROM) for g in groups]
    return max((t for t in times if t is not None), default=None)


def _writes(found: Trials) -> Outcome:
    most = [v / n for g in _groups(found) for n, v in medians(found, g, lambda t: t["writes"])]
    name = f"<= {MOST_WRITES:g} writes a node in a formation"
    return Outcome(name, max(most) <= MOST_WRITES if most else None, f"{max(most):.2f} at most" if most else "not measured")


def _exponent(found: Trials, name: str) -> Outcome:
    fits = [f for g in _groups(found) if (f := fit(found, g, name)) is not None]
    bar = f"exponent of {name} from {FROM} nodes on <= {MOST_EXPONENT:g}"
    return Outcome(bar, max(fits) <= MOST_EXPONENT if fits else None, f"{max(fits):.3f} at most" if fits else "not measured")


def summary(found: Trials) -> str:
    """Sizes and medians for the last line."""
    parts = []
    for n in sorted({t["n"] for t in found if t["side"] == "ours"})[-3:]:
        its = [t["time_s"] for t in found if t["side"] == "ours" and t["n"] == n and t["formation"] == "first" and t["formed"] and t["decoding"] == "shared"]
        parts += [f"{n} nodes {median(its):.2f} s"] if its else []
    return ", ".join(parts) or "nothing measured"


def exit_status(found: Sequence[Outcome]) -> int:
    """0: every bar held; 1: one did not; 3: none failed, but not all were measured."""
    if any(o.held is False for o in found):
        return 1
    return 3 if any(o.held is None for o in found) else 0
