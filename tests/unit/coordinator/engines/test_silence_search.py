"""Every combination of what may ail three nodes and the coordinator: who is lost, and who is not.

A node is well, its agent is stopped, or its machine is without power; the coordinator is connected,
or its own cable is pulled. All begin to say nothing within a heartbeat of each other, at any phase.
Nodes that are well answer probes at once, or just in time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product

from planaria_coordinator.domain.engines import silence
from planaria_coordinator.domain.engines.silence import Inquiry, Patience, Reach, Sight

TICK = 0.25
SECONDS = 9.0
PATIENCE = Patience(
    heartbeat_interval_seconds=1.0, node_deadline_seconds=3.0, agent_lease_seconds=10.0
)
FOUND_WITHIN = 3.0 + 1.0 + silence.PROBE_ANSWER_SECONDS + TICK
"""The deadline, counted from the last heartbeat; an interval before the fault; the probe."""
NODES = ("a", "b", "c")
LAYERS = (frozenset({"a"}), frozenset({"b", "c"}))
WELL, STOPPED, OFF = "well", "stopped", "off"


@dataclass
class Small:
    """Three nodes and what the coordinator sees of them; the faults begin at 0."""

    truth: dict[str, str]
    is_cut: bool
    phases: dict[str, float]
    answer_seconds: float
    sights: dict[str, Sight] = field(default_factory=dict)
    lost: dict[str, float] = field(default_factory=dict)

    def run(self) -> None:
        for node_id in NODES:
            self.sights[node_id] = Sight(
                last_seen_seconds=-self.phases[node_id],
                session_open=True,
                job_ids=("job",),
                addresses=(node_id,),
            )
        now = 0.0
        while now < SECONDS:
            now += TICK
            self._hear(now)
            self._judge(now)

    def _talks(self, node_id: str) -> bool:
        return self.truth[node_id] == WELL and not self.is_cut

    def _hear(self, now: float) -> None:
        for node_id, sight in self.sights.items():
            if self._talks(node_id) and (now + self.phases[node_id]) % 1.0 < TICK:
                self.sights[node_id] = replace(sight, last_seen_seconds=now, inquiry=None)
            elif sight.inquiry is not None:
                self.sights[node_id] = replace(sight, inquiry=self._answered(now, sight))

    def _answered(self, now: float, sight: Sight) -> Inquiry:
        inquiry = sight.inquiry
        assert inquiry is not None
        if now < inquiry.asked_seconds + self.answer_seconds:
            return inquiry
        reach = Reach.UNREACHABLE if self.truth[sight.addresses[0]] == OFF else Reach.REACHABLE
        return replace(inquiry, answers={a: reach for a in inquiry.asked if self._talks(a)})

    def _judge(self, now: float) -> None:
        judgement = silence.judge(now, self.sights, LAYERS, PATIENCE)
        for node_id, asked in judgement.asked.items():
            before = self.sights[node_id].inquiry
            inquiry = Inquiry(
                probe_id="p",
                asked_seconds=now,
                asked=frozenset(asked),
                was_reached=before is not None and before.leaves_reached,
            )
            self.sights[node_id] = replace(self.sights[node_id], inquiry=inquiry)
        for node_id in judgement.lost:
            self.lost[node_id] = now
            del self.sights[node_id]

    def problem(self) -> str:
        """Say what went wrong; empty if nothing did."""
        num_well = [*self.truth.values()].count(WELL)
        for node_id, truth in self.truth.items():
            if node_id in self.lost and (truth != OFF or self.is_cut):
                return f"{node_id} is {truth} and was lost after {self.lost[node_id]} s: {self}"
            if truth == OFF and num_well and not self.is_cut:
                if self.lost.get(node_id, SECONDS) > FOUND_WITHIN:
                    return f"{node_id} is off and others could have said so: {self}"
            elif node_id in self.lost and not num_well:
                return f"{node_id} was lost, though nobody could say so: {self}"
        return ""


def small_worlds() -> Iterator[Small]:
    for truths in product((WELL, STOPPED, OFF), repeat=len(NODES)):
        for phases in product((0.0, 0.5, 0.75), repeat=len(NODES)):
            for is_cut, answer_seconds in product((False, True), (0.0, 0.75)):
                yield Small(
                    truth=dict(zip(NODES, truths, strict=True)),
                    is_cut=is_cut,
                    phases=dict(zip(NODES, phases, strict=True)),
                    answer_seconds=answer_seconds,
                )


def test_who_is_well_is_never_lost_and_who_is_gone_is_found() -> None:
    """Guards: `_spared`, `_Case._is_reached`."""
    num_lost = 0
    for world in small_worlds():
        world.run()
        assert not world.problem()
        num_lost += len(world.lost)
    assert num_lost
