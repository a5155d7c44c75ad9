"""The processes of a benchmark, and what they are asked."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks import REPOSITORY
from benchmarks.overhead.configurations import Configuration, write_text


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds:
    """What a step took."""

    wall: float
    """From when all ranks had ended a step until all had ended the next."""
    cpu: float
    """Of all ranks together: what other work on the machine hardly changes."""


class Ranks:
    """All ranks, doing the same at the same time."""

    def __init__(self, configuration: Configuration, folder: Path) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self._processes = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "benchmarks.overhead.rank"),
                    *("--rank", str(rank), "--folder", str(folder)),
                    *("--configuration", json.dumps(asdict(configuration))),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
                cwd=REPOSITORY,
            )
            for rank in range(configuration.num_ranks)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            with contextlib.suppress(BrokenPipeError):
                process.communicate()

    def connect(self) -> None:
        """Lets the ranks meet."""
        store = self._ask("listen")[0]["store"]
        self._ask("connect", store=store)

    def build(self, variant: str) -> None:
        """Makes a variant ready for its first step."""
        self._ask("build", variant=variant)
        self._ask("freeze")

    def moments_norm(self, variant: str) -> list[float]:
        """On each rank the norm of AdamW's first moments, in which every gradient shows."""
        return [answer["moments_norm"] for answer in self._ask("moments", variant=variant)]

    def resident_bytes(self) -> list[int]:
        """The memory of each rank now."""
        return [answer["resident_bytes"] for answer in self._ask("memory")]

    def peak_bytes(self) -> list[int]:
        """The most memory that each rank ever had."""
        return [answer["peak_bytes"] for answer in self._ask("memory")]

    def train(self, variant: str, num_steps: int) -> StepSeconds:
        """Means over steps, without a first one that brings the ranks together."""
        answers = self._ask("train", variant=variant, num_steps=num_steps + 1)
        first, last = (max(answer["ends"][place] for answer in answers) for place in (0, -1))
        computed = sum(a["cpu_seconds"][-1] - a["cpu_seconds"][0] for a in answers)
        return StepSeconds(wall=(last - first) / num_steps, cpu=computed / num_steps)

    def _ask(self, what: str, **fields: Any) -> list[dict[str, Any]]:
        """Gives a command to every rank, and returns what each answers."""
        line = json.dumps({"do": what, **fields}) + "\n"
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(line)
            process.stdin.flush()
        return [_answer(process) for process in self._processes]


def _answer(process: "subprocess.Popen[str]") -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a rank ended with exit code {process.wait()}; see its error above")
    answer: dict[str, Any] = json.loads(line)
    return answer


@contextlib.contextmanager
def ranks(configuration: Configuration, variants: Sequence[str]) -> Iterator[Ranks]:
    """Processes that hold these variants, each ready for its first step."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(folder)
        configuration.job(folder, reproducible=True)  # makes the token file once
        with Ranks(configuration, folder) as started:
            started.connect()
            for variant in variants:
                started.build(variant)
            yield started
