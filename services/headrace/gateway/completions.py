"""The two endpoints that write answers: `/v1/chat/completions` and `/v1/completions`."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from headrace.core.generation import Chunk, FinishReason, GenerateRequest, Usage
from headrace.gateway.context import RequestContext, RequestIds, context_of
from headrace.gateway.generations import Generations
from headrace.gateway.openai_answers import Answered, AnswerFormat, ChatFormat, CompletionFormat, total_usage
from headrace.gateway.openai_map import Wanted, chat_choices, completion_choices
from headrace.gateway.openai_schema import ChatBody, CompletionBody, GenerationBody
from headrace.gateway.options import GatewayOptions
from headrace.gateway.presence import while_present
from headrace.gateway.served import ServedModels, read
from headrace.gateway.sse import EventStream, event


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
        return await self._answer(request, body, chat_choices(body, self._options.max_choices), ChatFormat)

    async def _complete(self, request: Request) -> Response:
        body = await read(CompletionBody, request)
        return await self._answer(request, body, completion_choices(body, self._options.max_choices), CompletionFormat)

    async def _answer(
        self,
        request: Request,
        body: GenerationBody,
        wanted: tuple[Wanted, ...],
        format_of: type[ChatFormat] | type[CompletionFormat],
    ) -> Response:
        context = context_of(request.scope)
        model = await self._models.resolve(body.model)
        context.id = self._ids.claim(context.id)
        chunks = self._generations.chunks(self._requests(context, model, body, wanted))
        with_usage = bool(body.stream_options and body.stream_options.include_usage)
        answer = format_of(context.id, model, int(time.time()), with_usage)
        if body.stream:
            return EventStream(_events(chunks, answer, wanted, with_usage), self._options.keepalive_s)
        choices = await while_present(request.receive, _collect(chunks, wanted))
        return JSONResponse(answer.whole(choices))

    def _requests(
        self, context: RequestContext, model: str, body: GenerationBody, wanted: tuple[Wanted, ...]
    ) -> tuple[GenerateRequest, ...]:
        """The first choice goes under the id that the answer carries, the others under ids made from it."""
        ids = [context.id, *(self._ids.claim(f"{context.id}-{index}") for index in range(1, len(wanted)))]
        salt = context.tenant_salt if body.cache_salt is None else body.cache_salt
        return tuple(
            GenerateRequest(id, model, choice.prompt, choice.sampling, self._options.request_timeout_s, salt)
            for id, choice in zip(ids, wanted, strict=True)
        )


async def _collect(chunks: AsyncGenerator[Chunk, None], wanted: tuple[Wanted, ...]) -> list[Answered]:
    """Whole choices, in order."""
    texts: list[list[str]] = [[] for _ in wanted]
    endings: dict[int, tuple[FinishReason, Usage]] = {}
    async with aclosing(chunks):
        async for chunk in chunks:
            texts[chunk.choice].append(chunk.text)
            if chunk.finish_reason is not None and chunk.usage is not None:
                endings[chunk.choice] = (chunk.finish_reason, chunk.usage)
    return [Answered("".join(text), *endings[index], wanted[index].prompt_index) for index, text in enumerate(texts)]


async def _events(
    chunks: AsyncGenerator[Chunk, None], answer: AnswerFormat, wanted: tuple[Wanted, ...], with_usage: bool
) -> AsyncGenerator[bytes, None]:
    """Server-sent events of the answer. Chunks whose text is still held back send nothing."""
    opened: set[int] = set()
    usages: dict[int, Usage] = {}
    async with aclosing(chunks):
        async for chunk in chunks:
            if chunk.choice not in opened:
                opened.add(chunk.choice)
                if (opening := answer.opening(chunk.choice)) is not None:
                    yield event(opening)
            if chunk.text or chunk.finish_reason is not None:
                yield event(answer.piece(chunk))
            if chunk.usage is not None:
                usages[chunk.choice] = chunk.usage
    if with_usage:
        yield event(
            answer.closing(total_usage((wanted[index].prompt_index, usages[index]) for index in sorted(usages)))
        )
