"""Fixtures that every test may use."""

import resource

pytest_plugins = ["fixtures.ray_head", "fixtures.redis_server"]

# Each UCX link of this process stays parked with its descriptors (see transfer/ucx.py), and the suite makes hundreds.
_, _most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (_most, _most))
