"""How the time for all templates grows with layers, nodes and accelerators of a node."""

from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from benchmarks.planner.figures import front_seconds
from benchmarks.planner.gpt import gpt_profile

BASE = {"layers": 98, "nodes": 64, "accelerators": 8}
VALUES = {
    "layers": (13, 26, 50, 98, 200),
    "nodes": (8, 16, 32, 64, 98),
    "accelerators": (1, 2, 4, 8),
}


def growth() -> list[dict[str, str]]:
    """Return CPU seconds for one of the three varied at a time, on profiles (a) and (b)."""
    rows = []
    for name, values in VALUES.items():
        for value in values:
            size = {**BASE, name: value}
            seconds = [
                front_seconds(
                    gpt_profile(size["layers"], accelerators=size["accelerators"], distinct=b),
                    size["nodes"],
                    repeats=3,
                )
                for b in (False, True)
            ]
            rows.append(
                {"varied": name}
                | {key: str(number) for key, number in size.items()}
                | {"(a)": f"{seconds[0]:.4f}", "(b)": f"{seconds[1]:.4f}"}
            )
    return rows


def plot(rows: list[dict[str, str]], path: Path) -> None:
    """Draw the rows of `growth`, a panel for each thing varied."""
    with rc_context({"svg.hashsalt": "planaria", "svg.fonttype": "none"}):
        figure = Figure(figsize=(11, 3.6), layout="constrained")
        panels = figure.subplots(1, len(VALUES), sharey=True)
        for panel, name in zip(panels, VALUES, strict=True):
            here = [row for row in rows if row["varied"] == name]
            for variant, label in (("(a)", "(a) equal blocks"), ("(b)", "(b) distinct layers")):
                seconds = [float(row[variant]) for row in here]
                panel.plot([int(row[name]) for row in here], seconds, "o-", label=label)
            panel.set(xscale="log", yscale="log", xlabel=name)
            panel.set_xticks(VALUES[name], [str(value) for value in VALUES[name]])
            panel.minorticks_off()
            panel.grid(visible=True, alpha=0.3)
            fixed = ", ".join(f"{value} {key}" for key, value in BASE.items() if key != name)
            panel.set_title(fixed, fontsize=9)
        panels[0].set_ylabel("CPU seconds for all templates")
        panels[0].legend()
        figure.savefig(path, format="svg", metadata={"Date": None})
