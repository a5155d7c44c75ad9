"""Run an engine: `python -m planaria_worker.engine --config FILE`."""

from planaria_worker.engine.process.main import main

if __name__ == "__main__":
    main()
