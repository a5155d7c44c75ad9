"""The custom schedulers that are connected, and the decisions they are asked for.

Knows nothing of jobs or plans: a question goes out, its answer comes back or the asker learns why
there is none.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Final

from planaria.api.coordinator.v1.scheduler_service_pb2 import Decision, DecisionRequest

_SILENT_SECONDS: Final = 60.0
"""A scheduler that let a deadline pass is asked nothing for so long, unless it answers: one that
hangs delays one decision, and not each of those that a recovery takes."""


class NoAnswerError(Exception):
    """A scheduler did not decide; the message says why, as the end of a sentence about it."""


class SchedulerSession:
    """One connected scheduler: questions to send, and those not yet answered."""

    def __init__(self) -> None:
        self._questions: asyncio.Queue[DecisionRequest | None] = asyncio.Queue()
        self._unanswered: dict[str, asyncio.Future[Decision]] = {}
        self._overdue: set[str] = set()
        self._silent_until = 0.0
        self._ended = False

    async def ask(self, question: DecisionRequest, *, deadline_seconds: float) -> Decision:
        """Return the scheduler's answer.

        Raises:
            NoAnswerError: it is late, or was before, or its session ended first.
        """
        if self._ended:
            raise NoAnswerError("is not connected")
        loop = asyncio.get_running_loop()
        if loop.time() < self._silent_until:
            raise NoAnswerError("has yet to answer an earlier question")
        answer: asyncio.Future[Decision] = loop.create_future()
        self._unanswered[question.decision_id] = answer
        self._questions.put_nowait(question)
        try:
            async with asyncio.timeout(deadline_seconds):
                return await answer
        except TimeoutError:
            self._overdue.add(question.decision_id)
            self._silent_until = loop.time() + _SILENT_SECONDS
            raise NoAnswerError(f"did not answer within {deadline_seconds:g} s") from None
        finally:
            del self._unanswered[question.decision_id]

    def answer(self, decision: Decision) -> None:
        """Take an answer; one that nobody waits for any more only shows that it is there again."""
        self._overdue.discard(decision.decision_id)
        if not self._overdue:
            self._silent_until = 0.0
        waiting = self._unanswered.get(decision.decision_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(decision)

    def end(self) -> None:
        """Send no more questions; a caller that waits for an answer learns that none will come."""
        self._ended = True
        self._questions.put_nowait(None)
        for waiting in self._unanswered.values():
            if not waiting.done():
                waiting.set_exception(NoAnswerError("disconnected before it answered"))

    async def questions(self) -> AsyncIterator[DecisionRequest]:
        """Yield each question to send, until the session ends."""
        while (question := await self._questions.get()) is not None:
            yield question


class SchedulerSessions:
    """The sessions by the schedulers' names."""

    def __init__(self) -> None:
        self._sessions: dict[str, SchedulerSession] = {}
        self._names: set[str] = set()

    @property
    def names(self) -> Collection[str]:
        """Every scheduler that is connected or was since the start."""
        return self._names

    def open(self, name: str) -> SchedulerSession:
        """Register a scheduler; a session of the same name ends."""
        previous = self._sessions.get(name)
        if previous is not None:
            previous.end()
        session = SchedulerSession()
        self._sessions[name] = session
        self._names.add(name)
        return session

    def close(self, name: str, session: SchedulerSession) -> None:
        """Forget a session, unless a newer one has taken its place."""
        session.end()
        if self._sessions.get(name) is session:
            del self._sessions[name]

    def close_all(self) -> None:
        """End every session: the coordinator stops."""
        for name, session in list(self._sessions.items()):
            self.close(name, session)

    async def ask(
        self, name: str, question: DecisionRequest, *, deadline_seconds: float
    ) -> Decision:
        """Return the answer of a scheduler.

        Raises:
            NoAnswerError: it is not connected, late, or its session ended first.
        """
        session = self._sessions.get(name)
        if session is None:
            raise NoAnswerError("is not connected")
        return await session.ask(question, deadline_seconds=deadline_seconds)
