"""host:port in writing, of both kinds of address; and that nobody else writes it."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace.core.address import bare, joined, parted

HOSTS = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
    st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True),
)
# {host}:{port} in an f-string, of whatever names.
BY_HAND = re.compile(r"\{[\w.()]*(host|_reached_at\(config\))\}:\{")
# Its addresses are those of namespaces that it makes itself.
ELSEWHERE = {"chaos/members.py", "core/address.py"}


@given(HOSTS, st.integers(0, 65535))
def test_what_is_joined_is_parted_again(host: str, port: int) -> None:
    assert parted(joined(host, port)) == (host, port)
    assert joined(f"[{host}]" if ":" in host else host, port) == joined(host, port)


def test_only_ipv6_is_in_brackets() -> None:
    assert joined("::1", 9000) == "[::1]:9000"
    assert joined("127.0.0.1", 9000) == "127.0.0.1:9000"
    assert joined("router", 0) == "router:0"
    assert (bare("[::1]"), bare("::1"), bare("host")) == ("::1", "::1", "host")


@pytest.mark.parametrize(
    "text", ["", "9000", ":9000", "[]:9000", "host:", "host:x", "host:70000", "host:-1", "host:\u0663"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not host:port with a port below 65536"):
        parted(text)


@pytest.mark.parametrize("text", ["::1:9000", "fe80::1:80", "::1"])
def test_an_ipv6_address_without_brackets_could_be_read_in_two_ways(text: str) -> None:
    with pytest.raises(ValueError, match="not in brackets"):
        parted(text)


def test_nobody_joins_them_by_hand() -> None:
    package = Path(headrace.__file__).parent
    found = [path.relative_to(package).as_posix() for path in package.rglob("*.py") if BY_HAND.search(path.read_text())]
    assert set(found) <= ELSEWHERE
