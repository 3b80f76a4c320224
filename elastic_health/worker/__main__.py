"""`python -u -m elastic_health.worker [-m] script args…`: how the agent starts a worker."""

import sys

from elastic_health.worker.boot_os import main

if __name__ == "__main__":
    main(sys.argv[1:])
