"""Where the cluster that `planaria up` started on this machine wrote down what it is.

`<data-dir>/up.json` holds the facts; a pointer in the user's state directory leads there, so that
`down`, `submit` and the client library find the cluster without being given its address.
Where it leads to no running cluster, they take the one in the default data directory.
"""

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from planaria.errors import InvalidArgumentError
from planaria.local.processes import ProcessIdentity, is_alive

STATE_FILE_NAME = "up.json"
SUPERVISOR = "supervisor"
"""Name of the process that starts the others again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """A process that `up` started.

    Attributes:
        name: planner, coordinator, supervisor, or the id of an agent's node.
        start_ticks: when the kernel started it, so that another process which was given the same
            pid later is not taken for it.
    """

    name: str
    pid: int
    start_ticks: int
    log_file: str

    @property
    def identity(self) -> ProcessIdentity:
        return ProcessIdentity(pid=self.pid, start_ticks=self.start_ticks)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCluster:
    """A cluster on this machine."""

    http_url: str
    grpc_address: str
    data_dir: str
    token_file: str
    processes: tuple[ProcessRecord, ...]

    @property
    def state_file(self) -> Path:
        return Path(self.data_dir) / STATE_FILE_NAME

    @property
    def is_running(self) -> bool:
        """Whether a process that `up` started is alive."""
        return any(is_alive(record.identity) for record in self.processes)


def default_data_dir() -> Path:
    """Return the folder of this user's cluster."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "planaria"


def pointer_file() -> Path:
    """Return the file that names the state file of this user's cluster."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "planaria" / "cluster"


def save(cluster: LocalCluster) -> None:
    """Write a cluster's state file."""
    _replace(cluster.state_file, json.dumps(asdict(cluster), indent=2) + "\n")


def point_to(cluster: LocalCluster) -> None:
    """Make a cluster the one that is found without an address."""
    pointer = pointer_file()
    pointer.parent.mkdir(parents=True, exist_ok=True)
    _replace(pointer, f"{cluster.state_file}\n")


def load(state_file: Path) -> LocalCluster | None:
    """Read a state file; None when there is none.

    Raises:
        InvalidArgumentError: it is damaged.
    """
    try:
        document = json.loads(state_file.read_text(encoding="utf-8"))
        processes = tuple(ProcessRecord(**record) for record in document.pop("processes"))
        return LocalCluster(**document, processes=processes)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidArgumentError(
            f"{state_file} is damaged ({error}): stop what it names by hand and delete it",
            reason="INVALID_ARGUMENT",
            metadata={"path": str(state_file)},
        ) from None


def find() -> LocalCluster | None:
    """Return this user's cluster, if any.

    It is the one that the pointer leads to, else the one in the default data directory; one that
    has ended only where the other does not run either.
    """
    state_files = [default_data_dir() / STATE_FILE_NAME]
    with suppress(OSError):
        state_files.insert(0, Path(pointer_file().read_text(encoding="utf-8").strip()))
    first: LocalCluster | None = None
    for file in dict.fromkeys(state_files):
        cluster = load(file)
        if cluster is not None and cluster.is_running:
            return cluster
        first = first or cluster
    return first


def forget(cluster: LocalCluster) -> None:
    """Delete a cluster's state file, and the pointer when it leads there."""
    pointer = pointer_file()
    cluster.state_file.unlink(missing_ok=True)
    try:
        if pointer.read_text(encoding="utf-8").strip() == str(cluster.state_file):
            pointer.unlink()
    except FileNotFoundError:
        return


def _replace(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
