"""`baseline record|show|compare`: figures in files, the baseline in a file or on a real etcd."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_health.cli.codes import Code
from elastic_health.cli.main import main
from tests.etcd_fixture import EtcdCluster, etcd_cluster

pytestmark = [pytest.mark.spec("P2", "U3")]
SIZES = [1 << k for k in range(20, 26)]


def outputs(folder: Path, *levels: float) -> list[str]:
    """One CSV a level, all but the first one as JSON."""
    paths = []
    for i, level in enumerate(levels):
        path = folder / f"run{i}-{level}"
        if i:
            path.write_text(json.dumps({"unit": "GB/s", "values": {str(s): level for s in SIZES}}))
        else:
            path.write_text("size,busbw\n" + "".join(f"{s}, {level}\n" for s in SIZES))
        paths.append(str(path))
    return paths


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["baseline", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def base(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    path = str(tmp_path / "base.json")
    assert (
        run(capsys, "record", *outputs(tmp_path, 99.0, 100.0, 102.0), "--file", path, "--node-type", "t", "--command", "perf -b 1M")[0] == 0
    )
    return path


def test_record_show_compare_with_a_file(base: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "show", "--file", base)
    assert code == 0 and "3 runs, GB/s" in out and "perf -b 1M" in out and "1048576  100.00" in out
    code, out, _ = run(capsys, "compare", *outputs(tmp_path, 95.0), "--file", base)
    assert code == Code.OK and out.startswith("pass") and "0.95" in out
    code, out, _ = run(capsys, "compare", *outputs(tmp_path, 80.0), "--file", base)
    assert code == Code.UNFIT and out.startswith("fail") and "80% of 100.00" in out and "low" in out
    assert run(capsys, "compare", *outputs(tmp_path, 80.0), "--file", base, "--min-ratio", "0.7")[0] == 0


def test_json_for_machines(base: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "compare", *outputs(tmp_path, 80.0), "--file", base, "--json", "--node", "n7")
    told = json.loads(out)
    assert code == Code.UNFIT and told["verdict"] == "fail" and told["findings"][0]["kind"] == "low_bandwidth"
    assert told["findings"][0]["nodes"] == ["n7"] and told["parsed"]["sizes"][0]["ratio"] == 0.8
    assert json.loads(run(capsys, "show", "--file", base, "--json")[1])["provenance"]["versions"]["elastic-health"]


def test_replacing_needs_force_and_keeps_where_the_old_one_came_from(base: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = ["record", *outputs(tmp_path, 50.0, 51.0, 52.0), "--file", base, "--node-type", "t", "--node", "other"]
    before = Path(base).read_bytes()
    code, out, err = run(capsys, *again)
    assert (code, out) == (Code.BAD_CONFIG, "") and "--force" in err and Path(base).read_bytes() == before
    code, out, _ = run(capsys, *again, "--force", "--json")
    told = json.loads(out)["baseline"]
    assert code == 0 and told["provenance"]["node"] == "other" and told["previous"][0]["command"] == "perf -b 1M"


def test_what_is_no_baseline_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "base.json")
    good = outputs(tmp_path, 1.0, 2.0, 3.0)
    wrong = tmp_path / "wrong"
    wrong.write_text(json.dumps({"wrong": 7, "values": {"8": 1.0}}))
    for given, says in (
        (good[:2], "at least 3 runs"),
        ([*good[:2], str(wrong)], "7 wrong values"),
        ([*good, good[0]], "more than once"),
        ([*good, str(tmp_path / "none")], "No such file"),
        ([*good, str(tmp_path)], "directory"),
        ([*good, "--runs", "0"], "--runs"),
        ([*good, "--check", "a/b", "--endpoint", "127.0.0.1:1", "--node-type", "a b"], "node type"),
    ):
        code, out, err = run(capsys, "record", *given, "--file", path)
        assert (code, out) == (Code.BAD_CONFIG, "") and says in err and err.count("\n") == 1
    assert not Path(path).exists()
    assert run(capsys, "record", good[0], "--runs", "1", "--file", path)[0] == 0


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("", "csv"),
        ("size,busbw\n", "auto"),
        ("size,busbw\n8\n", "auto"),
        ("size,busbw\n8,x\n", "auto"),
        ("size,busbw\n8,1\n8,2\n", "auto"),
        ("size,time\n8,1\n", "auto"),
        ("{", "auto"),
        ("{}", "auto"),
        ('{"8": true}', "auto"),
        ('{"x": 1}', "auto"),
        ('{"values": [1]}', "auto"),
        ("[1]", "json"),
        ("{" * 200000, "json"),
        ('{"8": [1]}', "auto"),
        ("\x00\xff\n", "csv"),
        ('{"8": 1e999}', "auto"),
        ('{"values": {"8": 1, "-4": 1}}', "auto"),
    ],
)
def test_bad_figures_are_one_message(text: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "figures"
    path.write_text(text)
    code, out, err = run(capsys, "record", str(path), "--runs", "1", "--format", form, "--file", str(tmp_path / "base"))
    assert (code, out) == (Code.BAD_CONFIG, "") and err.startswith("expected") and err.count("\n") == 1 and len(err) < 700


def test_no_baseline_and_too_little_in_common_are_not_measured(base: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "compare", *outputs(tmp_path, 9.0), "--file", str(tmp_path / "none"))
    assert code == Code.NOT_MEASURED and out.startswith("not_measured") and "baseline record" in out
    few = tmp_path / "few"
    few.write_text(json.dumps({str(SIZES[0]): 100.0}))
    code, out, _ = run(capsys, "compare", str(few), "--file", base)
    assert code == Code.NOT_MEASURED and "at least 3" in out
    assert run(capsys, "show", "--file", str(tmp_path / "none"))[0] == Code.NOT_FOUND


@pytest.mark.parametrize("ratio", ["0", "1.01", "nan"])
def test_a_ratio_out_of_range(ratio: str, base: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "compare", *outputs(tmp_path, 9.0), "--file", base, "--min-ratio", ratio)
    assert code == Code.BAD_CONFIG and "--min-ratio" in err


def test_a_broken_file_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "base.json"
    path.write_text("{")
    for arguments in (["show"], ["compare", *outputs(tmp_path, 1.0)]):
        code, out, err = run(capsys, *arguments, "--file", str(path))
        assert (code, out) == (Code.BAD_CONFIG, "") and str(path) in err and err.count("\n") == 1


def test_figures_from_standard_input(base: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps({str(s): 100.0 for s in SIZES})
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert run(capsys, "compare", "-", "--file", base)[0] == 0


# ---- etcd


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    with etcd_cluster(1) as cluster:
        yield cluster


def test_in_etcd(etcd: EtcdCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--endpoint", etcd.endpoints[0]]
    assert "no baselines" in run(capsys, "show", *where)[1]
    code, out, _ = run(capsys, "record", *outputs(tmp_path, 99.0, 100.0, 102.0), *where, "--json")
    derived = json.loads(out)["place"]
    assert code == 0 and derived.startswith("/elastic-health/baselines/") and derived.endswith("/all_reduce")
    assert run(capsys, "compare", *outputs(tmp_path, 95.0), *where)[0] == 0
    code, out, _ = run(capsys, "compare", *outputs(tmp_path, 95.0), *where, "--node-type", "7x-H100")
    assert code == Code.NOT_MEASURED and f"there are baselines of: {derived.split('/')[3]}" in out
    code, _, err = run(capsys, "record", *outputs(tmp_path, 99.0, 100.0, 102.0), *where)
    assert code == Code.BAD_CONFIG and "--force" in err
    assert run(capsys, "record", *outputs(tmp_path, 70.0, 71.0, 72.0), *where, "--force")[0] == 0
    stored = json.loads(etcd.ctl("get", "--print-value-only", derived))
    assert stored["figures"][0]["median"] == 71.0 and len(stored["previous"]) == 1
    etcd.ctl("put", "/elastic-health/baselines/x/pair", "nonsense")
    code, out, _ = run(capsys, "show", *where)
    assert code == 0 and "all_reduce" in out and "nonsense" not in out and "x/pair" in out
    code, _, err = run(capsys, "show", "--node-type", "x", "--check", "pair", *where)
    assert code == Code.BAD_CONFIG and "x/pair" in err and err.count("\n") == 1
    assert run(capsys, "show", "--node-type", "nosuch", *where)[0] == Code.NOT_FOUND


# ---- outputs of our own all-reduce


def pair_output(level: float, wrong: int = 0, end: str = '{"done": true}') -> str:
    rows = "".join(f'{{"size": {4**k}, "busbw": {level * k}, "wrong": {wrong}}}\n' for k in range(5, 9))
    return f'{{"started": true, "left_s": 29.0}}\n{{"connected": true, "backend": "gloo"}}\n{rows}{end}\n'


@pytest.mark.spec("P3")
def test_outputs_of_the_pair_benchmark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("1", pair_output(1.0)), ("2", pair_output(1.02)), ("3", pair_output(0.99))):
        (tmp_path / name).write_text(text)
    (tmp_path / "wrong").write_text(pair_output(1.0, wrong=2))
    (tmp_path / "cut").write_text(pair_output(1.0, end=""))
    place = ["--check", "pair", "--node-type", "box", "--file", str(tmp_path / "base")]
    runs = [str(tmp_path / name) for name in "123"]
    for bad in ("wrong", "cut"):
        assert main(["baseline", "record", *runs[:2], str(tmp_path / bad), *place]) == Code.BAD_CONFIG
        assert "expected" in capsys.readouterr().err
    assert main(["baseline", "record", *runs, *place]) == 0
    assert main(["baseline", "compare", runs[0], *place]) == 0 and "pass: pair" in capsys.readouterr().out


# ---- outputs of nccl-tests

HEAD = "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
UNITS = "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"


def nccl_output(level: float, wrong: int = 0) -> str:
    """Two GPUs, six sizes, in the layout of nccl-tests 2.13 and later."""
    lines = ["# nThread 1 nGpus 2 minBytes 1048576 maxBytes 33554432 step: 2(factor) warmup iters: 5 iters: 20 validation: 1\n"]
    lines += ["#\n", "# Using devices\n"]
    lines += [f"#  Rank  {r} Group  0 Pid    {100 + r} on     node-a device  {r} [0x0{r}] NVIDIA H100 80GB HBM3\n" for r in (0, 1)]
    lines += ["#\n", HEAD, UNITS]
    for size in SIZES:
        half = f"{size / level / 1e3:9.2f} {level:7.2f} {level:7.2f} {wrong:6d}"
        lines.append(f"{size:12d} {size // 4:13d}     float     sum      -1 {half} {half}\n")
    ok = "FAILED" if wrong else "OK"
    return "".join([*lines, f"# Out of bounds values : {wrong} {ok}\n", f"# Avg bus bandwidth    : {level:g} \n", "#\n"])


def test_outputs_of_nccl_tests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, paths = str(tmp_path / "base.json"), []
    for i, level in enumerate((99.0, 100.0, 101.0)):
        paths.append(tmp_path / f"good{i}")
        paths[-1].write_text(nccl_output(level))
    good = [str(p) for p in paths]
    assert run(capsys, "record", *good, "--file", base)[0] == 0
    assert f"{SIZES[0]}  100.00  1.00" in run(capsys, "show", "--file", base)[1].replace("   ", "  ")
    slow, bad, cut = tmp_path / "slow", tmp_path / "bad", tmp_path / "cut"
    slow.write_text(nccl_output(80.0))
    bad.write_text(nccl_output(100.0, wrong=5))
    cut.write_text(nccl_output(100.0)[: len(nccl_output(100.0)) * 3 // 4])
    for path, code in ((good[0], Code.OK), (slow, Code.UNFIT), (bad, Code.UNFIT), (cut, Code.NOT_MEASURED)):
        assert run(capsys, "compare", str(path), "--file", base)[0] == code, path
    for path in (bad, cut):
        code, _, err = run(capsys, "record", *good, str(path), "--file", base, "--force")
        assert code == Code.BAD_CONFIG and str(path) in err


def test_a_real_output_agrees_with_itself(cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    real = cases / "nccl_tests" / "gcm_sample_single_success_output.txt"
    base = str(tmp_path / "base.json")
    assert run(capsys, "record", str(real), "--runs", "1", "--file", base)[0] == 0
    code, out, _ = run(capsys, "compare", str(real), "--file", base, "--json")
    assert code == 0 and {r["ratio"] for r in json.loads(out)["parsed"]["sizes"]} == {1.0}
