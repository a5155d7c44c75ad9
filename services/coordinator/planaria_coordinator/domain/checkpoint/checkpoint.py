"""A checkpoint while it is made: what is written, and by whom the rest is."""

import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Final

from planaria_coordinator.domain.engines.directive import LayerWritten

_FOLDER: Final = re.compile(r"step-([0-9]{8,})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A version that is being written (no sealer), or verified and sealed."""

    version: int
    """Number of committed steps."""
    deadline_seconds: float
    """When it is given up unless another layer is written, on the monotonic clock."""
    writers: dict[int, str] = field(default_factory=dict)
    """By layer: the engine that has a copy of it."""
    written: dict[int, LayerWritten] = field(default_factory=dict)
    given_back: dict[str, str] = field(default_factory=dict)
    """By engine that does not write its layers, since its disk hangs: what it said."""
    sealer: str = ""
    """The engine that seals it."""
    num_seals: int = 0
    """How many engines were asked to."""

    def missing(self, num_layers: int, engine_ids: Collection[str]) -> tuple[int, ...]:
        """Return the layers that are not written and that none of these engines writes."""
        return tuple(
            layer
            for layer in range(num_layers)
            if layer not in self.written and self.writers.get(layer) not in engine_ids
        )

    def layers_of(self, engine_id: str) -> tuple[int, ...]:
        """Return the layers that an engine has yet to write."""
        mine = (layer for layer, writer in self.writers.items() if writer == engine_id)
        return tuple(sorted(set(mine) - self.written.keys()))

    def without_writer(self, engine_id: str) -> "Checkpoint":
        """Return it without what an engine was to write."""
        writers = {layer: e for layer, e in self.writers.items() if e != engine_id}
        return replace(self, writers=writers)

    def is_written(self, num_layers: int) -> bool:
        """Return whether all layers are."""
        return len(self.written) == num_layers


def first_due(initial_steps: int, *, every_steps: int, num_steps: int) -> int:
    """Return the first version that is written of a job that begins at `base_steps`."""
    return min((initial_steps // every_steps + 1) * every_steps, num_steps)


def version_of(path: str) -> int | None:
    """Return the version that a complete checkpoint's folder is named after; None for others."""
    named = _FOLDER.fullmatch(PurePosixPath(path).name)
    return int(named[1]) if named else None
