"""`python -u -m elastic_health.worker [-m] script args…`: how the agent starts a worker.

A fresh process becomes `python -u [-m] script args…` itself by exec, with a site hook that starts the watching; a warm
one (`--warm`), which has done its imports, becomes the script in place.
"""

import sys

from elastic_health.worker.start_os import start

if __name__ == "__main__":
    if sys.argv[1:] == ["--warm"]:
        from elastic_health.worker.boot_os import warm

        warm()
    start(sys.argv[1:])
