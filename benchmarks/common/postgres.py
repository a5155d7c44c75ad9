"""A PostgreSQL server of one's own: made, used and removed by a test or a benchmark.

    with postgres_server() as url:   # postgresql://planaria:...@127.0.0.1:PORT/planaria
        ...

It needs Debian's package `postgresql`, but no server that is already running and no privileges.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.common.ports import free_port
from benchmarks.common.processes import Part

USER = "planaria"
PASSWORD = "only-for-this-test"  # noqa: S105
START_TIMEOUT_SECONDS = 60.0
POLL_SECONDS = 0.05


def programs() -> Path | None:
    """Return the folder of the newest installed server's programs, or None."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name))
    if installed:
        return installed[-1]
    found = shutil.which("initdb")
    return Path(found).parent if found else None


@contextmanager
def postgres_server(host: str = "127.0.0.1") -> Iterator[str]:
    """Run a server inside the block and yield the URL of an empty database.

    Args:
        host: the address of this machine at which it listens.
    """
    folder = Path(tempfile.mkdtemp(prefix="planaria-postgres-"))
    try:
        port = free_port()
        with _server(folder, host, port):
            yield f"postgresql://{USER}:{PASSWORD}@{host}:{port}/{USER}"
    finally:
        shutil.rmtree(folder)


@contextmanager
def _server(folder: Path, host: str, port: int) -> Iterator[None]:
    found = programs()
    assert found, "PostgreSQL is missing: apt-get install postgresql"
    password_file = folder / "password"
    password_file.write_text(PASSWORD, encoding="utf-8")
    user = _unprivileged(folder)
    address = ["-h", host, "-p", str(port)]
    # Nothing here has to survive a power cut: no fsync.
    data = ["-D", f"{folder}/data"]
    initdb = [f"{found}/initdb", *data, "--username", USER, "--no-sync"]
    _run([*initdb, "--auth=scram-sha-256", f"--pwfile={password_file}"], user)
    with (folder / "data" / "pg_hba.conf").open("a") as rules:
        rules.write("host all all samenet scram-sha-256\n")
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [f"{found}/postgres", *data, *address, "-k", str(folder), "-F"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=_environment(),
            user=user,
            text=True,
        )
    try:
        _wait_until_ready([f"{found}/pg_isready", "-q", *address], server, folder / "log")
        _run([f"{found}/createdb", *address, "-U", USER, USER], user)
        yield
    finally:
        Part(name="PostgreSQL", process=server, log=folder / "log").end(signal.SIGTERM)


def _unprivileged(folder: Path) -> str | None:
    """Return who runs the server, None for whoever runs the test: it refuses root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            for path in (folder, *folder.iterdir()):
                shutil.chown(path, name)
        except LookupError:
            continue
        return name
    raise AssertionError("there is no user that could run PostgreSQL")


def _environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PGPASSWORD": PASSWORD, "LC_ALL": "C.UTF-8"}


def _run(command: Sequence[str], user: str | None) -> None:
    result = subprocess.run(
        command,
        env=_environment(),
        cwd="/",
        user=user,
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_SECONDS,
        check=False,
    )
    assert result.returncode == 0, f"{command[0]}: {result.stderr}"


def _wait_until_ready(question: Sequence[str], server: subprocess.Popen[str], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while subprocess.run(question, env=_environment(), check=False).returncode:
        if server.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"PostgreSQL did not start: {log.read_text()}")
        time.sleep(POLL_SECONDS)
