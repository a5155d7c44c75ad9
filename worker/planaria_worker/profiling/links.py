"""The link between two accelerators of this machine, measured with the groups that engines use.

Two processes send a message back and forth: over NCCL between two CUDA devices where there are two,
else over TCP and loopback, as between the CPU engines of one node.

    python -m planaria_worker.profiling.links STORE_ADDRESS DEVICE      the other process
"""

import subprocess
import sys
import time

import torch

from planaria_common.measurement import LinkMeasurement
from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.groups import (
    Communicators,
    GroupKind,
    GroupSpec,
    PipelineLink,
    StoreServer,
)
from planaria_worker.engine.numerics.pins import pin_numerics
from planaria_worker.profiling.timing import timing

_HOST = "127.0.0.1"
_HERE, _PEER = "here", "peer"
_GROUP = GroupSpec(name="link", kind=GroupKind.ACTIVATIONS, members=(_HERE, _PEER))
_TIMEOUT_SECONDS = 120.0
"""Importing torch in the other process takes seconds, more where the machine is busy."""

_NUM_WARM_UP = 5
_SMALL_BYTES, _NUM_SMALL = 4, 200
_LARGE_BYTES, _NUM_LARGE = 16 << 20, 20
_ROUNDS = ((_SMALL_BYTES, _NUM_SMALL), (_LARGE_BYTES, _NUM_LARGE))


def measure_link(device: torch.device) -> LinkMeasurement:
    """Latency from small messages, bandwidth from large ones.

    Args:
        device: what the job is measured on.

    Raises:
        UnavailableError: the other process did not come.
    """
    is_nccl = device.type == "cuda" and torch.cuda.device_count() > 1
    ours, theirs = ("cuda:0", "cuda:1") if is_nccl else ("cpu", "cpu")
    store = StoreServer(_HOST)
    command = [sys.executable, "-m", "planaria_worker.profiling.links", store.address, theirs]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as peer:
        try:
            small, large = (timing(samples) for samples in _run(_HERE, store.address, ours))
            peer.wait(_TIMEOUT_SECONDS)
        finally:
            peer.kill()
            store.close()
    latency = small.median_seconds
    on_the_way = max(large.median_seconds - latency, large.median_seconds / 2)
    return LinkMeasurement(
        description="NCCL between two devices" if is_nccl else "TCP over loopback",
        bytes_per_second=_LARGE_BYTES / on_the_way,
        latency_seconds=latency,
        spread=large.spread,
    )


def _run(name: str, store_address: str, device_name: str) -> list[list[float]]:
    """Seconds one way, for each size of message; the same on both ends."""
    device = torch.device(device_name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    communicators = Communicators(
        engine_id=name,
        host=_HOST,
        device=device,
        transport="nccl" if device.type == "cuda" else "gloo",
        operation_timeout_seconds=_TIMEOUT_SECONDS,
        failpoints=Failpoints(),
    )
    groups = communicators.build(
        [_GROUP], store_address=store_address, prefix="link/", timeout_seconds=_TIMEOUT_SECONDS
    )
    link = groups.links[_GROUP.name]
    samples = [_back_and_forth(link, device, *sizes) for sizes in _ROUNDS]
    communicators.shut()
    return samples


def _back_and_forth(
    link: PipelineLink, device: torch.device, num_bytes: int, num_rounds: int
) -> list[float]:
    message = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    other = 1 - link.rank
    samples = []
    for _ in range(_NUM_WARM_UP + num_rounds):
        start = time.perf_counter()
        if link.rank == 0:
            link.send(message, other)
            link.recv(message, other)
        else:
            link.recv(message, other)
            link.send(message, other)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        samples.append((time.perf_counter() - start) / 2)
    return samples[_NUM_WARM_UP:]


def main() -> None:
    """The other process."""
    store_address, device_name = sys.argv[1:]
    pin_numerics()
    _run(_PEER, store_address, device_name)


if __name__ == "__main__":
    main()
