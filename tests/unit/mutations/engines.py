"""The start of an engine, and what it reports."""

from unit.mutations.mutation import Mutation

_LAUNCHER = "tests/integration/agent/test_launcher.py"
_AGENT = "tests/integration/agent/test_agent.py"
_CONTROL = "tests/unit/engine/test_control.py"
_SQLITE = "tests/integration/coordinator/test_sqlite.py"

MUTATIONS = (
    Mutation(
        guard="engines of models by import path do not wait for transformers on a fresh node",
        path="worker/planaria_worker/agent/launcher.py",
        lines="if self._families.is_loaded or not _has_imported_model(config):",
        without="if True:",
        seen_by=(f"{_LAUNCHER}::test_an_engine_that_needs_no_transformers_does_not_wait_for_them",),
    ),
    Mutation(
        guard=(
            "nothing that takes seconds is imported between a joiner's start and its answer that "
            "it is ready"
        ),
        path="worker/planaria_worker/engine/process/warmup.py",
        lines="alone.forward_flops() if forward_flops is None else forward_flops",
        without="(alone.forward_flops(), forward_flops)[1]",
        seen_by=(
            f"{_LAUNCHER}::test_an_engine_that_others_wait_for_imports_nothing_that_takes_seconds",
        ),
    ),
    Mutation(
        guard=(
            "nothing that takes seconds is imported between a joiner's start and its answer that "
            "it is ready"
        ),
        path="worker/planaria_worker/engine/numerics/pins.py",
        lines='if "torch._inductor.config" in sys.modules:',
        without="if True:",
        seen_by=(
            f"{_LAUNCHER}::test_an_engine_that_others_wait_for_imports_nothing_that_takes_seconds",
        ),
    ),
    Mutation(
        guard=(
            "nothing that takes seconds is imported between a joiner's start and its answer that "
            "it is ready"
        ),
        path="worker/planaria_worker/models/imported.py",
        lines="torch.random.fork_rng(devices=()), _WithoutMetaDraws():",
        without="torch.random.fork_rng(devices=()):",
        seen_by=(
            f"{_LAUNCHER}::test_an_engine_that_others_wait_for_imports_nothing_that_takes_seconds",
        ),
    ),
    Mutation(
        guard=(
            "nothing that takes seconds is imported between a joiner's start and its answer that "
            "it is ready"
        ),
        path="worker/planaria_worker/engine/job.py",
        lines=(
            "    if config is not None:\n        from planaria_worker.models.transformer "
            "import transformer  # slow; not for imported models\n"
        ),
        without=(
            "    from planaria_worker.models.transformer import transformer\n\n"
            "    if config is not None:\n"
        ),
        seen_by=(
            f"{_LAUNCHER}::test_an_engine_that_others_wait_for_imports_nothing_that_takes_seconds",
        ),
    ),
    Mutation(
        guard="a joiner is told what others have counted",
        path="services/coordinator/planaria_coordinator/domain/job/turn.py",
        lines="            forward_flops=counted_flops(self.run),\n",
        without="",
        seen_by=(
            "tests/unit/coordinator/test_nodes.py"
            "::test_a_joiner_is_told_what_the_first_engines_have_counted",
        ),
    ),
    Mutation(
        guard="what a user compiles is pinned, whenever the compiler is imported",
        path="worker/planaria_worker/engine/numerics/pins.py",
        lines='if "torch._inductor.config" in sys.modules:',
        without="if False:",
        seen_by=(
            "tests/unit/worker_math/test_pins.py::test_what_a_user_compiles_is_pinned_too[before]",
        ),
    ),
    Mutation(
        guard="what a user compiles is pinned, whenever the compiler is imported",
        path="worker/planaria_worker/engine/numerics/pins.py",
        lines='    os.environ["TORCHINDUCTOR_DETERMINISTIC"] = "1"  # read by that module\n',
        without="",
        seen_by=(
            "tests/unit/worker_math/test_pins.py::test_what_a_user_compiles_is_pinned_too[behind]",
        ),
    ),
    Mutation(
        guard="a zygote is made again when it is lost, or does not answer",
        path="worker/planaria_worker/agent/zygote.py",
        lines="        with contextlib.suppress(OSError):\n            if self._is_loaded:",
        without="        if True:\n            if self._is_loaded:",
        seen_by=(f"{_LAUNCHER}::test_another_process_is_loaded_if_that_with_transformers_is_lost",),
    ),
    Mutation(
        guard="a zygote is made again when it is lost, or does not answer",
        path="worker/planaria_worker/agent/zygote.py",
        lines="raise TimeoutError",
        without="return None",
        seen_by=(f"{_LAUNCHER}::test_a_stuck_zygote_is_given_up",),
    ),
    Mutation(
        guard="why its module cannot be imported is told",
        path="worker/planaria_worker/agent/zygote.py",
        lines=(
            "            requests.send(OSError("
            'f"{module} cannot be imported: {type(error).__name__}: {error}"))\n'
        ),
        without="",
        seen_by=(f"{_LAUNCHER}::test_a_module_that_cannot_be_imported_is_named",),
    ),
    Mutation(
        guard="an agent that ends waits for nothing that is being loaded",
        path="worker/planaria_worker/agent/zygote.py",
        lines="        self._is_closed = True\n        self._kill()\n",
        without="        self._is_closed = True\n",
        seen_by=(f"{_LAUNCHER}::test_an_agent_that_ends_waits_for_nothing_that_is_loaded",),
    ),
    Mutation(
        guard="an agent that ends waits for nothing that is being loaded",
        path="worker/planaria_worker/agent/zygote.py",
        lines="        self._is_closed = True\n        self._kill()\n",
        without=(
            "        self._is_closed = True\n        with self._lock:\n            self._kill()\n"
        ),
        seen_by=(f"{_LAUNCHER}::test_an_agent_that_ends_waits_for_nothing_that_is_loaded",),
    ),
    Mutation(
        guard="a zygote ends with its agent, its engines do not",
        path="worker/planaria_worker/agent/zygote.py",
        lines="    os._exit(0)  # without waiting for the engines: they outlive their agent\n",
        without="",
        seen_by=(
            f"{_LAUNCHER}"
            "::test_engines_outlive_their_agent_and_what_they_were_forked_from_does_not[running]",
        ),
    ),
    Mutation(
        guard="a zygote ends with its agent, its engines do not",
        path="worker/planaria_worker/agent/launcher.py",
        lines="    signal.signal(signal.SIGHUP, signal.SIG_IGN)\n",
        without="",
        seen_by=(
            f"{_LAUNCHER}"
            "::test_engines_outlive_their_agent_and_what_they_were_forked_from_does_not[stopped]",
        ),
    ),
    Mutation(
        guard="an engine tells each agent again what may not be stored",
        path="worker/planaria_worker/engine/process/control.py",
        lines="        with self._lock:\n            self._events.send_again()\n",
        without="",
        seen_by=(
            f"{_CONTROL}::test_reports_come_to_each_agent_until_they_are_stored",
            f"{_AGENT}::test_reports_outlive_the_agent_until_they_are_stored",
        ),
    ),
    Mutation(
        guard="an engine ends when its agent has read all that it said",
        path="worker/planaria_worker/engine/process/control.py",
        lines="self._has_left or (self._agent is None and not len(self._events))",
        without="not len(self._events)",
        seen_by=(f"{_CONTROL}::test_who_takes_leave_waits_until_all_was_read",),
    ),
    Mutation(
        guard="an engine ends when its agent has read all that it said",
        path="worker/planaria_worker/engine/process/control.py",
        lines="self._has_left or (",
        without="(",
        seen_by=(f"{_CONTROL}::test_who_takes_leave_waits_until_all_was_read",),
    ),
    Mutation(
        guard=("an engine that ended before it was ready is told of to who asks for it again"),
        path="worker/planaria_worker/agent/agent.py",
        lines="        self._note_unprepared(handle)\n",
        without="",
        seen_by=(
            f"{_AGENT}"
            "::test_an_engine_that_ended_before_it_was_ready_is_told_of_when_asked_for_again",
        ),
    ),
    Mutation(
        guard="an agent tells its engines what is stored",
        path="worker/planaria_worker/agent/agent.py",
        lines=(
            "            self._stored_reports.acknowledge(response.reports_stored.report_number)\n"
        ),
        without="",
        seen_by=(f"{_AGENT}::test_reports_outlive_the_agent_until_they_are_stored",),
    ),
    Mutation(
        guard="a report that comes again over a link that broke is told once",
        path="worker/planaria_worker/agent/engine_handle.py",
        lines="elif self._is_new(event):",
        without="else:",
        seen_by=(f"{_AGENT}::test_a_report_that_comes_again_over_the_same_agent_is_told_once",),
    ),
    Mutation(
        guard="a job's decision is stored before what else waits for SQLite",
        path="services/coordinator/planaria_coordinator/application/jobs/job_actor.py",
        lines=(
            "    async def _store(self, decision: Decision) -> None:\n"
            "        async with self._storing, "
            "self._around.database.unit_of_work(urgent=True) as work:\n"
        ),
        without=(
            "    async def _store(self, decision: Decision) -> None:\n"
            "        async with self._storing, self._around.database.unit_of_work() as work:\n"
        ),
        seen_by=(f"{_SQLITE}::test_a_decision_goes_before_what_else_is_to_be_stored",),
    ),
    Mutation(
        guard="a job's decision is stored before what else waits for SQLite",
        path="services/coordinator/planaria_coordinator/adapters/database/sqlite.py",
        lines="self._urgent if urgent else self._others",
        without="self._others",
        seen_by=(f"{_SQLITE}::test_a_decision_goes_before_what_else_is_to_be_stored",),
    ),
    Mutation(
        guard="who gives up waiting for SQLite's turn passes it on",
        path="services/coordinator/planaria_coordinator/adapters/database/sqlite.py",
        lines="if turn.done() and not turn.cancelled():",
        without="if False:",
        seen_by=(f"{_SQLITE}::test_who_gives_up_waiting_holds_up_nobody",),
    ),
    Mutation(
        guard="who gives up waiting for SQLite's turn passes it on",
        path="services/coordinator/planaria_coordinator/adapters/database/sqlite.py",
        lines="if not turn.done():",
        without="if True:",
        seen_by=(f"{_SQLITE}::test_who_gives_up_waiting_holds_up_nobody",),
    ),
    Mutation(
        guard="an engine's first pass is given the time that its layers were measured to take",
        path="worker/planaria_worker/engine/process/watchdog.py",
        lines=" or self._model_seconds",
        without="",
        seen_by=(
            "tests/unit/engine/test_watchdog.py"
            "::test_the_first_action_is_given_the_time_that_the_model_was_measured_to_take",
        ),
    ),
)
