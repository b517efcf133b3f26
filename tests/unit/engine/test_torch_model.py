"""A model that torch computes: which rows its logits are asked of, and that they are padded, come back to the host and
are nobody else's."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from headrace.core.layout import KvLayout
from headrace.engine.batch import Batch
from headrace.engine.ops import PagedKv
from headrace.engine.rows import ROW_MULTIPLE
from headrace.engine.runner import Span
from headrace.engine.torch_model import TorchModel

LAYOUT = KvLayout(layers=1, kv_heads=1, head_dim=8, block_tokens=16, dtype="float32")
VOCABULARY = 5


class Counting:
    """See TensorModel. A row's state is its token; its logits are the token plus their index."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def forward(self, batch: Batch, kv: PagedKv) -> Tensor:
        return batch.ids[:, None].float()

    def logits(self, hidden: Tensor) -> Tensor:
        self.asked.append(len(hidden))
        return hidden + torch.arange(VOCABULARY)


@pytest.mark.parametrize(
    "rows", [[0], [12], [0, 1, 2], range(8), range(13), [3, 12], [12, 0], list(range(1, 13))], ids=str
)
def test_logits_are_those_of_the_rows(rows: Sequence[int]) -> None:
    counting = Counting()
    kv = PagedKv(torch.zeros((1, 4, LAYOUT.page_bytes), dtype=torch.uint8), LAYOUT, torch.float32)
    model = TorchModel(counting, kv)
    tokens = [100 + 10 * index for index in range(13)]
    model.forward([Span(tokens, 5, 1, [0], None), Span(tokens, 0, 12, [1], None)])
    expected = np.array([tokens[5], *tokens[:12]])[list(rows)]
    logits = model.logits(rows)
    assert logits.dtype == np.float32
    np.testing.assert_array_equal(logits, expected[:, None] + np.arange(VOCABULARY))
    assert all(asked % ROW_MULTIPLE == 0 for asked in counting.asked)
    logits.fill(-1)
    np.testing.assert_array_equal(model.logits(rows), expected[:, None] + np.arange(VOCABULARY))
