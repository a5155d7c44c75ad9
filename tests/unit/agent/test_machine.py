"""The settings say what a node offers; what they leave open, the machine says."""

from pathlib import Path

import pytest

from planaria_common.errors import InvalidArgumentError
from planaria_worker.agent import machine
from planaria_worker.agent.machine import describe_machine
from planaria_worker.agent.settings import WorkerSettings


def settings(**values: object) -> WorkerSettings:
    return WorkerSettings.model_validate({"coordinator": "127.0.0.1:1", **values})


def test_cuda_without_a_driver_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_NVIDIA_DRIVER", Path("/nonexistent"))
    with pytest.raises(InvalidArgumentError, match="no NVIDIA driver is loaded"):
        describe_machine(settings(accelerator_kind="cuda"))


def test_memory_is_shared_among_the_ranks_of_a_cpu_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_NVIDIA_DRIVER", Path("/nonexistent"))
    one = describe_machine(settings())
    two = describe_machine(settings(num_accelerators=2))
    assert one.accelerator_kind == "cpu"
    assert two.memory_bytes == one.memory_bytes // 2


def test_a_given_memory_wins() -> None:
    assert describe_machine(settings(accelerator_memory_bytes=123)).memory_bytes == 123
