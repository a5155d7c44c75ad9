"""The process that `planaria up` leaves running: it starts services again that end.

It is their parent, so it knows how each has ended. SIGINT and SIGTERM end everything.
"""

import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from planaria.errors import ConflictError, PlanariaError, UnavailableError
from planaria.local import cluster as local_cluster
from planaria.local import state as local_state
from planaria.local.processes import (
    ProcessIdentity,
    identify,
    is_alive,
    reap,
    send_signal,
    start_module,
)
from planaria.local.startup import ClusterOptions, Started, Startup, log_file_of
from planaria.local.state import SUPERVISOR, LocalCluster, ProcessRecord

REPLACED_STATUS: Final = 3
"""A coordinator ends with it when another has opened its database."""
_FIRST_PAUSE_SECONDS: Final = 1.0
_MAX_PAUSE_SECONDS: Final = 30.0
_STEADY_SECONDS: Final = 60.0
_OPTIONS: Final = "PLANARIA_UP_OPTIONS"
_LOCK: Final = "PLANARIA_UP_LOCK"
_POLL_SECONDS: Final = 0.05
_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def pause_seconds(num_failures: int) -> float:
    """Return how long to wait before a service is started for the n-th time in a row."""
    doubled_seconds = _FIRST_PAUSE_SECONDS * 2.0 ** min(num_failures - 1, 10)
    return min(_MAX_PAUSE_SECONDS, doubled_seconds)


@dataclass(slots=True, kw_only=True)
class _Watched:
    """A service, and when it is to be started again."""

    started: Started
    start_seconds: float
    runs: bool = True
    num_failures: int = 0
    due_seconds: float | None = None
    """When to start it again; None: it runs, or stays down."""


class Supervisor:
    """Starts services again, each after a pause that doubles while it keeps ending."""

    def __init__(self, cluster: LocalCluster, started: Sequence[Started]) -> None:
        now = time.monotonic()
        self._cluster = cluster
        self._watched = [_Watched(started=each, start_seconds=now) for each in started]
        self._is_saved = True

    def run(self) -> None:
        """Watch until a stop signal, then end everything; these signals are blocked."""
        arrived: Any = None
        while arrived is None or arrived.si_signo not in _STOP_SIGNALS:
            try:
                self._look()
            except Exception as error:  # nobody else would start anything again
                _say(f"a look at the services failed: {error!r}")
            arrived = signal.sigtimedwait(
                {*_STOP_SIGNALS, signal.SIGCHLD}, self._seconds_until_due()
            )
        _say("everything is ended")
        own = [record for record in self._cluster.processes if record.name == SUPERVISOR]
        others = tuple(record for record in self._cluster.processes if record not in own)
        local_cluster.stop(replace(self._cluster, processes=others))

    def _look(self) -> None:
        for watched in self._watched:
            ended = _status_of_ended(watched.started.identity) if watched.runs else None
            if ended is not None:
                watched.runs = False
                self._note_end(watched, ended)
            elif watched.due_seconds is not None and watched.due_seconds <= time.monotonic():
                self._start(watched)
        if not self._is_saved:
            self._save()

    def _seconds_until_due(self) -> float:
        due = [w.due_seconds for w in self._watched if w.due_seconds is not None]
        seconds = min(due) - time.monotonic() if due else _STEADY_SECONDS
        return max(0.0, seconds if self._is_saved else min(seconds, _FIRST_PAUSE_SECONDS))

    def _note_end(self, watched: _Watched, status: int) -> None:
        name, now = watched.started.name, time.monotonic()
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        if status == REPLACED_STATUS:
            _say(
                f"{name} ended: another coordinator uses its database. It is not started again: "
                "`planaria down` and `planaria up` take the database back"
            )
            return
        if now - watched.start_seconds > _STEADY_SECONDS:
            watched.num_failures = 0
        watched.num_failures += 1
        pause = pause_seconds(watched.num_failures)
        watched.due_seconds = now + pause
        _say(f"{name} ended with {how}; it starts again in {pause:.0f} s")

    def _start(self, watched: _Watched) -> None:
        now = time.monotonic()
        try:
            watched.started = watched.started.service.start()
        except OSError as error:
            watched.num_failures += 1
            watched.due_seconds = now + pause_seconds(watched.num_failures)
            _say(f"{watched.started.name} cannot be started: {error}")
            return
        watched.start_seconds, watched.due_seconds, watched.runs = now, None, True
        self._is_saved = False
        records = {record.name: record for record in self._cluster.processes}
        records[watched.started.name] = watched.started.record()
        self._cluster = replace(self._cluster, processes=tuple(records.values()))

    def _save(self) -> None:
        """Write down what runs; where the disk is full, with one of the next looks."""
        with suppress(OSError):
            local_state.save(self._cluster)
            self._is_saved = True


def start_supervised(options: ClusterOptions) -> LocalCluster:
    """Start a cluster whose services are started again; wait until every node is ready.

    Raises:
        ConflictError: one runs already, a part is not installed, or the port is in use.
        UnavailableError: something did not come up; what was started is stopped again.
    """
    local_cluster.check(options)
    log_file = log_file_of(options.data_dir, SUPERVISOR)
    log_offset = log_file.stat().st_size if log_file.exists() else 0
    document = json.dumps({**asdict(options), "data_dir": str(options.data_dir)})
    # Not an argument: the URL of the database may hold a password.
    with _lock_of(options.data_dir) as lock:
        process = start_module(
            "planaria.local.supervisor",
            [],
            log_file=log_file,
            environment={_OPTIONS: document, _LOCK: str(lock)},
        )
    try:
        return _wait_until_started(process, log_file, log_offset)
    except BaseException:
        send_signal(process, signal.SIGINT)
        while is_alive(process):
            time.sleep(_POLL_SECONDS)
        reap(process)
        raise


@contextmanager
def _lock_of(data_dir: Path) -> Iterator[int]:
    """Give a descriptor that keeps others from starting a cluster in a folder while it is open.

    A process that is started meanwhile inherits it.

    Raises:
        ConflictError: somebody starts one, or has.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    lock = os.open(data_dir / "up.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.set_inheritable(lock, True)
        yield lock
    except BlockingIOError:
        raise ConflictError(
            f"another `planaria up` uses {data_dir}: `planaria down` stops it; another cluster "
            "needs another --data-dir and --port",
            reason="WRONG_STATE",
            metadata={"data_dir": str(data_dir)},
        ) from None
    finally:
        os.close(lock)


def _wait_until_started(process: ProcessIdentity, log_file: Path, log_offset: int) -> LocalCluster:
    while True:
        has_ended = not is_alive(process)
        for line in log_file.read_bytes()[log_offset:].decode(errors="replace").splitlines():
            if line.startswith("started {") and line.endswith("}"):
                state_file = Path(json.loads(line.removeprefix("started "))["state_file"])
                cluster = local_state.load(state_file)
                if cluster is not None:
                    return cluster
            if line.startswith("failed {") and line.endswith("}"):
                raise UnavailableError(**json.loads(line.removeprefix("failed ")))
        if has_ended:
            raise UnavailableError(f"the supervisor ended: see {log_file}", reason="UNAVAILABLE")
        time.sleep(_POLL_SECONDS)


def _status_of_ended(process: ProcessIdentity) -> int | None:
    """Return how a child has ended, negative for a signal; None while it runs."""
    pid, status = os.waitpid(process.pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if pid else None


def _say(text: str) -> None:
    with suppress(OSError):  # a full disk
        sys.stdout.write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {text}\n")
        sys.stdout.flush()


def _with_ourselves(cluster: LocalCluster, options: ClusterOptions) -> LocalCluster:
    own = identify(os.getpid())
    if own is None:
        raise AssertionError("this process runs")
    record = ProcessRecord(
        name=SUPERVISOR,
        pid=own.pid,
        start_ticks=own.start_ticks,
        log_file=str(log_file_of(options.data_dir, SUPERVISOR)),
    )
    return replace(cluster, processes=(*cluster.processes, record))


def main() -> int:
    """Start a cluster and watch it; what comes of it is written to standard output."""
    document = json.loads(os.environ.pop(_OPTIONS))
    options = ClusterOptions(**{**document, "data_dir": Path(document["data_dir"])})
    os.set_inheritable(int(os.environ.pop(_LOCK)), False)  # what is started must not keep it
    starting = Startup(options)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is ended again
    try:
        cluster = starting.run()
        # From here on a stop signal waits until somebody looks for it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {*_STOP_SIGNALS, signal.SIGCHLD})
    except PlanariaError as error:
        facts = {"message": error.message, "reason": error.reason, "metadata": error.metadata}
        sys.stdout.write(f"failed {json.dumps(facts)}\n")
        return 1
    except KeyboardInterrupt:
        return 1
    try:
        cluster = _with_ourselves(cluster, options)
        local_state.save(cluster)
        sys.stdout.write(f"started {json.dumps({'state_file': str(cluster.state_file)})}\n")
        sys.stdout.flush()
    except BaseException:
        starting.undo()
        raise
    Supervisor(cluster, starting.started).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
