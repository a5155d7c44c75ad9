"""Templates: for each number of nodes every pipeline worth running (planning.md 2 and 3)."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planaria_common.errors import ErrorReason, PlanariaError, invalid
from planaria_planner.cost.cost_model import CostModel, PipelineCost, Stage, layers_by_node
from planaria_planner.cost.profile import ModelProfile
from planaria_planner.progress import step_counter
from planaria_planner.templates.cost_tables import CostTables, Int64Array, cost_tables
from planaria_planner.templates.template_search import (
    END,
    KIND,
    LAST_ON_NODE,
    PARENT,
    WIDTH,
    WORK,
    pareto_fronts,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A pipeline of nodes without names.

    Attributes:
        stages: in layer order.
        node_kinds: for each node, in pipeline order, the index of its kind.
        cost: a, b and the microbatches that fit.
        layers_by_node: for each node the layers that it holds, as the stages say.
    """

    stages: tuple[Stage, ...]
    node_kinds: tuple[int, ...]
    cost: PipelineCost
    layers_by_node: tuple[range, ...]

    @property
    def num_nodes(self) -> int:
        return len(self.node_kinds)


class TemplateSet:
    """The Pareto fronts of all sizes.

    Attributes:
        templates: by size, kinds, and then from the fastest bottleneck to the slowest.
        min_nodes: n0, the fewest nodes that hold the model, or the request's minimum if more.
        sizes: the numbers of nodes for which there are templates.
        mixes: whether templates that mix kinds of node are among them.
    """

    def __init__(self, templates: Iterable[Template], *, mixes: bool) -> None:
        self.templates = tuple(templates)
        self.mixes = mixes
        self._on_kinds: dict[tuple[int, ...], tuple[Template, ...]] = {}
        for template in self.templates:
            kinds = tuple(sorted(template.node_kinds))
            self._on_kinds[kinds] = (*self._on_kinds.get(kinds, ()), template)
        self.sizes = tuple(sorted({len(kinds) for kinds in self._on_kinds}))
        self.min_nodes = self.sizes[0]

    def on_kinds(self, kinds: Iterable[int]) -> tuple[Template, ...]:
        """Return the front for nodes of these kinds, in any order; empty where there is none."""
        return self._on_kinds.get(tuple(sorted(kinds)), ())


@lru_cache(maxsize=8)
def generate_templates(
    profile: ModelProfile,
    nodes_per_kind: tuple[int, ...],
    *,
    min_nodes: int = 0,
    max_width: int | None = None,
) -> TemplateSet:
    """Compute the whole Pareto front of (sum of stages, slowest stage, microbatches that fit).

    The last answers are cached: a job is planned again and again as its nodes change.

    Args:
        profile: the model.
        nodes_per_kind: how many nodes of each kind of the profile a template may use at most.
        min_nodes: the fewest nodes of a template; memory may ask for more.
        max_width: the most accelerators of a stage; no limit but the node's by default.

    Raises:
        PlanariaError: MODEL_DOES_NOT_FIT when no number of nodes, however large, holds the model;
            NOT_ENOUGH_NODES when more nodes would; INVALID_ARGUMENT when `min_nodes` is more than
            the model can be cut into; INVALID_PROFILE when a width was not measured.
    """
    if min_nodes > profile.num_layers:
        raise invalid(
            "min_nodes_per_pipeline",
            f"{min_nodes} is more than the model's {profile.num_layers} layers, of which each node"
            " needs one",
            expected=f"at most {profile.num_layers}",
        )
    tables = cost_tables(profile, max_width)
    check_layers_fit(profile, tables)
    templates, mixes = _front(profile, tables, nodes_per_kind)
    usable = tuple(t for t in templates if t.num_nodes >= min_nodes)
    if usable:
        return TemplateSet(usable, mixes=mixes)
    raise _no_template(profile, tables, nodes_per_kind, min_nodes)


_MOST_COUNTS = 1000
"""Different counts of nodes by kind up to which templates may mix kinds."""

_MOST_WORK = 500_000_000
"""Comparisons of partial pipelines up to which templates may mix kinds: half a second or so."""


def _front(
    profile: ModelProfile, tables: CostTables, nodes_per_kind: Sequence[int]
) -> tuple[tuple[Template, ...], bool]:
    """Return the templates, and whether all that mix kinds of node are among them."""
    kinds = [kind for kind, limit in enumerate(nodes_per_kind) if limit]
    counts = math.prod(min(limit, profile.num_layers) + 1 for limit in nodes_per_kind)
    if len(kinds) > 1 and counts <= _MOST_COUNTS:
        done = step_counter(profile.num_layers)
        mixed = _templates_of(profile, tables, nodes_per_kind, done, _MOST_WORK)
        if mixed or done[WORK] <= _MOST_WORK:
            return _in_order(mixed), True
    pure = [
        [limit if kind == only else 0 for kind, limit in enumerate(nodes_per_kind)]
        for only in kinds
    ]
    done = step_counter(profile.num_layers * max(len(pure), 1))
    found = [
        template
        for mix in pure
        for template in _templates_of(profile, tables, mix, done, _UNLIMITED)
    ]
    return _in_order(found), len(kinds) == 1


_UNLIMITED = 1 << 62


def _templates_of(
    profile: ModelProfile,
    tables: CostTables,
    nodes_per_kind: Sequence[int],
    done: Int64Array,
    most_work: int,
) -> list[Template]:
    counts, without = _node_counts(nodes_per_kind, profile.num_layers)
    labels, complete = pareto_fronts(tables, without, counts.sum(axis=1), done, most_work)
    model = CostModel(profile)
    return [_template(model, labels, label) for label in complete.tolist()]


def _in_order(templates: Iterable[Template]) -> tuple[Template, ...]:
    def key(t: Template) -> tuple[object, ...]:
        return t.num_nodes, t.node_kinds, t.cost.microbatch_seconds, t.stages

    return tuple(sorted(templates, key=key))


def _node_counts(nodes_per_kind: Sequence[int], most: int) -> tuple[Int64Array, Int64Array]:
    """Return every count of nodes by kind up to `most` in all, and the counts with one less."""
    counts = [
        count
        for count in itertools.product(*(range(min(n, most) + 1) for n in nodes_per_kind))
        if sum(count) <= most
    ]
    index = {count: i for i, count in enumerate(counts)}
    without = [
        [
            index[(*count[:kind], count[kind] - 1, *count[kind + 1 :])] if count[kind] else -1
            for kind in range(len(count))
        ]
        for count in counts
    ]
    return np.array(counts, dtype=np.int64), np.array(without, dtype=np.int64)


def _template(model: CostModel, labels: Int64Array, label: int) -> Template:
    """Read the stages off a chain of labels, from the first layer to the last."""
    stages: list[Stage] = []
    kinds: list[int] = []
    first_layer, starts_node = 0, True
    while label:
        row = labels[label].tolist()
        if starts_node:
            kinds.append(row[KIND])
        end = row[END]
        stages.append(
            Stage(
                first_layer=first_layer,
                num_layers=end - first_layer,
                node=len(kinds) - 1,
                accelerators=row[WIDTH],
            )
        )
        first_layer, starts_node, label = end, bool(row[LAST_ON_NODE]), row[PARENT]
    return Template(
        stages=tuple(stages),
        node_kinds=tuple(kinds),
        cost=model.pipeline_cost(stages, kinds),
        layers_by_node=layers_by_node(stages),
    )


def check_layers_fit(profile: ModelProfile, tables: CostTables) -> None:
    """Raise MODEL_DOES_NOT_FIT naming the first layer that fits on no stage at all."""
    have = max(
        int(memory * tables.widths[tables.widths <= accelerators][-1])
        for memory, accelerators in zip(tables.memory, tables.accelerators, strict=True)
    )
    for layer in profile.layers:
        need = layer.state_bytes + layer.activation_bytes
        if need > have:
            raise PlanariaError(
                ErrorReason.MODEL_DOES_NOT_FIT,
                f"layer {layer.name} needs {need} bytes, the widest stage of a node has {have}",
                {"layer": layer.name, "need_bytes": str(need), "have_bytes": str(have)},
            )


def _no_template(
    profile: ModelProfile, tables: CostTables, nodes_per_kind: Sequence[int], min_nodes: int
) -> PlanariaError:
    """Say whether more nodes, of any one kind, would help, and how many."""
    have = sum(nodes_per_kind)
    missing = []
    for kind in range(len(nodes_per_kind)):
        more = list(nodes_per_kind)
        more[kind] = max(more[kind], profile.num_layers)
        missing += [
            sum(max(t.node_kinds.count(kind) - n, 0) for kind, n in enumerate(nodes_per_kind))
            for t in _front(profile, tables, more)[0]
            if t.num_nodes >= min_nodes
        ]
    if missing:
        return not_enough_nodes(have, have + min(missing))
    need = sum(layer.state_bytes for layer in profile.layers)
    most = max(int(m * a) for m, a in zip(tables.memory, tables.accelerators, strict=True))
    return PlanariaError(
        ErrorReason.MODEL_DOES_NOT_FIT,
        f"no number of nodes from {max(min_nodes, 1)} to {profile.num_layers} holds the model:"
        f" {need} bytes of state besides activations, {most} bytes of memory per node",
        {"need_bytes": str(need), "have_bytes": str(most)},
    )


def not_enough_nodes(have: int, need: int) -> PlanariaError:
    """Return the error of a job that cannot run on `have` nodes."""
    return PlanariaError(
        ErrorReason.NOT_ENOUGH_NODES,
        f"not enough nodes: have {have}, need {need}",
        {"have": str(have), "need": str(need)},
    )
