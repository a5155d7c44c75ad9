"""Step time without failures: `python -m benchmarks.overhead.run [--write]`.

Planaria in both modes, the same schedule written plainly, and torch's Schedule1F1B: the same model
code, collectives and optimizer, in the same processes, in turns. Turns are short, since a machine
that others use as well changes its speed from one second to the next. The defaults take about 30
minutes on two cores.
"""

import argparse
import os
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.overhead.configurations import CONFIGURATIONS
from benchmarks.overhead.measure import measure_blocks, measure_memory
from benchmarks.overhead.report import write, write_targets

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=120, help="turns of every variant")
    parser.add_argument("--steps", type=int, default=1, help="measured steps in a turn")
    parser.add_argument("--configuration", choices=CONFIGURATIONS, help="only this one")
    parser.add_argument("--write", action="store_true", help="keep the results in the repository")
    arguments = parser.parse_args()
    names = [arguments.configuration] if arguments.configuration else list(CONFIGURATIONS)
    with tempfile.TemporaryDirectory() as scratch:
        folder = RESULTS if arguments.write else Path(scratch)
        for name in names:
            configuration = CONFIGURATIONS[name]
            blocks = measure_blocks(
                configuration,
                num_blocks=arguments.blocks,
                num_steps=arguments.steps,
                report=lambda line: print(line, flush=True),
            )
            print(write(folder, configuration, blocks, measure_memory(configuration)))
        print(write_targets(folder))


if __name__ == "__main__":
    main()
