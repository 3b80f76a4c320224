"""A worker that saves checkpoints in a folder and ends after a few steps: `saves.py FOLDER [nobody]`.

With `nobody` the process gives root's rights up first, so that permissions count.
"""

import json
import os
import sys
import time

RUN = os.environ["RUN_DIR"]
LOG = os.open(os.path.join(RUN, "events.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def log(ev: str, **more: object) -> None:
    event = {"ev": ev, "t": time.time(), "pid": os.getpid(), "rank": int(os.environ["RANK"]), "world": int(os.environ["WORLD_SIZE"])}
    event |= {"generation": int(os.environ["ELASTIC_HEALTH_GENERATION"]), "node": os.environ["ELASTIC_HEALTH_NODE"], **more}
    os.write(LOG, (json.dumps(event) + "\n").encode())


log("boot")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import elastic_health as eh  # noqa: E402

torch.set_num_threads(1)
dist.init_process_group("gloo")
run = eh.init()
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
data = [torch.full((4,), float(i)) for i in range(24)]
stream = eh.SampleStream(len(data), global_batch=4, seed=1, epochs=1)
state = eh.TrainState(model=model, optimizer=opt, stream=stream)
Checkpoints = eh.Checkpoints  # imported while this process may still read everything
if "nobody" in sys.argv[2:]:
    os.setresuid(65534, 65534, 65534)
checkpoints = Checkpoints(sys.argv[1], state, every=2)
for _step, batch in run.steps(eh.Loader(data, stream), checkpoints):
    opt.zero_grad()
    (model(batch.data).square().mean() * batch.weight).backward()
    opt.step()
log("saved")
dist.destroy_process_group()
