"""`dcgmi diag -j`, `dcgmi mndiag -j` and nvvs: JSON of DCGM 2.x to 4.x as a `DiagRun`.

What differs: the root ("DCGM GPU Diagnostic" up to 3.x, "DCGM Diagnostic" since 4.0, a plain string in multi-node runs); GPUs
as `gpu_ids` ("0,1", 0, [0]), `gpu_id` or `entity_group` + `entity_id`; `info` as text or list; warnings as texts or objects, whose
text stands under `warning` or (3.x, deployment tests) `warnings`; a `test_summary` beside the results; runs of several iterations.
Sources: NVIDIA/DCGM dcgmi/Diag.cpp, dcgmi/MnDiag.cpp and nvvs/include/NvvsJsonStrings.h of these generations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from elastic_health.preflight.dcgm_ids import canonical_test
from elastic_health.preflight.dcgm_runs import MAX_ID, DiagError, DiagRun, Status, TestResult, gpu_ids, once, status_of
from elastic_health.preflight.tool_json import Document, documents

ROOTS = ("DCGM GPU Diagnostic", "DCGM Diagnostic", "DCGM Multi-Node Diagnostic")
_KEYS = frozenset((*ROOTS, "test_categories", "tests", "results", "test_summary", "runtime_error", "iterations"))
_HINT = re.compile("|".join(re.escape(word) for word in (*sorted(_KEYS), "| Diagnostic ")))
_STATUS_KEYS = ("status", "entity_status", "state", "result")
_TEST_KEYS = frozenset(("results", "test_summary", "status"))
_READ_ELSEWHERE = frozenset(("entity_groups", "results", "test_summary", "warnings", "info", "mpi_error", "errors"))
_MAX_TEXT = 2000
_MOST_RESULTS = 100_000
_NESTED = ("test_categories", "| Diagnostic ")


def is_diag(value: Mapping[str, Any]) -> bool:
    """Whether a JSON object has anything of DCGM's in it."""
    return any(_KEYS & set(d) or any(isinstance(v, str) and _holds_output(v) for v in d.values()) for d in _dicts(value))


def _holds_output(text: str) -> bool:
    return len(text) > 64 and any(word in text for word in _NESTED)


def read_json(lines: Sequence[str]) -> tuple[DiagRun, tuple[str, ...], int]:
    """What the JSON in `lines` says, the texts inside it that are outputs themselves (a CI system's own record of one), and how many
    statuses of failure were met."""
    found = documents(lines, is_diag, _HINT)
    run, inner, failed = DiagRun(), [], 0
    for document in found.documents:
        nested = [v for d in _dicts(document.value) for v in d.values() if isinstance(v, str) and _holds_output(v)]
        inner += nested
        failed += sum(status_of(d.get(k))[0] is Status.FAIL for d in _dicts(document.value) for k in _STATUS_KEYS)
        if not nested or any(_KEYS & set(d) for d in _dicts(document.value)):
            run = run.and_also(_document(document))
    if found.stray and found.documents:
        run = run.and_also(DiagRun(torn=("most of a JSON document is missing",)))
    return run, tuple(inner), failed


def _document(document: Document) -> DiagRun:
    results, errors, notes, seen = [], [], [], list(_dicts(document.value))
    hosts = {h.get("host_id"): str(h.get("hostname", "")) for d in seen for h in _objects(d.get("hosts"))}
    for d in seen:
        errors += [text[:_MAX_TEXT] for text in _texts(d.get("runtime_error"))]
        notes += [text[:_MAX_TEXT] for root in ROOTS if isinstance(d.get(root), dict) for text in _texts(d[root].get("Warning"))]
        results += list(_overall(d))
    results += list(_tests(document.value, "", hosts))
    rooted = any(isinstance(d.get("test_categories"), list) for d in seen)
    if document.whole and not rooted and not errors and all(r.status is Status.UNKNOWN for r in results):
        return DiagRun()  # another tool's, with a key of the same name
    torn: tuple[str, ...] = () if document.whole else (f"the JSON document that begins in line {document.line + 1} is cut or damaged",)
    if document.whole and results and not rooted:
        torn = ("a part of a JSON document stands without the rest",)
    if errors:
        torn += ("dcgmi reports an error of its own",)
    return DiagRun(
        results=tuple(results[:_MOST_RESULTS]),
        whole=int(document.whole and rooted),
        torn=torn,
        errors=once(errors),
        notes=once(notes),
        version=_first(seen, "version", "dcgm_version"),
        driver=_first(seen, "Driver Version Detected", "driver_version"),
        forms=("json",),
        listed=once(i for d in seen for i in _listed(d)),
        hosts=once(h for h in hosts.values() if h),
    )


def _overall(d: Mapping[str, Any]) -> Iterator[TestResult]:
    """The verdict over several iterations, where it says more than they do."""
    if "iterations" in d:
        status, _ = status_of(d.get("Overall Result", d.get("result")))
        if status is Status.FAIL:
            texts = [DiagError(text[:_MAX_TEXT]) for text in _texts(d.get("warning"))]
            yield TestResult("iterations", "", status, errors=tuple(texts))


def _tests(value: object, category: str, hosts: Mapping[object, str]) -> Iterator[TestResult]:
    if isinstance(value, list):
        for item in value:
            yield from _tests(item, category, hosts)
    elif isinstance(value, dict):
        named = isinstance(value.get("name"), str)
        inside = str(value.get("category", category))[:200]
        if "results" in value or "test_summary" in value or (named and "status" in value):
            yield from _test(value, category, hosts)
        elif status_of(_status(value))[0] is not Status.UNKNOWN:  # a result that stands where none should
            yield _result("unnamed", category, value, hosts)
        elif (named and category) or ("category" in value and "tests" not in value):  # of which nothing is said
            yield TestResult(canonical_test(str(value.get("name", inside))), inside, Status.UNKNOWN)
        for test in _objects(value.get("tests")):
            if not _TEST_KEYS & set(test) and "name" not in test:
                yield TestResult("unnamed", inside, Status.UNKNOWN)
        for key, item in value.items():
            if key not in _READ_ELSEWHERE:
                yield from _tests(item, inside, hosts)
        yield from _errors_of_run(value, hosts)


def _errors_of_run(value: Mapping[str, Any], hosts: Mapping[object, str]) -> Iterator[TestResult]:
    """A multi-node run's errors that belong to no entity."""
    for item in _objects(value.get("global_errors")):
        host = hosts.get(item.get("host_id"), "")
        yield TestResult("mndiag", "", Status.FAIL, errors=(*_errors([item]),), host=host)


def _test(value: Mapping[str, Any], category: str, hosts: Mapping[object, str]) -> Iterator[TestResult]:
    name = canonical_test(str(value.get("name") or "unnamed")[:200])
    results = [_result(name, category, r, hosts) for r in _objects(value.get("results"))]
    summary = value.get("test_summary") if isinstance(value.get("test_summary"), dict) else None
    yield from results
    known = {(e.error_id, e.text) for r in results for e in r.errors}
    worst = max((r.status.rank for r in results), default=-1)
    for whole in (summary, value if _status(value) is not None else None):
        if whole is None:
            continue
        said = status_of(_status(whole))[0]
        more = tuple(e for e in _errors([whole.get("warnings"), value.get("mpi_error")]) if (e.error_id, e.text) not in known)
        if not results or more or (said.rank > worst and said in (Status.WARN, Status.FAIL)):
            yield TestResult(name, category, said, errors=more)
            return
    if not results and summary is None and _status(value) is None:
        yield TestResult(name, category, Status.UNKNOWN)


def _result(name: str, category: str, value: Mapping[str, Any], hosts: Mapping[object, str]) -> TestResult:
    status, rest = status_of(_status(value))
    errors = list(_errors([value.get("warnings"), value.get("warning"), value.get("errors")]))
    if status in (Status.FAIL, Status.WARN) and not errors:
        errors = list(_errors([value.get("info")]))  # before 3.1, and where the list of errors was full
    gpus = gpu_ids(value.get("gpu_ids")) or gpu_ids(value.get("gpu_id")) or gpu_ids(rest)
    group, number = str(value.get("entity_group", "")).strip().lower(), value.get("entity_id")
    entities: tuple[str, ...] = ()
    if gpu_ids(number) and group in ("gpu", "") and not gpus:
        gpus = gpu_ids(number)
    elif gpu_ids(number) and group not in ("gpu", "", "none"):
        entities = (f"{group}{number}"[:64],)
    elif "cpu_id" in value:
        entities = (f"cpu{value['cpu_id']}"[:64],)
    return TestResult(name, category, status, gpus, entities, tuple(errors), hosts.get(value.get("host_id"), ""))


def _status(value: Mapping[str, Any]) -> object:
    return next((value[key] for key in _STATUS_KEYS if isinstance(value.get(key), str)), None)


def _errors(values: Sequence[object]) -> Iterator[DiagError]:
    """Errors out of texts, objects, and lists of both."""
    for value in values:
        if isinstance(value, list):
            yield from _errors(value)
        elif isinstance(value, str) and value.strip():
            yield DiagError(value.strip()[:_MAX_TEXT])
        elif isinstance(value, dict):
            text = " ".join(t for key in ("warning", "warnings", "detail", "message", "msg") for t in _texts(value.get(key)))
            numbers = (_number(value.get(key)) for key in ("error_id", "error_severity", "error_category"))
            error = DiagError(text.strip()[:_MAX_TEXT], *numbers)
            if error != DiagError(""):
                yield error
            elif value:
                yield from _errors([v for v in value.values() if isinstance(v, dict | list | str)])


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value] if value.strip() else []
    return [t for v in value for t in _texts(v)] if isinstance(value, list) else []


def _number(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, str) and value.strip().isdigit() and len(value) < 8 else None


def _dicts(value: object) -> Iterator[dict[str, Any]]:
    """All objects inside; depth is bounded by the reader."""
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from _dicts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _dicts(item)


def _objects(value: object) -> list[dict[str, Any]]:
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def _first(seen: Sequence[Mapping[str, Any]], *keys: str) -> str:
    return next((str(d[key])[:64] for d in seen for key in keys if isinstance(d.get(key), str)), "")


def _listed(d: Mapping[str, Any]) -> Iterator[str]:
    if str(d.get("entity_group", "")).lower() == "gpu":
        for entity in _objects(d.get("entities")):
            yield from gpu_ids(entity.get("entity_id"))
    serials = d.get("GPU Device Serials")
    if isinstance(serials, dict):
        yield from (key for key in serials if key.isdigit() and int(key) <= MAX_ID)
