"""Fixtures that every test may use."""

import resource
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

pytest_plugins = ["fixtures.ray_head", "fixtures.redis_server"]

# Each UCX link of this process stays parked with its descriptors (see transfer/ucx.py), and the suite makes hundreds.
_, _most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (_most, _most))

# The same examples in each run, and no clock but each test's own timeout: a busy machine draws its examples slowly.
settings.register_profile("suite", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    """A command has a process to itself and leaves its log as it set it; here other tests come after it."""
    logging, bound = structlog.get_config(), structlog.contextvars.get_contextvars()
    yield
    structlog.configure(**logging)
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**bound)
