"""Compiles a decoder for the native kernels: its layers become one program, its matrices are packed.

Owns the translation and the buffers between operations; csrc/program.h says what each operation computes. What cannot
be translated says why before anything is packed.
"""

from dataclasses import dataclass
from functools import partial
from typing import TypeVar, cast

import torch
from torch import Tensor

from headrace.engine.models.decoder import Decoder, Layer
from headrace.engine.models.feed_forward import FeedForward
from headrace.engine.models.norms import RmsNorm
from headrace.engine.native.packing import Packer
from headrace.engine.ops import PagedKv
from headrace.engine.weights.formats import matrix_format
from headrace.engine.weights.stored import StoredMatrices
from headrace_kernels import native
from headrace_kernels.native import (
    Activation,
    Attend,
    Embed,
    Format,
    Gate,
    Head,
    Linear,
    Norm,
    Operation,
    Packed,
    Program,
    Rope,
)

T = TypeVar("T")

_FLOATS = {torch.float32: Format.F32, torch.bfloat16: Format.BF16}


def obstacle(decoder: Decoder, quantization: str | None = None) -> str | None:
    """Why the native kernels cannot run this decoder; None if they can. quantization: as in EngineOptions."""
    heads, dtype = decoder.layers[0].attention.heads, decoder.embedding.table.dtype
    uneven = _uneven(decoder, quantization)
    obstacles = (
        (native.instruction_set() is None, "they are not built, or do not know this processor"),
        (any(not isinstance(layer.feed_forward, FeedForward) for layer in decoder.layers), "they know no experts"),
        (decoder.head.parallel.size > 1, "they know no ranks"),
        (dtype not in _FLOATS, f"they do not compute in {dtype}"),
        (heads.queries > native.MAX_GROUP * heads.keys, f"they know no groups of more than {native.MAX_GROUP} heads"),
        (not native.takes_heads_of(heads.dim), f"they know no heads of {heads.dim} values"),
        (bool(uneven), f"they round groups of 32 values, which rows of {uneven} values do not fill"),
    )
    return next((sentence for holds, sentence in obstacles if holds), None)


def _uneven(decoder: Decoder, quantization: str | None) -> int:
    """The length of rows that `quantization` rounds but that do not fill groups; 0 if there are none."""
    format = matrix_format(quantization, ())
    heads = decoder.layers[0].attention.heads
    feeds = [layer.feed_forward for layer in decoder.layers if isinstance(layer.feed_forward, FeedForward)]
    lengths = {decoder.embedding.table.shape[1], heads.queries * heads.dim, *(feed.down.shape[1] for feed in feeds)}
    refused = (each for each in sorted(lengths) if format and not native.takes_rows_of(each, Format[format]))
    return next(refused, 0)


@dataclass(frozen=True, slots=True)
class Compiled:
    """layers: from ids to `hidden`; head: from `rows` to logits. Both [row, hidden], float32."""

    layers: Program
    head: Program
    hidden: Tensor
    rows: Tensor
    vocabulary: int


def compile_decoder(
    decoder: Decoder,
    kv: PagedKv,
    rows: int,
    quantization: str | None = None,
    *,
    stored: StoredMatrices | None = None,
    threads: int = 1,
) -> Compiled:
    """For steps of up to `rows` tokens over the pages of `kv`. quantization: as in EngineOptions.

    stored: where the matrices stand that are placeholders in `decoder`. threads: that pack. `decoder` is used up: each
    of its matrices is freed as it is packed. Raises StartupError for a broken file.
    """
    own = _FLOATS[decoder.embedding.table.dtype]
    packer = Packer(own, quantization, stored or StoredMatrices(), threads)
    return _Compiler(decoder, kv, rows, packer).compile()


class _Compiler:
    def __init__(self, decoder: Decoder, kv: PagedKv, rows: int, packer: Packer) -> None:
        self._decoder, self._kv, self._rows, self._packer = decoder, kv, rows, packer
        self._kept: list[object] = []
        self._rooms: dict[Format, Tensor | None] = {}
        heads = decoder.layers[0].attention.heads
        hidden, inner = decoder.embedding.table.shape[1], self._feed_forward(decoder.layers[0]).down.shape[1]
        buffer = partial(self._buffer, rows)
        self._hidden, self._normed, self._gathered = buffer(hidden), buffer(hidden), buffer(hidden)
        self._states = buffer((heads.queries + 2 * heads.keys) * heads.dim)
        self._queries, self._attended = buffer(heads.queries * heads.dim), buffer(heads.queries * heads.dim)
        self._gate_up, self._inner = buffer(2 * inner), buffer(inner)
        self._widest = max(hidden, inner, heads.queries * heads.dim)
        self._ropes = [
            (self._floats(one.cosines), self._floats(one.sines), one.cosines.shape[-1]) for one in decoder.ropes
        ]

    def compile(self) -> Compiled:
        operations: list[Operation] = [self._embed()]
        for index, layer in enumerate(self._decoder.layers):
            operations += self._attention(layer, index)
            operations += self._feed(layer)
        head = self._head()
        layers, last = Program(operations, self._kept), Program([head], self._kept)
        return Compiled(layers, last, self._hidden, self._gathered, self._decoder.head.vocabulary)

    def _embed(self) -> Embed:
        table = self._decoder.embedding.table
        packed = self._pack(table, multiplied=table is self._decoder.head.rows)
        scale = float(torch.tensor(self._decoder.embedding.scale, dtype=table.dtype))
        return Embed(packed.address, self._hidden.data_ptr(), packed.inner, scale, packed.format)

    def _attention(self, layer: Layer, index: int) -> list[Operation]:
        attention, pages = layer.attention, self._kv.pages[index]
        heads, spec, shares = attention.heads, attention.spec, attention.projections
        cosines, sines, rotary = self._ropes[layer.rope]
        norms, eps = (None, 0.0) if attention.norm is None else self._norm_weight(attention.norm)
        shape = (heads.queries, heads.keys, heads.dim)
        size, pages_format = self._kv.layout.block_tokens, _FLOATS[pages.dtype]
        states, queries, attended = (each.data_ptr() for each in (self._states, self._queries, self._attended))
        return [
            self._norm(layer.norms[0], self._hidden, self._normed),
            self._linear(self._normed, shares.qkv, shares.qkv_bias, self._states),
            Rope(states, norms, cosines, sines, queries, pages.data_ptr(), *shape, rotary, size, eps, pages_format),
            Attend(
                *(queries, pages.data_ptr(), attended, *shape, size),
                *(spec.window, spec.scale, spec.softcap, pages_format),
            ),
            *self._into_residual(layer, 0, self._attended, shares.out, shares.out_bias),
        ]

    def _feed(self, layer: Layer) -> list[Operation]:
        feed = self._feed_forward(layer)
        silu = feed.activation == "silu"
        activation = Activation.SILU if silu else Activation.GELU_TANH
        return [
            self._norm(layer.norms[1], self._hidden, self._normed),
            self._linear(self._normed, feed.gate_up, feed.gate_up_bias, self._gate_up),
            Gate(self._gate_up.data_ptr(), self._inner.data_ptr(), self._inner.shape[1], activation),
            *self._into_residual(layer, 1, self._inner, feed.down, feed.down_bias),
        ]

    def _into_residual(
        self, layer: Layer, block: int, source: Tensor, weight: Tensor, bias: Tensor | None
    ) -> list[Operation]:
        """The product is added to the residual, through the layer's norm after the block where it has one."""
        if not layer.post_norms:
            return [self._linear(source, weight, bias, self._hidden, add=True)]
        norm = layer.post_norms[block]
        product = self._linear(source, weight, bias, self._normed)
        return [product, self._norm(norm, self._normed, self._hidden, add=True)]

    def _head(self) -> Head:
        head = self._decoder.head
        packed = self._pack(head.rows)
        weight, eps = self._norm_weight(self._decoder.norm)
        gathered, normed = self._gathered.data_ptr(), self._normed.data_ptr()
        shape, room = (packed.inner, packed.columns), self._room(packed.format)
        return Head(gathered, weight, normed, packed.address, room, *shape, eps, head.softcap, packed.format)

    def _norm(self, norm: RmsNorm, source: Tensor, out: Tensor, *, add: bool = False) -> Norm:
        weight, eps = self._norm_weight(norm)
        return Norm(source.data_ptr(), weight, out.data_ptr(), source.shape[1], eps, add)

    def _norm_weight(self, norm: RmsNorm) -> tuple[int | None, float]:
        return self._floats(norm.weight), norm.eps

    def _linear(self, source: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, *, add: bool = False) -> Linear:
        packed = self._pack(weight)
        addresses = (source.data_ptr(), packed.address, self._floats(bias), out.data_ptr(), self._room(packed.format))
        return Linear(*addresses, packed.columns, packed.inner, packed.format, add)

    def _pack(self, weight: Tensor, *, multiplied: bool = True) -> Packed:
        return self._keep(self._packer.pack(weight, multiplied=multiplied))

    def _floats(self, tensor: Tensor | None) -> int | None:
        """Address of a copy as float32."""
        return None if tensor is None else self._keep(tensor.float().contiguous()).data_ptr()

    def _room(self, format: Format) -> int | None:
        """Address of the scratch that products in `format` share."""
        if format not in self._rooms:
            self._rooms[format] = self._keep(native.scratch(format, self._rows, self._widest))
        room = self._rooms[format]
        return None if room is None else room.data_ptr()

    def _buffer(self, rows: int, width: int) -> Tensor:
        return self._keep(torch.zeros(rows, width))

    def _keep(self, thing: T) -> T:
        self._kept.append(thing)
        return thing

    @staticmethod
    def _feed_forward(layer: Layer) -> FeedForward:
        return cast(FeedForward, layer.feed_forward)
