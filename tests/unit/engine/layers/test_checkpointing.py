"""Checkpoints: who writes what, what is taken for whole, and what is never removed."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from planaria_common.checkpoints import is_due
from planaria_worker.engine.layers.checkpoint import seal as sealing
from planaria_worker.engine.layers.checkpoint.assignment import layers_to_write
from planaria_worker.engine.layers.checkpoint.errors import CheckpointError
from planaria_worker.engine.layers.checkpoint.layer_file import (
    check_header,
    read_layer,
    verify_layer,
    write_layer,
)
from planaria_worker.engine.layers.checkpoint.layout import (
    complete_checkpoints,
    layer_file,
    partial_checkpoints,
    partial_folder,
    remove_complete,
)
from planaria_worker.engine.layers.checkpoint.manifest import LayerEntry, Manifest
from planaria_worker.engine.layers.checkpoint.seal import check_root, discard, seal
from planaria_worker.engine.plan.owned_layers import find_owned_layers
from planaria_worker.engine.plan.plan import PipelineAssignment
from unit.engine.plans import plans, tied, untied

TENSORS = {
    "parameters/w": torch.arange(12, dtype=torch.float32).view(3, 4),
    "exp_avg/w": torch.ones(3, 4),
    "exp_avg_sq/w": torch.full((3, 4), 0.5),
}
SHAPES = dict.fromkeys(TENSORS, (3, 4))


# -- who writes what -------------------------------------------------------------------------------


@given(plan=plans(), is_tied=st.booleans(), turn=st.integers(1, 50), every=st.integers(1, 7))
def test_every_layer_is_written_by_one_of_its_owners_and_each_gets_its_turn(
    plan: tuple[list[PipelineAssignment], int, int], is_tied: bool, turn: int, every: int
) -> None:
    pipelines, num_layers, _ = plan
    runs = find_owned_layers(pipelines, num_layers, tied(num_layers) if is_tied else untied)
    owners = {layer: run.owners for run in runs for layer in run.layers}
    engines = {stage.engine_id for pipeline in pipelines for stage in pipeline.stages}
    writers: dict[int, list[str]] = {layer: [] for layer in owners}
    num_turns = max(map(len, owners.values()))
    for version in range(turn * every, (turn + num_turns) * every, every):
        for engine in engines:
            mine = [run for run in runs if engine in run.owners]
            for layer in layers_to_write(mine, engine, version, every_steps=every):
                writers[layer].append(engine)
    for layer, wrote in writers.items():
        assert len(wrote) == num_turns, "each version once"
        assert set(wrote) == set(owners[layer]), "in turn"


def test_every_multiple_and_the_last_step_are_written() -> None:
    due = [v for v in range(12) if is_due(v, every_steps=4, num_steps=10)]
    assert due == [4, 8, 10]


# -- files -----------------------------------------------------------------------------------------


def test_a_layer_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = layer_file(tmp_path, 3)
    entry = write_layer(path, 3, TENSORS, suffix="me")
    assert [found.name for found in tmp_path.iterdir()] == ["layer-0003.safetensors"]
    verify_layer(path, entry)
    check_header(path, entry, SHAPES)
    again = read_layer(path, entry)
    assert again.keys() == TENSORS.keys()
    assert all(torch.equal(again[name], TENSORS[name]) for name in TENSORS)


def test_a_file_that_is_not_what_was_written_is_named_with_its_layer(tmp_path: Path) -> None:
    path = layer_file(tmp_path, 3)
    entry = write_layer(path, 3, TENSORS, suffix="me")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    for check in (verify_layer, read_layer):
        with pytest.raises(CheckpointError, match=r"layer 3: .*layer-0003.* it is torn"):
            check(path, entry)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    for check in (verify_layer, read_layer):
        with pytest.raises(CheckpointError, match=r"layer 3: .*layer-0003.* is damaged"):
            check(path, entry)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"layer 3: .* is missing") as failure:
        check_header(path, entry, SHAPES)
    assert (failure.value.layer, failure.value.path) == (3, path)


def test_another_models_file_is_refused_by_its_header(tmp_path: Path) -> None:
    path = layer_file(tmp_path, 3)
    entry = write_layer(path, 3, TENSORS, suffix="me")
    with pytest.raises(CheckpointError, match=r"has parameters/w of shape \(3, 4\), the model"):
        check_header(path, entry, {**SHAPES, "parameters/w": (4, 3)})
    with pytest.raises(CheckpointError, match="has no tensor parameters/b"):
        check_header(path, entry, {**SHAPES, "parameters/b": (3,)})
    with pytest.raises(CheckpointError, match="has parameters/w, and the model has no such tensor"):
        check_header(path, entry, {n: s for n, s in SHAPES.items() if n != "parameters/w"})
    narrow = {name: tensor.bfloat16() for name, tensor in TENSORS.items()}
    entry = write_layer(path, 3, narrow, suffix="me")
    with pytest.raises(CheckpointError, match=r"layer 3: .* of type BF16, not F32"):
        check_header(path, entry, SHAPES)


# -- whole checkpoints -----------------------------------------------------------------------------


def manifest(version: int, layers: tuple[LayerEntry, ...], job_id: str = "job-1") -> Manifest:
    return Manifest(
        job_id=job_id,
        job_digest="d",
        step=version,
        num_tokens=100 * version,
        seed=7,
        data_digest="e",
        model={"family": "llama"},
        layers=layers,
    )


def write(root: Path, version: int, num_layers: int = 2) -> Manifest:
    folder = partial_folder(root, version)
    folder.mkdir(parents=True)
    return manifest(
        version,
        tuple(
            write_layer(layer_file(folder, layer), layer, TENSORS, suffix="me")
            for layer in range(num_layers)
        ),
    )


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_a_manifest_reads_back_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    sealed = seal(tmp_path, write(tmp_path, 2), keep=3)
    read = Manifest.read(sealed.path)
    assert (read.step, read.num_tokens, len(read.layers)) == (2, 200, 2)
    assert Manifest.read(sealed.path).sha256 == read.sha256
    file = sealed.path / "manifest.json"
    for contents, message in (
        ("{", "is damaged"),
        ('{"api_version": "x", "kind": "y"}', "is damaged"),
        (file.read_text().replace('"Checkpoint"', '"Recipe"'), "is a planaria.dev/v1 Recipe"),
    ):
        file.write_text(contents)
        with pytest.raises(CheckpointError, match=message):
            Manifest.read(sealed.path)


def test_sealing_keeps_the_newest_and_removes_what_is_older(tmp_path: Path) -> None:
    """Also what an older version left unfinished; never what is not ours, or newer."""
    for version in (2, 4):
        seal(tmp_path, write(tmp_path, version), keep=2)
    write(tmp_path, 5)
    write(tmp_path, 9)
    (tmp_path / "notes").mkdir()
    precious = partial_folder(tmp_path, 3)
    precious.mkdir()
    (precious / "thesis.txt").write_text("mine")
    sealed = seal(tmp_path, write(tmp_path, 6), keep=2)
    assert set(sealed.removed) >= {"step-00000002", "step-00000005.partial"}
    assert names(tmp_path) == [
        "notes",
        "step-00000003.partial",
        "step-00000004",
        "step-00000006",
        "step-00000009.partial",
    ]
    assert list(complete_checkpoints(tmp_path)) == [4, 6]


def test_sealing_twice_is_sealing_once(tmp_path: Path) -> None:
    """The first answer may have been lost, or its engine."""
    contents = write(tmp_path, 2)
    first = seal(tmp_path, contents, keep=1)
    assert seal(tmp_path, contents, keep=1) == first
    assert names(tmp_path) == ["step-00000002"]


@pytest.mark.parametrize("after", ["_verify", "verify_layer", "sync_folder"])
def test_another_engine_may_seal_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    """A sealer that is cut off from the coordinator only, and so given up for lost."""
    contents = write(tmp_path, 2)
    original = getattr(sealing, after)

    def be_late(*arguments: object) -> None:
        monkeypatch.setattr(sealing, after, original)
        original(*arguments)
        assert seal(tmp_path, contents, keep=1).path.name == "step-00000002"

    monkeypatch.setattr(sealing, after, be_late)
    assert seal(tmp_path, contents, keep=1).path.name == "step-00000002"
    assert list(complete_checkpoints(tmp_path)) == [2]


def test_files_of_a_dead_writer_are_not_sealed(tmp_path: Path) -> None:
    contents = write(tmp_path, 2)
    (partial_folder(tmp_path, 2) / ".layer-0001.safetensors-other").write_bytes(b"half")
    (partial_folder(tmp_path, 2) / "layer-0007.safetensors").write_bytes(b"of a job before")
    sealed = seal(tmp_path, contents, keep=1)
    assert names(sealed.path) == [
        "layer-0000.safetensors",
        "layer-0001.safetensors",
        "manifest.json",
    ]


def test_a_file_that_others_wrote_and_this_node_does_not_see(tmp_path: Path) -> None:
    contents = write(tmp_path, 2)
    layer_file(partial_folder(tmp_path, 2), 1).unlink()
    with pytest.raises(CheckpointError, match="must be storage that all nodes share"):
        seal(tmp_path, contents, keep=1)
    assert complete_checkpoints(tmp_path) == {}


def test_a_folder_without_its_manifest_is_no_checkpoint(tmp_path: Path) -> None:
    sealed = seal(tmp_path, write(tmp_path, 2), keep=1)
    (sealed.path / "manifest.json").unlink()
    assert complete_checkpoints(tmp_path) == {}
    assert complete_checkpoints(tmp_path / "nowhere") == {}


def test_an_interrupted_removal_leaves_nothing_that_looks_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal(tmp_path, write(tmp_path, 2), keep=1)

    def break_off(folder: Path) -> None:
        raise OSError("the machine went down")

    monkeypatch.setattr(shutil, "rmtree", break_off)
    with pytest.raises(OSError, match="went down"):
        remove_complete(tmp_path, 2)
    assert complete_checkpoints(tmp_path) == {}
    assert list(partial_checkpoints(tmp_path)) == [2]


def test_the_manifest_of_an_older_version_is_read_with_the_same_digest() -> None:
    """Jobs that began from it have that digest in the database: engines must find the same one."""
    manifest = Manifest.read(Path(__file__).parent / "old_checkpoint")
    assert (manifest.step, manifest.num_tokens, len(manifest.layers)) == (4, 4096, 8)
    digest = "295ec5cf919b97164a6d475c704686e94e66dc06695ff2f5d59632633abfeb7a"
    assert manifest.sha256.hex() == digest


def test_an_unfinished_checkpoint_is_discarded(tmp_path: Path) -> None:
    write(tmp_path, 2)
    discard(tmp_path, 2)
    discard(tmp_path, 2)
    assert names(tmp_path) == []


def test_a_newer_checkpoint_of_another_job_is_never_mixed_with_ours(tmp_path: Path) -> None:
    """Which of the two would "the newest" be?"""
    seal(tmp_path, write(tmp_path, 4), keep=1)
    check_root(tmp_path, job_id="job-1", initial_step=0, suffix="e")
    check_root(tmp_path, job_id="job-2", initial_step=4, suffix="e")
    with pytest.raises(CheckpointError, match="of another job and newer than step 0, where"):
        check_root(tmp_path, job_id="job-2", initial_step=0, suffix="e")
    with pytest.raises(CheckpointError, match="is of another job"):
        seal(tmp_path, replace(write(tmp_path, 4), job_id="job-2"), keep=1)
    assert Manifest.read(complete_checkpoints(tmp_path)[4]).job_id == "job-1"
