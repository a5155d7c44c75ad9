"""Every order of events of a small job keeps the invariants.

The search goes through all states of the coordinator's decide() and the engines' promises; see
search.py. What it may not find: a microbatch summed twice or never [1], replicas that went
apart or a step taken back [2], a job that fails although a replica is left [5], and a state in
which nothing can happen any more. Without its guards it finds them: unit/guards.
"""

from typing import Any

import pytest

from planaria_coordinator.domain.engines.directive import QuiesceMode
from planaria_coordinator.domain.recovery.transition import Cause, Phase
from unit.coordinator.protocol.cluster import (
    DISPLACING,
    DRAINING,
    EVEN,
    GROWING,
    JOINING,
    REPLACING,
    SPARING,
    UNEVEN,
    Cluster,
)
from unit.coordinator.protocol.model import Model
from unit.coordinator.protocol.search import Found, search
from unit.coordinator.protocol.takeover import TakeoverModel


@pytest.mark.parametrize("cluster", [UNEVEN, pytest.param(EVEN, marks=pytest.mark.slow)])
def test_one_loss_at_any_moment(cluster: Cluster) -> None:
    model = Model(num_faults=1, num_crashes=0, cluster=cluster)
    found = search(model)
    assert found.num_ends > 100
    ways = [run.transition for run in model.runs if run.transition is not None]
    assert any(transition.finishes_step for transition in ways), "pipelines finish steps"
    assert any(transition.plans_online for transition in ways), "and others regrow"
    assert any(transition.activated and transition.staged for transition in ways), "online"


def test_two_losses_at_any_moments_of_a_step() -> None:
    """Directives of different generations may overtake one another besides."""
    model = Model(num_faults=2, num_crashes=0, num_steps=1, reorders=True, cluster=UNEVEN)
    assert search(model).num_ends > 200


def test_a_loss_and_an_assignment_that_cannot_be_staged() -> None:
    """The change is made parked then, with copies."""
    model = Model(num_faults=1, num_crashes=0, num_failures=1, cluster=UNEVEN)
    search(model)
    ways = [run.transition for run in model.runs if run.transition is not None]
    assert any(transition.copied for transition in ways)


@pytest.mark.parametrize(
    ("cluster", "num_lacks", "num_states"),
    [
        (UNEVEN, 1, 7_692),
        pytest.param(UNEVEN, 2, 13_042, marks=pytest.mark.slow),
        pytest.param(EVEN, 1, 68_009, marks=pytest.mark.slow),
    ],
)
def test_a_loss_and_groups_that_cannot_be_made(
    cluster: Cluster, num_lacks: int, num_states: int
) -> None:
    """Healthy pipelines finish a step, and continue; counts as in docs/verification."""
    model = Model(num_faults=1, num_crashes=0, num_lacks=num_lacks, cluster=cluster)
    assert search(model).num_states == num_states
    ways = [run.transition for run in model.runs if run.transition is not None]
    assert {way.mode for way in ways if way.history.num_attempts} == set(QuiesceMode)


def test_a_handover_with_any_engine_slow() -> None:
    """Whoever hears of it late, or has its layers late: all train on in the new plan."""
    model = Model(num_faults=0, num_crashes=0, cluster=DRAINING, drains=True)
    assert search(model).num_ends > 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cluster", "num_faults", "num_crashes", "num_steps", "num_states"),
    [
        (EVEN, 2, 0, 2, 299_673),
        (EVEN, 1, 1, 1, 238_294),
        (UNEVEN, 2, 0, 3, 27_599),
        (UNEVEN, 1, 1, 3, 101_635),
    ],
)
def test_faults_and_crashes_at_any_moments(
    cluster: Cluster, num_faults: int, num_crashes: int, num_steps: int, num_states: int
) -> None:
    """Two losses, and a loss and a crash; counts as in docs/verification."""
    model = Model(
        num_faults=num_faults, num_crashes=num_crashes, num_steps=num_steps, cluster=cluster
    )
    assert search(model).num_states == num_states


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [DRAINING, DISPLACING])
@pytest.mark.parametrize(
    ("num_faults", "num_crashes", "num_failures"), [(1, 0, 0), (0, 1, 0), (1, 0, 1)]
)
def test_a_handover_with_a_fault_at_any_moment(
    cluster: Cluster, num_faults: int, num_crashes: int, num_failures: int
) -> None:
    """Somebody dies, or the coordinator crashes, at any moment of a change of all places."""
    model = Model(
        num_faults=num_faults,
        num_crashes=num_crashes,
        num_failures=num_failures,
        cluster=cluster,
        drains=True,
    )
    assert search(model).num_states > 200_000
    ways = [run.transition for run in model.runs if run.transition is not None]
    assert any(transition.has_switched for transition in ways), "some had changed over already"


@pytest.mark.parametrize(
    ("cluster", "num_steps"),
    [
        (UNEVEN, 1),
        pytest.param(UNEVEN, 2, marks=pytest.mark.slow),
        pytest.param(EVEN, 1, marks=pytest.mark.slow),
    ],
)
def test_a_coordinator_that_is_replaced_in_a_recovery_and_wakes_up(
    cluster: Cluster, num_steps: int
) -> None:
    """It freezes at any moment, after a decision is stored too, and wakes up at any later one."""
    search_takeovers(num_faults=1, num_steps=num_steps, cluster=cluster)


@pytest.mark.slow
def test_a_coordinator_that_sends_what_the_database_has_lost() -> None:
    """Its agents have met its successor, which has made another decision of the same number."""
    search_takeovers(num_faults=1, num_steps=1, cluster=UNEVEN, forgets=True)


@pytest.mark.slow
def test_a_coordinator_that_is_replaced_in_a_handover_and_wakes_up() -> None:
    """While a node is freed and another one takes its place."""
    search_takeovers(num_faults=0, cluster=DRAINING, drains=True)


def search_takeovers(**model: Any) -> None:
    searched = TakeoverModel(num_crashes=0, num_takeovers=1, **model)
    assert search(searched).num_ends > 100
    assert searched.num_late > 0, "some directives were sent late"


def assert_somebody_joins(model: Model, found: Found) -> None:
    """Engines were started for a join, and have places in the last plan of some runs."""
    ways = [run.transition for run in model.runs if run.transition is not None]
    starts = [way for way in ways if way.phase is Phase.PREPARING]
    assert any(way.history.cause is Cause.NODE_JOINED for way in starts)
    assert any(placed.issuperset(model.cluster.joiners) for placed in found.placed_at_end)


@pytest.mark.parametrize("cluster", [JOINING, REPLACING, GROWING])
def test_a_join_with_any_engine_slow(cluster: Cluster) -> None:
    """Nodes are given to the job at any moment, and each engine is ready at any later one."""
    model = Model(num_faults=0, num_crashes=0, cluster=cluster)
    found = search(model)
    assert found.num_ends > 200
    assert_somebody_joins(model, found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cluster", "num_faults", "num_crashes", "num_states"),
    [
        (JOINING, 1, 0, 272_586),
        (REPLACING, 1, 0, 300_902),
        (SPARING, 1, 0, 374_079),
        (JOINING, 0, 1, 365_932),
        (REPLACING, 0, 1, 451_419),
        (GROWING, 0, 1, 261_415),
    ],
)
def test_a_join_with_a_fault_at_any_moment(
    cluster: Cluster, num_faults: int, num_crashes: int, num_states: int
) -> None:
    """Somebody dies, or the coordinator crashes; counts as in docs/verification."""
    model = Model(num_faults=num_faults, num_crashes=num_crashes, cluster=cluster)
    found = search(model)
    assert found.num_states == num_states
    assert_somebody_joins(model, found)
