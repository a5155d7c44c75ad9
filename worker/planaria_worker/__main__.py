"""`planaria-worker`: one agent, until a stop signal; its engines end with it."""

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from planaria_common.credentials import read_token
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.logging import drain_logs
from planaria_common.priority import come_first
from planaria_common.service import run_service
from planaria_worker.agent.concurrency import has_threads
from planaria_worker.agent.launcher import Launcher
from planaria_worker.agent.machine import describe_machine
from planaria_worker.agent.settings import WorkerSettings

LOG_SECONDS = 1.0


async def serve(settings: WorkerSettings) -> None:
    """Run the agent until a stop signal; then end its engines.

    Raises:
        PlanariaError: a setting is wrong, or the coordinator refuses this agent.
    """
    token = read_token(settings.token_file) if settings.token_file else None
    with _sole_owner(settings.data_dir):
        launcher = Launcher()
        launcher.warm_up()  # the longest part of a node's start: the rest runs meanwhile
        come_first()  # what was started until here trains
        try:
            from planaria_worker.agent.life import live

            machine = describe_machine(settings)
            await live(settings, token=token, machine=machine, launch=launcher.launch)
        finally:
            launcher.close()


@contextlib.contextmanager
def _sole_owner(data_dir: Path) -> Iterator[None]:
    """Hold the data directory's lock: two agents on one folder would adopt each other's engines."""
    try:
        str(data_dir).encode()  # engines read their paths from JSON
        data_dir.mkdir(parents=True, exist_ok=True)
        lock = (data_dir / "agent.lock").open("w")
    except UnicodeEncodeError:
        raise _unusable(data_dir, "the path is not UTF-8") from None
    except OSError as error:
        raise _unusable(data_dir, error.strerror or str(error)) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _unusable(data_dir, "another agent uses it") from None
        yield


def _unusable(data_dir: Path, problem: str) -> PlanariaError:
    path = str(data_dir).encode(errors="backslashreplace").decode()
    return PlanariaError(
        ErrorReason.INVALID_ARGUMENT,
        f"--data-dir {path}: {problem}; give each agent a folder of its own",
        {"field": "--data-dir", "path": path},
    )


def main() -> None:
    """Run the command and exit."""
    status = run_service(part="worker", settings_type=WorkerSettings, serve=serve)
    if has_threads():  # the interpreter's own end can crash in the libraries that they are in
        drain_logs(LOG_SECONDS)
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    main()
