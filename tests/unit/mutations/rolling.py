"""Groups that outlive a generation, deaths that are noticed, and rolling forward."""

from unit.mutations.mutation import Mutation

_PRESENCE = "worker/planaria_worker/engine/groups/liveness_beacon.py"
_PRESENCE_TESTS = "tests/integration/worker_comm/test_presence.py"
_GROUP = "worker/planaria_worker/engine/groups/group.py"
_GROUP_TESTS = "tests/unit/worker_comm/test_group.py"
_LINKS = "worker/planaria_worker/engine/groups/current_groups.py"
_LINKS_TESTS = "tests/unit/engine/test_links.py"
_FENCE = "worker/planaria_worker/engine/recovery/fence.py"
_FENCE_TESTS = "tests/unit/engine/test_fence.py"
_COMMIT = "worker/planaria_worker/engine/step/commit_record.py"
_COMMIT_TESTS = "tests/unit/engine/test_commit.py"
_STATE_TESTS = "tests/unit/engine/test_state.py"
_IN_STEP_TESTS = "tests/integration/engine/test_in_step.py"

_DEATHS = (
    Mutation(
        guard="what peers watch is in a table of files that is closed before memory is freed",
        path=_PRESENCE,
        lines="if _syscall(_SYS_CLOSE_RANGE, receiver + 1, _LAST_DESCRIPTOR, flags) == 0:",
        without="if False:",
        seen_by=(
            f"{_PRESENCE_TESTS}"
            "::test_one_of_two_connections_of_a_large_process_ends_before_its_memory_is_freed",
        ),
    ),
    Mutation(
        guard="nothing else is in that table",
        path=_PRESENCE,
        lines="        _syscall(_SYS_CLOSE_RANGE, 0, receiver - 1, 0)\n",
        without="",
        seen_by=(f"{_PRESENCE_TESTS}::test_nothing_else_is_open_in_the_thread",),
    ),
    Mutation(
        guard="nothing else is in that table",
        path=_PRESENCE,
        lines="_SYS_CLOSE_RANGE, receiver + 1, _LAST_DESCRIPTOR, flags",
        without="_SYS_CLOSE_RANGE, _LAST_DESCRIPTOR, _LAST_DESCRIPTOR, flags",
        seen_by=(f"{_PRESENCE_TESTS}::test_nothing_else_is_open_in_the_thread",),
    ),
)

_GROUPS = (
    Mutation(
        guard="a group with something under way is not set aside",
        path=_GROUP,
        lines="if not self._shut.is_set() and not self._num_under_way:",
        without="if not self._shut.is_set():",
        seen_by=(f"{_GROUP_TESTS}::TestSetAside::test_not_while_something_is_under_way",),
    ),
    Mutation(
        guard="a group with something under way is not set aside",
        path=_GROUP,
        lines=(
            "        if not self._launching.acquire(blocking=False):\n"
            "            return False\n"
            "        try:\n"
            "            with self._lock:\n"
            "                if not self._shut.is_set() and not self._num_under_way:\n"
            "                    self._is_aside = True\n"
            "                return self._is_aside and not self._shut.is_set()\n"
            "        finally:\n"
            "            self._launching.release()\n"
        ),
        without=(
            "        with self._lock:\n"
            "            if not self._shut.is_set() and not self._num_under_way:\n"
            "                self._is_aside = True\n"
            "            return self._is_aside and not self._shut.is_set()\n"
        ),
        seen_by=(f"{_GROUP_TESTS}::TestSetAside::test_not_while_something_starts",),
    ),
    Mutation(
        guard="a group for small sums is not taken up for gradients",
        path=_LINKS,
        lines=" and group.is_brief == spec.is_brief",
        without="",
        seen_by=(
            f"{_LINKS_TESTS}::TestSetAside"
            "::test_a_group_for_small_sums_is_not_taken_up_for_gradients",
        ),
    ),
    Mutation(
        guard="who held a group before cannot use or end it any more",
        path=_GROUP,
        lines=(
            '            self._reason = "it belongs to a later generation"\n'
            "            self._shut.set()\n"
        ),
        without=(
            "            self._backend, self._is_aside, self.name = backend, False, name\n"
            "            return self\n"
        ),
        seen_by=(
            f"{_GROUP_TESTS}::TestSetAside::test_whoever_still_has_it_can_do_nothing_with_it",
        ),
    ),
    Mutation(
        guard="a group is kept only where all its members name it",
        path="services/coordinator/planaria_coordinator/domain/recovery/activation.py",
        lines=" if times == group.size",
        without="",
        seen_by=(
            "tests/unit/coordinator/test_who_keeps_the_step.py"
            "::test_a_group_is_kept_where_all_its_members_name_it",
        ),
    ),
    Mutation(
        guard=(
            "groups of a later generation are not ended by who leaves the pass in which it was "
            "halted"
        ),
        path="worker/planaria_worker/engine/step/training_loop.py",
        lines="if not place.halt.is_set():",
        without="if True:",
        seen_by=(
            f"{_IN_STEP_TESTS}"
            "::test_the_wounded_report_and_build_groups_while_their_last_pass_goes_on",
        ),
    ),
    Mutation(
        guard=("who was halted reports within a pass only, not between two, where it may commit"),
        path=_FENCE,
        lines="if self._num_tasks and not self._is_computing:",
        without="if False:",
        seen_by=(
            f"{_FENCE_TESTS}::test_who_waits_for_a_halted_place_is_called_within_its_last_pass",
        ),
    ),
    Mutation(
        guard="an Activate with a group to be kept that was lost is accepted",
        path=_LINKS,
        lines='communicators.shut(f"a group that was to be kept is lost: {loss}")',
        without="raise loss",
        seen_by=(
            f"{_LINKS_TESTS}::TestSetAside::test_what_was_lost_meanwhile_ends_the_new_groups",
            f"{_IN_STEP_TESTS}"
            "::test_a_kept_group_that_is_lost_ahead_of_the_plan_costs_no_microbatch",
        ),
    ),
)

_ROLLING_FORWARD = (
    Mutation(
        guard="only the very sums of a record are applied: its step, its generation",
        path=_COMMIT,
        lines="if kept == KeptSums(step=record.step, generation=record.generation):",
        without="if kept is not None and kept.generation == record.generation:",
        seen_by=(f"{_COMMIT_TESTS}::test_what_a_record_asks_for",),
    ),
    Mutation(
        guard="only the very sums of a record are applied: its step, its generation",
        path=_COMMIT,
        lines="if kept == KeptSums(step=record.step, generation=record.generation):",
        without="if kept is not None and kept.step == record.step:",
        seen_by=(f"{_COMMIT_TESTS}::test_what_a_record_asks_for",),
    ),
    Mutation(
        guard="a layer that has the step already is left alone",
        path="worker/planaria_worker/engine/step/training_step.py",
        lines="if store.version(layer) == record.step:",
        without="if True:",
        seen_by=(f"{_STATE_TESTS}::test_invariant_2_a_step_is_applied_to_each_layer_once",),
    ),
    Mutation(
        guard="a layer that is being changed is nobody's replica",
        path="worker/planaria_worker/engine/layers/layer_store.py",
        lines="        self._versions[layer] = None\n        yield self._states[layer]\n",
        without="        yield self._states[layer]\n",
        seen_by=(f"{_STATE_TESTS}::test_a_layer_that_is_being_changed_is_not_held",),
    ),
    Mutation(
        guard="a roll-forward of an older generation is refused",
        path=_FENCE,
        lines=(
            "            self.check(generation)\n"
            "            self._num_tasks += 1\n"
            "            self._is_settled = False\n"
        ),
        without="            self._num_tasks += 1\n            self._is_settled = False\n",
        seen_by=(f"{_FENCE_TESTS}::test_invariant_4_a_late_roll_forward_is_refused",),
    ),
    Mutation(
        guard=(
            "who is told of a commit reports the step: those who passed it may have died untold"
        ),
        path="worker/planaria_worker/engine/step/training_thread.py",
        lines="        self._teller.step_done(record)  # those who passed it",
        without="        # those who passed it",
        seen_by=(
            "tests/integration/engine/test_evaluation.py::test_the_closing_step_is_rolled_forward",
        ),
    ),
    Mutation(
        guard="a follower that noted a step reports it when it is fenced",
        path="worker/planaria_worker/engine/process/directives.py",
        lines="        self._trainer.tell_noted()\n",
        without="",
        seen_by=(
            f"{_IN_STEP_TESTS}::test_a_follower_tells_of_a_step_when_those_who_were_to_are_gone",
        ),
    ),
    Mutation(
        guard="a fence report waits for a commit that was passed",
        path=_FENCE,
        lines="if not self._is_settled:",
        without="if False:",
        seen_by=(f"{_FENCE_TESTS}::test_a_report_waits_for_a_commit_that_was_passed",),
    ),
)

MUTATIONS = (*_DEATHS, *_GROUPS, *_ROLLING_FORWARD)
