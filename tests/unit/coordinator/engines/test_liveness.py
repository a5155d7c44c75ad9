"""A node is lost when its lease is over, a job hangs when all its engines do."""

import pytest

from planaria_coordinator.domain.engines.liveness import Liveness, observe_progress, why_node_lost


@pytest.mark.parametrize(
    ("silence", "session_open", "holds_engines", "peer_lost", "is_lost"),
    [
        (2.9, True, True, False, False),
        (3.1, True, True, False, True),  # a cut network, or a stopped machine
        (3.1, True, False, False, True),
        (3.1, False, False, False, True),
        (3.1, False, True, False, False),  # perhaps only the agent has crashed
        (10.1, False, True, False, True),  # its engines have stopped by now
        (0.1, False, True, True, True),  # the machine is gone
        (0.1, True, True, True, False),  # the agent will say what happened
    ],
)
def test_a_node_is_lost_when_its_deadline_is_over(
    silence: float, session_open: bool, holds_engines: bool, peer_lost: bool, is_lost: bool
) -> None:
    seen = Liveness(
        last_seen_seconds=100.0,
        session_open=session_open,
        session_ended=not session_open,
        holds_engines=holds_engines,
        peer_lost=peer_lost,
    )
    why = why_node_lost(100.0 + silence, seen, node_deadline_seconds=3.0, agent_lease_seconds=10.0)
    assert (why is not None) == is_lost


@pytest.mark.parametrize(
    ("silence", "holds_engines", "peer_lost", "is_lost"),
    [
        (9.9, True, False, False),  # its agent tries again, and its engines go on
        (10.1, True, False, True),  # they have stopped by now
        (2.9, True, True, False),  # an engine that died alone does not make its node lost
        (3.1, True, True, True),
        (3.1, False, False, True),
    ],
)
def test_after_our_own_restart_a_node_has_time_to_connect(
    silence: float, holds_engines: bool, peer_lost: bool, is_lost: bool
) -> None:
    seen = Liveness(
        last_seen_seconds=0.0,
        session_open=False,
        session_ended=False,
        holds_engines=holds_engines,
        peer_lost=peer_lost,
    )
    why = why_node_lost(silence, seen, node_deadline_seconds=3.0, agent_lease_seconds=10.0)
    assert (why is not None) == is_lost


def test_a_job_advances_while_any_engine_does() -> None:
    first = observe_progress(1.0, None, {"a": 1, "b": 1})
    second = observe_progress(2.0, first, {"a": 1, "b": 2})
    third = observe_progress(3.0, second, {"a": 1, "b": 2})
    assert (first.since_seconds, second.since_seconds, third.since_seconds) == (1.0, 2.0, 2.0)
