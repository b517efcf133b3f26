"""What programs of an attention kernel do: find their sequence, attend to one split of its context, join two.

Owns the order of sums, which the kernels that share it need not know to agree to the bit.
"""

# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-incomplete-defs=False
# ruff: noqa: PLR0917
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from headrace_kernels.numerics import tanh


@triton.jit
def sequence_of(first_row, sequences, tile, TILE_QUERIES: tl.constexpr):
    """The sequence that a tile belongs to, by bisection; `sequences` for the padding behind the last one.

    The tiles of sequence s begin at tile first_row[s] // TILE_QUERIES + s, which leaves none too few.
    """
    low = 0
    high = sequences + 1
    while low < high:
        middle = (low + high) // 2
        begins = tl.load(first_row + middle).to(tl.int32) // TILE_QUERIES + middle
        if begins <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def attend_split(
    query,
    pages,
    blocks,
    position,
    split,
    last,
    seen_from,
    scale,
    softcap,
    kv_head,
    KV_HEADS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    CAPPED: tl.constexpr,
    PRODUCT: tl.constexpr,
):
    """Running softmax of one split of a context: the largest score, the sum of weights, the weighted sum of values.

    query, position: [TILE_ROWS, dim] and [TILE_ROWS], -1 for rows that see nothing. last, seen_from: the tokens that
    any row sees. Scores are for powers of two: scale x product, or softcap x tanh(scale x product) if CAPPED.
    A tile that a row does not see changes nothing of it, so it does not matter how many of those its company brings.
    """
    dim = tl.arange(0, DIM_PADDED)
    maximum = tl.full((TILE_ROWS,), float("-inf"), tl.float32)
    weight = tl.full((TILE_ROWS,), 0.0, tl.float32)
    total = tl.full((TILE_ROWS, DIM_PADDED), 0.0, tl.float32)
    begin = tl.maximum(split * SPLIT, seen_from // TILE * TILE)
    for start in range(begin, tl.minimum((split + 1) * SPLIT, last + 1), TILE):
        token = start + tl.arange(0, TILE)
        known = (token >= seen_from) & (token <= last)
        block = tl.load(blocks + token // BLOCK, mask=known, other=0).to(tl.int64)
        place = (((block * KV_HEADS + kv_head) * 2 * BLOCK + token % BLOCK) * DIM)[:, None] + dim[None, :]
        inside = known[:, None] & (dim < DIM)[None, :]
        key = tl.load(pages + place, mask=inside, other=0.0).to(PRODUCT)
        value = tl.load(pages + place + BLOCK * DIM, mask=inside, other=0.0).to(PRODUCT)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        if CAPPED:
            score = softcap * tanh(score)
        seen = token[None, :] <= position[:, None]
        if WINDOW > 0:
            seen = seen & (token[None, :] > position[:, None] - WINDOW)
        score = tl.where(seen, score, float("-inf"))
        highest = tl.maximum(maximum, tl.max(score, 1))
        # A row that sees nothing yet has no largest score, and infinity less infinity is no number.
        level = tl.where(highest == float("-inf"), 0.0, highest)
        shrink = tl.exp2(maximum - level)
        share = tl.exp2(score - level[:, None])
        weight = weight * shrink + tl.sum(share, 1)
        total = total * shrink[:, None] + tl.dot(share.to(PRODUCT), value, input_precision="ieee")
        maximum = highest
    return maximum, weight, total


@triton.jit
def join(maximum, weight, part_maximum, part_weight):
    """Largest score and weight of two parts together, and what the sums of each are to be multiplied by."""
    highest = tl.maximum(maximum, part_maximum)
    level = tl.where(highest == float("-inf"), 0.0, highest)
    shrink = tl.exp2(maximum - level)
    share = tl.exp2(part_maximum - level)
    return highest, weight * shrink + part_weight * share, shrink, share
