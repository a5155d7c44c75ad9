"""Engines that were out of reach and come back, at any moments: "lost, then returns".

What a layer's state is made of names generations, as bits do in fast mode: a step that one engine
has committed, and that the others have redone without it, is not the same step any more.
"""

import pytest

from unit.coordinator.protocol.cluster import UNEVEN
from unit.coordinator.protocol.model import Model
from unit.coordinator.protocol.search import search

REDONE_WITHOUT_B0 = (
    *("the pipeline of b0 computes", "the pipeline of a0 computes"),
    *("b0 has its sums", "a1 has its sums", "a0 has its sums", "b0 commits"),
    *("b0 is cut off", "b0 is known to be out of reach", "the planner answers"),
    *("a1 hears quiesce of generation 2", "a1 is heard"),
    *("a0 hears quiesce of generation 2", "a0 is heard"),
    *("a1 hears activate of generation 2", "a1 is heard"),
    *("a0 hears activate of generation 2", "the pipeline of a0 computes"),
    *("a1 has its sums", "a0 has its sums", "a0 commits", "a1 commits"),
)
"""b0 has passed the commit of the first step, and nobody else: the others redo it."""


def returning(num_faults: int = 0, num_absences: int = 1, num_steps: int = 1) -> Model:
    return Model(
        num_faults=num_faults,
        num_crashes=0,
        num_steps=num_steps,
        num_absences=num_absences,
        cluster=UNEVEN,
    )


def redone_without_b0() -> Model:
    """A model that begins where two engines have the first step, and one has it with other bits."""
    model = returning(num_absences=2, num_steps=2)
    model.first = model.after(*REDONE_WITHOUT_B0)
    return model


def search_what_follows_a_redone_step() -> None:
    search(redone_without_b0())


def test_one_is_cut_off_and_comes_back_at_any_moments() -> None:
    assert search(returning()).num_ends > 1_000


def test_others_are_cut_off_when_a_step_was_redone_without_one_that_had_it() -> None:
    """[2] A second one is cut off at any moment; layers of other bits never count."""
    model = redone_without_b0()
    assert search(model).num_ends > 100
    assert any(run.awaited_state is not None for run in model.runs), "somebody is waited for"
    assert any(e.has_returned for run in model.runs for e in run.engines.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_faults", "num_absences", "num_steps"), [(0, 1, 2), (0, 2, 1), (1, 1, 1)]
)
def test_several_are_lost_and_some_come_back(
    num_faults: int, num_absences: int, num_steps: int
) -> None:
    """[5] A job never fails while somebody who may come back has what it lacks."""
    assert search(returning(num_faults, num_absences, num_steps)).num_ends > 1_000
