"""A directive takes effect once, however often it arrives."""

import queue
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from planaria.api.worker.v1.directive_pb2 import Copy, Directive, RollForward
from planaria.api.worker.v1.report_pb2 import DirectiveResult
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_worker.engine.fence import Fence
from planaria_worker.engine.process.directives import Directives
from support.clock import FakeClock


def directives_of(
    trainer: object, answer: Callable[[DirectiveResult], None], layer_tasks: object = None
) -> Directives:
    unused = cast("Any", None)
    return Directives(
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
        layer_tasks=cast("Any", layer_tasks),
        checkpointer=unused,
        copy_server=unused,
        vitals=cast("Any", SimpleNamespace(committed_steps=4)),
        answer=answer,
        stop=unused,
        clock=FakeClock(),
    )


def test_a_repeated_directive_is_carried_out_once_and_answered_again() -> None:
    """An agent that has died, or lost its link, may have told the engine, and the next one too."""
    submitted: list[Any] = []
    answers: list[DirectiveResult] = []
    trainer = SimpleNamespace(
        handover=SimpleNamespace(unstage=lambda generation: None),
        submit=submitted.append,
        roll_forward=lambda generation, record, answer: answer([2]),
    )
    directives = directives_of(trainer, answers.append)
    directive = Directive(directive_id="d", generation=1, roll_forward=RollForward())
    directives.handle(directive)
    directives.handle(directive)
    assert answers == [], "the training thread has yet to do it"
    submitted[0]()
    directives.handle(directive)
    assert len(submitted) == 1
    assert [each.rolled_forward.stale_layers for each in answers] == [[2], [2]]


def test_peers_are_connected_to_again_where_layers_could_not_be_copied() -> None:
    """A connection is needed, as for groups."""
    connected: list[bool] = []
    answers: queue.SimpleQueue[DirectiveResult] = queue.SimpleQueue()

    def obtain(*_: object, **__: object) -> int:
        raise PlanariaError(ErrorReason.COPY_FAILED, "timed out")

    handover = SimpleNamespace(
        unstage=lambda generation: None, reconnect=lambda: connected.append(True)
    )
    directives = directives_of(
        SimpleNamespace(handover=handover), answers.put, SimpleNamespace(obtain=obtain)
    )
    directives.handle(Directive(directive_id="d", generation=1, copy=Copy()))
    assert answers.get(timeout=30).WhichOneof("outcome") == "failure"
    assert connected == [True]
