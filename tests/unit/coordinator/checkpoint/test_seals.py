"""Whatever engines say of a version and in whatever order, a seal names every layer once."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planaria_coordinator.domain.engines.directive import Directive, LayerWritten, SealCheckpoint
from planaria_coordinator.domain.engines.outcome import CheckpointTaken, Failure
from planaria_coordinator.domain.job.actions import Emit, Send
from planaria_coordinator.domain.job.decide import decide
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.job_run import JobRun, Limits, Moment
from planaria_coordinator.domain.job.signals import CheckpointReported, Restarted, Signal, Tick
from planaria_coordinator.domain.job.turn import Decision
from unit.coordinator.simulation.checkpoint_world import ALL, FULL, checkpointed_world, written


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int]]:
    """What engines may say of two versions, in any order and as often as they like."""
    words = st.tuples(
        st.sampled_from(["taken", "written", "written", "written"]), st.sampled_from(ALL)
    )
    history = draw(st.lists(words, min_size=10, max_size=60))
    for _ in range(draw(st.integers(0, 1))):
        history.insert(draw(st.integers(0, len(history))), ("failed", 0))
    return history


@pytest.fixture(scope="module")
def run() -> JobRun:
    """A job that trains, seen once."""

    async def trained() -> JobRun:
        world = await checkpointed_world()
        run = world.run
        await world.stop()
        return run

    return asyncio.run(trained())


def decided(run: JobRun, signal: Signal, *, seconds: float = 0.0) -> Decision:
    return decide(Moment(seconds=seconds, time=run.time_account.since), run, signal, Limits())


def seals(decision: Decision) -> list[Directive]:
    sent = [action.directive for action in decision.actions if isinstance(action, Send)]
    return [directive for directive in sent if isinstance(directive.command, SealCheckpoint)]


def told(decision: Decision) -> list[str]:
    return [action.event.type for action in decision.actions if isinstance(action, Emit)]


Report = CheckpointTaken | LayerWritten | Failure


def said(run: JobRun, report: Report) -> CheckpointReported:
    return CheckpointReported(engine_id=next(iter(run.engines)), version=2, report=report)


def test_an_unanswered_seal_is_given_to_others_and_then_given_up(run: JobRun) -> None:
    for layer in ALL:
        decision = decided(run, said(run, written(layer)))
        run = decision.run
    sealers = [seal.engine_id for seal in seals(decision)]
    for hours in (1, 2, 3):
        decision = decided(run, Tick(), seconds=3600.0 * hours)
        run = decision.run
        sealers += [seal.engine_id for seal in seals(decision)]
    assert len(set(sealers)) == 3, "each time another engine"
    assert told(decision) == ["checkpoint_failed"]
    assert run.checkpoints == {}
    assert run.state is JobState.RUNNING
    assert not run.stopping, "no engine is lost for a slow disk"


def test_a_version_with_a_gap_is_given_up_at_its_deadline(run: JobRun) -> None:
    """Reports were lost with the coordinator, and nobody knows."""
    run = decided(run, said(run, written(1))).run
    run = decided(run, Restarted(), seconds=5000.0).run
    assert 2 in decided(run, Tick(), seconds=5001.0).run.checkpoints, "its deadline begins again"
    decision = decided(run, Tick(), seconds=9000.0)
    assert told(decision) == ["checkpoint_incomplete"]
    assert decision.run.checkpoints == {}


@given(history=histories())
def test_a_seal_names_every_layer_once_and_none_follows_a_failure(
    run: JobRun, history: list[tuple[str, int]]
) -> None:
    seen: set[int] = set()
    sent: list[SealCheckpoint] = []
    has_failed = False
    for word, layer in history:
        taken = CheckpointTaken(layers=(layer,))
        reports: dict[str, Report] = {"taken": taken, "written": written(layer), "failed": FULL}
        decision = decided(run, said(run, reports[word]))
        run = decision.run
        if not sent and not has_failed:
            seen |= {layer} if word == "written" else set()
            has_failed = word == "failed"
        sent += [s.command for s in seals(decision) if isinstance(s.command, SealCheckpoint)]
    assert len(sent) == (seen == set(ALL))
    assert all([layer.layer for layer in seal.layers] == list(ALL) for seal in sent)
    if has_failed:
        assert run.checkpoints == {}
