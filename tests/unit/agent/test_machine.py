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


@pytest.mark.parametrize(
    ("kind", "transport", "expected"),
    [
        ("cpu", "auto", "gloo"),
        ("cpu", "gloo", "gloo"),
        ("cuda", "auto", "nccl"),
        ("cuda", "nccl", "nccl"),
        ("cuda", "gloo", "gloo_via_host"),
    ],
)
def test_the_transport_follows_from_the_accelerator_unless_it_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, transport: str, expected: str
) -> None:
    driver = tmp_path / "version"
    driver.touch()
    monkeypatch.setattr(machine, "_NVIDIA_DRIVER", driver)
    wanted = settings(
        accelerator_kind=kind, transport=transport, accelerator_memory_bytes=16 * 2**30
    )
    assert describe_machine(wanted).transport == expected


def test_nccl_between_cpus_is_refused_at_the_start() -> None:
    with pytest.raises(InvalidArgumentError, match=r"--transport nccl: .* use gloo or auto"):
        describe_machine(settings(accelerator_kind="cpu", transport="nccl"))


def test_memory_is_shared_among_the_ranks_of_a_cpu_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_NVIDIA_DRIVER", Path("/nonexistent"))
    one = describe_machine(settings())
    two = describe_machine(settings(num_accelerators=2))
    assert one.accelerator_kind == "cpu"
    assert two.memory_bytes == one.memory_bytes // 2


@pytest.fixture
def nvidia_smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with a driver; what its nvidia-smi does is for the test to write."""
    driver, program = tmp_path / "version", tmp_path / "nvidia-smi"
    driver.touch()
    monkeypatch.setattr(machine, "_NVIDIA_DRIVER", driver)
    monkeypatch.setenv("PATH", str(tmp_path))
    return program


def test_of_unlike_gpus_the_smallest_counts_and_not_all_of_it(nvidia_smi: Path) -> None:
    """CUDA and NCCL take some before the first tensor is made."""
    nvidia_smi.write_text("#!/bin/sh\necho 81559\necho 24564\n")
    nvidia_smi.chmod(0o700)
    assert describe_machine(settings()).memory_bytes == int(24564 * 2**20 * 0.9)


@pytest.mark.parametrize("answer", ["", "echo '[N/A]'", "exit 9"])
def test_the_memory_of_a_gpu_is_not_guessed(nvidia_smi: Path, answer: str) -> None:
    if answer:
        nvidia_smi.write_text(f"#!/bin/sh\n{answer}\n")
        nvidia_smi.chmod(0o700)
    with pytest.raises(InvalidArgumentError, match="--accelerator-memory-bytes: nvidia-smi"):
        describe_machine(settings())


def test_a_given_memory_wins() -> None:
    assert describe_machine(settings(accelerator_memory_bytes=123)).memory_bytes == 123
