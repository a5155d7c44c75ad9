"""The comparison of step times runs, and compares like with like."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.overhead.configurations import CONFIGURATIONS, Configuration
from benchmarks.overhead.measure import Block, measure_memory
from benchmarks.overhead.ranks import ranks
from benchmarks.overhead.report import write, write_targets
from benchmarks.overhead.variants import VARIANTS

pytestmark = pytest.mark.integration

NUM_STEPS = 3
MIB = 1 << 20
UNSURE_BYTES = 4 * MIB
"""By so much resident memory differs from run to run, and what connections keep."""
TINY = Configuration(
    name="tiny",
    description="As small as can be.",
    model={
        "family": "llama",
        "hidden_size": 32,
        "num_layers": 4,
        "num_heads": 2,
        "vocab_size": 256,
    },
    sequence_length=16,
    num_microbatches=4,
)


def test_all_variants_train_the_same_and_the_results_are_written(tmp_path: Path) -> None:
    with ranks(TINY, list(VARIANTS)) as processes:
        seconds = {name: processes.train(name, NUM_STEPS) for name in VARIANTS}
        moments = {name: processes.moments_norm(name) for name in VARIANTS}
        memory = {name: processes.peak_bytes() for name in VARIANTS}
    assert min(moments["plain"]) > 0.0
    for name in VARIANTS:
        assert moments[name] == pytest.approx(moments["plain"], rel=1e-3), name

    page = write(tmp_path, TINY, [Block(seconds=seconds, load=0.0)], memory)
    assert all(title in page for title in VARIANTS.values())
    assert "| tiny | " in write_targets(tmp_path)


@pytest.mark.slow
def test_fast_mode_needs_little_more_memory_than_its_buckets_in_flight() -> None:
    """All sums of a stage at once would be three times as much."""
    little = replace(
        CONFIGURATIONS["real"],
        sequence_length=16,
        num_microbatches=4,
        buckets_in_flight=1,
        bucket_bytes=4 * MIB,
    )
    grown = measure_memory(little, ["fast", "plain"])
    more = [a - b for a, b in zip(grown["fast"], grown["plain"], strict=True)]
    assert max(more) < little.bytes_in_flight + UNSURE_BYTES, more
