"""What happens to a job, as it happens: events, progress in between, the figures of recoveries."""

import asyncio
from collections.abc import Callable

from rich.text import Text

from planaria.aio import AsyncClient
from planaria.cli.output import local_time, state_text
from planaria.errors import UnavailableError
from planaria.models import Event, Job, Recovery

Say = Callable[[Text], None]

_POLL_SECONDS = 0.5
_PROGRESS_LINES = 20
"""About so many lines of progress in a whole job, however long it is."""


def event_text(event: Event) -> Text:
    """Return one line for an event."""
    return Text.assemble(
        (local_time(event.time), "dim"), "  ", (event.message or event.type, _style(event.type))
    )


def recovery_text(recovery: Recovery) -> Text:
    """Return one line for what a recovery moved and repeated; its event has the figures."""
    copied = f"copied {recovery.copied_bytes / 1e6:.1f} MB between engines"
    redone = f"computed {recovery.redone_microbatches} microbatches again"
    return Text(f"          {copied}, {redone}", style="dim")


def _style(event_type: str) -> str:
    words = set(event_type.split("_"))
    if words & {"lost", "failed", "exited", "fault", "overruled", "refused", "skipped"}:
        return "red"
    if words & {"recovery", "transition", "drained", "draining", "paused", "waiting"}:
        return "yellow"
    if words & {"succeeded", "finished", "joined", "resumed", "ready"}:
        return "green"
    return ""


class Progress:
    """Decides when a job's progress is worth a line."""

    def __init__(self) -> None:
        self._state = ""
        self._next_step = 0

    def line(self, job: Job) -> Text | None:
        """Return a line when the state changed, or enough steps were done since the last."""
        if job.state == self._state and job.step < self._next_step:
            return None
        self._state = job.state
        self._next_step = job.step + max(1, job.steps // _PROGRESS_LINES)
        facts = [f"step {job.step}/{job.steps}"]
        if job.loss is not None:
            facts.append(f"loss {job.loss:.4f}")
        if job.evaluation_loss is not None:
            facts.append(f"evaluation {job.evaluation_loss:.4f}")
        if job.num_skipped_steps:
            facts.append(f"{job.num_skipped_steps} skipped")
        if job.tokens_per_second:
            facts.append(f"{job.tokens_per_second:,.0f} tokens/s")
        return Text.assemble(state_text(job.state), "  ", "  ".join(facts))


class JobReport:
    """Reports what happens to one job until it ends."""

    def __init__(self, client: AsyncClient, job_id: str, say: Say) -> None:
        self._client = client
        self._job_id = job_id
        self._say = say
        self._sequence = 0
        self._progress = Progress()

    async def tell(self) -> Job:
        """Say each event as it happens and the progress in between; return the job as it ended.

        Raises:
            PlanariaError: the job does not exist, or the coordinator stays away.
        """
        events = asyncio.create_task(self._tell_events(follow=True))
        try:
            job = await self._tell_progress(events)
        finally:
            events.cancel()
            await asyncio.wait([events])
        await self._tell_events(follow=False)
        return job

    async def _tell_events(self, *, follow: bool) -> None:
        happened = self._client.events(
            job_id=self._job_id, after_sequence=self._sequence, follow=follow
        )
        async for event in happened:
            self._sequence = event.sequence
            self._say(event_text(event))
            if event.type == "recovery_finished":
                await self._tell_recovery(event.generation)

    async def _tell_recovery(self, generation: int) -> None:
        for recovery in await self._client.job_recoveries(self._job_id):
            if recovery.generation == generation:
                self._say(recovery_text(recovery))

    async def _tell_progress(self, events: asyncio.Task[None]) -> Job:
        while True:
            try:
                job = await self._client.get_job(self._job_id)
            except UnavailableError:
                if events.done():  # it has had enough of reconnecting, so we have
                    raise
            else:
                line = self._progress.line(job)
                if line is not None:
                    self._say(line)
                if job.is_done:
                    return job
            await asyncio.wait([events], timeout=_POLL_SECONDS)
            if events.done():
                events.result()
