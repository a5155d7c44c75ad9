"""Real engine processes with a test as their agent and coordinator.

    with EngineCluster(folder, job, zygote) as cluster:
        cluster.prepare("a", "b", "c")
        cluster.train([Pipeline(["a", 3], ["b", 4], microbatches=[0, 1])])
        cluster.wait_until_finished()
        assert cluster.digest() == train(reference).digest

Nothing here sleeps: every wait is for something that an engine says, or for its end.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.duration_pb2 import Duration

from planaria.api.worker.v1.directive_pb2 import (
    Activate,
    Copy,
    DigestLayers,
    Export,
    FollowerAssignment,
    LayerSource,
    PipelineAssignment,
    Quiesce,
    RollForward,
    StageAssignment,
    Stop,
)
from planaria.api.worker.v1.report_pb2 import CommitRecord, DirectiveResult, FenceReport
from planaria_worker.engine_config import Transport
from support.digests import final_digest
from support.engines.one_engine import TIMEOUT_SECONDS
from support.engines.processes import Engines, Remove
from support.engines.small_plans import JobFiles, Pipeline
from support.engines.zygote import Zygote


class EngineCluster(Engines):
    """Engines of one job and a coordinator that does what a test says.

    Attributes:
        members: engines of the newest plan, dead or alive.
        kept_groups: those that go on in the plan that comes next.
    """

    def __init__(
        self,
        folder: Path,
        job: JobFiles,
        zygote: Zygote,
        *,
        without: Remove | None = None,
        transport: Transport = "gloo",
    ) -> None:
        super().__init__(folder, job, zygote, without=without, transport=transport)
        self.committed_steps = 0
        self.members: list[str] = []
        self.kept_groups: list[str] = []
        self._placed_ids: set[str] = set()

    # --- a plan

    @property
    def is_whole(self) -> bool:
        """Whether every engine that was given a place in the newest plan lives."""
        return self._placed_ids <= {self.engines[name].engine_id for name in self.survivors}

    def copy_initial(self, plan: Sequence[Pipeline]) -> None:
        """Loads every layer of the job's base, wherever the plan puts it."""
        sources = dict.fromkeys(range(self.job.num_layers), ())
        self._copy(dict.fromkeys(names_of(plan), sources), self.base_steps)
        self.committed_steps = self.base_steps

    def activate(self, plan: Sequence[Pipeline], **fields: Any) -> dict[str, DirectiveResult]:
        """Gives every engine of a plan its place; returns their answers."""
        command = self.activate_command(plan, **fields)
        return self.ask_all({name: {"activate": command} for name in self.members})

    def place(
        self, plan: Sequence[Pipeline], followers: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        """Gives every engine of a plan its place, which it takes."""
        for name, result in self.activate(plan, followers=followers).items():
            assert result.HasField("activated"), (name, result)

    def activate_command(
        self,
        plan: Sequence[Pipeline],
        rebuild_seconds: int = 60,
        followers: Mapping[str, Sequence[int]] | None = None,
    ) -> Activate:
        followers = followers or {}
        names = self.members = [*names_of(plan), *followers]
        self._placed_ids = {self.engines[name].engine_id for name in names}
        return Activate(
            pipelines=[self._assignment(pipeline) for pipeline in plan],
            followers=[
                FollowerAssignment(
                    engine_id=self.engines[name].engine_id,
                    data_address=self.engines[name].snapshot.data_address,
                    layers=layers,
                )
                for name, layers in followers.items()
            ],
            committed_steps=self.committed_steps,
            store_address=self.engines[names[0]].snapshot.store_address,
            rebuild_timeout=Duration(seconds=rebuild_seconds),
            kept_groups=self.kept_groups,
        )

    def train(self, plan: Sequence[Pipeline]) -> None:
        """Begins the job again in a new generation, whatever the engines did before."""
        self.quiesce(dict.fromkeys([*_alive(self, self.members), *names_of(plan)]))
        self._forget_events()
        self.copy_initial(plan)
        self.place(plan)

    def needs(self, pipeline: Pipeline) -> dict[str, list[int]]:
        """Layers that each engine of a pipeline hosts."""
        needs, first = {}, 0
        for name, num_layers in pipeline.stages:
            layers = list(range(first, first + num_layers))
            first += num_layers
            if self.job.is_tied and first == self.job.num_layers and 0 not in layers:
                layers.insert(0, 0)
            needs[name] = layers
        return needs

    # --- fences and recoveries

    def quiesce(
        self,
        names: Iterable[str] | None = None,
        mode: "Quiesce.Mode.ValueType" = Quiesce.MODE_IMMEDIATE,
    ) -> dict[str, FenceReport]:
        """Opens a new generation and collects what every survivor of the plan reports."""
        chosen = _alive(self, self.members) if names is None else list(names)
        return self._collect(chosen, Quiesce(mode=mode))

    def fence(self, lost: Iterable[str] = ()) -> dict[str, FenceReport]:
        """Opens a new generation in which healthy pipelines keep computing."""
        lost_ids = [self.engines[name].engine_id for name in lost]
        command = Quiesce(mode=Quiesce.MODE_FENCE, lost_engine_ids=lost_ids)
        chosen = [name for name in _alive(self, self.members) if name not in lost]
        return self._collect(chosen, command)

    def _collect(self, names: Iterable[str], command: Quiesce) -> dict[str, FenceReport]:
        """Fences engines in a new generation; the groups that all name as idle are kept then."""
        self.generation += 1
        results = self.ask_all({name: {"quiesce": command} for name in names})
        for name, result in results.items():
            assert result.HasField("fence_report"), (name, result)
        reports = {name: result.fence_report for name, result in results.items()}
        named = Counter(
            (group.id, group.size) for report in reports.values() for group in report.idle_groups
        )
        self.kept_groups = [each for (each, size), times in named.items() if times == size]
        return reports

    def fence_until_computed(self, *names: str) -> dict[str, FenceReport]:
        """Fences again and again, until engines have computed all that they keep."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            reports = self.fence()
            if all(
                set(reports[name].finished_microbatches) == set(reports[name].kept_microbatches)
                for name in names
            ):
                return reports
            assert time.monotonic() < deadline, self._logs()

    def recover(self, plan: Sequence[Pipeline]) -> dict[str, FenceReport]:
        """What a coordinator does after a loss: quiesce, roll forward, copy, activate."""
        reports = self.quiesce()
        held = self.roll_forward(reports)
        self.copy_missing(plan, held)
        self.place(plan)
        return reports

    def roll_forward(self, reports: Mapping[str, FenceReport]) -> dict[str, dict[int, int]]:
        """Commits the newest step everywhere; returns the layers that each engine holds."""
        newest = max(report.committed_steps for report in reports.values())
        record: CommitRecord | None = None
        for report in reports.values():
            if report.committed_steps == newest and report.HasField("last_commit"):
                record = report.last_commit
        held = {n: {h.layer: h.version for h in report.layers} for n, report in reports.items()}
        behind = [n for n, r in reports.items() if r.layers and r.committed_steps == newest - 1]
        for name in behind:
            assert record is not None
            result = self.ask(name, roll_forward=RollForward(record=record))
            assert result.rolled_forward.committed_steps == newest, result
            for layer in held[name].keys() - set(result.rolled_forward.stale_layers):
                held[name][layer] = newest
        self.committed_steps = newest
        return held

    def copy_missing(
        self, plan: Sequence[Pipeline], held: Mapping[str, Mapping[int, int]]
    ) -> dict[str, DirectiveResult]:
        version = self.committed_steps
        orders: dict[str, dict[int, Sequence[str]]] = {}
        for pipeline in plan:
            for name, needed in self.needs(pipeline).items():
                for layer in needed:
                    if held.get(name, {}).get(layer) != version:
                        orders.setdefault(name, {})[layer] = [
                            self.engines[other].snapshot.data_address
                            for other, layers in held.items()
                            if layers.get(layer) == version
                        ]
        return self._copy(orders, version)

    # --- results

    def losses(self) -> list[float]:
        """Loss of each step that trained; every report of a step must agree."""
        trained = [r.record for r in self.step_reports() if r.record.num_tokens]
        return [*_agreed((record.step, record.loss) for record in trained).values()]

    def evaluation_losses(self) -> dict[int, float]:
        """Evaluation loss by the number of steps in the parameters."""
        records = [report.record for report in self.step_reports()]
        return _agreed(
            (r.step, r.evaluation_loss) for r in records if r.HasField("evaluation_loss")
        )

    def digest(self, plan: Sequence[Pipeline]) -> str:
        """The job's digest; all replicas of a layer must have the same."""
        digests: dict[int, set[bytes]] = {}
        for pipeline in plan:
            for name, needed in self.needs(pipeline).items():
                result = self.ask(name, digest_layers=DigestLayers(layers=needed))
                assert result.HasField("digested"), result
                for layer in result.digested.layers:
                    digests.setdefault(layer.layer, set()).add(layer.sha256)
        assert all(len(found) == 1 for found in digests.values()), "replicas differ"
        return final_digest(digests[layer].pop() for layer in sorted(digests))

    def stop(self, name: str) -> DirectiveResult:
        return self.ask(name, stop=Stop(reason="test"))

    def export(
        self,
        name: str,
        path: Path,
        sources: Mapping[int, Sequence[str]],
        model_format: str = "huggingface",
    ) -> DirectiveResult:
        return self.ask(
            name,
            export=Export(path=str(path), format=model_format, layers=_layer_sources(sources)),
        )

    # --- inside

    def _copy(
        self, orders: Mapping[str, Mapping[int, Sequence[str]]], version: int
    ) -> dict[str, DirectiveResult]:
        results = self.ask_all(
            {
                name: {
                    "copy": Copy(
                        layers=_layer_sources({x: a for x, a in sources.items() if a}),
                        initial_layers=[x for x, a in sources.items() if not a],
                        version=version,
                    )
                }
                for name, sources in orders.items()
            }
        )
        for name, result in results.items():
            assert result.HasField("copied"), (name, result)
        return results

    def _assignment(self, pipeline: Pipeline) -> PipelineAssignment:
        first, stages = 0, []
        for name, num_layers in pipeline.stages:
            stages.append(
                StageAssignment(
                    engine_id=self.engines[name].engine_id,
                    data_address=self.engines[name].snapshot.data_address,
                    first_layer=first,
                    num_layers=num_layers,
                )
            )
            first += num_layers
        return PipelineAssignment(
            stages=stages,
            microbatches=pipeline.microbatches,
            step_microbatches=pipeline.in_flight,
            keeps_step=pipeline.keeps or bool(pipeline.in_flight),
        )


def _agreed(values: Iterable[tuple[int, float]]) -> dict[int, float]:
    """By step; every report of a step must say the same."""
    by_step: dict[int, set[float]] = {}
    for step, value in values:
        by_step.setdefault(step, set()).add(value)
    assert all(len(found) == 1 for found in by_step.values()), by_step
    return {step: by_step[step].pop() for step in sorted(by_step)}


def names_of(plan: Sequence[Pipeline]) -> list[str]:
    """All engines of a plan, in its order."""
    return [name for pipeline in plan for name, _ in pipeline.stages]


def _alive(cluster: EngineCluster, names: Iterable[str]) -> list[str]:
    return [name for name in names if cluster.is_alive(name)]


def _layer_sources(sources: Mapping[int, Sequence[str]]) -> list[LayerSource]:
    return [LayerSource(layer=layer, addresses=addresses) for layer, addresses in sources.items()]
