"""As `loop.py`, with a child in a session of its own that would outlive everybody (a data-loader worker that went astray)."""

import json
import os
import subprocess
import sys
import time

CHILD = "import time\nwhile True: time.sleep(1)"
child = subprocess.Popen([sys.executable, "-c", CHILD], start_new_session=True)
with open(os.path.join(os.environ["RUN_DIR"], "events.jsonl"), "a") as log:
    log.write(
        json.dumps(
            {"ev": "child", "t": time.time(), "pid": child.pid, "node": os.environ["ELASTIC_HEALTH_NODE"], "generation": 0, "world": 0}
        )
        + "\n"
    )
exec(compile(open(os.path.join(os.path.dirname(__file__), "loop.py")).read(), "loop.py", "exec"))
