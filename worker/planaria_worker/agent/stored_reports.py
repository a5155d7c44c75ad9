"""Which reports of engines are stored, once the coordinator has said which of the agent are."""

from collections import deque
from dataclasses import dataclass

from planaria_worker.agent.engine_handle import EngineHandle
from planaria_worker.delivery import MAX_UNACKNOWLEDGED


@dataclass(frozen=True, slots=True)
class _Passed:
    number: int
    handle: EngineHandle
    engine_number: int


class StoredReports:
    """Passes on to the engines that they need not keep their reports any longer.

    A newer word to an engine covers the older ones, so of very many only the last are kept.
    """

    def __init__(self) -> None:
        self._passed: deque[_Passed] = deque(maxlen=MAX_UNACKNOWLEDGED)

    def note(self, number: int, handle: EngineHandle, engine_number: int) -> None:
        """An engine's report goes on under a number of the agent."""
        self._passed.append(_Passed(number, handle, engine_number))

    def acknowledge(self, number: int) -> None:
        """The agent's reports up to this one are stored."""
        newest: dict[EngineHandle, int] = {}
        while self._passed and self._passed[0].number <= number:
            passed = self._passed.popleft()
            newest[passed.handle] = passed.engine_number
        for handle, engine_number in newest.items():
            handle.reports_stored(engine_number)
