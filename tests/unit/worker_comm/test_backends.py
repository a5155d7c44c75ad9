"""What moves a group's tensors, by how the group is used."""

from typing import get_args

import pytest
import torch

from planaria_worker.engine.groups.backends import open_connector
from planaria_worker.engine.groups.pipeline_link import PipelineLinkConnector
from planaria_worker.engine_config import Transport


@pytest.mark.parametrize("transport", get_args(Transport))
def test_what_is_in_host_memory_goes_over_a_line_whatever_the_device(transport: Transport) -> None:
    connector = open_connector(
        transport,
        torch.device("cuda"),
        "127.0.0.1",
        is_line=True,
        is_downward=False,
        is_on_host=True,
        operation_timeout_seconds=1,
    )
    assert type(connector) is PipelineLinkConnector
