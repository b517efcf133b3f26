"""What UCX is told for a choice of transports: refusals by any name, error handling, and settings."""

import pytest

from headrace.core.errors import StartupError
from headrace.transfer.ucx_settings import choose_lanes, ucx_settings

ANYWHERE = range(0)


@pytest.mark.parametrize(
    "tls",
    ["cma", "tcp,posix,cma,self", "sm,self", "shm", "tcp, shm", "all", "", "^posix", "^tcp,knem", "\\cma", "cma:x"],
)
def test_cma_is_refused_by_every_name_it_has(tls: str) -> None:
    with pytest.raises(StartupError, match="cma"):
        choose_lanes(tls)


@pytest.mark.parametrize(
    ("tls", "error_handling"),
    [
        ("tcp,self", True),
        ("rc_verbs,tcp,self", True),
        ("ib,tcp,self", True),
        ("tcp,cuda_copy,self", True),
        ("tcp,posix,self", False),
        ("tcp,mm,self", False),
        ("^cma", False),
        ("^sm", True),
        ("^shm,ud", True),
        ("^mm,knem,cma", True),
    ],
)
def test_only_shared_memory_rules_error_handling_out(tls: str, error_handling: bool) -> None:
    assert choose_lanes(tls).error_handling is error_handling


@pytest.mark.parametrize("tls", ["rc_verbs,tcp,self", "ib,self", "ud,rc,tcp:aux,self", "^sm"])
def test_rdma_is_handed_to_ucx_unchanged_and_with_every_device(tls: str) -> None:
    settings = ucx_settings(choose_lanes(tls), "eth0", ANYWHERE)
    assert settings["TLS"] == tls
    assert "NET_DEVICES" not in settings


@pytest.mark.parametrize("tls", ["tcp,self", "tcp,posix,self", "tcp,cuda_copy,cuda_ipc"])
def test_tcp_lanes_keep_to_the_interface_of_the_worker(tls: str) -> None:
    assert ucx_settings(choose_lanes(tls), "lo", ANYWHERE)["NET_DEVICES"] == "lo"


def test_ports_are_any_or_in_a_range() -> None:
    lanes = choose_lanes("tcp,self")
    assert "TCP_PORT_RANGE" not in ucx_settings(lanes, "lo", ANYWHERE)
    assert ucx_settings(lanes, "lo", range(9200, 9300))["TCP_PORT_RANGE"] == "9200-9299"


def test_a_send_is_never_buffered() -> None:
    assert ucx_settings(choose_lanes("tcp,self"), "lo", ANYWHERE)["RNDV_THRESH"] == "0"


@pytest.mark.parametrize(
    ("tls", "scheme"), [("tcp,self", "put_zcopy"), ("tcp,posix,self", None), ("rc,tcp,self", None), ("^sm", None)]
)
def test_tcp_lanes_write_to_the_receiver_whatever_their_interface(tls: str, scheme: str | None) -> None:
    assert ucx_settings(choose_lanes(tls), "lo", ANYWHERE).get("RNDV_SCHEME") == scheme
