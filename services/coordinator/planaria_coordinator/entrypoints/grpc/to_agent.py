"""What agents are sent: from the application's types to the worker protocol's messages."""

from dataclasses import replace

from google.protobuf.message import Message

from planaria.api.worker.v1 import directive_pb2
from planaria_common.messages import to_message
from planaria_coordinator.domain.engines.directive import Directive, PlanCommand, StagePlan


class PlanMessages:
    """What is the same for all engines in a command that brings a plan, converted once."""

    def __init__(self) -> None:
        self._newest: PlanCommand | None = None
        self._message: Message = directive_pb2.Activate()

    def __call__(self, command: PlanCommand, message_type: type[Message]) -> Message:
        """Convert all but the layers to follow, which are an engine's own."""
        plan = replace(command, layers=()) if isinstance(command, StagePlan) else command
        if plan != self._newest:  # quick: the commands of one plan share all that is large in it
            self._newest, self._message = plan, to_message(plan, message_type)
        return self._message


def directive_message(directive: Directive, plans: PlanMessages) -> directive_pb2.Directive:
    message = directive_pb2.Directive(
        directive_id=directive.id,
        job_id=directive.job_id,
        generation=directive.generation,
        engine_id=directive.engine_id,
    )
    command = directive.command
    part = getattr(message, command.kind)
    part.SetInParent()
    if isinstance(command, PlanCommand):
        part.MergeFrom(plans(command, type(part)))
    else:
        part.MergeFrom(to_message(command, type(part)))
    if isinstance(command, StagePlan):
        part.layers.extend(to_message(layer, directive_pb2.LayerSource) for layer in command.layers)
    return message
