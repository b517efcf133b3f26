"""A worker is drained through a gateway apart from its router: by the admin key, and by no other."""

import subprocess
import sys
from pathlib import Path

from fixtures.apart import fleet
from fixtures.random_gguf import write_random

FAKE = ("--engine=fake", "--link=tcp", "--kv-cache-memory-bytes=16777216")
ADMIN = "--admin-api-key=root"


def headrace(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_only_the_admin_key_drains(redis_url: str, tmp_path: Path) -> None:
    with fleet(tmp_path, redis_url, str(write_random(tmp_path / "random.gguf", 256)), *FAKE) as made:
        made.worker("local-0", "local")
        made.router("router", ADMIN)
        made["local-0"].ready()
        made["router"].ready()
        made.gateway("gateway", "router", flags=('--api-keys=["user"]', ADMIN))
        made.gateway("keyless", "router", flags=('--api-keys=["user"]',))
        for name in ("gateway", "keyless"):
            made[name].ready()
        made.wait_ready("gateway", "keyless")
        url, keyless = (f"--url={made.url(name)}" for name in ("gateway", "keyless"))

        # 1. A key of whoever may ask is not an operator's, whether or not the gateway knows operators.
        for where in (url, keyless):
            refused = headrace("drain", "local-0", where, "--api-key=user")
            assert refused.returncode == 2
            assert "needs an admin key" in refused.stderr or "needs the admin key" in refused.stderr
        # 2. The operators' is, for looking too.
        assert headrace("status", url, "--api-key=user").returncode == 2
        assert "local-0@" in headrace("status", url, ADMIN).stdout
        drained = headrace("drain", "local-0", url, ADMIN)
        assert drained.returncode == 0, drained.stderr
        made["local-0"].ended()
