"""The groups that an engine is in: along its pipeline, and across the pipelines.

Those across are of one generation. Those along the pipeline live as long as the pipeline does.
"""

import threading

from planaria_worker.engine.communication import Communicators, Group


class Links:
    """Holds the groups, so that any thread can shut them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._communicators: Communicators | None = None
        self._pipeline: tuple[Group, ...] = ()

    def begin(self, communicators: Communicators) -> None:
        """Takes up the groups of a generation; those before them have been shut."""
        with self._lock:
            self._communicators = communicators

    def join_pipeline(self, groups: tuple[Group, ...]) -> None:
        """Says which groups are those along the pipeline."""
        with self._lock:
            self._pipeline = groups

    @property
    def is_pipeline_whole(self) -> bool:
        return not any(group.is_shut for group in self._pipeline)

    def shut(self, reason: str) -> None:
        """Ends whatever a thread waits for in any group."""
        with self._lock:
            communicators, pipeline = self._communicators, self._pipeline
        if communicators is not None:
            communicators.shut(reason)
        for group in pipeline:
            group.shut(reason)

    def shut_sums(self, reason: str) -> None:
        """Ends whatever a thread waits for across the pipelines; the pipeline goes on."""
        with self._lock:
            communicators, pipeline = self._communicators, self._pipeline
        if communicators is not None:
            communicators.shut(reason, keeping={group.name for group in pipeline})

    def peer_lost(self, engine_id: str) -> None:
        """Ends the groups that a lost peer was in: they will never carry a message again."""
        with self._lock:
            groups = list(self._pipeline)
            if self._communicators is not None:
                groups += self._communicators.groups.values()
        for group in groups:
            if engine_id in group.members:
                group.shut(f"{engine_id} ended")
