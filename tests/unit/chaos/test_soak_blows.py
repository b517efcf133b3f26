"""Blows that do not go as they should: a complaint, and the soak goes on."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from headrace.chaos.members import Kind, Member
from headrace.chaos.soak import blows
from headrace.chaos.soak.blows import Blows
from headrace.chaos.soak.crowd import Begun
from headrace.chaos.soak.doors import Doors
from headrace.chaos.soak.plan import Deed, Stroke

ROUTER = Member("router-0", Kind.ROUTER, "127.0.0.1", 1, 1)
WORKER = Member("prefill-1", Kind.PREFILL, "127.0.0.1", 2, 2)
SHORT_S = 0.2


@dataclass
class _Settings:
    python: str
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))


@dataclass
class _Cluster:
    """Its worker ends when it is asked, and comes up again."""

    settings: _Settings
    members: tuple[Member, ...] = (ROUTER, WORKER)
    incarnations: dict[str, str] = field(default_factory=lambda: {WORKER.name: "one"})
    launched: list[str] = field(default_factory=list)

    def member(self, name: str) -> Member:
        return {member.name: member for member in self.members}[name]

    def may_leave(self, name: str) -> None:
        assert name == WORKER.name

    async def ended(self, name: str, within_s: float) -> bool:
        return True

    async def launch(self, name: str) -> None:
        self.launched.append(name)


async def test_a_drain_command_that_does_not_end_is_a_complaint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_DRAIN_S", "STOP_S", "_SERVES_S"):
        monkeypatch.setattr(blows, name, SHORT_S)
    hangs = tmp_path / "python"
    hangs.write_text("#!/bin/sh\nexec sleep 600\n")
    hangs.chmod(0o755)
    cluster = _Cluster(_Settings(str(hangs)))
    begun = Begun()
    await begun.another()
    async with httpx.AsyncClient(trust_env=False) as client:
        struck = Blows(cast(Any, cluster), cast(Any, None), client, Doors(cluster.members))
        complaints = await struck.fall([Stroke(Deed.DRAIN, WORKER.name, 1)], begun)
    assert complaints == [f"`headrace drain {WORKER.name}` did not end in its time"]
    assert cluster.launched == [WORKER.name]
