"""What all tests share."""

from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, Phase, settings

from support.engines.zygote import Zygote

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


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Return the process that engines and services of tests are forked from."""
    zygote = Zygote()
    yield zygote
    zygote.close()
