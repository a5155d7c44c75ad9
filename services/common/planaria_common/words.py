"""Numbers in sentences for people."""

from collections.abc import Iterable, Sequence

_MAX_NAMES = 5


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 node", "2 nodes"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def ranges_of(numbers: Iterable[int]) -> str:
    """Return numbers in order, neighbours together: "0, 3-5"."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in ranges)


def names_of(names: Sequence[str]) -> str:
    """Return names, of many the first ones: "a, b, c, d, e and 95 others"."""
    if len(names) <= _MAX_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:_MAX_NAMES])} and {counted(len(names) - _MAX_NAMES, 'other')}"


def bytes_in_words(size: float) -> str:
    """Return a number of bytes for people: "8.47 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def counted_of(number: int, total: int, noun: str) -> str:
    """Return a part of a number with its noun and verb: "1 of 4 nodes is", "2 of 4 nodes are"."""
    return f"{number} of {counted(total, noun)} {'is' if number == 1 else 'are'}"
