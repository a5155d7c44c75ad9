"""`planaria up`: planner, coordinator and agents as separate processes on this machine."""

import importlib.util
import socket
from pathlib import Path

from planaria.errors import ConflictError, NotFoundError
from planaria.local import state as local_state
from planaria.local.processes import ProcessIdentity, find_workers, is_alive, reap
from planaria.local.processes import stop as stop_processes
from planaria.local.startup import STOP_GRACE_SECONDS, ClusterOptions, Startup
from planaria.local.state import SUPERVISOR, LocalCluster

_PARTS = {
    "planaria_planner": "numba",
    "planaria_coordinator": "fastapi",
    "planaria_worker": "torch",
}
"""Module of each part -> a library that only its extra brings."""


def find(data_dir: Path | None) -> LocalCluster:
    """Return the cluster of a data directory, or this user's.

    Raises:
        NotFoundError: none was started.
    """
    cluster = local_state.load(data_dir / local_state.STATE_FILE_NAME) if data_dir else None
    if data_dir is None:
        cluster = local_state.find()
    if cluster is None:
        where = f"in {data_dir}" if data_dir else "of yours"
        raise NotFoundError(
            f"no cluster {where} was found: `planaria up` starts one", reason="UNAVAILABLE"
        )
    return cluster


def start(options: ClusterOptions) -> LocalCluster:
    """Start a cluster and wait until every node is ready.

    Raises:
        ConflictError: one runs already, a part is not installed, or the port is in use.
        UnavailableError: something did not come up; what was started is stopped again.
    """
    check(options)
    return Startup(options).run()


def check(options: ClusterOptions) -> None:
    """Do nothing if a cluster can be started.

    Raises:
        ConflictError: one runs already, a part is not installed, or the port is in use.
    """
    _require_parts()
    _refuse_second(options.data_dir)
    _require_free_port(options.port)


def stop(cluster: LocalCluster) -> int:
    """Stop everything of a cluster, engines included; return how many processes were alive."""
    supervisors = {r.identity for r in cluster.processes if r.name == SUPERVISOR}
    found = _processes(cluster) - supervisors
    num_alive = sum(is_alive(process) for process in found | supervisors)
    # First, so that nothing is started again; it ends everything itself.
    stop_processes(supervisors, grace_seconds=3 * STOP_GRACE_SECONDS)
    stop_processes(found, grace_seconds=STOP_GRACE_SECONDS)
    for process in _recorded(cluster):
        reap(process)
    local_state.forget(cluster)
    return num_alive


def _recorded(cluster: LocalCluster) -> set[ProcessIdentity]:
    return {record.identity for record in cluster.processes}


def _processes(cluster: LocalCluster) -> set[ProcessIdentity]:
    """Return what `up` started, and the engines and agents that work in its folder."""
    return _recorded(cluster) | set(find_workers(cluster.data_dir))


def _require_parts() -> None:
    absent = [m for m, library in _PARTS.items() if importlib.util.find_spec(library) is None]
    if absent:
        raise ConflictError(
            f"`planaria up` needs {', '.join(absent)}: pip install 'planaria[all]'",
            reason="UNAVAILABLE",
            metadata={"part": ",".join(absent)},
        )


def _refuse_second(data_dir: Path) -> None:
    running = local_state.load(data_dir / local_state.STATE_FILE_NAME)
    if running is None:
        return
    if any(is_alive(process) for process in _processes(running)):
        raise ConflictError(
            f"a cluster of {data_dir} is running at {running.http_url}: "
            "`planaria down` stops it; another one needs another --data-dir and --port",
            reason="WRONG_STATE",
            metadata={"data_dir": str(data_dir), "address": running.http_url},
        )


def _require_free_port(port: int) -> None:
    with socket.socket() as probe:
        # Without it, a server stopped a moment ago would still count as "in use" (TIME_WAIT).
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            raise ConflictError(
                f"port {port} is in use: choose another with --port, or 0 for a free one",
                reason="WRONG_STATE",
                metadata={"field": "--port", "port": str(port)},
            ) from None
