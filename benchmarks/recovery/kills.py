"""Kill -9 of a random node at a random moment, a replacement after each, again and again."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.common.jobs import Computation, job
from benchmarks.common.results import summary
from benchmarks.common.workbench import Hurt, Run, Workbench
from benchmarks.recovery.anatomy import NUM_STEPS_BEFORE, Anatomy, dissect, steady_step_seconds
from planaria.models import Recovery

NUM_NODES = 6
NUM_NODES_LEFT = 4
"""Those of the pipelines that lose nobody: the control run's."""
MANY_STEPS = 1_000_000
CONTROL_STEPS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One kill and what the coordinator recorded of it."""

    hurt: Hurt
    recovery: Recovery


def measure_kills(
    bench: Workbench, computation: Computation, *, num_kills: int, seed: int
) -> dict[str, Any]:
    """Kill so many nodes of a job in pipelines of two nodes, and return all figures."""
    control = measure_control(bench, computation, seed=seed)
    rng = random.Random(seed)
    run = bench.train(job(computation, bench.text, steps=MANY_STEPS, seed=seed))
    run.wait_until_whole(NUM_NODES, num_steps=NUM_STEPS_BEFORE + 2)
    memory = run.private_bytes()
    kills = []
    for number in range(num_kills):
        kills.append(_kill_one(run, rng))
        bench.add_node()
        run.wait_until_whole(NUM_NODES, num_steps=NUM_STEPS_BEFORE + 2)
        print(f"{computation}: kill {number + 1} of {num_kills}", flush=True)
    traces = run.traces
    run.cancel()
    figures = [dissect(traces, kill.hurt, kill.recovery) for kill in kills]
    return {
        "computation": computation,
        "seed": seed,
        "private_mib": max(memory) / 2**20,
        "control_step_seconds": control,
        "summary": summarize(figures, control),
        "kills": [asdict(each) for each in figures],
    }


def measure_control(bench: Workbench, computation: Computation, *, seed: int) -> float:
    """Return the length of a step when the pipelines that would be left do all of it."""
    spec = job(computation, bench.text, steps=MANY_STEPS, seed=seed, max_nodes=NUM_NODES_LEFT)
    run = bench.train(spec)
    run.wait_until_whole(NUM_NODES_LEFT, num_steps=CONTROL_STEPS)
    seconds = steady_step_seconds(run.traces, CONTROL_STEPS)
    run.cancel()
    return seconds


def _kill_one(run: Run, rng: random.Random) -> Kill:
    """Kill a node at a moment that has nothing to do with the step's phases."""
    step_seconds = run.step_seconds()
    victim = rng.choice(run.node_ids)
    hurt = run.kill(victim, delay_seconds=rng.uniform(1, 3) * step_seconds)
    recovery = run.wait_for_recovery(hurt)
    return Kill(hurt=hurt, recovery=recovery)


def summarize(figures: Sequence[Anatomy], control: float) -> dict[str, dict[str, float]]:
    """Return median, 95th percentile and maximum of every figure."""
    columns: dict[str, Iterable[float]] = {
        "kill to noticed, s": (f.seconds_to_noticed for f in figures),
        "fence_seconds": (f.fence_seconds for f in figures),
        "resume_seconds": (f.resume_seconds for f in figures),
        "regrow_seconds": (f.regrow_seconds for f in figures),
        "resume_seconds as recorded": (
            f.recorded_seconds["resume"] for f in figures if "resume" in f.recorded_seconds
        ),
        "nobody computed, s": (sum(f.nobody_computed_seconds.values()) for f in figures),
        "the same in as long a time of undisturbed steps, s": (
            f.usual_nobody_computed_seconds for f in figures
        ),
        "healthy pipelines idle, share of the recovery": (
            f.healthy_pipelines_idle_share for f in figures
        ),
        "the same in undisturbed steps": (f.usual_idle_share for f in figures),
        "the difference": (f.healthy_pipelines_idle_share - f.usual_idle_share for f in figures),
        "the step that was hit, s": (f.step_seconds for f in figures),
        "steps before it, s": (f.usual_step_seconds for f in figures),
        "excess_seconds": (f.excess_seconds(control) for f in figures),
        "begun again, share of the lost microbatches": (
            f.redone_microbatches / f.lost_microbatches for f in figures
        ),
    }
    return {name: summary(values) for name, values in columns.items()}
