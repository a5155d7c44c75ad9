"""Numbers in sentences for people."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 node", "2 nodes"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def counted_of(number: int, total: int, noun: str) -> str:
    """Return a part of a number with its noun and verb: "1 of 4 nodes is", "2 of 4 nodes are"."""
    return f"{number} of {counted(total, noun)} {'is' if number == 1 else 'are'}"
