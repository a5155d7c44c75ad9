"""Plots of what kills cost, as SVG."""

from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

_CURVES = {
    "fence_seconds": "fence: the last survivor is fenced",
    "resume_seconds": "resume: all survivors take part in the step",
    "regrow_seconds": "regrow: every survivor has a pipeline",
}


def plot_kills(result: dict[str, Any], path: Path) -> None:
    """Draw, for each stage of a recovery, the share of kills in which it was reached in time."""
    with rc_context({"svg.hashsalt": "planaria", "svg.fonttype": "none"}):
        figure = Figure(figsize=(8, 3.6), layout="constrained")
        panel = figure.subplots()
        for key, label in _CURVES.items():
            values = sorted(kill[key] for kill in result["kills"])
            shares = [(place + 1) / len(values) for place in range(len(values))]
            panel.step(values, shares, where="post", label=label)
        panel.set(xlabel="seconds after the kill", ylabel="share of kills", ylim=(0, 1.02))
        panel.set_xlim(left=0)
        panel.grid(visible=True, alpha=0.3)
        panel.legend(loc="lower right")
        figure.savefig(path, format="svg", metadata={"Date": None})


def plot_excess(columns: dict[str, dict[str, float]], path: Path) -> None:
    """Draw the median excess of each program, with its 95th percentile."""
    with rc_context({"svg.hashsalt": "planaria", "svg.fonttype": "none"}):
        figure = Figure(figsize=(8, 2.2), layout="constrained")
        panel = figure.subplots()
        names = list(columns)
        medians = [max(columns[name]["median"], 0.001) for name in names]
        above = [max(columns[n]["p95"] - m, 0.0) for n, m in zip(names, medians, strict=True)]
        panel.barh(names, medians, xerr=[[0.0] * len(names), above], capsize=3)
        panel.set(xscale="log", xlabel="excess seconds of the step that was hit: median, p95")
        panel.invert_yaxis()
        panel.grid(visible=True, axis="x", alpha=0.3)
        figure.savefig(path, format="svg", metadata={"Date": None})
