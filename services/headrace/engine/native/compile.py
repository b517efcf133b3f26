"""Compiles a decoder for the native kernels: its layers become one program, its matrices are packed.

Owns the translation and the buffers between operations; csrc/program.h says what each operation computes. A model that
cannot be translated is known by its configuration, before anything is read.
"""

from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from headrace.core.layout import KvLayout
from headrace.engine.models.decoder import Decoder, Layer
from headrace.engine.models.feed_forward import FeedForward
from headrace.engine.models.norms import RmsNorm
from headrace.engine.models.rope import RopeTables
from headrace.engine.native.packing import Packer
from headrace.engine.page_memory import PageMemory
from headrace.engine.weights.formats import matrix_format
from headrace.engine.weights.rounding import Floats, rounded
from headrace.engine.weights.stored import StoredMatrix
from headrace.modelfiles.files import ModelConfig
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
from headrace_kernels.room import ALIGNMENT, aligned

T = TypeVar("T")

NativeDecoderParts = Decoder[StoredMatrix, Floats]
NativeLayer = Layer[StoredMatrix, Floats]
_FLOATS = {"float32": Format.F32, "bfloat16": Format.BF16}


def obstacle(config: ModelConfig, dtype: str, quantization: str | None = None) -> str | None:
    """Why the native kernels cannot run such a model; None if they can. dtype: of weights and pages, a key of
    DTYPE_BYTES. quantization: as in EngineOptions."""
    uneven, most = _uneven(config, quantization), native.MAX_GROUP
    obstacles = (
        (native.instruction_set() is None, "they are not built, or do not know this processor"),
        (config.experts is not None, "they know no experts"),
        (dtype not in _FLOATS, f"they do not compute in {dtype}"),
        (config.heads > most * config.kv_heads, f"they know no groups of more than {most} heads"),
        (not native.takes_heads_of(config.head_dim), f"they know no heads of {config.head_dim} values"),
        (bool(uneven), f"they round groups of 32 values, which rows of {uneven} values do not fill"),
    )
    return next((sentence for holds, sentence in obstacles if holds), None)


def _uneven(config: ModelConfig, quantization: str | None) -> int:
    """The length of rows that `quantization` rounds but that do not fill groups; 0 if there are none."""
    format = matrix_format(quantization, ())
    lengths = {config.hidden_size, config.heads * config.head_dim, config.intermediate_size}
    refused = (each for each in sorted(lengths) if format and not native.takes_rows_of(each, Format[format]))
    return next(refused, 0)


@dataclass(frozen=True, slots=True)
class Compiled:
    """layers: from ids to `hidden`, [row, hidden]; head: from there to logits."""

    layers: Program
    head: Program
    hidden: Floats
    vocabulary: int


def compile_decoder(
    decoder: NativeDecoderParts, pages: PageMemory, rows: int, quantization: str | None = None, *, threads: int = 1
) -> Compiled:
    """For steps of up to `rows` tokens over `pages`, in their dtype. quantization: as in EngineOptions. threads: that
    pack. Raises StartupError for a broken file."""
    packer = Packer(_FLOATS[pages.layout.dtype], quantization, threads)
    return _Compiler(decoder, pages, rows, packer).compile()


class _Compiler:
    def __init__(self, decoder: NativeDecoderParts, pages: PageMemory, rows: int, packer: Packer) -> None:
        self._decoder, self._pages, self._rows, self._packer = decoder, pages, rows, packer
        self._layout: KvLayout = pages.layout
        self._kept: list[object] = [pages]
        self._rooms: dict[Format, int | None] = {}
        heads = decoder.layers[0].attention.heads
        hidden, inner = decoder.embedding.table.columns, _feed_forward(decoder.layers[0]).down.columns
        buffer = partial(self._buffer, rows)
        self._hidden, self._normed = buffer(hidden), buffer(hidden)
        self._states = buffer((heads.queries + 2 * heads.keys) * heads.dim)
        self._queries, self._attended = buffer(heads.queries * heads.dim), buffer(heads.queries * heads.dim)
        self._gate_up, self._inner = buffer(2 * inner), buffer(inner)
        self._widest = max(hidden, inner, heads.queries * heads.dim)
        self._ropes = [self._rope(tables) for tables in decoder.ropes]

    def compile(self) -> Compiled:
        operations: list[Operation] = [self._embed()]
        for index, layer in enumerate(self._decoder.layers):
            operations += self._attention(layer, index)
            operations += self._feed(layer)
        head = self._head()
        layers, last = Program(operations, self._kept), Program([head], self._kept)
        return Compiled(layers, last, self._hidden, self._decoder.head.vocabulary)

    def _embed(self) -> Embed:
        table = self._decoder.embedding.table
        packed = self._pack(table, multiplied=table is self._decoder.head.rows)
        scale = float(rounded(np.array([self._decoder.embedding.scale], np.float32), self._layout.dtype)[0])
        return Embed(packed.address, _address(self._hidden), packed.inner, scale, packed.format)

    def _attention(self, layer: NativeLayer, index: int) -> list[Operation]:
        attention, pages = layer.attention, self._pages.bytes[index].ctypes.data
        heads, spec, shares = attention.heads, attention.spec, attention.projections
        cosines, sines, rotary = self._ropes[layer.rope]
        norms, eps = (None, 0.0) if attention.norm is None else self._norm_weight(attention.norm)
        shape = (heads.queries, heads.keys, heads.dim)
        size, pages_format = self._layout.block_tokens, _FLOATS[self._layout.dtype]
        states, queries, attended = (_address(each) for each in (self._states, self._queries, self._attended))
        return [
            self._norm(layer.norms[0], self._hidden, self._normed),
            self._linear(self._normed, shares.qkv, shares.qkv_bias, self._states),
            Rope(states, norms, cosines, sines, queries, pages, *shape, rotary, size, eps, pages_format),
            Attend(
                *(queries, pages, attended, *shape, size),
                *(spec.window, spec.scale, spec.softcap, pages_format),
            ),
            *self._into_residual(layer, 0, self._attended, shares.out, shares.out_bias),
        ]

    def _feed(self, layer: NativeLayer) -> list[Operation]:
        feed = _feed_forward(layer)
        silu = feed.activation == "silu"
        activation = Activation.SILU if silu else Activation.GELU_TANH
        return [
            self._norm(layer.norms[1], self._hidden, self._normed),
            self._linear(self._normed, feed.gate_up, feed.gate_up_bias, self._gate_up),
            Gate(_address(self._gate_up), _address(self._inner), self._inner.shape[1], activation),
            *self._into_residual(layer, 1, self._inner, feed.down, feed.down_bias),
        ]

    def _into_residual(
        self, layer: NativeLayer, block: int, source: Floats, weight: StoredMatrix, bias: Floats | None
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
        hidden, normed = _address(self._hidden), _address(self._normed)
        shape, room = (packed.inner, packed.columns), self._room(packed.format)
        return Head(hidden, weight, normed, packed.address, room, *shape, eps, head.softcap, packed.format)

    def _norm(self, norm: RmsNorm[Floats], source: Floats, out: Floats, *, add: bool = False) -> Norm:
        weight, eps = self._norm_weight(norm)
        return Norm(_address(source), weight, _address(out), source.shape[1], eps, add)

    def _norm_weight(self, norm: RmsNorm[Floats]) -> tuple[int | None, float]:
        return self._floats(norm.weight), norm.eps

    def _linear(
        self, source: Floats, weight: StoredMatrix, bias: Floats | None, out: Floats, *, add: bool = False
    ) -> Linear:
        packed = self._pack(weight)
        addresses = (_address(source), packed.address, self._floats(bias), _address(out), self._room(packed.format))
        return Linear(*addresses, packed.columns, packed.inner, packed.format, add)

    def _pack(self, matrix: StoredMatrix, *, multiplied: bool = True) -> Packed:
        return self._keep(self._packer.pack(matrix, multiplied=multiplied))

    def _rope(self, tables: RopeTables) -> tuple[int, int, int]:
        """Addresses of cosines and sines in the precision that keys are kept in, and the rotary width."""
        cosines, sines = (self._copy(rounded(each, self._layout.dtype)) for each in (tables.cosines, tables.sines))
        return cosines, sines, tables.cosines.shape[1]

    def _floats(self, values: Floats | None) -> int | None:
        return None if values is None else self._copy(values)

    def _copy(self, values: Floats) -> int:
        """The address of a copy that lives as long as the program."""
        rows = np.atleast_2d(values)
        copy = self._buffer(*rows.shape)
        copy[:] = rows
        return _address(copy)

    def _room(self, format: Format) -> int | None:
        """Address of the scratch that products in `format` share."""
        if format not in self._rooms:
            room = self._keep(native.scratch(format, self._rows, self._widest))
            self._rooms[format] = None if room is None else room.ctypes.data
        return self._rooms[format]

    def _buffer(self, rows: int, width: int) -> Floats:
        memory = aligned(np.zeros(4 * rows * width + ALIGNMENT, dtype=np.uint8))[: 4 * rows * width]
        buffer: Floats = memory.view(np.float32).reshape(rows, width)
        return self._keep(buffer)

    def _keep(self, thing: T) -> T:
        self._kept.append(thing)
        return thing


def _address(array: Floats) -> int:
    return int(array.ctypes.data)


def _feed_forward(layer: NativeLayer) -> FeedForward[StoredMatrix, Floats]:
    assert isinstance(layer.feed_forward, FeedForward), "obstacle() refuses experts"
    return layer.feed_forward
