"""The loop over steps, with places that do nothing."""

import threading
import weakref
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from planaria_worker.engine.commit_record import CommitRecord
from planaria_worker.engine.fence import Fence
from planaria_worker.engine.groups import GroupBroken
from planaria_worker.engine.step.training_step import CommittedStep
from planaria_worker.engine.training import training_loop as training
from planaria_worker.engine.training.training_loop import TrainingLoop

RECORD = CommitRecord(step=0, generation=1, gradient_norm=1.0, loss=1.0, num_tokens=1)


class TrainingContext:
    """Of an engine that follows: it has no microbatches."""

    view = SimpleNamespace(step_microbatches=(), regular_microbatches=())
    progress = SimpleNamespace(missing=lambda _: ())


def make_loop(**parts: Any) -> TrainingLoop:
    """A loop of the parts that a test needs."""
    names = ("current_training", "handover", "checkpointer", "reporter")
    return TrainingLoop(
        builder=SimpleNamespace(resources=parts.pop("resources", None), clock=None),  # type: ignore[arg-type]
        halt=lambda _: None,
        retain_idle=lambda: None,
        **{name: parts.get(name) for name in names},  # type: ignore[arg-type]
    )


def test_a_training_context_is_freed_when_another_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sums and buffers would be in use for as long as nothing breaks. Guard: whoever lets the
    loop train has no place in hand."""
    current_training: Any = SimpleNamespace(
        context=TrainingContext(), vitals=None, committed_steps=0, num_skipped=0
    )
    first = weakref.ref(current_training.context)
    in_memory = []

    def attempt(context: TrainingContext) -> CommittedStep:
        in_memory.append(first() is not None)
        if len(in_memory) == 2:
            raise GroupBroken("enough")
        return CommittedStep(record=RECORD, broken=None)

    def go_on(context: TrainingContext, done: CommittedStep) -> TrainingContext:
        current_training.context = TrainingContext()
        return current_training.context  # type: ignore[no-any-return]

    for name in ("compute", "begin_step"):
        monkeypatch.setattr(training, name, lambda *_: None)
    monkeypatch.setattr(training, "attempt", attempt)
    untold: Any = SimpleNamespace(step_begins=lambda: None)
    loop = make_loop(current_training=current_training, reporter=untold)
    monkeypatch.setattr(loop, "_go_on", go_on)
    monkeypatch.setattr(loop, "_break_off", lambda *_: None)
    loop.train_from_start()
    assert in_memory == [True, False]


def test_an_engine_halted_while_it_copies_for_a_checkpoint_does_not_switch() -> None:
    """Its report was sent meanwhile, and groups of another generation may be in the making."""
    fence = Fence(1)
    fence.begin(1)
    calls: list[str] = []
    halt = threading.Event()

    def take(*_: object) -> None:
        halt.set()
        fence.when_halted(lambda: calls.append("report"))
        calls.append("copied")

    view = SimpleNamespace(is_deciding=False, is_follower=False, keeps_step=False)
    handover: Any = SimpleNamespace(
        release_replaced=lambda _: None,
        change_at=lambda _: SimpleNamespace(view=view),
        renew=lambda *_: False,
    )
    current_training: Any = SimpleNamespace(
        vitals=None,
        retained_after_commit=lambda _: None,
        finish_commit=lambda *_: None,
        drop=lambda: calls.append("dropped"),
        is_finished=False,
    )
    loop = make_loop(
        resources=SimpleNamespace(fence=fence),
        handover=handover,
        current_training=current_training,
        checkpointer=SimpleNamespace(announce=lambda *_: [0], take=take),
    )
    context: Any = SimpleNamespace(view=view, halt=halt)
    record = replace(RECORD, next_generation=2)
    assert loop._go_on(context, CommittedStep(record=record, broken=None)) is None
    assert calls == ["report", "copied", "dropped"]
