"""Connections that end at the moment this process is killed, so that peers notice at once.

The kernel closes the files of a killed process after it has freed its memory: after 40 ms for half
a gigabyte, after seconds for an engine on a large machine. But a thread may have a table of open
files of its own. A thread that is not the last of its process has no memory to free: the kernel
closes its table at once, whatever the size of the process. So a thread that has no other files
holds the connections that peers watch.

No Python code runs in that thread while it has them: a socket that is garbage-collected there would
be closed in the wrong table. If the kernel has no such tables (before Linux 5.9) or forbids them,
the thread shares the table of the process, and the connections end as late as any other.
"""

import contextlib
import signal
import socket
import threading

import numpy as np
from numba import types
from numpy.typing import NDArray

from planaria_common.logging import get_logger
from planaria_worker.engine.numerics.compiled import compiled

_CLOSE_TIMEOUT_SECONDS = 5.0

# Answers of the thread to a descriptor.
_REFUSED, _SHARED, _OWN = 0, 1, 2

# <asm/unistd.h>, <linux/close_range.h>, <poll.h>, <sys/socket.h>; alike on x86-64 and AArch64.
_SYS_CLOSE_RANGE = 436  # older C libraries have no function for it
_CLOSE_RANGE_UNSHARE = 2
_LAST_DESCRIPTOR = 0xFFFF_FFFF
_POLLIN = 1
_OVER = 0x8 | 0x10 | 0x20  # POLLERR, POLLHUP, POLLNVAL
_MSG_CTRUNC = 0x8
_MSG_DONTWAIT = 0x40
_MSG_NOSIGNAL = 0x4000
_LENGTH_OF_ONE_RIGHT = 20

_FIRST_ROOM = 16
_RECEIVED_BYTES = 64
_REST_MICROSECONDS = 1000

_log = get_logger("liveness_beacon")

_syscall = types.ExternalFunction(
    "syscall", types.int64(types.int64, types.int64, types.int64, types.int64)
)
_poll = types.ExternalFunction("poll", types.int32(types.voidptr, types.uint64, types.int32))
_recv = types.ExternalFunction(
    "recv", types.int64(types.int32, types.voidptr, types.uint64, types.int32)
)
_recvmsg = types.ExternalFunction("recvmsg", types.int64(types.int32, types.voidptr, types.int32))
_send = types.ExternalFunction(
    "send", types.int64(types.int32, types.voidptr, types.uint64, types.int32)
)
_close = types.ExternalFunction("close", types.int32(types.int32))
_usleep = types.ExternalFunction("usleep", types.int32(types.uint32))


class LivenessBeacon:
    """Holds connections until the peers close them, it is closed, or the process is killed.

    Attributes:
        num_taken: how many connections it has received.
    """

    def __init__(self, farewell: bytes) -> None:
        """Start the thread.

        Args:
            farewell: sent on every connection by `close`.
        """
        self._lock = threading.Lock()
        self._is_closed = False
        self.num_taken = 0
        self._sender, self._receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._thread = threading.Thread(
            target=_keep,
            args=(self._receiver.fileno(), farewell),
            name="liveness-beacon",
            daemon=True,
        )
        self._thread.start()

    def hold(self, connection: socket.socket) -> bool:
        """Take a duplicate of a connection; the caller then closes its own.

        Returns:
            Whether it was taken: not if the beacon is closed, or no more files may be open.
        """
        with self._lock:
            if self._is_closed:
                return False
            try:
                socket.send_fds(self._sender, [b"\0"], [connection.fileno()])
                (answer,) = self._sender.recv(1)
            except (OSError, ValueError) as error:
                _log.warning("connection_not_held", error=str(error))
                return False
            self.num_taken += answer != _REFUSED
        if answer == _SHARED:
            _log.warning("deaths_show_late", cause="a thread cannot have its own file table")
        return answer != _REFUSED

    def close(self) -> None:
        """Send the farewell on every connection, and close them all."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._sender.close()
        self._thread.join(_CLOSE_TIMEOUT_SECONDS)
        with contextlib.suppress(OSError):
            self._receiver.close()


def _keep(receiver: int, farewell: bytes) -> None:
    """Run the thread: no other Python code may run in it."""
    # A signal handler would look for its descriptors in this thread's table.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    _hold(receiver, np.frombuffer(farewell, np.uint8).copy(), _CLOSE_RANGE_UNSHARE)


@compiled("int32(int32)")
def _receive_descriptor(receiver: int) -> int:
    """Receive a descriptor. -1: no room for it; -2: the sender is closed; -3: try again."""
    # In one piece, so that all of it lives as long as any: a byte to receive, struct iovec at 1,
    # struct cmsghdr with one descriptor at 3, struct msghdr at 6.
    block = np.zeros(13, np.int64)
    start = block.ctypes.data
    block[1], block[2] = start, 1
    block[8], block[9] = start + 8 * 1, 1
    block[10], block[11] = start + 8 * 3, 24
    num_bytes = _recvmsg(receiver, block[6:].ctypes, 0)
    if num_bytes <= 0:
        return -2 if num_bytes == 0 else -3
    if block[3] != _LENGTH_OF_ONE_RIGHT or block[12] & _MSG_CTRUNC:
        return -1
    descriptor: int = block[5]
    return descriptor


@compiled("void(int32, uint8[::1], int64)")
def _hold(receiver: int, farewell: NDArray[np.uint8], flags: int) -> None:
    """Hold all descriptors that arrive, until the sender is closed."""
    answers = np.array([_REFUSED, _SHARED], np.uint8)
    if _syscall(_SYS_CLOSE_RANGE, receiver + 1, _LAST_DESCRIPTOR, flags) == 0:
        _syscall(_SYS_CLOSE_RANGE, 0, receiver - 1, 0)
        answers[1] = _OWN
    # struct pollfd: the descriptor; what is waited for, and in the upper half what happened.
    polled = np.zeros((_FIRST_ROOM, 2), np.int32)
    polled[0, 0], polled[0, 1] = receiver, _POLLIN
    received = np.zeros(_RECEIVED_BYTES, np.uint8)
    count = 1
    while True:
        if _poll(polled.ctypes, count, -1) < 0:
            _usleep(_REST_MICROSECONDS)
            continue
        for i in range(count - 1, 0, -1):
            events = polled[i, 1] >> 16
            if events == 0:
                continue
            # A peer sends bytes only for their acknowledgement.
            is_over = events & _OVER or (
                _recv(polled[i, 0], received.ctypes, received.size, _MSG_DONTWAIT) == 0
            )
            if is_over:
                _close(polled[i, 0])
                count -= 1
                polled[i, 0], polled[i, 1] = polled[count, 0], polled[count, 1]
        if polled[0, 1] >> 16 == 0:
            continue
        descriptor = _receive_descriptor(receiver)
        if descriptor == -2:
            break
        if descriptor == -3:
            _usleep(_REST_MICROSECONDS)
            continue
        if descriptor >= 0:
            if count == len(polled):
                larger = np.zeros((2 * count, 2), np.int32)
                for i in range(count):
                    larger[i, 0], larger[i, 1] = polled[i, 0], polled[i, 1]
                polled = larger
            polled[count, 0], polled[count, 1] = descriptor, _POLLIN
            count += 1
        _send(receiver, answers[int(descriptor >= 0) :].ctypes, 1, _MSG_NOSIGNAL)
    for i in range(1, count):
        _send(polled[i, 0], farewell.ctypes, farewell.size, _MSG_NOSIGNAL | _MSG_DONTWAIT)
        _close(polled[i, 0])
