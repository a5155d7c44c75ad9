"""What happens to which node, and when: follows from a seed alone, so that a failure replays."""

import random
from collections import Counter
from collections.abc import Collection
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
    "stop_agent",
    "unplug",
    "drop_links",
    "reset_links",
    "isolate_coordinator",
    "replace_coordinator",
    "drain",
    "drain_and_return",
    "join",
]

OF_LINKS: frozenset[Kind] = frozenset({"drop_links", "reset_links"})
"""A node reaches the coordinator and no other node."""

LOSSES: frozenset[Kind] = OF_LINKS | {
    "kill",
    "kill_engine",
    "stop",
    "stop_agent",  # a recovery does not wait for it
    "unplug",
    "drain",
    "drain_and_return",
}
"""What takes a replica away, for a while at least."""

OF_NO_NODE: frozenset[Kind] = frozenset(
    {
        "kill_coordinator",
        "stop_coordinator",
        "isolate_coordinator",
        "replace_coordinator",
        "stop_agents",
        "fill_disks",
    }
)
"""What is done to the coordinator, or to all agents at once while their engines train on."""

OF_NETWORK: frozenset[Kind] = OF_LINKS | {"unplug", "isolate_coordinator"}
"""What needs network namespaces."""

MIN_NODES = 5
"""With one fewer, two pipelines of two nodes are left: still one node to lose."""
MAX_NODES = 7
MAX_ENGINE_FAILURES = 2
"""A node on which three engines of a job fail is refused for the job."""
_FAILS_ENGINE: frozenset[Kind] = OF_LINKS | {"kill_engine"}

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
    "stop_agent": 1,
    "unplug": 1,
    "drop_links": 2,
    "reset_links": 1,
    "isolate_coordinator": 1,
    "replace_coordinator": 1,
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


def make_schedule(
    seed: int, num_events: int, num_nodes: int, without: Collection[Kind] = ()
) -> tuple[Event, ...]:
    """Return events on nodes `node-000`, `node-001`...; a joiner gets the next unused name.

    Args:
        seed: of all choices.
        num_events: how many.
        num_nodes: how many there are at the beginning.
        without: what is not drawn.
    """
    rng = random.Random(seed)
    alive = [node_name(number) for number in range(num_nodes)]
    num_started = num_nodes
    engine_failures: Counter[str] = Counter()
    events: list[Event] = []
    while len(events) < num_events:
        kind = _draw(rng, len(alive), without)
        if kind == "join":
            node_id = node_name(num_started)
            num_started += 1
            alive.append(node_id)
        elif kind in OF_NO_NODE:
            node_id = ""
        else:
            node_id = rng.choice(alive)
        if kind in _FAILS_ENGINE:
            if engine_failures[node_id] >= MAX_ENGINE_FAILURES:
                continue
            engine_failures[node_id] += 1
        if kind in ("kill", "drain"):
            alive.remove(node_id)
        delay = 0.0 if rng.random() < _CHANCE_OF_NO_DELAY else rng.uniform(0, _MAX_DELAY_STEPS)
        events.append(Event(kind=kind, node_id=node_id, delay_steps=delay))
    return tuple(events)


def node_name(number: int) -> str:
    return f"node-{number:03d}"


def _draw(rng: random.Random, num_alive: int, without: Collection[Kind]) -> Kind:
    if num_alive < MIN_NODES:
        return "join"
    never = {*without, *(("join",) if num_alive >= MAX_NODES else ())}
    kinds = [kind for kind in _WEIGHTS if kind not in never]
    return rng.choices(kinds, [_WEIGHTS[kind] for kind in kinds])[0]
