"""What a command may see of our environment, and what is kept of its output."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, strategies as st

from elastic_health import variables
from elastic_health.preflight.commands import Ended, Kept, Ran, cleaned, text_of

pytestmark = pytest.mark.spec("P6", "U5")


@pytest.mark.parametrize(
    "name",
    "RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID PET_NNODES PMI_RANK PMIX_RANK OMPI_COMM_WORLD_RANK".split(),
)
def test_nobody_is_told_that_it_is_a_rank(name: str) -> None:
    """A tool built with MPI would wait for the other ranks of the step that started the agents."""
    assert cleaned({name: "3", "PATH": "/bin"}) == {"PATH": "/bin"}


@pytest.mark.parametrize(
    "name",
    (
        "ETCD_PASSWORD MYSQL_PASSWD AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID AWS_SESSION_TOKEN HF_TOKEN GITHUB_PAT WANDB_API_KEY "
        "SLACK_WEBHOOK GOOGLE_APPLICATION_CREDENTIALS azure_account_key SSH_PRIVATE_KEY npm_config_token SENTRY_DSN"
    ).split(),
)
def test_what_looks_like_a_secret_stays_here(name: str) -> None:
    assert cleaned({name: "s3cret"}) == {}
    assert cleaned({name: "s3cret"}, keep=[name]) == {name: "s3cret"}


def test_what_the_yaml_calls_a_secret_is_never_passed_on() -> None:
    assert cleaned({"PLAIN_NAME": "s3cret"}, secrets=["PLAIN_NAME"], keep=["PLAIN_NAME"]) == {}


def test_a_password_within_an_address_is_a_secret() -> None:
    assert cleaned({"DATABASE": "postgres://me:word@db/x", "PROXY": "http://proxy:3128"}) == {"PROXY": "http://proxy:3128"}


@pytest.mark.parametrize(
    "name",
    "PATH HOME LD_LIBRARY_PATH CUDA_VISIBLE_DEVICES NCCL_DEBUG NCCL_SOCKET_IFNAME SLURM_JOB_ID TOKENIZERS_PARALLELISM KEYBOARD "
    "ELASTIC_HEALTH_NODE ELASTIC_HEALTH_RUN OMP_NUM_THREADS AUTHOR COMPATIBLE PATTERN".split(),
)
def test_what_a_check_needs_is_passed_on(name: str) -> None:
    assert cleaned({name: "x"}) == {name: "x"}


def test_no_variable_of_ours_that_is_a_workers_reaches_a_check() -> None:
    theirs = {variables.NODE, variables.CONFIG, variables.ENDPOINT, variables.RUN, variables.LOG, variables.CHECK, variables.REPAIRED}
    ours = {value for name, value in vars(variables).items() if name.isupper()}
    assert set(cleaned(dict.fromkeys(ours, "x"))) == theirs


def test_a_token_by_which_these_tests_find_their_processes_is_no_secret() -> None:
    assert cleaned(os.environ)["ELASTIC_HEALTH_TEST_SESSION"] == os.environ["ELASTIC_HEALTH_TEST_SESSION"]


@given(st.lists(st.binary(max_size=40), max_size=40), st.integers(0, 64))
def test_both_ends_are_kept_and_the_gap_is_counted(chunks: list[bytes], limit: int) -> None:
    kept, whole = Kept(limit), b"".join(chunks)
    for chunk in chunks:
        kept.add(chunk)
    assert len(kept.tail) <= max(limit, 1) + 1
    if len(whole) <= limit:
        assert kept.omitted == 0 and kept.text() == whole.decode("utf-8", "replace")
        return
    head, tail = whole[: limit // 2], whole[len(whole) - (limit - limit // 2) :]
    assert kept.omitted == len(whole) - limit
    assert kept.text().startswith(head.decode("utf-8", "replace")) and kept.text().endswith(tail.decode("utf-8", "replace"))


def test_stderr_is_read_where_stdout_says_nothing() -> None:
    """NVIDIA/DCGM#158: a tool that can't begin says so on stderr, or nowhere."""
    assert text_of(Ran(("x",), Ended.BY_ITSELF, 226, stdout=" \n", stderr="no host engine")) == "no host engine"
    assert text_of(Ran(("x",), Ended.BY_ITSELF, 0, stdout="{}", stderr="warning")) == "{}"


def test_only_a_whole_run_counts() -> None:
    whole = Ran(("x",), Ended.BY_ITSELF, 0)
    assert whole.whole and whole.status == 0
    cut = [Ran(("x",), ended, 0) for ended in Ended if ended is not Ended.BY_ITSELF]
    assert [ran for ran in cut if ran.whole or ran.status is not None] == []
    assert not Ran(("x",), Ended.BY_ITSELF, 0, omitted=1).whole
