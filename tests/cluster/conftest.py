"""Clusters shared by the tests of a module or of the session; each is stopped by whoever started it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.cluster import Cluster, running


@pytest.fixture(scope="session")
def exact_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One prefill, one decode worker with the real model in float32, pages over UCX."""
    with running(_directory(tmp_path_factory), "--dtype=float32") as cluster:
        yield cluster


@pytest.fixture
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One prefill, one decode worker with the fake engine: real processes, pages and wires, no weights."""
    with running(_directory(tmp_path_factory), *SLOW_FAKE, *FAST_LEASES) as cluster:
        yield cluster


@pytest.fixture
def quartet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two prefill, two decode workers with the fake engine."""
    roles = ("--prefill=2", "--decode=2")
    with running(_directory(tmp_path_factory), *SLOW_FAKE, *roles, *FAST_LEASES) as cluster:
        yield cluster


# A step takes as long as a small model's, so that a kill lands among running requests.
SLOW_FAKE = ("--engine=fake", "--fake-step-ms=10")
FAST_LEASES = ("--lease-ttl-s=2", "--lease-every-s=0.5")


def _directory(factory: pytest.TempPathFactory) -> Path:
    return factory.mktemp("cluster")
