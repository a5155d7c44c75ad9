"""Groups on real processes: whatever happens to a member, the others are awake soon after.

"Soon" is always measured against gloo's own timeout, which would wake them last.
"""

import itertools

import pytest

from integration.worker_comm.conftest import StartRanks
from integration.worker_comm.ranks import Pending, Rank
from planaria_worker.engine.failpoints import Action, Failpoint
from planaria_worker.engine.groups import GroupKind, GroupSpec

pytestmark = pytest.mark.integration


def spec(name: str, *members: int, kind: GroupKind = GroupKind.GRADIENT_SUM) -> GroupSpec:
    return GroupSpec(name=name, kind=kind, members=tuple(map(str, members)))


LINK, VOTES = GroupKind.ACTIVATIONS, GroupKind.VOTE_SUM
both_sums = pytest.mark.parametrize("kind", [GroupKind.GRADIENT_SUM, VOTES], ids=["gloo", "tcp"])
sum_or_link = pytest.mark.parametrize("kind", [GroupKind.GRADIENT_SUM, LINK], ids=["sum", "link"])


def build(ranks: list[Rank], generation: str, *specs: GroupSpec) -> str:
    """Builds groups on all ranks over the store of the first, and returns its address."""
    address: str = ranks[0].do("open_store")
    pending = [
        rank.start("build", generation=generation, specs=specs, store_address=address)
        for rank in ranks
    ]
    for rank, one in zip(ranks, pending, strict=True):
        assert one.result() == [s.name for s in specs if rank.engine_id in s.members]
    return address


def all_reduce(ranks: list[Rank], group: str, generation: str = "1") -> list[Pending]:
    return [
        rank.start("all_reduce", generation=generation, group=group, values=[1], dtype="int64")
        for rank in ranks
    ]


def test_groups_sum_and_send(start_ranks: StartRanks) -> None:
    """Sums are exact in every type, and messages arrive in order, in several groups at once."""
    ranks = start_ranks(3)
    line, pair = spec("line", 0, 1, 2, kind=LINK), spec("pair", 0, 1, kind=LINK)
    other_pair = spec("other-pair", 1, 2, kind=LINK)
    both = spec("all", 0, 1, 2), spec("brief", 0, 1, 2, kind=VOTES)
    build(ranks, "1", pair, line, other_pair, *both)

    for dtype, group in itertools.product(("int64", "float32", "float64"), ("all", "brief")):
        sums = [
            rank.start("all_reduce", generation="1", group=group, values=[2.0, -3.0], dtype=dtype)
            for rank in ranks
        ]
        assert [one.result() for one in sums] == [[6, -9]] * 3
    for rank in ranks:
        rank.start("all_reduce_many", generation="1", group="all", count=7, size=10_000)
    ranks[1].start("send", generation="1", group="pair", dst=0, values=[1, 2])
    ranks[1].start("send", generation="1", group="pair", dst=0, values=[3, 4])
    ranks[2].start("send", generation="1", group="other-pair", dst=0, values=[5])
    ranks[2].start("send", generation="1", group="line", dst=1, values=[6])
    assert ranks[0].do("recv", generation="1", group="pair", src=1, size=2) == [1, 2]
    assert ranks[0].do("recv", generation="1", group="pair", src=1, size=2) == [3, 4]
    assert ranks[1].do("recv", generation="1", group="other-pair", src=1, size=1) == [5]
    assert ranks[1].do("recv", generation="1", group="line", src=2, size=1) == [6]


def test_a_killed_member_wakes_all_without_a_directive(start_ranks: StartRanks) -> None:
    """3 dies; 2 waits for it, 1 waits for 2, 0 for 1: all return. Guard: an error shuts the group
    (`Group._broken`)."""
    ranks = start_ranks(4)
    build(ranks, "1", spec("all", 0, 1, 2, 3, kind=LINK))
    waiting = [
        rank.start("recv", generation="1", group="all", src=index + 1, size=4)
        for index, rank in enumerate(ranks[:3])
    ]
    for rank in ranks[:3]:
        rank.wait_until_blocked()

    ranks[3].kill()

    assert [one.error().kind for one in waiting] == ["GroupBroken"] * 3


@both_sums
@pytest.mark.parametrize("stopped", [False, True], ids=["killed", "stopped"])
def test_all_reduce_ends_when_shut(start_ranks: StartRanks, stopped: bool, kind: GroupKind) -> None:
    """A member is killed or stopped in the middle of an all-reduce: a fence wakes the others. Guard
    for "stopped": `Group.shut` cuts the sockets."""
    ranks = start_ranks(4)
    build(ranks, "1", spec("all", 0, 1, 2, 3, kind=kind))
    waiting = all_reduce(ranks[:3], "all")
    for rank in ranks[:3]:
        rank.wait_until_blocked()

    if stopped:
        ranks[3].stop()
    else:
        ranks[3].kill()
    for rank in ranks[:3]:
        rank.at_once("shut", generation="1")

    assert [one.error().kind for one in waiting] == ["GroupBroken"] * 3


def test_a_group_that_shuts_wakes_its_peers(start_ranks: StartRanks) -> None:
    """3 is stopped, only 2 is told: 1, which waits for 2, and 0, which waits for 1, return too.
    Guard: an error shuts the group. (Nobody but a fence wakes who waits for 3 itself.)"""
    ranks = start_ranks(4)
    build(ranks, "1", spec("all", 0, 1, 2, 3, kind=LINK))
    waiting = [
        rank.start("recv", generation="1", group="all", src=index + 1, size=4)
        for index, rank in enumerate(ranks[:3])
    ]
    for rank in ranks[:3]:
        rank.wait_until_blocked()
    ranks[3].stop()

    ranks[2].at_once("shut", generation="1")

    assert [one.error().kind for one in waiting] == ["GroupBroken"] * 3


def test_other_groups_go_on_and_new_ones_are_built(start_ranks: StartRanks) -> None:
    """A broken group costs nothing but itself. Guard: a group's sockets are told from others."""
    ranks = start_ranks(4)
    address = build(ranks, "1", spec("all", 0, 1, 2, 3), spec("healthy", 0, 1, 2))
    waiting = all_reduce(ranks[:3], "all")
    for rank in ranks[:3]:
        rank.wait_until_blocked()
    ranks[3].stop()
    for rank in ranks[:3]:
        rank.at_once("shut_group", generation="1", group="all")
    assert [one.error().kind for one in waiting] == ["GroupBroken"] * 3

    assert [one.result() for one in all_reduce(ranks[:3], "healthy")] == [[3]] * 3
    assert all_reduce(ranks[:1], "all")[0].error().kind == "GroupBroken"

    survivors = spec("all", 0, 1, 2)
    built = [
        rank.start("build", generation="2", specs=[survivors], store_address=address)
        for rank in ranks[:3]
    ]
    assert [one.result() for one in built] == [["all"]] * 3
    assert [one.result() for one in all_reduce(ranks[:3], "all", "2")] == [[3]] * 3
    assert [one.result() for one in all_reduce(ranks[:3], "healthy")] == [[3]] * 3


def test_shut_again_and_idle(start_ranks: StartRanks) -> None:
    """Shutting is idempotent, works when nobody waits, and is final."""
    ranks = start_ranks(2)
    build(ranks, "1", spec("all", 0, 1))
    for _ in range(2):
        ranks[0].at_once("shut", generation="1")

    error = all_reduce(ranks[:1], "all")[0].error()
    assert (error.kind, error.message) == ("GroupBroken", "group all: all-reduce: shut")
    assert all_reduce(ranks[1:], "all")[0].error().kind == "GroupBroken"


def test_missing_members_are_named(start_ranks: StartRanks) -> None:
    """Whoever does not come is named, in bounded time. Guard: the deadline of the rendezvous."""
    ranks = start_ranks(2)
    address = ranks[0].do("open_store")
    arguments = {"specs": [spec("all", 0, 1, 2, 3)], "store_address": address}
    pending = [
        rank.start("build", generation="1", timeout_seconds=1.0, **arguments) for rank in ranks
    ]
    for one in pending:
        error = one.error()
        assert error.kind == "UnavailableError"
        assert error.message == "communicators could not be built: 2, 3 did not come in time"


def test_a_fence_interrupts_waiting_for_members(start_ranks: StartRanks) -> None:
    """Guard: `Communicators.shut` answers the thread that waits in `build`."""
    ranks = start_ranks(1)
    address = ranks[0].do("open_store")
    pending = ranks[0].start(
        "build", generation="1", specs=[spec("all", 0, 1)], store_address=address
    )
    ranks[0].wait_until_blocked()

    ranks[0].at_once("shut", generation="1")

    assert pending.error().kind == "GroupBroken"


@pytest.mark.parametrize("action", ["kill", "stop", "hang"])
def test_a_fence_interrupts_connecting(start_ranks: StartRanks, action: Action) -> None:
    """A member dies, stops or hangs between the rendezvous and connecting. Guard: building happens
    in a thread that can be left behind. Afterwards the survivors build again."""
    ranks = start_ranks(3)
    address = ranks[0].do("open_store")
    failing = ranks[2].start(
        "build",
        generation="1",
        specs=[spec("all", 0, 1, 2)],
        store_address=address,
        failpoints=(Failpoint(at="rebuild", action=action),),
    )
    pending = [
        rank.start("build", generation="1", specs=[spec("all", 0, 1, 2)], store_address=address)
        for rank in ranks[:2]
    ]
    if action == "kill":
        ranks[2].process.join()
    elif action == "stop":
        ranks[2].wait_until_stopped()
    else:
        ranks[2].wait_until_blocked()
    for rank in ranks[:2]:
        rank.wait_until_blocked()

    for rank in ranks[:2]:
        rank.at_once("shut", generation="1")

    assert [one.error().kind for one in pending] == ["GroupBroken"] * 2
    if action == "hang":
        ranks[2].at_once("shut", generation="1")
        assert failing.error().kind == "GroupBroken"
    rebuilt = [
        rank.start("build", generation="2", specs=[spec("all", 0, 1)], store_address=address)
        for rank in ranks[:2]
    ]
    assert [one.result() for one in rebuilt] == [["all"]] * 2
    assert [one.result() for one in all_reduce(ranks[:2], "all", "2")] == [[2]] * 2


@sum_or_link
def test_connecting_is_bounded_without_a_fence(start_ranks: StartRanks, kind: GroupKind) -> None:
    """A member stops while connecting and nobody tells: the timeout of the directive holds."""
    ranks = start_ranks(2)
    address = ranks[0].do("open_store")
    arguments = {
        "specs": [spec("all", 1, 0, kind=kind)],
        "store_address": address,
        "generation": "1",
    }
    ranks[1].start("build", failpoints=(Failpoint(at="rebuild", action="stop"),), **arguments)
    pending = ranks[0].start("build", timeout_seconds=2.0, **arguments)

    assert pending.error().kind == "UnavailableError"


def test_a_dead_store_is_reported(start_ranks: StartRanks) -> None:
    """The engine whose store was named is dead. Guard: the probe before TCPStore connects."""
    ranks = start_ranks(2)
    address = ranks[1].do("open_store")
    ranks[1].kill()

    error = (
        ranks[0]
        .start("build", generation="1", specs=[spec("all", 0, 1)], store_address=address)
        .error()
    )

    assert error.kind == "UnavailableError"
    assert f"store: no answer from {address}" in error.message


def test_a_store_that_dies_meanwhile_is_reported(start_ranks: StartRanks) -> None:
    """The engine whose store was named dies while the others meet there."""
    ranks = start_ranks(2)
    address = ranks[1].do("open_store")
    pending = ranks[0].start(
        "build", generation="1", specs=[spec("all", 0, 1)], store_address=address
    )
    ranks[0].wait_until_blocked()

    ranks[1].kill()

    error = pending.error()
    assert error.kind == "UnavailableError"
    assert f"store: no answer from {address}" in error.message


@pytest.mark.parametrize("stopped_first", [True, False], ids=["before", "meanwhile"])
def test_a_stopped_store_can_be_left(start_ranks: StartRanks, stopped_first: bool) -> None:
    """Guard: the store is asked from a thread that can be left behind."""
    ranks = start_ranks(2)
    address = ranks[1].do("open_store")
    if stopped_first:
        ranks[1].stop()
    pending = ranks[0].start(
        "build", generation="1", specs=[spec("all", 0, 1)], store_address=address
    )
    if not stopped_first:
        ranks[1].stop()
    ranks[0].wait_until_blocked()

    ranks[0].at_once("shut", generation="1")

    assert pending.error().kind == "GroupBroken"


def test_nothing_else_is_cut_in_a_storm(start_ranks: StartRanks) -> None:
    """Groups come and go while other threads connect, accept and use the store all the time: not
    one of their connections ends. Guard: connections are known by their addresses (with a
    difference of descriptors instead, this test fails)."""
    ranks = start_ranks(3)
    address = build(ranks, "0", spec("all", 0, 1, 2))
    for rank in ranks:
        rank.do("start_storm", store_address=address)

    for generation in map(str, range(1, 16)):
        built = [
            rank.start(
                "build",
                generation=generation,
                specs=[spec("all", 0, 1, 2), spec("pair", 0, 2)],
                store_address=address,
            )
            for rank in ranks
        ]
        for one in built:
            one.result()
        assert [one.result() for one in all_reduce(ranks, "all", generation)] == [[3]] * 3
        for rank in ranks:
            rank.at_once("shut", generation=generation)

    for rank in ranks:
        num_connections, failures = rank.do("stop_storm")
        assert failures == []
        assert num_connections > 30
    assert [one.result() for one in all_reduce(ranks, "all", "0")] == [[3]] * 3


def test_generations_leak_nothing(start_ranks: StartRanks) -> None:
    """Descriptors and threads of shut groups are given back, without a garbage collection. Guard:
    `Group.shut` drops the last reference."""
    ranks = start_ranks(2)
    specs = [spec("all", 0, 1), spec("line", 0, 1, kind=LINK)]
    specs.append(spec("brief", 0, 1, kind=VOTES))
    address = build(ranks, "0", *specs)
    before = {}
    for generation in map(str, range(1, 9)):
        built = [
            rank.start("build", generation=generation, specs=specs, store_address=address)
            for rank in ranks
        ]
        for one in built:
            one.result()
        waiting = all_reduce(ranks[:1], "all", generation)[0]
        ranks[0].wait_until_blocked()
        for rank in ranks:
            rank.at_once("forget", generation=generation)
        assert waiting.error().kind == "GroupBroken"
        if generation == "1":
            before = {rank.engine_id: rank.do("count_resources") for rank in ranks}
    for rank in ranks:
        found = rank.do("count_resources", expected=before[rank.engine_id])
        assert found <= before[rank.engine_id]
