"""One coordinator writes at a time: the one that opened the database last.

Opening it raises the epoch. Every writing transaction begins by reading the epoch, which keeps it
as it is until the transaction ends. So a coordinator that was replaced writes nothing, and its
successor begins after its last transaction: PostgreSQL ends those that are under way, since a
coordinator that is frozen between two messages of a statement is not idle to the server, and would
hold the epoch for as long as it is frozen.
"""

import fcntl
import os
import time
from pathlib import Path

from sqlalchemy import Connection, select, text, update

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.adapters.database.schema import LEADERSHIP

_END_TRANSACTIONS_OF_OTHERS = text(
    "SELECT pg_terminate_backend(pid) FROM pg_locks"
    " WHERE relation = CAST('leadership' AS regclass) AND pid <> pg_backend_pid()"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


def take_leadership(connection: Connection) -> None:
    """Replace the coordinator that writes now; on PostgreSQL its transactions end.

    The epoch is the time in seconds, or one more than the last: agents have heard of no later one,
    though the database is new or restored from a backup.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(_END_TRANSACTIONS_OF_OTHERS)
    epoch = max(read_epoch(connection) + 1, int(time.time()))
    connection.execute(update(LEADERSHIP).values(epoch=epoch))


def read_epoch(connection: Connection) -> int:
    """Return the epoch of the coordinator that may write."""
    return int(connection.scalars(select(LEADERSHIP.c.epoch).with_for_update()).one())


def check_leadership(connection: Connection, epoch: int) -> None:
    """Keep the epoch as it is until the transaction ends.

    Raises:
        PlanariaError: NOT_LEADER: another coordinator has opened the database since.
    """
    query = select(LEADERSHIP.c.id).where(LEADERSHIP.c.epoch == epoch).with_for_update(read=True)
    if connection.execute(query).first() is None:
        raise PlanariaError(
            ErrorReason.NOT_LEADER,
            "another coordinator has opened this database: it serves from now on, and this one "
            "has stopped",
            {"epoch": str(epoch)},
        )


class FileLock:
    """Keeps a second coordinator off a file of SQLite while this process lives.

    Raises:
        PlanariaError: NOT_LEADER: another process has the lock.
        OSError: the file cannot be made, or its file system has no locks.
    """

    def __init__(self, database_path: Path) -> None:
        path = database_path.with_name(f"{database_path.name}.lock")
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._descriptor, 20).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise PlanariaError(
                ErrorReason.NOT_LEADER,
                f"another coordinator (process {holder or 'unknown'}) uses {database_path}: stop "
                "it, or give this one another --data-dir",
                {"path": str(database_path), "pid": holder},
            ) from None
        except BaseException:
            os.close(self._descriptor)
            raise
        os.truncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let another process have the file."""
        os.close(self._descriptor)
