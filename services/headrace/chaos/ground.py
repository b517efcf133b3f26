"""What a cluster stands on: networks, ports and a model, as this machine has them."""

import socket
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from headrace.chaos.checkpoint import make_checkpoint
from headrace.chaos.members import MODEL, NAMES
from headrace.core.errors import StartupError
from headrace.testbed.namespaces import Namespaces, namespaces, obstacle, way_out

LOOPBACK = "127.0.0.1"
_PORTS = (9000, 8000)


def without_namespaces(network: str) -> str:
    """Why processes share this machine's network; "" if each gets its own. network: "namespaces", "host", or "auto":
    whichever the machine allows. Raises StartupError."""
    if network == "host":
        return "processes share this machine's network"
    why = obstacle()
    if why and network == "namespaces":
        raise StartupError(f"There can be no namespaces: {why}.", remedy=f"{way_out()}, or give --network=host.")
    return why


def way_to_namespaces(network: str) -> str:
    """What to do where there are none, as the beginning of a sentence. network: as it was asked for."""
    return "Leave --network=host out" if network == "host" else way_out()


async def networks(closing: AsyncExitStack, in_namespaces: bool) -> tuple[Namespaces | None, Mapping[str, str]]:
    """Namespaces for as long as `closing`, or None, and the address of each member."""
    if not in_namespaces:
        return None, dict.fromkeys(NAMES, LOOPBACK)
    made = await closing.enter_async_context(namespaces(tuple(NAMES)))
    return made, made.hosts


def own_model(directory: Path) -> Path:
    """A tiny model in a directory of its own within `directory`."""
    model = directory / MODEL
    model.mkdir(exist_ok=True)
    make_checkpoint(model)
    return model


def ports(count: int, *, same: bool) -> list[int]:
    """Two for each: the same for all where each has an address of its own, else whichever are free now."""
    if same:
        return list(_PORTS) * count
    taken = [socket.create_server((LOOPBACK, 0)) for _ in range(2 * count)]
    try:
        return [int(each.getsockname()[1]) for each in taken]
    finally:
        for each in taken:
            each.close()
