"""Remove the guards of layers: copies, layers that follow others, checkpoints."""

import hmac
import shutil
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
from torch import Tensor

from planaria_worker.engine.layers.checkpoint import CheckpointError, layout, seal
from planaria_worker.engine.layers.copy import CommittedSum, LayerSource, chunks, stream
from planaria_worker.engine.recovery.followed_layers import FollowedLayers
from planaria_worker.engine.step.training_step import apply_sum
from unit.engine.layers import test_checkpointing, test_following
from unit.guards.guard import guard, swap
from unit.worker_comm import test_copying, test_following_peers


@guard(
    "a copy that a commit overtakes is taken back",
    test_copying.test_a_commit_in_the_middle_is_noticed,
)
def send_torn_copies(patch: pytest.MonkeyPatch) -> None:
    send = chunks.send_tensors

    def send_to_the_end(
        connection: socket.socket, tensors: Iterable[Tensor], *, goes_on: Callable[[], bool]
    ) -> bool:
        return send(connection, tensors, goes_on=lambda: goes_on() or True)

    swap(patch, send, send_to_the_end)


@guard(
    "what arrives has the source's SHA-256",
    test_copying.test_a_damaged_or_truncated_copy_is_refused,
)
def believe_any_checksum(patch: pytest.MonkeyPatch) -> None:
    swap(patch, hmac.compare_digest, lambda *_: True)


@guard(
    "a follower is first sent a layer of one version",
    test_following_peers.test_a_step_committed_while_a_layer_is_read_is_in_it_or_sent_after_it,
    is_slow=True,
)
def send_layers_of_two_versions(patch: pytest.MonkeyPatch) -> None:
    def read(source: LayerSource, layer: int) -> tuple[int, Mapping[str, Tensor]] | None:
        version = source.version(layer)
        tensors = {name: t.detach().clone() for name, t in source.tensors(layer).items()}
        return version or 0, tensors

    swap(patch, stream._read, read)


@guard(
    "a follower applies no step twice",
    test_following.test_a_step_that_a_layer_was_sent_with_is_not_applied_again,
)
def apply_followed_steps_again(patch: pytest.MonkeyPatch) -> None:

    def take_sum(self: FollowedLayers, committed: CommittedSum) -> None:
        layer, record = committed.layer, committed.record
        apply_sum(self._job, self._begin_change(layer), committed.total, record)
        self._end_change(layer, record.step + 1, record)

    swap(patch, FollowedLayers.take_sum, take_sum)


@guard(
    "a checkpoint is complete only with its manifest, which comes last",
    test_checkpointing.test_a_folder_without_its_manifest_is_no_checkpoint,
)
def believe_a_folder_without_a_manifest(patch: pytest.MonkeyPatch) -> None:
    swap(patch, layout.complete_checkpoints, lambda root: layout._folders(root, partial=False))


@guard(
    "a checkpoint is renamed before it is removed",
    test_checkpointing.test_an_interrupted_removal_leaves_nothing_that_looks_complete,
)
def remove_checkpoints_in_place(patch: pytest.MonkeyPatch) -> None:
    def remove(root: Path, version: int) -> None:
        shutil.rmtree(layout.complete_folder(root, version))

    swap(patch, layout.remove_complete, remove)


@guard(
    "a checkpoint is sealed when every file is what its writer said",
    test_checkpointing.test_a_file_that_others_wrote_and_this_node_does_not_see,
)
def seal_without_looking(patch: pytest.MonkeyPatch) -> None:
    swap(patch, seal._verify, lambda partial, manifest: None)


@guard(
    "a checkpoint that another engine has sealed meanwhile is sealed",
    test_checkpointing.test_another_engine_may_seal_first,
    raises=(CheckpointError,),
)
def seal_once_only(patch: pytest.MonkeyPatch) -> None:
    """Whether somebody else has sealed it meanwhile is not looked at."""
    swap(patch, seal._is_sealed, lambda final, job_id: False)
