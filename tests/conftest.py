"""What all tests share."""

import pytest
import structlog
from hypothesis import HealthCheck, Phase, settings

settings.register_profile(  # the machine may be busy: how long a thing takes says nothing
    "planaria", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(  # where it is enough that something fails
    "first-failure", settings.get_profile("planaria"), phases=[Phase.explicit, Phase.generate]
)
settings.load_profile("planaria")

*_processors, _ = structlog.get_config()["processors"]
structlog.configure(  # as services log: the values of local variables take seconds to write
    processors=[
        *_processors,
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--dist loadgroup` one worker runs all tests of a file, or of the shared cluster."""
    for item in items if getattr(config.option, "loadgroup", False) else ():
        is_shared = "shared_cluster" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("cluster" if is_shared else item.path.name))
