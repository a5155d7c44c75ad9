"""Model profiles as files: the JSON of `planaria profile` and `planaria plan --profile`."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_planner.cost.profile import Hardware, Layer, ModelProfile, NodeKind, invalid_profile

API_VERSION = "planaria/v1"
KIND = "ModelProfile"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Width = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,5}$")]
Seconds = dict[Width, float]


class _Layer(_Model):
    name: str
    forward_seconds: Seconds
    backward_seconds: Seconds
    parameter_bytes: int
    state_bytes: int
    activation_bytes: int
    output_bytes: int


class _NodeKind(_Model):
    name: str
    accelerators_per_node: int
    accelerator_memory_bytes: int
    relative_speed: float = 1.0


class _Hardware(_Model):
    node_kinds: tuple[_NodeKind, ...]
    intra_node_bytes_per_second: float
    inter_node_bytes_per_second: float
    link_latency_seconds: float


class _File(_Model):
    api_version: Literal["planaria/v1"]
    kind: Literal["ModelProfile"]
    microbatch_size: int
    hardware: _Hardware
    layers: tuple[_Layer, ...]


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
        json.loads(text)  # says better than the next line where it is not JSON
        file = _File.model_validate_json(text)
    except json.JSONDecodeError as error:
        raise invalid_profile("", f"not JSON: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        problem = first["msg"][:1].lower() + first["msg"][1:]
        raise invalid_profile(_path(first["loc"]), problem) from None
    hardware = file.hardware
    return ModelProfile(
        microbatch_size=file.microbatch_size,
        hardware=Hardware(
            node_kinds=tuple(NodeKind(**kind.model_dump()) for kind in hardware.node_kinds),
            intra_node_bytes_per_second=hardware.intra_node_bytes_per_second,
            inter_node_bytes_per_second=hardware.inter_node_bytes_per_second,
            link_latency_seconds=hardware.link_latency_seconds,
        ),
        layers=tuple(_layer(layer) for layer in file.layers),
    )


def format_profile(profile: ModelProfile) -> str:
    """Return a profile as the JSON that `parse_profile` reads."""
    hardware = profile.hardware
    body: dict[str, Any] = {
        "api_version": API_VERSION,
        "kind": KIND,
        "microbatch_size": profile.microbatch_size,
        "hardware": {
            "node_kinds": [
                {
                    "name": kind.name,
                    "accelerators_per_node": kind.accelerators_per_node,
                    "accelerator_memory_bytes": kind.accelerator_memory_bytes,
                    "relative_speed": kind.relative_speed,
                }
                for kind in hardware.node_kinds
            ],
            "intra_node_bytes_per_second": hardware.intra_node_bytes_per_second,
            "inter_node_bytes_per_second": hardware.inter_node_bytes_per_second,
            "link_latency_seconds": hardware.link_latency_seconds,
        },
        "layers": [
            {
                "name": layer.name,
                "forward_seconds": {str(g): s for g, s in sorted(layer.forward_seconds.items())},
                "backward_seconds": {str(g): s for g, s in sorted(layer.backward_seconds.items())},
                "parameter_bytes": layer.parameter_bytes,
                "state_bytes": layer.state_bytes,
                "activation_bytes": layer.activation_bytes,
                "output_bytes": layer.output_bytes,
            }
            for layer in profile.layers
        ],
    }
    return json.dumps(body, indent=2) + "\n"


def _layer(layer: _Layer) -> Layer:
    return Layer(
        name=layer.name,
        forward_seconds={int(g): seconds for g, seconds in layer.forward_seconds.items()},
        backward_seconds={int(g): seconds for g, seconds in layer.backward_seconds.items()},
        parameter_bytes=layer.parameter_bytes,
        state_bytes=layer.state_bytes,
        activation_bytes=layer.activation_bytes,
        output_bytes=layer.output_bytes,
    )


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part != "[key]":
            path += f".{part}" if path else part
    return path
