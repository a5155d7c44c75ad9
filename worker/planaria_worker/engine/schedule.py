"""The 1F1B schedule as a list of actions: warm-up, steady state, cool-down.

PipeDream-Flush, as in ALGORITHMS.md 6: a stage starts as many microbatches as there are stages
behind it, then does one forward and one backward pass in turn, so that it never keeps the
activations of more than that many and one. Sends do not wait for their receiver: two neighbours
send to each other at the same moment in the steady state.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache


class Verb(Enum):
    """What a stage can do with a microbatch."""

    RECEIVE_INPUT = auto()
    FORWARD = auto()
    SEND_OUTPUT = auto()
    RECEIVE_GRADIENT = auto()
    BACKWARD = auto()
    SEND_GRADIENT = auto()


@dataclass(frozen=True, slots=True)
class Action:
    """One verb on one microbatch."""

    verb: Verb
    microbatch: int


@lru_cache(maxsize=8)
def one_forward_one_backward(
    microbatches: tuple[int, ...], stage: int, num_stages: int
) -> tuple[Action, ...]:
    """Returns what a stage does in a step, in order; most steps are like the one before."""
    num_warmup = min(num_stages - 1 - stage, len(microbatches))
    is_first, is_last = stage == 0, stage == num_stages - 1

    def forward(microbatch: int) -> Iterator[Action]:
        if not is_first:
            yield Action(Verb.RECEIVE_INPUT, microbatch)
        yield Action(Verb.FORWARD, microbatch)
        if not is_last:
            yield Action(Verb.SEND_OUTPUT, microbatch)

    def backward(microbatch: int) -> Iterator[Action]:
        if not is_last:
            yield Action(Verb.RECEIVE_GRADIENT, microbatch)
        yield Action(Verb.BACKWARD, microbatch)
        if not is_first:
            yield Action(Verb.SEND_GRADIENT, microbatch)

    def actions() -> Iterator[Action]:
        for microbatch in microbatches[:num_warmup]:
            yield from forward(microbatch)
        for ahead, microbatch in zip(microbatches[num_warmup:], microbatches, strict=False):
            yield from forward(ahead)
            yield from backward(microbatch)
        for microbatch in microbatches[len(microbatches) - num_warmup :]:
            yield from backward(microbatch)

    return tuple(actions())


def max_in_flight(num_microbatches: int, stage: int, num_stages: int) -> int:
    """The most microbatches whose activations a stage keeps at once."""
    return min(num_stages - stage, num_microbatches)
