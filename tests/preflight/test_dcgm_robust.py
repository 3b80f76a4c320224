"""Whatever is done to an output of dcgmi diag: no exception, no pass for a cut one, and no failure that noise turns into a pass.

The verdict is compared with a twin that knows the plain table from which the output was written.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from elastic_health.preflight.dcgm import parse_dcgm
from elastic_health.preflight.results import Outcome
from tests.preflight.dcgm_outputs import FAILING, FORMS, PASSING, Said, Spec, object_3, object_4, styled, table_3

pytestmark = pytest.mark.spec("P1")

STATUSES = ("Pass", "Pass", "Pass", "Fail", "Warn", "Skip")
TESTS = ("software", "memory", "pcie", "diagnostic", "targeted_stress", "targeted_power", "memory_bandwidth", "eud")
GOOD = (Outcome.PASS, Outcome.WARN)


@st.composite
def specs(draw: st.DrawFn, statuses: tuple[str, ...] = STATUSES) -> Spec:
    gpus = draw(st.integers(1, 9))
    tests = draw(st.lists(st.sampled_from(TESTS), unique=True, min_size=1, max_size=6))
    return tuple(Said(t, tuple(draw(st.sampled_from(statuses)) for _ in range(gpus))) for t in tests)


def twin(spec: Spec, form: str) -> Outcome:
    """The right verdict, from the table alone."""
    told = [s for s in spec if form != "table 3" or s.test != "software"]
    every = [status for s in told for status in s.statuses] + (["Pass"] if form == "table 3" else [])
    beyond = [s for s in told if s.test != "software"]
    if "Fail" in every:
        return Outcome.FAIL
    done = ("Pass", "Warn")
    if not any(status in done for status in every):
        return Outcome.NOT_MEASURED
    gpus = range(len(told[0].statuses)) if told else range(0)
    if any(all(s.statuses[g] not in done for s in beyond or told) for g in gpus):
        return Outcome.NOT_MEASURED
    skipped = any("Skip" in s.statuses for s in told if s.test != "eud")
    return Outcome.WARN if "Warn" in every or skipped else Outcome.PASS


def verdict(text: str) -> Outcome:
    return parse_dcgm(text).outcome


@settings(max_examples=150)
@given(specs(), st.sampled_from(sorted(FORMS)))
def test_every_form_gives_the_verdict_of_its_table(spec: Spec, form: str) -> None:
    assert verdict(FORMS[form](spec)) is twin(spec, form)


# ---- what launchers, logs and people do to an output


def _prefixed(prefix: str) -> Callable[[str], str]:
    return lambda text: "".join(prefix + line for line in text.splitlines(keepends=True))


def _numbered(text: str) -> str:
    return "".join(f"2026-11-03T04:05:{i % 60:02}.{i:06}Z node-a {i}: {line}" for i, line in enumerate(text.splitlines(keepends=True)))


def _recased(text: str) -> str:
    return re.sub(r"\b(Pass|Fail|Skip|Warn)\b", lambda m: m[1].upper() if len(m[1]) % 2 == 0 and m.start() % 2 else m[1].lower(), text)


def _docker(text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(json.dumps({"log": line, "stream": "stdout", "time": "t"}, separators=(",", ":")) + "\n" for line in lines)


def _runtime(text: str) -> str:
    """A container runtime breaks long lines: P, then F."""
    made = ""
    for line in text.splitlines():
        parts = [line[i : i + 40] for i in range(0, len(line), 40)] or [""]
        made += "".join(f"2026-11-03T04:05:06.000000001Z stdout {'F' if p is parts[-1] else 'P'} {p}\n" for p in parts)
    return made


CHANGES: dict[str, Callable[[str], str]] = {
    "mpirun": _prefixed("[1,0]<stdout>:"),
    "torchrun": _prefixed("[default0]:"),
    "srun": _prefixed("0: "),
    "time": _prefixed("2026-11-03 04:05:06,789 INFO "),
    "numbered": _numbered,
    "kubectl": _prefixed("[pod/nvidia-dcgm-abc/nvidia-dcgm-ctr] "),
    "compose": _prefixed("dcgm-1  | "),
    "syslog": _prefixed("Nov  3 04:05:06 node-a dcgmi[77]: "),
    "pdsh": _prefixed("node-a: "),
    "strange": _prefixed("<<node 7>> "),
    "indented": _prefixed("\t    "),
    "docker": _docker,
    "runtime": _runtime,
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "colours": lambda text: text.replace("Pass", "\x1b[32mPass\x1b[0m").replace("Fail", "\x1b[1;31mFail\x1b[0m"),
    "bom": lambda text: "\ufeff" + text,
    "recased": _recased,
    "banner": lambda text: f"Executing in Pod nvidia-dcgm-x on Host 192.0.2.1\n{text}\ncommand terminated with exit code 0\n",
    "shell": lambda text: f"node-a:~# dcgmi diag -r 2\n{text}node-a:~# ",
    "quoted": lambda text: json.dumps({"rc": 0, "stdout": text}),
    "twice": lambda text: text + text,
}


@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.parametrize("change", sorted(CHANGES))
def test_a_wrapping_changes_no_verdict(change: str, form: str) -> None:
    for spec, right in ((PASSING, Outcome.PASS), (FAILING, Outcome.FAIL)):
        assert verdict(CHANGES[change](FORMS[form](spec))) is right


@settings(max_examples=100)
@given(specs(), st.sampled_from(sorted(FORMS)), st.sampled_from(sorted(CHANGES)), st.sampled_from(sorted(CHANGES)))
def test_nor_do_two_of_them_hide_a_failure_or_make_a_pass(spec: Spec, form: str, first: str, second: str) -> None:
    right, got = twin(spec, form), verdict(CHANGES[second](CHANGES[first](FORMS[form](spec))))
    assert got is right or got is Outcome.NOT_MEASURED


NOISE = (
    'time="2026-11-03T04:05:06Z" level=info msg="probe {ok}" pod="a"',
    '{"level":"info","ts":1.5,"msg":"scrape","status":"fail"}',
    "WARNING: THIS SHOULD NOT HAPPEN",
    "Error: no such metric",
    "Defaulted container \"nvidia-dcgm-ctr\" out of: nvidia-dcgm-ctr, init (init)",
    "",
    "[ 12.345] NVRM: something { else",
    "100%|##########| 10/10 [00:01<00:00]",
)


@settings(max_examples=150)
@given(specs(), st.sampled_from([f for f in sorted(FORMS) if "compact" not in f]), st.data())
def test_foreign_lines_in_between_change_no_verdict(spec: Spec, form: str, data: st.DataObject) -> None:
    lines = FORMS[form](spec).splitlines()
    for _ in range(data.draw(st.integers(1, 6))):
        lines.insert(data.draw(st.integers(0, len(lines))), data.draw(st.sampled_from(NOISE)))
    assert verdict("\n".join(lines)) is twin(spec, form)


@settings(max_examples=200)
@given(st.sampled_from(sorted(FORMS)), st.text(alphabet='{}[]",:|+-= aF01\\\n', max_size=40), st.floats(0, 1))
def test_junk_in_between_never_makes_a_failure_pass(form: str, junk: str, where: float) -> None:
    text = FORMS[form](FAILING)
    at = int(where * len(text))
    assert verdict(text[:at] + junk + text[at:]) is not Outcome.PASS


@settings(max_examples=200)
@given(st.sampled_from(sorted(FORMS)), st.floats(0, 1), st.integers(1, 400))
def test_a_hole_never_makes_a_failure_pass_unless_it_swallows_it_whole(form: str, where: float, length: int) -> None:
    text = FORMS[form](FAILING)
    at = int(where * len(text))
    holed = text[:at] + text[at + length :]
    if "Fail" in holed:
        assert verdict(holed) is not Outcome.PASS


# ---- cuts


@pytest.mark.parametrize("form", ["json 3 compact", "table 3"])
def test_cut_at_every_byte(form: str) -> None:
    good, bad = FORMS[form](PASSING), FORMS[form](FAILING)
    assert verdict(good) is Outcome.PASS
    for end in range(len(good.rstrip())):
        assert verdict(good[:end]) is Outcome.NOT_MEASURED, good[:end][-60:]
    ends = [verdict(bad[:end]) for end in range(len(bad) + 1)]
    seen = ends.index(Outcome.FAIL)
    assert set(ends[:seen]) == {Outcome.NOT_MEASURED} and set(ends[seen:]) == {Outcome.FAIL}  # seen whole once, it stays
    assert "Fail" in bad[: seen + 1] and bad[:seen].count("Fail") <= 1


@pytest.mark.parametrize("form", ["json 3 compact", "table 3"])
def test_the_head_cut_off_at_every_byte(form: str) -> None:
    good = FORMS[form](PASSING)
    for begin in range((good.index("{") if "json" in form else good.index("| Diagnostic")) + 1, len(good)):
        assert verdict(good[begin:]) is Outcome.NOT_MEASURED, good[begin:][:60]


@settings(max_examples=150)
@given(specs(), st.sampled_from(sorted(FORMS)), st.floats(0, 1, exclude_max=True), st.booleans())
def test_a_cut_is_never_a_pass(spec: Spec, form: str, where: float, head: bool) -> None:
    text = FORMS[form](spec).rstrip()
    begin = text.index("{") if "json" in form else text.index("| Diagnostic")
    at = begin + 1 + int(where * (len(text) - begin - 1))
    assert verdict(text[at:] if head else text[:at]) not in GOOD


@settings(max_examples=60)
@given(st.sampled_from(sorted(FORMS)), st.floats(0, 1, exclude_max=True))
def test_a_cut_output_before_a_whole_one_is_no_pass(form: str, where: float) -> None:
    text = FORMS[form](PASSING)
    begin = text.index('"tests"') if "json" in form else text.index("NVML") if form == "table 3" else text.index("GPU0")
    at = begin + 1 + int(where * (len(text.rstrip()) - begin - 1))
    assert verdict(text[:at] + "\n" + text) is Outcome.NOT_MEASURED
    assert verdict(text[:at] + "\n" + text.replace("Successfully ran diagnostic for group.\n", "")) is Outcome.NOT_MEASURED


@pytest.mark.parametrize("form", ["table 3", "table 4"])
def test_a_row_cut_in_the_middle_of_a_table(form: str) -> None:
    lines = FORMS[form](PASSING).split("\n")
    for number, line in enumerate(lines):
        if "Pass" in line:
            for end in (line.index("Pass") + 2, len(line) - 1):
                torn = [*lines[:number], line[:end], *lines[number + 1 :]]
                assert verdict("\n".join(torn)) is Outcome.NOT_MEASURED


# ---- JSON that lacks something


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found: list[tuple[Any, ...]] = []
    for key, inner in items:
        found += [(*path, key), *_paths(inner, (*path, key))]
    return found


@pytest.mark.parametrize("made", [object_3, object_4])
def test_any_key_dropped(made: Callable[[Spec], dict[str, Any]]) -> None:
    for path in _paths(made(FAILING)):
        if not isinstance(path[-1], str):
            continue
        value: Any = made(FAILING)
        inner = value
        for key in path[:-1]:
            inner = inner[key]
        del inner[path[-1]]
        assert verdict(styled(value)) is not Outcome.PASS, path


@settings(max_examples=150)
@given(st.sampled_from([object_3, object_4]), st.data())
def test_any_value_replaced(made: Callable[[Spec], dict[str, Any]], data: st.DataObject) -> None:
    value: Any = made(FAILING)
    path = data.draw(st.sampled_from(_paths(value)))
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    junk = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.just([]), st.just({}), st.just([[[]]]))
    inner[path[-1]] = data.draw(junk)
    parse_dcgm(json.dumps(value))  # total


# ---- anything at all


ANY_TEXT = st.one_of(st.text(max_size=300), st.binary(max_size=300).map(lambda b: b.decode("utf-8", "replace")))
UNITS = ("{", "[", '{"a":', '{"a":[', '"', "| a | Pass |\n", "{}", "[{}]", '{"status":"x"}', "+---+---+\n", "\\", "0: ", "Error: x\n")


@settings(max_examples=200)
@given(ANY_TEXT, st.none() | st.integers(-70, 300))
def test_any_text_has_a_verdict(text: str, status: int | None) -> None:
    assert verdict(text) in (Outcome.NOT_MEASURED, Outcome.FAIL)
    parse_dcgm(text, status, text)


@pytest.mark.parametrize("unit", UNITS)
def test_repetitions_take_linear_time(unit: str) -> None:
    begun = time.monotonic()
    verdict(unit * 20_000)
    verdict('{\n"DCGM Diagnostic" : {\n' + unit * 20_000)
    assert time.monotonic() - begun < 20


def test_a_log_with_quotes_after_a_brace_takes_linear_time() -> None:
    begun = time.monotonic()
    for head in ("if (x) {\n", '{\n"tests" : [\n'):
        verdict(head + 'the "unfinished word of a logger\n' * 50_000)
        verdict(head + f"| a | Pass -{' ' * 4000}x |\n" * 200)
    assert time.monotonic() - begun < 20


def test_a_document_goes_on_after_many_foreign_lines() -> None:
    lines = styled(object_4(PASSING)).split("\n")
    foreign = ["a line of the log"] * 900
    assert verdict("\n".join([*lines[:40], *foreign, *lines[40:80], *foreign, *lines[80:]])) is Outcome.PASS


def test_a_table_of_another_tool_after_the_foot_is_passed_over() -> None:
    smi = "| GPU  Name  Persistence-M | Bus-Id   Disp.A | Volatile Uncorr. ECC |\n|   0  Tesla T4   On | 00000000:5E:00.0 Off |   0 |\n"
    assert verdict(table_3(PASSING) + smi) is Outcome.PASS
