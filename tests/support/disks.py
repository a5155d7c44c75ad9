"""File systems of a few megabytes, to be filled by a test: only root may mount them."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_BLOCK_BYTES = 4096


@contextmanager
def small_disk(place: Path, num_bytes: int) -> Iterator[Path]:
    """Mount a file system of this size on a folder, which is made; skip where that is forbidden."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    place.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "planaria-test", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        # Lazily: a process that the test has just ended may still have a file open.
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@contextmanager
def freezable_disk(place: Path, image: Path, num_bytes: int) -> Iterator[Path]:
    """Mount an ext4 of this size on a folder, which is made; skip where that is impossible."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("mkfs.ext4", "fsfreeze"))):
        pytest.skip("only root may mount a file system; e2fsprogs and util-linux are needed")
    place.mkdir(parents=True, exist_ok=True)
    with image.open("wb") as file:
        file.truncate(num_bytes)
    for command in (
        ["mkfs.ext4", "-q", str(image)],
        ["mount", "-o", "loop", str(image), str(place)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@contextmanager
def frozen(disk: Path) -> Iterator[None]:
    """Let nobody write to a file system inside the block: who tries hangs, and cannot be killed."""
    subprocess.run(["fsfreeze", "--freeze", str(disk)], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """Take all the space that is left; to delete the file that is returned gives it back."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file:
        while True:
            try:
                file.write(bytes(_BLOCK_BYTES))
            except OSError:
                return filler
