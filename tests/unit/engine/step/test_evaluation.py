"""Which evaluation microbatch rides on which one of training, and what is held out for it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planaria.job import EvaluationSpec
from planaria_worker.engine.data.dataset import Dataset
from planaria_worker.engine.data.errors import DataError
from planaria_worker.engine.data.held_out import Split, split_dataset
from planaria_worker.engine.data.order import SampleOrder
from planaria_worker.engine.data.token_file import TokenFile
from planaria_worker.engine.evaluation import Evaluation, EvaluationPlan, make_evaluation

PLAN = EvaluationPlan(
    every_steps=4, num_steps=10, num_carriers=6, num_microbatches=7, num_tokens=700
)


def dataset(num_sequences: int, content: bytes = b"text") -> Dataset:
    tokens = np.arange(num_sequences * 8 + 1, dtype=np.uint32)
    file = TokenFile(path=Path(), tokens=tokens, max_token=255, source=content)
    return Dataset(file=file, sequence_length=8)


def evaluation(num_all: int, *, own_text: bool = False, **fields: Any) -> Evaluation:
    text = {"data": {"path": "held-out.txt"}} if own_text else {}
    return make_evaluation(
        EvaluationSpec.model_validate({**text, **fields}),
        training=dataset(num_all),
        held_out=dataset(num_all) if own_text else None,
        num_steps=10,
        num_carriers=6,
        microbatch_size=2,
    )


def test_every_multiple_and_the_last_parameters_are_evaluated() -> None:
    assert [step for step in range(11) if PLAN.is_due(step)] == [0, 4, 8, 10]
    assert [step for step in range(11) if PLAN.is_closing(step)] == [10]
    assert [PLAN.num_due(step) for step in (3, 4)] == [0, 7]


@given(st.integers(1, 40), st.integers(1, 60), st.data())
def test_invariant_1_each_rides_on_one_microbatch_however_they_are_shared_out(
    num_carriers: int, num_microbatches: int, data: st.DataObject
) -> None:
    """Over pipelines, and over the passes in which a pipeline makes up for a lost one."""
    plan = replace(PLAN, num_carriers=num_carriers, num_microbatches=num_microbatches)
    shuffled = data.draw(st.permutations(range(num_carriers)))
    cut = data.draw(st.integers(0, num_carriers))
    parts = [plan.carried_by(shuffled[:cut]), plan.carried_by(shuffled[cut:])]
    assert sorted([*parts[0], *parts[1]]) == list(range(num_microbatches))
    loads = {len(plan.carried_by([m])) for m in range(num_carriers)}
    assert max(loads) - min(loads) <= 1


@given(st.integers(2, 200), st.floats(0, 1), st.binary(max_size=4), st.integers(0, 3))
def test_held_out_sequences_are_never_trained_on(
    num_sequences: int, fraction: float, content: bytes, seed: int
) -> None:
    """Whatever the seed; every other sequence is, once in each pass over the data."""
    split = split_dataset(dataset(num_sequences, content), min(fraction, 0.99))
    held_out = {split.held_out(position) for position in range(split.num_held_out)}
    order = SampleOrder(
        num_sequences=split.num_training,
        num_microbatches=split.num_training,
        microbatch_size=1,
        seed=seed,
        sequence_at=split.training,
    )
    trained = [s for index in range(split.num_training) for s in order.microbatch(0, index)]
    assert len(held_out) == int(num_sequences * min(fraction, 0.99))
    assert sorted([*trained, *held_out]) == list(range(num_sequences))


def test_the_choice_never_changes_and_follows_from_the_contents() -> None:
    """A checkpoint of one release goes on in the next one."""

    def chosen(content: bytes) -> list[int]:
        split = Split(num_sequences=100, num_held_out=5, content=content)
        return [split.held_out(position) for position in range(5)]

    assert chosen(b"text") == CHOSEN
    assert chosen(b"texT") != CHOSEN
    with pytest.raises(IndexError):
        Split(num_sequences=100, num_held_out=5, content=b"").held_out(5)


CHOSEN = [54, 8, 37, 93, 15]


def test_an_evaluation_uses_whole_microbatches() -> None:
    some = evaluation(100, fraction=0.15)
    assert (some.plan.num_microbatches, some.plan.num_tokens) == (7, 14 * 8)
    assert some.rows(6).shape == (2, 9)
    assert evaluation(100, fraction=0.5, num_sequences=4).plan.num_microbatches == 2
    assert evaluation(9, own_text=True).plan.num_microbatches == 4


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"num_all": 10, "fraction": 0.15},
            "evaluation.fraction: gives 1 of 10 sequences to evaluate on; "
            "it must give at least training.microbatch_size 2",
        ),
        (
            {"num_all": 1, "own_text": True},
            "evaluation.data.path: gives 1 of 1 sequences to evaluate on; "
            "it must give at least training.microbatch_size 2",
        ),
    ],
)
def test_too_few_sequences_name_the_field(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"^{message}$"):
        evaluation(**fields)


def test_more_sequences_than_there_are_name_the_field() -> None:
    message = (
        "evaluation.num_sequences: 40, but evaluation.fraction gives 15; it must be at most 14"
    )
    with pytest.raises(DataError, match=message):
        evaluation(100, fraction=0.15, num_sequences=40)
