"""Copies, and changes of the plan."""

from unit.mutations.mutation import Mutation

_COPYING = "worker/planaria_worker/engine/layers/copy"
_COPYING_TESTS = "tests/unit/worker_comm/test_copying.py"
_FOLLOWING = "worker/planaria_worker/engine/layers/followed_layers.py"
_FOLLOWING_TESTS = "tests/unit/engine/test_following.py"
_TRAINING = "worker/planaria_worker/engine/step/training_loop.py"
_TRAINER = "worker/planaria_worker/engine/step/training_thread.py"
_COMMITTED_IN_COPIES = (
    "tests/integration/engine/test_checkpoint_copies.py"
    "::test_copies_that_take_long_hold_up_no_answer_to_a_commit"
)
_FENCED_IN_COPIES = (
    "tests/integration/engine/test_checkpoint_copies.py"
    "::test_copies_that_take_long_hold_up_no_report"
)
_HALTED_IN_COPIES = (
    "tests/unit/engine/test_training_loop.py"
    "::test_who_is_halted_while_it_copies_for_a_checkpoint_takes_no_other_place"
)

MUTATIONS = (
    Mutation(
        guard="a source looks at its version again behind every chunk",
        path=f"{_COPYING}/server.py",
        lines="return self._source.version(layer) == version",
        without="return True",
        seen_by=(f"{_COPYING_TESTS}::test_a_commit_in_the_middle_is_noticed",),
    ),
    Mutation(
        guard="what arrives has the source's SHA-256",
        path=f"{_COPYING}/transfer.py",
        lines=(
            "    if not hmac.compare_digest(\n"
            "        wire.receive_exactly(connection, wire.DIGEST_BYTES), digest.digest()\n"
            "    ):\n"
        ),
        without="    if not wire.receive_exactly(connection, wire.DIGEST_BYTES):\n",
        seen_by=(f"{_COPYING_TESTS}::test_what_is_broken_or_cut_short_is_refused",),
    ),
    Mutation(
        guard="a late copy is not installed",
        path="worker/planaria_worker/engine/recovery/fence.py",
        lines=(
            "            if generation < self._newest:\n"
            "                raise StaleGenerationError(generation, self._newest)\n"
            "            return change()\n"
        ),
        without="            return change()\n",
        seen_by=("tests/unit/engine/test_fence.py::test_a_late_copy_is_not_installed",),
    ),
    Mutation(
        guard="a late copy is not installed",
        path="worker/planaria_worker/engine/layers/layer_tasks.py",
        lines="self.fence.install(generation, lambda: self.store.install(states, version))",
        without="self.store.install(states, version)",
        seen_by=(
            "tests/unit/engine/test_state.py"
            "::test_a_copy_that_is_complete_behind_a_fence_is_not_installed",
        ),
    ),
    Mutation(
        guard="what a follower is sent first is of one version",
        path=f"{_COPYING}/stream.py",
        lines="source.version(layer) == version:",
        without="source.version(layer) is not None:",
        seen_by=(
            "tests/unit/worker_comm/test_following_peers.py"
            "::test_a_step_committed_while_a_layer_is_read_is_in_it_or_behind_it",
        ),
    ),
    Mutation(
        guard="a follower applies no step twice, and leaves none out",
        path=_FOLLOWING,
        lines="if record.step == version:",
        without="if True:",
        seen_by=(
            f"{_FOLLOWING_TESTS}::test_a_step_that_a_layer_was_sent_with_is_not_applied_again",
        ),
    ),
    Mutation(
        guard="a follower applies no step twice, and leaves none out",
        path=_FOLLOWING,
        lines="if version is None or record.step > version:",
        without="if version is None:",
        seen_by=(f"{_FOLLOWING_TESTS}::test_a_step_is_never_left_out",),
    ),
    Mutation(
        guard="a checkpoint that another engine has sealed meanwhile is sealed",
        path="worker/planaria_worker/engine/layers/checkpoint/seal.py",
        lines="        if not _is_sealed(final, manifest.job_id):\n            raise\n",
        without="        raise\n",
        seen_by=("tests/unit/engine/test_checkpointing.py::test_somebody_else_seals_it_meanwhile",),
    ),
    Mutation(
        guard="the copies of a checkpoint are progress",
        path="worker/planaria_worker/engine/layers/checkpoint/checkpointer.py",
        lines="                advanced()\n",
        without="",
        seen_by=(
            "tests/unit/engine/test_checkpoint_writer.py"
            "::test_the_copies_of_a_large_stage_are_progress",
        ),
    ),
    Mutation(
        guard="copies for a checkpoint hold up no report of a loss",
        path=_TRAINING,
        lines="with self._around.fence.computing():",
        without="if True:",
        seen_by=(_HALTED_IN_COPIES,),
    ),
    Mutation(
        guard="copies for a checkpoint hold up no report of a loss",
        path=_TRAINING,
        lines=" and not place.halt.is_set():",
        without=":",
        seen_by=(_HALTED_IN_COPIES,),
    ),
    Mutation(
        guard="copies for a checkpoint hold up no report of a loss",
        path="worker/planaria_worker/engine/recovery/fence.py",
        lines="waiting, self._when_halted = self._when_halted, []\n        try:",
        without="waiting: list[Callable[[], None]] = []\n        try:",
        seen_by=(
            "tests/unit/engine/test_fence.py"
            "::test_who_waits_for_a_halted_place_is_called_where_copies_begin",
        ),
    ),
    Mutation(
        guard="copies for a checkpoint hold up no report of a loss",
        path="worker/planaria_worker/engine/process/directives.py",
        lines="self._fence.when_settled if goes_on else self._fence.when_halted",
        without="self._fence.when_settled if goes_on else self._fence.when_idle",
        seen_by=(f"{_FENCED_IN_COPIES}[all_stop]",),
    ),
    Mutation(
        guard="who rolls forward answers, and can be fenced, before it copies for a checkpoint",
        path=_TRAINER,
        lines=(
            "                answer([layer for layer in held if held[layer] != version])\n"
            "                self._checkpointer.take(version, to_write, self._loop.note_copy)\n"
        ),
        without=(
            "                self._checkpointer.take(version, to_write, self._loop.note_copy)\n"
            "                answer([layer for layer in held if held[layer] != version])\n"
        ),
        seen_by=(_COMMITTED_IN_COPIES,),
    ),
    Mutation(
        guard="who rolls forward answers, and can be fenced, before it copies for a checkpoint",
        path=_TRAINER,
        lines="with self._fence.computing():",
        without="if True:",
        seen_by=(_COMMITTED_IN_COPIES,),
    ),
    Mutation(
        guard="who still copies for a checkpoint may take its place late",
        path="services/coordinator/planaria_coordinator/domain/recovery/activation.py",
        lines="return run.requirements.checkpoint_deadline_seconds if copies else 0.0",
        without="return 0.0",
        seen_by=(
            "tests/unit/coordinator/test_checkpoints.py"
            "::test_who_copies_for_a_checkpoint_may_take_its_place_late",
        ),
    ),
    Mutation(
        guard="a follower waits as long as the passes of others take",
        path="worker/planaria_worker/engine/plan/activation.py",
        lines="self.operation_timeout_seconds, activation.rebuild_timeout_seconds",
        without="self.operation_timeout_seconds, 0",
        seen_by=(
            "tests/unit/engine/test_activation.py"
            "::test_a_follower_waits_as_long_as_the_passes_of_others_take",
        ),
    ),
    Mutation(
        guard="who is fenced while it copies for a checkpoint reports the step",
        path=_TRAINING,
        lines=(
            "        if place.view.is_last:\n"
            "            self._teller.step_noted(record)  # for a fence within the copies\n"
            "        self._around.fence.settle()\n"
            "        with self._around.fence.computing():\n"
            "            self._checkpointer.take(record.step + 1, to_write, self.note_copy)\n"
        ),
        without=(
            "        self._around.fence.settle()\n"
            "        with self._around.fence.computing():\n"
            "            self._checkpointer.take(record.step + 1, to_write, self.note_copy)\n"
            "        if place.view.is_last:\n"
            "            self._teller.step_noted(record)\n"
        ),
        seen_by=(
            f"{_FENCED_IN_COPIES}[all_stop]",
            "tests/integration/engine/test_checkpoint_copies.py"
            "::test_a_follower_that_is_fenced_while_it_copies_reports_the_step",
        ),
    ),
)
