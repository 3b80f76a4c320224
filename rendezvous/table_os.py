"""`python -m elastic_health.rendezvous.table_os docs`: draw the phases anew in STATES.md and ARCHITECTURE.md of that folder."""

from __future__ import annotations

import sys
from pathlib import Path

from elastic_health.rendezvous.state import WAYS
from elastic_health.rendezvous.table import drawing, redrawn


def main(folder: Path) -> int:
    """Write both pages; says how many of them changed."""
    pages = {folder / "STATES.md": drawing(), folder / "ARCHITECTURE.md": redrawn((folder / "ARCHITECTURE.md").read_text())}
    changed = [path for path, text in pages.items() if not path.exists() or path.read_text() != text]
    for path in changed:
        path.write_text(pages[path])
    names = ", ".join(path.name for path in changed) or "none"
    print(f"{len(WAYS)} phases, {sum(map(len, WAYS.values()))} ways between them; pages that changed: {names}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs")))
