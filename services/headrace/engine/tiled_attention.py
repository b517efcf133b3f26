"""Attention over fixed-size tiles of the context: a query's bits depend on its own context alone.

Owns the arithmetic of batch-invariant attention. Every context is cut into tiles from position 0 on; each tile costs
two products of one shape whatever else is computed beside it, and a query's tiles are added in their order. A tile
that a query does not see adds zeros, so it does not matter how many of those its batch brings along. The largest score
is taken over the whole context before the exponentials (two passes, as in Milakov and Gimelshein, arXiv 1805.02867,
section 2): tiles need no rescaling. Everything is float32 between the reading of pages and the result.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from headrace.engine.rows import ROW_MULTIPLE, padded_rows

if TYPE_CHECKING:
    from headrace.engine.models.attention import AttentionSpec

TILE_TOKENS = 128
# Numbers of one intermediate at once, 4 MiB: more leave the caches.
_AT_ONCE = 1 << 20


def attend(queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor, spec: "AttentionSpec") -> Tensor:
    """Causal attention of `queries` [sequence, kv head, row, dim], at `positions` [sequence, row]: [...] of queries.

    keys, values: [sequence, kv head, token, dim], tokens a multiple of TILE_TOKENS. What they hold behind a query's
    position, or before its window, must be finite and does not matter.
    """
    step = max(1, _AT_ONCE // keys[0].numel())
    few = [slice(start, start + step) for start in range(0, len(queries), step)]
    return torch.cat([_attend_few(queries[some], keys[some], values[some], positions[some], spec) for some in few])


def _attend_few(queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor, spec: "AttentionSpec") -> Tensor:
    """The same for as many sequences as are worth it at once, in as many rows at once."""
    padding = padded_rows(queries.shape[2]) - queries.shape[2]
    padded = functional.pad(queries.float() * spec.scale, (0, 0, 0, padding))
    placed = torch.cat((positions, positions[:, -1:].expand(-1, padding)), dim=1)
    key_tiles, value_tiles = (
        each.float().view(*each.shape[:2], -1, TILE_TOKENS, each.shape[3]) for each in (keys, values)
    )
    most = _AT_ONCE // keys[..., 0].numel()
    step = max(ROW_MULTIPLE, most // ROW_MULTIPLE * ROW_MULTIPLE)
    parts = [
        _attend_rows(padded[:, :, start : start + step], key_tiles, value_tiles, placed[:, start : start + step], spec)
        for start in range(0, padded.shape[2], step)
    ]
    return torch.cat(parts, dim=2)[:, :, : queries.shape[2]].to(queries.dtype)


def _attend_rows(queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor, spec: "AttentionSpec") -> Tensor:
    """queries: [sequence, kv head, row, dim], scaled; keys, values: [sequence, kv head, tile, token, dim]."""
    seen = _seen(positions, spec.window)
    shape = (*queries.shape[:2], len(seen), queries.shape[2], -1)
    repeated = queries.unsqueeze(2).expand(shape)
    scores = torch.bmm(_flat(repeated), _flat(keys[:, :, seen.start : seen.stop]).mT).view(shape)
    if spec.softcap:
        scores = scores.div_(spec.softcap).tanh_().mul_(spec.softcap)
    scores.add_(_mask(positions, seen, spec.window))
    weights = scores.sub_(scores.amax((2, 4), keepdim=True)).exp_()
    added = torch.bmm(_flat(weights), _flat(values[:, :, seen.start : seen.stop])).view(shape)
    return _in_order(added) / _in_order(weights.sum(-1, keepdim=True))


def _seen(positions: Tensor, window: int) -> range:
    """The tiles that any of the queries sees."""
    first = max(0, int(positions.min()) + 1 - window) // TILE_TOKENS if window else 0
    return range(first, int(positions.max()) // TILE_TOKENS + 1)


def _mask(positions: Tensor, seen: range, window: int) -> Tensor:
    """[sequence, 1, tile, row, token]: minus infinity for what a query does not see of the tiles, 0 for the others."""
    tokens = torch.arange(seen.start * TILE_TOKENS, seen.stop * TILE_TOKENS, device=positions.device)
    places, own = tokens.view(len(seen), 1, TILE_TOKENS), positions[:, None, None, :, None]
    hidden = places > own
    if window:
        hidden |= places <= own - window
    return torch.zeros(hidden.shape, device=positions.device).masked_fill_(hidden, -torch.inf)


def _flat(tiles: Tensor) -> Tensor:
    """[sequence, kv head, tile, ...] as one contiguous batch."""
    return tiles.flatten(0, 2).contiguous()


def _in_order(tiles: Tensor) -> Tensor:
    """The sum over the tiles, dimension 2, of which the last may be any number of zeros."""
    total = tiles[:, :, 0]
    for tile in range(1, tiles.shape[2]):
        total = total + tiles[:, :, tile]
    return total
