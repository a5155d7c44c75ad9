"""Numbers in sentences for people; `planaria_common.words` is the same for the services."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 node", "2 nodes"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
