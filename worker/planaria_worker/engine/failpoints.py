"""Failpoints: named points in the engine where a test can make it fail.

    PLANARIA_ENGINE_FAILPOINTS='[{"at": "reduce", "step": 3, "action": "kill"}]'
    PLANARIA_ENGINE_FAILPOINTS=/path/of/script

Without the variable they do nothing. A script serves many engines, and may grow while they run
(failpoint_script).
"""

import ctypes
import json
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args

from planaria_common.errors import PlanariaError, invalid
from planaria_worker.engine.failpoint_script import Line, Script

ENVIRONMENT_VARIABLE = "PLANARIA_ENGINE_FAILPOINTS"

FailpointName = Literal[
    "prepare",
    "forward",
    "backward",
    "evaluate",
    "wait_peer",
    "reduce",
    "before_exchange",
    "after_exchange",
    "before_update",
    "report",
    "roll_forward",
    "rebuild",
    "copy",
    "serve_copy",
    "checkpoint",
    "checkpoint_copy",
    "stage",
    "follow",
    "serve_follow",
    "switch",
    "digest",
]
Action = Literal["kill", "stop", "raise", "segfault", "hang", "hold", "no_memory"]
_HOLD_SECONDS = 0.001


_FIELDS = ("at", "action", "step", "since_step", "microbatch", "skip", "until")


class FailpointError(Exception):
    """What the action `raise` raises: an error that no code expects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failpoint:
    """One failure, to happen once."""

    at: FailpointName
    action: Action
    step: int | None = None
    """Only in this step; in a copy or a checkpoint, in this version. None: in any."""
    since_step: int = 0
    """Only in this step and later ones, where the place knows its step."""
    microbatch: int | None = None
    """Only in this microbatch of the step, or this layer of a checkpoint; None: in any."""
    skip: int = 0
    """How often it may be passed before."""
    until: str = ""
    """Path of a file: `hold` goes on when it is there, and only one thread is held."""
    line: Line | None = None
    """Where it stands in a script."""

    def matches(self, at: FailpointName, step: int | None, microbatch: int | None) -> bool:
        return (
            self.at == at
            and self.step in (None, step)
            and (step is None or step >= self.since_step)
            and self.microbatch in (None, microbatch)
            and (self.line is None or self.line.is_due())
        )


class Failpoints:
    """The failures that an engine was given; may be hit from any thread."""

    def __init__(
        self, failpoints: tuple[Failpoint, ...] = (), script: Script | None = None
    ) -> None:
        self._lock = threading.Lock()
        self._armed = list(failpoints)
        self._script = script

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], engine_id: str = "") -> Self:
        """Reads the variable; unset or empty, nothing ever happens.

        Raises:
            InvalidArgumentError: it is neither a JSON list of failpoints nor an absolute path;
                names the entry and field.
        """
        text = environment.get(ENVIRONMENT_VARIABLE, "")
        if text.startswith("/"):
            # A link may point to the next job's script before this job's engines have ended.
            return cls(script=Script(Path(text).resolve(), engine_id))
        return cls(_parse(text) if text else ())

    def hit(
        self, at: FailpointName, step: int | None = None, microbatch: int | None = None
    ) -> None:
        """Fails here, if a failpoint says so.

        Raises:
            FailpointError: its action is `raise`.
        """
        if self._armed or self._script is not None:
            self._hit(at, step, microbatch)

    def _hit(self, at: FailpointName, step: int | None, microbatch: int | None) -> None:
        with self._lock:
            if self._script is not None:
                new = self._script.new_lines()
                self._armed += [replace(_parse_entry(x.number, x.entry), line=x) for x in new]
            for failpoint in self._armed:
                if failpoint.matches(at, step, microbatch):
                    self._armed.remove(failpoint)
                    break
            else:
                return
            if failpoint.skip:
                self._armed.append(replace(failpoint, skip=failpoint.skip - 1))
                return
        if failpoint.line is not None and not failpoint.line.fire(at, step, microbatch):
            return  # another engine was faster
        _fail(failpoint)


def _fail(failpoint: Failpoint) -> None:
    match failpoint.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            # To this very thread: sent to the process, another one might take it, and this go on.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        case "segfault":
            ctypes.string_at(0)
        case "hang":
            while True:  # as a kernel that never ends: nothing interrupts it
                time.sleep(3600)
        case "hold":
            while not Path(failpoint.until).exists():
                time.sleep(_HOLD_SECONDS)
        case "no_memory":
            raise MemoryError(f"failpoint at {failpoint.at}")
        case "raise":
            raise FailpointError(f"failpoint at {failpoint.at}")


def _parse(text: str) -> tuple[Failpoint, ...]:
    try:
        entries = json.loads(text)
    except ValueError as error:
        raise _invalid("", f"not JSON: {error}") from None
    if not isinstance(entries, list):
        raise _invalid("", "must be a JSON list")
    return tuple(_parse_entry(index, entry) for index, entry in enumerate(entries))


def _parse_entry(index: int, entry: Any) -> Failpoint:
    if not isinstance(entry, dict):
        raise _invalid(f"[{index}]", "must be an object")
    unknown = entry.keys() - set(_FIELDS)
    if unknown:
        raise _invalid(
            f"[{index}].{min(unknown)}", f"unknown field; known are {', '.join(_FIELDS)}"
        )
    if (entry.get("action") == "hold") != ("until" in entry):
        raise _invalid(f"[{index}].until", "goes with the action hold, and only with it")
    return Failpoint(
        at=_one_of(get_args(FailpointName), f"[{index}].at", entry.get("at")),
        action=_one_of(get_args(Action), f"[{index}].action", entry.get("action")),
        step=_index(f"[{index}].step", entry.get("step")),
        microbatch=_index(f"[{index}].microbatch", entry.get("microbatch")),
        since_step=_index(f"[{index}].since_step", entry.get("since_step")) or 0,
        skip=_index(f"[{index}].skip", entry.get("skip")) or 0,
        until=str(entry.get("until", "")),
    )


def _one_of(allowed: tuple[Any, ...], field: str, value: Any) -> Any:
    if value not in allowed:
        raise _invalid(field, f"{value!r} is not one of {', '.join(allowed)}")
    return value


def _index(field: str, value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _invalid(field, f"{value!r} is not a whole number from 0")
    return value


def _invalid(field: str, what: str) -> PlanariaError:
    return invalid(ENVIRONMENT_VARIABLE + field, what)
