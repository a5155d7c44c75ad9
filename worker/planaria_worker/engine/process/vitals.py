"""What the engine is doing: written by the training thread, read by everybody at any moment."""

from collections.abc import Callable

from planaria.api.worker.v1.report_pb2 import EngineState


class Vitals:
    """The parts of a snapshot that change.

    Attributes:
        state: what the engine is doing; changed by `enter`.
        committed_steps: also the version of its layers and the index of the step in flight.
        data_address: where peers fetch layers.
        store_address: its rendezvous store.
        on_change: called when the state has changed, from the thread that changed it.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.state = EngineState.ENGINE_STATE_STARTING
        self.committed_steps = 0
        self.data_address = ""
        self.store_address = ""
        self._on_change = on_change

    def enter(self, state: EngineState.ValueType) -> None:
        """Changes the state."""
        self.state = state
        self._on_change()
