"""`headrace bench handoff`: transfers between two processes against the bare link, and behind a prompt's computing.

Owns the order: per link first the rates, in turns, then prompts, streamed and withheld in turns. The pages come from a
process of its own, behind a network if one is wanted; this one receives them. Nothing else of a worker runs: no router,
no HTTP.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from headrace.bench.handoff_child import ChildSender
from headrace.bench.handoff_end import Cut, Wiring
from headrace.bench.handoff_network import Between, between
from headrace.bench.handoff_rates import Caller, Connected, connected, connected_to_engine, measure_rates
from headrace.bench.handoff_report import HandoffReport, LinkRow, Overlap, Prompts, as_json, print_report
from headrace.bench.handoff_sender import Sender
from headrace.bench.interruption import interruptible
from headrace.bench.machine import this_machine
from headrace.core.blocks import blocks_for
from headrace.core.errors import StartupError
from headrace.core.layout import KvLayout
from headrace.engine.options import EngineOptions
from headrace.modelfiles.resolve import resolve
from headrace.transfer.link import END_UNIT
from headrace.transfer.loopback import Switchboard

_GIB = 2**30
WIRINGS = {
    "ucx": Wiring("ucx", "ucx"),
    "ucx-posix": Wiring("ucx-posix", "ucx", "tcp,posix,self", leaves_host=False),
    "tcp": Wiring("tcp", "tcp"),
    "nccl": Wiring("nccl", "nccl"),
    "loopback": Wiring("loopback", "loopback", leaves_host=False),
}


@dataclass(frozen=True, slots=True)
class HandoffBench:
    """links: keys of WIRINGS. gbits: of a network between the processes, 10^9 bits a second; 0: none. blocks: of one
    transfer. rounds: of bare link and transfer each. prompt: tokens of the prompts, 0 for none. prompts: of each kind
    and link. options: of the engine that computes them."""

    model: str
    cache_dir: Path
    options: EngineOptions
    links: tuple[str, ...]
    gbits: float
    blocks: int
    unit_blocks: int
    rounds: int
    prompt: int
    prompts: int
    as_json: bool


def run(bench: HandoffBench) -> int:
    """Measure and print. Raises StartupError for what is not there or does not fit, KeyboardInterrupt or SystemExit
    where a signal asks it to stop: nothing is left then of the other process and the network."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    wirings = [WIRINGS[name] for name in bench.links if not bench.gbits or WIRINGS[name].leaves_host]
    if not wirings:
        raise StartupError(
            f"None of these links leaves a host: {', '.join(bench.links)}.", remedy="Leave --gbits out, or name others."
        )
    with (
        interruptible() as interruption,
        between(bench.gbits) as network,
        Progress(*columns, console=Console(stderr=True), transient=True) as progress,
        interruption.heeded(),
    ):
        task = progress.add_task("model", total=2 * len(wirings) + 1)
        report = _measured(bench, network, wirings, lambda what: progress.update(task, advance=1, description=what))
    if bench.as_json:
        print(json.dumps(as_json(report), indent=2))
    else:
        print_report(report, Console())
    return 0


def _measured(
    bench: HandoffBench, network: Between, wirings: Sequence[Wiring], tell: Callable[[str], None]
) -> HandoffReport:
    files = resolve(bench.model, bench.cache_dir)
    config, options = files.config, bench.options
    layout = KvLayout(config.layers, config.kv_heads, config.head_dim, options.block_size, options.resolved_dtype)
    cut, machine = Cut(layout, bench.unit_blocks), this_machine()
    if bench.prompt > config.max_position:
        raise StartupError(
            f"Prompts of {bench.prompt} tokens exceed the model's {config.max_position}.", remedy="Lower --prompt."
        )
    _require_room(bench, cut)
    with _child(network.prefix) as child:
        if bench.prompt:
            tell("engine")
            child.call("load", bench.model, bench.cache_dir, options)
        rows = [_row(bench, child, network.joined(wiring), cut, tell) for wiring in wirings]
    size = bench.blocks * layout.block_bytes
    return HandoffReport(
        files.name, machine, bench.gbits, layout.block_bytes, bench.unit_blocks, size, bench.prompt, rows
    )


def _require_room(bench: HandoffBench, cut: Cut) -> None:
    """Raises StartupError for more blocks than a transfer can name units of, or than fit as pages of both processes."""
    most = END_UNIT * cut.unit_blocks
    if bench.blocks > most:
        raise StartupError(f"One hand-off has at most {most} blocks, and not {bench.blocks}.", remedy="Lower --blocks.")
    needed, free = 2 * bench.blocks * cut.layout.block_bytes, psutil.virtual_memory().available
    if needed > free:
        raise StartupError(
            f"{bench.blocks} blocks take {needed / _GIB:.1f} GiB in two processes, and {free / _GIB:.1f} GiB of memory"
            " are free.",
            remedy="Lower --blocks.",
        )


def _row(bench: HandoffBench, child: Caller, wiring: Wiring, cut: Cut, tell: Callable[[str], None]) -> LinkRow:
    board = Switchboard() if wiring.link == "loopback" else None
    tell(f"{wiring.name}: rates")
    with connected(_Beside(board) if board else child, wiring, cut, bench.blocks, board) as both:
        rates = measure_rates(both, cut, bench.blocks, bench.rounds)
    tell(f"{wiring.name}: prompts")
    overlap = None
    if bench.prompt and board is None:
        blocks = blocks_for(bench.prompt, cut.layout.block_tokens)
        with connected_to_engine(child, wiring, cut, blocks) as both:
            overlap = _overlap(both, bench.prompt, bench.prompts)
    return LinkRow(wiring.name, rates.bare, rates.handoff, rates.share, overlap)


def _overlap(both: Connected, tokens: int, prompts: int) -> Overlap:
    """After one short prompt that does not count: connections are made, and the engine's weights are in memory."""
    both.prompt(min(tokens, 64), streamed=True)
    found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for _ in range(prompts):
        for streamed in (False, True):
            found[streamed].append(both.prompt(tokens, streamed=streamed))
    return Overlap(_prompts(found[True]), _prompts(found[False]))


def _prompts(found: list[tuple[float, float]]) -> Prompts:
    computed, exposed = zip(*found, strict=True)
    return Prompts(computed, exposed)


@contextmanager
def _child(prefix: Sequence[str]) -> Iterator[ChildSender]:
    child = ChildSender(prefix)
    try:
        yield child
    except BaseException:
        child.abandon()
        raise
    finally:
        child.end()


class _Beside:
    """A sender in this process, for the link that knows no others."""

    def __init__(self, board: Switchboard) -> None:
        self._sender = Sender(board)

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self._sender, method)(*args)

    def abandon(self) -> None:
        self._sender.close()
