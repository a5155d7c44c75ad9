"""Run long tests cell by cell, and store each outcome at once.

    python -m benchmarks.verification matrix            the failure matrix, an hour
    python -m benchmarks.verification searches -n 2     all searches of the protocol
    python -m benchmarks.verification slow              every other slow test

Interrupt it at any time: the next run skips cells that have passed since product code last changed,
and runs those that failed or are missing. Results are in benchmarks/verification/results.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import REPOSITORY
from benchmarks.common.cells import Product, Results
from benchmarks.common.results import machine
from benchmarks.verification.recorder import Recorder
from benchmarks.verification.suites import SUITES
from benchmarks.verification.summary import summarise


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end every process then, too
    os.chdir(REPOSITORY)
    arguments = _arguments()
    suite = SUITES[arguments.suite]
    seed = arguments.seed if suite.has_seed else None
    if seed is not None:
        os.environ["PLANARIA_MATRIX_SEED"] = str(seed)
    product, results = Product(), Results(suite.results)
    commit = product.commit
    cells = _collect(suite.arguments)
    results.keep_only(cells)
    missing = [
        cell
        for cell in cells
        if arguments.only in cell and (arguments.again or not results.find(cell, seed, product))
    ]
    print(f"{suite.name}: {len(missing)} of {len(cells)} cells to run on {commit}", flush=True)
    exit_code = 0
    if missing:
        logs = Path(tempfile.mkdtemp(prefix=f"planaria-{suite.name}-"))
        recorder = Recorder(
            results.add,
            lambda: Product().is_unchanged_since(commit),
            seed=seed,
            commit=commit,
            machine=machine(),
            logs=logs,
        )
        try:
            exit_code = pytest.main(
                [*missing, "-m", "", "-q", "-n", str(arguments.workers)], plugins=[recorder]
            )
        finally:
            suite.results.with_suffix(".md").write_text(summarise(suite, results.records, cells))
            print(f"results: {suite.results}; logs of failures: {logs}")
    return int(exit_code)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.verification", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--seed", type=int, default=1, help="of the matrix: chooses the victims")
    parser.add_argument("--again", action="store_true", help="run what has passed, too")
    parser.add_argument("--only", default="", metavar="TEXT", help="cells whose names have it")
    parser.add_argument(
        "-n", dest="workers", type=int, default=0, help="processes; not for those of a cluster"
    )
    return parser.parse_args()


def _collect(arguments: Sequence[str]) -> list[str]:
    """Return the names of all tests."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--no-header", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return [line for line in done.stdout.splitlines() if "::" in line]


if __name__ == "__main__":
    sys.exit(main())
