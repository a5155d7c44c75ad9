"""Copies in pieces: every byte comes once, from a holder, over links as even as they can be."""

import itertools
import math
import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from planaria_planner.changes.copy_pieces import choose_pieces
from planaria_planner.changes.inventory import Inventory
from planaria_planner.changes.layer_copies import LayerCopy, busiest_bytes, choose_sources
from planaria_planner.cost.profile import ModelProfile
from unit.planner.profiles import equal_layers, random_profile

Missing = dict[str, list[int]]


def random_wants(rng: random.Random, num_layers: int) -> tuple[Missing, dict[str, frozenset[int]]]:
    """Return who lacks and who holds what; now and then nobody holds a layer."""
    held = {
        f"h{i}": frozenset(rng.sample(range(num_layers), rng.randint(1, num_layers)))
        for i in range(rng.randint(1, 5))
    }
    missing = {
        f"d{i}": rng.sample(range(num_layers), rng.randint(1, num_layers))
        for i in range(rng.randint(1, 4))
    }
    return missing, held


def one_after_another(profile: ModelProfile, missing: Missing, inventory: Inventory) -> int:
    """Return the busiest link where each layer in turn comes from whoever sends least so far."""
    sent: dict[str, int] = {}
    for layer, _ in sorted((layer, node) for node, layers in missing.items() for layer in layers):
        names = inventory.holders_of(layer) or [""]
        source = min(names, key=lambda name: (sent.get(name, 0), name))
        sent[source] = sent.get(source, 0) + profile.layers[layer].state_bytes
    received = [sum(profile.layers[i].state_bytes for i in layers) for layers in missing.values()]
    return max(*received, *sent.values())


def check_every_byte_comes_once(
    profile: ModelProfile, missing: Missing, inventory: Inventory, copies: Sequence[LayerCopy]
) -> None:
    for node_id, layers in missing.items():
        for layer in layers:
            pieces = [c for c in copies if (c.layer, c.destination) == (layer, node_id)]
            end = 0
            for piece in pieces:
                assert piece.first_byte == end
                end += piece.num_bytes
                assert piece.source in (inventory.holders_of(layer) or [""])
            assert end == profile.layers[layer].state_bytes
    wanted = sum(len(layers) for layers in missing.values())
    assert len({(copy.layer, copy.destination) for copy in copies}) == wanted


@settings(max_examples=300)
@given(seed=st.integers(0, 2**32), chunk_bytes=st.sampled_from([0, 1, 1000, 100_000, 10**9]))
def test_no_link_carries_more_than_without_pieces(seed: int, chunk_bytes: int) -> None:
    """Pieces against whole layers, and these against taking each from the least busy holder."""
    rng = random.Random(seed)
    profile = random_profile(rng, num_layers=6)
    missing, held = random_wants(rng, 6)
    inventory = Inventory.of(profile, held)
    whole = choose_sources(missing, inventory)
    pieces = choose_pieces(missing, inventory, chunk_bytes)

    check_every_byte_comes_once(profile, missing, inventory, whole)
    check_every_byte_comes_once(profile, missing, inventory, pieces)
    assert busiest_bytes(pieces) <= busiest_bytes(whole)
    assert busiest_bytes(whole) <= one_after_another(profile, missing, inventory)
    if chunk_bytes == 0:
        assert pieces == whole
    for piece in pieces:
        assert piece.first_byte % max(chunk_bytes, 1) == 0


def test_pieces_load_the_busiest_link_the_least() -> None:
    """The bound that no schedule beats is reached: every set of layers against its holders."""
    better = 0
    for seed in range(300):
        rng = random.Random(seed)
        profile = equal_layers(5, state_bytes=1000)
        missing, held = random_wants(rng, 5)
        inventory = Inventory.of(profile, held)
        missing = {
            n: [i for i in layers if inventory.num_holders[i]] for n, layers in missing.items()
        }
        missing = {n: layers for n, layers in missing.items() if layers}
        wanted = [layer for layers in missing.values() for layer in layers]
        bound = max((1000 * len(layers) for layers in missing.values()), default=0)
        for size in range(1, 6):
            for some in itertools.combinations(sorted(set(wanted)), size):
                senders = {name for layer in some for name in inventory.holders_of(layer)}
                chunks = sum(10 for layer in wanted if layer in some)
                bound = max(bound, 100 * math.ceil(chunks / len(senders)))
        pieces = choose_pieces(missing, inventory, 100)
        assert busiest_bytes(pieces) == bound, f"seed {seed}"
        better += bound < busiest_bytes(choose_sources(missing, inventory))
    assert better > 5


def test_one_large_layer_is_drawn_from_all_its_holders() -> None:
    profile = equal_layers(1, state_bytes=1000)
    inventory = Inventory.of(profile, {name: frozenset({0}) for name in "abcd"})
    copies = choose_pieces({"x": [0], "y": [0], "z": [0]}, inventory, 10)
    sent = {name: sum(c.num_bytes for c in copies if c.source == name) for name in "abcd"}
    assert busiest_bytes(copies) == 1000, "what each of the three receives"
    assert sum(sent.values()) == 3000


def test_sizes_beyond_32_bits() -> None:
    """Terabytes in single bytes: units grow until they can be counted."""
    profile = equal_layers(2, state_bytes=1 << 42, memory_bytes=1 << 50)
    inventory = Inventory.of(profile, {"a": frozenset({0, 1}), "b": frozenset({0, 1})})
    copies = choose_pieces({"x": [0], "y": [1], "z": [0]}, inventory, 1)
    check_every_byte_comes_once(profile, {"x": [0], "y": [1], "z": [0]}, inventory, copies)
    assert busiest_bytes(copies) <= 1.51 * (1 << 42)
