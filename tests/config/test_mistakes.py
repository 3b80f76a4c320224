"""Every mistake in a YAML file is named at once, with file, line, field, expected and found."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from elastic_health.config.load_os import load, read_password, tls_files
from elastic_health.config.mistakes import ConfigMistakes
from elastic_health.config.model import Config, StoreSection, Tls
from elastic_health.config.validate import all_names, parse
from elastic_health.errors import ConfigError

pytestmark = pytest.mark.spec("U2")


def mistakes(text: str) -> list[tuple[int, str, str, str]]:
    with pytest.raises(ConfigMistakes) as e:
        parse(text, "h.yaml")
    assert all(f"h.yaml:{m.line}: " in str(e.value) for m in e.value.mistakes)
    return [(m.line, m.field, m.expected, m.found) for m in e.value.mistakes]


ONE = {
    "type": ("restarts:\n  per_hour: three\n", 2, "restarts.per_hour", "a whole number, or null", "three"),
    "bool for a number": ("store:\n\n  timeout_s: true", 3, "store.timeout_s", "a number", "true"),
    "bool for a count": ("checkpoints: {keep: true}", 1, "checkpoints.keep", "a whole number", "true"),
    "fraction for a count": ("restarts: {total: 1.5}", 1, "restarts.total", "a whole number, or null", "1.5"),
    "number in quotes": ('restarts:\n  total: "3"', 2, "restarts.total", "a whole number, or null", "'3'"),
    "too small": ("membership:\n  lease_s: 1", 2, "membership.lease_s", "at least 2", "1"),
    "negative": ("restarts: {total: -1}", 1, "restarts.total", "at least 0, or null", "-1"),
    "not finite": ("liveness:\n  stall_after_s: .inf", 2, "liveness.stall_after_s", "a finite number", ".inf"),
    "not a number": ("teardown: {grace_s: .nan}", 1, "teardown.grace_s", "a finite number", ".nan"),
    "a word not in the list": (
        "membership: {scale_up: later}", 1, "membership.scale_up", "one of 'at_checkpoint', 'at_once' or 'off'", "later",
    ),
    "an item of a list": ("restarts:\n  backoff_s:\n    - 0\n    - soon\n", 4, "restarts.backoff_s[1]", "a number", "soon"),
    "an empty list": ("restarts: {backoff_s: []}", 1, "restarts.backoff_s", "at least 1 entry", "a list"),
    "a list for a word": ("evidence: {folder: [a]}", 1, "evidence.folder", "text", "a list"),
    "a value for a section": ("store: 5", 1, "store", "a mapping of keys", "5"),
    "a list for the file": ("- store", 1, "", "a mapping of sections", "a list"),
    "null for a section": ("store:\n", 1, "store", "a mapping of keys", "nothing"),
    "near a key": ("restarts: {per_hours: 3}", 1, "restarts.per_hours", "a known key", "`per_hours`; did you mean `restarts.per_hour`?"),
    "a key of another section": (
        "membership:\n  stall_after_s: 3", 2, "membership.stall_after_s", "a known key",
        "`stall_after_s`; did you mean `liveness.stall_after_s`?",
    ),
    "max_restarts at the top": ("max_restarts: 0", 1, "max_restarts", "a known key", "`max_restarts`; did you mean `restarts.total`?"),
    "both names": ("restarts:\n  total: 1\n  max_restarts: 1", 3, "restarts.max_restarts", "one of total and max_restarts", "both"),
    "wrong under its other name": ("restarts:\n  max_restarts: no", 2, "restarts.total", "a whole number, or null", "no"),
    "the same key twice": ("ports:\n  listen: 1\n  listen: 2", 3, "ports.listen", "each key once", "it again (first on line 2)"),
    "a section twice": ("ports: {listen: 1}\nports: {listen: 2}", 2, "ports", "each key once", "it again (first on line 1)"),
    "a number as key": ("store:\n  5: x", 2, "store", "keys that are words", "the key 5"),
    "teardown beyond its bound": (
        "teardown:\n  grace_s: 30", 2, "teardown.grace_s", "grace_s + commit_wait_s within membership.kill_grace_s=3", "30 + 1",
    ),
    "heartbeat too slow": ("liveness:\n  heartbeat_s: 4", 2, "liveness.heartbeat_s", "at most half of stall_after_s=5", "4"),
    "back-off that shrinks": ("restarts: {backoff_s: [5, 1]}", 1, "restarts.backoff_s", "seconds that never get less", "5, 1"),
    "password without user": ("store: {password_env: X}", 1, "store.user", "a user with the password", "none"),
    "half a certificate": ("store:\n  tls:\n    cert: x", 3, "store.tls", "cert and key, or neither", "one of them"),
    "a prefix without slash": (
        "store: {prefix: here}", 1, "store.prefix", "a path of letters, digits and ._:@- that begins and ends with /", "here",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE)
def test_one_mistake(name: str) -> None:
    text, *expected = ONE[name]
    assert mistakes(text) == [tuple(expected)]


def test_all_mistakes_at_once_in_the_order_of_the_file() -> None:
    found = mistakes("restarts:\n  per_hour: x\n  totl: 1\nports: {listen: 70000}\nnew: {a: 1}\nstore: {timeout_s: []}\n")
    assert [(line, field) for line, field, _, _ in found] == [
        (2, "restarts.per_hour"),
        (3, "restarts.totl"),
        (4, "ports.listen"),
        (5, "new"),
        (6, "store.timeout_s"),
    ]


BROKEN = ["store: {a: [1, 2}", "store:\n\tprefix: x", "a: b: c", "&a [*a", "store: !!python/object:os.system x", "'", "\x1f"]


@pytest.mark.parametrize("text", BROKEN)
def test_broken_yaml_names_a_line_and_runs_nothing(text: str) -> None:
    with pytest.raises(ConfigMistakes, match=r"h\.yaml:1|h\.yaml:2"):
        parse(text, "h.yaml")


@pytest.mark.spec("U5")
@pytest.mark.parametrize(
    "text",
    [
        "store: {password: hunter2}",
        "store: {user: 'root:hunter2'}",
        "store: {token: hunter2}",
        "page: {webhook: 'hunter2'}",
        "store: {passwd: {hunter2: 1}}",
        "store:\n  password: hunter2\n  password: hunter2",
    ],
)
def test_a_secret_is_refused_and_never_shown(text: str) -> None:
    with pytest.raises(ConfigMistakes) as e:
        parse(text)
    assert "hunter2" not in str(e.value) and "not shown" in str(e.value)


def test_words_stay_words_and_numbers_numbers() -> None:
    """`off`, `1:30` and `1e1` mean what a reader takes them for, not what YAML 1.1 makes of them."""
    config = parse("membership: {scale_up: off, join_timeout_s: 1e1}\nevidence: {folder: 1:30}\npage: {command: [echo, 2024-01-01, yes]}")
    assert (config.membership.scale_up.value, config.membership.join_timeout_s) == ("off", 10.0)
    assert (config.evidence.folder, config.page.command) == ("1:30", ("echo", "2024-01-01", "yes"))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(all_names())), st.sampled_from(["x", "[1]", "{a: 1}", "-3", "1.5", "null", "true", "[]", "0", "'off'"]))
def test_any_value_at_any_key_is_taken_or_named(name: str, value: str) -> None:
    *sections, key = name.split(".")
    text = "".join(f"{'  ' * i}{part}:\n" for i, part in enumerate(sections)) + f"{'  ' * len(sections)}{key}: {value}"
    try:
        assert isinstance(parse(text), Config)
    except ConfigMistakes as e:
        assert e.mistakes and all(1 <= m.line <= text.count("\n") + 1 for m in e.mistakes)


def test_aliases_that_unfold_without_end_are_refused() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
    assert any("20000 values" in expected for _, _, expected, _ in mistakes(bomb))


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_taken_or_named(text: str) -> None:
    try:
        parse(text)
    except ConfigMistakes as e:
        assert e.mistakes


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="directory"):
        load(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"store: {prefix: /\xe9/}")
    with pytest.raises(ConfigError, match="UTF-8"):
        load(tmp_path / "latin.yaml")


@pytest.mark.spec("U5")
def test_password_from_file_or_variable(tmp_path: Path) -> None:
    file = tmp_path / "pw"
    file.write_text("s3cret\n")
    file.chmod(0o600)
    assert read_password(StoreSection(user="u", password_file=str(file)), {}) == "s3cret"
    assert read_password(StoreSection(user="u", password_env="PW"), {"PW": "x"}) == "x"
    assert read_password(StoreSection(), {}) is None
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600") as e:
        read_password(StoreSection(user="u", password_file=str(file)), {})
    assert "s3cret" not in str(e.value)
    with pytest.raises(ConfigError, match="PW"):
        read_password(StoreSection(user="u", password_env="PW"), {})
    with pytest.raises(ConfigError, match="permissions"):
        tls_files(StoreSection(tls=Tls(ca=str(tmp_path / "absent.pem"))))


PREFLIGHT = {
    "a word for another": ("preflight: {mode: on}", 1, "preflight.mode", "one of 'enforce', 'observe_only' or 'off'", "on"),
    "a level that there isn't": ("preflight:\n  dcgm:\n    levels:\n      join: 9", 4, "preflight.dcgm.levels.join", "at most 4", "9"),
    "a ratio of nothing": ("preflight: {bandwidth: {min_ratio: 0}}", 1, "preflight.bandwidth.min_ratio", "above 0", "0"),
    "near a key of an own check": (
        "preflight:\n  own:\n    - {name: raid, command: [x], stage: [join]}", 3, "preflight.own[0].stage", "a known key",
        "`stage`; did you mean `preflight.own[0].stages`?",
    ),
    "an own check without a name": ("preflight:\n  own:\n    - {command: [x]}", 3, "preflight.own[0]", "the key `name`", "none"),
    "an own check with another's name": (
        "preflight:\n  own:\n    - name: host\n      command: [x]", 3, "preflight.own[0].name",
        "a name that no other check has (nor host, canary, dcgm, bandwidth, pair)", "host",
    ),
    "an own check with nothing to run": (
        "preflight:\n  own:\n    - name: raid", 3, "preflight.own[0].command", "command or entry", "neither",
    ),
    "clock bounds the wrong way round": (
        "preflight: {host: {clock_fail_s: 0.5}}", 1, "preflight.host.clock_fail_s", "at least clock_s=1", "0.5",
    ),
}  # fmt: skip


@pytest.mark.spec("P7")
@pytest.mark.parametrize("name", PREFLIGHT)
def test_a_mistake_in_preflight(name: str) -> None:
    text, *expected = PREFLIGHT[name]
    assert mistakes(text) == [tuple(expected)]
