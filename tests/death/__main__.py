"""The figures of every kind of death: `python -m tests.death`.  Ends with 0 only if all bounds held."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.death.drill import deaths


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="death-") as tmp:
        result = deaths(Path(tmp) / "hosts")
    for name, figure in result.figures.items():
        print(f"{name}  {figure:.2f}" if isinstance(figure, float) else f"{name}  {figure}")
    for wrong in result.wrong:
        print(f"WRONG: {wrong}")
    print(f"{len(result.figures)} figures, {len(result.wrong)} bounds broken")
    return 1 if result.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
