"""Whether this process may do what `planaria_common.priority` asks for."""

import os
import threading

from planaria_common.priority import come_first


def may_come_first() -> bool:
    """Tried by a thread of its own, which ends with it."""
    found: list[int] = []

    def attempt() -> None:
        come_first()
        found.append(os.getpriority(os.PRIO_PROCESS, 0))

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return found != [os.getpriority(os.PRIO_PROCESS, 0)]
