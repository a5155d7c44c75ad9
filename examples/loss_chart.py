"""The loss of a job as a picture: a PNG for later, and one for the terminal at once."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import plotext

from planaria.models import StepMetrics


def save_png(path: Path, metrics: Sequence[StepMetrics], marks: Sequence[tuple[int, str]]) -> None:
    """Write the curve to `path`, with a labelled line at each (step, label) of `marks`."""
    mpl.use("agg")
    from matplotlib import pyplot  # the backend is chosen first

    figure, axes = pyplot.subplots(figsize=(9, 4.5), constrained_layout=True)
    steps, losses = _curve(metrics)
    axes.plot(steps, losses, color="#1a6f6a")
    top = max(losses)
    for step, label in marks:
        axes.axvline(step, color="#b3402a", linestyle="--", linewidth=1)
        axes.text(step, top, f" {label}", rotation=90, va="top", fontsize=8, color="#b3402a")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.set_title("One job, through failures")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def terminal_chart(metrics: Sequence[StepMetrics], marks: Sequence[tuple[int, str]]) -> str:
    """Return the curve as text, with a vertical line at each step of `marks`."""
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(80, 16)
    steps, losses = _curve(metrics)
    plotext.plot(steps, losses, marker="braille")
    for step, _ in marks:
        plotext.vline(step)
    plotext.title("loss (nats per token) by step; vertical lines: a node was lost or joined")
    return str(plotext.uncolorize(plotext.build()))


def _curve(metrics: Sequence[StepMetrics]) -> tuple[list[int], list[float]]:
    """Steps that trained, and their losses."""
    trained = [(m.step, m.loss) for m in metrics if m.loss is not None]
    return [step for step, _ in trained], [loss for _, loss in trained]
