"""Who may change the fleet through a router's gRPC port: a real server, and clients with and without the key."""

import pytest
from rpc_scripted import STATUS, ScriptedFleet

from headrace.core.admin import Admin
from headrace.core.errors import Forbidden, HeadraceError, Unauthenticated
from headrace.rpc.bearer import showing, shown_key
from headrace.rpc.clients import FleetClient
from headrace.rpc.routers import door_to
from headrace.rpc.server import serve

NAME = STATUS.workers[0].info.ref.worker


@pytest.mark.parametrize(
    ("admin", "shown", "refusal"),
    [
        (Admin(), "", None),
        (Admin(keyed=True), "user", Forbidden),
        (Admin("root"), "", Unauthenticated),
        (Admin("root"), "user", Forbidden),
        (Admin("root"), "root", None),
    ],
)
async def test_a_drain_needs_the_admin_key(admin: Admin, shown: str, refusal: type[HeadraceError] | None) -> None:
    server = await serve("127.0.0.1:0", fleet=ScriptedFleet(), admin=admin)
    door = door_to(f"127.0.0.1:{server.port}", shown)
    try:
        # Looking is free: gateways look for everybody.
        assert await door.fleet.status() == STATUS
        assert await door.fleet.metrics()
        if refusal is None:
            assert await door.fleet.drain(NAME) == STATUS.workers[0]
        else:
            with pytest.raises(refusal, match="admin key") as told:
                await door.fleet.drain(NAME)
            assert type(told.value) is refusal
    finally:
        await door.close()
        await server.stop(0)


async def test_a_client_shows_its_key_by_itself() -> None:
    server = await serve("127.0.0.1:0", fleet=ScriptedFleet(), admin=Admin("root"))
    async with FleetClient(f"127.0.0.1:{server.port}", admin_key="root") as fleet:
        assert await fleet.drain(NAME) == STATUS.workers[0]
    await server.stop(0)


def test_a_key_in_metadata() -> None:
    assert shown_key(showing("k 1")) == "k 1"
    assert showing("") == ()
    assert shown_key([("user-agent", "x"), ("authorization", "bearer k")]) == "k"
    for other in ([], [("authorization", "Basic k")], [("authorization", b"Bearer k")], [("authorization", "k")]):
        assert shown_key(other) == ""
