"""The two endpoints that write answers: `/v1/chat/completions` and `/v1/completions`."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from headrace.core.generation import Chunk, GenerateRequest, Usage
from headrace.gateway.answered import Answered, Gathering
from headrace.gateway.context import RequestContext, RequestIds, context_of
from headrace.gateway.generations import Generations
from headrace.gateway.openai_answers import AnswerFormat, ChatFormat, CompletionFormat
from headrace.gateway.openai_map import Wanted, chat_choices, chat_shown, completion_choices, completion_shown
from headrace.gateway.openai_schema import ChatBody, CompletionBody, GenerationBody
from headrace.gateway.options import GatewayOptions
from headrace.gateway.presence import while_present
from headrace.gateway.served import ServedModels, read
from headrace.gateway.shown import Shown
from headrace.gateway.sse import EventStream, event
from headrace.gateway.usage import total_usage

# The router is the first to say that an answer's time is up; a client that then does not read has so much longer.
_LATE_S = 2.0


class Completions:
    """Handlers of both endpoints over the router's generations."""

    def __init__(self, generations: Generations, models: ServedModels, options: GatewayOptions) -> None:
        self._generations = generations
        self._models = models
        self._options = options
        self._ids = RequestIds()

    def routes(self) -> APIRouter:
        router = APIRouter()
        router.add_api_route("/v1/chat/completions", self._chat, methods=["POST"], response_model=None)
        router.add_api_route("/v1/completions", self._complete, methods=["POST"], response_model=None)
        return router

    async def _chat(self, request: Request) -> Response:
        body = await read(ChatBody, request)
        wanted = chat_choices(body, self._options.max_choices)
        return await self._answer(request, body, wanted, chat_shown(body), ChatFormat)

    async def _complete(self, request: Request) -> Response:
        body = await read(CompletionBody, request)
        wanted = completion_choices(body, self._options.max_choices)
        return await self._answer(request, body, wanted, completion_shown(body), CompletionFormat)

    async def _answer(
        self,
        request: Request,
        body: GenerationBody,
        wanted: tuple[Wanted, ...],
        shown: Shown,
        format_of: type[ChatFormat] | type[CompletionFormat],
    ) -> Response:
        context = context_of(request.scope)
        model = await self._models.resolve(body.model)
        context.id = self._ids.claim(context.id)
        chunks = self._generations.chunks(self._requests(context, model, body, wanted, shown))
        if not shown.answer:
            chunks = _without_answer(shown, chunks)
        with_usage = bool(body.stream_options and body.stream_options.include_usage)
        answer = format_of(context.id, model, int(time.time()), with_usage, shown)
        if body.stream:
            limit_s = self._options.request_timeout_s + _LATE_S
            events = _events(chunks, answer, wanted, shown, with_usage)
            return EventStream(events, self._options.keepalive_s, limit_s)
        choices = await while_present(request.receive, _collect(chunks, wanted))
        return JSONResponse(answer.whole(choices))

    def _requests(
        self, context: RequestContext, model: str, body: GenerationBody, wanted: tuple[Wanted, ...], shown: Shown
    ) -> tuple[GenerateRequest, ...]:
        """The first choice goes under the id that the answer carries, the others under ids made from it."""
        ids = [context.id, *(self._ids.claim(f"{context.id}-{index}") for index in range(1, len(wanted)))]
        salt = context.tenant_salt if body.cache_salt is None else body.cache_salt
        return tuple(
            GenerateRequest(
                id,
                model,
                choice.prompt,
                choice.sampling,
                timeout_s=self._options.request_timeout_s,
                cache_salt=salt,
                priority=body.priority or 0,
                echo=shown.prompt,
            )
            for id, choice in zip(ids, wanted, strict=True)
        )


async def _without_answer(shown: Shown, chunks: AsyncGenerator[Chunk, None]) -> AsyncGenerator[Chunk, None]:
    async with aclosing(chunks):
        async for chunk in chunks:
            yield shown.of(chunk)


async def _collect(chunks: AsyncGenerator[Chunk, None], wanted: tuple[Wanted, ...]) -> list[Answered]:
    """Whole choices, in order."""
    gatherings = [Gathering() for _ in wanted]
    async with aclosing(chunks):
        async for chunk in chunks:
            gatherings[chunk.choice].add(chunk)
    return [gathering.whole(one.prompt_index) for gathering, one in zip(gatherings, wanted, strict=True)]


async def _events(
    chunks: AsyncGenerator[Chunk, None],
    answer: AnswerFormat,
    wanted: tuple[Wanted, ...],
    shown: Shown,
    with_usage: bool,
) -> AsyncGenerator[bytes, None]:
    """Server-sent events of the answer. Chunks that have nothing to show yet send nothing."""
    opened: set[int] = set()
    usages: dict[int, Usage] = {}
    async with aclosing(chunks):
        async for chunk in chunks:
            if chunk.choice not in opened:
                opened.add(chunk.choice)
                if (opening := answer.opening(chunk)) is not None:
                    yield event(opening)
            if shown.worth(chunk):
                yield event(answer.piece(chunk))
            if chunk.usage is not None:
                usages[chunk.choice] = chunk.usage
    if with_usage:
        yield event(
            answer.closing(total_usage((wanted[index].prompt_index, usages[index]) for index in sorted(usages)))
        )
