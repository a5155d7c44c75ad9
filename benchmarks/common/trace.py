"""Reads what engines wrote while they ran (`planaria_worker.engine.telemetry`)."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common.intervals import Interval, clip, gaps, length

COMPUTING = frozenset({"evaluate", "forward", "backward", "device", "update"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of a training thread's time."""

    kind: str
    start: float
    end: float
    step: int
    microbatch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened."""

    name: str
    at: float
    detail: dict[str, Any]


@dataclass(slots=True, kw_only=True)
class EngineTrace:
    """One engine's life, in order of time."""

    name: str
    """`<job>.<node>.<accelerator>.<n>`."""
    spans: list[Span] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    @property
    def node_id(self) -> str:
        return self.name.split(".")[1]

    def within(self, window: Interval) -> Iterator[Span]:
        return (s for s in self.spans if s.start < window[1] and s.end > window[0])

    def computing(self, window: Interval) -> list[Interval]:
        """Return when it computed."""
        spans = ((s.start, s.end) for s in self.within(window) if s.kind in COMPUTING)
        return clip(spans, window)

    def place(self, at: float) -> Event | None:
        """Return which layers it computed at a moment."""
        taken = (e for e in reversed(self.events) if e.name == "assignment" and e.at <= at)
        return next(taken, None)

    def first(self, name: str, after: float, **at_least: int) -> Event | None:
        """Return the first event of a name after a moment, whose numbers are not below these."""
        return next(
            (
                event
                for event in self.events
                if event.name == name
                and event.at > after
                and all(event.detail[key] >= value for key, value in at_least.items())
            ),
            None,
        )


def read_traces(folder: Path, job_id: str) -> list[EngineTrace]:
    """Return the traces of a job's engines; the last line of a killed one may be torn."""
    return [_read(path) for path in sorted(folder.glob(f"{job_id}.*.jsonl"))]


def _read(path: Path) -> EngineTrace:
    trace = EngineTrace(name=path.stem)
    for line in path.read_text().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            break
        if "span" in entry:
            kind = entry.pop("span")
            trace.spans.append(Span(kind=kind, **entry))
        else:
            name, at = entry.pop("event"), entry.pop("at")
            trace.events.append(Event(name=name, at=at, detail=entry))
    return trace


def nobody_computes(traces: Iterable[EngineTrace], window: Interval) -> dict[str, float]:
    """Return the seconds of a window in which no engine computed, by what most of them did."""
    engines = list(traces)
    idle = gaps([span for engine in engines for span in engine.computing(window)], window)
    named: dict[str, float] = {}
    for gap in idle:
        name = _occupation(engines, gap)
        named[name] = named.get(name, 0.0) + length([gap])
    return named


def _occupation(engines: Iterable[EngineTrace], gap: Interval) -> str:
    seconds: dict[str, float] = {}
    for engine in engines:
        for span in engine.within(gap):
            shared = length(clip([(span.start, span.end)], gap))
            seconds[span.kind] = seconds.get(span.kind, 0.0) + shared
    return max(seconds, key=lambda kind: seconds[kind], default="parked")


def times_computed(traces: Iterable[EngineTrace], step: int) -> dict[int, int]:
    """Return, by microbatch, how often it was begun in a step by a first stage.

    What one pipeline computed counts once, what had to be redone counts again.
    """
    counts: dict[int, int] = {}
    for engine in traces:
        for span in engine.spans:
            if span.kind != "forward" or span.step != step or span.microbatch is None:
                continue
            place = engine.place(span.start)
            if place is not None and place.detail["first_layer"] == 0:
                counts[span.microbatch] = counts.get(span.microbatch, 0) + 1
    return counts
