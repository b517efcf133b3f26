"""The address of a Redis as it may be shown: its secrets never, everything else that tells one from another."""

import pytest

from headrace.store.address import without_secrets


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://cache:6379/0", "redis://cache:6379/0"),
        ("redis://:hush@cache:6379/1", "redis://cache:6379/1"),
        ("rediss://name:hush@cache:6380", "rediss://cache:6380"),
        ("redis://name:hu@sh@[::1]:6379/0", "redis://[::1]:6379/0"),
        ("redis://cache:6379/0?password=hush&username=name", "redis://cache:6379/0"),
        ("redis://cache:6379/0#hush", "redis://cache:6379/0"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
        ("unix://name:hush@/run/redis.sock?db=1", "unix:///run/redis.sock"),
        # Not escaped as an address asks for: then a password may look like a host, a path or a fragment.
        ("redis://:hu/sh@cache:6379/0", "redis://cache:6379/0"),
        ("redis://:hu#sh@cache:6379/0", "redis://***"),
        ("redis://:hu?sh@cache:6379/0", "redis://***"),
        ("redis://cache:6379/0?password=hu@sh", "redis://***"),
        (":hush@cache:6379", "***"),
        ("unix:///run/one@two.sock", "unix:///run/one@two.sock"),
    ],
)
def test_an_address_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert without_secrets(url) == shown
