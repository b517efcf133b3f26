"""The fake engine: the real replica, pool, prefix cache and schedule over a runner without a model.

Its tokens and logprobs are a pure function of what came before them. Its pages hold a pattern of the tokens they
stand for, and every page of a context is checked before a token is drawn from it (I1), so a page that was moved or
copied wrongly, or not at all, fails its job instead of going unnoticed.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import structlog
import xxhash

from headrace.core.errors import HeadraceError, InternalError
from headrace.core.layout import KvLayout
from headrace.core.logprobs import TokenLogprob
from headrace.core.vocabulary import Vocabulary
from headrace.engine.engine import EngineInfo
from headrace.engine.options import EngineOptions, model_digest, plan_pool, require_memory
from headrace.engine.page_memory import PageMemory
from headrace.engine.replica import Replica
from headrace.engine.runner import Draw, Drawn, Span
from headrace.modelfiles.files import ModelFiles

_Marks = npt.NDArray[np.uint32]
_Digests = npt.NDArray[np.uint64]


def build_fake_engine(
    files: ModelFiles,
    vocabulary: Vocabulary,
    options: EngineOptions,
    *,
    stop_after: int | None = None,
    before_step: Callable[[], None] | None = None,
) -> Replica:
    """An engine of the model's shape without its weights.

    stop_after: the request's token of this count (from 1) is a stop id; by default none ever is.
    before_step: called on the engine's thread before each batch, to delay or count steps.
    """
    size = plan_pool(files.config, options)
    require_memory({"KV pages": size.num_blocks * size.layout.block_bytes})
    structlog.get_logger().info("engine.kv_pool", arithmetic=size.arithmetic)
    recipe = "fake"
    digest = model_digest(files, size.layout.dtype, recipe)
    pages = MarkedPages(size.layout, size.num_blocks, digest)
    runner = FakeRunner(pages, vocabulary, size.max_model_len, digest, stop_after=stop_after, before_step=before_step)
    info = EngineInfo(
        digest,
        size.layout,
        size.num_blocks,
        size.max_model_len,
        options.max_num_seqs,
        weights=files.digest,
        recipe=recipe,
    )
    return Replica(
        info,
        vocabulary,
        runner,
        token_budget=options.max_num_batched_tokens,
        prefix_caching=options.enable_prefix_caching,
        max_step_s=options.max_step_ms / 1000,
    )


class MarkedPages(PageMemory):
    """Page memory whose token slots carry a 32-bit mark, spread differently over every layer, head and dimension.

    What a slot is known to hold is remembered (0: unknown) until the page is written from outside.
    """

    def __init__(self, layout: KvLayout, num_blocks: int, digest: bytes) -> None:
        super().__init__(layout, num_blocks)
        self._words = self.bytes.view(np.uint32).reshape(
            layout.layers, num_blocks, layout.kv_heads * 2, layout.block_tokens, -1
        )
        noise = np.random.default_rng(list(digest))
        self._salt = noise.integers(
            0, 2**32, (layout.layers, layout.kv_heads * 2, self._words.shape[-1]), dtype=np.uint32
        )
        self._known = np.zeros((num_blocks, layout.block_tokens), dtype=np.uint32)

    def write(self, blocks: Sequence[int], data: memoryview) -> None:
        self._known[list(blocks)] = 0
        super().write(blocks, data)

    def clear(self, blocks: Sequence[int]) -> None:
        self._known[list(blocks)] = 0
        super().clear(blocks)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        super().copy(pairs)
        for source, target in pairs:
            self._known[target] = self._known[source]

    def mark(self, blocks: list[int], start: int, marks: _Marks) -> None:
        """Write the pattern of `marks` into the slots of tokens start and following."""
        page, slot = self._slots(blocks, start, len(marks))
        self._words[:, page, :, slot] = self._pattern(marks)
        self._known[page, slot] = marks

    def holds(self, blocks: list[int], marks: _Marks) -> bool:
        """Whether the slots of the first len(marks) tokens hold exactly the pattern of `marks`."""
        page, slot = self._slots(blocks, 0, len(marks))
        unsure = self._known[page, slot] != marks
        page, slot, marks = page[unsure], slot[unsure], marks[unsure]
        if not np.array_equal(self._words[:, page, :, slot], self._pattern(marks)):
            return False
        self._known[page, slot] = marks
        return True

    def _pattern(self, marks: _Marks) -> _Marks:
        """[token, layer, kv head x 2, word]"""
        return marks[:, None, None, None] ^ self._salt

    def _slots(self, blocks: list[int], start: int, count: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Page and place in it of tokens start and following."""
        positions = np.arange(start, start + count)
        size = self.layout.block_tokens
        return np.asarray(blocks, dtype=np.intp)[positions // size], positions % size


class FakeRunner:
    """See Runner. A token depends on the model, all tokens before it, and, unless greedy, on seed, choice and position.

    Its law: after any context the vocabulary has an order, and the token of rank r has a probability in proportion to
    1 / (r (r + 1)). Greedy takes the first that is not barred; sampling takes any, evenly.
    """

    def __init__(
        self,
        pages: MarkedPages,
        vocabulary: Vocabulary,
        max_model_len: int,
        digest: bytes,
        *,
        stop_after: int | None,
        before_step: Callable[[], None] | None,
    ) -> None:
        self._pages = pages
        self._vocabulary = vocabulary
        self._weights = np.random.default_rng(list(digest)).integers(0, 2**63, max_model_len, dtype=np.uint64) | 1
        self._stop_after = stop_after
        self._before_step = before_step

    @property
    def pages(self) -> PageMemory:
        return self._pages

    def run(self, spans: list[Span]) -> list[Drawn | HeadraceError]:
        if self._before_step is not None:
            self._before_step()
        return [self._run_span(span) for span in spans]

    def _run_span(self, span: Span) -> Drawn | HeadraceError:
        end = span.start + span.count
        digests = self._digests(span.tokens[:end])
        marks = (digests >> np.uint64(32)).astype(np.uint32) | np.uint32(1)
        self._pages.mark(span.blocks, span.start, marks[span.start :])
        if not self._pages.holds(span.blocks, marks):
            return InternalError("A KV page of the context does not hold what its tokens stand for.")
        scored = () if span.score is None else self._scored(span, digests, span.score)
        if span.draw is None:
            return Drawn(None, scored=scored)
        wanted = span.draw.sampling.logprobs
        token = self._draw(span.draw, digests[-1])
        logprob = None if wanted is None else self._logprob(token, digests[-1], wanted)
        return Drawn(token, logprob, scored)

    def _digests(self, tokens: list[int]) -> _Digests:
        """One value a token that depends on it and on all before it: a running sum of position-weighted ids."""
        ids = np.asarray(tokens, dtype=np.uint64) + np.uint64(1)
        sums: _Digests = np.cumsum(ids * self._weights[: len(tokens)], dtype=np.uint64)
        return sums

    def _draw(self, draw: Draw, context: np.uint64) -> int:
        sampling, position = draw.sampling, draw.position
        stop_ids = self._vocabulary.stop_ids
        early = position < sampling.min_tokens
        if stop_ids and position + 1 == self._stop_after and not early:
            return min(stop_ids)
        barred = stop_ids | set(sampling.stop_token_ids) if early else stop_ids
        if sampling.greedy:
            token = self._likeliest(context)
        else:
            noise = repr((sampling.seed, draw.choice, position)).encode()
            token = xxhash.xxh3_64_intdigest(context.tobytes() + noise) % self._vocabulary.size
        while token in barred:
            token = (token + 1) % self._vocabulary.size
        return token

    def _likeliest(self, context: np.uint64) -> int:
        return xxhash.xxh3_64_intdigest(context.tobytes()) % self._vocabulary.size

    def _logprob(self, token: int, context: np.uint64, alternatives: int) -> TokenLogprob:
        first, size = self._likeliest(context), self._vocabulary.size
        top = (((first + rank) % size, self._law(rank + 1)) for rank in range(min(alternatives, size)))
        rank = (token - first) % size + 1
        return TokenLogprob(token, self._law(rank), rank, tuple(top))

    def _law(self, rank: int) -> float:
        """1 / (r (r + 1)) sums up to n / (n + 1) over n ranks."""
        size = self._vocabulary.size
        return math.log((size + 1) / size) - math.log(rank * (rank + 1))

    def _scored(self, span: Span, digests: _Digests, alternatives: int) -> tuple[TokenLogprob, ...]:
        following = span.tokens[span.start + 1 : span.start + span.count + 1]
        return tuple(
            self._logprob(token, digests[span.start + index], alternatives) for index, token in enumerate(following)
        )
