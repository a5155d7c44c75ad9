"""Remove the guards of layers: copies, layers that follow others, checkpoints."""

import hmac
import shutil
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
from torch import Tensor

from planaria_worker.engine.layers.checkpoint import layout, seal
from planaria_worker.engine.layers.copy import CommittedSum, LayerSource, chunks, stream
from planaria_worker.engine.recovery.followed_layers import FollowedLayers
from planaria_worker.engine.step.training_step import apply_sum
from unit.guards.guard import swap


def send_torn_copies(patch: pytest.MonkeyPatch) -> None:
    send = chunks.send_tensors

    def send_to_the_end(
        connection: socket.socket, tensors: Iterable[Tensor], *, goes_on: Callable[[], bool]
    ) -> bool:
        return send(connection, tensors, goes_on=lambda: goes_on() or True)

    swap(patch, send, send_to_the_end)


def believe_any_checksum(patch: pytest.MonkeyPatch) -> None:
    swap(patch, hmac.compare_digest, lambda *_: True)


def send_layers_of_two_versions(patch: pytest.MonkeyPatch) -> None:
    def read(source: LayerSource, layer: int) -> tuple[int, Mapping[str, Tensor]] | None:
        version = source.version(layer)
        tensors = {name: t.detach().clone() for name, t in source.tensors(layer).items()}
        return version or 0, tensors

    swap(patch, stream._read, read)


def apply_followed_steps_again(patch: pytest.MonkeyPatch) -> None:

    def take_sum(self: FollowedLayers, committed: CommittedSum) -> None:
        layer, record = committed.layer, committed.record
        state = self._begin_change(layer)
        apply_sum(self._job, state, committed.total.to(state.parameters.device), record)
        self._end_change(layer, record.step + 1, record)

    swap(patch, FollowedLayers.take_sum, take_sum)


def believe_a_folder_without_a_manifest(patch: pytest.MonkeyPatch) -> None:
    swap(patch, layout.complete_checkpoints, lambda root: layout._folders(root, partial=False))


def remove_checkpoints_in_place(patch: pytest.MonkeyPatch) -> None:
    def remove(root: Path, version: int) -> None:
        shutil.rmtree(layout.complete_folder(root, version))

    swap(patch, layout.remove_complete, remove)


def seal_without_looking(patch: pytest.MonkeyPatch) -> None:
    swap(patch, seal._verify, lambda partial, manifest: None)


def seal_once_only(patch: pytest.MonkeyPatch) -> None:
    """Whether somebody else has sealed it meanwhile is not looked at."""
    swap(patch, seal._is_sealed, lambda final, job_id: False)
