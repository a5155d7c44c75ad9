"""The 1F1B schedule as a list of actions: warm-up, steady state, cool-down.

PipeDream-Flush, as in ALGORITHMS.md 6: a stage starts as many microbatches as there are stages
behind it, then does one forward and one backward pass in turn, so that it never keeps the
activations of more than that many and one. Sends do not wait for their receiver: two neighbours
send to each other at the same moment in the steady state.

A step may take several runs, one behind another: a stage's cool-down is then the warm-up of its
next run, as in one long run of both.
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
    RUN_AHEAD = auto()
    """Room for one forward pass of the next run, before the backward pass of this microbatch."""


@dataclass(frozen=True, slots=True)
class Action:
    """One verb on one microbatch."""

    verb: Verb
    microbatch: int


@lru_cache(maxsize=8)
def one_forward_one_backward(
    microbatches: tuple[int, ...], stage: int, num_stages: int, num_started: int = 0
) -> tuple[Action, ...]:
    """Returns what a stage does in a run, in order; most steps are like the one before.

    Args:
        microbatches: of the run.
        stage: whose actions.
        num_stages: of the pipeline.
        num_started: of how many microbatches the run before has done the forward pass.
    """
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
        num_forward = num_started
        for num_backward, microbatch in enumerate(microbatches):
            while num_forward < num_backward + num_stages - stage:
                if num_forward < len(microbatches):
                    yield from forward(microbatches[num_forward])
                else:
                    yield Action(Verb.RUN_AHEAD, microbatch)
                num_forward += 1
            yield from backward(microbatch)

    return tuple(actions())


def max_in_flight(num_microbatches: int, stage: int, num_stages: int) -> int:
    """The most microbatches whose activations a stage keeps at once."""
    return min(num_stages - stage, num_microbatches)
