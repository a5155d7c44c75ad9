"""The rendezvous store: every engine has one, and a generation uses that of an engine alive."""

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TypeVar

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_worker.engine.groups.addresses import format_address, parse_address
from planaria_worker.engine.groups.group import GroupBroken

_PROBE_TIMEOUT_SECONDS = 1.0
_FIRST_POLL_SECONDS = 0.001
_LONGEST_POLL_SECONDS = 0.005

T = TypeVar("T")


class StoreServer:
    """The store that this engine offers to its peers; lives as long as the engine."""

    def __init__(self, host: str) -> None:
        # TCPStore by itself would listen on every interface: it is handed a socket that does not.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, 0), family=family)
        port: int = listener.getsockname()[1]
        self.address = format_address(host, port)
        self._store: TCPStore | None = TCPStore(
            host,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=_PROBE_TIMEOUT_SECONDS),
            master_listen_fd=listener.detach(),
        )

    def close(self) -> None:
        self._store = None


class Rendezvous:
    """One engine's view of the store of a generation.

    Calls block as long as the store's process is stopped: make them from a thread that may be left
    behind.
    """

    def __init__(self, store: Store, address: str) -> None:
        self._store = store
        self._address = address

    @classmethod
    def connect(cls, address: str, prefix: str, *, timeout_seconds: float) -> "Rendezvous":
        """Opens a connection of its own to the store at an address.

        Args:
            address: of the store's server.
            prefix: put before every key; one per job and generation.
            timeout_seconds: how long the store may take to answer.

        Raises:
            UnavailableError: nobody answers there.
        """
        host, port = parse_address(address)

        def open_store() -> Store:
            # TCPStore would try for all its timeout, and write stack traces, where nobody listens.
            socket.create_connection((host, port), _PROBE_TIMEOUT_SECONDS).close()
            return TCPStore(
                host,
                port,
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=timeout_seconds),
            )

        return cls(PrefixStore(prefix, _answered(address, open_store)), address)

    def scoped(self, prefix: str) -> Store:
        """The store under one more prefix, for torch."""
        return PrefixStore(prefix, self._store)

    def publish(self, key: str, value: str) -> None:
        """Sets a key for the others to find.

        Raises:
            UnavailableError: the store's process is gone.
        """
        _answered(self._address, lambda: self._store.set(key, value))

    def gather(
        self, keys: Sequence[str], *, deadline: float, interrupted: threading.Event
    ) -> Mapping[str, str]:
        """Waits until all keys are set.

        Args:
            keys: of this and the other members.
            deadline: by `time.monotonic()`.
            interrupted: ends the wait.

        Returns:
            Values by key; only those that are there, when the deadline passed.

        Raises:
            GroupBroken: interrupted.
            UnavailableError: the store's process is gone.
        """
        present = list(keys)
        pause_seconds = _FIRST_POLL_SECONDS
        while not self._has(present):
            if interrupted.wait(pause_seconds):
                raise GroupBroken("shut while it was built")
            if time.monotonic() > deadline:
                present = [key for key in keys if self._has([key])]
                break
            pause_seconds = min(2 * pause_seconds, _LONGEST_POLL_SECONDS)
        if not present:
            return {}
        values = _answered(self._address, lambda: self._store.multi_get(present))
        return {key: value.decode() for key, value in zip(present, values, strict=True)}

    def _has(self, keys: list[str]) -> bool:
        return _answered(self._address, lambda: self._store.check(keys))


def _answered(address: str, call: Callable[[], T]) -> T:
    """Makes a call to the store, and says in one line when nobody answers."""
    try:
        return call()
    except (OSError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
    # Out here, or the error would remember the other one, and with it the connection.
    raise PlanariaError(
        ErrorReason.UNAVAILABLE,
        f"store: no answer from {address}, which must be an engine that is alive: {reason}",
        {"address": address, "reason": reason},
    )
