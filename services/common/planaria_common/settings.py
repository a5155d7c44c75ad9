"""The base of every service's settings: twelve-factor, read once in `__main__`, then passed down.

A service subclasses it with its own prefix:

    class PlannerSettings(ServiceSettings, env_prefix="PLANARIA_PLANNER_"):
        port: int = 50061

Then `--port` on the command line wins over `PLANARIA_PLANNER_PORT`, which wins over the default.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.logging import LogFormat, LogLevel


class ServiceSettings(BaseSettings):
    """Frozen settings that every service has; `A__B` sets field `b` of the group `a`."""

    model_config = SettingsConfigDict(
        frozen=True,
        env_nested_delimiter="__",
        extra="forbid",
        validate_default=True,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_avoid_json=True,
    )

    token_file: Path | None = Field(
        default=None, description="File of mode 0600 with the cluster's token."
    )
    log_format: LogFormat = Field(
        default="auto", description="Log lines as JSON or key-value; auto asks the terminal."
    )
    log_level: LogLevel = Field(default="info", description="Lines below this level are dropped.")


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


CommaSeparated = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
"""A list written as `a,b,c` in the environment and on the command line."""

SettingsT = TypeVar("SettingsT", bound=ServiceSettings)


def load_settings(
    settings_type: type[SettingsT], *, program: str, arguments: Sequence[str]
) -> SettingsT:
    """Read settings from the command line, the environment and the defaults, in this order.

    Args:
        settings_type: what to read.
        program: the command's name, for its help.
        arguments: the command line without the program.

    Raises:
        InvalidArgumentError: a value is wrong; names the option and the environment variable.
        SystemExit: the command line asks for help (0) or cannot be parsed (2).
    """
    make: Callable[..., SettingsT] = settings_type  # the arguments with _ are not in its signature
    try:
        return make(_cli_parse_args=list(arguments), _cli_prog_name=program)
    except ValidationError as error:
        raise _wrong_setting(settings_type, error) from None


def _wrong_setting(settings_type: type[ServiceSettings], error: ValidationError) -> PlanariaError:
    first = error.errors(include_url=False)[0]
    names = [str(part) for part in first["loc"] if isinstance(part, str)]
    option = "--" + ".".join(names).replace("_", "-")
    variable = (settings_type.model_config.get("env_prefix") or "") + "__".join(names).upper()
    problem = first["msg"][:1].lower() + first["msg"][1:]
    return PlanariaError(
        ErrorReason.INVALID_ARGUMENT,
        f"{option} ({variable}): {problem}",
        {"field": option, "variable": variable},
    )
