"""The evaluation of a step: forward passes on held-out data, before the step's own microbatches."""

from collections.abc import Callable, Iterable
from functools import partial

import torch

from planaria_worker.engine.evaluation import Evaluation
from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.numerics.loss import summed_cross_entropy
from planaria_worker.engine.step.stage_links import StageLinks
from planaria_worker.engine.step.stage_tokens import load_tokens
from planaria_worker.engine.step_progress import StepProgress
from planaria_worker.engine.telemetry import Stopwatch
from planaria_worker.models.stage import Stage


class EvaluationPass:
    """Evaluates what a round's microbatches carry (`EvaluationPlan.carried_by`)."""

    def __init__(
        self,
        *,
        evaluation: Evaluation,
        stage: Stage,
        device: torch.device,
        check_halt: Callable[[], None],
        stopwatch: Stopwatch,
        failpoints: Failpoints,
    ) -> None:
        self._evaluation = evaluation
        self._stage = stage
        self._device = device
        self._check_halt = check_halt
        self._stopwatch = stopwatch
        self._failpoints = failpoints

    def is_due(self, step: int) -> bool:
        """Whether a step evaluates."""
        return self._evaluation.plan.is_due(step)

    def run(
        self,
        progress: StepProgress,
        microbatches: Iterable[int],
        links: StageLinks,
        before_wait: Callable[[int], None],
    ) -> None:
        """Run this stage's part of every evaluation microbatch that these microbatches carry.

        Args:
            progress: of the step; receives the losses and the time.
            microbatches: of the round.
            links: to the neighbours.
            before_wait: called with the index of an evaluation microbatch before its input is
                waited for.

        Raises:
            GroupBroken: the pipeline is broken, or was halted.
        """
        with self._stage.evaluating():
            for index in self._evaluation.plan.carried_by(microbatches):
                self._check_halt()
                self._failpoints.hit("evaluate", progress.step, index)
                tokens = load_tokens(
                    self._stage, self._device, partial(self._evaluation.rows, index)
                )
                inputs = tokens.inputs
                if inputs is None:
                    before_wait(index)
                    inputs = links.receive_input()
                    self._stopwatch.lap("wait")
                output = self._stage(inputs, before_layer=self._check_halt)
                if tokens.targets is not None:
                    loss = summed_cross_entropy(output, tokens.targets)
                    progress.evaluation_losses[index] = loss
                else:
                    links.send_output(output)
                    self._stopwatch.lap("wait")
                progress.compute_seconds += self._stopwatch.lap("evaluate", index)
