"""The same guarantees whatever moves the tensors, and wherever they are; test_groups has gloo's."""

from dataclasses import dataclass

import pytest
import torch

from integration.worker_comm.conftest import StartRanks
from integration.worker_comm.ranks import Pending, Rank
from planaria_worker.engine.groups import GroupKind, GroupSpec
from planaria_worker.engine_config import Transport
from support.gpus import require_gpus

pytestmark = pytest.mark.integration

MEMBERS = ("0", "1")
SPECS = [
    GroupSpec(name="forward", kind=GroupKind.ACTIVATIONS, members=MEMBERS),
    GroupSpec(name="backward", kind=GroupKind.GRADIENTS, members=MEMBERS),
    GroupSpec(name="sums", kind=GroupKind.GRADIENT_SUM, members=MEMBERS),
]
"""NCCL does the operations of a group one after the other: a group for each direction."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """What moves the tensors of two ranks, and where they are."""

    transport: Transport
    devices: tuple[str, str]


NCCL_ON_TWO_GPUS = pytest.param(
    Way(transport="nccl", devices=("cuda:0", "cuda:1")),
    id="nccl-on-two-gpus",
    marks=pytest.mark.gpu,
)
WAYS = [
    pytest.param(Way(transport="gloo_via_host", devices=("cpu", "cpu")), id="host-memory"),
    pytest.param(
        Way(transport="gloo_via_host", devices=("cuda:0", "cuda:0")),
        id="gloo-on-one-gpu",
        marks=pytest.mark.gpu,
    ),
    pytest.param(
        Way(transport="nccl", devices=("cuda:0", "cuda:0")),
        id="nccl-on-one-gpu",
        marks=pytest.mark.gpu,
    ),
    NCCL_ON_TWO_GPUS,
]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    chosen: Way = request.param
    gpus = {device for device in chosen.devices if device != "cpu"}
    require_gpus(len(gpus))
    if chosen.transport == "nccl" and len(gpus) == 1:
        version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        if version < (2, 30):
            pytest.skip(f"NCCL refuses two ranks on one device before 2.30; found {version}")
    return chosen


def build(ranks: list[Rank], way: Way, generation: str) -> None:
    address = ranks[0].do("open_store")
    pending = [
        rank.start(
            "build",
            generation=generation,
            specs=SPECS,
            store_address=address,
            transport=way.transport,
            device=device,
        )
        for rank, device in zip(ranks, way.devices, strict=True)
    ]
    for one in pending:
        one.result()


def all_reduce(ranks: list[Rank], generation: str, dtype: str = "int64") -> list[Pending]:
    return [
        rank.start("all_reduce", generation=generation, group="sums", values=[2, -3], dtype=dtype)
        for rank in ranks
    ]


def test_sums_and_messages(start_ranks: StartRanks, way: Way) -> None:
    """Sums are exact in every type; messages arrive whole, in order, in both directions at once."""
    ranks = start_ranks(2)
    build(ranks, way, "1")

    for dtype in ("int64", "float32"):
        assert [one.result() for one in all_reduce(ranks, "1", dtype)] == [[4, -6]] * 2
    many = [
        rank.start("all_reduce_many", generation="1", group="sums", count=7, size=100_000)
        for rank in ranks
    ]
    assert [one.result() for one in many] == [2 * sum(range(7))] * 2
    messages = [[[1.0, 2.0], [3.0]], [[4.0, 5.0], [6.0]]]
    exchanges = [
        rank.start(
            "exchange",
            generation="1",
            outgoing=outgoing,
            incoming=incoming,
            peer=1 - index,
            messages=messages[index],
        )
        for index, (rank, outgoing, incoming) in enumerate(
            [(ranks[0], "forward", "backward"), (ranks[1], "backward", "forward")]
        )
    ]
    assert [one.result() for one in exchanges] == messages[::-1]


@pytest.mark.parametrize("operation", ["recv", "all_reduce"])
def test_a_fence_wakes_waiting_threads_and_new_groups_work(
    start_ranks: StartRanks, way: Way, operation: str
) -> None:
    ranks = start_ranks(2)
    build(ranks, way, "1")
    if operation == "recv":
        waiting = ranks[0].start("recv", generation="1", group="backward", src=1, size=4)
    else:
        (waiting,) = all_reduce(ranks[:1], "1")
    ranks[0].wait_until_blocked()

    for rank in ranks:
        rank.at_once("shut", generation="1")

    assert waiting.error().kind == "GroupBroken"
    build(ranks, way, "2")
    assert [one.result() for one in all_reduce(ranks, "2")] == [[4, -6]] * 2


def test_the_death_of_a_peer_is_noticed(start_ranks: StartRanks, way: Way) -> None:
    """Without a fence: its connections end."""
    if way.transport == "nccl":
        pytest.skip("over NCCL a fence tells of it: it notices nothing by itself")
    ranks = start_ranks(2)
    build(ranks, way, "1")
    waiting = ranks[0].start("recv", generation="1", group="backward", src=1, size=4)
    ranks[0].wait_until_blocked()

    ranks[1].kill()

    assert waiting.error().kind == "GroupBroken"


@pytest.mark.parametrize("way", [NCCL_ON_TWO_GPUS], indirect=True)
def test_a_sum_continues_during_a_computation(start_ranks: StartRanks, way: Way) -> None:
    """At least half of the shorter one is hidden behind the other."""
    ranks = start_ranks(2)
    build(ranks, way, "1")
    measured = [
        rank.start("overlap", generation="1", group="sums", num_elements=64 << 20, size=4096)
        for rank in ranks
    ]
    for one in measured:
        computing, summing, both = one.result()
        assert both < computing + summing - min(computing, summing) / 2
