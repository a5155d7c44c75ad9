"""What a kill did to a job, read from the engines' traces: exact, nothing inferred."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.common.intervals import Interval, length, union
from benchmarks.common.trace import EngineTrace, nobody_computes, times_computed
from benchmarks.common.workbench import Hurt, node_ids
from planaria.models import Recovery

NUM_STEPS_BEFORE = 4
"""Undisturbed steps that the one that was hit is compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """The figures of one kill; seconds are of one clock.

    The recovery lasts from the kill until the last survivor of the broken pipeline computes again,
    and everybody can take part in sums.
    """

    seconds_to_noticed: float
    """From the kill until some engine or agent saw it: what the coordinator takes for the fault."""
    fence_seconds: float
    """From the kill until the last survivor was fenced."""
    resume_seconds: float
    """From the kill until all survivors take part in the step again."""
    regrow_seconds: float
    """From the kill until every survivor has a pipeline again."""
    recorded_seconds: dict[str, float] = field(default_factory=dict)
    """The coordinator's figures: detect, fence, resume, regrow, idle, lost, as far as known."""
    nobody_computed_seconds: dict[str, float]
    """Within the recovery, by what most engines did instead."""
    usual_nobody_computed_seconds: float
    """In as long a time of undisturbed steps: everybody waits for everybody at their ends."""
    healthy_pipelines_idle_share: float
    """Share of the recovery in which no stage of a pipeline that lost nobody computed; the mean."""
    usual_idle_share: float
    """The same share in undisturbed steps."""
    step: int
    """The step that was hit."""
    step_seconds: float
    """Of that step, from the commit before it to its own."""
    usual_step_seconds: float
    """Of undisturbed steps before it, on all nodes."""
    is_finished_by_others: bool
    """Whether the pipelines that were left had to do the lost microbatches of the step."""
    redone_microbatches: int
    """Begun by a first stage more than once."""
    lost_microbatches: int
    """Those of the broken pipeline in a step: what may be redone."""

    def excess_seconds(self, control_step_seconds: float) -> float:
        """Return how much longer the step took than without a fault.

        Args:
            control_step_seconds: of a step that the pipelines that were left do from its start.
        """
        control = control_step_seconds if self.is_finished_by_others else self.usual_step_seconds
        return self.step_seconds - control


def dissect(traces: Sequence[EngineTrace], hurt: Hurt, recovery: Recovery) -> Anatomy:
    """Read what a kill did.

    Args:
        traces: of the job's engines.
        hurt: the kill.
        recovery: what the coordinator recorded of it.
    """
    engines = _engines_of_nodes(traces, hurt)
    survivors = [engine for node_id, engine in engines.items() if node_id != hurt.node_id]
    whole = [
        [engines[node_id] for node_id in node_ids(pipeline)]
        for pipeline in hurt.plan.pipelines
        if hurt.node_id not in node_ids(pipeline)
    ]
    fences = [_after(engine, "fence", hurt.at) for engine in survivors]
    active = active_times(traces, hurt)
    end = max([*_resume_times(engines, hurt, recovery), *active])
    commits = commit_times(survivors)
    step = min(number for number, at in commits.items() if at > hurt.at)
    before = commits[step - 1 - NUM_STEPS_BEFORE], commits[step - 1]
    window = hurt.at, end
    usually_nobody = sum(nobody_computes(list(engines.values()), before).values())
    begun = [times_computed(traces, number) for number in (step, step + 1)]
    return Anatomy(
        seconds_to_noticed=_noticed(recovery) - hurt.time,
        fence_seconds=max(fences) - hurt.at,
        resume_seconds=max(active) - hurt.at,
        regrow_seconds=end - hurt.at,
        recorded_seconds=recovery.figures,
        nobody_computed_seconds=nobody_computes(
            [engine for engine in traces if engine is not engines[hurt.node_id]], window
        ),
        usual_nobody_computed_seconds=usually_nobody * length([window]) / length([before]),
        healthy_pipelines_idle_share=statistics.mean(_idle_share(each, window) for each in whole),
        usual_idle_share=statistics.mean(_idle_share(each, before) for each in whole),
        step=step,
        step_seconds=commits[step] - commits[step - 1],
        usual_step_seconds=(before[1] - before[0]) / NUM_STEPS_BEFORE,
        is_finished_by_others=commit_generations(survivors)[step] > hurt.generation,
        redone_microbatches=sum(times - 1 for counts in begun for times in counts.values()),
        lost_microbatches=hurt.num_lost_microbatches,
    )


def active_times(traces: Iterable[EngineTrace], hurt: Hurt) -> list[float]:
    """Return when each survivor could take part in sums again, behind its fence."""
    engines = _engines_of_nodes(traces, hurt)
    survivors = [engine for node_id, engine in engines.items() if node_id != hurt.node_id]
    return [_after(engine, "activated", _after(engine, "fence", hurt.at)) for engine in survivors]


def commit_times(engines: Iterable[EngineTrace]) -> dict[int, float]:
    """Return, by step, when the last of these engines had committed it."""
    times: dict[int, float] = {}
    for engine in engines:
        for event in engine.events:
            if event.name == "commit":
                step = event.detail["step"]
                times[step] = max(times.get(step, 0.0), event.at)
    return times


def commit_generations(engines: Iterable[EngineTrace]) -> dict[int, int]:
    """Return, by step, the generation whose sums were committed."""
    return {
        event.detail["step"]: event.detail["generation"]
        for engine in engines
        for event in engine.events
        if event.name == "commit"
    }


def steady_step_seconds(traces: Iterable[EngineTrace], num_steps: int) -> float:
    """Return the median length of the last steps, from commit to commit."""
    times = [at for _, at in sorted(commit_times(traces).items())][-num_steps - 1 :]
    return statistics.median(b - a for a, b in pairwise(times))


def _engines_of_nodes(traces: Iterable[EngineTrace], hurt: Hurt) -> dict[str, EngineTrace]:
    """Return, by node of the plan, the engine that had a place when it happened."""
    nodes = {node_id for pipeline in hurt.plan.pipelines for node_id in node_ids(pipeline)}
    placed = [e for e in traces if e.node_id in nodes and e.place(hurt.at) is not None]
    placed.sort(key=_engine_number)
    return {engine.node_id: engine for engine in placed}  # a later engine of a node wins


def _engine_number(engine: EngineTrace) -> int:
    return int(engine.name.rpartition(".")[2])


def _noticed(recovery: Recovery) -> float:
    if recovery.start_time is None:
        raise AssertionError(f"recovery {recovery.id} has no beginning")
    return recovery.start_time.timestamp()


def _after(engine: EngineTrace, name: str, at: float) -> float:
    event = engine.first(name, at)
    if event is None:
        raise AssertionError(f"{engine.name} has no {name} after {at}")
    return event.at


def _resume_times(
    engines: Mapping[str, EngineTrace], hurt: Hurt, recovery: Recovery
) -> Iterable[float]:
    """Yield when survivors of the broken pipeline could compute; one without a place never can."""
    for pipeline in hurt.plan.pipelines:
        if hurt.node_id not in node_ids(pipeline):
            continue
        for node_id in set(node_ids(pipeline)) - {hurt.node_id}:
            place = engines[node_id].first(
                "assignment", hurt.at, generation=hurt.generation + 1, num_layers=1
            )
            if place is not None and place.detail["generation"] <= recovery.generation:
                yield place.at


def _idle_share(pipeline: Iterable[EngineTrace], window: Interval) -> float:
    busy = union(span for engine in pipeline for span in engine.computing(window))
    return 1 - length(busy) / (window[1] - window[0])
