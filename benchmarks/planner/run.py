"""How fast the planner plans: `python -m benchmarks.planner.run [--write] [--only SECTION]`.

Warm CPU seconds of one core, medians; importing and compiling are reported apart. For comparison
on the same machine: Oobleck 2023 (C++) 12.9 CPU-s for 26 layers and 24 nodes of one accelerator,
Oobleck 2024 (Rust) unfinished after 101 s for 98 layers and 64 nodes; enumerating plans for 64
nodes 236,130 times 5 ms.
"""

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from rich.console import Console
from rich.table import Table

from benchmarks.planner.accuracy import distribution
from benchmarks.planner.figures import all_figures
from benchmarks.planner.growth import growth, plot
from benchmarks.planner.measure import cold_rows, surroundings
from planaria_planner.warm_up import warm_up

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "planner-speed.md"
MARKER = "<!-- written by python -m benchmarks.planner.run --write: do not edit below -->\n"

Rows = list[dict[str, str]]


def write(results: dict[str, Rows]) -> None:
    """Keep the results: as JSON next to this file, as tables and a plot in the documentation."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    plot(results["Growth"], PAGE.parent / "planner-growth.svg")
    sections = []
    for title, rows in results.items():
        picture = "![Growth](planner-growth.svg)\n\n" if title == "Growth" else ""
        sections.append(f"\n## {title}\n\n{picture}{markdown(rows)}")
    above = PAGE.read_text().partition(MARKER)[0]
    PAGE.write_text(above + MARKER + "".join(sections))


def markdown(rows: Rows) -> str:
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


SECTIONS: dict[str, Callable[[], Rows]] = {
    "Cold": cold_rows,
    "Speed": lambda: list(all_figures()),
    "Growth": growth,
    "Accuracy of the cost model": distribution,
}


def everything() -> dict[str, Rows]:
    """Measure every section again."""
    facts = [{"measured on": name, "": value} for name, value in surroundings().items()]
    return {"Where": facts, **{title: measure() for title, measure in SECTIONS.items()}}


def only(title: str) -> dict[str, Rows]:
    """Measure one section again; the others stay as stored."""
    results: dict[str, Rows] = json.loads((RESULTS / "results.json").read_text())
    results[title] = SECTIONS[title]()
    here = surroundings()
    note = {"measured on": f"{title}, later", "": f"{here['date']}, load: {here['load']}"}
    kept = [row for row in results["Where"] if row["measured on"] != note["measured on"]]
    return {**results, "Where": [*kept, note]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep the results in the repository")
    parser.add_argument("--only", choices=SECTIONS, help="measure one section, keep the others'")
    arguments = parser.parse_args()
    warm_up()
    results = only(arguments.only) if arguments.only else everything()
    out = Console()
    for title, rows in results.items():
        table = Table(*rows[0], title=title)
        for row in rows:
            table.add_row(*row.values())
        out.print(table)
    if arguments.write:
        write(results)


if __name__ == "__main__":
    main()
