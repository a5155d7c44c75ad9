"""Following server-sent events: the decoder, and what to do when the stream breaks."""

import json
import random
from typing import Any

from planaria.errors import PlanariaError, UnavailableError
from planaria.models import Event

READ_TIMEOUT_SECONDS = 30.0
"""The server sends a comment every few seconds: silence for so long means that it is gone."""

_MAX_PAUSE_SECONDS = 2.0


class Decoder:
    """Puts the lines of a text/event-stream together to events."""

    def __init__(self) -> None:
        self._data: list[str] = []

    def feed(self, line: str) -> Event | None:
        """Take one line without its end; return an event when it is complete."""
        if line.startswith("data:"):
            self._data.append(line[5:].removeprefix(" "))
        elif not line and self._data:
            document: Any = json.loads("\n".join(self._data))
            self._data.clear()
            return Event.model_validate(document)
        return None


class Follower:
    """Remembers how far a stream was read, and how patient to be when it breaks."""

    def __init__(self, *, after_sequence: int, attempts: int) -> None:
        self._sequence = after_sequence
        self._attempts = attempts
        self._failures = 0

    def headers(self) -> dict[str, str]:
        return {"Accept": "text/event-stream", "Last-Event-ID": str(self._sequence)}

    def saw(self, event: Event) -> bool:
        """Note an event; False when it was seen before."""
        self._failures = 0
        if event.sequence <= self._sequence:
            return False
        self._sequence = event.sequence
        return True

    def pause_after(self, error: PlanariaError) -> float:
        """Return for how many seconds to wait before the next attempt.

        Raises:
            PlanariaError: `error`, when another attempt cannot help or there were enough.
        """
        self._failures += 1
        if not isinstance(error, UnavailableError) or self._failures > self._attempts:
            raise error
        longest = min(_MAX_PAUSE_SECONDS, 0.1 * 2.0**self._failures)
        return random.uniform(longest / 2, longest)
