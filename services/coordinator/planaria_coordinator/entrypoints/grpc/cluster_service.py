"""ClusterService: the application's Cluster and Events over gRPC."""
# ruff: noqa: N802 - the protos name the methods

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from planaria.api.coordinator.v1 import cluster_service_pb2 as pb
from planaria.api.coordinator.v1 import cluster_service_pb2_grpc, resources_pb2
from planaria_common.messages import from_message, to_message
from planaria_coordinator.application.cluster import Cluster
from planaria_coordinator.application.events import Events
from planaria_coordinator.application.paging import PageRequest
from planaria_coordinator.entrypoints.streams import until_stopped

Context = grpc.aio.ServicerContext[Any, Any]


class ClusterServicer(cluster_service_pb2_grpc.ClusterServiceServicer):
    """Serves `planaria.api.coordinator.v1.ClusterService`."""

    def __init__(self, cluster: Cluster, events: Events, *, stopping: asyncio.Event) -> None:
        self._cluster = cluster
        self._events = events
        self._stopping = stopping

    async def ListNodes(
        self, request: pb.ListNodesRequest, _context: Context
    ) -> pb.ListNodesResponse:
        page = await self._cluster.list(from_message(request, PageRequest))
        nodes = [to_message(node, resources_pb2.Node) for node in page.items]
        return pb.ListNodesResponse(nodes=nodes, next_page_token=page.next_page_token)

    async def GetNode(self, request: pb.GetNodeRequest, _context: Context) -> pb.GetNodeResponse:
        return pb.GetNodeResponse(
            node=to_message(await self._cluster.get(request.node_id), resources_pb2.Node)
        )

    async def CordonNode(
        self, request: pb.CordonNodeRequest, _context: Context
    ) -> pb.CordonNodeResponse:
        node = await self._cluster.cordon(request.node_id, request_id=request.request_id)
        return pb.CordonNodeResponse(node=to_message(node, resources_pb2.Node))

    async def UncordonNode(
        self, request: pb.UncordonNodeRequest, _context: Context
    ) -> pb.UncordonNodeResponse:
        node = await self._cluster.uncordon(request.node_id, request_id=request.request_id)
        return pb.UncordonNodeResponse(node=to_message(node, resources_pb2.Node))

    async def DrainNode(
        self, request: pb.DrainNodeRequest, _context: Context
    ) -> pb.DrainNodeResponse:
        node = await self._cluster.drain(request.node_id, request_id=request.request_id)
        return pb.DrainNodeResponse(node=to_message(node, resources_pb2.Node))

    async def EvictNode(
        self, request: pb.EvictNodeRequest, _context: Context
    ) -> pb.EvictNodeResponse:
        node = await self._cluster.evict(request.node_id, request_id=request.request_id)
        return pb.EvictNodeResponse(node=to_message(node, resources_pb2.Node))

    async def RemoveNode(
        self, request: pb.RemoveNodeRequest, _context: Context
    ) -> pb.RemoveNodeResponse:
        await self._cluster.remove(request.node_id, request_id=request.request_id)
        return pb.RemoveNodeResponse()

    async def ListEvents(
        self, request: pb.ListEventsRequest, _context: Context
    ) -> pb.ListEventsResponse:
        page = await self._events.list(from_message(request, PageRequest), job_id=request.job_id)
        events = [to_message(event, resources_pb2.Event) for event in page.items]
        return pb.ListEventsResponse(events=events, next_page_token=page.next_page_token)

    async def WatchEvents(
        self, request: pb.WatchEventsRequest, _context: Context
    ) -> AsyncIterator[pb.WatchEventsResponse]:
        events = self._events.watch(after_sequence=request.after_sequence, job_id=request.job_id)
        async for event in until_stopped(events, stopping=self._stopping):
            if event is not None:
                yield pb.WatchEventsResponse(event=to_message(event, resources_pb2.Event))
