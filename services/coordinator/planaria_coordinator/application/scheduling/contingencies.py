"""Plans for the loss of every single node, asked for while training runs: planning.md 5.

They are kept in memory with the plan that they follow: a restarted coordinator asks once more.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.logging import get_logger
from planaria_coordinator.application.ports import Planner
from planaria_coordinator.domain.placement.planner_query import (
    LayerProfile,
    PlanAnswer,
    PlanQuery,
    Problem,
)

_HORIZON_FACTOR = 2.0
"""How far the expected time to the next change may be from what the plans were made for."""

log = get_logger("contingencies")


class Contingencies:
    """The next plan for each node that a job may lose.

    Args:
        job_id: the job, for the log.
        planner: where plans come from.
        retry_seconds: how long to wait before planners that did not answer are asked again.
    """

    def __init__(self, *, job_id: str, planner: Planner, retry_seconds: float) -> None:
        self._job_id = job_id
        self._planner = planner
        self._retry_seconds = retry_seconds
        self._present: PlanQuery | None = None
        self._answers: dict[str, PlanAnswer] = {}
        self._asking: asyncio.Task[None] | None = None

    def ask(self, present: PlanQuery) -> None:
        """See to it that there are plans for every single loss from the present plan.

        Args:
            present: what would be asked about the running plan with every node there.
        """
        is_known = self._present is not None and _is_alike(present, self._present)
        if is_known and not self._was_stopped:
            return
        self.stop()
        if not is_known:
            self._present, self._answers = present, {}
        self._asking = asyncio.create_task(self._ask(present), name=f"ahead {self._job_id}")

    def stop(self) -> None:
        """Ask no further; what is known already stays."""
        if self._asking is not None:
            self._asking.cancel()

    @property
    def _was_stopped(self) -> bool:
        """Before it was through."""
        return self._asking is not None and self._asking.cancelling() > 0

    def answer_to(self, query: PlanQuery) -> PlanAnswer | None:
        """Return the plan that was made for just this loss, when there is one."""
        present = self._present
        if present is None:
            return None
        lost = [node.node_id for node in present.nodes if node not in query.nodes]
        if len(lost) != 1 or not _is_alike(query, _without(present, lost[0])):
            return None
        return self._answers.get(lost[0])

    async def _ask(self, present: PlanQuery) -> None:
        while True:
            try:
                async for node_id, answer in self._planner.contingency_plans(present):
                    self._answers[node_id] = answer
            except PlanariaError as error:
                if error.reason is not ErrorReason.UNAVAILABLE:
                    log.info("no_plans_ahead", job_id=self._job_id, cause=error.message)
                    return
            except Exception:  # a defect: losses are planned for when they come
                log.exception("no_plans_ahead", job_id=self._job_id)
                return
            else:
                log.info("planned_ahead", job_id=self._job_id, num_plans=len(self._answers))
                return
            await asyncio.sleep(self._retry_seconds)


def _without(present: PlanQuery, node_id: str) -> PlanQuery:
    return replace(
        present,
        nodes=tuple(node for node in present.nodes if node.node_id != node_id),
        holdings=tuple(h for h in present.holdings if h.node_id != node_id),
    )


def _is_alike(query: PlanQuery, other: PlanQuery) -> bool:
    """Whether the answer to one question is good for another.

    What layers were measured to take moves a little with every engine that comes or goes, and the
    expected time to the next change with the clock: no plan is made again for that.
    """
    horizons = sorted((query.horizon_seconds, other.horizon_seconds))
    return horizons[1] <= _HORIZON_FACTOR * horizons[0] and _fixed(query) == _fixed(other)


def _fixed(query: PlanQuery) -> PlanQuery:
    profile = query.problem.profile
    problem: Problem = replace(
        query.problem,
        profile=replace(
            profile,
            hardware=replace(profile.hardware, node_kinds=()),
            layers=_untimed(profile.layers),
        ),
    )
    return replace(query, problem=problem, horizon_seconds=0.0)


def _untimed(layers: Sequence[LayerProfile]) -> tuple[LayerProfile, ...]:
    return tuple(replace(layer, forward_seconds=0.0, backward_seconds=0.0) for layer in layers)
