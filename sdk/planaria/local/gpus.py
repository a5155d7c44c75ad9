"""Which GPUs each node of a local cluster gets: no two engines may share one over NCCL."""

from collections.abc import Mapping, Sequence
from pathlib import Path

_DRIVER_GPUS = Path("/proc/driver/nvidia/gpus")


def visible_gpus(environment: Mapping[str, str], driver_gpus: Path = _DRIVER_GPUS) -> list[str]:
    """Return the names of this machine's GPUs, as CUDA_VISIBLE_DEVICES takes them."""
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    count = len(list(driver_gpus.iterdir())) if driver_gpus.is_dir() else 0
    return [str(index) for index in range(count)]


def agent_environment(
    gpus: Sequence[str], *, node_index: int, num_nodes: int, accelerators_per_node: int
) -> dict[str, str]:
    """Return what makes an agent take its own share of the GPUs, or the CPU if they are too few.

    Nodes are counted from 0.
    """
    if len(gpus) < num_nodes * accelerators_per_node:
        return {"PLANARIA_WORKER_ACCELERATOR_KIND": "cpu"}
    first = node_index * accelerators_per_node
    own = gpus[first : first + accelerators_per_node]
    return {"CUDA_VISIBLE_DEVICES": ",".join(own)}
