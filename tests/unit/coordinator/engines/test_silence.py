"""Which silent nodes are lost: by what others say of them, and by whose silence it is."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest

from planaria_coordinator.domain.engines.silence import (
    MAX_PROBES,
    NUM_ASKED,
    Inquiry,
    Judgement,
    Patience,
    Reach,
    Sight,
    judge,
)

NOW = 1000.0
PATIENCE = Patience(
    heartbeat_interval_seconds=1.0, node_deadline_seconds=3.0, agent_lease_seconds=10.0
)
UP, REFUSED, CUT = Reach.REACHABLE, Reach.REFUSED, Reach.UNREACHABLE


def sight(silence: float = 0.0, **changes: object) -> Sight:
    """Return what is seen of a node with an engine that was last heard so long ago."""
    seen = Sight(
        last_seen_seconds=NOW - silence,
        session_open=True,
        job_ids=("job",),
        addresses=("host:1",),
    )
    return replace(seen, **changes)  # type: ignore[arg-type]


def nodes(number: int, **others: Sight) -> dict[str, Sight]:
    """Return so many nodes that are heard, and others."""
    return {**{f"n{index}": sight(0.5) for index in range(number)}, **others}


def asked(*answers: Reach, ago: float = 0.3, num: int = 3, was_reached: bool = False) -> Inquiry:
    asked_nodes = [f"n{index}" for index in range(num)]
    return Inquiry(
        probe_id="p",
        asked_seconds=NOW - ago,
        asked=frozenset(asked_nodes),
        answers=dict(zip(asked_nodes, answers, strict=False)),
        was_reached=was_reached,
    )


def judged(
    sights: dict[str, Sight], layers: Iterable[frozenset[str]] = (), *, is_blind: bool = False
) -> Judgement:
    return judge(NOW, sights, layers, PATIENCE, is_blind=is_blind)


@dataclass(frozen=True)
class Case:
    """A silent node among five, four of which are heard, and what becomes of it."""

    name: str
    seen: Sight
    becomes: str


CASES = (
    Case("is heard", sight(2.9), "heard"),
    Case("nobody has been asked yet", sight(3.1), "asked"),
    Case("no answer yet", sight(3.4, inquiry=asked()), "waited for"),
    Case("one answer of three", sight(3.4, inquiry=asked(CUT)), "waited for"),
    Case("nobody reaches it", sight(3.4, inquiry=asked(CUT, CUT, CUT)), "lost"),
    Case("the two that answered", sight(4.4, inquiry=asked(CUT, CUT, ago=1.0)), "lost"),
    Case("one reaches it", sight(3.4, inquiry=asked(CUT, UP)), "silent"),
    Case("its engines have ended", sight(3.4, inquiry=asked(REFUSED, REFUSED, REFUSED)), "lost"),
    Case("its agent has left", sight(0.1, has_left=True), "gone"),
    Case("refused and cut off", sight(3.4, inquiry=asked(REFUSED, CUT, CUT)), "lost"),
    Case("nobody has answered", sight(4.4, inquiry=asked(ago=1.1)), "lost"),
    Case("reached for long", sight(60.0, inquiry=asked(UP, ago=5.0)), "silent"),
    Case("its job waits for it", sight(3.4, inquiry=asked(UP), has_stalled=True), "lost"),
    Case("its job has stalled, unasked", sight(3.4, has_stalled=True), "asked"),
    Case("reached, ask again", sight(60.0, inquiry=asked(UP, ago=16.0)), "silent, asked"),
    Case("reached before", sight(60.0, inquiry=asked(was_reached=True)), "silent"),
    Case("reached, unanswered", sight(60.0, inquiry=asked(ago=2, was_reached=True)), "silent"),
    Case(
        "reached before, and no more",
        sight(60.0, inquiry=asked(CUT, CUT, CUT, was_reached=True)),
        "lost",
    ),
    Case("suspected, echo out", sight(0.5, suspected_seconds=NOW - 0.1), "asked"),
    Case(
        "suspected, and asked about",
        sight(0.5, suspected_seconds=NOW - 0.1, inquiry=asked(CUT, CUT, CUT)),
        "heard",
    ),
    Case("suspected, no echo", sight(0.5, suspected_seconds=NOW - 0.3), "asked"),
    Case(
        "suspected, nobody answers",
        sight(2.0, suspected_seconds=NOW - 1.5, inquiry=asked(ago=1.2)),
        "waited for",
    ),
    Case(
        "suspected and cut off",
        sight(0.9, suspected_seconds=NOW - 0.8, inquiry=asked(CUT, CUT, CUT)),
        "lost",
    ),
    Case(
        "suspected and reached",
        sight(0.9, suspected_seconds=NOW - 0.8, inquiry=asked(UP)),
        "silent",
    ),
    Case("its engines start", sight(3.1, addresses=()), "lost"),
    Case("no engines", sight(3.1, job_ids=(), addresses=()), "lost"),
    Case("no engines, heard", sight(2.9, job_ids=(), addresses=()), "heard"),
)


def became(judgement: Judgement, node_id: str) -> str:
    """Return what became of a node, in the words of the table."""
    if node_id in judgement.lost:
        return "gone" if judgement.lost[node_id].gone else "lost"
    words = ["silent"] if node_id in judgement.silent else []
    words += ["asked"] if node_id in judgement.asked else []
    waits = node_id in judgement.absent and not words
    return ", ".join(words) or ("waited for" if waits else "heard")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_becomes_of_a_node_among_others_that_are_heard(case: Case) -> None:
    judgement = judged(nodes(4, x=case.seen))
    assert became(judgement, "x") == case.becomes
    assert not judgement.lost.keys() - {"x"}
    for askers in judgement.asked.values():
        assert len(askers) == NUM_ASKED
        assert "x" not in askers


AWAY = sight(0.0, session_open=False)
REACHED = {"x": asked(UP)}


@pytest.mark.parametrize(
    ("seen", "becomes"),
    [
        (sight(2.9, session_open=False, ended_seconds=NOW - 2.9), "heard"),
        (sight(3.1, session_open=False, ended_seconds=NOW - 3.1), "asked"),
        (sight(0.1, session_open=False, ended_seconds=NOW, peer_lost=True), "lost"),
        (sight(0.1, peer_lost=True), "heard"),  # the agent will say what happened
        (sight(9.9, session_open=False, ended_seconds=NOW - 9.9, inquiry=asked(UP)), "silent"),
        (sight(10.1, session_open=False, ended_seconds=NOW - 10.1, inquiry=asked(UP)), "lost"),
        (sight(40.0, session_open=False, ended_seconds=NOW - 9.9, inquiry=asked(UP)), "silent"),
        (sight(4, session_open=False, ended_seconds=NOW - 4, inquiry=asked(CUT)), "waited for"),
        (sight(9.9, session_open=False, inquiry=asked(ago=2)), "waited for"),  # since our start
        (sight(10.1, session_open=False, inquiry=asked(ago=2)), "lost"),
        (sight(3.5, session_open=False, peer_lost=True, inquiry=asked(ago=2)), "lost"),
    ],
)  # fmt: skip
def test_a_node_whose_agent_is_away_is_lost_after_its_lease(seen: Sight, becomes: str) -> None:
    """Counted from the end of the session. Others may know sooner that its machine is gone."""
    assert became(judged(nodes(4, x=seen)), "x") == becomes


def test_nobody_is_lost_while_the_coordinator_itself_may_be_cut_off() -> None:
    """Its nodes fall silent within a heartbeat: the first one has no reason to be lost either."""
    sights = {f"n{index}": sight(3.05 - 0.2 * index) for index in range(5)}
    judgement = judged(sights)
    assert not judgement.lost
    assert judgement.absent >= {"n0"}
    long_after = {node_id: sight(3600.0) for node_id in sights}
    judgement = judged(long_after)
    assert not judgement.lost
    assert judgement.silent.keys() == judgement.absent == long_after.keys()


@pytest.mark.parametrize(("num_silent", "num_lost"), [(1, 1), (2, 2), (3, 0), (6, 0)])
def test_silence_alone_makes_no_more_than_a_third_lost(num_silent: int, num_lost: int) -> None:
    """Nobody has answered: of six nodes two may be lost by that, three not."""
    silent = {f"s{index}": sight(9.0, inquiry=asked(ago=2)) for index in range(num_silent)}
    assert len(judged(nodes(6 - num_silent, **silent)).lost) == num_lost


def test_a_single_node_that_is_silent_is_lost_unless_it_alone_holds_layers() -> None:
    sights = nodes(1, x=sight(9.0, inquiry=asked(ago=2)))
    assert judged(sights, [frozenset({"n0", "x"})]).lost
    judgement = judged(sights, [frozenset({"n0"}), frozenset({"x"})])
    assert not judgement.lost
    assert judgement.absent == {"x"}


def test_a_rack_without_power_is_lost_however_large_it_is() -> None:
    """Others are there to say so."""
    rack = {f"r{index}": sight(3.6, inquiry=asked(CUT, CUT, CUT)) for index in range(6)}
    judgement = judged(nodes(4, **rack), [frozenset({"r0"})])
    assert judgement.lost.keys() == rack.keys()


def test_stopped_agents_of_many_are_waited_for_longer_than_their_lease() -> None:
    """All machines are there: that so many agents do not come back is no fault of theirs."""
    away = sight(60.0, session_open=False, ended_seconds=NOW - 40.0, inquiry=asked(UP))
    judgement = judged(nodes(2, a=away, b=away))
    assert not judgement.lost
    assert judgement.absent == {"a", "b"}


def test_engines_on_a_node_that_others_reach_are_expected_to_answer() -> None:
    """A fence does without one that does not: its machine may hang."""
    judgement = judged(nodes(4, x=sight(9.0, inquiry=asked(UP))))
    assert judgement.silent
    assert not judgement.absent


def test_before_anybody_has_been_heard_nobody_is_judged() -> None:
    ended = sight(60.0, session_open=False, ended_seconds=NOW - 40.0, peer_lost=True)
    judgement = judged({"a": ended, "b": sight(60.0), "c": sight(1.0)}, is_blind=True)
    assert not judgement.lost
    assert judgement.absent == {"a", "b"}


def test_free_nodes_are_asked_when_no_other_node_of_the_job_is_heard() -> None:
    free = {f"f{index}": sight(0.5, job_ids=(), addresses=()) for index in range(2)}
    judgement = judged({"a": sight(3.1), "b": sight(3.1), **free})
    assert {frozenset(askers) for askers in judgement.asked.values()} == {frozenset(free)}
    mixed = judged({"x": sight(3.1), **nodes(2), **free})
    assert {"n0", "n1"} < set(mixed.asked["x"])


def test_thousands_are_judged_at_once_and_nobody_is_flooded() -> None:
    """A tenth of 10,000 nodes still answers; the others are asked about in turns."""
    silent = {f"s{index}": sight(4.0) for index in range(9000)}
    sights = nodes(1000, **silent)
    began = time.process_time()
    judgement = judged(sights, [frozenset(sights)])
    assert time.process_time() - began < 2.0
    load: dict[str, int] = {}
    for askers in judgement.asked.values():
        for asker in askers:
            load[asker] = load.get(asker, 0) + 1
    assert max(load.values()) <= MAX_PROBES
    assert sum(load.values()) == 1000 * MAX_PROBES
    assert not judgement.lost
    assert judgement.absent == silent.keys()
    begun = asked(ago=0.2)
    busy = {f"s{index}": replace(seen, inquiry=begun) for index, seen in enumerate(silent.values())}
    assert not {"n0", "n1", "n2"}.intersection(*judged(nodes(4, **busy)).asked.values(), ())
