"""Model profiles as files: the JSON of `planaria profile` and `planaria plan --profile`."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_planner.cost.profile import Hardware, Layer, ModelProfile, invalid_profile


class _File(BaseModel):
    """A profile as its file has it. The configuration holds for the dataclasses within as well."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    api_version: Literal["planaria/v1"]
    kind: Literal["ModelProfile"]
    microbatch_size: int
    hardware: Hardware
    layers: tuple[Layer, ...]


def read_profile(path: Path) -> ModelProfile:
    """Read a profile from a file.

    Raises:
        PlanariaError: INVALID_PROFILE, naming the file and the field.
    """
    try:
        return parse_profile(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise _in_file(path, "", f"cannot be read: {reason}") from None
    except PlanariaError as error:
        raise _in_file(path, error.metadata["field"], error.message) from None


def _in_file(path: Path, field: str, message: str) -> PlanariaError:
    return PlanariaError(
        ErrorReason.INVALID_PROFILE, f"{path}: {message}", {"field": field, "path": str(path)}
    )


def parse_profile(text: str) -> ModelProfile:
    """Read a profile from JSON.

    Raises:
        PlanariaError: INVALID_PROFILE, naming the field.
    """
    try:
        document = json.loads(text)  # says better than the next line where it is not JSON
        file = _File.model_validate_json(text)
    except json.JSONDecodeError as error:
        raise invalid_profile("", f"not JSON: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        problem = first["msg"][:1].lower() + first["msg"][1:]
        if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            problem = "there is no such field"
        raise invalid_profile(_path(first["loc"]), problem) from None
    for field, width in _widths(document):
        if not _WIDTH.fullmatch(width):
            raise invalid_profile(
                field, f"{width!r} is not a number of accelerators: write 1, 2, 4"
            )
    return ModelProfile(
        microbatch_size=file.microbatch_size, hardware=file.hardware, layers=file.layers
    )


def format_profile(profile: ModelProfile) -> str:
    """Return a profile as the JSON that `parse_profile` reads."""
    body = {
        "api_version": "planaria/v1",
        "kind": "ModelProfile",
        "microbatch_size": profile.microbatch_size,
        "hardware": asdict(profile.hardware),
        "layers": [_layer(layer) for layer in profile.layers],
    }
    return json.dumps(body, indent=2) + "\n"


def _layer(layer: Layer) -> dict[str, Any]:
    values = {field.name: getattr(layer, field.name) for field in fields(layer)}
    return {
        name: dict(sorted(value.items())) if isinstance(value, Mapping) else value
        for name, value in values.items()
    }


_WIDTH = re.compile("[1-9][0-9]{0,5}")
"""How a width is written: "01" and "1_0" would be read as numbers too, and "1" and "01" as one."""


def _widths(document: Any) -> Iterator[tuple[str, str]]:
    """Yield each width of a profile's file as it is written, after the path of its field."""
    for index, layer in enumerate(document["layers"]):
        for name in ("forward_seconds", "backward_seconds"):
            for width in layer[name]:
                yield f"layers[{index}].{name}.{width}", width


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part != "[key]":
            path += f".{part}" if path else part
    return path
