"""What must be true after any schedule; each function says what is not, in words."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from benchmarks.chaos.schedule import OF_LINKS, Event
from benchmarks.common.trace import EngineTrace
from planaria.models import Job, StepMetrics

RESTARTING = OF_LINKS | {
    "kill_engine",
    "stop",
    "stop_briefly",
    "stop_agent",
    "unplug",
    "drain_and_return",
}
"""Events behind which a node gets a new engine; a brief stop may turn out too long."""


def same_model(job: Job, digest: str) -> Iterator[str]:
    """Check that the job ended with the parameters of the undisturbed run [6]."""
    if job.state != "SUCCEEDED":
        yield f"the job is {job.state}: {job.error}"
    elif job.final_digest != digest:
        yield f"the digest is {job.final_digest}, and {digest} undisturbed"


def every_step_once(metrics: Iterable[StepMetrics], losses: Sequence[float]) -> Iterator[str]:
    """Check that every step was reported once, with the loss of the undisturbed run [2, 6]."""
    reported = list(metrics)
    by_step = Counter(each.step for each in reported)
    twice = [step for step, times in by_step.items() if times > 1]
    missing = sorted(set(range(len(losses))) - by_step.keys())
    if twice:
        yield f"steps reported more than once: {twice}"
    if missing:
        yield f"steps not reported: {missing}"
    for each in reported:
        if each.step < len(losses) and each.loss != losses[each.step]:
            yield f"step {each.step} has loss {each.loss!r}, and {losses[each.step]!r} undisturbed"
            return


def ledger_is_exact(
    traces: Sequence[EngineTrace], *, num_steps: int, num_layers: int, num_microbatches: int
) -> Iterator[str]:
    """Check that each committed sum of each layer held each microbatch exactly once [1].

    From what engines brought into the attempt that was committed, independently of the engines'
    own count. A step that only engines had committed that were lost with it is done once more.
    """
    committed: dict[int, set[int]] = {}
    outlived: set[tuple[int, int]] = set()
    claims: dict[tuple[int, int], list[tuple[range, list[int]]]] = {}
    for engine in traces:
        last_step = max((e.detail["step"] for e in engine.events if e.name == "commit"), default=-1)
        for event in engine.events:
            detail = event.detail
            if event.name == "commit":
                committed.setdefault(detail["step"], set()).add(detail["generation"])
                if last_step > detail["step"] or detail["step"] == num_steps - 1:
                    outlived.add((detail["step"], detail["generation"]))
            elif event.name == "vote":
                layers = range(detail["first_layer"], detail["first_layer"] + detail["num_layers"])
                key = detail["step"], detail["generation"]
                claims.setdefault(key, []).append((layers, detail["microbatches"]))
    for step in range(num_steps):
        generations = committed.get(step, set())
        if len(generations) > 1:
            generations = {each for each in generations if (step, each) in outlived}
        if len(generations) != 1:
            yield f"step {step} was committed with the sums of generations {sorted(generations)}"
            continue
        (generation,) = generations
        for layer in range(num_layers):
            parts = (mine for layers, mine in claims[step, generation] if layer in layers)
            counts = Counter(microbatch for mine in parts for microbatch in mine)
            if counts != Counter(range(num_microbatches)):
                yield f"step {step}, layer {layer}: microbatches {dict(counts)}"
                return


def nobody_restarted_in_vain(
    traces: Iterable[EngineTrace], events: Collection[Event]
) -> Iterator[str]:
    """Check that only those nodes got another engine whose engine had ended."""
    restarted = {event.node_id for event in events if event.kind in RESTARTING}
    counts = Counter(trace.node_id for trace in traces)
    for node_id, count in sorted(counts.items()):
        if count > 1 and node_id not in restarted:
            yield f"{node_id} had {count} engines, and none of them was hurt"
