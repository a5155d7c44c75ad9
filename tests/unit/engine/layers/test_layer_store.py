"""Layers change only as a whole, and one that is being changed is nobody's replica."""

import contextlib
import json
from pathlib import Path

import pytest
import torch

from planaria_worker.engine.commit_record import CommitRecord
from planaria_worker.engine.data.errors import DataError
from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.fence import Fence, StaleGenerationError
from planaria_worker.engine.job import Job, open_job
from planaria_worker.engine.layers.copy import CommitFeed, LayerFetcher
from planaria_worker.engine.layers.initial_state import InitialStateFromSeed
from planaria_worker.engine.layers.layer_store import LayerStore, fill
from planaria_worker.engine.layers.layer_tasks import LayerTasks, WantedLayers
from planaria_worker.engine.numerics.accumulate import GradientSums
from planaria_worker.engine.step.training_step import apply_step
from planaria_worker.models.state import empty_state, initial_state
from support.engines.training_jobs import training_job
from unit.worker_comm.layers import SECRET, serve


@pytest.fixture
def job(tmp_path: Path) -> Job:
    files = training_job(tmp_path, num_blocks=2).files
    return open_job("job", json.dumps(files.spec), files.data_path, torch.device("cpu"))


@pytest.fixture
def store(job: Job) -> LayerStore:
    store = LayerStore()
    store.install({layer: initial_state(job.model, layer, seed=1) for layer in range(4)}, 2)
    return store


def record(step: int) -> CommitRecord:
    return CommitRecord(step=step, generation=1, gradient_norm=1.0, loss=1.0, num_tokens=288)


def test_a_layer_that_is_being_changed_is_not_held(store: LayerStore) -> None:
    with store.updating(2, 3):
        assert store.version(2) is None
        assert store.held() == {0: 2, 1: 2, 3: 2}
    assert store.held() == {0: 2, 1: 2, 2: 3, 3: 2}


def test_a_layer_whose_update_failed_is_never_valid_again(store: LayerStore) -> None:
    with pytest.raises(RuntimeError), store.updating(2, 3):
        raise RuntimeError("half-way")
    assert store.version(2) is None


def test_layers_not_needed_are_dropped(store: LayerStore) -> None:
    store.keep([1, 3, 9])
    assert store.held() == {1: 2, 3: 2}
    with pytest.raises(KeyError):
        store.tensors(0)


def test_invariant_2_a_step_is_applied_to_each_layer_once(job: Job, store: LayerStore) -> None:
    """A roll-forward after an update that was broken off finishes it, and repeats nothing."""
    sums = GradientSums(job.layouts, job.accumulation)
    for total in sums.sums.values():
        total.fill_(1 << 40)
    with store.updating(1, 3):
        pass  # as if it had been applied
    before = {layer: state.parameters.clone() for layer, state in store.states.items()}
    apply_step(job, store, CommitFeed(), sums.sums, record(2))
    apply_step(job, store, CommitFeed(), sums.sums, record(2))
    assert store.held() == dict.fromkeys(range(4), 3)
    changed = {x: not torch.equal(s.parameters, before[x]) for x, s in store.states.items()}
    assert changed == {0: True, 1: False, 2: True, 3: True}


def test_a_copy_holds_the_whole_state(job: Job, store: LayerStore) -> None:
    for tensor in store.tensors(1).values():
        tensor.add_(1.0)
    copy = empty_state(job.layouts[1])
    fill(copy, store.tensors(1))
    for slot in ("parameters", "exp_avg", "exp_avg_sq"):
        assert torch.equal(copy.buffer(slot), store.states[1].buffer(slot))


def test_the_bytes_of_copied_layers_are_counted(job: Job, store: LayerStore) -> None:
    """Whole states, parameters and optimizer; those from the initial state are not among them."""
    own = LayerStore()
    work = LayerTasks(
        job=job, initial_state=InitialStateFromSeed(job=job), store=own, fence=Fence(1)
    )
    fetcher = LayerFetcher(job_secret=SECRET, failpoints=Failpoints())
    store.install({layer: initial_state(job.model, layer, seed=1) for layer in range(4)}, 0)
    with contextlib.closing(serve(store)) as server:
        wanted = WantedLayers(
            version=0, initial=[0], copied={1: [server.address], 2: [server.address]}
        )
        num_bytes = work.obtain(wanted, generation=1, fetcher=fetcher)
    assert own.held() == {0: 0, 1: 0, 2: 0}
    states = (own.states[1], own.states[2])
    slots = ("parameters", "exp_avg", "exp_avg_sq")
    assert num_bytes == sum(state.buffer(slot).nbytes for state in states for slot in slots)


def test_a_copy_of_something_else_is_refused(job: Job, store: LayerStore) -> None:
    with pytest.raises(ValueError, match="is missing or is not of shape"):
        fill(empty_state(job.layouts[0]), store.tensors(1))


def test_a_copy_that_completes_after_a_fence_is_not_installed(job: Job) -> None:
    """Nothing interrupts what has arrived: it is asked for once more when it is to be installed."""
    store, fence = LayerStore(), Fence(1)
    work = LayerTasks(
        job=job, initial_state=InitialStateFromSeed(job=job), store=store, fence=fence
    )
    wanted = WantedLayers(version=0, initial=[0])
    fetcher = LayerFetcher(job_secret="secret", failpoints=Failpoints())
    fence.fence(2)
    with pytest.raises(StaleGenerationError):
        work.obtain(wanted, generation=1, fetcher=fetcher)
    assert store.held() == {}
    work.obtain(wanted, generation=2, fetcher=fetcher)
    assert store.held() == {0: 0}


def test_other_data_than_the_agent_read_is_refused(tmp_path: Path) -> None:
    files = training_job(tmp_path).files
    (tmp_path / "text.txt").write_text("something else " * 100)
    with pytest.raises(DataError, match="has changed since the agent read it"):
        open_job("job", json.dumps(files.spec), files.data_path, torch.device("cpu"))
