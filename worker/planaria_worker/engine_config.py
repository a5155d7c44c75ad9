"""What an agent tells an engine when it starts it: a JSON file in the engine's own folder.

    python -m planaria_worker.engine --config FILE

Nothing here imports torch: the agent writes the file, the engine reads it.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.logging import LogFormat, LogLevel
from planaria_common.version import PROTOCOL_VERSION

AcceleratorKind = Literal["cpu", "cuda"]
Transport = Literal["nccl", "gloo", "gloo_via_host"]
"""What moves tensors between engines. With gloo, which sums, a pipeline's messages go over
connections of our own. Both move tensors of CPUs alone: those of CUDA devices go by way of host
memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything an engine is given; it reads no other setting."""

    __pydantic_config__: ClassVar = ConfigDict(
        extra="forbid", strict=True, ser_json_inf_nan="constants"
    )

    protocol_version: int
    """That of whoever wrote the file: engine and agent must speak the same."""
    engine_id: str
    """Given by the coordinator and never reused: `<job>/<node>/<accelerator>/<n>`."""
    job_id: str
    generation: int
    """Generation of the Prepare directive: older directives are refused from the start."""
    prepare_directive_id: str
    """Answered with Prepared when the engine is warm; empty: nobody waits for it."""
    job_spec: str
    """The job file, as JSON."""
    job_secret: str
    """Shared by the engines of the job; a peer must show it before it is served."""
    accelerator: int = 0
    """Index of the accelerator on the node."""
    accelerator_kind: AcceleratorKind = "cpu"
    transport: Transport = "gloo"
    """The same for all engines of the job."""
    advertise_address: str = "127.0.0.1"
    """Where peers reach this engine; it listens there and nowhere else."""
    socket_path: str
    """Unix socket that the engine binds for its agent."""
    data_path: str
    """Token file that the agent made from the job's data."""
    data_digest: str = ""
    """SHA-256 of the contents of the data and tokenizer files, as the agent found them."""
    evaluation_data_path: str = ""
    """Token file of `evaluation.data`; empty: the job has none."""
    initial_path: str = ""
    """Of the job's initial state, as its first engines found it; empty: training begins from the
    seed, or this is one of them."""
    initial_step: int = 0
    """Number of steps in the initial state."""
    initial_sha256: str = ""
    """Of the manifest or the weights of the initial state, hexadecimal."""
    initial_tokens: int = 0
    """Tokens seen in the steps of the initial state."""
    forward_flops: tuple[int, ...] = ()
    """Operations of each layer's forward pass, as another engine has counted them; empty: this one
    counts."""
    lease_seconds: float = 10.0
    """How long the engine goes on before the first Lease of its agent."""
    unreachable_timeout_seconds: float = 0.0
    """How long the engine keeps its layers after that, for an agent to come; it does nothing with
    them meanwhile."""
    progress_deadline_seconds: float = 0.0
    """How long the training thread may take for an action at least before it is taken to hang; 0:
    nobody looks."""
    log_format: LogFormat = "json"
    log_level: LogLevel = "info"

    def dump(self, path: Path) -> None:
        """Writes the file so that only its owner can read it: it holds the job's secret."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_FORMAT.dump_json(self, indent=2))

    @classmethod
    def load(cls, path: Path) -> "EngineConfig":
        """Reads the file.

        Raises:
            InvalidArgumentError: the file cannot be read, or a field is missing, unknown or of a
                wrong type; names it.
            PlanariaError: VERSION_MISMATCH: a build that speaks another protocol wrote it.
        """
        try:
            config = _FORMAT.validate_json(path.read_bytes())
        except OSError as error:
            raise _invalid("config", f"{path}: {error}") from None
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(map(str, first["loc"])) or "config"
            raise _invalid(field, f"{path}: {field}: {first['msg']}") from None
        if config.protocol_version != PROTOCOL_VERSION:
            raise PlanariaError(
                ErrorReason.VERSION_MISMATCH,
                f"{path}: it is of protocol {config.protocol_version}, this is {PROTOCOL_VERSION}",
                {"expected": str(PROTOCOL_VERSION), "actual": str(config.protocol_version)},
            )
        return config


_FORMAT = TypeAdapter(EngineConfig)


def _invalid(field: str, message: str) -> PlanariaError:
    return PlanariaError(ErrorReason.INVALID_ARGUMENT, message, {"field": field})
