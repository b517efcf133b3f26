"""The HTTP client of the terminal commands: a gateway's answer, or one sentence about why there is none."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from headrace.core.errors import HeadraceError, Unavailable, from_code
from headrace.store.address import without_secrets

# A gateway fills the silence of a stream with comments every 10 s: one that is silent for longer is gone.
_TIMEOUT = httpx.Timeout(10.0, read=60.0)


@contextmanager
def gateway(url: str, api_key: str) -> Iterator[httpx.Client]:
    """A client of the gateway at `url`. Inside, connection trouble is Unavailable."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=_TIMEOUT) as client:
            yield client
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unavailable(
            f"The gateway at {without_secrets(url)} does not answer: {error}.",
            remedy="Start one with `headrace up`, or give --url.",
        ) from None


def answer(response: httpx.Response) -> Any:
    """The JSON of a good answer. Raises the error that a bad one tells."""
    if response.is_success:
        return response.json()
    raise refusal(response)


def refusal(response: httpx.Response) -> HeadraceError:
    """The error in an OpenAI-shaped body; the bare status where there is none."""
    try:
        error = response.json()["error"]
        return from_code(str(error["code"]), str(error["message"]))
    except (ValueError, KeyError, TypeError):
        return Unavailable(f"The gateway answered {response.status_code} {response.reason_phrase}.")
