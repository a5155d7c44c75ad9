"""The rendezvous store: every engine has one; a generation uses that of an engine that is alive."""

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TypeVar

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_worker.addresses import format_address, parse_address
from planaria_worker.engine.groups.group import GroupBroken

_PROBE_TIMEOUT_SECONDS = 1.0
_FIRST_POLL_SECONDS = 0.001
_LONGEST_POLL_SECONDS = 0.005

T = TypeVar("T")


class StoreServer:
    """The store that this engine offers to its peers, as long as it lives."""

    def __init__(self, host: str) -> None:
        # By default TCPStore listens on every interface; this socket listens on one.
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

    Calls block as long as the store's process is stopped: make them from a thread that may be
    abandoned.
    """

    def __init__(self, store: Store, address: str) -> None:
        self._store = store
        self._address = address

    @classmethod
    def connect(cls, address: str, prefix: str, *, timeout_seconds: float) -> "Rendezvous":
        """Open a connection to the store at an address.

        Args:
            address: of the store.
            prefix: of every key; one for each job and generation.
            timeout_seconds: how long the store may take to answer.

        Raises:
            UnavailableError: the address does not answer.
        """
        host, port = parse_address(address)

        def open_store() -> Store:
            # On a closed port TCPStore would retry until its timeout, and print stack traces.
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
        """Return the store with a further prefix, for torch."""
        return PrefixStore(prefix, self._store)

    def publish(self, key: str, value: str) -> None:
        """Set a key for the other engines.

        Raises:
            UnavailableError: the store's process has ended.
        """
        _answered(self._address, lambda: self._store.set(key, value))

    def gather(
        self, keys: Sequence[str], *, deadline: float, interrupted: threading.Event
    ) -> Mapping[str, str]:
        """Wait until all keys are set.

        Args:
            keys: of this and the other members.
            deadline: by `time.monotonic()`.
            interrupted: ends the wait.

        Returns:
            Values by key; after the deadline, only those that are set.

        Raises:
            GroupBroken: interrupted.
            UnavailableError: the store's process has ended.
        """
        present = list(keys)
        pause_seconds = _FIRST_POLL_SECONDS
        while not self._has(present):
            if interrupted.wait(pause_seconds):
                raise GroupBroken("shut while it was being built")
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
    """Call the store; raise an error of one line if it does not answer."""
    try:
        return call()
    except (OSError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
    # Outside the handler: the error must not keep the other one, which keeps the connection.
    raise PlanariaError(
        ErrorReason.UNAVAILABLE,
        f"store: no answer from {address}, which must be an engine that is alive: {reason}",
        {"address": address, "reason": reason},
    )
