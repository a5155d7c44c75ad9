"""What losing, stopping, draining and adding a node costs, and what it costs others.

    python -m benchmarks.recovery --write              everything, two hours
    python -m benchmarks.recovery --short              everything a little, to try
    python -m benchmarks.recovery kills goodput        these parts

Six nodes on one machine, pipelines of two, one node may be lost. `real` computes; `paced` sleeps
for what a layer would take, so that six ranks on a few cores overlap and idle as six machines do;
`brief` is paced with steps so short that a pause is hardly the rest of a step.
"""

import argparse
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.jobs import COMPUTATIONS, Computation
from benchmarks.common.results import surroundings, write_json
from benchmarks.common.workbench import Workbench
from benchmarks.recovery.cables import measure_cables
from benchmarks.recovery.changes import measure_changes, measure_stops
from benchmarks.recovery.deaths import measure_deaths
from benchmarks.recovery.goodput import measure_goodput
from benchmarks.recovery.kills import NUM_NODES, measure_kills
from benchmarks.recovery.overload import measure_overload
from benchmarks.recovery.page import RESULTS, write_page
from benchmarks.recovery.peers.torchft import measure_torchft
from benchmarks.recovery.peers.torchrun import measure_torchrun

DEADLINE_SECONDS = 3.0
"""The default node deadline: what a stopped node is noticed by."""
MEMORY = Path("/dev/shm")  # noqa: S108 - a file system in memory, for the checkpoints of others


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How much is measured."""

    kills: int
    changes: int
    stops: int
    goodput_kills: int
    torchft_kills: int
    torchrun_kills: int
    """Fewer: each takes a minute, and most of it is the rendezvous."""
    deaths: int
    cables: int
    overload_seconds: float


FULL = Amount(
    kills=50,
    changes=20,
    stops=10,
    goodput_kills=60,
    torchft_kills=30,
    torchrun_kills=10,
    deaths=20,
    cables=20,
    overload_seconds=1800.0,
)
SHORT = Amount(
    kills=2,
    changes=1,
    stops=1,
    goodput_kills=2,
    torchft_kills=1,
    torchrun_kills=1,
    deaths=2,
    cables=2,
    overload_seconds=20.0,
)

Part = Callable[[Path, Amount, int], dict[str, Any]]


def kills(computation: Computation) -> Part:
    def measure(folder: Path, amount: Amount, seed: int) -> dict[str, Any]:
        with Workbench(folder, NUM_NODES) as bench:
            return measure_kills(bench, computation, num_kills=amount.kills, seed=seed)

    return measure


def changes(computation: Computation) -> Part:
    def measure(folder: Path, amount: Amount, seed: int) -> dict[str, Any]:
        with Workbench(folder, NUM_NODES) as bench:
            return measure_changes(bench, computation, num_changes=amount.changes, seed=seed)

    return measure


def stops(folder: Path, amount: Amount, seed: int) -> dict[str, Any]:
    with Workbench(folder, NUM_NODES, node_deadline_seconds=DEADLINE_SECONDS) as bench:
        return measure_stops(
            bench, num_stops=amount.stops, seed=seed, deadline_seconds=DEADLINE_SECONDS
        )


def goodput(folder: Path, amount: Amount, seed: int) -> dict[str, Any]:
    with Workbench(folder, NUM_NODES) as bench:
        return measure_goodput(bench, num_kills=amount.goodput_kills, seed=seed)


def deaths(_folder: Path, amount: Amount, _seed: int) -> dict[str, Any]:
    return measure_deaths(num_kills=amount.deaths)


def cables(folder: Path, amount: Amount, seed: int) -> dict[str, Any]:
    return measure_cables(
        folder, num_pulls=amount.cables, deadline_seconds=DEADLINE_SECONDS, seed=seed
    )


def overload(folder: Path, amount: Amount, seed: int) -> dict[str, Any]:
    return measure_overload(
        folder, seconds=amount.overload_seconds, deadline_seconds=DEADLINE_SECONDS, seed=seed
    )


def torchrun(_: Path, amount: Amount, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as memory:
        return measure_torchrun(Path(memory) / "runs", num_kills=amount.torchrun_kills, seed=seed)


def torchft(folder: Path, amount: Amount, seed: int) -> dict[str, Any]:
    environment = Path(tempfile.gettempdir()) / "planaria-torchft"
    return measure_torchft(folder, environment, num_kills=amount.torchft_kills, seed=seed)


PARTS: dict[str, Part] = {
    "deaths": deaths,
    **{f"kills-{computation}": kills(computation) for computation in COMPUTATIONS},
    "changes-real": changes("real"),
    "changes-paced": changes("paced"),
    "stops": stops,
    "cables": cables,
    "overload": overload,
    "goodput": goodput,
    "torchrun": torchrun,
    "torchft": torchft,
}


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end every process then, too
    arguments = _arguments()
    amount = SHORT if arguments.short else FULL
    chosen = arguments.parts or list(PARTS)
    folder = Path(tempfile.mkdtemp(prefix="planaria-recovery-", dir=arguments.folder))
    for name in [part for part in PARTS if part in chosen or part.partition("-")[0] in chosen]:
        where = surroundings()
        figures = PARTS[name](folder / name, amount, arguments.seed)
        result = {"surroundings": where, **figures}
        write_json(folder / f"{name}.json", result)
        if arguments.write:
            write_json(RESULTS / f"{name}.json", result)
            write_page()
    print(f"results and logs are in {folder}")


def _arguments() -> argparse.Namespace:
    names = sorted({*PARTS, *(name.partition("-")[0] for name in PARTS)})
    parser = argparse.ArgumentParser(
        prog="benchmarks.recovery", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("parts", nargs="*", choices=[*names, []], help="all of them by default")
    parser.add_argument("--short", action="store_true", help="a little of everything")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where files of the runs go")
    parser.add_argument("--write", action="store_true", help="keep the results in the repository")
    return parser.parse_args()


if __name__ == "__main__":
    main()
