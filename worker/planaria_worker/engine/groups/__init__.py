"""Groups of engines that exchange tensors, of one generation: built directly, without global state.

    server = StoreServer(host)                      # one per engine, at its start
    communicators = Communicators(engine_id=..., host=host, device=..., ...)
    groups = communicators.build(specs, store_address=..., prefix="<job>/<generation>/", ...)
    groups.links["forward-0"].send(tensor, dst=1)   # between neighbours of a pipeline
    groups.data_parallel["owners-3"].all_reduce(tensor)      # across the owners of a layer
    communicators.shut()                            # from any thread: ends all waits at once

Read in this order: group_spec, group, pipeline_link, data_parallel_group; communicators and
rendezvous (how groups are built); current_groups (which ones an engine has); transport/ (what moves
the tensors); liveness_beacon (which peers watch: recovery/failure_detector).
"""

from planaria_worker.engine.groups.communicators import Communicators, Groups
from planaria_worker.engine.groups.data_parallel_group import DataParallelGroup
from planaria_worker.engine.groups.group import Group, GroupBroken, Work, require_open
from planaria_worker.engine.groups.group_spec import GroupKind, GroupSpec
from planaria_worker.engine.groups.pipeline_link import PipelineLink
from planaria_worker.engine.groups.rendezvous import StoreServer
from planaria_worker.engine.groups.streams import own_stream

__all__ = [
    "Communicators",
    "DataParallelGroup",
    "Group",
    "GroupBroken",
    "GroupKind",
    "GroupSpec",
    "Groups",
    "PipelineLink",
    "StoreServer",
    "Work",
    "own_stream",
    "require_open",
]
