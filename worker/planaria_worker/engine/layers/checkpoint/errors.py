"""Errors of checkpoints."""

import errno
from pathlib import Path

from planaria_common.errors import ErrorReason, PlanariaError


class CheckpointError(ValueError):
    """A checkpoint is damaged or cannot be written; one line that names the file and the layer."""

    def __init__(self, message: str, *, path: Path, layer: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.layer = layer


class LateWriterError(CheckpointError):
    """The disk hangs, or is too slow: another engine may be faster."""


def cannot_write(path: Path, error: OSError) -> CheckpointError:
    """Describe an error of the file system in one line."""
    hint = "; free some space" if error.errno == errno.ENOSPC else ""
    detail = error.strerror or str(error)
    return CheckpointError(f"checkpoint.path: cannot write {path}: {detail}{hint}", path=path)


def checkpoint_failed(error: CheckpointError) -> PlanariaError:
    """Give the error its documented reason."""
    if isinstance(error, LateWriterError):
        metadata = {"part": "checkpoint.path", "path": str(error.path)}
        return PlanariaError(ErrorReason.UNAVAILABLE, str(error), metadata)
    metadata = {"path": str(error.path), "detail": str(error)}
    return PlanariaError(ErrorReason.CHECKPOINT_FAILED, str(error), metadata)
