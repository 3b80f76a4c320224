"""Tells everything that a launcher may change about a worker, on both outputs and in the event log; ends as it is told.

Arguments: `exit N`, `exit1 N` (rank 1 does, the others go on), `raise` (under torch's @record), `kill`, nothing.
"""

import json
import os
import signal
import sys
import time

rank, local = os.environ["RANK"], os.environ["LOCAL_RANK"]
event = {
    "ev": "boot",
    "t": time.time(),
    "pid": os.getpid(),
    "rank": int(rank),
    "world": int(os.environ["WORLD_SIZE"]),
    "generation": int(os.environ.get("ELASTIC_HEALTH_GENERATION", -1)),
    "env": dict(os.environ),
    "argv": sys.argv[1:],
    "name": __name__,
    "path": sys.path[0],
    "signals": {s.name: str(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)},
    "threads": len(os.listdir("/proc/self/task")),
}
with open(os.path.join(os.environ["RUN_DIR"], "events.jsonl"), "a") as log:
    log.write(json.dumps(event) + "\n")
# One write a line, or two ranks' lines mix on a shared terminal.
os.write(1, f"out of rank {rank}\n".encode())
os.write(2, f"err of rank {rank}\n".encode())
os.write(1, f"loss of rank {rank}\n".encode())
wish = sys.argv[1:]
if wish[:1] == ["raise"]:
    from torch.distributed.elastic.multiprocessing.errors import record

    @record
    def main() -> None:
        raise LookupError(f"batch 17 of rank {rank}")

    main()
if wish[:1] == ["kill"]:
    os.kill(os.getpid(), signal.SIGKILL)
if wish[:1] == ["exit1"] and rank != "1":
    time.sleep(60)
if wish[:1] == ["exit"] or (wish[:1] == ["exit1"] and rank == "1"):
    sys.exit(int(wish[1]))
