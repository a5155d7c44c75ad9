"""The gradients of pipelines of different depth, side by side, are those of one process.

Threads and groups in memory: the schedule, the sums and the exchange are the real ones.
"""

import dataclasses
import gc
import json
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest
import torch
from torch import Tensor

from planaria_worker.engine.groups import GroupBroken
from planaria_worker.engine.job import Job
from planaria_worker.engine.numerics.accumulate import FloatingPoint, GradientSums
from planaria_worker.engine.numerics.loss import summed_cross_entropy
from planaria_worker.engine.plan.plan import FollowerAssignment
from planaria_worker.engine.step import pipeline_stage as pipeline_module
from planaria_worker.engine.step.training_context import TrainingContext
from planaria_worker.engine.step.training_step import (
    begin_step,
    compute,
)
from planaria_worker.engine.telemetry import Trace
from planaria_worker.models.stage import Microbatch, build_stage
from planaria_worker.models.state import initial_state
from support.memory_groups import MemoryAllReduce, MemoryGroup
from unit.engine.contexts import (
    build_contexts,
    make_job,
    run_contexts,
    run_one_step,
    run_step,
    run_steps,
)
from unit.engine.plans import pipeline

PLANS = {
    "one": [pipeline(0, [5], [0, 1, 2, 3, 4])],
    "deep and flat": [pipeline(0, [1, 2, 4, 5], [4, 0, 2]), pipeline(1, [5], [1, 3])],
    "three cuts": [
        pipeline(0, [2, 5], [0, 3]),
        pipeline(1, [4, 5], [1, 4]),
        pipeline(2, [1, 3, 5], [2]),
    ],
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "llama, tied": {"family": "llama", "tie_word_embeddings": True},
    "qwen3": {"family": "qwen3"},
    "gpt2": {"family": "gpt2"},
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


class WatchedGroup(MemoryGroup):
    """Says when it begins to add up gradients."""

    when_begun: Callable[[], None]

    def iall_reduce(self, tensor: Tensor) -> MemoryAllReduce:
        if tensor.dim() == 1:  # else it says what is whole
            self.when_begun()
        return super().iall_reduce(tensor)


def contributions(job: Job) -> dict[int, list[Tensor]]:
    """What is added up to each layer's gradient, from a model of two stages: one each microbatch,
    two for a layer that both host."""
    states = {x: initial_state(job.model, x, seed=job.seed) for x in range(job.num_layers)}
    bodies = build_stage(job.model, 0, job.num_layers - 1, states, seed=job.seed)
    head = build_stage(job.model, job.num_layers - 1, 1, states, seed=job.seed)
    stages = [(stage, GradientSums(job.layouts, FloatingPoint())) for stage in (bodies, head)]
    for stage, sums in stages:
        sums.collect(stage.leaves)
    each: dict[int, list[Tensor]] = {x: [] for x in range(job.num_layers)}
    for index in range(job.num_microbatches):
        microbatch = Microbatch(step=0, index=index)
        rows = torch.from_numpy(job.dataset.rows(job.order.microbatch(0, index)))
        hidden = bodies(rows[:, :-1], microbatch)
        received = hidden.detach().requires_grad_()
        loss = summed_cross_entropy(head(received, microbatch), rows[:, 1:])
        torch.autograd.backward(loss)
        torch.autograd.backward(hidden, received.grad)
        for _, sums in stages:
            for layer, total in sums.sums.items():
                each[layer].append(total.double())
            sums.clear()
    return each


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_default_mode_differs_by_rounding_alone(tmp_path: Path, model: dict[str, Any]) -> None:
    """|sum - exact| <= n eps sum |g_i| for every element, n contributions in any order."""
    job = make_job(tmp_path, model, reproducible=False)
    exact = {layer: torch.stack(each) for layer, each in contributions(job).items()}
    eps = torch.finfo(torch.float32).eps
    for plan in PLANS.values():
        for context, _ in run_one_step(job, plan):
            for layer, total in context.reduced.items():
                bound = len(exact[layer]) * eps * exact[layer].abs().sum(0)
                off = (total.double() - exact[layer].sum(0)).abs()
                assert (off <= bound).all(), (layer, plan)


@pytest.mark.parametrize("has_room", [True, False])
@pytest.mark.parametrize("travels", ["in pieces", "by layer"])
def test_layers_that_travel_apart_have_the_same_sums(
    tmp_path: Path, travels: str, has_room: bool
) -> None:
    """Also where a copy with complete sums is needed again before the commit (`_reclaim`)."""
    job = make_job(tmp_path, MODELS["gpt2"], reproducible=True)
    largest = max(layout.num_elements for layout in job.layouts) * torch.int64.itemsize
    together = run_steps(build_contexts(job, PLANS["three cuts"]))
    job = dataclasses.replace(
        job,
        bucket_bytes=1024 if travels == "in pieces" else largest,
        buckets_in_flight=job.buckets_in_flight if has_room else 1,
    )
    assert run_steps(build_contexts(job, PLANS["three cuts"])) == together


def test_a_follower_adds_nothing_of_the_step_before(tmp_path: Path) -> None:
    """Guard: `settle` before a sum; in pieces, the whole one is where its own would be."""
    job = make_job(tmp_path, MODELS["llama"], reproducible=True)
    job = dataclasses.replace(job, bucket_bytes=1024)
    plan = PLANS["deep and flat"]
    follower = FollowerAssignment(engine_id="f", data_address="", layers=(3,))
    alone = run_steps(build_contexts(job, plan))
    assert run_steps(build_contexts(job, plan, followers=[follower])) == [*alone, *alone[:2]]


@pytest.mark.parametrize("resumed_step", [None, 0])
def test_the_first_sum_begins_within_the_last_backward_pass(
    tmp_path: Path, resumed_step: int | None
) -> None:
    """Its gradient of the highest layer is on its way when that of the lowest is yet to come.

    Where others may have something whole, at least with those whom all have told in time. The last
    one begins after the pass.
    """
    job = make_job(tmp_path, MODELS["llama"], reproducible=True)
    job = dataclasses.replace(job, bucket_bytes=1024, buckets_in_flight=1000)
    plan = [pipeline(0, [2, 5], [0, 1, 3]), pipeline(1, [3, 5], [2, 4])]
    contexts = build_contexts(job, plan, WatchedGroup, resumed_step=resumed_step)
    at_first: dict[str, list[int]] = {}
    at_last: dict[str, list[int]] = {}

    def note(context: TrainingContext) -> None:
        at_last[context.view.engine_id] = list(context.progress.finished)
        at_first.setdefault(context.view.engine_id, at_last[context.view.engine_id])

    for context in contexts:
        for group in context.data_parallel_groups:
            cast(WatchedGroup, group).when_begun = partial(note, context)
    is_early = [
        at_first[context.view.engine_id] == context.progress.finished[:-1]
        for context, _ in run_contexts(contexts)
    ]
    assert all(is_early) if resumed_step is None else any(is_early)
    assert at_last == {context.view.engine_id: context.progress.finished for context in contexts}


def test_a_sum_with_a_gradient_out_of_range_is_not_complete(tmp_path: Path) -> None:
    """Were it kept for the next attempt, nobody might be left who knows."""
    job = make_job(tmp_path, MODELS["llama"], reproducible=True)
    contexts = build_contexts(job, [pipeline(0, [2, 5], [0, 1, 3]), pipeline(1, [3, 5], [2, 4])])
    assert contexts[0].pipeline is not None
    weight = next(leaf.parameter for leaf in contexts[0].pipeline._stage.leaves if leaf.layer == 1)
    register: Any = weight.register_hook
    register(lambda gradient: gradient.fill_(torch.inf))

    def run(context: TrainingContext) -> None:
        record = run_step(context, 0).record
        assert (record.num_skipped, record.skipped_layer) == (1, 1)

    with ThreadPoolExecutor(len(contexts)) as threads:
        list(threads.map(run, contexts))
    hosting = [context.sums.num_complete for context in contexts if 1 in context.view.hosted_layers]
    assert [sorted(num_complete) for num_complete in hosting] == [[0], [0, 2]]


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("is_forward", [True, False])
def test_an_aborted_pass_ends_between_two_layers(
    tmp_path: Path, is_forward: bool, checkpointed: bool
) -> None:
    """Whoever lost its pipeline takes part again before its pass would have been over."""
    job = make_job(tmp_path, MODELS["llama"], reproducible=True)
    job = dataclasses.replace(job, activation_checkpointing=checkpointed)
    (context,) = build_contexts(job, PLANS["one"])
    assert context.pipeline is not None
    middle = job.num_layers // 2
    stage = context.pipeline._stage
    context.resources.stopwatch.trace = Trace(tmp_path / "trace")
    ran = []
    for layer, built in stage._built.items():
        for module in built.parts.values():
            module.register_forward_hook(lambda *_, layer=layer: ran.append(layer))
    (module,) = stage._built[middle].parts.values()
    if is_forward:
        module.register_forward_hook(lambda *_: context.halt.set())
    else:
        weight = next(module.parameters())
        cast(Any, weight).register_post_accumulate_grad_hook(lambda _: context.halt.set())
    with pytest.raises(GroupBroken, match="halted"):
        run_step(context, 0)
    summed = {layer for layer, total in context.sums.sums.items() if total.any()}
    spans = {json.loads(line)["span"] for line in (tmp_path / "trace").read_text().splitlines()}
    assert ("backward" in spans) is not is_forward
    assert "forward" in spans
    assert all(leaf.parameter.grad is None for leaf in stage.leaves)
    if is_forward:
        assert not summed
        assert max(ran) == middle
    else:
        assert summed >= set(range(middle + 1, job.num_layers))
        assert not summed & set(range(middle))


def test_memory_of_a_generation_is_freed_with_it(tmp_path: Path) -> None:
    """At once, not when the garbage collector comes by: it has no business in a recovery."""
    job = make_job(tmp_path, MODELS["llama"], reproducible=True)
    gc.collect()
    gc.disable()
    try:
        done = run_one_step(job, PLANS["deep and flat"])
        parts = [
            weakref.ref(part) for context, _ in done for part in (context.pipeline, context.sums)
        ]
        del done
        assert not any(part() for part in parts)
    finally:
        gc.enable()


class Unbuilt:
    """Groups that could not be made: they keep the reason for whoever waits."""

    is_over = True
    reason = GroupBroken("nobody came")

    def wait(self) -> NoReturn:
        raise self.reason


def test_groups_that_could_not_be_made_keep_nothing_of_a_pass(tmp_path: Path) -> None:
    """Guard: `with_traceback`."""
    job = make_job(tmp_path, MODELS["llama"], reproducible=True)
    (context,) = build_contexts(job, PLANS["one"])
    context.reduction, context.groups_being_built = None, cast(Any, Unbuilt())
    gc.collect()
    gc.disable()
    try:
        begin_step(context, 0)
        compute(context, context.view.pipeline.microbatches)
        assert len(context.progress.finished) == job.num_microbatches
        stage = weakref.ref(context.pipeline)
        del context
        assert stage() is None
        assert Unbuilt.reason
    finally:
        gc.enable()


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_reproducible_mode_has_one_sum_and_one_norm(tmp_path: Path, model: dict[str, Any]) -> None:
    job = make_job(tmp_path, model, reproducible=True)
    ((whole, committed),) = run_one_step(job, PLANS["one"])
    for plan in PLANS.values():
        for context, done in run_one_step(job, plan):
            assert done.record == committed.record
            for layer, total in context.reduced.items():
                assert torch.equal(total, whole.reduced[layer])
                ours, theirs = (
                    context.resources.store.states[layer],
                    whole.resources.store.states[layer],
                )
                assert torch.equal(ours.parameters, theirs.parameters)


def test_a_peer_is_waited_for_after_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What hangs on a device must not look like a peer that is late: the watchdog tells them apart
    by what the thread waits for. Guard: `_finish_computing`."""
    job = make_job(tmp_path, MODELS["llama"], reproducible=True)
    calls: dict[int, list[str]] = {}

    def note(what: str) -> None:
        calls.setdefault(threading.get_ident(), []).append(what)

    def await_device(device: torch.device) -> bool:
        note("device")
        return True

    def noted(real: Callable[..., Any], what: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            note(what)
            return real(*arguments)

        return call

    monkeypatch.setattr(pipeline_module, "await_device", await_device)
    monkeypatch.setattr(MemoryGroup, "recv", noted(MemoryGroup.recv, "recv"))
    done = run_one_step(job, PLANS["deep and flat"])
    assert sum(count.count("recv") for count in calls.values()) > 0
    for made in calls.values():
        num_in_step = len(made) - made[::-1].index("device")  # behind it comes the exchange
        for before, call in pairwise(made[:num_in_step]):
            assert call != "recv" or before == "device"
    assert all(context.progress.compute_seconds > 0 for context, _ in done)
