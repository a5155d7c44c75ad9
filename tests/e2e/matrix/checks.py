"""What must hold whatever failed; each check names the invariant it is about."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import chain
from math import inf
from typing import Any

from benchmarks.oracle.reference import ReferenceResult
from e2e.matrix.scenario import NUM_STAGED_STEPS, Played, kinds_of_events
from e2e.matrix.table import Action, During
from planaria_worker.engine.layers.checkpoint.layer_file import verify_layer
from planaria_worker.engine.layers.checkpoint.layout import (
    complete_checkpoints,
    layer_file,
    partial_checkpoints,
)
from planaria_worker.engine.layers.checkpoint.manifest import Manifest
from support.pool import Fired, Pool, Traced, is_alive, node_of

BUSY = ("forward", "backward")


def check(pool: Pool, played: Played, expected: ReferenceResult) -> None:
    """Raise AssertionError when the failure was not invisible."""
    job = played.job
    assert job.state == "SUCCEEDED", job.error
    assert job.final_digest == expected.digest, "[6] another model came out"
    traces = pool.trace(job.id)
    check_losses(pool, played, expected)
    check_ledger(traces, expected, played.hurt_nodes)
    check_nobody_else_restarted(pool, played)
    check_silent_are_not_lost(pool, played)
    check_awake(pool, played, traces)
    check_healthy_went_on(played, traces)
    check_staging_disturbs_nobody(played, traces)
    check_checkpoints(played, traces)


def check_losses(pool: Pool, played: Played, expected: ReferenceResult) -> None:
    """[1] Every step was reported, with the loss of the undisturbed run."""
    job_id = played.job.id
    pool.wait_for(
        "the metrics of all steps",
        lambda: len(pool.client.job_metrics(job_id)) == len(expected.losses),
    )
    metrics = pool.client.job_metrics(job_id)
    assert [each.step for each in metrics] == list(range(len(expected.losses)))
    assert [each.loss for each in metrics] == expected.losses


def check_ledger(traces: list[Traced], expected: ReferenceResult, hurt_nodes: set[str]) -> None:
    """[1, 2] A commit's sums hold each microbatch of each layer once, and nobody commits twice.

    A step that only engines had committed that are lost was not committed: it is done once more.
    """
    claims: dict[tuple[int, int], dict[int, Counter[int]]] = defaultdict(
        lambda: defaultdict(Counter)
    )
    commits: dict[int, set[int]] = defaultdict(set)
    witnessed: set[tuple[int, int]] = set()
    for trace in traces:
        last_claims: dict[tuple[int, int], Mapping[str, Any]] = {}
        for line in trace.events("vote"):
            last_claims[line["step"], line["generation"]] = line
        for key, line in last_claims.items():
            for layer in range(line["first_layer"], line["first_layer"] + line["num_layers"]):
                claims[key][layer].update(line["microbatches"])
        steps = [line["step"] for line in trace.events("commit")]
        assert len(set(steps)) == len(steps), f"{trace.engine} committed a step twice: {steps}"
        for line in trace.events("commit"):
            commits[line["step"]].add(line["generation"])
            if node_of(trace.engine) not in hurt_nodes:
                witnessed.add((line["step"], line["generation"]))
    assert sorted(commits) == list(range(len(expected.losses)))
    for step, all_generations in commits.items():
        generations = {g for g in all_generations if (step, g) in witnessed}
        assert len(generations) == 1, f"step {step} was committed in generations {all_generations}"
        layers = claims[step, generations.pop()]
        counts = {tuple(sorted(layer.items())) for layer in layers.values()}
        assert len(counts) == 1, f"step {step}: layers hold different microbatches: {layers}"
        assert set(next(iter(layers.values())).values()) == {1}, f"step {step}: {layers}"


def check_nobody_else_restarted(pool: Pool, played: Played) -> None:
    """Who did not fail is still the process it was, agent and engine."""
    for node_id, engine in played.engines.items():
        if node_id in played.hurt_nodes:
            continue
        started = pool.engines_of(played.job.id, node_id)
        assert list(started.values()) == [engine.pid], f"{node_id} had the engines {started}"
    for node_id, pid in played.agent_pids.items():
        if not (node_id in played.hurt_nodes and played.case.action.is_of_node):
            assert pool.nodes[node_id].process.pid == pid
            assert is_alive(pid), f"the agent of {node_id} is gone"


def check_silent_are_not_lost(pool: Pool, played: Played) -> None:
    """[10] Who only says nothing is not lost and trains on, unless a change waits for it."""
    case = played.case
    if case.action is not Action.SILENT or case.place.during is During.CHANGE or played.first_loss:
        return
    for node_id in played.hurt_nodes:
        assert "node_lost" not in kinds_of_events(pool, played.job.id, node_id)
        engines = pool.engines_of(played.job.id, node_id)
        assert list(engines.values()) == [played.engines[node_id].pid]


def check_awake(pool: Pool, played: Played, traces: list[Traced]) -> None:
    """Once somebody knows of a failure, everybody does: nobody waits for a timeout of their own."""
    if played.case.place.during is During.CHANGE:
        return  # a fence may already be on its way, of the change
    fences = {
        trace.engine: [(line["generation"], line["at"]) for line in trace.events("fence")]
        for trace in traces
        if node_of(trace.engine) not in played.hurt_nodes
    }
    times = defaultdict(list)
    for generation, at in chain.from_iterable(fences.values()):
        times[generation].append(at)
    for fault in played.losses:
        # The fence of an earlier failure may be on its way when this one happens.
        fence = min(generation for generation, each in times.items() if min(each) > fault.seconds)
        fenced = {
            engine: min(at for generation, at in own if generation >= fence)
            for engine, own in fences.items()
            if any(generation >= fence for generation, _ in own)
        }
        spread = max(fenced.values()) - min(fenced.values())
        assert spread < pool.node_deadline_seconds, f"fenced {spread:.1f} s apart: {fenced}"


def check_healthy_went_on(played: Played, traces: list[Traced]) -> None:
    """[8] Pipelines that lost nobody finish microbatches before survivors of broken ones do.

    Those compute with another assignment; before that they may, while their loss is not yet
    noticed. Not where everybody is parked for a change, nor where one is only failed or delayed,
    nor in the commit by which the plan changes.
    """
    if not played.losses or not played.case.leaves_pipelines_whole:
        return
    lost = {fault.engine for fault in played.losses}
    last = max(played.losses, key=lambda fault: fault.seconds)
    fault_time = last.seconds
    if _changes_plan(last, traces):
        return
    alive = [
        (trace, pipeline)
        for trace in traces
        if trace.engine not in lost and (pipeline := _pipeline_at(trace, fault_time)) is not None
    ]
    whole = [trace for trace, pipeline in alive if pipeline and lost.isdisjoint(pipeline)]
    broken = [trace for trace, pipeline in alive if not pipeline or lost & {*pipeline}]

    def passes_after(trace: Traced, fenced: float) -> list[float]:
        return [span["end"] for span in trace.spans(*BUSY) if span["start"] > fenced]

    def fence_time(trace: Traced) -> float:
        """Nobody is fenced for who was to join, and had no pipeline yet."""
        fences = [at for line in trace.events("fence") if (at := line["at"]) > fault_time]
        return min(fences, default=fault_time) if broken else fault_time

    healthy = [end for trace in whole for end in passes_after(trace, fence_time(trace))]
    assert healthy, "healthy pipelines computed nothing"
    for trace in broken:
        fenced = fence_time(trace)
        places = [line["at"] for line in trace.events("assignment") if line["num_layers"]]
        place_time = min((at for at in places if at > fenced), default=inf)
        returned = [end for end in passes_after(trace, fenced) if end > place_time]
        assert not returned or min(healthy) < min(returned), (
            "survivors of a broken pipeline were first"
        )


def _changes_plan(fault: Fired, traces: list[Traced]) -> bool:
    """Whether an engine failed after the vote of a commit at which the next plan begins."""
    return fault.at in ("after_exchange", "before_update") and any(
        line["ends_generation"]
        for trace in traces
        for line in trace.events("commit")
        if line["step"] == fault.step
    )


def _pipeline_at(trace: Traced, seconds: float) -> list[str] | None:
    """Return the engines of the pipeline that an engine was in: none if it had no part of one.

    None: it had no place yet.
    """
    places = [line["pipeline"] for line in trace.events("assignment") if line["at"] < seconds]
    return places[-1] if places else None


def check_staging_disturbs_nobody(played: Played, traces: list[Traced]) -> None:
    """[8] While an engine is held in staging, the pipelines that are whole commit steps."""
    if played.staging is None:
        return
    lost = played.first_loss and played.engines[played.first_loss.node_id].pipeline
    numbers = {node_id: 0 for node_id, each in played.engines.items() if each.pipeline != lost}
    for trace in traces:
        commits = [line["at"] for line in trace.events("commit")]
        if node_of(trace.engine) in numbers:
            numbers[node_of(trace.engine)] += sum(
                played.staging.start < at < played.staging.end for at in commits
            )
    # What is reported is late by a step at most.
    assert min(numbers.values()) >= NUM_STAGED_STEPS - 1, f"steps during staging: {numbers}"


def check_checkpoints(played: Played, traces: list[Traced]) -> None:
    """The newest checkpoint is that of the last step and whole, and none is left half written."""
    if played.case.place.during is not During.CHECKPOINT:
        return
    assert not partial_checkpoints(played.checkpoints)
    version, folder = list(complete_checkpoints(played.checkpoints).items())[-1]
    manifest = Manifest.read(folder)
    assert manifest.step == version == played.job.steps
    places = [line for trace in traces for line in trace.events("assignment")]
    num_layers = max(line["first_layer"] + line["num_layers"] for line in places)
    assert [entry.layer for entry in manifest.layers] == list(range(num_layers))
    for entry in manifest.layers:
        verify_layer(layer_file(folder, entry.layer), entry)
