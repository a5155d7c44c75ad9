"""Every second of a job has a name [9]: its wall-clock time by activity."""

from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum


class Activity(StrEnum):
    """What a job's wall-clock time goes to; at every moment exactly one."""

    PRODUCTIVE = "productive"
    STARTING = "starting"
    DETECT = "detect"
    QUIESCE = "quiesce"
    PLAN = "plan"
    COPY = "copy"
    REBUILD = "rebuild"
    REDONE = "redone"
    WAITING = "waiting"
    PAUSED = "paused"
    FINISHING = "finishing"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAccount:
    """Closed time by name, and the activity that has been going on since some moment."""

    current: Activity
    since: datetime
    seconds: dict[Activity, float] = field(default_factory=dict)
    closed: bool = False
    """After the job's end no time is added."""

    def switch(self, activity: Activity, at: datetime) -> "TimeAccount":
        """Let another activity begin; a moment before the current one's start counts as its start.

        Engines' clocks and ours may differ: time is never counted twice nor backwards.
        """
        if self.closed:
            return self
        at = max(at, self.since)
        return replace(self, current=activity, since=at, seconds=self.totals(at))

    def move(self, source: Activity, target: Activity, seconds: float) -> "TimeAccount":
        """Rename closed time: at most what its old name has."""
        seconds = max(0.0, min(seconds, self.seconds.get(source, 0.0)))
        if not seconds:
            return self
        moved = dict(self.seconds)
        moved[source] -= seconds
        moved[target] = moved.get(target, 0.0) + seconds
        return replace(self, seconds=moved)

    def close(self, at: datetime) -> "TimeAccount":
        """End the job's time."""
        return replace(self.switch(self.current, at), closed=True)

    def totals(self, at: datetime) -> dict[Activity, float]:
        """Seconds by name up to a moment; they add up to the time since the account was opened."""
        totals = dict(self.seconds)
        if not self.closed:
            running = max(0.0, (at - self.since).total_seconds())
            totals[self.current] = totals.get(self.current, 0.0) + running
        return totals

    def goodput(self, at: datetime, start_time: datetime | None) -> float | None:
        """Productive share of the time since the first step began; None before that."""
        if start_time is None:
            return None
        end = self.since if self.closed else at
        total = (end - start_time).total_seconds()
        productive = self.totals(at).get(Activity.PRODUCTIVE, 0.0)
        return min(1.0, productive / total) if total > 0 else None
