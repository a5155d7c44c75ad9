"""Completes a checkpoint: verify the files, write the manifest, rename, remove old checkpoints."""

import os
from dataclasses import dataclass
from pathlib import Path

from planaria_worker.engine.layers.checkpoint.errors import CheckpointError, cannot_write
from planaria_worker.engine.layers.checkpoint.layer_file import (
    MissingLayerError,
    sync_folder,
    verify_layer,
)
from planaria_worker.engine.layers.checkpoint.layout import (
    MANIFEST_FILE,
    complete_checkpoints,
    complete_folder,
    is_own,
    layer_file,
    partial_checkpoints,
    partial_folder,
    remove_complete,
    remove_folder,
)
from planaria_worker.engine.layers.checkpoint.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A complete checkpoint."""

    path: Path
    removed: tuple[str, ...]
    """Names of the folders that were removed for it."""


def seal(root: Path, manifest: Manifest, *, keep: int) -> Sealed:
    """Complete a checkpoint; one that is complete with the same layers stays as it is.

    One with others is of what the job went back behind, and gives way.

    Args:
        root: the folder of checkpoints.
        manifest: describes the files.
        keep: number of complete checkpoints to keep.

    Raises:
        CheckpointError: a file is missing or damaged, or the folder cannot be written.
    """
    final = complete_folder(root, manifest.step)
    try:
        if not _is_sealed(final, manifest):
            _make_complete(partial_folder(root, manifest.step), final, manifest)
        return Sealed(path=final, removed=_remove_old(root, manifest.step, keep))
    except OSError as error:
        raise cannot_write(final, error) from error


def discard(root: Path, version: int) -> None:
    """Remove the files of a checkpoint that will not be completed.

    Raises:
        CheckpointError: it cannot be removed.
    """
    folder = partial_folder(root, version)
    try:
        remove_folder(folder)
    except OSError as error:
        raise cannot_write(folder, error) from error


def check_root(root: Path, *, job_id: str, initial_step: int, suffix: str) -> None:
    """Check that a job may write its checkpoints into a folder, and can.

    Raises:
        CheckpointError: it cannot be written, or has a newer checkpoint of another job.
    """
    probe = root / f".writable-{suffix}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise cannot_write(root, error) from error
    for version, folder in complete_checkpoints(root).items():
        if version > initial_step and Manifest.read(folder).job_id != job_id:
            raise CheckpointError(
                f"checkpoint.path: {folder} is of another job and newer than step {initial_step}, "
                f"where this one starts: choose another path, or continue from it "
                f"(init_from: {root})",
                path=folder,
            )


def _is_sealed(final: Path, manifest: Manifest) -> bool:
    if not (final / MANIFEST_FILE).is_file():
        return False
    found = Manifest.read(final)
    if found.job_id != manifest.job_id:
        raise CheckpointError(f"checkpoint.path: {final} is of another job", path=final)
    return found.layers == manifest.layers


def _make_complete(partial: Path, final: Path, manifest: Manifest) -> None:
    try:
        _verify(partial, manifest)
        _remove_void(final, manifest)
        _finish(partial, final, manifest)
    except (CheckpointError, OSError):
        # An engine that was considered lost may have done the same in between.
        if not _is_sealed(final, manifest):
            raise


def _remove_void(final: Path, manifest: Manifest) -> None:
    """Remove a complete checkpoint of other layers; another engine may do so at the same time."""
    void = final.with_name(f".{final.name}.void")
    remove_folder(void)
    if not (final / MANIFEST_FILE).is_file() or _is_sealed(final, manifest):
        return
    final.rename(void)
    if _is_sealed(void, manifest):  # the other engine's, of this moment
        void.rename(final)
    remove_folder(void)


def _verify(partial: Path, manifest: Manifest) -> None:
    for entry in manifest.layers:
        try:
            verify_layer(layer_file(partial, entry.layer), entry)
        except MissingLayerError as error:
            raise CheckpointError(
                f"{error} here, though another node has written it: checkpoint.path must be "
                "storage that all nodes share",
                path=error.path,
                layer=entry.layer,
            ) from None


def _finish(partial: Path, final: Path, manifest: Manifest) -> None:
    expected = {layer_file(partial, entry.layer) for entry in manifest.layers}
    for path in partial.iterdir():
        if path not in expected and is_own(
            path.name
        ):  # of a writer that died, or of an earlier job
            path.unlink()
    with (partial / MANIFEST_FILE).open("wb") as file:
        file.write(manifest.encode())
        file.flush()
        os.fsync(file.fileno())
    sync_folder(partial)
    partial.rename(final)
    sync_folder(final.parent)


def _remove_old(root: Path, newest: int, keep: int) -> tuple[str, ...]:
    complete = [version for version in complete_checkpoints(root) if version <= newest]
    removed = []
    for version in complete[: max(0, len(complete) - keep)]:
        removed.append(complete_folder(root, version).name)
        remove_complete(root, version)
    for version, folder in partial_checkpoints(root).items():
        if version < newest:
            removed.append(folder.name)
            remove_folder(folder)
    return tuple(removed)
