"""The agent's settings: `planaria-worker --help` lists them."""

import platform
import re
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from planaria_common.settings import CommaSeparated, ServiceSettings

_LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}=[^=,\x00-\x1f]{0,63}")


class WorkerSettings(ServiceSettings):
    """What an agent is given at its start."""

    model_config = SettingsConfigDict(env_prefix="PLANARIA_WORKER_")

    coordinator: CommaSeparated = Field(
        min_length=1,
        description="HOST:PORT of the coordinator's gRPC endpoint; several, comma-separated, are "
        "tried in turn.",
    )
    node_id: str = Field(
        default_factory=platform.node,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
        description="The node's name, unique in the cluster.",
    )
    data_dir: Path = Field(
        default=Path.home() / ".planaria" / "worker",
        description="Folder of engines' logs and of prepared data; one agent each.",
    )
    advertise_address: str = Field(
        default="127.0.0.1", description="Where other nodes reach this node's engines."
    )
    num_accelerators: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Accelerators to offer (CPU ranks on a machine without).",
    )
    accelerator_kind: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="auto takes CUDA where an NVIDIA driver is loaded."
    )
    transport: Literal["auto", "nccl", "gloo"] = Field(
        default="auto",
        description="What moves tensors between engines: auto takes nccl with CUDA, else gloo. "
        "With CUDA, gloo goes by way of host memory, for engines that share a GPU.",
    )
    accelerator_memory_bytes: int = Field(
        default=0,
        ge=0,
        description="Memory of one accelerator; 0 asks the machine, and takes nine tenths of what "
        "a GPU has.",
    )
    drain_grace_seconds: float = Field(
        default=30,
        ge=0,
        description="How long SIGTERM lets jobs hand over what they have on this node before its "
        "engines end; a second signal ends them at once, and so does SIGINT.",
    )
    label: CommaSeparated = Field(
        default=(),
        description="key=value, for custom schedulers and `planaria nodes list`; several, "
        "comma-separated or repeated.",
    )

    @property
    def labels(self) -> dict[str, str]:
        """The labels by key."""
        return dict(label.split("=", 1) for label in self.label)

    @field_validator("label")
    @classmethod
    def _each_has_a_key(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        keys = [label.partition("=")[0] for label in labels]
        for key, label in zip(keys, labels, strict=True):
            if not _LABEL.fullmatch(label):
                raise ValueError(f"{label!r} must be key=value, each at most 63 characters")
            if keys.count(key) > 1:
                raise ValueError(f"{key!r} is given {keys.count(key)} times")
        return labels
