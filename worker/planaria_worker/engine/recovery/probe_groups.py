"""Send messages of real size over new groups before anybody trains with them.

Groups can be built over a link that drops only large packets, or one direction. All members probe
their groups in the order in which they were built. What stalls is reported like any other message.
"""

from collections.abc import Sequence

import torch

from planaria_worker.engine.groups import GroupKind, Groups, GroupSpec, PipelineLink, Work

_LARGE_BYTES = 1 << 20
"""As activations and buckets: many packets, and more than the kernel takes at once."""
_SMALL_BYTES = 1 << 12
"""As votes and decisions."""


def probe_groups(
    groups: Groups, specs: Sequence[GroupSpec], *, device: torch.device, is_on_host: bool
) -> None:
    """Exchange messages with all members of some groups, both ways.

    Args:
        groups: those that were built.
        specs: in the order in which all engines built them.
        device: of the tensors.
        is_on_host: whether all groups carry messages through host memory; NCCL has sent messages
            of its own while it connected, and its groups are not probed.

    Raises:
        GroupBroken: a group was shut meanwhile.
    """
    for spec in specs:
        is_small = spec.kind in (GroupKind.COMMIT_MESSAGES, GroupKind.VOTE_SUM)
        is_here = spec.kind is GroupKind.COMMIT_MESSAGES
        if not (is_on_host or is_here):
            continue
        num_bytes = _SMALL_BYTES if is_small else _LARGE_BYTES
        where = torch.device("cpu") if is_here else device
        link, sums = groups.links.get(spec.name), groups.data_parallel.get(spec.name)
        if link is not None:
            _exchange(link, num_bytes, where)
        elif sums is not None:
            sums.all_reduce(torch.zeros(num_bytes // 4, device=where))


def _exchange(link: PipelineLink, num_bytes: int, device: torch.device) -> None:
    """Send to both neighbours, and receive from both."""
    neighbours = [r for r in (link.rank - 1, link.rank + 1) if 0 <= r < link.size]
    buffers = [torch.zeros(num_bytes, dtype=torch.uint8, device=device) for _ in range(4)]
    works: list[Work] = []
    for number, rank in enumerate(neighbours):
        works.append(link.irecv(buffers[2 * number], rank))
        works.append(link.isend(buffers[2 * number + 1], rank))
    for work in works:
        work.wait()
