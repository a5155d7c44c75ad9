"""Connections that must not be hurt by what is shut next to them."""

import os
import socket
import threading

from integration.worker_comm.bounds import BOUND_SECONDS
from unit.worker_comm.layers import HOST


class Storm:
    """Threads that connect to servers in their own process as fast as they can, and use what they
    have: any connection that ends early is a failure."""

    def __init__(self, store_address: str) -> None:
        from planaria_worker.engine.groups.rendezvous import Rendezvous

        self._stopped = threading.Event()
        self._failures: list[str] = []
        self._num_connections = 0
        self._listener = socket.create_server((HOST, 0), backlog=128)
        self._port: int = self._listener.getsockname()[1]
        self._rendezvous = Rendezvous.connect(
            store_address, "storm/", timeout_seconds=BOUND_SECONDS
        )
        self._threads = [
            threading.Thread(target=target, daemon=True)
            for target in (self._accept, self._connect, self._connect, self._use_store)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> tuple[int, list[str]]:
        self._stopped.set()
        for thread in self._threads[1:]:
            thread.join()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        return self._num_connections, self._failures

    def _accept(self) -> None:
        while True:  # to the end: who has connected waits for the echo
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(16):
                connection.sendall(data)

    def _connect(self) -> None:
        while not self._stopped.is_set():
            try:
                with socket.create_connection((HOST, self._port)) as connection:
                    self._num_connections += 1
                    for _ in range(4):
                        connection.sendall(b"x" * 16)
                        if not connection.recv(16):
                            raise ConnectionError("cut")
                        self._stopped.wait(0.001)
            except OSError as error:
                self._failures.append(f"connection: {error}")
                return

    def _use_store(self) -> None:
        for index in range(1 << 30):
            if self._stopped.wait(0.002):
                return
            try:
                self._rendezvous.publish(f"{os.getpid()}/{index % 8}", "x")
            except Exception as error:
                self._failures.append(f"store: {error}")
                return
