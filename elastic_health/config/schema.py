"""The JSON schema of the YAML file, for editors; `configs/schema.json` is its output, and a test keeps it current."""

from __future__ import annotations

import json
from typing import Any

from elastic_health.config.model import Config
from elastic_health.config.validate import ALIASES


def schema() -> dict[str, Any]:
    """JSON Schema, draft 2020-12."""
    out = Config.model_json_schema()
    out["title"] = "elastic-health configuration"
    restarts = out["$defs"]["RestartsSection"]["properties"]
    for alias, name in ALIASES.items():
        restarts[alias] = {**restarts[name], "title": alias, "description": f"the same as {name}"}
        restarts[alias].pop("default", None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **out}


def schema_text() -> str:
    """As it stands in `configs/schema.json`."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"
