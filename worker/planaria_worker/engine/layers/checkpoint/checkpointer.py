"""An engine's part in the checkpoints of its job."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from planaria_common.checkpoints import is_due
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.logging import get_logger
from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.layers.checkpoint.assignment import layers_to_write
from planaria_worker.engine.layers.checkpoint.errors import (
    CheckpointError,
    LateWriterError,
    checkpoint_failed,
)
from planaria_worker.engine.layers.checkpoint.layout import partial_folder
from planaria_worker.engine.layers.checkpoint.manifest import LayerEntry, Manifest
from planaria_worker.engine.layers.checkpoint.seal import Sealed, discard, seal
from planaria_worker.engine.layers.checkpoint.writer import CheckpointListener, Part, Writer
from planaria_worker.engine.layers.layer_store import LayerStore
from planaria_worker.engine.plan.plan_view import PlanView

_MAX_UNWRITTEN = 2
"""Unwritten versions whose copies may be in memory at once; the last version is exempt."""

_log = get_logger("checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlan:
    """Where and how often a job is checkpointed, and the job's part of the manifests."""

    root: Path
    every_steps: int
    keep: int
    deadline_seconds: float
    num_steps: int
    initial_step: int
    initial_tokens: int
    tokens_per_step: int
    job_id: str
    job_digest: str
    seed: int
    data_digest: str
    model: dict[str, object]

    def manifest(self, version: int, layers: Iterable[LayerEntry]) -> Manifest:
        """Make the manifest of a version."""
        return Manifest(
            job_id=self.job_id,
            job_digest=self.job_digest,
            step=version,
            num_tokens=self.initial_tokens + (version - self.initial_step) * self.tokens_per_step,
            seed=self.seed,
            data_digest=self.data_digest,
            model=self.model,
            layers=tuple(sorted(layers, key=lambda entry: entry.layer)),
        )


def _nothing() -> None: ...


class Checkpointer:
    """Copies, writes, seals and discards; for a job without checkpoints it does nothing."""

    def __init__(
        self,
        plan: CheckpointPlan | None,
        *,
        engine_id: str,
        store: LayerStore,
        listener: CheckpointListener,
        failpoints: Failpoints,
    ) -> None:
        self._plan = plan
        self._engine_id = engine_id
        self._store = store
        self._listener = listener
        self._failpoints = failpoints
        self._writer = (
            None
            if plan is None
            else Writer(
                plan.root,
                suffix=engine_id.replace("/", "."),
                deadline_seconds=plan.deadline_seconds,
                listener=listener,
                failpoints=failpoints,
            )
        )

    def announce(self, view: PlanView | None, version: int) -> Sequence[int]:
        """Report which layers of a version this engine writes; return them.

        If it is late with earlier versions, it reports that instead, and replicas write its layers.
        Call it before any reply says that the version is reached.

        Args:
            view: the plan whose sums made the version.
            version: of the layers after the commit.
        """
        plan, writer = self._plan, self._writer
        if plan is None or writer is None or view is None:
            return ()
        if not is_due(version, every_steps=plan.every_steps, num_steps=plan.num_steps):
            return ()
        layers = layers_to_write(
            view.owned_layers, self._engine_id, version, every_steps=plan.every_steps
        )
        if not layers:
            return ()
        self._listener.taken(version, layers)
        late = self._late(plan, writer, version)
        if late is not None:
            self._listener.failed(version, late)
            return ()
        return layers

    def take(
        self, version: int, layers: Sequence[int], advanced: Callable[[], object] = _nothing
    ) -> None:
        """Copy announced layers and queue them to be written; never raises.

        Call it before the next commit can change them.

        Args:
            version: of the layers.
            layers: the announced ones.
            advanced: called after every tensor: the copies of a large stage take seconds.
        """
        if not layers or self._plan is None:
            return
        try:
            self._write(version, layers, advanced)
        except CheckpointError as error:
            self._listener.failed(version, error)
        except Exception as error:  # training continues without the checkpoint
            _log.exception("checkpoint_not_taken", version=version)
            path = partial_folder(self._plan.root, version)
            self._listener.failed(version, CheckpointError(str(error), path=path))

    def write(self, version: int, layers: Iterable[int]) -> None:
        """Copy layers and queue them to be written, in place of another engine.

        Raises:
            PlanariaError: WRONG_STATE: they are not held in this version; UNAVAILABLE: this engine
                is late with others.
        """
        plan, writer = self._require()
        try:
            late = self._late(plan, writer, version)
            if late is not None:
                raise late
            self._write(version, layers)
        except CheckpointError as error:
            raise checkpoint_failed(error) from None

    def seal(self, version: int, layers: Iterable[LayerEntry]) -> Sealed:
        """Complete a checkpoint whose layers are all written.

        Raises:
            PlanariaError: CHECKPOINT_FAILED.
        """
        plan, _ = self._require()
        try:
            return seal(plan.root, plan.manifest(version, layers), keep=plan.keep)
        except CheckpointError as error:
            raise checkpoint_failed(error) from None

    def discard(self, version: int) -> None:
        """Remove the files of a checkpoint that will not be completed.

        Raises:
            PlanariaError: CHECKPOINT_FAILED.
        """
        plan, _ = self._require()
        try:
            discard(plan.root, version)
        except CheckpointError as error:
            raise checkpoint_failed(error) from None

    def _write(
        self, version: int, layers: Iterable[int], advanced: Callable[[], object] = _nothing
    ) -> None:
        _, writer = self._require()
        copies = {layer: self._copy(layer, version, advanced) for layer in layers}
        writer.write(Part(version=version, layers=copies))

    def _late(self, plan: CheckpointPlan, writer: Writer, version: int) -> LateWriterError | None:
        """Why this engine is too late to write a version; None if it is not."""
        if writer.late is not None:
            return writer.late
        before = [unwritten for unwritten in writer.unwritten_versions() if unwritten != version]
        if len(before) < _MAX_UNWRITTEN or version == plan.num_steps:
            return None
        return LateWriterError(
            f"{self._engine_id} still writes step {before[0]}: {plan.root} is too slow for "
            f"checkpoint.every_steps {plan.every_steps}",
            path=partial_folder(plan.root, version),
        )

    def _copy(self, layer: int, version: int, advanced: Callable[[], object]) -> dict[str, Tensor]:
        """Copy a layer in one version: a commit in between is detected."""
        found = self._trained_version(layer)
        copy: dict[str, Tensor] = {}
        if found == version:
            for name, tensor in self._tensors(layer).items():
                copy[name] = tensor.detach().to("cpu", copy=True)
                advanced()
                self._failpoints.hit("checkpoint_copy", step=version, microbatch=layer)
            found = self._trained_version(layer)
        if found != version:
            raise PlanariaError(
                ErrorReason.WRONG_STATE,
                f"layer {layer} is not held in version {version} any more",
                {"layer": str(layer), "version": str(version)},
            )
        return copy

    def _tensors(self, layer: int) -> dict[str, Tensor]:
        """The tensors of a layer; none if it was dropped, which its version shows."""
        try:
            return self._store.tensors(layer)
        except KeyError:
            return {}

    def _trained_version(self, layer: int) -> int | None:
        """The version of a layer's tensors: a closing step does not change them."""
        plan, _ = self._require()
        version = self._store.version(layer)
        return None if version is None else min(version, plan.num_steps)

    def _require(self) -> tuple[CheckpointPlan, Writer]:
        if self._plan is None or self._writer is None:
            raise PlanariaError(
                ErrorReason.WRONG_STATE, "the job has no checkpoint.path", {"field": "checkpoint"}
            )
        return self._plan, self._writer
