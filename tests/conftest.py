"""What all tests share."""

from hypothesis import HealthCheck, settings

settings.register_profile(  # the machine may be busy: how long a thing takes says nothing
    "planaria", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("planaria")
