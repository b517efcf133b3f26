"""Questions to single processes: do you live, are you ready, what do you hold, who conducts this request?

Every one has a deadline, and an answer that does not come is an answer too. It changes nothing.
"""

import asyncio
import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from headrace.chaos.members import DOORS, WORKERS, Kind, Member
from headrace.core.errors import HeadraceError
from headrace.rpc.health import check

LIVE_S = 5.0
_LIVE_SERVICE = "live"
_ASK_S = 5.0


@dataclass(frozen=True, slots=True)
class Pair:
    """Who serves a request: names of processes."""

    router: str
    prefill: str
    decode: str


async def redis_answers(host: str, port: int) -> bool:
    """Whether a PING comes back."""
    return await _redis_says(host, port, b"PING") == b"+PONG\r\n"


async def redis_keys(host: str, port: int) -> int | None:
    """How many keys Redis holds that do not end by themselves; None: no answer."""
    said = await _redis_says(host, port, b"INFO keyspace")
    if not said.startswith(b"$"):
        return None
    return sum(int(keys) - int(expires) for keys, expires in re.findall(rb"keys=(\d+),expires=(\d+)", said))


async def _redis_says(host: str, port: int, word: bytes) -> bytes:
    """Its answer, a line or some; b"": none."""
    try:
        async with asyncio.timeout(_ASK_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(word + b"\r\n")
                said = await reader.readline()
                return said + (await reader.readexactly(int(said[1:])) if said.startswith(b"$") else b"")
            finally:
                writer.close()
    except (OSError, EOFError, TimeoutError):
        return b""


async def lives(client: httpx.AsyncClient, member: Member) -> bool:
    """Whether the process says that it is alive, ready or not."""
    if member.kind is Kind.REDIS:
        return await redis_answers(member.host, member.port)
    if member.kind in WORKERS:
        with contextlib.suppress(HeadraceError):
            await check(member.address, LIVE_S, _LIVE_SERVICE)
            return True
        return False
    return await _answer(client, member, "/health") is not None


async def not_ready(client: httpx.AsyncClient, door: Member) -> str:
    """Why a chat sent to this door now would not be answered; "" if it would."""
    try:
        answer = await client.get(f"{door.url}/ready", timeout=_ASK_S)
    except httpx.HTTPError as error:
        return f"{door.name} does not answer: {type(error).__name__}"
    return "" if answer.status_code == httpx.codes.OK else f"{door.name}: {answer.text}"


async def fleet(client: httpx.AsyncClient, door: Member) -> Mapping[str, Any] | None:
    """The fleet as this router sees it; None if it does not answer."""
    assert door.kind in DOORS
    return await _answer(client, door, "/v1/fleet")


async def pair_of(client: httpx.AsyncClient, router: Member, request: str) -> Pair | None:
    """Who serves the request, if this router conducts it."""
    told = await _answer(client, router, f"/v1/requests/{request}/explain")
    if told is None or not told["routes"] or told["outcome"] not in ("", "running"):
        return None
    route = told["routes"][-1]
    prefill = route["prefill"] or route["decode"]
    return Pair(router.name, prefill["worker"], route["decode"]["worker"])


async def gauges(client: httpx.AsyncClient, member: Member) -> Mapping[str, float] | None:
    """The metrics of any process but Redis, with the labels that tell them apart in the name as `name{state}`; None: no
    answer."""
    try:
        answer = await client.get(member.metrics_url, timeout=_ASK_S)
    except httpx.HTTPError:
        return None
    return {
        sample.name + "".join(f"{{{value}}}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


async def _answer(client: httpx.AsyncClient, door: Member, path: str) -> Mapping[str, Any] | None:
    try:
        answer = await client.get(f"{door.url}{path}", timeout=_ASK_S)
    except httpx.HTTPError:
        return None
    if answer.status_code != httpx.codes.OK:
        return None
    told: Mapping[str, Any] = answer.json()
    return told
