"""A worker on the public API: trains over gloo, saves every $EVERY steps (default: never by itself), logs each step.

`finish`: all end together.  Events and orders as in `loop.py`.
"""

import datetime
import json
import os
import time

RUN = os.environ["RUN_DIR"]
LOG = os.open(os.path.join(RUN, "events.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def log(ev: str, **more: object) -> None:
    env = os.environ
    event = {
        "ev": ev,
        "t": time.time(),
        "pid": os.getpid(),
        "node": env.get("ELASTIC_HEALTH_NODE", ""),
        "rank": int(env["RANK"]),
        "world": int(env["WORLD_SIZE"]),
        "group": int(env["GROUP_RANK"]),
        "restarts": int(env["TORCHELASTIC_RESTART_COUNT"]),
        "generation": int(env.get("ELASTIC_HEALTH_GENERATION", -1)),
        **more,
    }
    os.write(LOG, (json.dumps(event) + "\n").encode())


log("boot")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import elastic_health as eh  # noqa: E402


class Numbers:
    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.tensor([i / 1e6])


torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
run = eh.init()
stream = eh.SampleStream(1_000_000, global_batch=4, seed=1)
loader = eh.Loader(Numbers(), stream)
state = eh.TrainState(model=model, optimizer=optimizer, stream=stream)
checkpoints = eh.Checkpoints(
    os.path.join(RUN, "checkpoints"), state, every=int(os.environ.get("EVERY", "1000000")), mode=os.environ.get("MODE", "sync")
)
for step, batch in run.steps(loader, checkpoints):
    optimizer.zero_grad()
    model(batch.data).mean().backward()
    optimizer.step()
    time.sleep(0.05)
    end = torch.tensor([float(os.path.exists(os.path.join(RUN, "finish")))])
    dist.all_reduce(end, dist.ReduceOp.MAX)
    log("step", step=step, position=stream.position)
    if end.item():
        run.stop()
dist.destroy_process_group()
log("exits")
