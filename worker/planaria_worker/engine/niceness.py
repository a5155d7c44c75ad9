"""Who computes gives way to who decides, where both want the same core.

A failure is noticed, told and answered by threads that sleep nearly all the time: the agent, the
coordinator, an engine's control thread and its watch of peers. Where cores are short, each of their
turns would wait until a training thread's slice is over, and a recovery is a dozen turns.

Linux may divide the processor among sessions first, and by niceness only within each (sched(7),
"The autogroup feature"). Engines therefore stay in the session of their agent, and what
`planaria up` starts in that of its user: in groups of processes of their own.
"""

import os


def lower_thread(niceness: int) -> None:
    """Makes the calling thread, and those that it starts from now on, `niceness` steps nicer."""
    if niceness:
        os.nice(niceness)  # on Linux a thread's own
