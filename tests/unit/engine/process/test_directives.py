"""A directive takes effect once, however often it arrives."""

from types import SimpleNamespace
from typing import Any, cast

from planaria.api.worker.v1.directive_pb2 import Directive, RollForward
from planaria.api.worker.v1.report_pb2 import DirectiveResult
from planaria_worker.engine.fence import Fence
from planaria_worker.engine.process.directives import Directives
from support.clock import FakeClock


def test_a_repeated_directive_is_carried_out_once_and_answered_again() -> None:
    """An agent that has died, or lost its link, may have told the engine, and the next one too."""
    submitted: list[Any] = []
    answers: list[DirectiveResult] = []
    unused = cast("Any", None)
    trainer = SimpleNamespace(
        handover=SimpleNamespace(unstage=lambda generation: None),
        submit=submitted.append,
        roll_forward=lambda generation, record, answer: answer([2]),
    )
    directives = Directives(
        job_secret="",
        resources=cast(
            "Any",
            SimpleNamespace(
                fence=Fence(1),
                store=unused,
                stopwatch=unused,
                failpoints=SimpleNamespace(hit=lambda point, step: None),
            ),
        ),
        trainer=cast("Any", trainer),
        layer_tasks=unused,
        checkpointer=unused,
        copy_server=unused,
        vitals=cast("Any", SimpleNamespace(committed_steps=4)),
        answer=answers.append,
        stop=unused,
        clock=FakeClock(),
    )
    directive = Directive(directive_id="d", generation=1, roll_forward=RollForward())
    directives.handle(directive)
    directives.handle(directive)
    assert answers == [], "the training thread has yet to do it"
    submitted[0]()
    directives.handle(directive)
    assert len(submitted) == 1
    assert [each.rolled_forward.stale_layers for each in answers] == [[2], [2]]
