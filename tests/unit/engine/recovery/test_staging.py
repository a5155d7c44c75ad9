"""A place that was staged holds no memory once it was taken, or given up."""

import json
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from planaria_worker.engine.fence import Fence, FencedError
from planaria_worker.engine.job import open_job
from planaria_worker.engine.layers.layer_store import LayerStore
from planaria_worker.engine.recovery.staging import StagedChange
from support.engines.training_jobs import training_job

GENERATION, LAYER, VERSION = 4, 1, 7


class Communicators:
    """Those of the next generation, which nobody waits for."""

    def shut(self, reason: str) -> None: ...


class Staged:
    """A place that is ready, and what it consists of."""

    def __init__(self, folder: Path) -> None:
        files = training_job(folder, num_blocks=1).files
        job = open_job("job", json.dumps(files.spec), files.data_path, torch.device("cpu"))
        self.store = LayerStore()
        resources = SimpleNamespace(
            job=job, store=self.store, fence=Fence(GENERATION), failpoints=None
        )
        builder: Any = SimpleNamespace(resources=resources, communicators=lambda _: Communicators())
        self.next: Any = StagedChange(
            builder=builder,
            job_secret="",
            request=SimpleNamespace(generation=GENERATION, layers={LAYER: ()}),  # type: ignore[arg-type]
            view=SimpleNamespace(),  # type: ignore[arg-type]
            is_voting=True,
            on_commit=lambda *_: None,
        )
        self.next._layers.allocate()
        context: Any = Communicators()
        self.context = weakref.ref(context)
        self.parameters = weakref.ref(self.next._layers.states[LAYER].parameters)
        self.next._context = context


@pytest.fixture
def staged(tmp_path: Path) -> Staged:
    return Staged(tmp_path)


def test_a_dropped_change_frees_its_memory(staged: Staged) -> None:
    """Though errors and threads still know of it. Guard: `drop` lets go."""
    staged.next.drop()
    assert (staged.context(), staged.parameters()) == (None, None)


def test_a_taken_change_leaves_its_layers_to_the_store_alone(staged: Staged) -> None:
    """The place itself is known until the next change of plan. Guard: `take` lets go."""
    taken = staged.next.take(VERSION)
    assert taken is staged.context()
    assert staged.store.held() == {LAYER: VERSION}
    del taken
    staged.store.keep(())
    assert (staged.context(), staged.parameters()) == (None, None)


def test_a_taken_change_is_not_dropped(staged: Staged) -> None:
    staged.next.take(VERSION)
    staged.next.drop()
    assert staged.store.held() == {LAYER: VERSION}
    assert staged.parameters() is not None


def test_a_dropped_change_cannot_be_taken(staged: Staged) -> None:
    """Nor made ready any more. Guard: one lock orders the two."""
    staged.next.drop()
    with pytest.raises(FencedError):
        staged.next.take(VERSION)
    with pytest.raises(FencedError):
        staged.next._keep(Communicators())
    assert not staged.next.is_taken
    assert staged.store.held() == {}
