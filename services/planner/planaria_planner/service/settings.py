"""The planner's settings."""

from pydantic import Field

from planaria_common.settings import ServiceSettings


class PlannerSettings(ServiceSettings, env_prefix="PLANARIA_PLANNER_"):
    """Where the planner listens."""

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=50061, ge=0, le=65535, description="Port; 0 takes a free one.")
    grace_seconds: float = Field(
        default=5.0, ge=0, description="How long calls under way may take once it stops."
    )
