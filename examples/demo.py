"""Three nodes and a spare train on this machine while they are broken one after the other; then the account of it.

    python examples/demo.py            (or `make demo`)

A "node" is one stock torchrun with the healthy-etcd backend, the etcd is one of the demo's own, and what trains is
`train_bytes.py`.  Exit status 0 only if every fault was recovered from, the right rank or node was named for each, the
torn checkpoint was set aside, and `prove.py`, which imports nothing of ours, finds that each sample was used exactly once.
Everything lands in demo-out/: report.html, report.json, loss.png, the nodes' logs, the checkpoints.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from demo_parts.board import Board
from demo_parts.faults import Fault, Stage
from demo_parts.nodes import Node, end, environment, torchrun
from demo_parts.report import Outcome, tell, write
from demo_parts.scene import DemoFailed, Scene

from elastic_health.errors import HealthError
from elastic_health.rendezvous.keys import RunKeys
from elastic_health.rendezvous.private_etcd import PrivateEtcd
from elastic_health.rendezvous.session_etcd import EtcdSession

HERE = Path(__file__).resolve().parent
RUN = "demo"
STEPS, BATCH, EVERY, STEP_S = 250, 32, 5, 0.2
SKIP = (220 * BATCH, 230 * BATCH)
LIMIT_S = 175.0


def command(endpoint: str, node: Node, out: Path) -> list[str]:
    """The line that a user would type on that node, and the script with its arguments."""
    return [
        *torchrun(), "--nnodes=2:3", "--nproc-per-node=1", "--rdzv-backend=healthy-etcd", f"--rdzv-endpoint={endpoint}",
        f"--rdzv-id={RUN}", f"--rdzv-conf=node={node.name},config={HERE / 'demo.yaml'}", "--local-addr=127.0.0.1",
        f"--log-dir={out / 'torchrun' / node.name}", str(HERE / "demo_train.py"), f"--documents={STEPS * BATCH}", f"--batch={BATCH}",
        f"--ckpt-dir={out / 'ckpt'}", f"--every={EVERY}", "--keep=1000", "--loader-workers=1", f"--log-dir={out}",
    ]  # fmt: skip


def show(stage: Stage, endpoint: str, faults: list[Fault]) -> None:
    """The whole scenario; `faults` fills as it goes."""
    a, b, c, spare = stage.scene.nodes
    for node in (a, b, c):
        stage.start(node)
    stage.scene.until("the first completed step", lambda: stage.scene.first_of(1))
    stage.start(spare)
    faults.append(stage.kill_worker())
    skip_data(endpoint)
    stage.tell(f"a person has positions [{SKIP[0]}, {SKIP[1]}) skipped: elastic-health runs skip")
    faults.append(stage.hang_rank())
    stage.scene.until("the spare to wait", lambda: any(x.node == spare.name for x in stage.scene.now.candidates) or None)
    faults.append(stage.lose_node("node lost, the spare takes over", world_after=3))
    faults.append(stage.lose_node("node lost, two go on", world_after=2))
    faults.append(stage.rejoin(a))
    faults.append(stage.tear_checkpoint())
    stage.settled()
    (stage.orders / "brisk").touch()
    stage.tell("no more faults; on to the end of the data")
    up = [node for node in stage.scene.nodes if not node.killed]
    stage.scene.until("all nodes to end", lambda: all(node.status == 0 for node in up) or None)


def skip_data(endpoint: str) -> None:
    """As a person would do it who has found that a stretch of the data is bad."""
    elastic_health = [sys.executable, "-m", "elastic_health.cli.main", "runs", "skip", RUN, str(SKIP[0]), str(SKIP[1])]
    subprocess.run([*elastic_health, "--reason", "a bad file", "--endpoint", endpoint], check=True, stdout=subprocess.DEVNULL, timeout=30)


def prove(endpoint: str, out: Path) -> dict[str, object]:
    line = [sys.executable, "-S", "-E", str(HERE / "prove.py"), "--etcd", f"http://{endpoint}", "--run", RUN, "--json"]
    line += ["--save-keys", str(out / "keys.json"), "--samples", str(out / "samples")]
    line += ["--documents", str(STEPS * BATCH), "--batch", str(BATCH)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    if not done.stdout.startswith("{"):
        return {"holds": False, "why": done.stderr.strip()[-500:] or f"exit status {done.returncode}"}
    figures: dict[str, object] = json.loads(done.stdout)
    return figures


def fresh(out: Path) -> None:
    """An empty folder, and nothing removed that the demo did not make."""
    mark = out / ".made-by-demo"
    if out.exists() and any(out.iterdir()) and not mark.exists():
        raise SystemExit(f"expected an empty folder or one of an earlier demo; found other files in {out}; choose another --out")
    shutil.rmtree(out, ignore_errors=True)
    for name in ("samples", "orders", "logs", "ckpt"):
        (out / name).mkdir(parents=True)
    mark.touch()


def perform(out: Path, board: Board) -> Outcome:
    began = time.time()
    board.line("starting etcd")
    etcd = PrivateEtcd.start(out / "etcd")
    nodes = [Node(name, out / "logs" / f"{name}.log") for name in ("node-a", "node-b", "node-c", "spare-d")]
    faults: list[Fault] = []
    outcome = Outcome(began, faults, STEPS)
    try:
        store = EtcdSession.connect(etcd.endpoint)
        deadline = time.monotonic() + LIMIT_S
        scene = Scene(store, RunKeys(RUN), nodes, out / "metrics.jsonl", deadline, board.saw)
        shared = environment(out, STEP_S)
        stage = Stage(scene, out / "orders", lambda node: node.start(command(etcd.endpoint, node, out), shared), board.line)
        try:
            board.line("starting three nodes")
            show(stage, etcd.endpoint, faults)
            board.line("recomputing which samples were used")
            outcome.proof = prove(etcd.endpoint, out)
        except DemoFailed as e:
            outcome.failed = str(e)
        finally:
            outcome.steps, outcome.generations, outcome.verdicts = scene.steps, scene.now.generations, scene.now.verdicts
            store.close()
    finally:
        board.end()
        outcome.left_over = end(nodes)
        etcd.stop()
    outcome.ended = time.time()
    return outcome


def stopped(number: int, _: object) -> None:
    raise KeyboardInterrupt(f"signal {number}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="where everything goes (default: demo-out)")
    out: Path = parser.parse_args().out.resolve()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stopped)
    fresh(out)
    try:
        outcome = perform(out, Board(STEPS))
    except HealthError as e:
        print(e, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; nothing is left running", file=sys.stderr)
        return 130
    write(out, outcome)
    tell(out, outcome)
    return 0 if outcome.holds else 1


if __name__ == "__main__":
    sys.exit(main())
