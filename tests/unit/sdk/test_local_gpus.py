from pathlib import Path

import pytest

from planaria.local.gpus import agent_environment, visible_gpus

CPU = {"PLANARIA_WORKER_ACCELERATOR_KIND": "cpu"}


def share(gpus: list[str], num_nodes: int, per_node: int) -> list[dict[str, str]]:
    return [
        agent_environment(
            gpus, node_index=index, num_nodes=num_nodes, accelerators_per_node=per_node
        )
        for index in range(num_nodes)
    ]


@pytest.mark.parametrize(
    ("num_gpus", "num_nodes", "per_node", "expected"),
    [(4, 2, 2, ["0,1", "2,3"]), (4, 3, 1, ["0", "1", "2"]), (8, 2, 2, ["0,1", "2,3"])],
)
def test_every_node_gets_gpus_of_its_own(
    num_gpus: int, num_nodes: int, per_node: int, expected: list[str]
) -> None:
    gpus = [str(index) for index in range(num_gpus)]
    found = share(gpus, num_nodes, per_node)
    assert found == [{"CUDA_VISIBLE_DEVICES": devices} for devices in expected]


@pytest.mark.parametrize("num_gpus", [0, 1, 2])
def test_too_few_gpus_for_all_means_cpu_for_all(num_gpus: int) -> None:
    assert share(["0", "1"][:num_gpus], 3, 1) == [CPU] * 3


def test_gpus_that_the_user_has_hidden_are_not_used(tmp_path: Path) -> None:
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    assert visible_gpus({}, tmp_path) == ["0", "1"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "1, GPU-abc"}, tmp_path) == ["1", "GPU-abc"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == []
    assert visible_gpus({}, tmp_path / "no-driver") == []
