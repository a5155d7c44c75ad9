"""One rank of the benchmark: does what run.py says on stdin, and answers on stdout, in JSON lines.

All variants live in the same processes and take turns, so that a block of one and the next block of
another meet the same memory, the same cores and, nearly, the same load.
"""

import argparse
import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.overhead.configurations import Configuration
from benchmarks.overhead.memory import peak_bytes, resident_bytes
from benchmarks.overhead.variants import Rank, Step
from planaria_worker.engine.groups import StoreServer
from planaria_worker.engine.numerics import kernels
from planaria_worker.engine.numerics.pins import pin_numerics


class Server:
    """Obeys one command after another."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._store = StoreServer("127.0.0.1")
        self._steps: dict[str, Step] = {}
        self._next_step: dict[str, int] = {}

    def do(self, command: dict[str, Any]) -> dict[str, Any]:
        match command["do"]:
            case "listen":
                return {"store": self._store.address}
            case "connect":
                self._rank.connect(command["store"])
            case "build":
                variant = command["variant"]
                self._steps[variant] = self._rank.build(variant)
                self._next_step[variant] = 0
            case "freeze":
                gc.collect()
                gc.freeze()
            case "train":
                return self._train(command["variant"], command["num_steps"])
            case "moments":
                return {"moments_norm": self._rank.moments_norm(command["variant"])}
            case "memory":
                return {"resident_bytes": resident_bytes(), "peak_bytes": peak_bytes()}
        return {}

    def _train(self, variant: str, num_steps: int) -> dict[str, list[float]]:
        """When each step ended on this rank, by the clock that all ranks of a machine share.

        And what its processor had done by then.
        """
        run_step, ends, computed = self._steps[variant], [], []
        for _ in range(num_steps):
            run_step(self._next_step[variant])
            self._next_step[variant] += 1
            ends.append(time.perf_counter())
            computed.append(time.process_time())
        return {"ends": ends, "cpu_seconds": computed}


def _read_configuration(text: str) -> Configuration:
    return Configuration(**json.loads(text))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--configuration", type=_read_configuration, required=True)
    arguments = parser.parse_args()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # for libraries that print
    pin_numerics()
    kernels.warm_up()
    server = Server(Rank(arguments.rank, arguments.folder, arguments.configuration))
    for line in sys.stdin:
        answers.write(json.dumps(server.do(json.loads(line))) + "\n")
        answers.flush()
    os._exit(0)  # peers of groups that nobody closes are gone


if __name__ == "__main__":
    main()
