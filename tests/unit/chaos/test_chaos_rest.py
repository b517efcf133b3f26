"""Rest and wholeness: each thing that a worker or a router may still hold is seen, whoever of the two knows of it."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.chaos.cluster import Cluster
from headrace.chaos.members import NAMES, WORKERS, Kind, Settings, members, of_kind
from headrace.chaos.rest import until_at_rest, until_whole

EVERYONE = members({name: f"10.0.0.{place}" for place, name in enumerate(NAMES)}, [9000, 8000] * len(NAMES))
SETTINGS = Settings("python", {}, Path("/model"), Path("/cache"), "tcp", Path("/chaos.sock"))
PAGE = {
    "headrace_kv_blocks_free": 64.0,
    "headrace_kv_blocks": 64.0,
    "vllm:num_requests_running": 0.0,
    "vllm:num_requests_waiting": 0.0,
    'headrace_kv_slabs{state="free"}': 128.0,
    'headrace_kv_slabs{state="posted"}': 0.0,
    'headrace_kv_slabs{state="quarantined"}': 0.0,
}
WORKER = {
    "attached": True,
    "info": {"ref": {"worker": "", "incarnation": "life-1"}, "max_jobs": 32},
    "load": {"running": 0, "waiting": 0, "free_blocks": 64, "total_blocks": 64, "credits": 32},
}


class Fleet:
    """Answers as all processes of a cluster at rest do, until a test changes what one of them says."""

    def __init__(self, directory: Path) -> None:
        workers = of_kind(EVERYONE, *WORKERS)
        self.pages = {worker.host: dict(PAGE) for worker in workers}
        self.fleets = {router.host: self._fleet() for router in of_kind(EVERYONE, Kind.ROUTER, Kind.GATEWAY)}
        self.ready = True
        self.cluster = Cluster(EVERYONE, SETTINGS, directory, None)
        self.cluster.incarnations = {worker.name: "life-1" for worker in workers}
        self.client = httpx.AsyncClient(transport=httpx.MockTransport(self._answer))

    def seen(self, worker: str) -> dict[str, Any]:
        """What the first router says of a worker."""
        fleet = self.fleets[of_kind(EVERYONE, Kind.ROUTER)[0].host]
        (found,) = [each for each in fleet["workers"] if each["info"]["ref"]["worker"] == worker]
        return found

    def _fleet(self) -> dict[str, Any]:
        workers = [deepcopy(WORKER) for _ in of_kind(EVERYONE, *WORKERS)]
        for worker, member in zip(workers, of_kind(EVERYONE, *WORKERS), strict=True):
            worker["info"]["ref"]["worker"] = member.name  # type: ignore[index]
        return {"requests_running": 0, "requests_waiting": 0, "workers": workers}

    def _answer(self, request: httpx.Request) -> httpx.Response:
        match request.url.path:
            case "/metrics":
                page = self.pages[request.url.host]
                return httpx.Response(200, text="".join(f"{name} {value}\n" for name, value in page.items()))
            case "/ready":
                return httpx.Response(200 if self.ready else 503, json={"ready": self.ready})
            case _:
                return httpx.Response(200, json=self.fleets[request.url.host])


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


async def test_a_cluster_at_rest_has_no_complaint(fleet: Fleet) -> None:
    assert (await until_at_rest(fleet.client, fleet.cluster, 0.0))[0] == []
    assert await until_whole(fleet.client, fleet.cluster, 0.0) == []


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("headrace_kv_blocks_free", 63.0, "63 of 64 pages"),
        ("vllm:num_requests_running", 1.0, "1 jobs"),
        ("vllm:num_requests_waiting", 2.0, "2 jobs"),
        ('headrace_kv_slabs{state="posted"}', 1.0, "slabs"),
        ('headrace_kv_slabs{state="quarantined"}', 1.0, "slabs"),
    ],
)
async def test_what_a_worker_holds_by_its_own_account_is_seen(fleet: Fleet, name: str, value: float, said: str) -> None:
    fleet.pages[fleet.cluster.member("decode-1").host][name] = value
    (complaint,) = (await until_at_rest(fleet.client, fleet.cluster, 0.0))[0]
    assert "decode-1" in complaint
    assert said in complaint


@pytest.mark.parametrize(("name", "value"), [("running", 1), ("waiting", 1), ("free_blocks", 63), ("credits", 31)])
async def test_what_a_router_thinks_that_a_worker_holds_is_seen(fleet: Fleet, name: str, value: int) -> None:
    fleet.seen("prefill-0")["load"][name] = value
    (complaint,) = (await until_at_rest(fleet.client, fleet.cluster, 0.0))[0]
    assert "router-0" in complaint
    assert "prefill-0" in complaint


async def test_what_a_router_has_running_is_seen(fleet: Fleet) -> None:
    fleet.fleets[fleet.cluster.member("router-1").host]["requests_running"] = 1
    assert (await until_at_rest(fleet.client, fleet.cluster, 0.0))[0] == ["router-1 has 1 requests running, 0 waiting"]


async def test_a_former_life_and_a_lost_attachment_do_not_make_it_whole(fleet: Fleet) -> None:
    fleet.seen("decode-0")["attached"] = False
    assert await until_whole(fleet.client, fleet.cluster, 0.0) == ["router-0 has no decode-0"]
    fleet.seen("decode-0")["attached"] = True
    fleet.cluster.incarnations["decode-0"] = "life-2"
    assert await until_whole(fleet.client, fleet.cluster, 0.0) == [
        "router-0 has no decode-0",
        "router-1 has no decode-0",
    ]


async def test_a_door_that_is_not_ready_is_told(fleet: Fleet) -> None:
    fleet.ready = False
    assert len(await until_whole(fleet.client, fleet.cluster, 0.0)) == 3
