"""The decision of a step: a commit needs every microbatch once in every layer of every replica."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planaria_worker.engine.evaluation import EvaluationPlan
from planaria_worker.engine.plan.plan import PipelineAssignment
from planaria_worker.engine.step.commit_messages import (
    CommitMismatchError,
    Decision,
    DecisionKind,
    LayerVote,
    Message,
    VoteFormat,
)
from unit.engine.plans import pipeline, plans, tied, untied

GENERATION, STEP = 4, 17


def vote_format(
    num_layers: int, num_microbatches: int, *, is_reproducible: bool = True
) -> VoteFormat:
    return VoteFormat(
        num_layers=num_layers,
        num_microbatches=num_microbatches,
        num_tokens=100 * num_microbatches,
        is_reproducible=is_reproducible,
    )


class Cluster:
    """Votes of all engines of a plan; a test spoils some and asks for the decision."""

    def __init__(
        self,
        pipelines: list[PipelineAssignment],
        num_layers: int,
        num_microbatches: int,
        *,
        is_reproducible: bool = True,
        is_tied: bool = False,
    ) -> None:
        self.format = vote_format(num_layers, num_microbatches, is_reproducible=is_reproducible)
        self.pipelines = pipelines
        self.hosted = tied(num_layers) if is_tied else untied
        self.layers = {
            place.engine_id: {
                layer: LayerVote(
                    squared_norm=2.0 + layer, num_counted=num_microbatches, in_range=True
                )
                for layer in self.hosted(place.first_layer, place.num_layers)
            }
            for p in pipelines
            for place in p.stages
        }
        self.losses: dict[str, dict[int, int | None]] = {
            p.stages[-1].engine_id: dict.fromkeys(p.microbatches, 1 << 24) for p in pipelines
        }
        self.marks: dict[str, int] = {}
        self.num_skipped: dict[str, int] = {}
        """Steps skipped before, by those who know of them."""
        self.moments: dict[str, tuple[int, int]] = {}
        """Generation and step of those who are not where the others are."""

    def decide(self) -> Decision:
        rows = []
        for p in self.pipelines:
            claims = [self._vote(place.engine_id) for place in p.stages]
            rows.append(reduce(self.format.merge, claims))
        return self.format.decide(np.stack(rows))

    def _vote(self, engine_id: str) -> Message:
        generation, step = self.moments.get(engine_id, (GENERATION, STEP))
        return self.format.vote(
            generation=generation,
            step=step,
            mark=self.marks.get(engine_id, 0),
            layers=self.layers[engine_id],
            losses=self.losses.get(engine_id, {}),
            num_skipped=self.num_skipped.get(engine_id, 0),
        )

    def spoil(self, engine_id: str, layer: int, **change: float) -> None:
        vote = self.layers[engine_id][layer]
        values = {name: getattr(vote, name) for name in ("squared_norm", "num_counted", "in_range")}
        self.layers[engine_id][layer] = LayerVote(**(values | change))


@given(plans(), st.booleans(), st.booleans())
def test_a_complete_step_is_committed(
    plan: tuple[list[PipelineAssignment], int, int], is_tied: bool, is_reproducible: bool
) -> None:
    pipelines, num_layers, num_microbatches = plan
    cluster = Cluster(
        pipelines, num_layers, num_microbatches, is_tied=is_tied, is_reproducible=is_reproducible
    )
    decision = cluster.decide()
    assert (decision.kind, decision.layer) == (DecisionKind.COMMIT, -1)
    assert decision.record.next_generation == 0
    assert (decision.record.generation, decision.record.step) == (GENERATION, STEP)
    assert decision.record.loss == num_microbatches / decision.record.num_tokens
    squares = sum(2.0 + layer for layer in range(num_layers))
    assert decision.record.gradient_norm == math.sqrt(squares) / decision.record.num_tokens
    assert Decision.decode(decision.encode(), generation=GENERATION, step=STEP) == decision


@given(plans(), st.booleans(), st.data())
def test_invariant_1_one_missing_or_repeated_microbatch_anywhere_stops_the_commit(
    plan: tuple[list[PipelineAssignment], int, int], is_tied: bool, data: st.DataObject
) -> None:
    pipelines, num_layers, num_microbatches = plan
    cluster = Cluster(pipelines, num_layers, num_microbatches, is_tied=is_tied)
    engine_id = data.draw(st.sampled_from(sorted(cluster.layers)))
    layer = data.draw(st.sampled_from(sorted(cluster.layers[engine_id])))
    counted = data.draw(st.integers(0, num_microbatches - 1))
    cluster.spoil(engine_id, layer, num_counted=counted)
    decision = cluster.decide()
    assert (decision.kind, decision.layer) == (DecisionKind.INCOMPLETE, layer)


@given(plans(), st.data())
def test_invariant_1_a_loss_that_is_missing_or_reported_twice_stops_the_commit(
    plan: tuple[list[PipelineAssignment], int, int], data: st.DataObject
) -> None:
    cluster = Cluster(*plan)
    engine_id = data.draw(st.sampled_from(sorted(cluster.losses)))
    microbatch = data.draw(st.integers(0, cluster.format.num_microbatches - 1))
    if microbatch in cluster.losses[engine_id]:
        del cluster.losses[engine_id][microbatch]
    else:
        cluster.losses[engine_id][microbatch] = 5
    assert cluster.decide().kind is DecisionKind.INCOMPLETE


@given(plans(), st.data())
def test_one_gradient_out_of_range_stops_everyone_and_names_the_layer(
    plan: tuple[list[PipelineAssignment], int, int], data: st.DataObject
) -> None:
    cluster = Cluster(*plan)
    engine_id = data.draw(st.sampled_from(sorted(cluster.layers)))
    layer = data.draw(st.sampled_from(sorted(cluster.layers[engine_id])))
    cluster.spoil(engine_id, layer, in_range=False)
    for other, claims in cluster.layers.items():  # who is out of range is in no sum
        if layer in claims:
            cluster.spoil(other, layer, num_counted=0)
    decision = cluster.decide()
    assert (decision.kind, decision.layer) == (DecisionKind.OUT_OF_RANGE, layer)


def test_a_norm_that_is_not_finite_is_out_of_range() -> None:
    cluster = Cluster([pipeline(0, [2, 4], [0, 1])], 4, 2, is_reproducible=False)
    cluster.spoil("0.1", 2, squared_norm=math.nan)
    decision = cluster.decide()
    assert (decision.kind, decision.layer) == (DecisionKind.OUT_OF_RANGE, 2)


def test_a_loss_that_is_not_finite_is_out_of_range() -> None:
    cluster = Cluster([pipeline(0, [2, 4], [0, 1])], 4, 2)
    cluster.losses["0.1"][1] = None
    decision = cluster.decide()
    assert (decision.kind, decision.layer) == (DecisionKind.OUT_OF_RANGE, 3)


def skipping(num_skipped: Mapping[str, int], max_skipped_steps: int) -> Decision:
    """The decision on a gradient of layer 2 where some engines know of steps skipped before."""
    pipelines = [pipeline(0, [2, 4], [0, 1]), pipeline(1, [3, 4], [2])]
    cluster = Cluster(pipelines, 4, 3)
    cluster.format = replace(cluster.format, max_skipped_steps=max_skipped_steps)
    cluster.num_skipped |= num_skipped
    cluster.spoil("0.1", 2, in_range=False, num_counted=0)
    cluster.spoil("1.0", 2, num_counted=0)
    return cluster.decide()


@pytest.mark.parametrize("knowing", ["0.0", "0.1", "1.0", "1.1"])
def test_a_gradient_out_of_range_skips_the_step_until_too_many_are_skipped(knowing: str) -> None:
    """It is enough that one engine knows how many were skipped before."""
    for num_before in range(3):
        decision = skipping({knowing: num_before}, 3)
        record = decision.record
        assert decision.kind is DecisionKind.COMMIT
        assert (record.is_skipped, record.num_skipped, record.skipped_layer) == (
            True,
            num_before + 1,
            2,
        )
        assert (record.loss, record.gradient_norm, record.num_tokens) == (0.0, 0.0, 300)
        assert Decision.decode(decision.encode(), generation=GENERATION, step=STEP) == decision
    decision = skipping({knowing: 3}, 3)
    assert (decision.kind, decision.layer) == (DecisionKind.OUT_OF_RANGE, 2)


def test_a_loss_that_is_not_finite_skips_the_step_as_well() -> None:
    cluster = Cluster([pipeline(0, [2, 4], [0, 1])], 4, 2)
    cluster.format = replace(cluster.format, max_skipped_steps=1)
    cluster.losses["0.1"][1] = None
    decision = cluster.decide()
    assert decision.kind is DecisionKind.COMMIT
    assert (decision.record.num_skipped, decision.record.skipped_layer) == (1, 3)


def test_invariant_1_a_step_is_skipped_only_when_every_microbatch_was_computed() -> None:
    """Else it might be skipped here, and applied where the step is finished by others."""
    cluster = Cluster([pipeline(0, [2, 4], [0, 1])], 4, 2)
    cluster.format = replace(cluster.format, max_skipped_steps=1)
    cluster.spoil("0.0", 0, in_range=False)
    del cluster.losses["0.1"][1]
    assert cluster.decide().kind is DecisionKind.INCOMPLETE


@pytest.mark.parametrize("is_bad", [False, True])
def test_a_skipped_step_tells_its_evaluation_if_that_is_finite(is_bad: bool) -> None:
    form = replace(vote_format(1, 4), evaluation=EVALUATION, max_skipped_steps=1)
    vote = form.vote(
        generation=GENERATION,
        step=STEP,
        mark=0,
        layers={0: LayerVote(squared_norm=2.0, num_counted=0, in_range=False)},
        losses=dict.fromkeys(range(4), 1 << 24),
        evaluation_losses=WHOLE | {3: None} if is_bad else WHOLE,
    )
    record = form.decide(np.stack([vote])).record
    assert record.is_skipped
    assert record.evaluation_loss == (None if is_bad else 5 / 500)


@pytest.mark.parametrize("is_tied", [False, True])
def test_replicas_with_different_sums_are_noticed(is_tied: bool) -> None:
    pipelines = [pipeline(0, [2, 4], [0, 1]), pipeline(1, [3, 4], [2])]
    cluster = Cluster(pipelines, 4, 3, is_tied=is_tied)
    layer = 0 if is_tied else 3
    cluster.spoil("1.1", layer, squared_norm=2.5)
    decision = cluster.decide()
    assert (decision.kind, decision.layer) == (DecisionKind.DIVERGED, layer)


def test_rounding_in_the_default_mode_is_no_divergence() -> None:
    pipelines = [pipeline(0, [2, 4], [0, 1]), pipeline(1, [3, 4], [2])]
    cluster = Cluster(pipelines, 4, 3, is_reproducible=False)
    cluster.spoil("1.1", 3, squared_norm=5.0000001)
    assert cluster.decide().kind is DecisionKind.COMMIT


@given(plans(), st.data())
def test_all_engines_park_after_a_commit_or_none(
    plan: tuple[list[PipelineAssignment], int, int], data: st.DataObject
) -> None:
    cluster = Cluster(*plan)
    for engine_id in cluster.layers:
        cluster.marks[engine_id] = data.draw(st.sampled_from([0, 5, 6]))
    marks = set(cluster.marks.values())
    decision = cluster.decide()
    assert decision.record.next_generation == (marks.pop() if len(marks) == 1 else 0)
    assert Decision.decode(decision.encode(), generation=GENERATION, step=STEP) == decision


@pytest.mark.parametrize("late", ["0.0", "0.1", "1.0"])
@pytest.mark.parametrize("moment", [(GENERATION, STEP - 1), (GENERATION - 1, STEP)])
def test_invariant_4_another_step_or_generation_is_not_mixed_in(
    moment: tuple[int, int], late: str
) -> None:
    cluster = Cluster([pipeline(0, [2, 4], [0, 1]), pipeline(1, [4], [2])], 4, 3)
    cluster.moments[late] = moment
    with pytest.raises(CommitMismatchError):
        cluster.decide()


@pytest.mark.parametrize(("generation", "step"), [(GENERATION + 1, STEP), (GENERATION, STEP + 1)])
def test_invariant_4_a_decision_of_another_generation_or_step_is_refused(
    generation: int, step: int
) -> None:
    kind = Cluster([pipeline(0, [4], [0, 1])], 4, 2).decide().encode()
    with pytest.raises(CommitMismatchError):
        Decision.decode(kind, generation=generation, step=step)


def test_an_engine_that_aborted_is_seen_at_the_top() -> None:
    form = vote_format(4, 2)
    fenced = form.fenced(generation=GENERATION, step=STEP)
    whole = Cluster([pipeline(0, [2, 4], [0, 1])], 4, 2)
    claims = [whole._vote("0.0"), whole._vote("0.1")]
    assert not form.is_fenced(reduce(form.merge, claims))
    assert form.is_fenced(form.merge(fenced, claims[1]))
    assert form.is_fenced(form.merge(claims[0], fenced))
    decision = Decision.fenced(GENERATION, STEP)
    assert Decision.decode(decision.encode(), generation=GENERATION, step=STEP) == decision
    with pytest.raises(CommitMismatchError):
        form.merge(fenced, form.fenced(generation=GENERATION, step=STEP + 1))


FOLLOWER = LayerVote(squared_norm=4.0, num_counted=3, in_range=True)


@pytest.mark.parametrize(
    ("layers", "kind"),
    [
        ({2: FOLLOWER}, DecisionKind.COMMIT),
        ({2: LayerVote(squared_norm=4.0, num_counted=2, in_range=True)}, DecisionKind.INCOMPLETE),
        ({2: LayerVote(squared_norm=4.5, num_counted=3, in_range=True)}, DecisionKind.DIVERGED),
        (
            {2: LayerVote(squared_norm=4.0, num_counted=3, in_range=False)},
            DecisionKind.OUT_OF_RANGE,
        ),
    ],
)
def test_a_follower_may_hold_few_microbatches_but_its_sums_must_be_complete(
    layers: dict[int, LayerVote], kind: DecisionKind
) -> None:
    cluster = Cluster([pipeline(0, [2, 4], [0, 1]), pipeline(1, [4], [2])], 4, 3)
    rows = [cluster._vote("0.0"), cluster._vote("1.0")]
    rows[0] = cluster.format.merge(rows[0], cluster._vote("0.1"))
    rows.append(
        cluster.format.vote(generation=GENERATION, step=STEP, mark=0, layers=layers, losses={})
    )
    assert cluster.format.decide(np.stack(rows), num_followers=1).kind is kind
    # As a pipeline it would lack three layers.
    as_pipeline = cluster.format.decide(np.stack(rows)).kind
    assert as_pipeline in (DecisionKind.INCOMPLETE, DecisionKind.OUT_OF_RANGE)


EVALUATION = EvaluationPlan(
    every_steps=STEP, num_steps=3 * STEP, num_carriers=4, num_microbatches=5, num_tokens=500
)


def evaluated(
    *shares: dict[int, int | None], step: int = STEP, is_reproducible: bool = True
) -> Decision:
    """The decision where each of two pipelines has evaluated some microbatches."""
    form = replace(vote_format(1, 4, is_reproducible=is_reproducible), evaluation=EVALUATION)
    layers = {0: LayerVote(squared_norm=4.0, num_counted=4, in_range=True)}
    rows = [
        form.vote(
            generation=GENERATION,
            step=step,
            mark=0,
            layers=layers,
            losses=dict.fromkeys(microbatches, 0),
            evaluation_losses=share,
        )
        for share, microbatches in zip(shares, [(0, 1), (2, 3)], strict=True)
    ]
    return form.decide(np.stack(rows))


@pytest.mark.parametrize("is_reproducible", [True, False])
@given(st.lists(st.integers(0, 2**40), min_size=5, max_size=5), st.integers(0, 5))
def test_an_evaluation_does_not_depend_on_the_split_of_the_work(
    is_reproducible: bool, units: list[int], cut: int
) -> None:
    losses: dict[int, int | None] = dict(enumerate(units))
    shares = [dict([*losses.items()][:cut]), dict([*losses.items()][cut:])]
    decision = evaluated(*shares, is_reproducible=is_reproducible)
    assert decision.kind is DecisionKind.COMMIT
    assert decision.record.evaluation_loss == sum(units) / 2**24 / 500
    assert Decision.decode(decision.encode(), generation=GENERATION, step=STEP) == decision


WHOLE: dict[int, int | None] = dict.fromkeys(range(5), 1 << 24)


@pytest.mark.parametrize(
    ("shares", "step", "kind"),
    [
        (({0: 1}, {1: 1, 2: 1, 3: 1}), STEP, DecisionKind.INCOMPLETE),
        ((WHOLE, {4: 1}), STEP, DecisionKind.INCOMPLETE),
        (({}, {}), STEP, DecisionKind.INCOMPLETE),
        ((WHOLE, {}), STEP + 1, DecisionKind.INCOMPLETE),
        (({}, {}), STEP + 1, DecisionKind.COMMIT),
        ((WHOLE | {3: None}, {}), STEP, DecisionKind.OUT_OF_RANGE),
    ],
    ids=["one missing", "one twice", "none", "not asked for", "not due", "not finite"],
)
def test_invariant_1_a_step_that_evaluates_commits_with_the_whole_evaluation_only(
    shares: tuple[dict[int, int | None], ...], step: int, kind: DecisionKind
) -> None:
    decision = evaluated(*shares, step=step)
    assert decision.kind is kind
    assert kind is not DecisionKind.COMMIT or decision.record.evaluation_loss is None


def test_the_closing_step_evaluates_and_trains_no_token() -> None:
    record = evaluated(WHOLE, {}, step=3 * STEP).record
    assert (record.num_tokens, record.evaluation_loss) == (0, 5 / 500)
