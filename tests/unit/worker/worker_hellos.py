"""What routers say first."""

from dataclasses import replace

from headrace.core.jobs import Hello
from headrace.rpc.contracts import OLDEST_PROTOCOL, PROTOCOL_VERSION

MINE, OTHERS = b"minemineminemine", b"othersothersothe"


def hello(**changes: object) -> Hello:
    """Of a router that fits. With another protocol and no oldest it speaks only that one."""
    oldest = 0 if "protocol" in changes else OLDEST_PROTOCOL
    return replace(Hello("router-1", "", PROTOCOL_VERSION, oldest, MINE), **changes)  # type: ignore[arg-type]
