"""Stands in for a worker whose NCCL watchdog gives up: lines of its form on stderr, then SIGABRT, when `abort.PID` appears."""

import json
import os
import time

RUN = os.environ["RUN_DIR"]
LOG = os.open(os.path.join(RUN, "events.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
RANK = int(os.environ["RANK"])
WORK = "WorkNCCL(SeqNum=41, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=5000)"
SAYS = f"""\
[rank{RANK}]:[E1130 06:00:00.111111111 ProcessGroupNCCL.cpp:690] [Rank {RANK}] Watchdog caught collective operation timeout: {WORK} ran for 5003 milliseconds before timing out.
[rank{RANK}]:[E1130 06:00:00.222222222 ProcessGroupNCCL.cpp:2299] [PG ID 0 PG GUID 0(default_pg) Rank {RANK}]  failure detected by watchdog at work sequence id: 41 PG status: last enqueued work: 42, last completed work: 40
[rank{RANK}]:[E1130 06:00:01.333333333 ProcessGroupNCCL.cpp:744] [Rank {RANK}] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.
[rank{RANK}]:[E1130 06:00:01.444444444 ProcessGroupNCCL.cpp:758] [Rank {RANK}] To avoid data inconsistency, we are taking the entire process down.
terminate called after throwing an instance of 'c10::DistBackendError'
"""


def log(ev: str) -> None:
    env = os.environ
    event = {
        "ev": ev,
        "t": time.time(),
        "pid": os.getpid(),
        "node": env["ELASTIC_HEALTH_NODE"],
        "rank": RANK,
        "world": int(env["WORLD_SIZE"]),
    }
    event |= {"generation": int(env["ELASTIC_HEALTH_GENERATION"]), "restarts": int(env["TORCHELASTIC_RESTART_COUNT"])}
    os.write(LOG, (json.dumps(event) + "\n").encode())


log("boot")
while not os.path.exists(os.path.join(RUN, "finish")):
    if os.path.exists(os.path.join(RUN, f"abort.{os.getpid()}")):
        log("aborts")
        os.write(2, SAYS.encode())
        os.abort()
    time.sleep(0.02)
