"""Remove the guards against directives that come twice."""

import pytest

from planaria.api.worker.v1.directive_pb2 import Directive
from planaria.api.worker.v1.worker_service_pb2 import SessionResponse
from planaria_worker.agent.agent import Agent
from planaria_worker.engine.process.directives import Directives
from unit.engine.process import test_directives
from unit.guards.guard import guard, swap


@guard(
    "an engine carries out a repeated directive once",
    test_directives.test_a_repeated_directive_is_carried_out_once_and_answered_again,
)
def carry_out_repeated_directives(patch: pytest.MonkeyPatch) -> None:
    handle = Directives.handle

    def handle_again(self: Directives, directive: Directive) -> None:
        self._results.pop(directive.directive_id, None)
        handle(self, directive)

    swap(patch, handle, handle_again)


def pass_on_repeated_directives(patch: pytest.MonkeyPatch) -> None:
    handle = Agent.handle

    async def handle_again(self: Agent, response: SessionResponse) -> None:
        self._results.pop(response.directive.directive_id, None)
        await handle(self, response)

    swap(patch, handle, handle_again)
