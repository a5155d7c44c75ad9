"""Names in a folder of checkpoints, and which of them are complete."""

import re
import shutil
from pathlib import Path

MANIFEST_FILE = "manifest.json"
_PARTIAL = ".partial"
_FOLDER = re.compile(r"step-(\d{8,})(\.partial)?")
_OWN_FILE = re.compile(r"\.?(layer-\d{4,}\.safetensors|manifest\.json)(-.*)?")


def complete_folder(root: Path, version: int) -> Path:
    """Where a checkpoint is when it is complete."""
    return root / f"step-{version:08d}"


def partial_folder(root: Path, version: int) -> Path:
    """Where a checkpoint is while it is written."""
    return root / f"step-{version:08d}{_PARTIAL}"


def layer_file(folder: Path, layer: int) -> Path:
    """The file of one layer."""
    return folder / f"layer-{layer:04d}.safetensors"


def complete_checkpoints(root: Path) -> dict[int, Path]:
    """The complete checkpoints in a folder by version, the oldest first."""
    found = _folders(root, partial=False)
    return {v: folder for v, folder in found.items() if (folder / MANIFEST_FILE).is_file()}


def partial_checkpoints(root: Path) -> dict[int, Path]:
    """The incomplete checkpoints by version, the oldest first."""
    return _folders(root, partial=True)


def is_own(name: str) -> bool:
    """Whether a file in a checkpoint's folder has a name that we write."""
    return _OWN_FILE.fullmatch(name) is not None


def remove_folder(folder: Path) -> None:
    """Remove a checkpoint's folder, if it has only files of ours.

    Raises:
        OSError: it cannot be removed.
    """
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return
    if all(map(is_own, names)):
        shutil.rmtree(folder)


def remove_complete(root: Path, version: int) -> None:
    """Remove a complete checkpoint, so that a crash never leaves one that looks complete.

    Raises:
        OSError: it cannot be removed.
    """
    partial = partial_folder(root, version)
    remove_folder(partial)
    complete_folder(root, version).rename(partial)
    remove_folder(partial)


def _folders(root: Path, *, partial: bool) -> dict[int, Path]:
    found = {}
    for path in root.iterdir() if root.is_dir() else ():
        match = _FOLDER.fullmatch(path.name)
        if match and bool(match[2]) == partial and path.is_dir():
            found[int(match[1])] = path
    return dict(sorted(found.items()))
