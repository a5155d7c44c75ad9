"""The 1F1B schedule (PipeDream-Flush, protocol/step.md): warm-up, steady state, cool-down.

A stage never keeps the activations of more microbatches than there are stages from it to the last.
Sends do not wait for their receiver, because in the steady state two neighbours send to each other
at the same moment.

A step may take several rounds of 1F1B: the stage's own microbatches, then those of a lost pipeline.
While a round cools down, the stage may begin the next one (`BEGIN_NEXT_ROUND`), as in one long
round of both: the pipeline stays full.
"""

from collections.abc import Iterable
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
    BEGIN_NEXT_ROUND = auto()
    """Early forward passes of the next round, as many as memory allows; then this round goes on."""


@dataclass(frozen=True, slots=True)
class Action:
    """One verb on one microbatch."""

    verb: Verb
    microbatch: int


@lru_cache(maxsize=8)
def one_forward_one_backward(
    microbatches: tuple[int, ...], stage: int, num_stages: int, num_begun: int = 0
) -> tuple[Action, ...]:
    """List what a stage does in a round, in order; cached, since most steps are alike.

    Args:
        microbatches: of the round.
        stage: index of the stage.
        num_stages: of the pipeline.
        num_begun: microbatches whose forward pass was done early, in the round before.
    """
    forward = [Verb.FORWARD]
    backward = [Verb.BACKWARD]
    if stage > 0:
        forward = [Verb.RECEIVE_INPUT, *forward]
        backward = [*backward, Verb.SEND_GRADIENT]
    if stage < num_stages - 1:
        forward = [*forward, Verb.SEND_OUTPUT]
        backward = [Verb.RECEIVE_GRADIENT, *backward]
    num_warmup = min(num_stages - stage - 1, len(microbatches))
    num_steady = len(microbatches) - num_warmup
    actions: list[Action] = []

    def do(verbs: Iterable[Verb], microbatch: int) -> None:
        actions.extend(Action(verb, microbatch) for verb in verbs)

    for microbatch in microbatches[num_begun:num_warmup]:  # warm-up
        do(forward, microbatch)
    for newest, oldest in zip(microbatches[num_warmup:], microbatches, strict=False):  # steady
        do(forward, newest)
        do(backward, oldest)
    for microbatch in microbatches[num_steady:]:  # cool-down
        do([Verb.BEGIN_NEXT_ROUND], microbatch)
        do(backward, microbatch)
    return tuple(actions)


def max_in_flight(num_microbatches: int, stage: int, num_stages: int) -> int:
    """Return the most microbatches whose activations a stage keeps at once."""
    return min(num_stages - stage, num_microbatches)
