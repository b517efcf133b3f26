"""Services that a deployment describes, run as local processes: their own commands, environment and health checks.

A container has an address of its own; here all share one, so that ports have to differ. Substituted in commands,
environment, health checks and mounted files, and nothing else:
  0.0.0.0                                 ->  127.0.0.1
  a port that the service exposes         ->  a free one
  NAME:PORT                               ->  127.0.0.1 and that service's free port
  a variable *_HOST whose value is a NAME ->  127.0.0.1
  the target of a mount                   ->  where it is here
"""

import os
import re
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fixtures.ports import free_ports

from headrace.store.server import find_server

LOOPBACK = "127.0.0.1"
LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class Service:
    """One service as its deployment describes it. health: the command that a health check runs.

    ports: where it listens. after: services that are healthy before this one starts. files: text to mount, by target.
    directories: what is here at a mount's target.
    """

    name: str
    command: Sequence[str]
    ports: Sequence[int]
    environment: Mapping[str, str] = field(default_factory=dict)
    health: Sequence[str] = ()
    after: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    directories: Mapping[str, Path] = field(default_factory=dict)


@dataclass
class Running:
    """A started service."""

    service: Service
    ports: Mapping[int, int]
    process: subprocess.Popen[bytes]
    health: Sequence[str]
    log: Path

    def check_health(self) -> subprocess.CompletedProcess[str]:
        """Run the health check as an engine would."""
        return subprocess.run(
            self.health, env=_environment({}), capture_output=True, text=True, timeout=30, check=False
        )

    def stop(self, within_s: float) -> int:
        """SIGTERM; the exit code. Fails the test if the process outlives `within_s`."""
        self.process.terminate()
        return self.process.wait(within_s)


@contextmanager
def running(services: Sequence[Service], directory: Path, within_s: float) -> Iterator[dict[str, Running]]:
    """All of them, started in the order that `after` asks for, each healthy within `within_s`. Killed at the end."""
    exposed = [(service.name, port) for service in services for port in service.ports]
    ports = dict(zip(exposed, free_ports(len(exposed)), strict=True))
    started: dict[str, Running] = {}
    with ExitStack() as closing:
        while len(started) < len(services):
            for service in services:
                if service.name not in started and all(name in started for name in service.after):
                    for name in service.after:
                        wait_healthy(started[name], within_s, started.values())
                    started[service.name] = _start(service, ports, directory)
                    closing.callback(_end, started[service.name])
        for each in started.values():
            wait_healthy(each, within_s, started.values())
        yield started


def wait_healthy(each: Running, within_s: float, beside: Iterable[Running]) -> None:
    """Run the health check again and again until it passes. beside: whose logs may tell why it does not."""
    if not each.health:
        return
    deadline = time.monotonic() + within_s
    with selectors.DefaultSelector() as pause:
        while (check := each.check_health()).returncode:
            logs = "\n".join(f"{one.service.name}:\n{one.log.read_text()[-3000:]}" for one in beside)
            said = f"{check.stdout}{check.stderr}\n{logs}"
            assert each.process.poll() is None, f"{each.service.name} ended: {said}"
            assert time.monotonic() < deadline, f"{each.service.name} is not healthy after {within_s} s: {said}"
            pause.select(LOOK_EVERY_S)


def _start(service: Service, ports: Mapping[tuple[str, int], int], directory: Path) -> Running:
    home = directory / service.name
    home.mkdir()
    local = Localised(service, ports, home)
    for target, text in service.files.items():
        local.path(target).write_text(local.text(text))
    log = home / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [local.text(word) for word in service.command],
            env=_environment({name: local.value(name, value) for name, value in service.environment.items()}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=home,
            start_new_session=True,
        )
    health = [local.text(word) for word in service.health]
    own = {port: ports[service.name, port] for port in service.ports}
    return Running(service, own, process, health, log)


def _end(each: Running) -> None:
    if each.process.poll() is None:
        each.process.kill()
        each.process.wait()


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """An image has its programs on the PATH: here those of our interpreter, and a Redis."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    programs = [str(Path(sys.executable).parent), inherited.get("PATH", "")]
    if shutil.which("redis-cli") is None:
        programs.append(str(find_server().parent))
    return {**inherited, "PATH": os.pathsep.join(programs), **own}


class Localised:
    """A service's words as they read on this machine: the substitutions that this file's docstring lists."""

    def __init__(self, service: Service, ports: Mapping[tuple[str, int], int], home: Path) -> None:
        self._own = service.name
        self._ports = ports
        self._names = {name for name, _ in ports}
        self._paths = {target: str(here) for target, here in service.directories.items()}
        self._paths |= {target: str(home / f"file{place}.yaml") for place, target in enumerate(service.files)}

    def path(self, target: str) -> Path:
        return Path(self._paths[target])

    def text(self, text: str) -> str:
        names = "|".join(re.escape(name) for name in sorted(self._names, key=len, reverse=True))
        text = re.sub(rf"(?:(?<![\w.-])({names}):)?\b(\d{{2,5}})\b", self._port, text.replace("0.0.0.0", LOOPBACK))
        for target, here in self._paths.items():
            text = text.replace(target, here)
        return text

    def value(self, name: str, value: str) -> str:
        return LOOPBACK if name.endswith("_HOST") and value in self._names else self.text(value)

    def _port(self, match: re.Match[str]) -> str:
        name, port = match[1], int(match[2])
        here = self._ports.get((name or self._own, port))
        if here is None:
            return match[0]
        return f"{LOOPBACK}:{here}" if name else str(here)
