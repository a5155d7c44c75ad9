"""Process groups of one generation: made directly, without any global state, and shut at will.

server = StoreServer(host)                      # one per engine, at its start
communicators = Communicators(engine_id=..., host=host, device=..., ...)
groups = communicators.build(specs, store_address=..., prefix="<job>/<generation>/", ...)
groups["pipeline-0"].send(tensor, dst=1)
communicators.shut()                            # from any thread: everybody wakes up at once
"""

from planaria_worker.engine.groups.communicators import Communicators
from planaria_worker.engine.groups.errors import GroupBroken
from planaria_worker.engine.groups.group import Group, Work, require_open
from planaria_worker.engine.groups.rendezvous import StoreServer
from planaria_worker.engine.groups.streams import beside

__all__ = [
    "Communicators",
    "Group",
    "GroupBroken",
    "StoreServer",
    "Work",
    "beside",
    "require_open",
]
