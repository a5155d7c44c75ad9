"""A job in one process: no pipelines, no communication, no failures.

    python examples/plain_run.py JOB.json CACHE_DIR

Prints the digest of the final parameters. The loop is benchmarks/oracle, which shares with the
engine only the initial parameters and the order of the data.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # sums depend on it: one thread, as engines have
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.oracle.from_spec import reference_run
from planaria.job import JobSpec


def main() -> None:
    spec = JobSpec.model_validate_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print(reference_run(spec, Path(sys.argv[2])).digest)


if __name__ == "__main__":
    main()
