"""Ends with status 3 in its first moment, as a script with a typing error would; with 0 once `cured` is there."""

import json
import os
import sys
import time

event = {"ev": "boot", "t": time.time(), "pid": os.getpid(), "rank": int(os.environ["RANK"]), "world": int(os.environ["WORLD_SIZE"])}
event |= {"generation": int(os.environ.get("ELASTIC_HEALTH_GENERATION", -1)), "restarts": int(os.environ["TORCHELASTIC_RESTART_COUNT"])}
with open(os.path.join(os.environ["RUN_DIR"], "events.jsonl"), "a") as log:
    log.write(json.dumps(event) + "\n")
if os.path.exists(os.path.join(os.environ["RUN_DIR"], "cured")):
    sys.exit(0)
print("crash: no such data set", file=sys.stderr)
sys.exit(3)
