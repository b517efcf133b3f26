"""The HTTP application: endpoints, the layers around them, and nothing else."""

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from headrace.core.errors import HeadraceError
from headrace.gateway.auth import AuthMiddleware
from headrace.gateway.completions import Completions
from headrace.gateway.context import ContextMiddleware, context_of
from headrace.gateway.errors import error_response, report_defect, routing_response
from headrace.gateway.generations import Generations
from headrace.gateway.limits import BodyLimitMiddleware, Slots
from headrace.gateway.operations import Operations
from headrace.gateway.options import GatewayOptions
from headrace.gateway.served import ServedModels
from headrace.rpc.contracts import Fleet, Inference


def build_app(inference: Inference, fleet: Fleet, options: GatewayOptions) -> FastAPI:
    """OpenAI's HTTP API over a router, which may be in this process or behind a channel."""
    app = FastAPI(
        title="Headrace",
        openapi_url=None,
        redirect_slashes=False,
        middleware=[
            Middleware(ContextMiddleware),
            Middleware(AuthMiddleware, keys=options.accepted),
            Middleware(BodyLimitMiddleware, max_bytes=options.max_body_bytes),
        ],
        exception_handlers={HeadraceError: _refused, HTTPException: _misrouted},
    )
    models = ServedModels(inference)
    generations = Generations(inference, Slots(options.max_generations))
    app.include_router(Completions(generations, models, options).routes())
    app.include_router(Operations(inference, fleet, models, options.admin).routes())
    return app


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HeadraceError)
    report_defect(error, context_of(request.scope).id)
    return error_response(error)


async def _misrouted(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    message = f"There is no {what}." if error.status_code == 404 else f"{what}: {error.detail}."
    return routing_response(error.status_code, message, dict(error.headers or {}))
