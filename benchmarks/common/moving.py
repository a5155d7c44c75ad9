"""A cluster whose coordinator can be replaced by another one at another address."""

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common.cluster import Cluster
from benchmarks.common.ports import free_port
from benchmarks.common.processes import Part


class MovingCluster(Cluster):
    """Agents know two addresses; there is a coordinator at one of them."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **options)
        self._other_port = free_port()
        self._addresses = f"{self.grpc_address},{self.host}:{self._other_port}"
        self._frozen: list[Part] = []

    def node_options(self, node_id: str) -> Mapping[str, object]:
        return {**super().node_options(node_id), "coordinator": self._addresses}

    def move_coordinator(self) -> None:
        """Kill the coordinator, and start it at the other address."""
        self.kill_coordinator()
        self._start_at_other_address()

    def replace_coordinator(self) -> Part | None:
        """Freeze the coordinator, start another on its database, and return the frozen one.

        SQLite's file is locked as long as its process exists: there it is killed instead.
        """
        if "database_url" not in self._settings:
            self.move_coordinator()
            return None
        frozen = self.coordinator
        assert frozen is not None
        self.signal_coordinator(signal.SIGSTOP)
        self._frozen.append(frozen)
        self._start_at_other_address()
        return frozen

    def stop(self) -> None:
        super().stop()
        for part in self._frozen:
            if part.process.poll() is None:
                part.end()

    def _start_at_other_address(self) -> None:
        self._grpc_port, self._other_port = self._other_port, self._grpc_port
        self._http_port = free_port()
        if self._client is not None:
            self._client.close()
            self._client = None
        self.start_coordinator()
