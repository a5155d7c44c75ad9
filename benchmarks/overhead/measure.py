"""Blocks of steps, one variant after another, again and again; and the memory of each alone."""

import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from benchmarks.overhead.configurations import Configuration
from benchmarks.overhead.ranks import StepSeconds, ranks
from benchmarks.overhead.variants import VARIANTS

NUM_MEMORY_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One turn of every variant."""

    seconds: dict[str, StepSeconds]
    load: float
    """Processes that wanted to run, over the last minute."""


def measure_blocks(
    configuration: Configuration,
    *,
    num_blocks: int,
    num_steps: int,
    report: Callable[[str], None],
) -> list[Block]:
    """Train a few steps with each variant in turn, beginning with another one in every block.

    In every other block the order is reversed, so that what grows with time meets all alike.
    """
    names = list(VARIANTS)
    blocks = []
    with ranks(configuration, names) as processes:
        for name in names:
            processes.train(name, 1)
        for number in range(num_blocks):
            first = number // 2 % len(names)
            order = names[first:] + names[:first]
            if number % 2:
                order.reverse()
            start = time.monotonic()
            seconds = {name: processes.train(name, num_steps) for name in order}
            blocks.append(Block(seconds=seconds, load=os.getloadavg()[0]))
            report(
                f"{configuration.name}: block {number + 1} of {num_blocks} took "
                f"{time.monotonic() - start:.1f} s, load {blocks[-1].load:.1f}"
            )
    return blocks


def measure_memory(
    configuration: Configuration, variants: Collection[str] = VARIANTS
) -> dict[str, list[int]]:
    """Return by how much the resident memory of each rank grows with each variant, alone.

    From before its model, groups and buffers are made to the most that it has while it trains.
    """
    grown = {}
    for name in variants:
        with ranks(configuration, []) as processes:
            before = processes.resident_bytes()
            processes.build(name)
            processes.train(name, NUM_MEMORY_STEPS)
            after = processes.peak_bytes()
            grown[name] = [peak - base for peak, base in zip(after, before, strict=True)]
    return grown
