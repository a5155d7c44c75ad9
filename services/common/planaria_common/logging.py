"""Structured logs: one event name and its fields; JSON in containers, key-value on a terminal.

log = get_logger("coordinator")
log.info("node_lost", node_id=node_id, cause="stream ended")

Logging never blocks and never fails: planaria_common.log_writer.
"""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Literal, TextIO, cast

import structlog

from planaria_common.log_writer import LogWriter

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "console", "json"]

_writers: list[LogWriter] = []


def configure_logging(
    *,
    component: str,
    level: LogLevel = "info",
    log_format: LogFormat = "auto",
    stream: TextIO | None = None,
) -> None:
    """Set up logging for this process; call once, from `__main__`.

    Args:
        component: which part logs, on every line.
        level: lines below it are dropped.
        log_format: JSON lines or key-value; "auto" is key-value exactly on a terminal.
        stream: standard error when not given, so that standard output stays for results.
    """
    writer = LogWriter(stream or sys.stderr, _tell_of_dropped)
    _writers[:] = [writer]
    is_terminal = writer.isatty()
    use_json = log_format == "json" or (log_format == "auto" and not is_terminal)
    shared: list[structlog.typing.Processor] = [
        _add_component(component),
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    # Tracebacks without the values of local variables: a token may be among them.
    without_locals = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    renderer: list[structlog.typing.Processor] = (
        [
            structlog.processors.ExceptionRenderer(without_locals),
            structlog.processors.JSONRenderer(),
        ]
        if use_json
        else [
            structlog.dev.ConsoleRenderer(
                colors=is_terminal, exception_formatter=structlog.dev.plain_traceback
            )
        ]
    )
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, writer)),
        cache_logger_on_first_use=False,
    )
    _route_standard_logging(cast(TextIO, writer), level, [*shared, *renderer])


def drain_logs(timeout_seconds: float) -> None:
    """Wait until what was logged has been written; call before a process ends by `os._exit`."""
    for writer in _writers:
        writer.drain(timeout_seconds)


def _tell_of_dropped(num_lines: int) -> None:
    get_logger("logging").warning("log_lines_dropped", num_lines=num_lines)


def _add_component(component: str) -> structlog.typing.Processor:
    def add(
        _logger: Any, _method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        event.setdefault("component", component)
        return event

    return add


def _route_standard_logging(
    stream: TextIO, level: LogLevel, processors: list[structlog.typing.Processor]
) -> None:
    """Libraries (uvicorn, alembic) log through the standard module: render those alike."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=processors[:-1],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                processors[-1],
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def get_logger(part: str) -> structlog.typing.FilteringBoundLogger:
    """Return a logger that names the part of the component that logs."""
    return cast(structlog.typing.FilteringBoundLogger, structlog.get_logger(part=part))
