"""`make demo`: train a small Llama on real text, kill two nodes, and end with the very same model.

    python examples/demo.py [--data '/path/*.txt'] [--steps 120]

Starts a cluster of five nodes on this machine, submits a job over REST, kills -9 the agent and the
engine of one node in the middle of a step and later those of a second, starts a replacement,
and compares the SHA-256 of the final parameters with that of a plain loop in one process.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data import topics

from loss_chart import save_png, terminal_chart
from rich.console import Console

from planaria import Client
from planaria.job import JobSpec
from planaria.local import cluster as local_cluster
from planaria.local.startup import ClusterOptions
from planaria.local.state import LocalCluster
from planaria.models import Event, Job, Recovery, StepMetrics

NUM_NODES = 5
NUM_KILLS = 2
POLL_SECONDS = 0.1
EXAMPLES = Path(__file__).resolve().parent

console = Console(highlight=False, soft_wrap=True)


def main() -> int:
    arguments = _parse(sys.argv[1:])
    folder = Path.cwd() / "runs" / f"demo-{time.strftime('%Y%m%d-%H%M%S')}"
    folder.mkdir(parents=True)
    data = arguments.data or str(write_documentation(folder / "corpus" / "python.txt"))
    spec = job(data, arguments.steps)
    console.print(f"[bold]Planaria demo[/]  files in {folder}")
    with cluster(folder / "cluster", arguments.port) as running:
        console.print(f"Web page: [bold]{running.http_url}[/]  (token in {running.token_file})")
        demo = Demo(running, spec, random.Random(arguments.seed))
        finished = demo.run()
    console.rule("What happened")
    for recovery in demo.recoveries:
        console.print(recovery_lines(recovery))
    picture = folder / "loss.png"
    save_png(picture, demo.metrics, demo.marks)
    print(terminal_chart(demo.metrics, demo.marks))
    console.print(f"The same curve as a picture: {picture}")
    return prove(finished, spec, folder, demo.recoveries)


def _parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train, lose nodes, go on, and prove the result.")
    parser.add_argument("--data", help="train on these text files instead: '/path/*.txt'")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the kills' moments")
    parser.add_argument("--port", type=int, default=0, help="of the web page; 0: a free one")
    return parser.parse_args(words)


def write_documentation(path: Path) -> Path:
    """Write the documentation that every Python carries, about 465 kB of English text."""
    path.parent.mkdir(parents=True)
    path.write_text("\n\n".join(topics.topics[name] for name in sorted(topics.topics)))
    return path


def job(data: str, steps: int) -> JobSpec:
    """A small Llama whose pipelines span at least two nodes, so that there are real pipelines."""
    return JobSpec.model_validate(
        {
            "name": "demo",
            "model": {
                "family": "llama",
                "hidden_size": 128,
                "num_layers": 6,
                "num_heads": 4,
                "vocab_size": 256,
            },
            "data": {"path": str(Path(data).absolute()), "sequence_length": 64},
            "training": {
                "steps": steps,
                "global_batch_size": 16,
                "microbatch_size": 2,
                "seed": 7,
                "optimizer": {"learning_rate": 2e-3, "warmup_steps": 10},
            },
            "resilience": {"fault_tolerance": 1},
            "resources": {"min_nodes": NUM_NODES, "min_nodes_per_pipeline": 2},
        }
    )


@contextmanager
def cluster(data_dir: Path, port: int) -> Iterator[LocalCluster]:
    """A planner, a coordinator and five agents, each a process of its own."""
    console.print(f"Starting a planner, a coordinator and {NUM_NODES} nodes ...")
    running = local_cluster.start(
        ClusterOptions(num_nodes=NUM_NODES, accelerators_per_node=1, port=port, data_dir=data_dir)
    )
    try:
        yield running
    finally:
        local_cluster.stop(running)


@dataclass
class Demo:
    """One run of the job with its failures."""

    running: LocalCluster
    spec: JobSpec
    chance: random.Random
    recoveries: tuple[Recovery, ...] = ()
    metrics: tuple[StepMetrics, ...] = ()
    marks: list[tuple[int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._token = Path(self.running.token_file).read_text(encoding="ascii").strip()
        self._client = Client(self.running.http_url, token=self._token)
        self._job_id = ""
        self._start = time.monotonic()

    def run(self) -> Job:
        """Submit the job, hurt it three times, and return it when it has ended."""
        self._job_id = self._client.submit(self.spec).id
        steps = self.spec.training.steps
        with ThreadPoolExecutor(1) as pool:
            telling = pool.submit(self._tell_events)
            for kill in range(1, NUM_KILLS + 1):
                self._kill_a_node(after_step=kill * steps // 5)
            self._start_replacement(after_step=NUM_KILLS * steps // 5 + 2)
            while not (finished := self._client.get_job(self._job_id)).is_done:
                time.sleep(POLL_SECONDS)
            telling.result()
        self.metrics = self._client.job_metrics(self._job_id)
        self.recoveries = self._client.job_recoveries(self._job_id)
        self._client.close()
        return finished

    def _kill_a_node(self, after_step: int) -> None:
        """Kill -9 the agent and the engine of a node at a random moment of a step."""
        if not self._reach(after_step):
            return
        step_seconds = self._client.job_metrics(self._job_id)[-1].step_seconds
        time.sleep(self.chance.uniform(0, step_seconds))
        plan = self._client.job_plan(self._job_id).plan
        pipelines = plan.pipelines if plan else ()
        victim = self.chance.choice([s.node_id for p in pipelines for s in p.stages])
        node = self._client.get_node(victim)
        pids = [node.agent_pid, *(engine.pid for engine in node.engines)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self._say(f"[red]kill -9 {' '.join(map(str, pids))}[/]: the agent and engine of {victim}")
        self.marks.append((self._client.get_job(self._job_id).step, f"{victim} killed"))

    def _start_replacement(self, after_step: int) -> None:
        if not self._reach(after_step):
            return
        name = f"node-{NUM_NODES + 1}"
        data_dir = Path(self.running.data_dir)
        with (data_dir / "logs" / f"{name}.log").open("wb") as log:
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "planaria_worker"),
                    *("--coordinator", self.running.grpc_address),
                    *("--node-id", name),
                    *("--data-dir", str(data_dir / "nodes" / name)),
                    *("--token-file", self.running.token_file),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._say(f"[green]a replacement starts: {name}[/]")
        self._wait(lambda _: self._has_joined(name))
        self.marks.append((self._job().step, f"{name} joined"))

    def _has_joined(self, name: str) -> bool:
        recoveries = self._client.job_recoveries(self._job_id)
        return any(name in each.nodes_joined and each.end_time for each in recoveries)

    def _job(self) -> Job:
        return self._client.get_job(self._job_id)

    def _reach(self, step: int) -> bool:
        """Wait until the job trains and has committed so many steps; False when it has ended."""
        return not self._wait(lambda now: now.state == "RUNNING" and now.step >= step).is_done

    def _wait(self, condition: Callable[[Job], bool]) -> Job:
        while not (condition(now := self._job()) or now.is_done):
            time.sleep(POLL_SECONDS)
        return now

    def _tell_events(self) -> None:
        with Client(self.running.http_url, token=self._token) as client:
            for event in client.events(follow=True):
                self._say(event.message)
                if is_end(event, self._job_id):
                    return

    def _say(self, text: str) -> None:
        console.print(f"[dim]{time.monotonic() - self._start:6.1f} s[/]  {text}")


def is_end(event: Event, job_id: str) -> bool:
    """Return whether an event ends the job."""
    return event.job_id == job_id and event.type in (
        "job_succeeded",
        "job_failed",
        "job_cancelled",
    )


def recovery_lines(recovery: Recovery) -> str:
    """Return what one change of plan cost."""
    changed = ", ".join(recovery.nodes_lost or recovery.nodes_joined)
    before = "+".join(map(str, recovery.pipeline_sizes_before))
    after = "+".join(map(str, recovery.pipeline_sizes_after))
    figures = ", ".join(f"{name} {s * 1e3:.0f} ms" for name, s in recovery.figures.items())
    return (
        f"[bold]{recovery.cause} ({changed})[/]: templates of {before} nodes -> {after} nodes\n"
        f"  copied {recovery.copied_bytes / 1e6:.1f} MB, "
        f"redid {recovery.redone_microbatches} microbatches, "
        f"{figures}"
    )


def prove(finished: Job, spec: JobSpec, folder: Path, recoveries: Sequence[Recovery]) -> int:
    """Compare the job's digest with that of one undisturbed process; return the exit status.

    It is 0 if they are equal and the job lost the nodes that were to be killed, and no others.
    """
    console.rule("The proof")
    if finished.state != "SUCCEEDED":
        console.print(f"[red]The job ended as {finished.state}: {finished.error}[/]")
        return 1
    console.print("Training the same job in one process, without pipelines or failures ...")
    (folder / "job.json").write_text(spec.canonical_json(), encoding="utf-8")
    plain = subprocess.run(
        [sys.executable, EXAMPLES / "plain_run.py", folder / "job.json", folder / "plain"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    digest = plain.stdout.strip()
    num_lost = sum(len(recovery.nodes_lost) for recovery in recoveries)
    num_joined = sum(len(recovery.nodes_joined) for recovery in recoveries)
    console.print(
        f"{NUM_NODES} nodes, {num_lost} killed, {num_joined} joined:     {finished.final_digest}"
    )
    console.print(f"one process, undisturbed:          {digest}")
    equal = digest == finished.final_digest
    console.print("[bold green]Equal.[/]" if equal else "[bold red]They differ.[/]")
    if num_lost != NUM_KILLS:
        console.print(f"[bold red]{NUM_KILLS} nodes were to be killed and {num_lost} were lost.[/]")
    return 0 if equal and num_lost == NUM_KILLS else 1


if __name__ == "__main__":
    sys.exit(main())
