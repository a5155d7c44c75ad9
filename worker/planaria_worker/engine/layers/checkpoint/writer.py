"""Writes layers to their files on a thread of its own, while training continues.

A disk that hangs blocks that thread and nothing else: a timer reports it, and the unwritten layers
are given back, so that other engines can write them.
"""

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from planaria_common.logging import get_logger
from planaria_common.supervised import start_supervised_thread
from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.layers.checkpoint.errors import (
    CheckpointError,
    LateWriterError,
    cannot_write,
)
from planaria_worker.engine.layers.checkpoint.layer_file import write_layer
from planaria_worker.engine.layers.checkpoint.layout import layer_file, partial_folder
from planaria_worker.engine.layers.checkpoint.manifest import LayerEntry

_LEAST_BYTES_PER_SECOND = 20e6
"""A slower disk counts as hanging."""

_log = get_logger("checkpoint")


class CheckpointListener(Protocol):
    """Receives the outcome of an engine's part; called from any thread, never blocks."""

    def taken(self, version: int, layers: tuple[int, ...]) -> None: ...

    def written(self, version: int, entry: LayerEntry) -> None: ...

    def failed(self, version: int, error: CheckpointError) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """Copies of layers in one version."""

    version: int
    layers: Mapping[int, Mapping[str, Tensor]]


class Writer:
    """Queues parts of checkpoints, and writes them one after the other."""

    def __init__(
        self,
        root: Path,
        *,
        suffix: str,
        deadline_seconds: float,
        listener: CheckpointListener,
        failpoints: Failpoints,
    ) -> None:
        """Start nothing yet.

        Args:
            root: the folder of checkpoints.
            suffix: distinguishes this writer's incomplete files from those of others.
            deadline_seconds: how long a file may take, in addition to the time for its bytes.
            listener: receives the outcomes.
            failpoints: hit before each file.
        """
        self._root = root
        self._suffix = suffix
        self._deadline_seconds = deadline_seconds
        self._listener = listener
        self._failpoints = failpoints
        self._changed = threading.Condition()
        self._parts: deque[Part] = deque()
        """The first one is being written."""
        self._file: Path | None = None
        """The file that is being written."""
        self._late: LateWriterError | None = None
        self._given_back: Part | None = None
        self._thread: threading.Thread | None = None

    @property
    def late(self) -> LateWriterError | None:
        """The error if the current file is overdue."""
        return self._late

    def unwritten_versions(self) -> list[int]:
        """Versions that are still being written, the oldest first."""
        with self._changed:
            return sorted({part.version for part in self._parts})

    def write(self, part: Part) -> None:
        """Queue a part; it is written after those before it.

        Raises:
            LateWriterError: the disk hangs.
        """
        with self._changed:
            if self._late is not None:
                raise self._late
            self._parts.append(part)
            self._changed.notify()
            if self._thread is None:
                self._thread = start_supervised_thread("checkpoint-writer", self._run)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._parts)
                part = self._parts[0]
            try:
                self._write(part)
            except CheckpointError as error:
                self._failed(part, error)
            except Exception as error:  # if the thread died, parts would fill the memory
                _log.exception("checkpoint_not_written", version=part.version)
                path = partial_folder(self._root, part.version)
                detail = f"cannot write {path}: {type(error).__name__}: {error}"
                self._failed(part, CheckpointError(detail, path=path))
            with self._changed:
                self._parts.popleft()
                self._given_back = None
            del part  # frees its memory before the next one comes

    def _write(self, part: Part) -> None:
        folder = partial_folder(self._root, part.version)
        for layer, tensors in part.layers.items():
            path = layer_file(folder, layer)
            num_bytes = sum(tensor.nbytes for tensor in tensors.values())
            with self._watched(part, path, num_bytes):
                self._failpoints.hit("checkpoint", step=part.version, microbatch=layer)
                try:
                    folder.mkdir(exist_ok=True)
                except OSError as error:
                    raise cannot_write(folder, error) from error
                entry = write_layer(path, layer, tensors, suffix=self._suffix)
            self._listener.written(part.version, entry)
            if part is self._given_back:
                return

    def _failed(self, part: Part, error: CheckpointError) -> None:
        if part is self._given_back:  # other engines write it by now
            _log.warning("checkpoint_failed_late", version=part.version, cause=str(error))
        else:
            self._listener.failed(part.version, error)

    @contextmanager
    def _watched(self, part: Part, path: Path, num_bytes: int) -> Iterator[None]:
        """Give the unwritten layers back if one file takes too long."""
        seconds = self._deadline_seconds + num_bytes / _LEAST_BYTES_PER_SECOND
        timer = threading.Timer(seconds, self._overdue, (part, path, seconds))
        timer.daemon = True
        self._file = path
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            with self._changed:
                self._file = self._late = None

    def _overdue(self, part: Part, path: Path, seconds: float) -> None:
        with self._changed:
            if self._file != path or self._parts[0] is not part:
                return
            detail = f"{path} is not written after {seconds:.3g} s: the disk hangs"
            late = self._late = LateWriterError(detail, path=path)
            versions = dict.fromkeys(each.version for each in self._parts)
            self._given_back = part
            self._parts = deque([part])  # its memory is in use while the disk hangs
        for version in versions:
            self._listener.failed(version, late)
