"""What the sections of the YAML are made of: their base, and types with ranges that several of them share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

DAY_S = 86400.0
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
Seconds = Annotated[float, Field(ge=0.0, le=30 * DAY_S, allow_inf_nan=False)]
Short = Annotated[float, Field(ge=0.0, le=600.0, allow_inf_nan=False)]
SomeSeconds = Annotated[float, Field(ge=0.05, le=30 * DAY_S, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=1_000_000)]
Word = Annotated[str, Field(max_length=4096)]


class Section(BaseModel):
    """A section: unknown keys are mistakes, and no value is bent into another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def fields_of(section: Section) -> dict[str, Any]:
    """The values of a section by name."""
    return {name: getattr(section, name) for name in type(section).model_fields}
