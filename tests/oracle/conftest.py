"""The model of the oracle tests, and how many threads torch has: what runs after them has as many as before."""

from collections.abc import Iterator

import pytest
import torch
from make_reference import CACHE, MODEL

from headrace.core.errors import StartupError
from headrace.modelfiles.files import ModelFiles
from headrace.modelfiles.resolve import resolve


@pytest.fixture(scope="module", autouse=True)
def _threads_as_they_were() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    try:
        return resolve(MODEL, CACHE)
    except StartupError as error:
        pytest.skip(f"the model cannot be had: {error}")
