"""Disturbs jobs on real processes by seeded schedules, and proves that nobody can tell.

    python -m benchmarks.chaos --write          500 events or more; resumes an interrupted run
    python -m benchmarks.chaos --short          one schedule, to try
    python -m benchmarks.chaos --replay 17      one schedule, verbosely, its files kept

A schedule is the same for the same seed, number of events and steps: a failed one names the command
that does it again. Which moment of a step an event meets is the machine's. Without root and
nftables the schedules are others, which leave the network alone; the result says so.

After each schedule the parameters must be bitwise those of an undisturbed run in one process, each
sum must hold each microbatch once, and no engine may have been restarted that did not end.
"""

import argparse
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.chaos.runner import (
    Outcome,
    chaos_job,
    planned,
    run_schedule,
    undisturbed,
    why_no_network,
)
from benchmarks.common.cells import PASSED, Product, Record, Results
from benchmarks.common.jobs import write_text
from benchmarks.common.results import machine, now, table

RESULTS = Path(__file__).parent / "results"
EVENTS_PER_SCHEDULE = 24
STEPS = 900
SHORT_STEPS = 300


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end every process then, too
    arguments = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="planaria-chaos-", dir=arguments.folder))
    runs = Runs(arguments, folder)
    records: list[Record] = []
    for seed in _seeds(arguments, records):
        records.append(runs.stored(seed) or runs.run(seed))
        if arguments.write:
            write(records)
    if arguments.write:
        runs.keep_only(records)
    failed = [record.seed for record in records if record.outcome != PASSED]
    if failed:
        sys.exit(f"failed: seeds {failed}; their files are in {folder}")
    if arguments.replay is None:
        shutil.rmtree(folder)


class Runs:
    """Schedules of one length; with --write their results are stored, and reused."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self._arguments = arguments
        self._folder = folder
        self._product = Product()
        self._commit = self._product.commit if arguments.write else ""
        self._results = Results(RESULTS / "results.json")
        self._spec = chaos_job(write_text(folder / "text.txt"), arguments.steps)
        self._without_network = why_no_network()
        self._expected = undisturbed(self._spec, folder / "cache")

    def stored(self, seed: int) -> Record | None:
        """Return the result of a schedule that has passed on the current product code."""
        if not self._arguments.write:
            return None
        return self._results.find(self._cell(seed), seed, self._product)

    def keep_only(self, records: Sequence[Record]) -> None:
        """Drop the results of other runs."""
        self._results.keep_only(record.cell for record in records)

    def run(self, seed: int) -> Record:
        if self._arguments.replay is not None:
            for event in planned(seed, self._arguments.events_each, self._without_network):
                print(event)
        outcome = run_schedule(
            self._folder / str(seed),
            seed,
            num_events=self._arguments.events_each,
            spec=self._spec,
            expected=self._expected,
            without_network=self._without_network,
        )
        _report(outcome, self._folder / str(seed), self._arguments)
        if not outcome.problems and self._arguments.replay is None:
            shutil.rmtree(self._folder / str(seed))
        record = Record(
            cell=self._cell(seed),
            seed=seed,
            outcome="failed" if outcome.problems else PASSED,
            seconds=round(outcome.seconds, 2),
            commit=self._commit,
            machine=machine(),
            date=now(),
            details=asdict(outcome),
        )
        if self._arguments.write:
            self._results.add(record)
        return record

    def _cell(self, seed: int) -> str:
        name = f"seed {seed}: {self._arguments.events_each} events, {self._arguments.steps} steps"
        return f"{name}, network left alone" if self._without_network else name


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.chaos", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--events", type=int, default=500, help="how many at least")
    parser.add_argument("--seed", type=int, default=1, help="of the first schedule")
    parser.add_argument("--short", action="store_true", help="one schedule of a shorter job")
    parser.add_argument(
        "--events-each", type=int, default=EVENTS_PER_SCHEDULE, help="how many in a schedule"
    )
    parser.add_argument("--steps", type=int, help="of each job")
    parser.add_argument("--replay", type=int, metavar="SEED", help="this schedule alone")
    parser.add_argument("--folder", type=Path, help="where files of the runs go")
    parser.add_argument("--write", action="store_true", help="keep the results in the repository")
    arguments = parser.parse_args()
    if arguments.steps is None:
        arguments.steps = SHORT_STEPS if arguments.short else STEPS
    return arguments


def _seeds(arguments: argparse.Namespace, records: list[Record]) -> Iterator[int]:
    if arguments.replay is not None:
        yield arguments.replay
        return
    seed = arguments.seed
    while sum(len(record.details["done"]) for record in records) < arguments.events:
        yield seed
        if arguments.short:
            return
        seed += 1


def _report(outcome: Outcome, folder: Path, arguments: argparse.Namespace) -> None:
    result = "as undisturbed" if not outcome.problems else "; ".join(outcome.problems)
    print(
        f"seed {outcome.seed}: {len(outcome.done)} events, {outcome.num_recoveries} recoveries, "
        f"{outcome.seconds:.0f} s, {outcome.database}: {result}",
        flush=True,
    )
    if outcome.without_network:
        print(f"  the network was left alone: {outcome.without_network}")
    if outcome.problems:
        again = replay_command(outcome.seed, arguments.events_each, arguments.steps)
        print(f"  logs in {folder}; again: {again}")


def replay_command(seed: int, num_events: int, steps: int) -> str:
    """Return what does a schedule of so many events to a job of so many steps again."""
    command = f"python -m benchmarks.chaos --replay {seed}"
    return f"{command} --events-each {num_events} --steps {steps}"


def write(records: Sequence[Record]) -> None:
    """Summarise the schedules of this run as Markdown."""
    outcomes = [record.details for record in records]
    kinds = Counter(event["kind"] for outcome in outcomes for event in outcome["done"])
    totals = [
        ("schedules (seeds)", f"{len(records)} ({records[0].seed} to {records[-1].seed})"),
        ("events", kinds.total()),
        ("recoveries, joins and departures", sum(o["num_recoveries"] for o in outcomes)),
        ("microbatches redone", sum(o["redone_microbatches"] for o in outcomes)),
        ("schedules with a problem", sum(record.outcome != PASSED for record in records)),
        ("schedules on PostgreSQL", sum(o["database"] == "postgresql" for o in outcomes)),
        (
            "schedules that left the network alone",
            sum(bool(o["without_network"]) for o in outcomes),
        ),
        ("minutes", f"{sum(record.seconds for record in records) / 60:.0f}"),
        ("commits", ", ".join(dict.fromkeys(record.commit for record in records))),
        ("machines", "; ".join(dict.fromkeys(record.machine for record in records))),
        ("dates", ", ".join(dict.fromkeys(record.date[:10] for record in records))),
    ]
    text = [
        "# Chaos\n\nWritten by `python -m benchmarks.chaos --write`. Each schedule is in"
        " [results.json](results.json).\n\n",
        table(("", ""), totals),
        "\n",
        table(("event", "times"), sorted(kinds.items())),
    ]
    (RESULTS / "results.md").write_text("".join(text))


if __name__ == "__main__":
    main()
