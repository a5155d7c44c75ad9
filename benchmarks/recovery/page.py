"""The results as a page of the documentation: tables, targets and plots from the kept JSON."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from benchmarks import REPOSITORY
from benchmarks.common.ratios import ratio_of_medians
from benchmarks.common.results import summary, table
from benchmarks.recovery.anatomy import Anatomy
from benchmarks.recovery.plots import plot_excess, plot_kills

RESULTS = Path(__file__).parent / "results"
PAGE = REPOSITORY / "docs" / "reference" / "recovery-figures.md"
MARKER = "<!-- written by `python -m benchmarks.recovery --write`: do not edit below -->\n"

_WANTED = {
    "fence_seconds": "0.08, p95 0.2",
    "resume_seconds": "0.12, p95 0.3",
    "regrow_seconds": "0.12, p95 0.3, read strictly",
    "nobody computed, s": "0.03",
    "healthy pipelines idle, share of the recovery": "0.05, paced, read strictly",
    "the difference": "0.05, paced",
    "begun again, share of the lost microbatches": "never over 1",
}
_WANTED_TIMES = {"torchft": "5", "torchrun": "20"}
_COLUMNS = ("median", "p95", "max", "wanted")

Results = dict[str, Any]


def write_page() -> None:
    """Write the page below the marker, and the plots, from the parts that were measured."""
    results = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    sections = [
        _deaths(results.get("deaths")),
        *(_kills(result) for name, result in results.items() if name.startswith("kills-")),
        _excess(results),
        *(_changes(result) for name, result in results.items() if name.startswith("changes-")),
        _stops(results.get("stops")),
        _cables(results.get("cables")),
        _overload(results.get("overload")),
        _goodput(results.get("goodput")),
        _where(results),
    ]
    above = PAGE.read_text().partition(MARKER)[0]
    PAGE.write_text(above + MARKER + "".join(f"\n{section}" for section in sections if section))


def _deaths(result: Results | None) -> str:
    if result is None:
        return ""
    rows = [
        (f"{size['mib']} MiB", *_numbers(size["watched"]), *_numbers(size["plain"]))
        for size in result["sizes"]
    ]
    header = ("private memory", *(f"{c}{w}" for w in ("", ", without") for c in _COLUMNS[:3]))
    return (
        "## How soon a death is noticed\n\n"
        "Seconds from the `kill -9` of a process until its peer notices, with a liveness beacon, "
        "and without one: then connections close only after the process's memory is freed. "
        f"{result['kills']} times each.\n\n" + table(header, rows)
    )


def _kills(result: Results) -> str:
    computation, count = result["computation"], len(result["kills"])
    picture = f"recovery-kills-{computation}.svg"
    plot_kills(result, PAGE.parent / picture)
    rows = [
        (name, *_numbers(column), _WANTED.get(name, ""))
        for name, column in result["summary"].items()
    ]
    idle = _idle_by_name(result)
    return (
        f"## {count} kills, {computation}\n\n"
        f"![{count} kills, {computation}]({picture})\n\n"
        + table(("", *_COLUMNS), rows)
        + f"\nLargest private memory of an engine: {result['private_mib']:.0f} MiB. Seed "
        f"{result['seed']}. While nobody computed, most engines spent, per recovery: {idle}.\n"
    )


def _idle_by_name(result: Results) -> str:
    totals: dict[str, float] = {}
    for kill in result["kills"]:
        for name, seconds in kill["nobody_computed_seconds"].items():
            totals[name] = totals.get(name, 0.0) + seconds
    ordered = sorted(totals.items(), key=lambda item: -item[1])
    number = len(result["kills"])
    return ", ".join(f"{name} {seconds / number * 1000:.1f} ms" for name, seconds in ordered)


def _excess(results: Results) -> str:
    """Compare with others: all paced, so that two shared cores do not decide."""
    if "kills-paced" not in results:
        return ""
    ours = _our_excess(results["kills-paced"])
    rows = [("Planaria", *_numbers(summary(ours)), len(ours), "1", "")]
    columns = {"Planaria": summary(ours)}
    for name, wanted in _WANTED_TIMES.items():
        if name in results:
            theirs = results[name]["excess_seconds"]
            columns[name] = summary(theirs)
            times = ratio_of_medians(theirs, ours)
            shown = f"{times.median:.2f} [{times.low:.2f}, {times.high:.2f}]"
            rows.append((name, *_numbers(columns[name]), len(theirs), shown, wanted))
    plot_excess(columns, PAGE.parent / "recovery-excess.svg")
    header = ("seconds", "median", "p95", "max", "kills", "times Planaria's median", "wanted")
    return (
        "## How much longer the step that was hit takes, paced\n\n"
        "![Excess](recovery-excess.svg)\n\n"
        + table(header, rows)
        + "\nIn brackets: the 95 % interval of the bootstrap.\n"
    )


def _our_excess(result: Results) -> list[float]:
    control = result["control_step_seconds"]
    known = {each.name for each in fields(Anatomy)}  # older results have pause_seconds as well
    kills = [Anatomy(**{k: v for k, v in kill.items() if k in known}) for kill in result["kills"]]
    return [kill.excess_seconds(control) for kill in kills]


def _changes(result: Results) -> str:
    rows = [
        (name, *_numbers(result[key]["summary"]), "0.1", result[key]["redone_microbatches"])
        for name, key in (("drain", "drains"), ("join", "joins"))
    ]
    return f"## Drains and joins, {result['computation']}\n\n" + table(
        ("seconds lost", *_COLUMNS, "microbatches redone (wanted: 0)"), rows
    )


def _stops(result: Results | None) -> str:
    if result is None:
        return ""
    deadline = f"deadline of {result['deadline_seconds']:.0f} s"
    what = f"SIGSTOP to all taking part again, minus the {deadline}"
    rows = [(what, *_numbers(result["summary"]), "0.15")]
    return "## A node that stops, paced\n\n" + table(("seconds", *_COLUMNS), rows)


def _cables(result: Results | None) -> str:
    if result is None:
        return ""
    rows = [("until it is lost", *_numbers(result["summary"]), "0.6 (median)")]
    return (
        "## A machine whose cable is pulled, paced\n\n"
        f"Four nodes, {len(result['seconds'])} pulls; the node deadline is "
        f"{result['deadline_seconds']:.0f} s.\n\n" + table(("seconds", *_COLUMNS), rows)
    )


def _overload(result: Results | None) -> str:
    if result is None:
        return ""
    rows = [
        ("minutes", f"{result['seconds'] / 60:.0f}"),
        ("busy loops for every core", result["busy_loops_of_a_core"]),
        ("load at the end", f"{result['load_at_the_end']:.1f}"),
        ("nodes stopped and let go on", result["stops"]["count"]),
        ("seconds stopped: median, longest", _median_and_max(result["stops"])),
        ("steps trained", result["steps"]),
        *((f"`{kind}` (wanted: 0)", count) for kind, count in result["losses"].items()),
    ]
    return "## Nobody is lost who is only slow\n\n" + table(("", ""), rows)


def _median_and_max(column: dict[str, float]) -> str:
    return f"{column['median']:.1f}, {column['max']:.1f}"


def _goodput(result: Results | None) -> str:
    if result is None:
        return ""
    rows = [
        ("kills", result["kills"]),
        ("minutes", f"{result['seconds'] / 60:.1f}"),
        ("steps trained", result["steps"]),
        (
            "share of the planner's optimum for the nodes alive, steps as measured",
            f"{result['goodput_of_measured_optimum']:.3f} (wanted: 0.95)",
        ),
        (
            "share of the fastest plan seen for as many nodes, as measured",
            f"{result['goodput_of_quickest_plan']:.3f} (0.95, read strictly)",
        ),
        (
            "share of the planner's optimum for the nodes alive, steps as predicted",
            f"{result['goodput_of_predicted_optimum']:.3f}",
        ),
        ("share of six undisturbed nodes", f"{result['plain_ratio']:.3f}"),
    ]
    plans = [
        (plan["nodes"], plan["layout"], f"{plan['step_seconds']:.3f}", plan["stretches"])
        for plan in result["plans"]
    ]
    return (
        "## Goodput with a kill every 30 s, paced\n\n"
        + table(("", ""), rows)
        + "\nThe plans: microbatches of each pipeline and its layers per stage; an undisturbed "
        "step, in seconds; how many stretches between two changes ended with it.\n\n"
        + table(("nodes alive", "plan", "step", "stretches"), plans)
    )


def _where(results: Results) -> str:
    if not results:
        return ""
    surroundings = [result["surroundings"] for result in results.values()]
    rows = [(name, *result["surroundings"].values()) for name, result in results.items()]
    return "## Where\n\n" + table(("part", *surroundings[0]), rows)


def _numbers(column: dict[str, float]) -> tuple[str, str, str]:
    return f"{column['median']:.3f}", f"{column['p95']:.3f}", f"{column['max']:.3f}"
