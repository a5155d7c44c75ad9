"""A planner behind gRPC."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import grpc
import pytest

from planaria.api.planner.v1.planner_service_pb2_grpc import PlannerServiceStub
from planaria_common.grpcclient import open_channel
from planaria_planner.service.server import planner_server

if TYPE_CHECKING:  # the name exists for type checkers only
    from planaria.api.planner.v1.planner_service_pb2_grpc import PlannerServiceAsyncStub


@pytest.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    server = planner_server(host="127.0.0.1", port=0, token="secret")
    await server.start()
    # A first call on a fresh machine compiles the inner loops.
    channel = open_channel(server.address, token="secret", deadline_seconds=120)
    yield channel
    await channel.close()
    await server.stop(grace_seconds=0)


@pytest.fixture
def planner(channel: grpc.aio.Channel) -> "PlannerServiceAsyncStub":
    return PlannerServiceStub(channel)
