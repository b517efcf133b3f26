"""ScriptedInference and ScriptedFleet: fakes of the router's two services, for tests of what stands on them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace.core.errors import HeadraceError, NotFound
from headrace.core.fleet import FleetStatus, WorkerState
from headrace.core.generation import (
    ChatPrompt,
    Chunk,
    FinishReason,
    GenerateRequest,
    ModelCard,
    Prompt,
    PromptEcho,
    TextPrompt,
    Tokenized,
    TokenPrompt,
    Usage,
)
from headrace.core.lifecycle import Phase, Transition
from headrace.core.logprobs import TokenLogprob
from headrace.core.resume import ResumePoint
from headrace.core.route import Explanation

MODEL = "scripted"
DEADLINE_S = 10.0
Step = str | Chunk | asyncio.Event | Exception
Script = Callable[[GenerateRequest], Sequence[Step]]


def tokens_of(prompt: Prompt) -> tuple[int, ...]:
    """Bytes of the text stand for its tokens. Fails, as a real tokenizer would, on what is no Unicode or no int32."""
    match prompt:
        case ChatPrompt(messages):
            return tuple("".join(f"{turn.role}:{turn.content};" for turn in messages).encode())
        case TextPrompt(text):
            return tuple(text.encode())
        case TokenPrompt(token_ids):
            return tuple(np.asarray(token_ids, dtype="<i4").tolist())


@dataclass
class Life:
    """What became of one generation."""

    request: GenerateRequest
    produced: int = 0
    started: asyncio.Event = field(default_factory=asyncio.Event)
    finished: bool = False
    aborted: asyncio.Event = field(default_factory=asyncio.Event)


class ScriptedInference:
    """Plays a script per request: a string is a chunk of one token (the last one ends the answer) that reports what
    the request asks for, a chunk is itself, an event is waited for, an exception is raised. Records every
    generation's life, and whether it was closed before its end."""

    def __init__(self, script: Script | Sequence[Step] = ("Par", "is")) -> None:
        self._script: Script = script if callable(script) else lambda request: script
        self._news = asyncio.Condition()
        self.lives: list[Life] = []

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        life = Life(request)
        offset = 0
        steps = self._script(request)
        texts = sum(isinstance(step, str) for step in steps)
        self.lives.append(life)
        async with self._news:
            self._news.notify_all()
        try:
            life.started.set()
            for step in steps:
                if isinstance(step, asyncio.Event):
                    await step.wait()
                elif isinstance(step, Exception):
                    raise step
                elif isinstance(step, Chunk):
                    yield step
                else:
                    life.produced += 1
                    yield _chunk(request, life.produced, step, offset, last=life.produced == texts)
                    offset += len(step)
            life.finished = True
        except (GeneratorExit, asyncio.CancelledError):
            life.aborted.set()
            raise

    async def nth(self, count: int) -> Life:
        """The `count`-th generation, once it has begun."""
        async with asyncio.timeout(DEADLINE_S), self._news:
            await self._news.wait_for(lambda: len(self.lives) >= count)
        return self.lives[count - 1]

    async def tokenize(self, model: str, prompt: Prompt) -> Tokenized:
        return Tokenized(tokens_of(prompt), 8192)

    async def detokenize(self, model: str, token_ids: tuple[int, ...]) -> str:
        return bytes(token % 128 for token in token_ids).decode()

    async def list_models(self) -> tuple[ModelCard, ...]:
        return (ModelCard(MODEL, 8192, 1_700_000_000), ModelCard("org/other", 4096, 1_700_000_001))


def _chunk(request: GenerateRequest, number: int, text: str, offset: int, *, last: bool) -> Chunk:
    first = number == 1
    return Chunk(
        choice=0,
        position=number - 1,
        text=text,
        token_ids=(number,),
        resume=ResumePoint(0, bytes(8), (), 0),
        finish_reason=FinishReason.STOP if last else None,
        usage=Usage(len(tokens_of(request.prompt)), number, 3) if last else None,
        logprobs=_logprobs(request.sampling.logprobs, [(number, text.encode(), offset)]),
        prompt_logprobs=_prompt_logprobs(request) if first else (),
        prompt=echo_of(request.prompt) if first and request.echo else None,
    )


def echo_of(prompt: Prompt) -> PromptEcho:
    """Tokens of a text are its bytes."""
    ids = tokens_of(prompt)
    text = prompt.text if isinstance(prompt, TextPrompt) else "".join(map(chr, ids))
    return PromptEcho(text, ids, tuple(bytes([token]) for token in ids))


def _prompt_logprobs(request: GenerateRequest) -> tuple[TokenLogprob, ...]:
    ids = tokens_of(request.prompt)
    tokens = [(token, bytes([token]), place) for place, token in enumerate(ids)]
    return _logprobs(request.sampling.prompt_logprobs, tokens[1:])


def _logprobs(count: int | None, tokens: Sequence[tuple[int, bytes, int]]) -> tuple[TokenLogprob, ...]:
    """Alternatives are tokens 65 (`A`) and following, the likeliest first; the token itself comes third."""
    if count is None:
        return ()
    top = tuple((65 + place, -0.5 * (place + 1)) for place in range(count))
    pieces = tuple(bytes([token]) for token, _ in top)
    return tuple(TokenLogprob(token, -1.25, 3, top, piece, pieces, offset) for token, piece, offset in tokens)


class ScriptedFleet:
    """A fleet that says what it is told to, and explains the requests that `inference` has seen."""

    def __init__(self, inference: ScriptedInference) -> None:
        self._inference = inference
        self.answer: FleetStatus | HeadraceError = FleetStatus(True, "", (), 0, 0)
        self.drained: list[tuple[str, float]] = []

    async def status(self) -> FleetStatus:
        if isinstance(self.answer, HeadraceError):
            raise self.answer
        return self.answer

    async def explain(self, request: str) -> Explanation:
        if request not in [life.request.id for life in self._inference.lives]:
            raise NotFound(f"Request {request} is not among the last 1,000.")
        moves = (Transition(Phase.RECEIVED, Phase.ROUTED, 1.5),)
        return Explanation(request, MODEL, 5, (), moves, "done", 3, float("inf"))

    async def drain(self, worker: str, grace_s: float = 0.0) -> WorkerState:
        self.drained.append((worker, grace_s))
        status = await self.status()
        found = [state for state in status.workers if state.info.ref.worker == worker]
        if not found:
            raise NotFound(f"No worker {worker} is attached.")
        return found[0]

    async def metrics(self) -> str:
        return "# TYPE headrace_workers gauge\nheadrace_workers 2\n"
