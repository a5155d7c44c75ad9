"""Niceness of threads and of what they start. Each test has a thread of its own to change."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from planaria_common import priority
from support.priority import may_come_first


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


ORDINARY = niceness()


def in_thread(action: Callable[[], list[int]]) -> list[int]:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(action()))
    thread.start()
    thread.join()
    return found


permitted = pytest.mark.skipif(
    not may_come_first(), reason="no permission: run as root, with CAP_SYS_NICE or ulimit -e 25"
)


@permitted
def test_a_higher_priority_is_inherited_and_others_keep_theirs() -> None:
    def first() -> list[int]:
        priority.come_first()
        return [niceness(), *in_thread(lambda: [niceness()])]

    assert in_thread(first) == [ORDINARY - priority.AHEAD] * 2
    assert niceness() == ORDINARY


@permitted
def test_a_thread_can_lower_its_priority_for_good_or_for_a_while() -> None:
    """For good, as a thread that was started by one that comes first; and while others start."""

    def child() -> list[int]:
        priority.stand_back()
        return [niceness()]

    def first() -> list[int]:
        priority.come_first()
        with priority.standing_back():
            inside = niceness()
        return [*in_thread(child), inside, niceness()]

    assert in_thread(first) == [ORDINARY, ORDINARY, ORDINARY - priority.AHEAD]


def test_without_permission_all_have_the_same() -> None:
    """And nothing fails. A process with a limit of its own, and no capabilities."""
    code = (
        "import os, resource\n"
        "from planaria_common import priority\n"
        "resource.setrlimit(resource.RLIMIT_NICE, (0, 0))\n"
        "os.getuid() or os.setuid(65534)\n"
        "before = os.getpriority(os.PRIO_PROCESS, 0)\n"
        "priority.come_first()\n"
        "with priority.standing_back(): pass\n"
        "assert os.getpriority(os.PRIO_PROCESS, 0) == before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
