"""A training on the public API that commits every other step into $RUN_DIR/ckpt, for as long as nobody says `finish`.

Events and orders as in `loop.py`.  `slow`: how long a step takes, in seconds.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

import elastic_health as eh

RUN = os.environ["RUN_DIR"]
LOG = os.open(os.path.join(RUN, "events.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def log(ev: str, **more: object) -> None:
    env = os.environ
    who = {"rank": int(env["RANK"]), "world": int(env["WORLD_SIZE"]), "restarts": int(env["TORCHELASTIC_RESTART_COUNT"])}
    where = {"node": env.get("ELASTIC_HEALTH_NODE", ""), "generation": int(env.get("ELASTIC_HEALTH_GENERATION", -1))}
    os.write(LOG, (json.dumps({"ev": ev, "t": time.time(), "pid": os.getpid(), **who, **where, **more}) + "\n").encode())


def told(name: str) -> str:
    try:
        with open(os.path.join(RUN, name)) as f:
            return f.read()
    except OSError:
        return ""


class Samples:
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.tensor([float(i % 7)])


log("boot")
dist.init_process_group("gloo")
torch.manual_seed(1)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
run = eh.init()
dataset = Samples()
stream = eh.SampleStream(len(dataset), global_batch=2, seed=7)
state = eh.TrainState(model=model, optimizer=optimizer, stream=stream)
checkpoints = eh.Checkpoints(os.path.join(RUN, "ckpt"), state, every=2)
for step, batch in run.steps(eh.Loader(dataset, stream), checkpoints):
    time.sleep(float(told("slow") or 0.05))
    code = told(f"die.{os.getpid()}")
    if code:
        log("dies")
        sys.exit(int(code))
    optimizer.zero_grad()
    (model(batch.data).square().mean() * batch.weight).backward()
    end = torch.tensor([1.0 if told("finish") else 0.0])
    dist.all_reduce(end, dist.ReduceOp.MAX)
    optimizer.step()
    log("step", step=step)
    if end.item():
        run.stop()
dist.destroy_process_group()
log("exits")
