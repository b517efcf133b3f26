"""Chooses who computes: the native kernels where they can, else torch.

Owns the choice and what is said of it.
"""

import os

import structlog
import torch

from headrace.core.errors import StartupError
from headrace.engine.models.decoder import Decoder
from headrace.engine.native.compile import compile_decoder, obstacle
from headrace.engine.native.decoder import NativeDecoder
from headrace.engine.ops import PagedKv
from headrace.engine.options import EngineOptions
from headrace.engine.rows import padded_rows
from headrace.engine.weights.stored import StoredMatrices
from headrace_kernels import native

# Rows whose logits are wanted at once at most, beside those of a step.
_LEAST_ROWS = 64


def pick_native(decoder: Decoder, stored: StoredMatrices, kv: PagedKv, options: EngineOptions) -> NativeDecoder | None:
    """The decoder on native kernels; None if torch is to compute it. Packs its matrices out of their files.

    stored: where the matrices stand that are placeholders in `decoder`. Raises StartupError for a broken file, and if
    the options insist on what is not possible here.
    """
    choose_instruction_set(options)
    reason = obstacle(decoder, options.quantization)
    if reason is not None:
        _refuse(options, reason)
        return None
    _tell_of_refused()
    rows = padded_rows(max(options.max_num_batched_tokens, _LEAST_ROWS))
    threads = options.threads or len(os.sched_getaffinity(0))
    compiled = compile_decoder(decoder, kv, rows, options.quantization, stored=stored, threads=threads)
    # What is left to torch is small, and its threads would take turns with the kernels'.
    torch.set_num_threads(1)
    return NativeDecoder(compiled, kv.layout.block_tokens, threads)


def choose_instruction_set(options: EngineOptions) -> None:
    """The native kernels', where there are any: for all of the process, before anything is packed.

    Raises StartupError if the one asked for is not to be had.
    """
    if options.cpu_isa == "auto" or native.instruction_set() is None:
        return
    try:
        native.choose(options.cpu_isa)
    except ValueError as error:
        remedy = f"Leave out --cpu-isa, and {native.instruction_set()} is used."
        raise StartupError(str(error), remedy=remedy) from None


def kernels_name(model: object) -> str:
    """Who computes `model`, for people."""
    return f"native {native.instruction_set()}" if isinstance(model, NativeDecoder) else "torch"


def _refuse(options: EngineOptions, reason: str) -> None:
    # Quantization first: without it the kernels may well be able to.
    insisting = (*options.native_only, *(["kernels"] if options.kernels == "native" else []))
    if insisting:
        flag = f"--{insisting[0].replace('_', '-')}"
        raise StartupError(f"{flag} asks for the native kernels, and {reason}.", remedy=f"Do without {flag}.")


def _tell_of_refused() -> None:
    if native.refused():
        structlog.get_logger().warning(
            "engine.instruction_set_refused",
            refused=native.refused(),
            used=native.instruction_set(),
            reason="the processor has it, but computed something else with it than with AVX2 when it was tried",
        )
