"""A cluster that has come up whole, with what every later answer of it is held against.

Starts it; whoever made the cluster stops it.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from headrace.chaos.client import Heard
from headrace.chaos.cluster import Cluster
from headrace.chaos.mix import Ask
from headrace.chaos.rest import until_whole
from headrace.chaos.undisturbed import undisturbed
from headrace.core.errors import StartupError


@dataclass(frozen=True, slots=True)
class Whole:
    """client: to any member, for as long as the cluster is used. asks: the requests of the mix. references: what each
    of them heard undisturbed."""

    client: httpx.AsyncClient
    asks: Sequence[Ask]
    references: Mapping[str, Heard]


@asynccontextmanager
async def come_up(cluster: Cluster) -> AsyncIterator[Whole]:
    """Start it and hear its undisturbed answers. Raises StartupError."""
    # A connection that a blow has broken is used for nothing else.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(trust_env=False, limits=limits, timeout=None) as client:
        await cluster.start()
        amiss = await until_whole(client, cluster)
        if amiss:
            raise StartupError(f"The cluster does not come up: {'; '.join(amiss)}.", remedy="Read the logs.")
        asks, references = await undisturbed(client, cluster)
        yield Whole(client, asks, references)
