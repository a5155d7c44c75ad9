"""What the records of a suite come to, as Markdown."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from benchmarks.common.cells import PASSED, Record
from benchmarks.common.results import table
from benchmarks.verification.suites import Suite


def summarise(suite: Suite, records: Sequence[Record], cells: Collection[str]) -> str:
    """Return a page: how many cells passed where, and which did not."""
    outcomes = Counter(record.outcome for record in records)
    missing = len(cells) - len(records)
    dates = sorted(record.date[:10] for record in records)
    rows = [
        ("what", suite.about),
        ("cells", len(cells)),
        *((outcome, number) for outcome, number in sorted(outcomes.items())),
        *([("not run", missing)] if missing else []),
        ("minutes", f"{sum(record.seconds for record in records) / 60:.0f}"),
        *([("seeds", _listed(record.seed for record in records))] if suite.has_seed else []),
        ("commits", _listed(record.commit for record in records)),
        ("machines", _listed(record.machine for record in records)),
        ("dates", " to ".join(dict.fromkeys([*dates[:1], *dates[-1:]]))),
    ]
    text = [
        f"# {suite.name.capitalize()}\n\n"
        f"Written by `python -m benchmarks.verification {suite.name}`. Each cell is in"
        f" [{suite.results.name}]({suite.results.name}).\n\n",
        table(("", ""), rows),
    ]
    others = [record for record in records if record.outcome != PASSED]
    if others:
        lines = [(f"`{each.cell}`", each.outcome, each.commit) for each in others]
        text += ["\n", table(("cell", "outcome", "commit"), lines)]
    return "".join(text)


def _listed(values: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values))
