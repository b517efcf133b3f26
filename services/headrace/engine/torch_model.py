"""A Model that torch computes: steps become tensors where the model lies, and logits come back to the host.

Owns the padding of rows that products ask for.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from headrace.engine import ops
from headrace.engine.batch import Batch, make_batch
from headrace.engine.logit_row import Logits
from headrace.engine.rows import padded_rows
from headrace.engine.runner import Span


class TensorModel(Protocol):
    """A rank of a decoder, or what stands in front of it."""

    def forward(self, batch: Batch, kv: ops.PagedKv) -> Tensor:
        """Writes the batch's keys and values; returns the last states [batch.rows, hidden], good until the next one."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """[row, hidden] to float32 [row, vocabulary], in memory of its own. Rows are a multiple of ROW_MULTIPLE."""
        ...


class TorchModel:
    """See Model."""

    def __init__(self, model: TensorModel, kv: ops.PagedKv) -> None:
        """kv: over all the pages, or over this rank's share of them."""
        self._model = model
        self._kv = kv
        self._hidden = torch.empty(0)

    def forward(self, spans: Sequence[Span]) -> None:
        kv = self._kv
        with torch.inference_mode():
            batch = make_batch(list(spans), kv.layout, kv.page_multiple, kv.device)
            self._hidden = self._model.forward(batch, kv)

    def logits(self, rows: Sequence[int]) -> Logits:
        with torch.inference_mode():
            logits: Logits = self._model.logits(self._picked(rows))[: len(rows)].cpu().numpy()
        return logits

    def _picked(self, rows: Sequence[int]) -> Tensor:
        count = padded_rows(len(rows))
        if list(rows) == list(range(len(rows))) and count <= len(self._hidden):
            return self._hidden[:count]  # of a step of streams: what follows them is padding
        return self._hidden[torch.tensor([*rows] + [rows[0]] * (count - len(rows)))]
