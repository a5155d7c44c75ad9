"""The writer of checkpoints: a disk that hangs is told of, and costs nobody but itself."""

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from planaria_common.errors import PlanariaError
from planaria_worker.engine.failpoints import Failpoint, Failpoints
from planaria_worker.engine.job import open_job
from planaria_worker.engine.layers.checkpoint.checkpointer import Checkpointer, CheckpointPlan
from planaria_worker.engine.layers.checkpoint.errors import CheckpointError, LateWriterError
from planaria_worker.engine.layers.checkpoint.layout import layer_file, partial_folder
from planaria_worker.engine.layers.checkpoint.manifest import LayerEntry
from planaria_worker.engine.layers.checkpoint.writer import Part, Writer
from planaria_worker.engine.layers.layer_store import LayerStore
from planaria_worker.models.state import initial_state
from support.engines.training_jobs import training_job

TIMEOUT_SECONDS = 30.0
DEADLINE_SECONDS = 1.0
Said = tuple[str, int, object]


class Listener:
    """Notes what it is told, and lets a test wait for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._said: list[Said] = []

    def taken(self, version: int, layers: tuple[int, ...]) -> None:
        self._say("taken", version, layers)

    def written(self, version: int, entry: LayerEntry) -> None:
        self._say("written", version, entry.layer)

    def failed(self, version: int, error: CheckpointError) -> None:
        self._say("failed", version, error)

    def _say(self, *said: object) -> None:
        with self._changed:
            self._said.append(said)  # type: ignore[arg-type]
            self._changed.notify_all()

    def wait_for(self, num_said: int) -> list[Said]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._said) >= num_said, TIMEOUT_SECONDS)
            return list(self._said)


class Disk:
    """Hangs before the file of layer 1 of version 2, until it is told to answer."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.listener = Listener()
        self._answer = root / "answer"
        hang = Failpoint(
            at="checkpoint", action="hold", step=2, microbatch=1, until=str(self._answer)
        )
        self.writer = Writer(
            root,
            suffix="me",
            deadline_seconds=DEADLINE_SECONDS,
            listener=self.listener,
            failpoints=Failpoints((hang,)),
        )

    def answer(self) -> None:
        self._answer.touch()

    def wait_until_free(self) -> None:
        while self.writer.unwritten_versions():
            time.sleep(0.001)

    def has(self, version: int, layer: int) -> bool:
        return layer_file(partial_folder(self.root, version), layer).exists()


def part(version: int, *layers: int) -> Part:
    return Part(
        version=version, layers={layer: {"parameters/w": torch.ones(3)} for layer in layers}
    )


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """A disk that hangs only where it is told to: a real one takes seconds at times."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    disk = Disk(tmp_path)
    yield disk
    disk.answer()


def test_layers_queued_after_a_hanging_file_are_given_back(disk: Disk) -> None:
    disk.writer.write(part(2, 0, 1, 2))
    disk.writer.write(part(4, 0))
    first, hung, waiting = disk.listener.wait_for(3)
    assert first == ("written", 2, 0)
    assert [(kind, version) for kind, version, _ in (hung, waiting)] == [
        ("failed", 2),
        ("failed", 4),
    ]
    assert isinstance(hung[2], LateWriterError)
    assert "layer-0001.safetensors is not written after 1 s: the disk hangs" in str(hung[2])
    assert disk.writer.unwritten_versions() == [2], "the copies of step 4 are gone"
    with pytest.raises(LateWriterError):
        disk.writer.write(part(6, 0))


def test_a_disk_that_answers_again_is_used_again_and_the_rest_is_left_to_others(
    disk: Disk,
) -> None:
    disk.writer.write(part(2, 0, 1, 2))
    disk.listener.wait_for(2)
    disk.answer()
    assert disk.listener.wait_for(3)[-1] == ("written", 2, 1)
    disk.wait_until_free()
    assert disk.writer.late is None
    disk.writer.write(part(6, 0))
    assert disk.listener.wait_for(4)[-1] == ("written", 6, 0)
    assert not disk.has(2, 2)
    assert not disk.has(4, 0)


def test_a_late_file_that_fails_in_the_end_spoils_nothing(disk: Disk) -> None:
    """Others write the version by now: their checkpoint must not be dropped for it."""
    disk.writer.write(part(2, 1))
    disk.listener.wait_for(1)
    partial_folder(disk.root, 2).write_text("in the way")
    disk.answer()
    disk.wait_until_free()
    disk.writer.write(part(6, 0))
    said = disk.listener.wait_for(2)
    assert [(kind, version) for kind, version, _ in said] == [("failed", 2), ("written", 6)]


def checkpointer_of(tmp_path: Path, store: LayerStore, listener: Listener) -> Checkpointer:
    """Of an engine that holds layers 0 and 1 as they are after two steps."""
    files = training_job(tmp_path, num_blocks=1).files
    job = open_job("job", json.dumps(files.spec), files.data_path, torch.device("cpu"))
    store.install({layer: initial_state(job.model, layer, seed=1) for layer in (0, 1)}, 2)
    plan = CheckpointPlan(
        root=tmp_path,
        every_steps=2,
        keep=1,
        deadline_seconds=TIMEOUT_SECONDS,
        num_steps=4,
        initial_step=0,
        initial_tokens=0,
        tokens_per_step=1,
        job_id="job",
        job_digest="",
        seed=1,
        data_digest="",
        model={},
    )
    return Checkpointer(
        plan, engine_id="me", store=store, listener=listener, failpoints=Failpoints()
    )


def test_the_copies_of_a_large_stage_are_progress(tmp_path: Path) -> None:
    """They are made by the thread that trains: it must not be taken to hang meanwhile."""
    store, listener = LayerStore(), Listener()
    checkpointer = checkpointer_of(tmp_path, store, listener)
    copied: list[None] = []
    checkpointer.take(2, [0, 1], lambda: copied.append(None))
    assert len(copied) == len(store.tensors(0)) + len(store.tensors(1)) > 2
    assert [kind for kind, *_ in listener.wait_for(2)] == ["written"] * 2


class Dropping(LayerStore):
    """Drops what it holds just before it is read."""

    def tensors(self, layer: int) -> dict[str, torch.Tensor]:
        self.keep(())
        return super().tensors(layer)


def test_a_layer_that_is_dropped_before_it_is_copied_is_named(tmp_path: Path) -> None:
    """A change of the plan has taken it away from whoever is to write in another's place."""
    checkpointer = checkpointer_of(tmp_path, Dropping(), Listener())
    with pytest.raises(PlanariaError, match="layer 1 is not held in version 2 any more"):
        checkpointer.write(2, [1])
