"""An engine without one of its guards, to see that the tests of the guard fail.

PLANARIA_TEST_MUTANT=one_phase python -m support.mutant_engine --config FILE
"""

from collections.abc import Callable
from typing import Any

from planaria_worker.engine import agreement, fence
from planaria_worker.engine.commit import CommitRecord
from planaria_worker.engine.exchange import Message, Outcome, Verdict


def one_phase() -> None:
    """Whoever has its own sums commits, without hearing whether the others have theirs."""

    def run(self: Any, claim: Message, step: int) -> agreement.Agreed:
        record = CommitRecord(
            step=step,
            generation=self._generation,
            gradient_norm=0.0,  # right as long as nothing is clipped
            loss=0.0,
            num_tokens=self._format.num_tokens,
        )
        outcome = Outcome(verdict=Verdict.COMMIT, layer=-1, park_mark=0, record=record)
        return agreement.Agreed(
            outcome=outcome, is_passed=True, parks=False, cause=None, broken=None
        )

    agreement.Agreement.run = run  # type: ignore[method-assign]


def no_generation_check() -> None:
    """Directives of older generations are obeyed, and fences hold nobody back."""

    def see(self: Any, generation: int) -> None:
        self._newest = max(self._newest, generation)

    fence.Fence._see = see  # type: ignore[method-assign]
    fence.Fence.check = lambda self, generation: None  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    mutant.__name__: mutant for mutant in (one_phase, no_generation_check)
}
