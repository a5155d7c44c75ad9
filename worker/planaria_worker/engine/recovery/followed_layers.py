"""Layers that follow those of other engines, commit by commit, outside the store.

They become replicas only when the engine activates an assignment that needs them. Every update is
the one that the owners make, on the same sum: the bits are equal.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence

from torch import Tensor

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_worker.engine.commit_record import CommitRecord
from planaria_worker.engine.job import Job
from planaria_worker.engine.layers.copy import CommittedSum
from planaria_worker.engine.layers.layer_store import fill
from planaria_worker.engine.step.training_step import apply_sum
from planaria_worker.models.state import LayerState, empty_state

OnCommit = Callable[[CommitRecord], None]
"""Called with a commit once every layer has it, from the thread that updated the last layer."""


class FollowedLayers:
    """Keeps the states of followed layers; a `LayerFollower` calls it.

    Attributes:
        states: by layer; always the same objects, changed in place.
    """

    def __init__(self, job: Job, layers: Collection[int], on_commit: OnCommit) -> None:
        """Allocate nothing yet: `allocate` may take long."""
        self._job = job
        self._on_commit = on_commit
        self.states: dict[int, LayerState] = {}
        self._changed = threading.Condition()
        self._versions: dict[int, int | None] = dict.fromkeys(layers)
        self._records: dict[int, CommitRecord] = {}
        self._awaited = set(layers)
        self._end: Exception | None = None

    def allocate(self) -> None:
        """Allocate the layers; call it before any of them arrives."""
        job = self._job
        for layer in self._versions:
            self.states[layer] = empty_state(
                job.layouts[layer], device=str(job.device), compute_dtype=job.compute_dtype
            )

    def take_layer(
        self, layer: int, version: int, tensors: Mapping[str, Tensor], record: CommitRecord | None
    ) -> None:
        """Replace a layer."""
        fill(self._begin_change(layer), tensors)
        self._end_change(layer, version, record)

    def take_sum(self, committed: CommittedSum) -> None:
        """Apply a step, unless the layer already has it.

        Raises:
            ValueError: the layer is not at the step.
        """
        layer, record = committed.layer, committed.record
        version = self._versions[layer]
        if version is None or record.step > version:
            raise ValueError(f"step {record.step} of layer {layer} came at version {version}")
        if record.step == version:
            state = self._begin_change(layer)
            total = committed.total
            if total is not None:
                total = total.to(state.parameters.device)
            apply_sum(self._job, state, total, record)
            version += 1
        self._end_change(layer, version, record)

    def become_current(self, layers: Sequence[int]) -> None:
        """Note that these layers have caught up with their source."""
        with self._changed:
            self._awaited.difference_update(layers)
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """Note that nothing more will arrive."""
        with self._changed:
            self._end = self._end or error
            self._changed.notify_all()

    def release(self) -> None:
        """Drop the references to the layers."""
        self.states = {}

    def wait_until_current(self) -> None:
        """Wait until every layer has caught up with its source once.

        Raises:
            Exception: the one given to `fail`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._end is not None or not self._awaited)
            if self._end is not None:
                raise self._end

    def wait_for(self, version: int, timeout_seconds: float) -> None:
        """Wait until every layer is at a version, and accept nothing more.

        Raises:
            PlanariaError: UNAVAILABLE: some are late; names them.
            Exception: the one given to `fail`.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._end is not None or not self._behind(version), timeout_seconds
            )
            behind = self._behind(version)
            if behind and self._end is not None:
                raise self._end
            if behind:
                names = ", ".join(map(str, behind))
                raise PlanariaError(
                    ErrorReason.UNAVAILABLE,
                    f"layers {names} did not reach version {version} in time",
                    {"layers": names, "version": str(version)},
                )
            self._end = self._end or ValueError("the layers are taken")

    def _behind(self, version: int) -> list[int]:
        return [layer for layer, has in self._versions.items() if has != version]

    def _begin_change(self, layer: int) -> LayerState:
        with self._changed:
            if self._end is not None:
                raise self._end
            self._versions[layer] = None
            return self.states[layer]

    def _end_change(self, layer: int, version: int, record: CommitRecord | None) -> None:
        with self._changed:
            self._versions[layer] = version
            if record is not None:
                self._records[layer] = record
            self._changed.notify_all()
            newest = self._records.get(layer)
            is_common = newest is not None and all(
                self._versions[other] == newest.step + 1 and self._records.get(other) == newest
                for other in self._versions
            )
        if newest is not None and is_common:
            self._on_commit(newest)
