"""/api/v1/nodes"""

from fastapi import APIRouter

from planaria import models
from planaria_coordinator.application.ports import Page
from planaria_coordinator.domain.engines.node import Node
from planaria_coordinator.entrypoints.http import lists
from planaria_coordinator.entrypoints.http.dependencies import ClusterDep, PageDep

router = APIRouter(prefix="/api/v1/nodes", tags=["nodes"])

_NO_CHANGE = models.Change()


@router.get("", response_model=lists.NodeList)
async def list_nodes(cluster: ClusterDep, page: PageDep) -> Page[Node]:
    """List nodes by id; 1,000 by default."""
    return await cluster.list(page)


@router.get("/{node_id}", response_model=models.Node)
async def get_node(node_id: str, cluster: ClusterDep) -> Node:
    """Read a node."""
    return await cluster.get(node_id)


@router.post("/{node_id}:cordon", response_model=models.Node)
async def cordon_node(
    node_id: str, cluster: ClusterDep, change: models.Change = _NO_CHANGE
) -> Node:
    """Keep new work off a node."""
    return await cluster.cordon(node_id, request_id=change.request_id)


@router.post("/{node_id}:uncordon", response_model=models.Node)
async def uncordon_node(
    node_id: str, cluster: ClusterDep, change: models.Change = _NO_CHANGE
) -> Node:
    """End a cordon or a drain."""
    return await cluster.uncordon(node_id, request_id=change.request_id)


@router.post("/{node_id}:drain", response_model=models.Node)
async def drain_node(node_id: str, cluster: ClusterDep, change: models.Change = _NO_CHANGE) -> Node:
    """Free a node of its work without losing a microbatch."""
    return await cluster.drain(node_id, request_id=change.request_id)


@router.post("/{node_id}:evict", response_model=models.Node)
async def evict_node(node_id: str, cluster: ClusterDep, change: models.Change = _NO_CHANGE) -> Node:
    """Declare a node lost that is known to be gone for good."""
    return await cluster.evict(node_id, request_id=change.request_id)


@router.delete("/{node_id}", status_code=204)
async def remove_node(node_id: str, cluster: ClusterDep) -> None:
    """Forget a node that is lost or drained."""
    await cluster.remove(node_id)
