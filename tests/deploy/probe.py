"""One Kubernetes probe of a process on this machine, as the kubelet makes it: `probe.py PROBE`, a JSON object.

Exit code 0: it passes. Probes that are commands need no program but themselves.
"""

import asyncio
import json
import socket
import sys
from collections.abc import Mapping
from typing import Any

import httpx

from headrace.core.errors import HeadraceError
from headrace.rpc.health import check

HOST = "127.0.0.1"
WITHIN_S = 5.0


def passes(probe: Mapping[str, Any]) -> str:
    """Empty if it passes; else why not."""
    try:
        if web := probe.get("httpGet"):
            answer = httpx.get(f"http://{HOST}:{web['port']}{web['path']}", timeout=WITHIN_S, trust_env=False)
            return "" if answer.is_success else answer.text
        if grpc := probe.get("grpc"):
            asyncio.run(check(f"{HOST}:{grpc['port']}", WITHIN_S, grpc.get("service", "")))
            return ""
        socket.create_connection((HOST, probe["tcpSocket"]["port"]), WITHIN_S).close()
        return ""
    except (HeadraceError, httpx.HTTPError, OSError) as error:
        return str(error) or repr(error)


if __name__ == "__main__":
    sys.exit(passes(json.loads(sys.argv[1])) or 0)
