"""What a coordinator does to change the plan at a commit, on real engines.

handover = Handover(cluster, before, after)
handover.stage()                # StagePlan, answered with Staged
handover.switch()               # Switch, and Quiesce AT_COMMIT to who has no place
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from planaria.api.worker.v1.directive_pb2 import (
    DigestLayers,
    LayerSource,
    Quiesce,
    StagePlan,
    Switch,
)
from planaria.api.worker.v1.report_pb2 import (
    Activated,
    DirectiveResult,
    EngineState,
    FenceReport,
    Staged,
)
from support.engines.cluster import EngineCluster
from support.engines.small_plans import Pipeline


class Handover:
    """From one plan to the next, in a generation of its own."""

    def __init__(
        self,
        cluster: EngineCluster,
        before: Sequence[Pipeline],
        after: Sequence[Pipeline],
        *,
        followers: Mapping[str, Sequence[int]] | None = None,
        rebuild_seconds: int = 60,
    ) -> None:
        """Opens the generation.

        Args:
            cluster: the engines.
            before: the plan that they train in.
            after: the next one; pipelines that are in both have `keeps`.
            followers: engines without a pipeline in the plan before, and their layers.
            rebuild_seconds: how long groups may take, and layers after the commit.
        """
        self.cluster = cluster
        cluster.generation += 1
        self.generation = cluster.generation
        self._held: dict[str, list[int]] = {n: list(x) for n, x in (followers or {}).items()}
        for pipeline in before:
            self._held |= cluster.needs(pipeline)
        self._needed: dict[str, list[int]] = {}
        for pipeline in after:
            self._needed |= cluster.needs(pipeline)
        plan = cluster.activate_command(after, rebuild_seconds)
        self._plan = StagePlan(
            pipelines=plan.pipelines,
            store_address=plan.store_address,
            rebuild_timeout=plan.rebuild_timeout,
        )
        self.leaving = [name for name in self._held if name not in self._needed]
        self.staying = list(self._needed)
        cluster.members = [*self.staying, *self.leaving]
        self._num_states = {n: len(e.states) for n, e in cluster.engines.items()}
        self._preferred = ""
        self._staging: dict[str, str] = {}
        self._switching: dict[str, str] = {}

    def has_parked(self, *names: str) -> bool:
        """Whether any of these engines has been parked since the generation was opened."""
        return any(
            EngineState.ENGINE_STATE_PARKED
            in self.cluster.engines[name].states[self._num_states[name] :]
            for name in names
        )

    def prefer(self, name: str) -> None:
        """Has layers followed from this engine, where it has them."""
        self._preferred = name

    def begin_staging(self) -> None:
        """Sends StagePlan to every engine that has a place in the next plan."""
        self._staging = {
            name: self.cluster.direct(name, self.generation, stage_plan=self.stage_command(name))
            for name in self.staying
        }

    def stage_command(self, name: str) -> StagePlan:
        """What one engine is told: it follows what it lacks, from everybody who has it."""
        command = StagePlan()
        command.CopyFrom(self._plan)
        for layer in self._needed[name]:
            if layer not in self._held.get(name, ()):
                holders = [other for other, layers in self._held.items() if layer in layers]
                holders.sort(key=lambda other: other != self._preferred)
                addresses = [self.cluster.engines[n].snapshot.data_address for n in holders]
                command.layers.append(LayerSource(layer=layer, addresses=addresses))
        return command

    def has_answered(self, name: str) -> bool:
        """Whether an engine has said that its place is staged, or cannot be."""
        return self.cluster.engines[name].result(self._staging[name]) is not None

    def staging_result(self, name: str) -> DirectiveResult:
        return self.cluster.wait_for_result(name, self._staging[name])

    def wait_until_staged(self) -> dict[str, Staged]:
        results = {name: self.staging_result(name) for name in self._staging}
        for name, result in results.items():
            assert result.HasField("staged"), (name, result)
        return {name: result.staged for name, result in results.items()}

    def stage(self) -> dict[str, Staged]:
        self.begin_staging()
        return self.wait_until_staged()

    def begin_switching(self, *, but: str = "") -> None:
        """Sends Switch, and Quiesce to every engine that has no place in the next plan."""
        at_commit = Quiesce(mode=Quiesce.MODE_AT_COMMIT)
        for name in self.staying:
            if name == but:
                continue
            self._switching[name] = self.cluster.direct(name, self.generation, switch=Switch())
        for name in self.leaving:
            self._switching[name] = self.cluster.direct(name, self.generation, quiesce=at_commit)

    def switch_after(self, step: int, go: Path, *, but: str = "") -> None:
        """Begins to switch while an engine is held in a step, and then lets it go.

        Args:
            step: the one after which all engines switch.
            go: the file for which the engine waits.
            but: an engine that is not told.
        """
        self.cluster.wait_for("the step before", lambda: self._has_committed(step - 1))
        self.begin_switching(but=but)
        for name in self._switching:  # answered after the directives before: those have begun
            self.cluster.ask(name, self.generation, digest_layers=DigestLayers())
        go.touch()

    def _has_committed(self, step: int) -> bool:
        return any(report.record.step == step for report in self.cluster.step_reports())

    def has_switched(self, name: str) -> bool:
        """Whether an engine has answered that it has changed over."""
        result = self.cluster.engines[name].result(self._switching[name])
        return result is not None and not result.HasField("failure")

    def switching_result(self, name: str) -> DirectiveResult:
        return self.cluster.wait_for_result(name, self._switching[name])

    def wait_until_switched(self) -> tuple[dict[str, Activated], dict[str, FenceReport]]:
        """The answers of those with a place, and of those without."""
        results = {name: self.switching_result(name) for name in self._switching}
        for name in self.staying:
            assert results[name].HasField("activated"), (name, results[name])
        for name in self.leaving:
            assert results[name].HasField("fence_report"), (name, results[name])
        activated = {name: results[name].activated for name in self.staying}
        steps = {result.committed_steps for result in activated.values()}
        assert len(steps) == 1, activated
        self.cluster.committed_steps = steps.pop()
        return activated, {name: results[name].fence_report for name in self.leaving}

    def switch(self) -> tuple[dict[str, Activated], dict[str, FenceReport]]:
        self.begin_switching()
        return self.wait_until_switched()
