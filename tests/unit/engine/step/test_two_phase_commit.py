"""Attempts one after another in the same groups: each leaves them as empty as it found them.

But for what is left by who calls an attempt off: that is dropped before the next one.

Ranks are threads, groups are mailboxes in memory, the exchange is the real one. Each rank's attempt
is disturbed, or not, at any of the places where a fence or a broken sum can meet it.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import cast

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.fence import Fence, FencedError
from planaria_worker.engine.groups import DataParallelGroup, Groups
from planaria_worker.engine.plan.plan import FollowerAssignment, PipelineAssignment
from planaria_worker.engine.plan.plan_view import PlanView, view_plan
from planaria_worker.engine.step.commit_link import CommitLink
from planaria_worker.engine.step.commit_messages import DecisionKind, LayerVote, Message, VoteFormat
from planaria_worker.engine.step.two_phase_commit import CommitResult, TwoPhaseCommit
from support.memory_groups import MemoryGroup, connect
from unit.engine.plans import plans, untied

MAX_ATTEMPTS = 4


class Event(Enum):
    """What meets a rank in one attempt."""

    NOTHING = auto()
    BROKEN_SUM = auto()
    """Before its vote: it votes `fenced`."""
    FENCED_WITH_ITS_SUMS = auto()
    """Between its sums and the exchange."""
    FENCED_IN_THE_EXCHANGE = auto()
    """Its vote is up, the decision on its way."""
    CALLED_OFF = auto()
    """It knows how the attempt will end, and waits for nobody."""


class CountingGroup(MemoryGroup):
    """A group that says what is left in it."""

    @property
    def num_waiting(self) -> int:
        """Messages that were sent to this rank, and that it has not received."""
        boxes = self._shared.mail.items()
        return sum(box.qsize() for (_, destination), box in boxes if destination == self.rank)


class FenceInTheExchange(Fence):
    """Falls at the last moment."""

    def pass_commit_point(self, generation: int, next_generation: int) -> None:
        self.fence(generation + 1)
        super().pass_commit_point(generation, next_generation)


@dataclass(kw_only=True)
class Rank:
    """One engine, between attempts."""

    view: PlanView
    line: CommitLink
    groups: Groups
    last_ranks: CountingGroup | None = field(default=None)
    num_left: int = 0
    """Attempts that it has called off since the last one that it saw the end of."""

    def attempt(
        self, event: Event, generation: int, step: int, form: VoteFormat
    ) -> CommitResult | None:
        in_exchange = event is Event.FENCED_IN_THE_EXCHANGE
        fence = FenceInTheExchange(generation) if in_exchange else Fence(generation)
        if event is Event.FENCED_WITH_ITS_SUMS:
            fence.fence(generation + 1)
        two_phase_commit = TwoPhaseCommit(
            view=self.view,
            generation=generation,
            vote_format=form,
            commit_link=self.line,
            last_ranks_group=cast(DataParallelGroup, self.last_ranks) if self.last_ranks else None,
            fence=fence,
            device=torch.device("cpu"),
            failpoints=Failpoints(),
        )
        if event is Event.CALLED_OFF:
            two_phase_commit.abort(step)
            if self.last_ranks is not None:
                self.last_ranks.cut()
            return None
        result = two_phase_commit.run(self._vote(event, generation, step, form), step)
        went_across = result.is_committed or (in_exchange and isinstance(result.cause, FencedError))
        if self.last_ranks is not None and not went_across:
            self.last_ranks.cut()  # as an engine does: nobody need wait for it
        return result

    def _vote(self, event: Event, generation: int, step: int, form: VoteFormat) -> Message:
        if event is Event.BROKEN_SUM:
            return form.fenced(generation=generation, step=step)
        whole = LayerVote(squared_norm=1.0, num_counted=form.num_microbatches, in_range=True)
        is_reporting = self.view.is_deciding and not self.view.is_follower
        return form.vote(
            generation=generation,
            step=step,
            mark=0,
            layers=dict.fromkeys(self.view.hosted_layers, whole),
            losses=dict.fromkeys(self.view.pipeline.microbatches, 1) if is_reporting else {},
        )


def ranks(
    pipelines: Sequence[PipelineAssignment],
    followers: Sequence[FollowerAssignment],
    num_layers: int,
    num_microbatches: int,
) -> list[Rank]:
    engines = [place.engine_id for pipeline in pipelines for place in pipeline.stages]
    views = [
        view_plan(
            pipelines,
            engine_id,
            num_layers=num_layers,
            num_microbatches=num_microbatches,
            hosted_layers=untied,
            followers=followers,
        )
        for engine_id in [*engines, *(follower.engine_id for follower in followers)]
    ]
    groups = connect({view.engine_id: view.pipeline_groups for view in views}, CountingGroup)
    return [
        Rank(
            view=view,
            line=CommitLink(
                groups[view.engine_id].links[view.commit_group.name] if view.commit_group else None
            ),
            groups=groups[view.engine_id],
        )
        for view in views
    ]


def num_waiting_for(rank: Rank) -> int:
    return sum(cast(CountingGroup, group).num_waiting for group in rank.groups.all)


def meet_last_ranks(all_ranks: Sequence[Rank]) -> None:
    """Gives the last ranks their group of the newest generation."""
    specs = {rank.view.engine_id: rank.view.last_ranks_group for rank in all_ranks}
    groups = connect({e: [spec] for e, spec in specs.items() if spec is not None}, CountingGroup)
    for rank in all_ranks:
        spec = specs[rank.view.engine_id]
        group = groups[rank.view.engine_id].data_parallel[spec.name] if spec is not None else None
        rank.last_ranks = cast(CountingGroup | None, group)


def expected_passes(all_ranks: Sequence[Rank], events: Sequence[Event]) -> list[bool]:
    """Who passes, by the rules alone."""
    stopping = (Event.BROKEN_SUM, Event.FENCED_WITH_ITS_SUMS)
    for rank, event in zip(all_ranks, events, strict=True):
        if event in (Event.BROKEN_SUM, Event.CALLED_OFF) or (
            rank.view.is_deciding and event in stopping
        ):
            return [False] * len(all_ranks)  # its row does not go across
    lasts = {
        rank.view.row: event
        for rank, event in zip(all_ranks, events, strict=True)
        if rank.view.is_deciding
    }
    return [
        event is Event.NOTHING and lasts[rank.view.row] is Event.NOTHING
        for rank, event in zip(all_ranks, events, strict=True)
    ]


@st.composite
def followers_of(draw: st.DrawFn, num_layers: int) -> list[FollowerAssignment]:
    layers = st.sets(st.integers(0, num_layers - 1), min_size=1)
    return [
        FollowerAssignment(
            engine_id=f"follower-{index}", data_address="", layers=tuple(sorted(draw(layers)))
        )
        for index in range(draw(st.integers(0, 2)))
    ]


@settings(max_examples=60)
@given(plans(), st.data())
def test_every_attempt_sends_one_message_up_and_one_down(
    plan: tuple[list[PipelineAssignment], int, int], data: st.DataObject
) -> None:
    pipelines, num_layers, num_microbatches = plan
    all_ranks = ranks(pipelines, data.draw(followers_of(num_layers)), num_layers, num_microbatches)
    form = VoteFormat(
        num_layers=num_layers,
        num_microbatches=num_microbatches,
        num_tokens=num_microbatches,
        is_reproducible=True,
    )
    step = 0
    events = st.lists(
        st.sampled_from([*Event, *4 * [Event.NOTHING]]),
        min_size=len(all_ranks),
        max_size=len(all_ranks),
    )
    with ThreadPoolExecutor(len(all_ranks)) as threads:
        for generation in range(1, data.draw(st.integers(2, MAX_ATTEMPTS)) + 1):
            meet_last_ranks(all_ranks)
            drawn = data.draw(events)
            running = [
                threads.submit(rank.attempt, event, generation, step, form)
                for rank, event in zip(all_ranks, drawn, strict=True)
            ]
            result = [attempt.result() for attempt in running]
            passes = [one is not None and one.is_committed for one in result]
            assert passes == expected_passes(all_ranks, drawn)
            kinds = {one.decision.kind for one in result if one is not None}
            assert kinds <= {DecisionKind.COMMIT, DecisionKind.FENCED}
            for rank, event in zip(all_ranks, drawn, strict=True):
                is_left = event is Event.CALLED_OFF
                rank.num_left = rank.num_left + 1 if is_left else 0
                unread = rank.num_left * len(
                    {rank.line.next_rank, rank.line.previous_rank} - {None}
                )
                assert num_waiting_for(rank) == unread
            step += any(passes)  # the others are rolled forward
