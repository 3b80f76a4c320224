"""Stands in for the Python that runs the built-in benchmark: the two meet over TCP, and say what a table has of them.

`pair_stand_in.py TABLE …`: TABLE is a JSON file {"<host>+<host>": GB/s or a word}.  Words: `wrong`, `hang` (connected, never
done), `crash` (connected, then the second ends with status 3), `absent` (the second ends before it connects).
"""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

SIZES = (1048576, 4194304, 16777216, 67108864)


def say(**said: object) -> None:
    print(json.dumps(said), flush=True)


def meet(rank: int, endpoint: str, address: str) -> tuple[socket.socket, str]:
    host, _, port = endpoint.rpartition(":")
    if rank == 0:
        with socket.create_server((host, int(port))) as listener:
            connection, _ = listener.accept()
        return connection, connection.recv(100).decode()
    deadline = time.monotonic() + 30
    while True:
        try:
            connection = socket.create_connection((host, int(port)), timeout=5)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    connection.sendall(address.encode())
    return connection, host


def main(table: str, words: list[str]) -> int:
    said = dict(zip(words[2::2], words[3::2], strict=True))
    rank, address = int(said["--rank"]), said["--address"]
    until = float(said["--until"])
    known = json.loads(Path(table).read_text())
    say(started=True, left_s=until - time.monotonic())
    if rank == 1:
        host = said["--endpoint"].rpartition(":")[0]
        if known.get("+".join(sorted((host, address)))) == "absent":
            print("no module named torch", file=sys.stderr)
            return 3
    connection, partner = meet(rank, said["--endpoint"], address)
    told = known.get("+".join(sorted((partner, address))), 10.0)
    say(connected=True, left_s=until - time.monotonic())
    if told == "hang":
        time.sleep(600)
    if told == "crash":
        if rank:
            return 3
        connection.recv(1)
        say(error="Connection closed by peer")
        return 1
    for size in SIZES:
        say(size=size, busbw=10.0 if told == "wrong" else told, wrong=int(told == "wrong"))
    say(done=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
