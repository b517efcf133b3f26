"""Gateway, router, prefill and decode worker in one process, with the real engine in batch-invariant mode on a tiny
byte-level model, and requests over HTTP."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from fixtures.gguf_writer import CONTROL, MERGES
from fixtures.gguf_writer import tokens as vocabulary
from fixtures.tiny_model import CONFIG, tiny_files
from test_router_workers import QUICK, InProcess
from worker_harness import Serving, served

from headrace.core.fleet import Role, WorkerInfo, WorkerRef
from headrace.core.jobs import JobKey
from headrace.core.pages import PagePort
from headrace.core.vocabulary import Vocabulary
from headrace.engine.build import build_engine
from headrace.engine.engine import Engine, StepOutput
from headrace.engine.options import EngineOptions
from headrace.engine.replica import Replica
from headrace.engine.sequence import State
from headrace.gateway.app import build_app
from headrace.gateway.options import GatewayOptions
from headrace.gateway.server import GatewayServer
from headrace.modelfiles.files import ModelFiles
from headrace.modelfiles.pretokenizers import tokenizer_json
from headrace.roster.memory_commons import MemoryCommons
from headrace.roster.memory_roster import MemoryRoster
from headrace.router.attachments import Patience
from headrace.router.models import ServedModel
from headrace.router.options import RouterOptions
from headrace.router.policy import Disaggregation, Policy
from headrace.router.service import Router
from headrace.telemetry.metrics import RouterMetrics, WorkerMetrics
from headrace.text.model import TextModel
from headrace.transfer.factory import make_link
from headrace.transfer.link import LinkFactory
from headrace.transfer.loopback import Switchboard
from headrace.transfer.thread import TransferThread
from headrace.worker.service import Worker

MODEL = "tiny"
OPTIONS = EngineOptions(
    dtype="float32", max_model_len=512, max_num_seqs=9, kv_cache_memory_bytes=2**21, threads=1, batch_invariant=True
)
# Tokens that a job has drawn when its pages are taken away.
_TAKEN_AT = 4
_TIMEOUT_S = 60.0


def write_tokenizer(directory: Path) -> None:
    """Of single bytes and a few merges."""
    tokenizer = tokenizer_json("smollm", vocabulary(), MERGES, range(len(CONTROL)), ())
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))


def byte_files(directory: Path) -> ModelFiles:
    """A tiny Llama over single bytes and a few merges, with its tokenizer."""
    write_tokenizer(directory)
    return tiny_files(directory, replace(CONFIG, vocab_size=len(vocabulary())))


class Unsteady:
    """An Engine that takes every running job's pages away once, in the middle of its answer."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.taken: set[JobKey] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replica, name)

    def step(self) -> StepOutput:
        for sequence in self._replica._live.values():
            due = sequence.state is State.RUNNING and not sequence.pinned and sequence.position >= _TAKEN_AT
            if due and sequence.job.key not in self.taken:
                self.taken.add(sequence.job.key)
                self._replica._allocator.preempt(sequence)
        return self._replica.step()


@dataclass(frozen=True, slots=True)
class Cluster:
    http: httpx.AsyncClient
    workers: tuple[Serving, ...]
    unsteady: Unsteady | None

    async def ask(self, **body: Any) -> dict[str, Any]:
        """One completion's choice and usage. Pieces of a stream are put together."""
        if body.get("stream"):
            return await self._streamed({**body, "stream_options": {"include_usage": True}})
        response = await self.http.post("/v1/completions", json={"model": MODEL, **body})
        assert response.status_code == 200, response.text
        answer = response.json()
        return {**answer["choices"][0], "usage": answer["usage"]}

    async def _streamed(self, body: dict[str, Any]) -> dict[str, Any]:
        whole: dict[str, Any] = {"text": "", "token_ids": [], "logprobs": None, "finish_reason": None}
        async with self.http.stream("POST", "/v1/completions", json={"model": MODEL, **body}) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    _add(whole, json.loads(line.removeprefix("data: ")))
        return whole

    async def quiet(self) -> None:
        """Nothing is held, and the engines' books balance."""
        for worker in self.workers:
            await worker.quiet()
            worker.engine.check()


def _add(whole: dict[str, Any], event: dict[str, Any]) -> None:
    whole["usage"] = event.get("usage") or whole.get("usage")
    for choice in event["choices"]:
        whole["text"] += choice["text"]
        whole["token_ids"] += choice.get("token_ids", [])  # the opening of a stream has none
        whole["finish_reason"] = choice["finish_reason"] or whole["finish_reason"]
        if choice["logprobs"] is not None:
            whole["logprobs"] = whole["logprobs"] or {name: [] for name in choice["logprobs"]}
            for name, values in choice["logprobs"].items():
                whole["logprobs"][name] += values


def engines(files: ModelFiles, *, budget: int, preempted: bool, kernels: str = "auto") -> tuple[Engine, Engine]:
    """Of a prefill and a decode worker. preempted: the second one is unsteady, and computes what it lost again."""
    known = Vocabulary(files.config.vocab_size, frozenset(files.stop_ids))
    options = replace(OPTIONS, kernels=kernels, max_num_batched_tokens=budget)
    decode = build_engine(files, known, replace(options, enable_prefix_caching=not preempted))
    return build_engine(files, known, options), Unsteady(decode) if preempted else decode


@asynccontextmanager
async def cluster(files: ModelFiles, prefill: Engine, decode: Engine) -> AsyncIterator[Cluster]:
    """The pair behind a router behind a gateway."""
    switchboard, roster = Switchboard(), MemoryRoster()
    async with AsyncExitStack() as stack:
        workers: dict[WorkerRef, Worker] = {}
        serving = []
        for engine, role in ((prefill, Role.PREFILL), (decode, Role.DECODE)):
            metrics = WorkerMetrics()
            carrier = _carrier(make_link("loopback", switchboard=switchboard), metrics)
            here = served(engine, name=role.value, role=role, make_carrier=carrier, link="loopback", metrics=metrics)
            serving.append(await stack.enter_async_context(here))
            info = serving[-1].worker.announce("nowhere:1")
            workers[info.ref] = serving[-1].worker
            await roster.join(info, 60.0)
        router = await _router(files, roster, workers, stack)
        server = GatewayServer(build_app(router, router, GatewayOptions()), "127.0.0.1", 0)
        await server.start()
        stack.push_async_callback(server.stop, 0.0)
        url = f"http://127.0.0.1:{server.port}"
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S))
        yield Cluster(http, tuple(serving), decode if isinstance(decode, Unsteady) else None)


def _carrier(factory: LinkFactory, metrics: WorkerMetrics) -> Any:
    def make(pages: PagePort, report: Any) -> TransferThread:
        return TransferThread(factory, pages, report, metrics.transfer, QUICK)

    return make


async def _router(
    files: ModelFiles, roster: MemoryRoster, workers: dict[WorkerRef, Worker], stack: AsyncExitStack
) -> Router:
    def connect(info: WorkerInfo) -> InProcess:
        return InProcess(workers[info.ref])

    router = Router(
        models=[ServedModel(MODEL, TextModel.load(files), 512, 0)],
        roster=roster,
        connect=connect,
        match=lambda hashes: {},
        commons=MemoryCommons(),
        metrics=RouterMetrics(),
        options=RouterOptions(
            policy=Policy(disaggregation=Disaggregation.ALWAYS), patience=Patience(5.0, 0.02, 0.1), grace_s=1.0
        ),
    )
    await router.start()
    stack.push_async_callback(router.stop, 0.0)
    return router
