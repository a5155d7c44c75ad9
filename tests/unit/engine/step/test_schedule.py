"""1F1B: every microbatch once each way, bounded memory, and nobody waits for ever."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from planaria_worker.engine.step.schedule import (
    Action,
    Verb,
    max_in_flight,
    one_forward_one_backward,
)

SHAPES = {"num_stages": st.integers(1, 8), "num_microbatches": st.integers(1, 20)}


def test_the_textbook_case() -> None:
    """Two stages, three microbatches, as in every drawing of 1F1B."""

    def names(stage: int) -> str:
        short = {Verb.FORWARD: "F", Verb.BACKWARD: "B"}
        actions = one_forward_one_backward((0, 1, 2), stage, 2)
        return " ".join(f"{short[a.verb]}{a.microbatch}" for a in actions if a.verb in short)

    assert names(0) == "F0 F1 B0 F2 B1 B2"
    assert names(1) == "F0 B0 F1 B1 F2 B2"


@given(**SHAPES)
def test_each_microbatch_goes_forward_then_backward_once(
    num_stages: int, num_microbatches: int
) -> None:
    microbatches = list(range(100, 100 + num_microbatches))
    for stage in range(num_stages):
        actions = one_forward_one_backward(tuple(microbatches), stage, num_stages)
        for verb in (Verb.FORWARD, Verb.BACKWARD):
            assert [a.microbatch for a in actions if a.verb is verb] == microbatches
        for microbatch in microbatches:
            forward = actions.index(Action(Verb.FORWARD, microbatch))
            assert forward < actions.index(Action(Verb.BACKWARD, microbatch))


@given(**SHAPES)
def test_memory_is_bounded_by_the_number_of_later_stages(
    num_stages: int, num_microbatches: int
) -> None:
    for stage in range(num_stages):
        in_flight = most = 0
        for action in one_forward_one_backward(tuple(range(num_microbatches)), stage, num_stages):
            in_flight += (action.verb is Verb.FORWARD) - (action.verb is Verb.BACKWARD)
            most = max(most, in_flight)
        assert most == max_in_flight(num_microbatches, stage, num_stages)


@given(**SHAPES)
def test_neighbours_never_wait_for_each_other(num_stages: int, num_microbatches: int) -> None:
    """Every receive meets its send, in order, when sends do not wait for their receiver."""
    todo = [
        deque(one_forward_one_backward(tuple(range(num_microbatches)), stage, num_stages))
        for stage in range(num_stages)
    ]
    inputs: list[deque[int]] = [deque() for _ in range(num_stages)]
    gradients: list[deque[int]] = [deque() for _ in range(num_stages)]

    def can_do(stage: int, action: Action) -> bool:
        match action.verb:
            case Verb.RECEIVE_INPUT:
                return bool(inputs[stage])
            case Verb.RECEIVE_GRADIENT:
                return bool(gradients[stage])
            case _:
                return True

    def do(stage: int, action: Action) -> None:
        match action.verb:
            case Verb.RECEIVE_INPUT:
                assert inputs[stage].popleft() == action.microbatch
            case Verb.RECEIVE_GRADIENT:
                assert gradients[stage].popleft() == action.microbatch
            case Verb.SEND_OUTPUT:
                inputs[stage + 1].append(action.microbatch)
            case Verb.SEND_GRADIENT:
                gradients[stage - 1].append(action.microbatch)

    while any(todo):
        ready = [
            stage for stage in range(num_stages) if todo[stage] and can_do(stage, todo[stage][0])
        ]
        assert ready, "every stage waits"
        for stage in ready:
            do(stage, todo[stage].popleft())
    assert not any(inputs)
    assert not any(gradients)


@given(**SHAPES)
def test_the_next_round_begins_while_this_one_cools_down(
    num_stages: int, num_microbatches: int
) -> None:
    """What was begun early is not done again, and its backward passes come in the same order."""
    microbatches = tuple(range(num_microbatches))
    for stage in range(num_stages):
        actions = one_forward_one_backward(microbatches, stage, num_stages)
        verbs = [a.verb for a in actions if a.verb in (Verb.BEGIN_NEXT_ROUND, Verb.FORWARD)]
        num_warmup = min(num_stages - stage - 1, num_microbatches)
        assert verbs[num_microbatches:] == [Verb.BEGIN_NEXT_ROUND] * num_warmup
        for num_begun in range(num_warmup + 1):
            rest = one_forward_one_backward(microbatches, stage, num_stages, num_begun)
            assert [a for a in actions if a in rest] == [*rest]
            begun = {a.microbatch for a in actions if a not in rest}
            assert begun == {*microbatches[:num_begun]}
