"""Chooses who computes: the native kernels where they can, else torch.

Owns the choice and what is said of it.
"""

import os

import structlog

from headrace.core.errors import StartupError
from headrace.engine.models.architectures import load_decoder, loader_of
from headrace.engine.native.compile import compile_decoder, obstacle
from headrace.engine.native.decoder import NativeDecoder
from headrace.engine.native.stored_weights import StoredWeights
from headrace.engine.options import EngineOptions
from headrace.engine.page_memory import PageMemory
from headrace.engine.rows import padded_rows
from headrace.modelfiles.files import ModelFiles
from headrace_kernels import native

# Rows whose logits are wanted at once at most, beside those of a step.
_LEAST_ROWS = 64


def pick_native(files: ModelFiles, options: EngineOptions, length: int, pages: PageMemory) -> NativeDecoder | None:
    """The model on native kernels, its matrices packed straight out of their files; None if torch is to compute it.

    length: of contexts, at most. Raises StartupError for broken files, and if the options insist on what is not
    possible here.
    """
    if options.kernels == "torch":
        return None
    dtype = pages.layout.dtype
    if not require_native(files, options):
        return None
    _tell_of_refused()
    rows = padded_rows(max(options.max_num_batched_tokens, _LEAST_ROWS))
    threads = options.threads or len(os.sched_getaffinity(0))
    decoder = load_decoder(files, StoredWeights(files, dtype), length)
    compiled = compile_decoder(decoder, pages, rows, options.quantization, threads=threads)
    return NativeDecoder(compiled, pages.layout.block_tokens, threads)


def require_native(files: ModelFiles, options: EngineOptions) -> bool:
    """Whether the native kernels can compute the model. Raises StartupError if they cannot and the options insist, or
    if nothing can."""
    loader_of(files)
    choose_instruction_set(options)
    reason = obstacle(files.config, options.resolved_dtype, options.quantization)
    if reason is not None:
        _refuse(options, reason)
    return reason is None


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
