"""What the server says of itself: /info, /healthz, /readyz and /metrics."""

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from planaria import models
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.entrypoints.http import prometheus
from planaria_coordinator.entrypoints.http.dependencies import ProvidedDep

router = APIRouter()


@router.get("/api/v1/info", tags=["cluster"], response_model=models.Info)
async def get_info(provided: ProvidedDep) -> models.Info:
    """Read how to reach this cluster, and what it is."""
    return provided.info()


@router.get("/healthz", tags=["probes"], response_class=PlainTextResponse)
async def check_health() -> str:
    """Answer as long as the process works."""
    return "ok\n"


@router.get("/readyz", tags=["probes"], response_class=PlainTextResponse)
async def check_readiness(provided: ProvidedDep) -> str:
    """Answer when the database and a planner do, too; 503 otherwise, and while stopping."""
    if provided.stopping.is_set():
        raise PlanariaError(
            ErrorReason.UNAVAILABLE, "the coordinator is stopping", {"part": "coordinator"}
        )
    await provided.coordinator.check_ready()
    return "ok\n"


@router.get("/metrics", tags=["probes"], response_class=PlainTextResponse)
async def read_metrics(provided: ProvidedDep) -> Response:
    """Read the metrics in Prometheus' text format."""
    snapshot = await prometheus.take_snapshot(
        provided.coordinator, provided.statistics, provided.clock.now()
    )
    return Response(prometheus.render(snapshot), media_type=prometheus.CONTENT_TYPE)
