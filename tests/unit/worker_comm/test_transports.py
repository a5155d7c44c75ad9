"""What moves a group's tensors, by how the group is used."""

from typing import get_args

import pytest
import torch

from planaria_worker.engine.groups import GroupKind
from planaria_worker.engine.groups.transport.choice import open_connector
from planaria_worker.engine.groups.transport.tcp_connector import TcpConnector
from planaria_worker.engine_config import Transport


@pytest.mark.parametrize("transport", get_args(Transport))
def test_commit_messages_go_over_our_own_connections_on_any_device(transport: Transport) -> None:
    connector = open_connector(
        GroupKind.COMMIT_MESSAGES,
        transport=transport,
        device=torch.device("cuda"),
        host="127.0.0.1",
        operation_timeout_seconds=1,
    )
    assert isinstance(connector, TcpConnector)
