"""From one plan to the next: what to run after nodes were lost, joined, or changed their speed.

Every candidate is placed on the nodes, and the one that does the most steps within the horizon
wins: `(H - seconds to get there) / T` (planning.md 5).
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.words import bytes_in_words, counted
from planaria_planner.changes.candidates import (
    CandidateKind,
    PipelineCosts,
    RunningPipeline,
    Situation,
    Target,
    survey,
    targets,
)
from planaria_planner.changes.checks import check_change
from planaria_planner.changes.inventory import Holdings, Inventory
from planaria_planner.changes.layer_copies import LayerCopy, busiest_bytes, choose_sources
from planaria_planner.changes.placement import Place, assign
from planaria_planner.cost.cost_model import CostModel, Stage, layers_by_node
from planaria_planner.plans.instantiate import (
    View,
    fastest_first,
    most_pipelines,
    nodes_needed,
    refusal_on,
    view_score,
    views,
)
from planaria_planner.plans.nodes import Node
from planaria_planner.plans.objective import steps_within_horizon
from planaria_planner.plans.pipeline_search import Selector
from planaria_planner.plans.problem import PlacedStages, Plan, Problem, make_plan, sizes_in_words
from planaria_planner.templates.templates import TemplateSet, not_enough_nodes

FIXED_SECONDS = 0.1
"""What any change costs besides the bytes copied: the fence and its reports."""

PIPELINE_SECONDS = 0.02
"""What building the communicators of one changed pipeline costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan that was considered.

    Attributes:
        kind: how it came about.
        plan: the plan, placed.
        copies: what leads to it.
        transition_seconds: predicted seconds to get there.
        steps_within_horizon: what the choice maximises.
        moves: what it does, in words.
    """

    kind: CandidateKind
    plan: Plan
    copies: tuple[LayerCopy, ...]
    transition_seconds: float
    steps_within_horizon: float
    moves: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconfiguration:
    """The next plan.

    Attributes:
        chosen: the candidate that does the most steps within the horizon.
        candidates: all that were considered, the chosen one first, then by steps.
        min_nodes: n0.
        reason: why this one, in words.
    """

    chosen: Candidate
    candidates: tuple[Candidate, ...]
    min_nodes: int
    reason: str


def reconfigure(
    problem: Problem,
    nodes: Sequence[Node],
    running: Sequence[RunningPipeline],
    holdings: Holdings,
    *,
    horizon_seconds: float,
) -> Reconfiguration:
    """Choose the plan that follows a change of nodes, and the copies that lead to it.

    When f can no longer be met the job goes on with as many replicas as there can be.

    Args:
        problem: the job.
        nodes: every node that may be used from now on: the survivors and the joiners.
        running: the pipelines of the plan that ran.
        holdings: who holds which layers now; nodes that may not be used any more but are still
            there can be sources of copies.
        horizon_seconds: expected seconds to the next change (H).

    Raises:
        PlanariaError: INVALID_PROFILE, INVALID_ARGUMENT or MODEL_DOES_NOT_FIT as for
            `generate_templates`; NOT_ENOUGH_NODES when not even one pipeline can run. A model that
            ran always fits: where the nodes left are too small for it, there are not enough.
    """
    check_change(problem, running, holdings, horizon_seconds)
    inventory = Inventory.of(problem.profile, holdings)
    grounds = groundworks(problem, nodes, running, inventory)
    return next_plan(
        *best_ground(grounds, frozenset(node.node_id for node in nodes)),
        inventory,
        horizon_seconds=horizon_seconds,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Groundwork:
    """What is the same whichever of a job's nodes are lost.

    Attributes:
        problem: the job.
        pool: its nodes, in order.
        running: the pipelines of the plan that runs.
        lacked: for each of them by its nodes, what they lack of it: as a rule nothing.
        templates: what plans are chosen from.
        selector: chooses from them.
        pipeline_cost: the cost of a running pipeline.
    """

    problem: Problem
    pool: tuple[Node, ...]
    running: tuple[RunningPipeline, ...]
    lacked: Mapping[tuple[str, ...], Mapping[str, tuple[int, ...]]]
    templates: TemplateSet
    selector: Selector
    pipeline_cost: PipelineCosts

    @classmethod
    def of(
        cls,
        view: View,
        running: Sequence[RunningPipeline],
        inventory: Inventory,
    ) -> "Groundwork":
        """Compute it for at most these nodes; raises as `generate_templates`."""
        templates = view.templates
        return cls(
            problem=view.problem,
            pool=view.nodes,
            running=tuple(running),
            lacked={
                pipeline.node_ids: _lacking(
                    inventory, pipeline.node_ids, layers_by_node(pipeline.stages)
                )
                for pipeline in running
            },
            templates=templates,
            selector=Selector(templates.templates),
            pipeline_cost=lru_cache(1024)(CostModel(view.problem.profile).pipeline_cost),
        )


def groundworks(
    problem: Problem,
    nodes: Sequence[Node],
    running: Sequence[RunningPipeline],
    inventory: Inventory,
) -> tuple[Groundwork, ...]:
    """Return one for each view of the job that is worth it; raises as `generate_templates`."""
    found = []
    for view in views(problem, nodes):
        try:
            found.append(Groundwork.of(view, running, inventory))
        except PlanariaError as error:
            refusal = error
    if not found:
        raise _refusal(nodes, running, refusal_on(problem, nodes, refusal))
    return tuple(found)


def _refusal(
    nodes: Sequence[Node],
    running: Sequence[RunningPipeline],
    refusal: PlanariaError,
) -> PlanariaError:
    """Return why there is no next plan: a model that ran fits, if not on the nodes left."""
    if refusal.reason is not ErrorReason.MODEL_DOES_NOT_FIT or not running:
        return refusal
    smallest = min(len(pipeline.node_ids) for pipeline in running)
    return not_enough_nodes(len(nodes), len(nodes) + smallest)


def best_ground(
    grounds: Sequence[Groundwork], node_ids: Collection[str]
) -> tuple[Groundwork, tuple[Node, ...]]:
    """Return the ground with the best plan from scratch on these nodes, and the nodes there."""
    each = [(g, tuple(node for node in g.pool if node.node_id in node_ids)) for g in grounds]
    if len(each) == 1:
        return each[0]
    return max(each, key=lambda one: view_score(one[0].problem, one[0].selector, one[1]))


def next_plan(
    ground: Groundwork,
    pool: Sequence[Node],
    inventory: Inventory,
    *,
    horizon_seconds: float,
) -> Reconfiguration:
    """Do the work of `reconfigure` for a problem and nodes that were checked and prepared."""
    problem, running = ground.problem, ground.running
    templates, selector = ground.templates, ground.selector
    budget = fastest_first(pool)
    min_pipelines = most_pipelines(problem, selector, budget)
    if min_pipelines == 0:
        raise not_enough_nodes(len(budget), nodes_needed(problem, templates, selector, budget, 1))
    situation = survey(problem, ground.pipeline_cost, running, pool)
    change = _Change(
        problem=problem,
        situation=situation,
        running={pipeline.node_ids: pipeline.stages for pipeline in running},
        inventory=inventory,
        lacked=ground.lacked,
        horizon_seconds=horizon_seconds,
    )
    candidates: list[Candidate] = []
    for target in targets(problem, templates, selector, situation, min_pipelines):
        plan, new = change.place(target)
        # An earlier candidate with the same plan is the more stable one.
        if all(plan != candidate.plan for candidate in candidates):
            candidates.append(change.evaluate(target, plan, new))
    # Of equal candidates the first, that is the most stable one, wins: the sort keeps order.
    ranked = sorted(candidates, key=lambda c: (-c.steps_within_horizon, c.transition_seconds))
    return Reconfiguration(
        chosen=ranked[0],
        candidates=tuple(ranked),
        min_nodes=templates.min_nodes,
        reason=_reason(problem, situation, ranked, horizon_seconds),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    problem: Problem
    situation: Situation
    running: Mapping[tuple[str, ...], tuple[Stage, ...]]
    inventory: Inventory
    lacked: Mapping[tuple[str, ...], Mapping[str, tuple[int, ...]]]
    horizon_seconds: float

    def place(self, target: Target) -> tuple[Plan, list[PlacedStages]]:
        """Give a target its nodes; return the plan and those of its pipelines that are new."""
        new = self._new_pipelines(target)
        placed = [*((w.running.node_ids, w.running.stages, w.cost) for w in target.kept), *new]
        used = {node_id for node_ids, _, _ in placed for node_id in node_ids}
        everyone = [node.node_id for node in target.pool]
        plan = make_plan(
            placed,
            self.problem.num_microbatches,
            (node_id for node_id in everyone if node_id not in used),
        )
        return plan, new

    def evaluate(self, target: Target, plan: Plan, new: Sequence[PlacedStages]) -> Candidate:
        """Work out the copies that lead to a plan, and its score."""
        missing: dict[str, tuple[int, ...]] = {}
        for whole in target.kept:
            missing.update(self.lacked[whole.running.node_ids])
        for choice, (node_ids, _, _) in zip(target.choices, new, strict=True):
            missing.update(_lacking(self.inventory, node_ids, choice.template.layers_by_node))
        copies = choose_sources(missing, self.inventory)
        seconds = self._transition_seconds(plan, copies)
        steps = steps_within_horizon(self.horizon_seconds, seconds, plan.iteration_seconds)
        return Candidate(
            kind=target.kind,
            plan=plan,
            copies=copies,
            transition_seconds=seconds,
            steps_within_horizon=steps,
            moves=target.moves,
        )

    def _new_pipelines(self, target: Target) -> list[PlacedStages]:
        kept = {w.running.node_ids for w in target.kept}
        heirs = [w.running for w in self.situation.whole if w.running.node_ids not in kept]
        places: list[Place] = []
        for choice in target.choices:
            template = choice.template
            heir = next((p for p in heirs if p.stages == template.stages), None)
            if heir:
                heirs.remove(heir)
            places.extend(
                Place(layers, kind, choice.relative_speed, heir.node_ids[node] if heir else "")
                for node, (kind, layers) in enumerate(
                    zip(template.node_kinds, template.layers_by_node, strict=True)
                )
            )
        nodes = iter(assign(places, target.pool, self.inventory))
        placed = []
        for choice in target.choices:
            crew = [next(nodes) for _ in choice.template.node_kinds]
            cost = choice.template.cost.slowed(min(node.relative_speed for node in crew))
            ids = tuple(node.node_id for node in crew)
            placed.append((ids, choice.template.stages, cost))
        return placed

    def _transition_seconds(self, plan: Plan, copies: Sequence[LayerCopy]) -> float:
        new = sum(self.running.get(p.node_ids) != p.stages for p in plan.pipelines)
        if not new and len(plan.pipelines) == len(self.running) and not copies:
            return 0.0
        bandwidth = self.problem.profile.hardware.inter_node_bytes_per_second
        return FIXED_SECONDS + PIPELINE_SECONDS * new + busiest_bytes(copies) / bandwidth


def _lacking(
    inventory: Inventory, node_ids: Sequence[str], layers_by_node: Sequence[range]
) -> dict[str, tuple[int, ...]]:
    """Return for each node of a pipeline the layers that it needs there and does not hold."""
    lacking = {}
    for node_id, layers in zip(node_ids, layers_by_node, strict=True):
        here = tuple(itertools.filterfalse(inventory.layers_of(node_id).__contains__, layers))
        if here:
            lacking[node_id] = here
    return lacking


def _reason(
    problem: Problem, situation: Situation, ranked: Sequence[Candidate], horizon_seconds: float
) -> str:
    chosen, plan = ranked[0], ranked[0].plan
    sizes = sizes_in_words(len(pipeline.node_ids) for pipeline in plan.pipelines)
    copied = sum(copy.num_bytes for copy in chosen.copies)
    words = [
        f"{counted(len(situation.whole), 'pipeline')} whole, {len(situation.broken)} broken,"
        f" {counted(len(situation.free), 'node')} free",
        f"{chosen.kind.value}: {chosen.moves}; pipelines of {sizes},"
        f" {plan.iteration_seconds:.3g} s a step, {bytes_in_words(copied)} to copy, there in"
        f" {chosen.transition_seconds:.3g} s, {chosen.steps_within_horizon:,.1f} steps within"
        f" {horizon_seconds:,.0f} s",
    ]
    if len(ranked) > 1:
        words.append(
            f"next best: {ranked[1].kind.value} with {ranked[1].steps_within_horizon:,.1f} steps"
        )
    asked = problem.fault_tolerance
    if plan.fault_tolerance < asked:
        words.append(f"tolerates {plan.fault_tolerance} failures, fewer than the {asked} asked for")
    return ". ".join(words) + "."
