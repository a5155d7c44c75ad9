"""How nice a process's threads are, by what the kernel says of them."""

from pathlib import Path


def niceness_of_threads(pid: int | str) -> tuple[int, ...]:
    """Return that of each thread, the first one's first."""
    tasks = sorted((Path("/proc") / str(pid) / "task").iterdir(), key=lambda task: int(task.name))
    return tuple(_niceness(task) for task in tasks)


def _niceness(task: Path) -> int:
    behind_the_name = (task / "stat").read_text().rpartition(")")[2].split()
    return int(behind_the_name[16])
