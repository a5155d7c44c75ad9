"""What the coordinator stores, tells and knows again."""

from unit.mutations.mutation import Mutation

_SOURCE = "services/coordinator/planaria_coordinator"
_TESTS = "tests/unit/coordinator"

_STANDING = f"{_TESTS}/test_standing_of_nodes.py"
_TAKEN_UP = (
    "a job that is taken up knows the steps and the evaluation that were stored beside its run"
)
_OUTLIVES = f"{_TESTS}/test_evaluation.py::test_what_is_stored_of_steps_outlives_the_coordinator"
_ANOTHER_WRITES = "what an engine took counts no more where another writes by now"
_LATE = f"{_TESTS}/test_late_writers.py"
_SEEN_TO_DIE = "a node whose engine was seen to die first is told of when its session ends"
_KNOWN_WHEN_IT_WAITS = (
    f"{_TESTS}/test_waiting.py"
    "::test_a_node_is_told_as_lost_though_it_is_known_only_when_the_job_waits"
)
_BEHIND_THE_RECOVERY = (
    "the same when the recovery from it is over; if it has another engine since, it is a new loss"
)
_KNOWN_BEHIND_IT = (
    f"{_TESTS}/test_finishing_a_step.py"
    "::test_a_node_is_told_as_lost_though_that_is_known_only_behind_the_recovery"
)
_GROUPS = (
    "groups that could not be made stop no whole pipeline the first time; "
    "any other fault does, and a wanted pause"
)
_THAT_FAIL = f"{_TESTS}/test_groups_that_fail.py"
_STOP_NO_PIPELINE = f"{_THAT_FAIL}::test_groups_that_cannot_be_made_stop_no_whole_pipeline"
_KEEPS_ITS_STORY = "a job that waits keeps its story while engines start for it"

MUTATIONS = (
    Mutation(
        guard="a joiner that the planner was asked for and that is lost is planned without",
        path=f"{_SOURCE}/domain/losses.py",
        lines=(
            "    if transition.target is None and not _asked_for(turn).isdisjoint("
            "map(node_of, gone)):\n"
        ),
        without="    if False:\n",
        seen_by=(
            f"{_TESTS}/test_lost_joiners.py"
            "::test_a_joiner_that_the_planner_was_asked_for_and_that_is_lost_is_planned_without",
        ),
    ),
    Mutation(
        guard="an engine that starts while the planner refuses a plan without it is used",
        path=f"{_SOURCE}/application/scheduling.py",
        lines="own=(*idle.values(), *ready.values()),",
        without="own=tuple(idle.values()),",
        seen_by=(
            f"{_TESTS}/test_waiting.py::test_an_engine_that_starts_while_the_planner_refuses_"
            "a_plan_without_it_is_used",
        ),
    ),
    Mutation(
        guard="a job that is taken up is told what is stored of its nodes",
        path=f"{_SOURCE}/application/coordinator.py",
        lines="            tell_of_nodes(state, actor)\n",
        without="",
        seen_by=(
            f"{_STANDING}::test_a_node_that_is_lost[engine seen to die]",
            f"{_STANDING}::test_a_node_that_is_lost[silent]",
            f"{_STANDING}::test_a_node_that_is_to_be_freed",
            f"{_STANDING}::test_a_node_that_is_to_be_kept_after_all",
        ),
    ),
    Mutation(
        guard="a node on which engines only have yet to stop is not freed a second time",
        path=f"{_SOURCE}/domain/wishes.py",
        lines="if node_id not in run.nodes or node_id in run.draining:",
        without="if node_id in run.draining:",
        seen_by=(f"{_STANDING}::test_a_node_that_has_been_freed_but_for_the_stop_of_its_engine",),
    ),
    Mutation(
        guard="a job that is given nodes is told what is stored of them",
        path=f"{_SOURCE}/application/scheduling.py",
        lines="            tell_of_nodes(self._state, actor)\n",
        without="",
        seen_by=(f"{_STANDING}::test_a_node_that_is_lost_while_it_is_given_to_a_job",),
    ),
    Mutation(
        guard=_TAKEN_UP,
        path=f"{_SOURCE}/application/taking_up.py",
        lines="if newest and newest[-1].step >= run.committed_steps:",
        without="if False:",
        seen_by=(_OUTLIVES,),
    ),
    Mutation(
        guard=_TAKEN_UP,
        path=f"{_SOURCE}/application/taking_up.py",
        lines="if step is not None and loss is not None and step > known:",
        without="if False:",
        seen_by=(_OUTLIVES,),
    ),
    Mutation(
        guard=_TAKEN_UP,
        path=f"{_SOURCE}/application/taking_up.py",
        lines="return replace(run, committed_steps=max(run.committed_steps, job.step))",
        without="return run",
        seen_by=(_OUTLIVES,),
    ),
    Mutation(
        guard="broken communication has its time anew with a coordinator's new clock",
        path=f"{_SOURCE}/domain/transition.py",
        lines="    losses.restart_disturbance(turn)\n",
        without="",
        seen_by=(
            f"{_TESTS}/test_failures.py"
            "::test_broken_communication_is_acted_on_after_a_reboot_of_the_coordinators_host",
        ),
    ),
    Mutation(
        guard="what is known of a checkpoint's writers outlives the coordinator",
        path=f"{_SOURCE}/domain/checkpointing.py",
        lines="version: replace(checkpoint, deadline_seconds=_deadline(turn))",
        without="version: replace(checkpoint, writers={}, deadline_seconds=_deadline(turn))",
        seen_by=(
            f"{_TESTS}/test_checkpointed_handover.py"
            "::test_who_leaves_writes_its_layers_first_though_the_coordinator_dies",
        ),
    ),
    Mutation(
        guard=_ANOTHER_WRITES,
        path=f"{_SOURCE}/domain/checkpointing.py",
        lines="_note_taken(turn, checkpoint, signal.engine_id, layers)",
        without="_note_writers(turn, checkpoint, signal.engine_id, layers)",
        seen_by=(f"{_LATE}::test_what_a_late_engine_has_said_is_said_again",),
    ),
    Mutation(
        guard=_ANOTHER_WRITES,
        path=f"{_SOURCE}/domain/checkpointing.py",
        lines="[layer for layer in layers if checkpoint.writers.get(layer) not in engines]",
        without="list(layers)",
        seen_by=(f"{_LATE}::test_layers_that_a_fence_has_given_to_others_stay_with_them",),
    ),
    Mutation(
        guard="a job that has ended is taken up while engines of it have yet to stop",
        path=f"{_SOURCE}/application/coordinator.py",
        lines="return [*unfinished, *(job for job in ended if job is not None)]",
        without="return unfinished",
        seen_by=(
            f"{_TESTS}/test_resuming.py"
            "::test_a_checkpoint_that_is_sealed_while_its_job_is_cancelled_is_known[True]",
            f"{_TESTS}/test_resuming.py"
            "::test_a_checkpoint_that_was_not_sealed_before_its_engine_stopped_is_given_up[True]",
        ),
    ),
    Mutation(
        guard="a directive is resolved when what follows from its result is stored",
        path=f"{_SOURCE}/application/supervision.py",
        lines="results = [result for result in told if result.job_id not in undecided]",
        without="results = list(told)",
        seen_by=(
            f"{_TESTS}/test_reports.py"
            "::test_a_directive_is_not_resolved_before_its_result_is_decided_on",
        ),
    ),
    Mutation(
        guard="an end that was explained makes no loss of a node out of its agent's absence",
        path=f"{_SOURCE}/application/agent_session.py",
        lines="            entry.peers_lost &= self._unexplained()\n",
        without="",
        seen_by=(
            f"{_TESTS}/test_agents_away.py::test_an_engine_whose_end_was_told_twice_is_forgotten",
        ),
    ),
    Mutation(
        guard="a recovery that is over without a plan ends its story",
        path=f"{_SOURCE}/domain/completion.py",
        lines=(
            "    turn.note(\n"
            "        story=Story(cause=Cause.FINISHED, start_time=now, first_open_time=now, "
            "sizes_before=sizes)\n"
            "    )\n"
        ),
        without="",
        seen_by=(
            f"{_TESTS}/test_life_of_a_job.py"
            "::test_each_loss_while_the_job_finishes_is_a_story_of_its_own",
        ),
    ),
    Mutation(
        guard=_SEEN_TO_DIE,
        path=f"{_SOURCE}/domain/losses.py",
        lines="        turn.note(story=story)\n    else:\n        turn.change(interrupted=story)\n",
        without="        pass\n    else:\n        turn.change(interrupted=story)\n",
        seen_by=(
            f"{_TESTS}/test_finishing_a_step.py::"
            "test_a_node_is_told_as_lost_though_its_engine_was_seen_to_die_and_others_train[False]",
            f"{_TESTS}/test_finishing_a_step.py::"
            "test_a_node_is_told_as_lost_though_its_engine_was_seen_to_die_and_others_train[True]",
            f"{_KNOWN_WHEN_IT_WAITS}[engines start]",
        ),
    ),
    Mutation(
        guard=_SEEN_TO_DIE,
        path=f"{_SOURCE}/domain/losses.py",
        lines="        turn.change(interrupted=story)\n",
        without="        pass\n",
        seen_by=(f"{_KNOWN_WHEN_IT_WAITS}[no engine starts]",),
    ),
    Mutation(
        guard=_BEHIND_THE_RECOVERY,
        path=f"{_SOURCE}/domain/completion.py",
        lines="    turn.actions.append(RecordRecovery(recovery=whole))\n",
        without="",
        seen_by=(f"{_KNOWN_BEHIND_IT}[nothing-lost0]",),
    ),
    Mutation(
        guard=_BEHIND_THE_RECOVERY,
        path=f"{_SOURCE}/domain/preparing.py",
        lines="if k != engine.node_id}",
        without="}",
        seen_by=(f"{_KNOWN_BEHIND_IT}[another engine-lost1]",),
    ),
    Mutation(
        guard=_BEHIND_THE_RECOVERY,
        path=f"{_SOURCE}/domain/completion.py",
        lines="held = run.nodes.keys() - alive",
        without="held = run.nodes.keys()",
        seen_by=(
            f"{_TESTS}/test_waiting.py"
            "::test_a_node_that_lives_though_its_engine_died_is_lost_in_a_story_of_its_own",
        ),
    ),
    Mutation(
        guard=_GROUPS,
        path=f"{_SOURCE}/domain/losses.py",
        lines="mode=QuiesceMode.FENCE if goes_on else QuiesceMode.IMMEDIATE",
        without="mode=QuiesceMode.IMMEDIATE",
        seen_by=(
            f"{_STOP_NO_PIPELINE}[one of the broken pipeline]",
            f"{_STOP_NO_PIPELINE}[one stage of a whole pipeline]",
            f"{_THAT_FAIL}::test_whole_pipelines_compute_while_groups_are_made_again",
        ),
    ),
    Mutation(
        guard=_GROUPS,
        path=f"{_SOURCE}/domain/losses.py",
        lines="transition.finishes_step\n            and not transition.is_at_fault\n",
        without="not transition.is_at_fault\n",
        seen_by=(f"{_THAT_FAIL}::test_where_no_step_is_finished_nobody_goes_on_without_groups",),
    ),
    Mutation(
        guard=_GROUPS,
        path=f"{_SOURCE}/domain/losses.py",
        lines="            and not transition.is_at_fault\n",
        without="",
        seen_by=(f"{_STOP_NO_PIPELINE}[a fault of its own]",),
    ),
    Mutation(
        guard=_GROUPS,
        path=f"{_SOURCE}/domain/losses.py",
        lines="            and not transition.story.num_attempts\n",
        without="",
        seen_by=(
            f"{_STOP_NO_PIPELINE}[one of the broken pipeline]",
            f"{_STOP_NO_PIPELINE}[one stage of a whole pipeline]",
        ),
    ),
    Mutation(
        guard=_GROUPS,
        path=f"{_SOURCE}/domain/losses.py",
        lines="            and not turn.run.pause_wanted\n",
        without="",
        seen_by=(f"{_THAT_FAIL}::test_who_is_to_stand_still_does_so_when_groups_cannot_be_made",),
    ),
    Mutation(
        guard=_KEEPS_ITS_STORY,
        path=f"{_SOURCE}/domain/run.py",
        lines="if self.state is not JobState.WAITING or story.cause is Cause.NODE_JOINED:",
        without="if True:",
        seen_by=(
            f"{_TESTS}/test_waiting.py::"
            "test_what_is_lost_while_engines_start_for_a_job_that_waits_is_the_same_story",
            f"{_KNOWN_WHEN_IT_WAITS}[engines start]",
        ),
    ),
    *(
        Mutation(
            guard=_KEEPS_ITS_STORY,
            path=f"{_SOURCE}/domain/run.py",
            lines="if self.state is not JobState.WAITING or story.cause is Cause.NODE_JOINED:",
            without=f"if {half}:",
            seen_by=(
                f"{_TESTS}/test_waiting.py"
                f"::test_only_what_a_job_waits_with_is_told_when_it_goes_on[{case}]",
            ),
        )
        for half, case in (
            ("story.cause is Cause.NODE_JOINED", "RECOVERING-node_lost-False"),
            ("self.state is not JobState.WAITING", "WAITING-node_joined-False"),
        )
    ),
    Mutation(
        guard="what an engine gives back is not its part again, though it had taken it",
        path=f"{_SOURCE}/domain/checkpointing.py",
        lines=" or engine_id in checkpoint.given_back:",
        without=":",
        seen_by=(
            f"{_TESTS}/test_late_writers.py::test_given_back_while_everybody_is_being_fenced",
        ),
    ),
    Mutation(
        guard=_KEEPS_ITS_STORY,
        path=f"{_SOURCE}/domain/preparing.py",
        lines="turn.change(transition=None, interrupted=run.untold_recovery)",
        without="turn.change(transition=None, interrupted=None)",
        seen_by=(f"{_KNOWN_WHEN_IT_WAITS}[engines start]",),
    ),
    Mutation(
        guard="a pause that is wanted meanwhile comes when nobody is left to join",
        path=f"{_SOURCE}/domain/preparing.py",
        lines="if waits and run.pause_wanted:",
        without="if False:",
        seen_by=(
            f"{_TESTS}/test_waiting.py::"
            "test_a_job_that_waits_can_be_paused_though_the_nodes_that_were_to_join_are_gone",
        ),
    ),
    Mutation(
        guard="a change goes on to its end though who asked for it goes away",
        path="services/coordinator/planaria_coordinator/application/state.py",
        lines="return await asyncio.shield(task)",
        without="return await task",
        seen_by=(
            "tests/unit/coordinator/test_services.py"
            "::test_a_submission_whose_caller_goes_away_is_a_job_or_is_not",
            "tests/unit/coordinator/test_services.py"
            "::test_a_drain_whose_caller_goes_away_is_known_where_it_is_stored",
        ),
    ),
    Mutation(
        guard="plans made ahead are asked for again if that was interrupted",
        path="services/coordinator/planaria_coordinator/application/scheduling/contingencies.py",
        lines="if is_known and not self._was_stopped:",
        without="if is_known:",
        seen_by=(
            "tests/unit/coordinator/test_contingencies.py"
            "::test_plans_that_were_interrupted_are_asked_for_again",
        ),
    ),
    Mutation(
        guard="a defect in planning is an answer",
        path="services/coordinator/planaria_coordinator/application/jobs/job_actor.py",
        lines="self.post(refused(query, PlanariaError(ErrorReason.INTERNAL, message)))",
        without="pass",
        seen_by=(
            "tests/unit/coordinator/test_services.py::test_a_defect_in_planning_is_an_answer",
        ),
    ),
    Mutation(
        guard="what engines raise or print is stored without NUL",
        path="services/coordinator/planaria_coordinator/entrypoints/grpc/from_agent.py",
        lines='return text.replace("\\0", "�")',
        without="return text",
        seen_by=(
            "tests/unit/coordinator/test_worker_service.py"
            "::test_what_cannot_be_stored_is_not_passed_on",
        ),
    ),
)
