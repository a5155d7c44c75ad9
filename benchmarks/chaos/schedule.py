"""What happens to which node, and when: follows from a seed alone, so that a failure replays."""

import random
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "kill",
    "kill_engine",
    "kill_agent",
    "kill_coordinator",
    "stop_coordinator",
    "stop_agents",
    "fill_disks",
    "stop",
    "stop_briefly",
    "drain",
    "drain_and_return",
    "join",
]

LOSSES: frozenset[Kind] = frozenset({"kill", "kill_engine", "stop", "drain", "drain_and_return"})
"""What takes a replica away, for a while at least."""

OF_NO_NODE: frozenset[Kind] = frozenset(
    {"kill_coordinator", "stop_coordinator", "stop_agents", "fill_disks"}
)
"""What is done to the coordinator, or to all agents at once while their engines train on."""

MIN_NODES = 5
"""With one fewer, two pipelines of two nodes are left: still one node to lose."""
MAX_NODES = 7
MAX_ENGINE_KILLS = 2
"""A node on which three engines of a job fail is refused for the job."""

_WEIGHTS: dict[Kind, int] = {
    "kill": 6,
    "kill_engine": 4,
    "kill_agent": 1,
    "kill_coordinator": 1,
    "stop_coordinator": 1,
    "stop_agents": 1,
    "fill_disks": 1,
    "stop": 2,
    "stop_briefly": 2,
    "drain": 2,
    "drain_and_return": 2,
    "join": 8,
}
_MAX_DELAY_STEPS = 3.0
_CHANCE_OF_NO_DELAY = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that is done; to one node, unless `node_id` is empty."""

    kind: Kind
    node_id: str
    delay_steps: float
    """How long to wait before, in lengths of a step."""


def make_schedule(seed: int, num_events: int, num_nodes: int) -> tuple[Event, ...]:
    """Return events on nodes `node-000`, `node-001`...; a joiner gets the next unused name."""
    rng = random.Random(seed)
    alive = [node_name(number) for number in range(num_nodes)]
    num_started = num_nodes
    engine_kills: dict[str, int] = {}
    events: list[Event] = []
    while len(events) < num_events:
        kind = _draw(rng, len(alive))
        if kind == "join":
            node_id = node_name(num_started)
            num_started += 1
            alive.append(node_id)
        elif kind in OF_NO_NODE:
            node_id = ""
        else:
            node_id = rng.choice(alive)
        if kind == "kill_engine":
            if engine_kills.get(node_id, 0) >= MAX_ENGINE_KILLS:
                continue
            engine_kills[node_id] = engine_kills.get(node_id, 0) + 1
        if kind in ("kill", "drain"):
            alive.remove(node_id)
        delay = 0.0 if rng.random() < _CHANCE_OF_NO_DELAY else rng.uniform(0, _MAX_DELAY_STEPS)
        events.append(Event(kind=kind, node_id=node_id, delay_steps=delay))
    return tuple(events)


def node_name(number: int) -> str:
    return f"node-{number:03d}"


def _draw(rng: random.Random, num_alive: int) -> Kind:
    if num_alive < MIN_NODES:
        return "join"
    kinds = [kind for kind in _WEIGHTS if kind != "join" or num_alive < MAX_NODES]
    return rng.choices(kinds, [_WEIGHTS[kind] for kind in kinds])[0]
