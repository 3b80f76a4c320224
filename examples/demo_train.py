"""What the demo's nodes run: `train_bytes.py` as it is, with a hook at each step's beginning for the demo's purposes.

DEMO_ORDERS/hang.<generation>.<rank>    this rank falls asleep here, before the step's first collective
DEMO_ORDERS/brisk                       from now on a step takes no longer than it takes
DEMO_STEP_S                             until then a step takes at least so long, as larger models' steps do: so
                                        there is time to watch, on fast machines too
DEMO_ORDERS/pid.<generation>.<rank>     written at the start: which process is that rank
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from train_bytes import arguments, train


def main() -> None:
    orders, least_s = Path(os.environ["DEMO_ORDERS"]), float(os.environ["DEMO_STEP_S"])
    me = f"{os.environ.get('ELASTIC_HEALTH_GENERATION', '0')}.{os.environ.get('RANK', '0')}"
    hang, brisk = orders / f"hang.{me}", orders / "brisk"
    (orders / f"pid.{me}").write_text(str(os.getpid()))
    last_s = time.monotonic()

    def at_step(step: int) -> None:
        nonlocal last_s
        del step
        while hang.exists():
            time.sleep(0.5)
        if not brisk.exists():
            time.sleep(max(0.0, last_s + least_s - time.monotonic()))
        last_s = time.monotonic()

    train(arguments(None), at_step)


if __name__ == "__main__":
    main()
