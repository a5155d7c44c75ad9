"""The figures of a recovery are what the engines' traces say."""

from collections.abc import Iterator

import pytest

from benchmarks.common.jobs import job
from benchmarks.common.trace import EngineTrace, nobody_computes
from benchmarks.common.workbench import Hurt, Run, Workbench, node_ids
from benchmarks.recovery.anatomy import commit_times, dissect
from planaria.models import Recovery

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(240)]

MANY_STEPS = 1_000_000
TOLERANCE_SECONDS = 0.03
"""Timestamps are taken next to the events of a trace, by threads that may wait for a core."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    """Four nodes, whose engines write traces."""
    with Workbench(tmp_path_factory.mktemp("figures"), num_nodes=4) as running:
        yield running


@pytest.fixture
def run(bench: Workbench) -> Iterator[Run]:
    """A paced job in two pipelines of two nodes."""
    while len(bench.cluster.nodes) < 4:
        bench.add_node()
    bench.cluster.wait_for_nodes(4)
    training = bench.train(job("paced", bench.text, steps=MANY_STEPS, seed=3))
    training.wait_until_whole(4, num_steps=6)
    yield training
    training.cancel()


def test_of_a_loss_whose_step_a_healthy_pipeline_finishes(run: Run) -> None:
    hurt = run.kill(run.node_ids[0], delay_seconds=0.2)
    recovery = run.wait_for_recovery(hurt)
    anatomy = dissect(run.traces, hurt, recovery)
    late = anatomy.seconds_to_noticed  # figures count from the fault as the coordinator knows it
    assert close(recovery.fence_seconds, anatomy.fence_seconds - late)
    assert close(recovery.resume_seconds, anatomy.resume_seconds - late)
    assert close(recovery.regrow_seconds, anatomy.regrow_seconds - late)
    # Beyond the waits of every step: all may switch at the same commit, for a moment.
    nobody = sum(anatomy.nobody_computed_seconds.values())
    assert recovery.idle_seconds is not None
    assert recovery.idle_seconds < nobody + TOLERANCE_SECONDS
    assert nobody - anatomy.usual_nobody_computed_seconds < 2 * TOLERANCE_SECONDS
    in_order = [
        *(recovery.detect_seconds, recovery.fence_seconds),
        *(recovery.resume_seconds, recovery.regrow_seconds),
    ]
    assert in_order == sorted(each for each in in_order if each is not None)


def test_of_a_loss_that_leaves_no_healthy_pipeline(run: Run) -> None:
    """All stop at once; the figures and what the step lost are those of the only transition."""
    first, second = (node_ids(pipeline) for pipeline in run.plan.pipelines)
    hurt = run.kill(first[0], second[1])
    recovery = run.wait_for_recovery(hurt)
    survivors = {first[1], second[0]}
    assert set(recovery.nodes_lost) == {first[0], second[1]}
    traces = [engine for engine in run.traces if engine.node_id in survivors]
    assert recovery.start_time is not None
    fault = recovery.start_time.timestamp() - hurt.time + hurt.at
    fences = [fence_time(engine, hurt, recovery) for engine in traces]
    active = max(
        event.at
        for engine, at in zip(traces, fences, strict=True)
        if (event := engine.first("activated", at)) is not None
    )
    assert close(recovery.fence_seconds, max(fences) - fault)
    assert close(recovery.resume_seconds, active - fault)
    assert recovery.regrow_seconds == recovery.resume_seconds
    idle = sum(nobody_computes(traces, (fault, active)).values())
    assert close(recovery.idle_seconds, idle)

    run.wait_for("the steps to compare with", lambda: measured(run, recovery) is not None)
    commits = commit_times(engine for engine in run.traces if engine.node_id in survivors)
    hit = min(step for step, at in commits.items() if at > active)
    lengths = [commits[hit + n + 1] - commits[hit + n] for n in range(10)]
    usual = (sorted(lengths)[4] + sorted(lengths)[5]) / 2
    assert close(measured(run, recovery), commits[hit] - commits[hit - 1] - usual)


def measured(run: Run, recovery: Recovery) -> float | None:
    return run.recoveries[recovery.id - 1].lost_seconds


def fence_time(engine: EngineTrace, hurt: Hurt, recovery: Recovery) -> float:
    """Return when an engine saw the last fence, that of the plan which the recovery led to."""
    event = engine.first("fence", hurt.at, generation=recovery.generation)
    assert event is not None
    return event.at


def close(figure: float | None, traced: float) -> bool:
    return figure == pytest.approx(traced, abs=TOLERANCE_SECONDS)
