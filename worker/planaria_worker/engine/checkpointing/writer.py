"""Writes layers to their files on a thread of its own, beside the training."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

from torch import Tensor

from planaria_common.logging import get_logger
from planaria_worker.engine.checkpointing.errors import CheckpointError, cannot_write
from planaria_worker.engine.checkpointing.layer_file import write_layer
from planaria_worker.engine.checkpointing.layout import layer_file, partial_folder
from planaria_worker.engine.checkpointing.manifest import LayerEntry
from planaria_worker.engine.failpoints import Failpoints

_log = get_logger("checkpoint")


class CheckpointListener(Protocol):
    """Who is told what becomes of an engine's part; called from any thread, never blocks."""

    def taken(self, version: int, layers: tuple[int, ...]) -> None: ...

    def written(self, version: int, entry: LayerEntry) -> None: ...

    def failed(self, version: int, error: CheckpointError) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Copies of layers in one version."""

    version: int
    layers: Mapping[int, Mapping[str, Tensor]]


class Writer:
    """Takes parts of checkpoints, and writes them one after the other."""

    def __init__(
        self, root: Path, *, suffix: str, listener: CheckpointListener, failpoints: Failpoints
    ) -> None:
        self._root = root
        self._suffix = suffix
        self._listener = listener
        self._failpoints = failpoints
        self._parts: SimpleQueue[Part] = SimpleQueue()
        self._lock = threading.Lock()
        self._unwritten: list[int] = []
        self._thread: threading.Thread | None = None

    def unwritten_versions(self) -> list[int]:
        """Versions that are still being written, the oldest first."""
        with self._lock:
            return sorted(set(self._unwritten))

    def write(self, part: Part) -> None:
        """Has a part written as soon as those before it are."""
        with self._lock:
            self._unwritten.append(part.version)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="checkpoint-writer", daemon=True
                )
                self._thread.start()
        self._parts.put(part)

    def _run(self) -> None:
        while True:
            part = self._parts.get()
            try:
                self._write(part)
            except CheckpointError as error:
                self._listener.failed(part.version, error)
            except Exception as error:  # a thread that has died would fill the memory with parts
                _log.exception("checkpoint_not_written", version=part.version)
                path = partial_folder(self._root, part.version)
                detail = f"cannot write {path}: {type(error).__name__}: {error}"
                self._listener.failed(part.version, CheckpointError(detail, path=path))
            with self._lock:
                self._unwritten.remove(part.version)
            del part  # its memory is not kept until the next one comes

    def _write(self, part: Part) -> None:
        folder = partial_folder(self._root, part.version)
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise cannot_write(folder, error) from error
        for layer, tensors in part.layers.items():
            self._failpoints.hit("checkpoint", step=part.version, microbatch=layer)
            entry = write_layer(layer_file(folder, layer), layer, tensors, suffix=self._suffix)
            self._listener.written(part.version, entry)
