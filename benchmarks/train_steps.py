"""The training that the recovery benchmark breaks: an ordinary script that knows nothing of the launcher above it.

A small regression on gloo: gradients are averaged by hand, rank 0 saves a checkpoint every few steps, a start resumes from
it.  Written down in $BENCH_DIR/events.jsonl, one whole line a write: boot (before torch is imported), init, step, hang.
A rank hangs before its next collective when `hang.PID` appears.  Plain SGD: torch.optim would cost each launcher seconds of
imports that say nothing about recovery.
"""

import json
import os
import time

FOLDER = os.environ["BENCH_DIR"]
LOG = os.open(os.path.join(FOLDER, "events.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def note(ev: str, **more: object) -> None:
    at = {"ev": ev, "t": time.time(), "pid": os.getpid(), "agent": int(os.environ["BENCH_AGENT"])}
    os.write(LOG, (json.dumps({**at, "rank": int(os.environ["RANK"]), "world": int(os.environ["WORLD_SIZE"]), **more}) + "\n").encode())


note("boot")

import datetime  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

CHECKPOINT = os.path.join(FOLDER, "checkpoint.pt")
EVERY_STEPS = 10
HANG = os.path.join(FOLDER, f"hang.{os.getpid()}")


def restore(model: torch.nn.Module) -> int:
    """The newest checkpoint's state, the same on all ranks, and its step."""
    step = torch.zeros(1)
    if dist.get_rank() == 0 and os.path.exists(CHECKPOINT):
        saved = torch.load(CHECKPOINT, weights_only=True)
        model.load_state_dict(saved["model"])
        step[0] = saved["step"]
    dist.broadcast(step, 0)
    for p in model.parameters():
        dist.broadcast(p.data, 0)
    return int(step)


def save(model: torch.nn.Module, step: int) -> None:
    torch.save({"model": model.state_dict(), "step": step}, CHECKPOINT + ".part")
    os.replace(CHECKPOINT + ".part", CHECKPOINT)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=float(os.environ["BENCH_GLOO_TIMEOUT_S"])))
    note("init")
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64))
    step, pause_s = restore(model), float(os.environ["BENCH_STEP_S"])
    while True:
        time.sleep(pause_s)
        x = torch.randn(16, 64)
        model.zero_grad()
        (model(x) - x).pow(2).mean().backward()
        if os.path.exists(HANG):
            note("hang", step=step)
            while True:
                time.sleep(3600)
        with torch.no_grad():
            for p in model.parameters():
                assert p.grad is not None
                dist.all_reduce(p.grad)
                p.sub_(p.grad, alpha=0.01 / dist.get_world_size())
        step += 1
        if step % EVERY_STEPS == 0 and dist.get_rank() == 0:
            save(model, step)
        note("step", step=step)


main()
