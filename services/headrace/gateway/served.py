"""What endpoints share: reading a JSON body, and which model a body means."""

from fastapi import Request

from headrace.core.errors import ModelNotFound, Unavailable
from headrace.core.generation import ModelCard
from headrace.gateway.errors import BadParameter
from headrace.gateway.strict_body import AnyBody, parse
from headrace.rpc.contracts import Inference


async def read(model: type[AnyBody], request: Request) -> AnyBody:
    """The request's body as `model`. Raises InvalidRequest.

    Any other content type is refused: browsers send those across origins without asking first.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise BadParameter("The Content-Type must be application/json.", param=None, code="invalid_content_type")
    return parse(model, await request.body())


class ServedModels:
    """The models the router can serve now."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference

    async def cards(self) -> tuple[ModelCard, ...]:
        return await self._inference.list_models()

    async def card(self, model: str) -> ModelCard:
        """Raises ModelNotFound."""
        for card in await self.cards():
            if card.id == model:
                return card
        raise ModelNotFound(f"The model {model!r} is not served here.", remedy="GET /v1/models lists those that are.")

    async def resolve(self, model: str | None) -> str:
        """`model` as it is (the router knows whether it serves it); without a name, the only model there is."""
        if model is not None:
            return model
        cards = await self.cards()
        if not cards:
            raise Unavailable("No worker serves a model yet.", remedy="Try again shortly.")
        if len(cards) > 1:
            names = ", ".join(card.id for card in cards)
            raise BadParameter(
                "model is required.", param="model", code="missing_required_parameter", remedy=f"One of: {names}."
            )
        return cards[0].id
