"""A job and a plan as a test writes them down."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class JobFiles:
    """A job as engines are given it."""

    spec: Mapping[str, Any]
    data_path: Path
    num_layers: int
    is_tied: bool = False
    """Whether the hosts of the last layer hold the first one too."""
    evaluation_data_path: Path | None = None

    @property
    def num_steps(self) -> int:
        return int(self.spec["training"]["steps"])


@dataclass(frozen=True)
class Pipeline:
    """Stages as (engine name, number of layers), and the microbatches of the pipeline.

    `in_flight` are those of the step in flight, for a pipeline that keeps it; `keeps` is for one
    that keeps its assignment after a commit.
    """

    stages: Sequence[tuple[str, int]]
    microbatches: Sequence[int]
    in_flight: Sequence[int] = ()
    keeps: bool = False
