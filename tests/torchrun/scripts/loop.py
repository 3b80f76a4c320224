"""A worker without torch: logs what it is, then runs until told otherwise by files in $RUN_DIR.

`finish`: all end with 0.  `die.PID`: that one ends with the status in the file.  `linger.NODE`: that node's workers go
on for so many seconds after `finish`.  The time stamp of `alive.PID` says until when a worker ran.
"""

import json
import os
import sys
import time

RUN = os.environ["RUN_DIR"]
LOG = os.open(os.path.join(RUN, "events.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
NODE = os.environ.get("ELASTIC_HEALTH_NODE", "")
KEPT = (
    "RANK",
    "LOCAL_RANK",
    "ROLE_",
    "GROUP_",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_",
    "TORCHELASTIC_",
    "TORCH_NCCL_",
    "CUDA_",
    "OMP_",
)


def log(ev: str, **more: object) -> None:
    env = os.environ
    event = {
        "ev": ev,
        "t": time.time(),
        "pid": os.getpid(),
        "node": NODE,
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


log("boot", argv=sys.argv[1:], env={k: v for k, v in os.environ.items() if k.startswith(KEPT)})
alive = os.path.join(RUN, f"alive.{os.getpid()}")
open(alive, "w").close()
while not told("finish"):
    os.utime(alive)
    code = told(f"die.{os.getpid()}")
    if code:
        log("dies")
        sys.exit(int(code))
    time.sleep(0.02)
log("finishes")
time.sleep(float(told(f"linger.{NODE}") or 0))
log("exits")
