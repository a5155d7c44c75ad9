"""Schedules follow from their seed, and the checks see what they are there to see."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.chaos import disturbance as chaos
from benchmarks.chaos.checks import ledger_is_exact, nobody_restarted_in_vain
from benchmarks.chaos.schedule import OF_NO_NODE, Event, make_schedule
from benchmarks.common import trace
from benchmarks.common.trace import EngineTrace

STEP = {"num_steps": 1, "num_layers": 2, "num_microbatches": 2}


def engine(node_id: str, *, claims: Sequence[int], generation: int = 1) -> EngineTrace:
    """Return an engine of a pipeline of one stage that committed step 0 of generation 1."""
    claim = {"step": 0, "first_layer": 0, "num_layers": 2, "microbatches": list(claims)}
    events = [
        trace.Event(name="vote", at=1.0, detail={**claim, "generation": generation}),
        trace.Event(name="commit", at=2.0, detail={"step": 0, "generation": 1}),
    ]
    return EngineTrace(name=f"job.{node_id}.0.1", events=events)


@pytest.mark.parametrize("seed", range(20))
def test_a_schedule_follows_from_its_seed_and_hurts_only_nodes_that_are_there(seed: int) -> None:
    events = make_schedule(seed, 60, num_nodes=6)
    assert events == make_schedule(seed, 60, num_nodes=6)
    alive = {f"node-{number:03d}" for number in range(6)}
    for event in events:
        if event.kind == "join":
            assert event.node_id not in alive
            alive.add(event.node_id)
        elif event.kind not in OF_NO_NODE:
            assert event.node_id in alive
        if event.kind in ("kill", "drain"):
            alive.remove(event.node_id)
        assert len(alive) >= 4


def test_a_node_that_is_being_freed_counts_as_lost_until_it_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job runs all the while, by a plan that counts on that node."""
    monkeypatch.setattr(chaos, "SECONDS_TO_NOTICE", 0.0)
    node = SimpleNamespace(id="a", state="READY")
    client = SimpleNamespace(
        drain_node=lambda _: setattr(node, "state", "DRAINING"),
        get_node=lambda _: node,
        list_nodes=lambda: [node],
    )
    cluster: Any = SimpleNamespace(
        client=client,
        nodes={},
        kill_node=lambda _: None,
        wait_for=lambda _what, condition, _timeout: condition(),
    )
    plan = SimpleNamespace(fault_tolerance=2)
    run: Any = SimpleNamespace(job=SimpleNamespace(state="RUNNING", is_done=False), plan=plan)
    disturbance = chaos.Disturbance(cluster, run, lambda _: None)
    assert disturbance._may_lose_another()
    disturbance._do(Event(kind="drain", node_id="a", delay_steps=0.0))
    assert disturbance._may_lose_another()
    disturbance._do(Event(kind="kill", node_id="b", delay_steps=0.0))
    assert not disturbance._may_lose_another()
    node.state, plan.fault_tolerance = "DRAINED", 1
    disturbance._pause(0.0)
    assert disturbance._may_lose_another()
    assert disturbance._losses_left == 1


def test_a_sum_with_each_microbatch_once_is_exact_whatever_came_to_nothing_before() -> None:
    engines = [
        engine("a", claims=[1]),
        engine("b", claims=[0]),
        engine("c", claims=[0, 1], generation=0),
    ]
    assert list(ledger_is_exact(engines, **STEP)) == []


@pytest.mark.parametrize("claims", [([0], [0, 1]), ([0], []), ([0, 1], [0, 1])])
def test_a_microbatch_twice_or_never_in_a_sum_is_seen(
    claims: tuple[Sequence[int], Sequence[int]],
) -> None:
    engines = [engine("a", claims=claims[0]), engine("b", claims=claims[1])]
    assert list(ledger_is_exact(engines, **STEP))


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_step_that_only_a_lost_engine_had_committed_is_done_once_more(is_lost: bool) -> None:
    def commits(*steps: tuple[int, int]) -> list[trace.Event]:
        return [
            event
            for step, generation in steps
            for event in [
                trace.Event(
                    name="vote",
                    at=float(step),
                    detail={
                        "step": step,
                        "generation": generation,
                        "first_layer": 0,
                        "num_layers": 1,
                        "microbatches": [0],
                    },
                ),
                trace.Event(
                    name="commit", at=step + 0.5, detail={"step": step, "generation": generation}
                ),
            ]
        ]

    first = commits((0, 1)) if is_lost else commits((0, 1), (1, 1))
    engines = [
        EngineTrace(name="job.a.0.1", events=first),
        EngineTrace(name="job.b.0.2", events=commits((0, 2), (1, 2))),
    ]
    found = list(ledger_is_exact(engines, num_steps=2, num_layers=1, num_microbatches=1))
    assert (found == []) is is_lost


def test_a_step_that_was_not_committed_is_seen() -> None:
    assert list(ledger_is_exact([], **STEP))


def test_an_engine_that_was_restarted_without_a_cause_is_seen() -> None:
    twice = [engine("a", claims=[]), engine("a", claims=[]), engine("b", claims=[])]
    killed = Event(kind="kill_engine", node_id="a", delay_steps=0.0)
    assert list(nobody_restarted_in_vain(twice, [killed])) == []
    assert list(nobody_restarted_in_vain(twice, []))
