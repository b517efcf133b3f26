"""The router over real workers: fake engines with real page accounting, pages over a real link, in-process and gRPC."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from worker_harness import DEADLINE_S, Gate, Serving, fake_engine, served

from headrace.core.errors import HeadraceError
from headrace.core.fleet import Role, WorkerInfo, WorkerRef
from headrace.core.generation import Chunk, FinishReason, GenerateRequest, Prompt, TokenPrompt
from headrace.core.pages import PagePort
from headrace.core.sampling import SamplingParams
from headrace.core.vocabulary import Vocabulary
from headrace.roster.memory_commons import MemoryCommons
from headrace.roster.memory_roster import MemoryRoster
from headrace.router.attachment import Connection
from headrace.router.attachments import Patience
from headrace.router.models import ServedModel
from headrace.router.options import RouterOptions
from headrace.router.policy import Disaggregation, Policy
from headrace.router.service import Router
from headrace.rpc.clients import InferenceClient, WorkerClient
from headrace.rpc.server import serve
from headrace.telemetry.metrics import RouterMetrics, WorkerMetrics
from headrace.text.detokenize import Detokenizer
from headrace.transfer.carrier import TransferReport
from headrace.transfer.factory import make_link
from headrace.transfer.link import LinkFactory
from headrace.transfer.loopback import Switchboard
from headrace.transfer.site import TransferOptions
from headrace.transfer.thread import TransferThread
from headrace.worker.service import Worker

QUICK = TransferOptions(drain_s=1.0, linger_s=1.0)
PROMPT = tuple(3 + (7 * i + i * i) % 900 for i in range(70))
over = pytest.mark.parametrize("over", ["in-process", "grpc"])


class NumberText:
    """A model whose tokens read as their numbers."""

    vocabulary = Vocabulary(1000, frozenset({2}))

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        assert isinstance(prompt, TokenPrompt)
        return prompt.token_ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(f"{token} " for token in ids)

    def detokenizer(self, prompt: Sequence[int]) -> Detokenizer:
        return Detokenizer([self.piece(token) for token in range(1000)])

    def piece(self, token_id: int) -> bytes:
        return f"{token_id} ".encode()

    def word_ids(self, word: str) -> tuple[tuple[int, ...], ...]:
        return (tuple(map(int, word.split())),)


class InProcess:
    """A worker without a wire."""

    def __init__(self, worker: Worker) -> None:
        self.attach = worker.attach
        self.metrics = worker.metrics

    async def close(self) -> None:
        pass


@dataclass(slots=True)
class Cluster:
    router: Router
    workers: dict[str, Serving]
    roster: MemoryRoster

    async def ask(self, request: str, **changes: object) -> list[Chunk]:
        return [chunk async for chunk in self.router.generate(a_request(request, **changes))]

    async def moved(self, direction: str) -> float:
        """KV bytes as the merged exposition has them."""
        return sum(
            sample.value
            for family in text_string_to_metric_families(await self.router.metrics())
            for sample in family.samples
            if sample.name == "headrace_kv_transfer_bytes_total" and sample.labels["direction"] == direction
        )

    async def quiet(self, *gone: str) -> None:
        for name, here in self.workers.items():
            if name not in gone:
                await here.quiet()
        assert self.router._ledger.jobs == 0


def a_request(request: str, *, prompt: tuple[int, ...] = PROMPT, max_tokens: int = 12) -> GenerateRequest:
    sampling = SamplingParams(temperature=0.0, seed=5, max_tokens=max_tokens)
    return GenerateRequest(request, "tiny", TokenPrompt(prompt), sampling, timeout_s=DEADLINE_S)


def tokens(chunks: Sequence[Chunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


def carrier(factory: LinkFactory, metrics: WorkerMetrics) -> Callable[..., TransferThread]:
    def make(pages: PagePort, report: Callable[[TransferReport], None]) -> TransferThread:
        return TransferThread(factory, pages, report, metrics.transfer, QUICK)

    return make


ROLES = {"p": Role.PREFILL, "d": Role.DECODE, "l": Role.LOCAL}


@asynccontextmanager
async def cluster(
    *names: str,
    over: str = "in-process",
    mode: Disaggregation = Disaggregation.ALWAYS,
    gates: Mapping[str, Callable[[], None]] | None = None,
    max_jobs: int = 8,
    hits: dict[str, int] | None = None,
) -> AsyncIterator[Cluster]:
    """Workers by name, whose first letter is their role. gates: in front of each batch of an engine. hits: how many
    leading blocks of any prompt the index says are there."""
    switchboard, roster = Switchboard(), MemoryRoster()
    async with AsyncExitStack() as stack:
        workers: dict[str, Serving] = {}
        by_ref: dict[WorkerRef, Worker] = {}
        for name in names:
            metrics = WorkerMetrics()
            here = await stack.enter_async_context(
                served(
                    fake_engine(before_step=(gates or {}).get(name), max_jobs=max_jobs),
                    name=name,
                    role=ROLES[name[0]],
                    make_carrier=carrier(make_link("loopback", switchboard=switchboard), metrics),
                    link="loopback",
                    metrics=metrics,
                )
            )
            info = await _reachable(here.worker, over, stack)
            workers[name], by_ref[info.ref] = here, here.worker
            await roster.join(info, 60.0)

        def connect(info: WorkerInfo) -> Connection:
            return WorkerClient(info.address) if over == "grpc" else InProcess(by_ref[info.ref])

        router = Router(
            models=[ServedModel("tiny", NumberText(), 512, 0)],
            roster=roster,
            connect=connect,
            match=lambda hashes: {ref: min((hits or {}).get(ref.worker, 0), len(hashes)) for ref in by_ref},
            commons=MemoryCommons(),
            metrics=RouterMetrics(),
            options=RouterOptions(
                policy=Policy(disaggregation=mode), patience=Patience(5.0, 0.02, 0.1), grace_s=1.0, comeback_s=1.0
            ),
        )
        await router.start()
        stack.push_async_callback(router.stop, 0.0)
        async with asyncio.timeout(DEADLINE_S):
            while sum(worker.attached for worker in (await router.status()).workers) < len(names):
                await asyncio.sleep(0.01)
            # Until two have met, requests go to another pair.
            while any(router._attachments.new_to(ref) for ref in by_ref):
                await asyncio.sleep(0.01)
        yield Cluster(router, workers, roster)


async def _reachable(worker: Worker, over: str, stack: AsyncExitStack) -> WorkerInfo:
    if over != "grpc":
        return worker.announce("nowhere:1")
    server = await serve("127.0.0.1:0", worker=worker)
    stack.push_async_callback(server.stop, 0.0)
    return worker.announce(f"127.0.0.1:{server.port}")


@over
async def test_disaggregated_equals_local_and_only_then_pages_move(over: str) -> None:
    async with cluster("l1", over=over) as alone:
        local = await alone.ask("r")
        assert await alone.moved("received") == 0
    async with cluster("p1", "d1", over=over) as pair:
        cold = await pair.ask("cold")
        bytes_per_block = pair.workers["d1"].engine.info.layout.block_bytes
        assert await pair.moved("sent") == await pair.moved("received") == 5 * bytes_per_block
        warm = await pair.ask("warm")
        assert warm[-1].usage is not None
        assert warm[-1].usage.cached_tokens == 69
        assert await pair.moved("received") == 6 * bytes_per_block
        await pair.quiet()
    async with cluster("p1", "d1", over=over, mode=Disaggregation.NEVER) as never:
        undivided = await never.ask("r")
        assert await never.moved("received") == 0
    assert tokens(cold) == tokens(warm) == tokens(local) == tokens(undivided)
    assert len(tokens(cold)) == 12
    assert cold[-1].finish_reason is FinishReason.LENGTH


@over
async def test_one_token_ends_at_prefill(over: str) -> None:
    async with cluster("p1", "d1", over=over) as pair:
        assert len(tokens(await pair.ask("r", max_tokens=1))) == 1
        await pair.quiet()


@over
@pytest.mark.parametrize("seed", range(2))
async def test_64_callers_of_whom_some_leave(over: str, seed: int) -> None:
    rng = random.Random(seed)
    async with cluster("p1", "p2", "d1", "d2", over=over) as fleet:
        reference = {}

        async def call(number: int) -> None:
            prompt = PROMPT[: 20 + number % 8]
            leaves = rng.randrange(12) if number % 3 == 0 else None
            stream = fleet.router.generate(a_request(f"r{number}", prompt=prompt))
            got: list[int] = []
            async for chunk in stream:
                got += chunk.token_ids
                if leaves is not None and len(got) > leaves:
                    await stream.aclose()
                    return
            assert got == reference.setdefault(prompt, got)

        async with asyncio.timeout(40):
            await asyncio.gather(*map(call, range(64)))
        assert len(reference) == 8
        await fleet.quiet()


@over
async def test_a_worker_that_stops_costs_no_request_its_answer(over: str) -> None:
    gate = Gate()
    async with cluster("p1", "p2", "d1", "d2", over=over, gates={"d1": gate}) as fleet:
        whole = tokens(await fleet.ask("before"))
        gate.shut_after(3)
        calls = [asyncio.create_task(fleet.ask(f"r{number}")) for number in range(6)]
        await gate.reached()
        victim = fleet.workers["d1"].worker
        await fleet.roster.leave(WorkerRef("d1", "d1-life-1"))
        stopping = asyncio.create_task(victim.stop(0.0))
        gate.open()
        async with asyncio.timeout(20):
            for answer in await asyncio.gather(*calls):
                assert tokens(answer) == whole
        await stopping
        await fleet.quiet("d1")


async def test_a_lost_worker_of_which_there_is_no_other_is_one_clear_error() -> None:
    gate = Gate()
    async with cluster("p1", "d1", over="grpc", gates={"d1": gate}) as fleet:
        gate.shut_after(2)
        call = asyncio.create_task(fleet.ask("r"))
        await gate.reached()
        await fleet.roster.leave(WorkerRef("d1", "d1-life-1"))
        stopping = asyncio.create_task(fleet.workers["d1"].worker.stop(0.0))
        gate.open()
        with pytest.raises(HeadraceError) as told:
            await call
        assert told.value.kind.http_status == 503, told.value
        await stopping


async def test_inference_over_grpc_is_the_router_itself() -> None:
    async with cluster("p1", "d1", over="grpc") as pair:
        server = await serve("127.0.0.1:0", inference=pair.router, fleet=pair.router)
        try:
            async with InferenceClient(f"127.0.0.1:{server.port}") as client:
                chunks = [chunk async for chunk in client.generate(a_request("r1"))]
                assert tokens(chunks) == tokens(await pair.ask("r2"))
                # From any chunk's resume point the rest follows.
                resumed = replace(a_request("r3"), resume=chunks[0].resume.encode())
                rest = [chunk async for chunk in client.generate(resumed)]
                assert tokens(chunks[:1]) + tokens(rest) == tokens(chunks)
                # A caller that hangs up frees both workers.
                stream = client.generate(a_request("r4", max_tokens=200))
                await anext(stream)
                await stream.aclose()
            await pair.quiet()
            assert (await pair.router.explain("r1")).outcome == "length"
        finally:
            await server.stop(0.0)
