"""The small jobs that the model of the protocol goes through, and the planner they have."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby, islice

from planaria_coordinator.domain.engines.directive import (
    Activate,
    PipelineAssignment,
    StageAssignment,
)
from planaria_coordinator.domain.engines.engine import Engine
from planaria_coordinator.domain.engines.node import EngineSnapshot, EngineState
from planaria_coordinator.domain.engines.outcome import Prepared
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.job_run import JobRun
from planaria_coordinator.domain.job.requirements import NodeFacts, Requirements
from planaria_coordinator.domain.job.time_account import Activity, TimeAccount
from planaria_coordinator.domain.placement.placement import Placement
from planaria_coordinator.domain.placement.plan import Pipeline, Plan, Stage
from planaria_coordinator.domain.placement.planner_query import LayerProfile
from planaria_coordinator.domain.placement.replicas import assign_engines
from unit.coordinator.protocol.engine_state import NOON
from unit.coordinator.protocol.state import NUM_LAYERS, NUM_MICROBATCHES

Cut = Callable[[list[str]], list[tuple[str, ...]]]
"""Makes nodes, in order, into pipelines."""


def pairs(node_ids: list[str]) -> list[tuple[str, ...]]:
    """Pair nodes in order; who has no partner is idle."""
    return list(zip(node_ids[::2], node_ids[1::2], strict=False))


def families(node_ids: list[str]) -> list[tuple[str, ...]]:
    """Pair nodes of one letter; who has no partner holds the whole model."""
    found: list[tuple[str, ...]] = []
    for _, family in groupby(node_ids, key=lambda node_id: node_id[0]):
        found.extend(batched(family))
    return found[:NUM_MICROBATCHES]


def batched(items: Iterable[str]) -> Iterator[tuple[str, ...]]:
    iterator = iter(items)
    while batch := tuple(islice(iterator, 2)):
        yield batch


def make_plan(
    pipelines_of: Callable[[list[str]], list[tuple[str, ...]]], node_ids: list[str]
) -> Plan:
    """Cut the layers evenly, and deal the microbatches round."""
    found = pipelines_of(node_ids)
    pipelines = tuple(
        Pipeline(
            stages=tuple(
                Stage(
                    first_layer=k * NUM_LAYERS // len(nodes),
                    num_layers=NUM_LAYERS // len(nodes),
                    node_index=k,
                    node_id=node,
                    accelerators=(0,),
                )
                for k, node in enumerate(nodes)
            ),
            microbatches=tuple(range(index, NUM_MICROBATCHES, len(found))),
            iteration_seconds=1.0,
        )
        for index, nodes in enumerate(found)
    )
    return Plan(pipelines=pipelines, iteration_seconds=1.0, fault_tolerance=len(found) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Which nodes there are, and how they are made into pipelines."""

    training: tuple[str, ...]
    """Those that train at first."""
    spare: tuple[str, ...] = ()
    """Those that have an engine, and no place."""
    joiners: tuple[str, ...] = ()
    """Those that the job may be given."""
    pipelines_of: Cut = pairs
    min_nodes: int = 2

    @property
    def engine_ids(self) -> dict[str, str]:
        nodes = (*self.training, *self.spare, *self.joiners)
        return {node: f"job/{node}/0/{number}" for number, node in enumerate(nodes, 1)}


EVEN = Cluster(training=("a0", "a1", "b0", "b1"))
"""Two pipelines of two stages."""
UNEVEN = Cluster(training=("a0", "a1", "b0"), pipelines_of=families, min_nodes=1)
"""A pipeline of two stages and one of a single stage."""
DRAINING = replace(UNEVEN, spare=("a2",))
"""The first node is to be freed and a spare one takes its place: one pipeline is left as it is."""
DISPLACING = replace(UNEVEN, spare=("b1",))
"""The same with a spare node that lets nobody keep its place."""
JOINING = replace(UNEVEN, joiners=("b1",))
"""A node joins the pipeline of a single stage; the other one is left as it is."""
REPLACING = replace(UNEVEN, joiners=("a2",))
"""A node joins as a pipeline of its own, in the place of one that the plan leaves idle."""
GROWING = Cluster(training=("a0", "a1"), joiners=("b0", "b1"))
"""Two nodes join as a second pipeline."""
SPARING = replace(EVEN, joiners=("c0",))
"""A node joins that no plan has a place for until one of the others is lost."""


def requirements(num_steps: int, cluster: Cluster) -> Requirements:
    """Small layers, all alike, in pipelines that one loss does not end."""
    layer = LayerProfile(
        name="layer",
        forward_seconds=1.0,
        backward_seconds=1.0,
        parameter_bytes=1,
        state_bytes=1,
        activation_bytes=1,
        output_bytes=1,
    )
    return Requirements(
        job_spec="",
        job_secret="",
        steps=num_steps,
        num_microbatches=NUM_MICROBATCHES,
        microbatch_size=1,
        fault_tolerance=1,
        min_nodes=cluster.min_nodes,
        max_nodes=None,
        min_nodes_per_pipeline=cluster.min_nodes,
        reproducible=True,
        data_path="",
        output_path="",
        output_format="",
        ties_embeddings=False,
        layers=(layer,) * NUM_LAYERS,
    )


def facts_of(node_id: str) -> NodeFacts:
    return NodeFacts(
        node_id=node_id, num_accelerators=1, accelerator_kind="cpu", accelerator_memory_bytes=100
    )


def prepared(engine_id: str) -> Prepared:
    """Return what an engine says that has started."""
    snapshot = EngineSnapshot(
        engine_id=engine_id,
        job_id="job",
        accelerator=0,
        generation=0,
        state=EngineState.PARKED,
        data_address=engine_id,
    )
    return Prepared(engine=snapshot, data_digest="", fingerprint={}, measured_layers=())


def first_run(num_steps: int, cluster: Cluster = EVEN) -> JobRun:
    """A job that trains."""
    engine_ids = cluster.engine_ids
    engines = {
        engine_id: Engine(
            id=engine_id, node_id=node_id, accelerator=0, prepared=True, data_address=engine_id
        )
        for node_id, engine_id in engine_ids.items()
        if node_id not in cluster.joiners
    }
    plan = make_plan(cluster.pipelines_of, list(cluster.training))
    return JobRun(
        job_id="job",
        requirements=requirements(num_steps, cluster),
        state=JobState.RUNNING,
        time_account=TimeAccount(current=Activity.PRODUCTIVE, since=NOON),
        start_time=NOON,
        nodes_per_replica=cluster.min_nodes,
        generation=1,
        nodes={node: facts_of(node) for node in (*cluster.training, *cluster.spare)},
        engines=engines,
        placement=Placement(
            generation=1, plan=plan, stage_engines=assign_engines(plan, engines.values()), reason=""
        ),
        num_engines=len(engines),
        announced_fault_tolerance=1,
    )


def activate_of(placement: Placement) -> Activate:
    return Activate(
        pipelines=tuple(
            PipelineAssignment(
                stages=tuple(
                    StageAssignment(
                        engine_id=e,
                        data_address=e,
                        first_layer=stage.first_layer,
                        num_layers=stage.num_layers,
                    )
                    for stage, e in zip(pipeline.stages, engine_ids, strict=True)
                ),
                microbatches=pipeline.microbatches,
            )
            for pipeline, engine_ids in zip(
                placement.plan.pipelines, placement.stage_engines, strict=True
            )
        ),
        committed_steps=0,
        store_address="",
        rebuild_timeout_seconds=1.0,
    )
