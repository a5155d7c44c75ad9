"""What the sections of a job file are made of: kinds of numbers, and what is said of wrong ones."""

import math
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError


def _refuse_truth_values(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticCustomError("number_type", "must be a number, not true or false")
    return value


Count = Annotated[int, Field(le=2**31 - 1), BeforeValidator(_refuse_truth_values)]
LayerCount = Annotated[int, Field(ge=1, le=1000), BeforeValidator(_refuse_truth_values)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1), BeforeValidator(_refuse_truth_values)]
Real = Annotated[float, BeforeValidator(_refuse_truth_values)]


EXPERT: dict[str, JsonValue] = {"expert": True}
"""Marks a field as an expert setting (`is_expert`)."""


def is_expert(field: FieldInfo) -> bool:
    """Whether a field is a setting that no job needs: for measurements of the engine itself."""
    return field.json_schema_extra == EXPERT


class Section(BaseModel):
    """A section of a job file: its fields do not change, and it has no others."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


def problem(field: str, message: str) -> PydanticCustomError:
    """Return what to raise when fields do not go together.

    Args:
        field: as the section names it, or `section.field` from another one.
        message: what is wrong, and what would be right.
    """
    # Braces in the text would be taken for placeholders: it travels as a value.
    return PydanticCustomError("job_problem", "{text}", {"field": field, "text": message})


def nearby_divisors(number: int, wanted: int) -> str:
    """Return the divisors of `number` next to `wanted`, below and above, in words."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    divisors = {*small, *(number // n for n in small)}
    below = max(n for n in divisors if n <= wanted)
    above = min((n for n in divisors if n >= wanted), default=below)
    return str(below) if below == above else f"{below} or {above}"
