"""An engine without a model: binds the socket, answers every directive, and tells what it saw.

    python fake_engine.py --config FILE

A directive Copy is answered with the number of bytes that this process has answered before, so that
a test can tell whether it took effect twice. Commit makes it report a lost peer and a step, Export
end itself.
"""

import os
import signal
import socket
import sys
from pathlib import Path

from planaria.api.worker.v1.engine_link_pb2 import EngineCommand, EngineEvent
from planaria.api.worker.v1.report_pb2 import (
    Copied,
    DirectiveResult,
    EngineSnapshot,
    EngineState,
    Prepared,
    Stopped,
)
from planaria_worker.engine_config import EngineConfig
from planaria_worker.link import receive_message, send_message, socket_address


def main() -> None:
    config = EngineConfig.load(Path(sys.argv[2]))
    listener = socket.socket(socket.AF_UNIX)
    with socket_address(Path(config.socket_path)) as address:
        listener.bind(address)
    listener.listen(1)
    print("listening", flush=True)
    num_answered = 0
    while True:
        connection, _ = listener.accept()
        snapshot = EngineSnapshot(
            engine_id=config.engine_id,
            job_id=config.job_id,
            state=EngineState.ENGINE_STATE_PARKED,
            pid=os.getpid(),
        )
        send_message(connection, EngineEvent(snapshot=snapshot))
        result = DirectiveResult(
            directive_id=config.prepare_directive_id,
            engine_id=config.engine_id,
            prepared=Prepared(engine=snapshot, data_digest=config.data_digest),
        )
        if num_answered == 0:
            send_message(connection, EngineEvent(result=result))
        while (command := receive_message(connection, EngineCommand)) is not None:
            if command.HasField("directive"):
                num_answered += 1
                _obey(connection, command, num_answered)


def _obey(connection: socket.socket, command: EngineCommand, num_answered: int) -> None:
    directive = command.directive
    result = DirectiveResult(directive_id=directive.directive_id, engine_id=directive.engine_id)
    kind = directive.WhichOneof("command")
    if kind == "export":
        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "commit":
        event = EngineEvent()
        event.peer_lost.lost_engine_id = "peer"
        send_message(connection, event)
        event.step_report.record.step = 7
        send_message(connection, event)
    if kind == "stop":
        result.stopped.CopyFrom(Stopped())
    else:
        result.copied.CopyFrom(Copied(bytes=num_answered))
    send_message(connection, EngineEvent(result=result))
    if kind == "stop":
        sys.exit(0)


if __name__ == "__main__":
    main()
