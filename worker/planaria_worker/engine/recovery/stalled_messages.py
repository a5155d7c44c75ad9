"""Finds messages that make no progress: bytes that a peer's machine has not acknowledged for long.

The kernel of the receiver acknowledges whatever its process does: one that computes, waits or is
stopped takes its bytes late, and acknowledges nonetheless. So neither a slow peer nor one that
waits itself is ever accused, and a link over which nobody sends accuses nobody. A peer that never
sends what is waited for is the business of its watchdog.

The sender sees it in either direction: what it sends does not arrive, or the acknowledgement does
not.
"""

import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from planaria_worker.engine.groups.transport.backends import PeerConnection

LEAST_SECONDS = 4.0
"""A message that makes no progress for so long, and for ten round trips, is stalled.

After two seconds without a network the kernel sends it again within this time.
"""
_ROUND_TRIPS = 10
_LEAST_LOOKS = 4
"""So many looks have found no progress: time in which this machine was paused does not count."""
_INFO = struct.Struct("@24xI40xI48xQ")
"""struct tcp_info of <linux/tcp.h>: segments that are not acknowledged, the round trip in
microseconds, bytes that were acknowledged."""


@dataclass(slots=True)
class _Progress:
    num_acknowledged: int
    since_seconds: float
    num_looks: int = 0


class StalledMessages:
    """Looks at connections now and then."""

    def __init__(self) -> None:
        self._progress: WeakKeyDictionary[socket.socket, _Progress] = WeakKeyDictionary()

    def look(
        self, now_seconds: float, connections: Iterable[tuple[str, PeerConnection]]
    ) -> list[tuple[str, PeerConnection]]:
        """Return those over which a message makes no progress.

        Args:
            now_seconds: by a monotonic clock.
            connections: each with the engine at its other end.
        """
        return [
            (engine_id, connection)
            for engine_id, connection in connections
            if self._is_stalled(now_seconds, connection.socket)
        ]

    def _is_stalled(self, now_seconds: float, connection: socket.socket) -> bool:
        try:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        except OSError:  # closed meanwhile
            return False
        num_unacknowledged, round_trip_microseconds, num_acknowledged = _INFO.unpack(info)
        seen = self._progress.get(connection)
        if not num_unacknowledged or seen is None or seen.num_acknowledged != num_acknowledged:
            self._progress[connection] = _Progress(num_acknowledged, now_seconds)
            return False
        seen.num_looks += 1
        limit_seconds = max(LEAST_SECONDS, _ROUND_TRIPS * round_trip_microseconds / 1e6)
        return seen.num_looks >= _LEAST_LOOKS and now_seconds - seen.since_seconds >= limit_seconds
