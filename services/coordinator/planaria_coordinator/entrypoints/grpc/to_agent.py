"""What agents are sent: from the application's types to the worker protocol's messages."""

from dataclasses import replace

from planaria.api.worker.v1 import directive_pb2
from planaria_common.messages import to_message
from planaria_coordinator.domain.engines.directive import Activate, Directive


class PlanMessages:
    """The part of an Activate that is the same for all engines, converted once."""

    def __init__(self) -> None:
        self._newest: Activate | None = None
        self._message = directive_pb2.Activate()

    def __call__(self, activate: Activate) -> directive_pb2.Activate:
        """Convert all but the layers, which are an engine's own."""
        plan = replace(activate, layers=())
        if plan != self._newest:  # quick: the commands of one plan share all that is large in it
            self._newest, self._message = plan, to_message(plan, directive_pb2.Activate)
        return self._message


def directive_message(directive: Directive, plans: PlanMessages) -> directive_pb2.Directive:
    message = directive_pb2.Directive(
        directive_id=directive.id,
        job_id=directive.job_id,
        generation=directive.generation,
        engine_id=directive.engine_id,
    )
    command = directive.command
    if isinstance(command, Activate):
        message.activate.CopyFrom(plans(command))
        message.activate.layers.extend(
            to_message(layer, directive_pb2.LayerSource) for layer in command.layers
        )
        return message
    part = getattr(message, command.kind)
    part.SetInParent()
    part.MergeFrom(to_message(command, type(part)))
    return message
