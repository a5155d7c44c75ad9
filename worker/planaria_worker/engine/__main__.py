"""Run an engine: `python -m planaria_worker.engine --config FILE`."""

import sys

from planaria_worker.engine.process.main import main

if __name__ == "__main__":
    sys.exit(main())
