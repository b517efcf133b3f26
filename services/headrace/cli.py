"""The `headrace` command: one word chooses what runs; every mistake is one sentence and exit code 2.

Imports what a command needs when it is chosen, so that `headrace status` does not pay for torch.
"""

import asyncio
import gc
import importlib
import inspect
import os
import sys
from collections.abc import Awaitable, Sequence
from importlib.metadata import version
from types import ModuleType

from pydantic_settings import BaseSettings

from headrace import config, config_commands
from headrace.config_bench import BenchConfig
from headrace.config_chaos import ChaosConfig
from headrace.config_soak import SoakConfig
from headrace.core.errors import HeadraceError, StartupError

COMMANDS: dict[str, tuple[type[BaseSettings], str]] = {
    "up": (config.UpConfig, "headrace.up:run"),
    "frontend": (config.FrontendConfig, "headrace.bootstrap.frontend:run_frontend"),
    "gateway": (config.GatewayConfig, "headrace.bootstrap.frontend:run_gateway"),
    "router": (config.RouterConfig, "headrace.bootstrap.frontend:run_router"),
    "worker": (config.WorkerConfig, "headrace.bootstrap.worker:run"),
    "placement": (config.PlacementConfig, "headrace.bootstrap.placement:run"),
    "bench": (BenchConfig, "headrace.bootstrap.bench:run"),
    "chaos": (ChaosConfig, "headrace.bootstrap.chaos:run"),
    "soak": (SoakConfig, "headrace.bootstrap.soak:run"),
    "config": (config_commands.CheckConfig, "headrace.bootstrap.check:run"),
    "chat": (config_commands.ChatConfig, "headrace.bootstrap.terminal:run_chat"),
    "status": (config_commands.StatusConfig, "headrace.bootstrap.terminal:run_status"),
    "explain": (config_commands.ExplainConfig, "headrace.bootstrap.terminal:run_explain"),
    "drain": (config_commands.DrainConfig, "headrace.bootstrap.terminal:run_drain"),
    "models": (config_commands.ModelsConfig, "headrace.bootstrap.terminal:run_models"),
    "health": (config_commands.HealthConfig, "headrace.bootstrap.terminal:run_health"),
}
USAGE_ERROR, INTERRUPTED, BROKEN_PIPE = 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words == ["--version"]:
        print(f"headrace {version('headrace')}")
        return 0
    if not words or words[0] in {"-h", "--help", "help"}:
        print(_usage())
        return 0 if words else USAGE_ERROR
    try:
        return _dispatch(words[0], words[1:])
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read has left: what is still buffered has nobody to go to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def _dispatch(command: str, arguments: list[str]) -> int:
    if command not in COMMANDS:
        raise StartupError(f"There is no command {command!r}.", remedy=f"Commands: {', '.join(COMMANDS)}.")
    kind, target = COMMANDS[command]
    settings = config.read(kind, arguments, command)
    module, _, function = target.partition(":")
    result = getattr(_imported(module), function)(settings)
    if inspect.isawaitable(result):
        result = asyncio.run(_wait(result))
    return int(result or 0)


def _imported(module: str) -> ModuleType:
    """What modules make stays: looking for garbage among it takes a quarter of the time that imports take, and time
    again, in the midst of requests, whenever all is looked through."""
    collected = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        gc.freeze()
        if collected:
            gc.enable()


async def _wait(result: Awaitable[int | None]) -> int | None:
    return await result


def _usage() -> str:
    lines = [f"  {name:<10} {(kind.__doc__ or '').strip().splitlines()[0]}" for name, (kind, _) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: headrace COMMAND [options]",
            "",
            *lines,
            "",
            "headrace COMMAND --help says more; every flag of a service is also a variable HEADRACE_NAME.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
