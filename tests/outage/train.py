"""A worker that trains with committed checkpoints, on real gloo: what the outage drill watches.

Each rank appends one line a completed step to `steps.NODE.PID` in $RUN_DIR: step, when (`time.time()`), and how long its body took.
Files in $RUN_DIR are orders: `finish` ends all at the same step, `die.PID` ends that worker with the status in it.
EVERY: steps from one checkpoint to the next; MODE: `sync` or `async`; PACE: seconds that each step sleeps.
"""

import datetime
import json
import os
import sys
import time

RUN = os.environ["RUN_DIR"]
LOG = os.open(os.path.join(RUN, "events.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
NODE = os.environ.get("ELASTIC_HEALTH_NODE", "")
BATCH = 12


def log(ev: str, **more: object) -> None:
    env = os.environ
    event = {
        "ev": ev,
        "t": time.time(),
        "pid": os.getpid(),
        "node": NODE,
        "rank": int(env["RANK"]),
        "world": int(env["WORLD_SIZE"]),
        "restarts": int(env["TORCHELASTIC_RESTART_COUNT"]),
        "generation": int(env.get("ELASTIC_HEALTH_GENERATION", -1)),
        **more,
    }
    os.write(LOG, (json.dumps(event) + "\n").encode())


def told(name: str) -> str:
    try:
        with open(os.path.join(RUN, name)) as f:
            return f.read()
    except OSError:
        return ""


log("boot")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import elastic_health as eh  # noqa: E402

torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=600))
world = dist.get_world_size()
torch.manual_seed(1)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
run = eh.init()
dataset = torch.arange(64.0).reshape(4, 16)
stream = eh.SampleStream(len(dataset), global_batch=BATCH, seed=7)
loader = eh.Loader(dataset, stream)
state = eh.TrainState(model=model, optimizer=optimizer, stream=stream)
checkpoints = eh.Checkpoints(
    os.path.join(RUN, "ckpt"), state, every=int(os.environ.get("EVERY", "50")), keep=100_000, mode=os.environ.get("MODE", "sync")
)
steps = os.open(os.path.join(RUN, f"steps.{NODE}.{os.getpid()}"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
pace = float(os.environ.get("PACE", "0.02"))

for step, batch in run.steps(loader, checkpoints):
    began = time.time()
    if step == run.plan.step + 1:
        log("trains", step=step)
    code = told(f"die.{os.getpid()}")
    if code:
        log("dies")
        sys.exit(int(code))
    time.sleep(pace)
    optimizer.zero_grad()
    loss = model(batch.data.float()).square().mean() * batch.weight
    loss.backward()
    told_all = torch.cat([p.grad.flatten() for p in model.parameters()] + [torch.tensor([1.0 if told("finish") else 0.0])])
    dist.all_reduce(told_all)
    optimizer.step()
    if told_all[-1].item() > 0:
        run.stop()
    now = time.time()
    os.write(steps, f"{step} {now:.6f} {now - began:.6f}\n".encode())
log("exits", step=run.step)
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)  # the interpreter's own end takes seconds on a busy machine, and is not what is watched here
