"""Fixtures that every test may use."""

pytest_plugins = ["fixtures.redis_server"]
