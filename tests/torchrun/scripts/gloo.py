"""A worker that trains in earnest: one all-reduce a step over gloo.  Events and orders as in `loop.py`.

`finish`: all end together.  `hang.PID`: that one never enters the next collective.  `die.PID`: as there.
"""

import datetime
import json
import os
import sys
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


def told(name: str) -> str:
    try:
        with open(os.path.join(RUN, name)) as f:
            return f.read()
    except OSError:
        return ""


log("boot")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
log("init")
done = False
step = 0
while not done:
    time.sleep(0.05)
    code = told(f"die.{os.getpid()}")
    if code:
        log("dies")
        sys.exit(int(code))
    if told(f"hang.{os.getpid()}"):
        log("hangs")
        while True:
            time.sleep(3600)
    end = torch.tensor([1.0 if told("finish") else 0.0])
    dist.all_reduce(end, dist.ReduceOp.MAX)
    done = bool(end.item())
    step += 1
    log("step", step=step)
dist.destroy_process_group()
log("exits")
