"""A disk that is really full: what is half written never looks whole, and space is used again."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from planaria_worker.engine.layers.checkpoint.errors import CheckpointError
from planaria_worker.engine.layers.checkpoint.layer_file import verify_layer, write_layer
from planaria_worker.engine.layers.checkpoint.layout import (
    complete_checkpoints,
    layer_file,
    partial_folder,
)
from planaria_worker.engine.layers.checkpoint.manifest import LayerEntry, Manifest
from planaria_worker.engine.layers.checkpoint.seal import discard, seal

pytestmark = pytest.mark.integration

DISK_BYTES = 256 << 10
LAYER_BYTES = 64 << 10


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a quarter of a megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "planaria-test", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def write(root: Path, version: int, layer: int, value: float = 0.0) -> LayerEntry:
    folder = partial_folder(root, version)
    folder.mkdir(exist_ok=True)
    tensors = {"parameters/w": torch.full((LAYER_BYTES // 4,), value)}
    return write_layer(layer_file(folder, layer), layer, tensors, suffix="me")


def manifest(version: int, *layers: LayerEntry) -> Manifest:
    return Manifest(
        job_id="job",
        job_digest="d",
        step=version,
        num_tokens=1,
        seed=7,
        data_digest="e",
        model={},
        layers=layers,
    )


def test_a_layer_that_does_not_fit_leaves_only_the_complete_ones(disk: Path) -> None:
    whole = seal(disk, manifest(2, write(disk, 2, 0), write(disk, 2, 1)), keep=1)
    write(disk, 4, 0)
    with pytest.raises(CheckpointError, match="No space left on device; free some space"):
        write(disk, 4, 1)
    assert [path.name for path in partial_folder(disk, 4).iterdir()] == ["layer-0000.safetensors"]
    assert list(complete_checkpoints(disk)) == [2]
    assert Manifest.read(whole.path).step == 2
    discard(disk, 4)
    sealed = seal(disk, manifest(6, write(disk, 6, 0)), keep=1)
    assert list(complete_checkpoints(disk)) == [6]
    assert sealed.removed == ("step-00000002",)


def test_a_checkpoint_of_what_the_job_went_back_behind_gives_way(tmp_path: Path) -> None:
    """In fast mode the same step has other bits; a repeated seal changes nothing."""
    void = seal(tmp_path, manifest(2, write(tmp_path, 2, 0)), keep=1)
    ours = manifest(2, write(tmp_path, 2, 0, 1.0))
    for _ in range(2):
        assert seal(tmp_path, ours, keep=1).path == void.path
        assert Manifest.read(void.path) == ours
        verify_layer(layer_file(void.path, 0), ours.layers[0])
    assert [path.name for path in tmp_path.iterdir()] == [void.path.name]


def fill(path: Path) -> None:
    """Takes all the space that is left."""
    with path.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError:
                return


def test_a_manifest_that_does_not_fit_completes_nothing(disk: Path) -> None:
    entry = write(disk, 2, 0)
    filler = disk / "filler"
    fill(filler)
    large = replace(manifest(2, entry), model={"name": "x" * 10_000})
    with pytest.raises(CheckpointError, match="No space left on device; free some space"):
        seal(disk, large, keep=1)
    assert complete_checkpoints(disk) == {}
    filler.unlink()
    seal(disk, large, keep=1)
    assert list(complete_checkpoints(disk)) == [2]
