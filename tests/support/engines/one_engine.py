"""One engine process of a test, and everything it has said."""

import contextlib
import signal
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.duration_pb2 import Duration

from planaria.api.worker.v1.directive_pb2 import Directive
from planaria.api.worker.v1.engine_link_pb2 import EngineCommand, EngineEvent, Lease
from planaria.api.worker.v1.report_pb2 import DirectiveResult, EngineSnapshot, EngineState
from planaria_worker.link import encode, socket_address
from support.engines.link import LinkEnd
from support.engines.zygote import ForkedProcess

TIMEOUT_SECONDS = 120.0
"""Only a broken engine comes near it, but the machine may be busy with something else."""
LEASE = Lease(duration=Duration(seconds=600))


class EngineDiedError(AssertionError):
    """An engine that was asked for something has died."""


@dataclass(kw_only=True)
class TestEngine:
    """One engine process and everything it has said."""

    __test__ = False

    name: str
    engine_id: str
    process: ForkedProcess
    folder: Path
    changed: threading.Condition
    snapshot: EngineSnapshot = field(default_factory=EngineSnapshot)
    states: list["EngineState.ValueType"] = field(default_factory=list)
    events: list[EngineEvent] = field(default_factory=list)
    connection: socket.socket | None = None

    def connect(self) -> None:
        """Becomes the engine's agent; the socket is there a moment after the process."""
        path = self.folder / "engine.sock"
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                with socket_address(path) as address:
                    connection.connect(address)
                break
            except OSError:
                connection.close()
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"{self.name} did not start:\n{self.log()}") from None
                threading.Event().wait(0.01)
        self.connection = connection
        connection.sendall(encode(EngineCommand(lease=LEASE)))
        threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def end_lease(self) -> None:
        """Say that the agent will not be back in time."""
        assert self.connection is not None
        self.connection.sendall(encode(EngineCommand(lease=Lease(duration=Duration(nanos=1)))))

    def send(self, directive: Directive) -> None:
        assert self.connection is not None
        try:
            self.connection.sendall(encode(EngineCommand(directive=directive)))
        except OSError:
            raise EngineDiedError(f"{self.name} died\n{self.log()}") from None

    def result(self, directive_id: str) -> DirectiveResult | None:
        for event in self.events:
            if event.HasField("result") and event.result.directive_id == directive_id:
                return event.result
        return None

    def log(self) -> str:
        return (self.folder / "engine.log").read_text()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.connection is not None:
            self.connection.close()

    def _read(self, connection: socket.socket) -> None:
        try:
            link = LinkEnd(connection, EngineEvent)
            while (event := link.receive()) is not None:
                with self.changed:
                    if event.HasField("snapshot"):
                        self.snapshot = event.snapshot
                        self.states.append(event.snapshot.state)
                    else:
                        self.events.append(event)
                        if event.result.HasField("activated"):  # older snapshots are out of date
                            self.snapshot.state = EngineState.ENGINE_STATE_TRAINING
                    self.changed.notify_all()
        except OSError:
            pass
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)  # an engine waits until its agent hangs up
        with self.changed:
            self.changed.notify_all()
