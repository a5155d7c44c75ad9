"""A cluster that is used for many jobs, whose engines fail where a test says.

    pool = Pool(folder)
    pool.start(num_nodes=6)
    script = pool.new_script()
    line = script.add(at="reduce", step=3, action="kill", engine="*/node-2/*")
    job = pool.client.submit(spec)
    fired = pool.wait_for_mark(script, line)

An engine reads the script that was the newest one when it started, and its lines as they come
(planaria_worker.engine.failpoint_script). What engines did and when is in `pool.traces`.
"""

import itertools
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common.cluster import Cluster
from planaria_worker.engine.failpoint_script import mark
from planaria_worker.engine.failpoints import ENVIRONMENT_VARIABLE as FAILPOINTS
from planaria_worker.engine.telemetry import ENVIRONMENT_VARIABLE as TRACE


@dataclass(frozen=True, kw_only=True)
class Fired:
    """A failpoint that an engine has met."""

    engine: str
    seconds: float
    """Of CLOCK_MONOTONIC, as in traces."""
    at: str
    step: int | None
    microbatch: int | None

    @property
    def node_id(self) -> str:
        return node_of(self.engine)


def node_of(engine_id: str) -> str:
    """Return the node of an engine `<job>/<node>/<accelerator>/<number>`."""
    return engine_id.split("/")[1]


@dataclass(kw_only=True)
class Script:
    """The failpoints of one job."""

    path: Path
    num_lines: int = 0
    gates: Iterator[int] = field(default_factory=itertools.count)

    def add(self, **line: Any) -> int:
        """Add a line; returns its number."""
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self.num_lines += 1
        return self.num_lines - 1

    def gate(self) -> Path:
        """Return the path of a file that opens what is held until it exists."""
        return self.path.with_name(f"{self.path.name}.gate-{next(self.gates)}")

    def fired(self, line: int) -> Fired | None:
        try:
            return Fired(**json.loads(mark(self.path, line).read_text()))
        except FileNotFoundError:
            return None


@dataclass(frozen=True, kw_only=True)
class Traced:
    """What an engine wrote down: spans and events, in order."""

    engine: str
    lines: tuple[Mapping[str, Any], ...]

    def spans(self, *kinds: str) -> list[Mapping[str, Any]]:
        return [line for line in self.lines if line.get("span") in kinds]

    def events(self, name: str) -> list[Mapping[str, Any]]:
        return [line for line in self.lines if line.get("event") == name]


class Pool(Cluster):
    """Nodes whose engines take failpoints, and tell what they do."""

    def __init__(self, folder: Path, **options: Any) -> None:
        """Starts nothing yet.

        Args:
            folder: for the files of all parts.
            options: those of `Cluster`; with `node_deadline_seconds`.
        """
        self.traces = folder / "traces"
        self._scripts = folder / "scripts"
        self._newest = folder / "script"
        self._numbers = itertools.count()
        self.node_deadline_seconds = float(options["node_deadline_seconds"])
        for each in (self.traces, self._scripts):
            each.mkdir(parents=True)
        super().__init__(folder, **options)
        self.environment = {FAILPOINTS: str(self._newest), TRACE: str(self.traces)}
        self.new_script()

    def new_script(self) -> Script:
        """Give engines that start from now on another script."""
        script = Script(path=self._scripts / str(next(self._numbers)))
        script.path.touch()
        link = self._newest.with_suffix(".new")
        link.symlink_to(script.path)
        link.replace(self._newest)
        return script

    def wait_for_mark(self, script: Script, line: int) -> Fired:
        """Wait until a failpoint has fired."""
        self.wait_for(f"line {line} of {script.path}", lambda: script.fired(line) is not None)
        fired = script.fired(line)
        assert fired is not None
        return fired

    def engines_of(self, job_id: str, node_id: str) -> dict[str, int]:
        """Return every engine of a job that was ever started on a node, and its process."""
        folders = (self.folder / node_id / "engines").glob(f"{job_id}.*/process.json")
        return {path.parent.name: json.loads(path.read_text())["pid"] for path in folders}

    def wait_until_idle(self) -> None:
        """Wait until no engine of a job that is over is left."""
        self.wait_for("no engine", lambda: not any(map(self.engine_pids, self.nodes)))

    def describe_newest_job(self) -> str:
        """Return what is known of the job that was submitted last."""
        jobs = sorted(self.client.list_jobs(), key=lambda job: str(job.create_time))
        if not jobs:
            return "no job"
        job = jobs[-1]
        events = self.client.events(job_id=job.id)
        said = [f"{event.time:%H:%M:%S.%f} {event.type}: {event.message}" for event in events]
        logs = [
            f"== {path.parent.name}\n{path.read_text()[-6000:]}"
            for path in self.folder.glob(f"node-*/engines/{job.id}.*/engine.log")
        ]
        return "\n".join(["", f"== {job.id} {job.state} {job.error}", *said, *logs, ""])

    def trace(self, job_id: str) -> list[Traced]:
        """Return what all engines of a job have written down."""
        return [_read_trace(path) for path in sorted(self.traces.glob(f"{job_id}.*.jsonl"))]


def _read_trace(path: Path) -> Traced:
    job, *node, accelerator, number = path.name.removesuffix(".jsonl").split(".")
    engine = "/".join([job, ".".join(node), accelerator, number])
    text = path.read_text()
    lines = text[: text.rfind("\n") + 1].splitlines()
    return Traced(engine=engine, lines=tuple(json.loads(line) for line in lines))


def is_alive(pid: int) -> bool:
    """Tell whether a process has not been replaced by another: it answers to signal 0."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
