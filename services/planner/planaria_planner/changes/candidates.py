"""The ways from one plan to the next that are worth scoring (planning.md 5).

Each candidate keeps some running pipelines on their nodes and says what the other nodes, the
*pool*, are to run. Which node of the pool takes which place is decided later, by placement.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from planaria_common.words import counted
from planaria_planner.cost.cost_model import PipelineCost, Stage
from planaria_planner.plans.nodes import Node
from planaria_planner.plans.pipeline_search import Choice, Selector, select
from planaria_planner.plans.problem import Problem
from planaria_planner.templates.templates import Template, TemplateSet


class CandidateKind(StrEnum):
    """How a candidate comes about."""

    KEEP = "keep"
    SHRINK = "shrink"
    BORROW = "borrow"
    MERGE = "merge"
    REPLAN = "replan"
    FROM_SCRATCH = "from_scratch"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningPipeline:
    """A pipeline of the plan that ran; a stage's `node` is an index into `node_ids`."""

    node_ids: tuple[str, ...]
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A running pipeline that lost no node."""

    running: RunningPipeline
    nodes: tuple[Node, ...]
    cost: PipelineCost


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is left of the running plan.

    Attributes:
        whole: the pipelines that lost no node, most nodes first.
        broken: for each other pipeline its original nodes' number and the nodes it has left.
        free: nodes in no running pipeline.
        nodes: all of these nodes, in order.
    """

    whole: tuple[Whole, ...]
    broken: tuple[tuple[int, tuple[Node, ...]], ...]
    free: tuple[Node, ...]
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a candidate runs.

    Attributes:
        kind: how it came about.
        kept: pipelines that go on as they are.
        choices: templates for the pool.
        pool: every node that is in no kept pipeline.
        moves: what it does, in words.
    """

    kind: CandidateKind
    kept: tuple[Whole, ...]
    choices: tuple[Choice, ...]
    pool: tuple[Node, ...]
    moves: str


PipelineCosts = Callable[[tuple[Stage, ...], tuple[int, ...]], PipelineCost]
"""The cost of a pipeline of these stages on nodes of these kinds."""


def survey(
    problem: Problem,
    pipeline_cost: PipelineCosts,
    running: Sequence[RunningPipeline],
    nodes: Sequence[Node],
) -> Situation:
    """Sort the running pipelines into whole and broken ones; the nodes are in order."""
    available = {node.node_id: node for node in nodes}
    whole, broken = [], []
    for pipeline in sorted(running, key=lambda p: min(p.node_ids)):
        left = tuple(available.pop(i) for i in pipeline.node_ids if i in available)
        cost = _running_cost(problem, pipeline_cost, pipeline, left)
        if cost is None:
            broken.append((len(pipeline.node_ids), left))
        else:
            whole.append(Whole(running=pipeline, nodes=left, cost=cost))
    return Situation(
        whole=tuple(sorted(whole, key=lambda w: -len(w.nodes))),
        broken=tuple(broken),
        free=tuple(available.values()),
        nodes=tuple(nodes),
    )


def _running_cost(
    problem: Problem,
    pipeline_cost: PipelineCosts,
    pipeline: RunningPipeline,
    nodes: Sequence[Node],
) -> PipelineCost | None:
    """Return the cost of a pipeline that can go on as it is, None for one that cannot."""
    if len(nodes) < max(len(pipeline.node_ids), problem.min_nodes_per_pipeline):
        return None
    cost = pipeline_cost(pipeline.stages, tuple(node.kind for node in nodes))
    if cost.max_microbatches == 0:
        return None
    return cost.slowed(min(node.relative_speed for node in nodes))


def targets(
    problem: Problem,
    templates: TemplateSet,
    selector: Selector,
    situation: Situation,
    min_pipelines: int,
) -> Iterator[Target]:
    """Yield every candidate of at least `min_pipelines` pipelines, the most stable first."""
    builder = _Builder(
        problem=problem,
        templates=templates,
        selector=selector,
        situation=situation,
        min_pipelines=min_pipelines,
    )
    num_whole = len(situation.whole)
    yield from builder.keep()
    yield from builder.shrink()
    yield from builder.borrow()
    if num_whole:
        yield from builder.replan(0)
    dissolved = 1
    while dissolved < num_whole and dissolved <= _MOST_DISSOLVED:
        yield from builder.replan(dissolved)
        dissolved *= 2
    yield from builder.replan(num_whole)


_MOST_DISSOLVED = 4
"""Up to so many healthy pipelines are planned again; beyond it is the plan from scratch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Builder:
    problem: Problem
    templates: TemplateSet
    selector: Selector
    situation: Situation
    min_pipelines: int

    def keep(self) -> Iterator[Target]:
        """Healthy pipelines continue; the others hand over their microbatches, their nodes idle."""
        whole, broken = self.situation.whole, self.situation.broken
        idle = f", {len(broken)} broken ones idle" if broken else ""
        yield from self._with_groups(
            CandidateKind.KEEP, whole, (), f"{len(whole)} healthy pipelines continue{idle}"
        )

    def shrink(self) -> Iterator[Target]:
        """Each broken pipeline goes on with the nodes it has left, refilled from free ones."""
        free = self.situation.free
        crews, _ = self._refilled(list(free))
        crews = [crew for crew in crews if self._fronts(crew)]
        if crews:
            sizes = " and ".join(counted(len(crew), "node") for crew in crews)
            num_taken = sum(node in free for crew in crews for node in crew)
            taken = f", {num_taken} of them free until now" if num_taken else ""
            yield from self._with_groups(
                CandidateKind.SHRINK,
                self.situation.whole,
                crews,
                f"broken pipelines continue with {sizes}{taken}",
            )

    def borrow(self) -> Iterator[Target]:
        """Broken pipelines that are too small take nodes from the largest whole ones."""
        crews, _ = self._refilled(list(self.situation.free))
        lenders = [list(whole.nodes) for whole in self.situation.whole]
        num_borrowed = 0
        for crew in crews:
            while crew and not self._fronts(crew):
                lender = self._lender(lenders)
                if lender is None:
                    break
                crew.append(lender.pop())
                num_borrowed += 1
        crews = [crew for crew in crews if self._fronts(crew)]
        if num_borrowed == 0 or not crews:
            return
        kept = tuple(
            whole
            for whole, nodes in zip(self.situation.whole, lenders, strict=True)
            if len(nodes) == len(whole.nodes)
        )
        smaller = [
            nodes
            for whole, nodes in zip(self.situation.whole, lenders, strict=True)
            if len(nodes) < len(whole.nodes)
        ]
        yield from self._with_groups(
            CandidateKind.BORROW,
            kept,
            [*crews, *smaller],
            f"broken pipelines borrow {counted(num_borrowed, 'node')} from "
            f"{counted(len(smaller), 'whole one')}",
        )

    def replan(self, num_dissolved: int) -> Iterator[Target]:
        """Some healthy pipelines stay; everything else is planned again, as well as possible."""
        whole = self.situation.whole
        kept = whole[num_dissolved:]
        pool = self._pool(kept)
        if not kept:
            kind, moves = CandidateKind.FROM_SCRATCH, "everything is planned again"
        elif num_dissolved == 0:
            kind, moves = CandidateKind.MERGE, "broken remainders and free nodes are planned again"
        else:
            kind = CandidateKind.REPLAN
            moves = f"{num_dissolved} of {len(whole)} healthy pipelines are planned again as well"
        selection = self.selector.select(
            pool,
            min_pipelines=self.min_pipelines,
            num_microbatches=self.problem.num_microbatches,
            groups=[[w.cost] for w in kept],
        )
        if selection:
            yield Target(kind=kind, kept=kept, choices=selection.choices, pool=pool, moves=moves)

    def _with_groups(
        self,
        kind: CandidateKind,
        kept: Sequence[Whole],
        crews: Sequence[Sequence[Node]],
        moves: str,
    ) -> Iterator[Target]:
        """Yield the best choice of one template for each crew, next to the kept pipelines."""
        fronts = [self._fronts(crew) for crew in crews]
        speeds = [min(node.relative_speed for node in crew) for crew in crews]
        selection = select(
            (),
            (),
            min_pipelines=self.min_pipelines,
            num_microbatches=self.problem.num_microbatches,
            groups=[
                *([whole.cost] for whole in kept),
                *(
                    [t.cost.slowed(speed) for t in front]
                    for front, speed in zip(fronts, speeds, strict=True)
                ),
            ],
        )
        if selection is None or len(kept) + len(crews) < self.min_pipelines:
            return
        choices = tuple(
            Choice(template=front[member], relative_speed=speed)
            for front, speed, member in zip(
                fronts, speeds, selection.members[len(kept) :], strict=True
            )
        )
        yield Target(
            kind=kind, kept=tuple(kept), choices=choices, pool=self._pool(kept), moves=moves
        )

    def _pool(self, kept: Sequence[Whole]) -> tuple[Node, ...]:
        staying = {node.node_id for whole in kept for node in whole.nodes}
        return tuple(node for node in self.situation.nodes if node.node_id not in staying)

    def _refilled(self, free: list[Node]) -> tuple[list[list[Node]], list[Node]]:
        """Return each broken pipeline's nodes, filled up to their old number, and who is left."""
        crews = []
        for original, left in self.situation.broken:
            missing = original - len(left)
            crews.append([*left, *free[:missing]])
            free = free[missing:]
        return crews, free

    def _fronts(self, crew: Sequence[Node]) -> tuple[Template, ...]:
        """Return the templates that run on exactly these nodes, whatever their order."""
        return self.templates.on_kinds(node.kind for node in crew)

    def _lender(self, lenders: Sequence[list[Node]]) -> list[Node] | None:
        """Return the largest pipeline that can spare its last node, None where there is none."""
        able = [nodes for nodes in lenders if len(nodes) > 1 and self._fronts(nodes[:-1])]
        return max(able, key=len, default=None)
