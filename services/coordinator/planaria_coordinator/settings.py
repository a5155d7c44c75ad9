"""What the coordinator is given when it starts; docs/reference/settings.md lists them."""

import socket
from pathlib import Path

from pydantic import Field, PositiveFloat, PositiveInt, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from planaria_common.netutil import is_loopback
from planaria_common.settings import CommaSeparated, ServiceSettings

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - recognised, not listened on


class CoordinatorSettings(ServiceSettings):
    """Settings of `planaria-coordinator`."""

    model_config = SettingsConfigDict(env_prefix="PLANARIA_COORDINATOR_")

    data_dir: Path = Field(
        default=Path("~/.local/share/planaria/coordinator"),
        description="Folder of the token and of the SQLite database.",
    )
    database_url: str | None = Field(
        default=None,
        description="sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME; "
        "SQLite in the data directory when not given.",
    )
    host: str = Field(default="127.0.0.1", description="Address that both servers listen on.")
    http_port: int = Field(default=8080, ge=0, le=65535, description="REST and the page; 0: any.")
    grpc_port: int = Field(default=50051, ge=0, le=65535, description="gRPC; 0 takes a free one.")
    planner_addresses: CommaSeparated = Field(
        default=("127.0.0.1:50061",),
        min_length=1,
        description="HOST:PORT of each planner, comma-separated.",
    )
    web_dir: Path | None = Field(
        default=None, description="Folder with the built page (web/dist); no page without it."
    )
    allowed_hosts: CommaSeparated = Field(
        default=(),
        description="Host names that HTTP requests may use, besides loopback's and --host.",
    )
    allowed_origins: CommaSeparated = Field(
        default=(), description="Origins of pages that may call, besides the server's own."
    )
    max_request_bytes: PositiveInt = Field(
        default=1 << 20, description="Largest body of an HTTP request."
    )
    heartbeat_interval_seconds: PositiveFloat = Field(
        default=1.0, description="How often agents send a heartbeat."
    )
    node_deadline_seconds: PositiveFloat = Field(
        default=3.0, description="After how long without a heartbeat a node is lost."
    )
    agent_lease_seconds: PositiveFloat = Field(
        default=10.0, description="How long engines continue without their agent."
    )
    directive_deadline_seconds: PositiveFloat = Field(
        default=5.0, description="How long an engine may take for a directive."
    )
    progress_deadline_seconds: PositiveFloat = Field(
        default=5.0,
        description="The least time without progress before an engine counts as hung.",
    )
    prepare_deadline_seconds: PositiveFloat = Field(
        default=120.0, description="How long an engine may take to start."
    )
    decision_deadline_seconds: PositiveFloat = Field(
        default=5.0, description="How long a custom scheduler may take to decide."
    )
    planner_deadline_seconds: PositiveFloat = Field(
        default=30.0, description="How long the planner may take to plan."
    )
    max_log_lines_per_job: PositiveInt = Field(
        default=10_000, description="Newest lines kept of each job's log."
    )

    @field_validator("node_deadline_seconds")
    @classmethod
    def _several_heartbeats(cls, seconds: float, info: ValidationInfo) -> float:
        interval = info.data.get("heartbeat_interval_seconds", 0.0)
        if seconds < 2 * interval:
            raise ValueError(
                f"{seconds:g} is too short: one late heartbeat would lose a node; "
                f"at least two heartbeat intervals ({2 * interval:g}) would be right"
            )
        return seconds

    @property
    def data_folder(self) -> Path:
        """The data directory, with `~` resolved."""
        return self.data_dir.expanduser()

    @property
    def url_of_database(self) -> str:
        """The database's URL, the default one included."""
        return self.database_url or f"sqlite:///{self.data_folder / 'coordinator.db'}"

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names under which HTTP requests may address this server."""
        names = (*LOOPBACK_HOSTS, self.reachable_host, *self.allowed_hosts)
        return tuple(name.lower() for name in names)

    @property
    def reachable_host(self) -> str:
        """The host in the addresses that this coordinator tells others."""
        return socket.gethostname() if self.host in _WILDCARDS else self.host

    @property
    def listens_on_loopback_only(self) -> bool:
        """Whether other machines cannot connect."""
        return is_loopback(self.host)
