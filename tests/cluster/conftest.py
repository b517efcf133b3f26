"""Clusters shared by the tests of a module, over every link; each leaves its cluster as whole as it found it."""

from collections.abc import Iterator

import pytest
from fixtures.cluster import LINKS, Cluster, running

# A step takes as long as a small model's, so that a kill lands among running requests.
SLOW_FAKE = ("--engine=fake", "--fake-step-ms=10")
FAST_LEASES = ("--lease-ttl-s=2", "--lease-every-s=0.5")


@pytest.fixture(scope="module", params=LINKS)
def link(request: pytest.FixtureRequest) -> str:
    """How pages travel. Tests that kill a worker leave out the link that has both in one process."""
    return str(request.param)


@pytest.fixture(scope="module")
def exact_cluster(link: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One prefill, one decode worker with the real model in float32."""
    with running(tmp_path_factory.mktemp("exact"), "--dtype=float32", link=link) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def pair(link: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One prefill, one decode worker with the fake engine: real pages and wires, no weights."""
    with running(tmp_path_factory.mktemp("pair"), *SLOW_FAKE, *FAST_LEASES, link=link) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def quartet(link: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two prefill, two decode workers with the fake engine."""
    roles = ("--prefill=2", "--decode=2")
    with running(tmp_path_factory.mktemp("quartet"), *SLOW_FAKE, *FAST_LEASES, *roles, link=link) as cluster:
        yield cluster
