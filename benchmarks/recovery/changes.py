"""A join and a drain: what a change that nobody forces costs; and a node that is stopped."""

import random
import signal
import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.common.jobs import Computation, job
from benchmarks.common.results import summary
from benchmarks.common.trace import EngineTrace, times_computed
from benchmarks.common.workbench import Workbench
from benchmarks.recovery.anatomy import active_times, commit_generations, commit_times
from benchmarks.recovery.kills import MANY_STEPS, NUM_NODES
from planaria.models import Recovery

_NUM_STEPS_AFTER = 3


def measure_changes(
    bench: Workbench, computation: Computation, *, num_changes: int, seed: int
) -> dict[str, Any]:
    """Drain a random node and add another, so many times; return what each cost."""
    rng = random.Random(seed)
    run = bench.train(job(computation, bench.text, steps=MANY_STEPS, seed=seed))
    run.wait_until_whole(NUM_NODES)
    drains: list[Recovery] = []
    joins: list[Recovery] = []
    for number in range(num_changes):
        time.sleep(rng.uniform(0, 2 * run.step_seconds()))
        hurt = run.drain(rng.choice(run.node_ids))
        drains.append(run.wait_for_recovery(hurt))
        run.wait_until_whole(NUM_NODES - 1, num_steps=_NUM_STEPS_AFTER + 1)
        run.leave(hurt.node_id)
        num_recoveries = len(run.recoveries)
        bench.add_node()
        run.wait_until_whole(NUM_NODES, num_steps=_NUM_STEPS_AFTER + 1)
        joins.append(run.recoveries[num_recoveries])
        print(f"{computation}: drain and join {number + 1} of {num_changes}", flush=True)
    traces = run.traces
    run.cancel()
    return {
        "computation": computation,
        "seed": seed,
        "drains": _costs(traces, drains),
        "joins": _costs(traces, joins),
    }


def measure_stops(
    bench: Workbench, *, num_stops: int, seed: int, deadline_seconds: float
) -> dict[str, Any]:
    """SIGSTOP a random node, again and again: how long until every survivor takes part again."""
    rng = random.Random(seed)
    run = bench.train(job("paced", bench.text, steps=MANY_STEPS, seed=seed))
    run.wait_until_whole(NUM_NODES)
    beyond = []
    for number in range(num_stops):
        time.sleep(rng.uniform(0, 2 * run.step_seconds()))
        hurt = run.stop(rng.choice(run.node_ids))
        run.wait_for_recovery(hurt)
        last = max(active_times(run.traces, hurt))
        beyond.append(last - hurt.at - deadline_seconds)
        bench.cluster.signal_node(hurt.node_id, signal.SIGCONT)
        run.wait_until_whole(NUM_NODES)
        print(f"stop {number + 1} of {num_stops}: deadline + {beyond[-1]:.3f} s", flush=True)
    run.cancel()
    return {
        "computation": "paced",
        "seed": seed,
        "deadline_seconds": deadline_seconds,
        "seconds_beyond_deadline": beyond,
        "summary": summary(beyond),
    }


def _costs(traces: Sequence[EngineTrace], changes: Sequence[Recovery]) -> dict[str, Any]:
    costs = [_cost(traces, change.generation) for change in changes]
    return {
        "lost_seconds": [lost for lost, _ in costs],
        "summary": summary(lost for lost, _ in costs),
        "redone_microbatches": sum(
            redone + change.redone_microbatches
            for (_, redone), change in zip(costs, changes, strict=True)
        ),
    }


def _cost(traces: Sequence[EngineTrace], generation: int) -> tuple[float, int]:
    """Return what the change to a generation took, and the microbatches begun twice.

    The first step of the new plan is compared with the next ones: what everybody waited between the
    last commit of the old plan and the first of the new is in it.
    """
    times, generations = commit_times(traces), commit_generations(traces)
    first = min(step for step, of in generations.items() if of >= generation)
    usual = statistics.median(
        times[step + 1] - times[step] for step in range(first, first + _NUM_STEPS_AFTER)
    )
    twice = sum(
        count - 1 for step in (first - 1, first) for count in times_computed(traces, step).values()
    )
    return times[first] - times[first - 1] - usual, twice
