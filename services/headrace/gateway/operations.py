"""The endpoints that write no answers: models, tokens, health, metrics, and what operators ask of a fleet."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from headrace.core.admin import Admin
from headrace.core.errors import HeadraceError
from headrace.core.generation import ModelCard
from headrace.gateway.auth import bearer
from headrace.gateway.fleet_json import plain
from headrace.gateway.openai_map import tokenize_prompt
from headrace.gateway.openai_schema import DetokenizeBody, DrainBody, TokenizeBody
from headrace.gateway.served import ServedModels, read
from headrace.rpc.contracts import Fleet, Inference

_EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"


class Operations:
    """Handlers over the router's two services. admin: who may ask of the fleet and its requests, and change it."""

    def __init__(self, inference: Inference, fleet: Fleet, models: ServedModels, admin: Admin) -> None:
        self._inference = inference
        self._fleet = fleet
        self._models = models
        self._admin = admin

    def routes(self) -> APIRouter:
        router = APIRouter()
        questions: dict[str, Callable[..., Awaitable[Response]]] = {
            "/health": self._health,
            "/ready": self._ready,
            "/metrics": self._metrics,
            "/v1/models": self._list_models,
            "/v1/models/{model:path}": self._one_model,
            "/v1/fleet": self._status,
            "/v1/requests/{request_id}/explain": self._explain,
        }
        for path, handler in questions.items():
            router.add_api_route(path, handler, methods=["GET"], response_model=None)
        router.add_api_route("/v1/fleet/{worker}/drain", self._drain, methods=["POST"], response_model=None)
        router.add_api_route("/tokenize", self._tokenize, methods=["POST"], response_model=None)
        router.add_api_route("/detokenize", self._detokenize, methods=["POST"], response_model=None)
        return router

    async def _health(self) -> Response:
        """This process is alive."""
        return JSONResponse({"status": "ok"})

    async def _ready(self) -> Response:
        """A chat sent now would be answered; else 503 and why not."""
        try:
            status = await self._fleet.status()
        except HeadraceError as error:
            return _readiness(False, str(error))
        return _readiness(status.ready, status.reason)

    async def _metrics(self) -> Response:
        return PlainTextResponse(await self._fleet.metrics(), headers={"content-type": _EXPOSITION})

    async def _list_models(self) -> Response:
        return JSONResponse({"object": "list", "data": [_model(card) for card in await self._models.cards()]})

    async def _one_model(self, model: str) -> Response:
        return JSONResponse(_model(await self._models.card(model)))

    async def _status(self, request: Request) -> Response:
        self._admin.require_to_look(bearer(request.scope) or "")
        return JSONResponse(plain(await self._fleet.status()))

    async def _drain(self, worker: str, request: Request) -> Response:
        """The worker as it is now; `/v1/fleet` shows it leave."""
        self._admin.require_to_change(bearer(request.scope) or "")
        body = await read(DrainBody, request)
        return JSONResponse(plain(await self._fleet.drain(worker, body.grace_s)))

    async def _explain(self, request_id: str, request: Request) -> Response:
        self._admin.require_to_look(bearer(request.scope) or "")
        return JSONResponse(plain(await self._fleet.explain(request_id)))

    async def _tokenize(self, request: Request) -> Response:
        body = await read(TokenizeBody, request)
        prompt = tokenize_prompt(body)
        tokenized = await self._inference.tokenize(await self._models.resolve(body.model), prompt)
        return JSONResponse(
            {
                "count": len(tokenized.token_ids),
                "max_model_len": tokenized.max_model_len,
                "tokens": tokenized.token_ids,
                "token_strs": None,
            }
        )

    async def _detokenize(self, request: Request) -> Response:
        body = await read(DetokenizeBody, request)
        text = await self._inference.detokenize(await self._models.resolve(body.model), body.tokens)
        return JSONResponse({"prompt": text})


def _readiness(ready: bool, reason: str) -> JSONResponse:
    if ready:
        return JSONResponse({"ready": True})
    return JSONResponse({"ready": False, "reason": reason}, status_code=503, headers={"retry-after": "1"})


def _model(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": "headrace",
        "root": card.id,
        "max_model_len": card.max_model_len,
    }
