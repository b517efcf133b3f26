"""How a JSON body is read: every field honoured or refused, none dropped.

Owns the strict base model, the marks for fields that are known but not supported, and the one sentence a
caller gets for a body that does not fit. Knows no field of any API.
"""

import difflib
from collections.abc import Sequence
from typing import Any, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, ValidationInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from headrace.gateway.errors import BadParameter

_UNSUPPORTED = "unsupported_parameter"


class Body(BaseModel):
    """Base of every request body: unknown fields, wrong types and non-finite numbers are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


AnyBody = TypeVar("AnyBody", bound=Body)


def neutral(*values: object) -> AfterValidator:
    """Marks a field that is known but not supported: it may hold one of `values`, which ask for nothing."""

    def check(value: object, info: ValidationInfo) -> object:
        if value not in values:
            raise PydanticCustomError(
                _UNSUPPORTED, "{field} is not supported with this value", {"field": info.field_name}
            )
        return value

    return AfterValidator(check)


def parse(model: type[AnyBody], body: bytes) -> AnyBody:
    """`body` as `model`. Raises BadParameter with one sentence about the first thing that is wrong."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise _refusal(model, error.errors(include_url=False)) from None


def _refusal(model: type[Body], errors: list[ErrorDetails]) -> BadParameter:
    """An unknown field goes first: it is often the misspelling of one that is then reported missing."""
    fault = next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])
    param = _path(fault["loc"])
    match fault["type"]:
        case "json_invalid":
            return BadParameter(
                f"The body is not valid JSON: {fault['ctx']['error']}.", param=None, code="invalid_json"
            )
        case "extra_forbidden":
            return BadParameter(
                f"Unknown field: {param}.", param=param, code="unknown_parameter", remedy=_nearest(model, fault["loc"])
            )
        case "missing":
            return BadParameter(f"{param} is required.", param=param, code="missing_required_parameter")
        case "unsupported_parameter":
            return BadParameter(
                f"{param} is not supported with this value.", param=param, code=_UNSUPPORTED, remedy="Leave it out."
            )
    return BadParameter(f"{param or 'The body'}: {_sentence(fault['msg'])}", param=param or None)


def _sentence(text: str) -> str:
    return text[:1].lower() + text[1:] + "."


def _path(loc: Sequence[int | str]) -> str:
    """`("messages", 0, "content")` as `messages[0].content`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return "".join(parts).removeprefix(".")


def _nearest(model: type[Body], loc: Sequence[int | str]) -> str:
    known = _model_at(model, loc[:-1]).model_fields
    close = difflib.get_close_matches(str(loc[-1])[:64], known, n=1)
    return f"Did you mean {close[0]}?" if close else ""


def _model_at(model: type[Body], loc: Sequence[int | str]) -> type[Body]:
    """The body model that the fields along `loc` lead to."""
    for part in loc:
        if isinstance(part, str) and part in model.model_fields:
            model = _body_in(model.model_fields[part].annotation) or model
    return model


def _body_in(annotation: Any) -> type[Body] | None:
    if isinstance(annotation, type) and issubclass(annotation, Body):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _body_in(inner))), None)
