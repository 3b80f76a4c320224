"""A worker without torch that has a handler of its own for SIGTERM: takes $TAKES_S seconds and ends with 0, or never ends.

`finish`: all end with 0.
"""

import json
import os
import signal
import sys
import time

RUN = os.environ["RUN_DIR"]
LOG = os.open(os.path.join(RUN, "events.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def log(ev: str) -> None:
    env = os.environ
    event = {
        "ev": ev,
        "t": time.time(),
        "pid": os.getpid(),
        "node": env.get("ELASTIC_HEALTH_NODE", ""),
        "rank": int(env["RANK"]),
        "world": int(env["WORLD_SIZE"]),
        "restarts": int(env["TORCHELASTIC_RESTART_COUNT"]),
        "generation": int(env.get("ELASTIC_HEALTH_GENERATION", -1)),
    }
    os.write(LOG, (json.dumps(event) + "\n").encode())


def leave(number: int, frame: object) -> None:
    log("signalled")
    takes = os.environ.get("TAKES_S", "")
    if takes:
        time.sleep(float(takes))
        log("saved")
        sys.exit(0)


signal.signal(signal.SIGTERM, leave)
log("boot")
while not os.path.exists(os.path.join(RUN, "finish")):
    time.sleep(0.02)
