"""The initial state of a job: from its seed, a Hugging Face folder, or a checkpoint.

Any engine can read any layer of it, any number of times, with the same bits.
"""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_worker.engine.job import Job
from planaria_worker.engine.layers.checkpoint.errors import CheckpointError
from planaria_worker.engine.layers.checkpoint.layer_file import check_header, read_layer
from planaria_worker.engine.layers.checkpoint.layout import (
    MANIFEST_FILE,
    complete_checkpoints,
    layer_file,
    partial_checkpoints,
)
from planaria_worker.engine.layers.checkpoint.manifest import Manifest
from planaria_worker.engine.layers.layer_store import fill
from planaria_worker.engine.layers.pretrained import (
    PretrainedError,
    PretrainedFolder,
    is_pretrained,
)
from planaria_worker.models.layout import LayerLayout
from planaria_worker.models.state import (
    SLOTS,
    LayerState,
    empty_state,
    filled_state,
    initial_state,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialStateFacts:
    """What all engines of a job must agree on; by default, a state from the seed."""

    path: str = ""
    """The folder; empty: from the seed."""
    step: int = 0
    """Version of the parameters: the number of steps in them."""
    sha256: bytes = b""
    """Of a checkpoint's manifest, or of the weights."""
    num_tokens: int = 0
    """Tokens seen in these steps."""


class InitialState(Protocol):
    """Reads layers in the version that the job starts from."""

    @property
    def facts(self) -> InitialStateFacts: ...

    def state(self, layer: int) -> LayerState:
        """Read one layer.

        Raises:
            PlanariaError: INIT_UNUSABLE or INIT_MISMATCH; names the file and the layer.
        """
        ...


def initial_layers(
    initial_state: InitialState, layers: Iterable[int], version: int
) -> dict[int, LayerState]:
    """Read layers of the initial state.

    Raises:
        PlanariaError: INIT_UNUSABLE or INIT_MISMATCH; or the initial state has another version.
    """
    found = initial_state.facts.step
    wanted = list(layers)
    if wanted and version != found:
        raise PlanariaError(
            ErrorReason.INVALID_ARGUMENT,
            f"layers {wanted}: the initial state has version {found}, not {version}",
            {"field": "version", "version": str(version)},
        )
    return {layer: initial_state.state(layer) for layer in wanted}


def open_initial_state(
    init_from: str | None, known: InitialStateFacts | None, *, job: Job, model: Mapping[str, Any]
) -> InitialState:
    """Find the initial state of a job.

    Args:
        init_from: of the job file.
        known: the facts that an earlier engine of the job has reported. The folder is opened when
            a layer is needed from it, which is rare: replicas hold the layers.
        job: the job.
        model: the configuration of its model.

    Raises:
        PlanariaError: INIT_UNUSABLE.
    """
    if init_from is None:
        return InitialStateFromSeed(job=job)
    if known is not None:
        return KnownInitialState(facts=known, job=job, model=model)
    return _find(Path(init_from), job, model)


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialStateFromSeed:
    """Every parameter follows from the seed and its name."""

    job: Job
    facts: InitialStateFacts = InitialStateFacts()

    def state(self, layer: int) -> LayerState:
        job = self.job
        return initial_state(
            job.model,
            layer,
            seed=job.seed,
            device=str(job.device),
            compute_dtype=job.compute_dtype,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialStateFromPretrained:
    """Parameters of a Hugging Face folder, without optimizer history."""

    job: Job
    folder: PretrainedFolder
    facts: InitialStateFacts

    def state(self, layer: int) -> LayerState:
        job = self.job
        try:
            tensors = self.folder.read_layer(job.model, layer)
        except PretrainedError as error:
            raise _unusable(str(error), self.folder.folder, layer) from None
        return filled_state(
            job.layouts[layer],
            tensors,
            device=str(job.device),
            compute_dtype=job.compute_dtype,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialStateFromCheckpoint:
    """Parameters and optimizer state of a checkpoint."""

    job: Job
    folder: Path
    manifest: Manifest

    @property
    def facts(self) -> InitialStateFacts:
        return InitialStateFacts(
            path=str(self.folder),
            step=self.manifest.step,
            sha256=self.manifest.sha256,
            num_tokens=self.manifest.num_tokens,
        )

    def state(self, layer: int) -> LayerState:
        job, entry = self.job, self.manifest.layers[layer]
        try:
            tensors = read_layer(layer_file(self.folder, layer), entry)
        except CheckpointError as error:
            raise _unusable(f"init_from: {error}", error.path, layer) from None
        state = empty_state(
            job.layouts[layer], device=str(job.device), compute_dtype=job.compute_dtype
        )
        fill(state, tensors)
        return state


@dataclass(slots=True, kw_only=True)
class KnownInitialState:
    """An initial state that other engines found; opened when a layer is needed."""

    facts: InitialStateFacts
    job: Job
    model: Mapping[str, Any]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _opened: InitialState | None = None

    def state(self, layer: int) -> LayerState:
        return self._open().state(layer)

    def _open(self) -> InitialState:
        with self._lock:
            if self._opened is None:
                found = _find(Path(self.facts.path), self.job, self.model)
                if found.facts != self.facts:
                    raise PlanariaError(
                        ErrorReason.INIT_MISMATCH,
                        f"init_from: {self.facts.path} has changed since the job started",
                        {"path": self.facts.path},
                    )
                self._opened = found
            return self._opened


def _find(folder: Path, job: Job, model: Mapping[str, Any]) -> InitialState:
    """Open a checkpoint, the newest in a folder of them, or a Hugging Face folder.

    Raises:
        PlanariaError: INIT_UNUSABLE.
    """
    if (folder / MANIFEST_FILE).is_file():
        return _open_checkpoint(folder, job, model)
    complete = list(complete_checkpoints(folder).values())
    if complete:
        return _open_checkpoint(complete[-1], job, model)
    if is_pretrained(folder):
        return _open_pretrained(folder, job)
    unfinished = [path.name for path in partial_checkpoints(folder).values()]
    if unfinished:
        what = f"has no complete checkpoint, only {', '.join(unfinished)}"
    elif folder.is_dir():
        what = "holds neither checkpoints nor Hugging Face safetensors"
    else:
        what = "is not a folder"
    raise _unusable(f"init_from: {folder} {what}", folder)


def _open_pretrained(folder: Path, job: Job) -> InitialStateFromPretrained:
    try:
        pretrained = PretrainedFolder.open(folder)
        pretrained.check(job.model)
        facts = InitialStateFacts(path=str(folder), sha256=pretrained.content_sha256())
    except PretrainedError as error:
        raise _unusable(str(error), folder) from None
    return InitialStateFromPretrained(job=job, folder=pretrained, facts=facts)


def _open_checkpoint(
    folder: Path, job: Job, model: Mapping[str, Any]
) -> InitialStateFromCheckpoint:
    """Check all that can be checked without reading the values; `state` verifies those."""
    try:
        manifest = Manifest.read(folder)
        _check_model(folder, manifest, job, model)
        for entry, layout in zip(manifest.layers, job.layouts, strict=True):
            check_header(layer_file(folder, entry.layer), entry, _shapes(layout))
    except CheckpointError as error:
        raise _unusable(f"init_from: {error}", error.path, error.layer) from None
    if manifest.step >= job.num_steps:
        raise _unusable(
            f"init_from: {folder} is at step {manifest.step}, and training.steps is "
            f"{job.num_steps}: nothing is left to train",
            folder,
        )
    return InitialStateFromCheckpoint(job=job, folder=folder, manifest=manifest)


def _check_model(folder: Path, manifest: Manifest, job: Job, model: Mapping[str, Any]) -> None:
    path = folder / MANIFEST_FILE
    for name in sorted(manifest.model.keys() | model.keys()):
        theirs, ours = manifest.model.get(name), model.get(name)
        if theirs != ours:
            raise CheckpointError(
                f"{folder} is of another model: {name} is {theirs!r} there and {ours!r} in the "
                "job file",
                path=path,
            )
    if [entry.layer for entry in manifest.layers] != list(range(job.num_layers)):
        raise CheckpointError(
            f"{path} names {len(manifest.layers)} layers, the job's model has {job.num_layers}",
            path=path,
        )


def _shapes(layout: LayerLayout) -> dict[str, tuple[int, ...]]:
    return {f"{slot}/{tensor.name}": tensor.shape for slot in SLOTS for tensor in layout.tensors}


def _unusable(message: str, path: Path, layer: int | None = None) -> PlanariaError:
    metadata = {"path": str(path)} if layer is None else {"path": str(path), "layer": str(layer)}
    return PlanariaError(ErrorReason.INIT_UNUSABLE, message, metadata)
