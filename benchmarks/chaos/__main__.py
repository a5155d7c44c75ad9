"""Disturbs jobs on real processes by seeded schedules, and proves that nobody can tell.

    python -m benchmarks.chaos --write          500 events or more
    python -m benchmarks.chaos --short          one schedule, to try
    python -m benchmarks.chaos --replay 17      one schedule, verbosely, its files kept

A schedule is the same for the same seed, number of events and steps: a failed one names the command
that does it again. Which moment of a step an event meets is the machine's.

After each schedule the parameters must be bitwise those of an undisturbed run in one process, each
sum must hold each microbatch once, and no engine may have been restarted that did not end.
"""

import argparse
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from benchmarks.chaos.runner import NUM_NODES, Outcome, chaos_job, run_schedule, undisturbed
from benchmarks.chaos.schedule import make_schedule
from benchmarks.common.jobs import write_text
from benchmarks.common.results import surroundings, table, write_json

RESULTS = Path(__file__).parent / "results"
EVENTS_PER_SCHEDULE = 24
STEPS = 900
SHORT_STEPS = 300


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end every process then, too
    arguments = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="planaria-chaos-", dir=arguments.folder))
    where = surroundings()
    spec = chaos_job(write_text(folder / "text.txt"), arguments.steps)
    expected = undisturbed(spec, folder / "cache")
    outcomes: list[Outcome] = []
    for seed in _seeds(arguments, outcomes):
        if arguments.replay is not None:
            for event in make_schedule(seed, arguments.events_each, NUM_NODES):
                print(event)
        outcome = run_schedule(
            folder / str(seed),
            seed,
            num_events=arguments.events_each,
            spec=spec,
            expected=expected,
        )
        outcomes.append(outcome)
        _tell(outcome, folder / str(seed), arguments)
        if arguments.write:
            write(where, outcomes)
        if not outcome.problems and arguments.replay is None:
            shutil.rmtree(folder / str(seed))
    failed = [outcome.seed for outcome in outcomes if outcome.problems]
    if failed:
        sys.exit(f"failed: seeds {failed}; their files are in {folder}")
    if arguments.replay is None:
        shutil.rmtree(folder)


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


def _seeds(arguments: argparse.Namespace, outcomes: list[Outcome]) -> Iterator[int]:
    if arguments.replay is not None:
        yield arguments.replay
        return
    seed = arguments.seed
    while sum(len(outcome.done) for outcome in outcomes) < arguments.events:
        yield seed
        if arguments.short:
            return
        seed += 1


def _tell(outcome: Outcome, folder: Path, arguments: argparse.Namespace) -> None:
    verdict = "as undisturbed" if not outcome.problems else "; ".join(outcome.problems)
    print(
        f"seed {outcome.seed}: {len(outcome.done)} events, {outcome.num_recoveries} recoveries, "
        f"{outcome.seconds:.0f} s: {verdict}",
        flush=True,
    )
    if outcome.problems:
        again = replay_command(outcome.seed, arguments.events_each, arguments.steps)
        print(f"  logs in {folder}; again: {again}")


def replay_command(seed: int, num_events: int, steps: int) -> str:
    """Return what does a schedule of so many events to a job of so many steps again."""
    command = f"python -m benchmarks.chaos --replay {seed}"
    return f"{command} --events-each {num_events} --steps {steps}"


def write(where: dict[str, str], outcomes: list[Outcome]) -> None:
    """Keep the results: everything as JSON, what it comes to as Markdown."""
    write_json(
        RESULTS / "results.json",
        {"surroundings": where, "schedules": [asdict(outcome) for outcome in outcomes]},
    )
    kinds = Counter(event.kind for outcome in outcomes for event in outcome.done)
    totals = [
        ("schedules (seeds)", f"{len(outcomes)} ({outcomes[0].seed} to {outcomes[-1].seed})"),
        ("events", kinds.total()),
        ("recoveries, joins and departures", sum(o.num_recoveries for o in outcomes)),
        ("microbatches redone", sum(o.redone_microbatches for o in outcomes)),
        ("schedules with a problem", sum(bool(o.problems) for o in outcomes)),
        ("minutes", f"{sum(o.seconds for o in outcomes) / 60:.0f}"),
    ]
    text = [
        "# Chaos\n\nWritten by `python -m benchmarks.chaos --write`.\n\n",
        table(("", ""), totals),
        "\n",
        table(("event", "times"), sorted(kinds.items())),
        "\n",
        table(("measured on", ""), list(where.items())),
    ]
    (RESULTS / "results.md").write_text("".join(text))


if __name__ == "__main__":
    main()
