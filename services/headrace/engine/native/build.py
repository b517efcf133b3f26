"""Chooses who computes: the native kernels where they can, else torch.

Owns the choice and what is said of it.
"""

import os

import torch

from headrace.core.errors import StartupError
from headrace.engine.models.decoder import Decoder
from headrace.engine.native.compile import compile_decoder, obstacle
from headrace.engine.native.decoder import NativeDecoder
from headrace.engine.ops import PagedKv
from headrace.engine.options import EngineOptions
from headrace.engine.rows import padded_rows
from headrace_kernels import native
from headrace_kernels.native import Format

# Rows whose logits are wanted at once at most, beside those of a step.
_LEAST_ROWS = 64
_FORMATS = {None: None, "int8": Format.INT8, "int4": Format.INT4}


def pick_native(decoder: Decoder, kv: PagedKv, options: EngineOptions) -> NativeDecoder | None:
    """The decoder on native kernels; None if torch is to compute it. Packs its matrices, which takes a second a GB.

    Raises StartupError if the options insist on what is not possible.
    """
    if options.kernels == "torch":
        return None
    reason = obstacle(decoder)
    if reason is not None:
        _refuse(options, reason)
        return None
    rows = padded_rows(max(options.max_num_batched_tokens, _LEAST_ROWS))
    compiled = compile_decoder(decoder, kv, rows, _FORMATS[options.quantization])
    # What is left to torch is small, and its threads would take turns with the kernels'.
    torch.set_num_threads(1)
    return NativeDecoder(compiled, kv.layout.block_tokens, options.threads or len(os.sched_getaffinity(0)))


def kernels_name(model: object) -> str:
    """Who computes `model`, for people."""
    return f"native {native.instruction_set()}" if isinstance(model, NativeDecoder) else "torch"


def _refuse(options: EngineOptions, reason: str) -> None:
    for name, asked in (("kernels", options.kernels == "native"), ("quantization", options.quantization is not None)):
        if asked:
            raise StartupError(f"--{name} asks for the native kernels, and {reason}.", remedy=f"Do without --{name}.")
