"""The loop over steps, with places that do nothing."""

import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from planaria_worker.engine import training
from planaria_worker.engine.commit import CommitRecord
from planaria_worker.engine.communication import GroupBroken
from planaria_worker.engine.step import CommittedStep
from planaria_worker.engine.training import TrainingLoop

RECORD = CommitRecord(step=0, generation=1, gradient_norm=1.0, loss=1.0, num_tokens=1)


class Place:
    """Of an engine that follows: it has no microbatches."""

    view = SimpleNamespace(is_follower=True)
    ledger = SimpleNamespace(missing=lambda _: ())


def test_a_place_is_gone_when_another_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sums and buffers would be in use for as long as nothing breaks. Guard: whoever lets the
    loop train has no place in hand."""
    standing: Any = SimpleNamespace(place=Place(), committed_steps=0)
    first = weakref.ref(standing.place)
    in_memory = []

    def attempt(place: Place) -> CommittedStep:
        in_memory.append(first() is not None)
        if len(in_memory) == 2:
            raise GroupBroken("enough")
        return CommittedStep(record=RECORD, broken=None)

    def go_on(place: Place, done: CommittedStep) -> Place:
        standing.place = Place()
        return standing.place  # type: ignore[no-any-return]

    for name in ("compute", "begin_step"):
        monkeypatch.setattr(training, name, lambda *_: None)
    monkeypatch.setattr(training, "attempt", attempt)
    untold: Any = SimpleNamespace(step_begins=lambda: None)
    loop = TrainingLoop(
        builder=SimpleNamespace(around=None),  # type: ignore[arg-type]
        standing=standing,
        handover=untold,
        checkpointer=untold,
        vitals=standing,
        teller=untold,
        clock=untold,
        halt=lambda _: None,
        set_aside=lambda: None,
    )
    monkeypatch.setattr(loop, "_go_on", go_on)
    monkeypatch.setattr(loop, "_break_off", lambda *_: None)
    loop.train_from_start()
    assert in_memory == [True, False]
