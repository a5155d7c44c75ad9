"""Rolling forward: a witness's record is applied to the very sums it speaks of, or not at all."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from planaria_worker.engine.commit_record import CommitRecord
from planaria_worker.engine.recovery.roll_forward import (
    CommittableSums,
    RollForwardDecision,
    SumsKey,
    decide_roll_forward,
)
from planaria_worker.engine.training import trainer

RECORD = CommitRecord(step=6, generation=3, gradient_norm=1.5, loss=2.25, num_tokens=64)
SKIPPED = replace(RECORD, num_skipped=2, skipped_layer=3)


@pytest.mark.parametrize(
    ("committed_steps", "kept", "expected"),
    [
        (7, None, RollForwardDecision.NOTHING),
        (6, SumsKey(step=6, generation=3), RollForwardDecision.APPLY),
        (6, SumsKey(step=6, generation=2), RollForwardDecision.STALE),
        (6, SumsKey(step=5, generation=3), RollForwardDecision.STALE),
        (6, None, RollForwardDecision.STALE),
    ],
)
def test_a_record_decides_how_to_roll_forward(
    committed_steps: int, kept: SumsKey | None, expected: RollForwardDecision
) -> None:
    assert decide_roll_forward(RECORD, committed_steps=committed_steps, kept=kept) is expected


def test_a_skipped_step_is_applied_without_sums() -> None:
    assert decide_roll_forward(SKIPPED, committed_steps=6, kept=None) is RollForwardDecision.APPLY
    done = decide_roll_forward(SKIPPED, committed_steps=7, kept=None)
    assert done is RollForwardDecision.NOTHING


def test_no_engine_is_two_steps_behind() -> None:
    with pytest.raises(ValueError, match="step 6 cannot follow 5 committed steps"):
        decide_roll_forward(RECORD, committed_steps=5, kept=None)


@pytest.mark.parametrize(
    ("record", "committed_steps", "generation", "is_complete", "expected"),
    [
        (RECORD, 7, 3, True, []),
        (RECORD, 6, 3, True, ["apply", "announce 7", "commit", "report", "drop", "park"]),
        (RECORD, 6, 2, True, ["halt", "commit", "report", "drop", "park"]),
        (RECORD, 6, 3, False, ["halt", "commit", "report", "drop", "park"]),
        (SKIPPED, 7, 3, False, []),
        (SKIPPED, 6, 3, False, ["apply", "announce 7", "commit", "report", "drop", "park"]),
        (SKIPPED, 6, 2, True, ["apply", "commit", "report", "drop", "park"]),
    ],
    ids=[
        "committed_itself",
        "has_the_sums",
        "stale",
        "incomplete",
        "skipped_itself",
        "skipped",
        "skipped_with_other_sums",
    ],
)
def test_a_trainer_applies_a_record_once_and_halts_if_it_cannot(
    record: CommitRecord,
    committed_steps: int,
    generation: int,
    is_complete: bool,
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []

    def note(name: str) -> Callable[..., None]:
        return lambda *_: calls.append(name)

    def announce(_view: object, version: int) -> list[int]:
        calls.append(f"announce {version}")
        return [4]

    monkeypatch.setattr(trainer, "apply_step", note("apply"))
    view: Any = None
    sums = CommittableSums(
        key=SumsKey(step=6, generation=generation),
        by_layer={0: torch.zeros(1)} if is_complete else {},
        view=view,
    )
    engine: Any = SimpleNamespace(
        _current_training=SimpleNamespace(
            committable_sums=sums,
            retained_work=None,
            finish_commit=note("commit"),
            retained_after_commit=lambda _: None,
            drop=note("drop"),
        ),
        _resources=SimpleNamespace(job=None, store=None, feed=None),
        _vitals=SimpleNamespace(committed_steps=committed_steps),
        _checkpointer=SimpleNamespace(announce=announce),
        _reporter=SimpleNamespace(step_done=note("report")),
        _thread=SimpleNamespace(park=note("park")),
        _catch_up=None,
        halt=note("halt"),
        submit=lambda _: None,
    )
    to_write = trainer.Trainer._apply_record(engine, record)
    assert calls == expected
    assert to_write == ([4] if "announce 7" in expected else ())
    assert (engine._current_training.committable_sums is None) == bool(expected)


def test_a_record_survives_the_wire() -> None:
    for record in (RECORD, SKIPPED):
        assert CommitRecord.from_proto(record.to_proto()) == record
