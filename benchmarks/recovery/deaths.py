"""How soon it shows that a process was killed, by how much memory it has."""

import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks.common.results import summary
from planaria_worker.engine.groups.liveness_beacon import LivenessBeacon

SIZES_MIB = (16, 512, 2048)
PAGE_BYTES = 4096
BOUND_SECONDS = 60.0


def measure_deaths(*, num_kills: int, sizes_mib: Sequence[int] = SIZES_MIB) -> dict[str, Any]:
    """Kill processes of each size; seconds until a peer sees it, and until it would without."""
    sizes = []
    for mib in sizes_mib:
        ends = [_kill_one(mib) for _ in range(num_kills)]
        first, last = zip(*ends, strict=True)
        sizes.append({"mib": mib, "watched": summary(first), "plain": summary(last)})
        print(f"{mib} MiB: {num_kills} kills", flush=True)
    return {"kills": num_kills, "sizes": sizes}


def _kill_one(mib: int) -> tuple[float, float]:
    """Return when the first and the last of a process's two connections were seen to end.

    A process without a second table of files would end both with the last.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:
        listener.settimeout(BOUND_SECONDS)
        port = str(listener.getsockname()[1])
        command = [sys.executable, "-m", "benchmarks.recovery.deaths", port, str(mib)]
        process = stack.enter_context(subprocess.Popen(command))
        stack.callback(process.kill)
        plain, held = (stack.enter_context(listener.accept()[0]) for _ in range(2))
        plain.settimeout(BOUND_SECONDS)
        if plain.recv(1) != b"r":
            raise RuntimeError("the process that was to be killed ended by itself")
        waiting, ends = [plain, held], []
        start = time.perf_counter()
        process.kill()
        while waiting:
            ended, _, _ = select.select(waiting, [], [])
            ends += [time.perf_counter() - start] * len(ended)
            waiting = [connection for connection in waiting if connection not in ended]
        return ends[0], ends[-1]


def be_killed(port: int, mib: int) -> None:
    """Be the process: memory that is its own, and one connection of each kind."""
    memory = bytearray(mib << 20)
    memory[::PAGE_BYTES] = b"m" * (len(memory) // PAGE_BYTES)
    plain, held = (socket.create_connection(("127.0.0.1", port)) for _ in range(2))
    beacon = LivenessBeacon(farewell=b"")
    if not beacon.hold(held):
        raise RuntimeError("the connection could not be handed over")
    held.close()
    plain.send(b"r")
    time.sleep(BOUND_SECONDS)


if __name__ == "__main__":
    be_killed(int(sys.argv[1]), int(sys.argv[2]))
