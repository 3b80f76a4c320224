"""`python -m elastic_health.rendezvous.table_os > docs/STATES.md`: write the drawing of `table` to standard output."""

from __future__ import annotations

import sys

from elastic_health.rendezvous.table import drawing

if __name__ == "__main__":
    sys.stdout.write(drawing())
