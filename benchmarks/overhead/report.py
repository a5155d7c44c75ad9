"""What was measured, as JSON, as tables and as a picture."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from benchmarks.common.ratios import Ratio, ratio
from benchmarks.common.results import surroundings, table, write_json
from benchmarks.overhead.configurations import Configuration
from benchmarks.overhead.measure import Block
from benchmarks.overhead.ranks import StepSeconds
from benchmarks.overhead.variants import VARIANTS

TARGETS = (
    ("fast", "plain", 1.02),
    ("fast", "torch", 0.97),
    ("reproducible", "fast", 1.10),
)
"""Upper ends of the intervals."""

TARGET_COLUMNS = ("step time of", "over that of", "limit", "wall", "met", "processor")

Memory = dict[str, list[int]]


def write(
    folder: Path,
    configuration: Configuration,
    blocks: Sequence[Block],
    memory: Memory,
) -> str:
    """Keep the results of a configuration; returns them as Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {
        "configuration": asdict(configuration),
        "where": surroundings(),
        "step_seconds": [
            {name: asdict(seconds) for name, seconds in block.seconds.items()} for block in blocks
        ],
        "load": [round(block.load, 2) for block in blocks],
        "memory_bytes_per_rank": memory,
    }
    write_json(folder / f"{configuration.name}.json", content)
    page = _markdown(configuration, blocks, memory, content)
    (folder / f"{configuration.name}.md").write_text(page)
    _plot(folder / f"{configuration.name}.svg", configuration, blocks)
    return page


def write_targets(folder: Path) -> str:
    """Keep a page that says which configuration meets which target; returns it.

    Made from the results of all configurations that are in the folder.
    """
    rows: list[tuple[object, ...]] = []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        rows += [(path.stem, *row) for row in _targets(_read_blocks(content))]
    page = f"# Step time without failures: the targets\n\n    {_COMMAND} --write\n\n" + table(
        ("configuration", *TARGET_COLUMNS), rows
    )
    (folder / "targets.md").write_text(page)
    return page


def _read_blocks(content: Mapping[str, Any]) -> list[Block]:
    return [
        Block(seconds={name: StepSeconds(**s) for name, s in seconds.items()}, load=load)
        for seconds, load in zip(content["step_seconds"], content["load"], strict=True)
    ]


def _markdown(
    configuration: Configuration, blocks: Sequence[Block], memory: Memory, content: dict[str, Any]
) -> str:
    load = sorted(block.load for block in blocks)[len(blocks) // 2]
    return "\n".join(
        [
            f"# Step time without failures: {configuration.name}\n",
            f"    {_COMMAND} --configuration {configuration.name} --blocks {len(blocks)} --write\n",
            f"{configuration.description}\n",
            f"Pipelines: {configuration.num_pipelines} of {configuration.num_stages} stages, on "
            f"one machine, one process and thread per rank; {configuration.num_microbatches} "
            f"microbatches of {configuration.tokens_per_microbatch} tokens per step. All sum over "
            "gloo. The plain schedule and torch's send over gloo, Planaria over its own links. "
            f"The variants take turns in {len(blocks)} blocks; median load {load:.1f}. Cells have "
            f"the median and its 95 % interval (bootstrap over blocks).\n",
            f"Limits: {_SCOPE}\n",
            "## Targets\n",
            table(TARGET_COLUMNS, _targets(blocks)),
            "## Steps\n",
            table(("variant", "seconds", "processor seconds, all ranks"), _steps(blocks)),
            "## Memory\n",
            "Growth of a rank's resident memory when it trains with one variant alone, MiB.\n",
            table(
                ("variant", *(f"rank {rank}" for rank in range(configuration.num_ranks))),
                _memory_rows(memory),
            ),
            f"With at most {configuration.buckets_in_flight} buckets of "
            f"{configuration.bucket_bytes >> 20} MiB in flight, fast mode may need "
            f"{configuration.bytes_in_flight >> 20} MiB more than the plain schedule; it needs "
            f"{_most_added(memory):.1f}.\n",
            "## Where\n",
            table(("", ""), list(content["where"].items())),
        ]
    )


_COMMAND = "python -m benchmarks.overhead.run"
_SCOPE = (
    "a step is timed on the training thread, from its first forward pass to its commit. "
    "An engine's other threads (control, heartbeats, watchdog) do not run."
)


def _seconds(blocks: Sequence[Block], name: str, kind: str) -> list[float]:
    return [float(getattr(block.seconds[name], kind)) for block in blocks]


def compare(blocks: Sequence[Block], a: str, b: str, kind: str) -> Ratio:
    """Return the ratio of two variants' `wall` or `cpu` seconds."""
    return ratio(_seconds(blocks, a, kind), _seconds(blocks, b, kind))


def _targets(blocks: Sequence[Block]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for a, b, limit in TARGETS:
        wall = compare(blocks, a, b, "wall")
        met = "yes" if wall.high <= limit else "no"
        rows.append((VARIANTS[a], VARIANTS[b], limit, wall, met, compare(blocks, a, b, "cpu")))
    return rows


def _steps(blocks: Sequence[Block]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for name, title in VARIANTS.items():
        medians = [sorted(_seconds(blocks, name, k))[len(blocks) // 2] for k in ("wall", "cpu")]
        rows.append((title, *(f"{median:.4f}" for median in medians)))
    return rows


def _most_added(memory: Memory) -> float:
    """MiB that fast mode needs in addition to the plain schedule, on the worst rank."""
    pairs = zip(memory["fast"], memory["plain"], strict=True)
    return max(fast - plain for fast, plain in pairs) / 2**20


def _memory_rows(memory: Memory) -> list[tuple[object, ...]]:
    return [
        (VARIANTS[name], *(f"{grown / 2**20:.1f}" for grown in ranks))
        for name, ranks in memory.items()
    ]


def _plot(path: Path, configuration: Configuration, blocks: Sequence[Block]) -> None:
    """Each block's step time over that of the plain schedule."""
    others = [name for name in VARIANTS if name != "plain"]
    plain = _seconds(blocks, "plain", "wall")
    ratios = [
        [x / y for x, y in zip(_seconds(blocks, name, "wall"), plain, strict=True)]
        for name in others
    ]
    with rc_context({"svg.hashsalt": "planaria", "svg.fonttype": "none"}):
        figure = Figure(figsize=(8, 2.6), layout="constrained")
        axes = figure.subplots()
        axes.boxplot(ratios, orientation="horizontal", tick_labels=[VARIANTS[n] for n in others])
        axes.axvline(1.0, color="grey", linewidth=0.8)
        axes.set_xlabel(f"step time over {VARIANTS['plain']}, {configuration.name}")
        axes.grid(visible=True, axis="x", alpha=0.3)
        figure.savefig(path, format="svg", metadata={"Date": None})
