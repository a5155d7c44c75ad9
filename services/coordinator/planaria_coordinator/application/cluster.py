"""What users do with nodes. REST and gRPC are two faces of this class."""

from planaria_coordinator.application.ports import Page
from planaria_coordinator.domain.node import Node


class Cluster:
    """Reads and changes nodes."""

    async def list(self, *, page_size: int = 0, page_token: str = "") -> Page[Node]:
        """List nodes by id with their engines; 1,000 unless told otherwise."""
        raise NotImplementedError

    async def get(self, node_id: str) -> Node:
        """Read a node. Raises NODE_NOT_FOUND."""
        raise NotImplementedError

    async def cordon(self, node_id: str, *, request_id: str = "") -> Node:
        """Keep new work off a node. Idempotent. Raises NODE_NOT_FOUND or WRONG_STATE."""
        raise NotImplementedError

    async def uncordon(self, node_id: str, *, request_id: str = "") -> Node:
        """End a cordon or a drain. Idempotent. Raises NODE_NOT_FOUND or WRONG_STATE."""
        raise NotImplementedError

    async def drain(self, node_id: str, *, request_id: str = "") -> Node:
        """Free a node of its work without losing a microbatch. Idempotent.

        Raises:
            PlanariaError: NODE_NOT_FOUND or WRONG_STATE.
        """
        raise NotImplementedError

    async def remove(self, node_id: str, *, request_id: str = "") -> None:
        """Forget a node that is lost or drained. Raises NODE_NOT_FOUND or WRONG_STATE."""
        raise NotImplementedError
