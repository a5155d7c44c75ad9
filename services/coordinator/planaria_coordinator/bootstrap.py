"""The composition root: puts the coordinator together from its settings, and takes it apart."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from planaria.api.coordinator.v1.cluster_service_pb2_grpc import (
    add_ClusterServiceServicer_to_server,
)
from planaria.api.coordinator.v1.job_service_pb2_grpc import add_JobServiceServicer_to_server
from planaria.api.coordinator.v1.scheduler_service_pb2_grpc import (
    add_SchedulerServiceServicer_to_server,
)
from planaria.api.worker.v1.worker_service_pb2_grpc import add_WorkerServiceServicer_to_server
from planaria.models import Info
from planaria_common.clock import SystemClock
from planaria_common.credentials import TOKEN_FILE_NAME, ensure_token, read_token
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.grpcserver import GrpcServer, Register
from planaria_common.version import PROTOCOL_VERSION, package_version
from planaria_coordinator.adapters.database.unit_of_work import SqlDatabase, open_database
from planaria_coordinator.adapters.planner_client import PlannerClient
from planaria_coordinator.application.coordinator import Coordinator
from planaria_coordinator.application.options import Options
from planaria_coordinator.entrypoints.grpc.cluster_service import ClusterServicer
from planaria_coordinator.entrypoints.grpc.custom_policy import CustomPolicy
from planaria_coordinator.entrypoints.grpc.job_service import JobServicer
from planaria_coordinator.entrypoints.grpc.scheduler_service import SchedulerServicer
from planaria_coordinator.entrypoints.grpc.scheduler_sessions import SchedulerSessions
from planaria_coordinator.entrypoints.grpc.worker_service import WorkerServicer
from planaria_coordinator.entrypoints.http.app import create_app
from planaria_coordinator.entrypoints.http.dependencies import Provided
from planaria_coordinator.entrypoints.http.security import AccessRules
from planaria_coordinator.entrypoints.http.server import HttpServer
from planaria_coordinator.settings import CoordinatorSettings

STOP_GRACE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Where a running coordinator is reached."""

    grpc_address: str
    http_url: str
    was_replaced: asyncio.Event
    """Set when another coordinator has opened the database: this one can only end."""
    until_http_ends: Callable[[], Coroutine[Any, Any, None]]
    """Returns, or raises, when users are served no more: this one can only end."""


@asynccontextmanager
async def run_coordinator(settings: CoordinatorSettings) -> AsyncIterator[Endpoints]:
    """Run a coordinator inside the block; leaving it drains and stops everything.

    Raises:
        PlanariaError: a setting is wrong, a port is in use, or the database cannot be used;
            NOT_LEADER: another coordinator uses this file of SQLite.
    """
    token = find_token(settings)
    stopping = asyncio.Event()
    schedulers = SchedulerSessions()
    async with AsyncExitStack() as running:
        database = await open_database(
            settings.url_of_database, max_log_lines_per_job=settings.max_log_lines_per_job
        )
        running.push_async_callback(database.close)
        planner = PlannerClient(
            settings.planner_addresses,
            token=token,
            deadline_seconds=settings.planner_deadline_seconds,
        )
        running.push_async_callback(planner.close)
        coordinator = Coordinator(
            database=database,
            planner=planner,
            policy=_policy(settings, schedulers),
            clock=SystemClock(),
            options=_options(settings),
            new_id=new_id,
        )
        await coordinator.start()
        running.push_async_callback(coordinator.stop)

        grpc_server = _grpc_server(settings, token, coordinator, schedulers, stopping)
        await grpc_server.start()
        running.push_async_callback(grpc_server.stop, grace_seconds=STOP_GRACE_SECONDS)
        http_server = _http_server(
            settings,
            token=token,
            grpc_server=grpc_server,
            coordinator=coordinator,
            database=database,
            stopping=stopping,
        )
        await http_server.start()
        running.push_async_callback(http_server.stop, grace_seconds=STOP_GRACE_SECONDS)
        try:
            yield Endpoints(
                grpc_address=_address(settings, grpc_server.port),
                http_url=_url(settings, http_server.port),
                was_replaced=database.was_replaced,
                until_http_ends=http_server.wait_until_ended,
            )
        finally:
            stopping.set()  # /readyz says so, and streams to watchers end
            await grpc_server.set_ready(False)
            schedulers.close_all()


def find_token(settings: CoordinatorSettings) -> str:
    """Return the cluster's token; made at the first start when only this machine can connect.

    Raises:
        InvalidArgumentError: other machines could connect, and there is no token file.
        AccessError: the token file does not keep the token secret, or cannot be read.
    """
    if settings.token_file is not None:
        return read_token(settings.token_file.expanduser())
    path = settings.data_folder / TOKEN_FILE_NAME
    if not settings.listens_on_loopback_only and not path.exists():
        raise PlanariaError(
            ErrorReason.INVALID_ARGUMENT,
            f"--host {settings.host}: other machines can reach this address, so a token is "
            "needed: give its file with --token-file (PLANARIA_COORDINATOR_TOKEN_FILE), "
            "or listen on 127.0.0.1",
            {"field": "--token-file", "host": settings.host},
        )
    return ensure_token(settings.data_folder)


def new_id(kind: str) -> str:
    """Return a unique id such as job-4f2a91c0; only people's ids are short."""
    return f"{kind}-{secrets.token_hex(4 if kind == 'job' else 8)}"


def _options(settings: CoordinatorSettings) -> Options:
    return Options(
        heartbeat_interval_seconds=settings.heartbeat_interval_seconds,
        node_deadline_seconds=settings.node_deadline_seconds,
        agent_lease_seconds=settings.agent_lease_seconds,
        directive_deadline_seconds=settings.directive_deadline_seconds,
        progress_deadline_seconds=settings.progress_deadline_seconds,
        prepare_deadline_seconds=settings.prepare_deadline_seconds,
    )


def _policy(settings: CoordinatorSettings, schedulers: SchedulerSessions) -> CustomPolicy:
    return CustomPolicy(
        schedulers,
        decision_deadline_seconds=settings.decision_deadline_seconds,
        new_id=new_id,
    )


def _grpc_server(
    settings: CoordinatorSettings,
    token: str,
    coordinator: Coordinator,
    schedulers: SchedulerSessions,
    stopping: asyncio.Event,
) -> GrpcServer:
    jobs = JobServicer(coordinator.jobs, stopping=stopping)
    cluster = ClusterServicer(coordinator.cluster, coordinator.events, stopping=stopping)
    scheduler = SchedulerServicer(
        schedulers, decision_deadline_seconds=settings.decision_deadline_seconds
    )
    worker = WorkerServicer(coordinator.sessions)
    services: dict[str, Register] = {
        "planaria.api.coordinator.v1.JobService": partial(add_JobServiceServicer_to_server, jobs),
        "planaria.api.coordinator.v1.ClusterService": partial(
            add_ClusterServiceServicer_to_server, cluster
        ),
        "planaria.api.coordinator.v1.SchedulerService": partial(
            add_SchedulerServiceServicer_to_server, scheduler
        ),
        "planaria.api.worker.v1.WorkerService": partial(
            add_WorkerServiceServicer_to_server, worker
        ),
    }
    return GrpcServer(
        part="coordinator",
        services=services,
        host=settings.host,
        port=settings.grpc_port,
        token=token,
        port_flag="--grpc-port",
    )


def _http_server(
    settings: CoordinatorSettings,
    *,
    token: str,
    grpc_server: GrpcServer,
    coordinator: Coordinator,
    database: SqlDatabase,
    stopping: asyncio.Event,
) -> HttpServer:
    def info() -> Info:
        return Info(
            version=package_version(),
            protocol_version=PROTOCOL_VERSION,
            grpc_endpoints=(_address(settings, grpc_server.port),),
            http_url=_url(settings, server.port),
        )

    provided = Provided(
        coordinator=coordinator,
        statistics=database,
        clock=SystemClock(),
        stopping=stopping,
        info=info,
    )
    app = create_app(provided, rules=_access_rules(settings, token), web_dir=settings.web_dir)
    server = HttpServer(app, host=settings.host, port=settings.http_port, port_flag="--http-port")
    return server


def _access_rules(settings: CoordinatorSettings, token: str) -> AccessRules:
    return AccessRules(
        token=token,
        reads_need_token=not settings.listens_on_loopback_only,
        hosts=frozenset(settings.hosts),
        origins=frozenset(origin.lower() for origin in settings.allowed_origins),
        max_body_bytes=settings.max_request_bytes,
    )


def _address(settings: CoordinatorSettings, port: int) -> str:
    host = settings.reachable_host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _url(settings: CoordinatorSettings, port: int) -> str:
    return f"http://{_address(settings, port)}"
