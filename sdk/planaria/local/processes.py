"""Starts and stops processes of this machine, never mistaking one for another.

A pid alone is not a name: it may have been given to somebody else since. A process is identified by
its pid and the moment at which the kernel started it, and signals go through a pidfd.
"""

import os
import re
import select
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_BOOT_ID = _PROC / "sys" / "kernel" / "random" / "boot_id"
_WORKER = re.compile("planaria[_-]worker")  # the module, or the installed command


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """One process, for ever."""

    pid: int
    start_ticks: int


def identify(pid: int) -> ProcessIdentity | None:
    """Return the identity of the process that has this pid; None when there is none."""
    facts = _facts(pid)
    return facts[0] if facts else None


def is_alive(process: ProcessIdentity) -> bool:
    """Tell whether the process runs; one that has ended but is still in the table does not."""
    facts = _facts(process.pid)
    return facts is not None and facts[0] == process and facts[1] not in "ZX"


def boot_id() -> str:
    """Return what tells this run of the machine from all others."""
    return _BOOT_ID.read_text(encoding="ascii").strip()


def _facts(pid: int) -> tuple[ProcessIdentity, str] | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field, the command in parentheses, may hold anything: count from behind it.
    fields = text.rpartition(")")[2].split()
    return ProcessIdentity(pid=pid, start_ticks=int(fields[19])), fields[0]


def start_module(
    module: str, arguments: Sequence[str], *, log_file: Path, environment: Mapping[str, str]
) -> ProcessIdentity:
    """Run `python -m module` in a process group of its own, all its output in a file.

    It outlives us and our terminal: nothing here waits for it, so it is no subprocess.Popen. Not in
    a session of its own: Linux may divide the processor among sessions first (sched(7), "The
    autogroup feature"), and who wakes up for a recovery would wait for the turn of its session.
    """
    log_file.parent.mkdir(parents=True, exist_ok=True)
    pid = os.posix_spawn(
        sys.executable,
        # -P: a file in the working directory must not hide a module.
        [sys.executable, "-P", "-m", module, *arguments],
        {**os.environ, **environment},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setpgroup=0,
        # Whoever starts it may have blocked or ignored some for itself.
        setsigmask=(),
        setsigdef=(signal.SIGINT, signal.SIGTERM),
    )
    # Our child keeps its entry in the process table until we take its status.
    started = identify(pid)
    if started is None:
        raise ProcessLookupError(pid)
    return started


def reap(process: ProcessIdentity) -> None:
    """Take the status of a process of `start_module` that has ended, if it was our child.

    Else it would stay in the process table as long as we live.
    """
    if identify(process.pid) == process:
        with suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)


def find_workers(folder: str) -> Iterator[ProcessIdentity]:
    """Yield this user's agents and engines that were given a path below a folder."""
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if entry.stat().st_uid != os.geteuid():
                continue
            arguments = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        # A process that renamed itself, as forked engines do, has all its words in one.
        start = re.compile(rf"(^|\s){re.escape(folder + os.sep)}")
        inside = any(start.search(argument) for argument in arguments)
        if inside and any(_WORKER.search(argument) for argument in arguments):
            found = identify(int(entry.name))
            if found is not None:
                yield found


def stop(processes: Iterable[ProcessIdentity], *, grace_seconds: float) -> int:
    """Send SIGINT, wait, then SIGKILL to those left; return how many were alive.

    Returns when all have ended. SIGTERM would have agents drain their nodes first.
    """
    descriptors = [fd for process in processes if (fd := open_process(process)) is not None]
    try:
        _signal_all(descriptors, signal.SIGINT)
        left = _wait(descriptors, grace_seconds)
        _signal_all(left, signal.SIGKILL)
        _wait(left, grace_seconds)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return len(descriptors)


def send_signal(process: ProcessIdentity, number: signal.Signals) -> None:
    """Send a signal, unless the process has ended."""
    descriptor = open_process(process)
    if descriptor is not None:
        try:
            _signal_all([descriptor], number)
        finally:
            os.close(descriptor)


def open_process(process: ProcessIdentity) -> int | None:
    """Return a pidfd, which the caller closes; None when the process has ended."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    # Checked after opening: from here on the descriptor cannot come to mean another process.
    if not is_alive(process):
        os.close(descriptor)
        return None
    return descriptor


def _signal_all(descriptors: Iterable[int], number: signal.Signals) -> None:
    for descriptor in descriptors:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, number)


def _wait(descriptors: Iterable[int], timeout_seconds: float) -> list[int]:
    """Wait until processes have ended; return the descriptors of those that have not."""
    left = set(descriptors)
    poller = select.poll()
    for descriptor in left:
        poller.register(descriptor, select.POLLIN)
    deadline = time.monotonic() + timeout_seconds
    while left and (seconds := deadline - time.monotonic()) > 0:
        for descriptor, _ in poller.poll(seconds * 1_000):
            poller.unregister(descriptor)
            left.discard(descriptor)
    return list(left)
