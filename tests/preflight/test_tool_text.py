"""Lines and JSON out of logs: against json.loads where the input is whole, and total elsewhere."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from elastic_health.preflight.tool_json import MAX_DEPTH, documents
from elastic_health.preflight.tool_text import clean, lines_of, unprefixed

pytestmark = pytest.mark.spec("P1")

NUMBERS = st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | st.text(max_size=12)
VALUES = st.recursive(SCALARS, lambda s: st.lists(s, max_size=4) | st.dictionaries(st.text(max_size=6), s, max_size=4))
OBJECTS = st.dictionaries(st.text(max_size=8), VALUES, max_size=5)


def read(text: str) -> list[tuple[Any, bool]]:
    return [(d.value, d.whole) for d in documents(text.split("\n"), lambda value: True).documents]


@settings(max_examples=200)
@given(OBJECTS, st.sampled_from([None, 0, 1, "\t"]), st.booleans())
def test_whole_objects_are_what_json_says(value: dict[str, Any], indent: int | str | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert read(text) == [(value, True)]
    assert read(f"some words\n{text}\nmore words") == [(value, True)]
    assert [d for d, whole in read(f"{text}{text}\n{text}") if whole] == [value] * 3


@settings(max_examples=150)
@given(OBJECTS, st.floats(0, 1, exclude_max=True))
def test_no_cut_object_is_whole(value: dict[str, Any], where: float) -> None:
    for indent in (None, 2):
        text = json.dumps(value, indent=indent)
        for _, whole in read(text[: int(where * len(text))]):
            assert not whole


def decodable(text: str) -> list[Any]:
    """Whatever json itself finds at any brace."""
    found = []
    for at in (i for i, letter in enumerate(text) if letter == "{"):
        try:
            found.append(json.JSONDecoder(strict=False).raw_decode(text[at:])[0])
        except ValueError:
            continue
    return found


@settings(max_examples=300)
@given(st.text(alphabet='{}[]",:\\ \tab1', max_size=60))
def test_what_is_called_whole_in_a_line_is_json(text: str) -> None:
    known = decodable(text)
    assert all(value in known for value, whole in read(text) if whole)


def test_a_list_of_objects_and_brackets_too_many() -> None:
    assert not documents(["[", "{}", ",", "{}", "]"], lambda v: True).stray
    assert not documents(['[{"a": 1}, {"a": 2}]'], lambda v: True).stray
    assert documents(['{"a": 1}}'], lambda v: True).stray
    assert documents(['"a": {"b": 1}', "}"], lambda v: True).stray


@pytest.mark.parametrize(
    "text",
    ['{"a": 1,}', '{"a" 1}', '{"a": 1 "b": 2}', '{"a": [1 2]}', '{"a": 1, "a": 2}', '{"a": }', '{"a": [1}]', '{1: 2}', '{"a": 01x}'],
)
def test_what_is_not_json_is_not_whole(text: str) -> None:
    assert not any(whole for _, whole in read(text))


def test_depth_is_bounded() -> None:
    deep = '{"a":' * (MAX_DEPTH + 5) + "1" + "}" * (MAX_DEPTH + 5)
    ((_, whole),) = read(deep)
    assert not whole
    fine = '{"a":' * (MAX_DEPTH - 1) + "1" + "}" * (MAX_DEPTH - 1)
    assert read(fine)[0][1]


def test_cleaning() -> None:
    assert clean("\ufeffa\x00\r\nb\rc\x1b[31mred\x1b[0m\x1b]0;title\x07") == "a\nb\ncred"
    assert lines_of('{"log":"a\\n","stream":"stdout"}\n{"log":"b","stream":"stdout"}\n{"log":"c\\n"}') == ["a", "bc", ""]
    time = "2026-01-01T00:00:00.0Z"
    assert lines_of(f"{time} stdout P a\n{time} stdout F b\n{time} stderr F c") == ["ab", "c"]


@pytest.mark.parametrize(
    "prefix",
    [
        "[1,0]<stdout>:",
        "[default3]:",
        "12: ",
        "2026-01-02T03:04:05.678Z ",
        "2026-01-02 03:04:05,678 ",
        "Jan  2 03:04:05 node-a dcgmi[12]: ",
        "[pod/a/b] ",
        "node-a.example: ",
        "dcgm-1  | ",
        "[   12.345678] ",
    ],
)
def test_known_prefixes_come_off(prefix: str) -> None:
    for line in ("| Denylist | Pass |", '"status" : "Pass"', "}"):
        assert line in [form.strip() for form in unprefixed(prefix + line)]


@settings(max_examples=150)
@given(st.text(max_size=200))
def test_any_line_is_cleaned_and_unprefixed(text: str) -> None:
    for line in lines_of(text):
        assert all(line.endswith(form) for form in unprefixed(line))
