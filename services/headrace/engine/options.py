"""Engine options and the arithmetic of the page pool: how many blocks fit, how long a context may be.

Owns the numbers only; it allocates nothing and knows no weights.
"""

import math
from dataclasses import dataclass

import psutil
import xxhash

from headrace.core.blocks import BLOCK_TOKENS
from headrace.core.errors import StartupError
from headrace.core.layout import DEFAULT_KV_BYTES, DTYPE_BYTES, KvLayout
from headrace.modelfiles.files import ModelConfig, ModelFiles

_MIB = 1024 * 1024
# Rows of one step in batch-invariant mode: measured up to here.
MOST_ROWS = 512
_RANKS = (1, 2, 4)
KERNELS = ("auto", "native", "torch")
CPU_ISAS = ("auto", "avx2", "avx512", "avx512bf16")
QUANTIZATIONS = ("gguf", "int8", "int4")
DEVICES = ("cpu", "cuda")
COMPUTED_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What a user may choose; names follow vLLM.

    dtype: "auto" (bfloat16) or one of COMPUTED_DTYPES, for weights and KV alike. max_model_len: None is as long as
    model and pool allow. max_num_seqs: jobs at once. max_num_batched_tokens: tokens computed in one step, which
    bounds how long a step may delay running streams. block_size: tokens of a page. kv_cache_memory_bytes: the pool;
    gpu_memory_utilization instead: the share of the memory free at the start that weights and pool take together; of
    neither: DEFAULT_KV_BYTES. threads: CPU threads that compute; 0: one a core, or torch's choice.
    batch_invariant: a request's tokens and logprobs are the same bits whatever else runs, at a price.
    tensor_parallel_size: ranks that share a replica, each a process with its part of the threads.
    kernels: "native" computes in C++, "torch" with torch, "auto" natively where the model and the processor allow it.
    cpu_isa: instruction set of the native kernels, for all engines of the process; "auto": the best that works here.
    quantization: of the matrices of the native kernels: "gguf" keeps the bits of those that a GGUF file has in Q4_0,
    Q4_1 or Q8_0; "int8" (a scale each row) or "int4" (a scale and a minimum each 32 values) rounds all as they are
    loaded, but int4 keeps what is in Q4_0 or Q4_1; None brings them to `dtype`.
    device: "cpu", or "cuda" for weights, pages and steps on the first GPU; there gpu_memory_utilization is a share of
    its memory. enforce_eager: no decode step is captured in a graph.
    max_step_ms: prompts get fewer tokens of a step, BLOCK_TOKENS at least, so that it stays below this time as far as
    earlier ones tell; 0: no such limit.
    """

    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 128
    max_step_ms: float = 0.0
    block_size: int = BLOCK_TOKENS
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float | None = None
    enable_prefix_caching: bool = True
    threads: int = 0
    batch_invariant: bool = False
    tensor_parallel_size: int = 1
    kernels: str = "auto"
    cpu_isa: str = "auto"
    quantization: str | None = None
    device: str = "cpu"
    enforce_eager: bool = False

    def __post_init__(self) -> None:
        _require(self.dtype == "auto" or self.dtype in COMPUTED_DTYPES, f"dtype {self.dtype!r} is unknown.", _DTYPES)
        _require(self.max_num_seqs >= 1, "max_num_seqs must be 1 or more.", "Raise --max-num-seqs.")
        _require(
            self.max_num_batched_tokens >= self.max_num_seqs,
            f"max_num_batched_tokens ({self.max_num_batched_tokens}) is below max_num_seqs ({self.max_num_seqs}).",
            "A step must hold one token of every sequence: raise --max-num-batched-tokens or lower --max-num-seqs.",
        )
        _require(
            0 <= self.max_step_ms < math.inf,
            f"max_step_ms {self.max_step_ms} is no time that a step could take.",
            "Give --max-step-ms milliseconds such as 50, or 0 for no limit.",
        )
        _require(
            self.block_size >= BLOCK_TOKENS and self.block_size % BLOCK_TOKENS == 0,
            f"block_size {self.block_size} is no multiple of {BLOCK_TOKENS}.",
            f"Use --block-size={BLOCK_TOKENS}.",
        )
        _require(
            self.kv_cache_memory_bytes is None or self.gpu_memory_utilization is None,
            "kv_cache_memory_bytes and gpu_memory_utilization both say how large the KV pool is.",
            "Give --kv-cache-memory-bytes or --gpu-memory-utilization.",
        )
        _require(
            self.gpu_memory_utilization is None or 0 < self.gpu_memory_utilization <= 1,
            f"gpu_memory_utilization {self.gpu_memory_utilization} is not above 0 and at most 1.",
            "Give --gpu-memory-utilization a share such as 0.8.",
        )
        _require(
            not self.batch_invariant or self.max_num_batched_tokens <= MOST_ROWS,
            f"batch_invariant with {self.max_num_batched_tokens} max_num_batched_tokens is not supported.",
            f"Products of matrices keep their rounding up to {MOST_ROWS} rows: lower --max-num-batched-tokens to that.",
        )
        _require(
            self.tensor_parallel_size in _RANKS,
            f"tensor_parallel_size {self.tensor_parallel_size} is not supported.",
            f"Choose --tensor-parallel-size {', '.join(map(str, _RANKS))}.",
        )
        self._check_who_computes()

    def _check_who_computes(self) -> None:
        _require_one_of("kernels", self.kernels, KERNELS)
        _require(
            self.kernels != "native" or self.tensor_parallel_size == 1,
            "The native kernels do not run on several ranks.",
            "Leave out --kernels or --tensor-parallel-size.",
        )
        _require_one_of("cpu_isa", self.cpu_isa, CPU_ISAS)
        if self.quantization is not None:
            _require_one_of("quantization", self.quantization, QUANTIZATIONS)
        for name in self.native_only:
            _require(
                self.kernels != "torch" and self.tensor_parallel_size == 1,
                f"{name} needs the native kernels, which are not used with kernels torch or several ranks.",
                f"Leave out --{name.replace('_', '-')}, or --kernels and --tensor-parallel-size.",
            )
        _require_one_of("device", self.device, DEVICES)
        _require(
            self.device == "cpu"
            or (self.kernels != "native" and not self.native_only and self.tensor_parallel_size == 1),
            "On a GPU there are neither native kernels nor quantization nor several ranks.",
            "Leave out --device, or --kernels, --cpu-isa, --quantization and --tensor-parallel-size.",
        )
        _require(
            self.device == "cuda" or not self.enforce_eager,
            "enforce_eager is about decode steps on a GPU, and the device is the CPU.",
            "Leave out --enforce-eager.",
        )

    @property
    def native_only(self) -> tuple[str, ...]:
        """The options given here that torch cannot keep."""
        asked = {"quantization": self.quantization is not None, "cpu_isa": self.cpu_isa != "auto"}
        return tuple(name for name, holds in asked.items() if holds)

    @property
    def resolved_dtype(self) -> str:
        return "bfloat16" if self.dtype == "auto" else self.dtype

    @property
    def recipe(self) -> str:
        """How keys and values are computed and kept, for the model's digest: workers of one mode share pages."""
        parts = ("kv plain", self.quantization, "batch-invariant" if self.batch_invariant else None)
        return ", ".join(part for part in parts if part)


_DTYPES = f"Choose --dtype auto, {', '.join(COMPUTED_DTYPES)}."


@dataclass(frozen=True, slots=True)
class PoolSize:
    """What became of the options for one model. arithmetic: how, for people."""

    layout: KvLayout
    num_blocks: int
    max_model_len: int
    arithmetic: str


def plan_pool(
    config: ModelConfig, options: EngineOptions, weight_bytes: int = 0, free_bytes: int | None = None
) -> PoolSize:
    """The pool that `options` give `config` beside `weight_bytes` of weights. free_bytes: of the memory that they lie
    in; None asks this machine for its own.

    Raises StartupError if the context asked for does not fit, or the share of the memory leaves no room.
    """
    layout = KvLayout(config.layers, config.kv_heads, config.head_dim, options.block_size, options.resolved_dtype)
    pool_bytes, source = _pool_bytes(options, weight_bytes, free_bytes)
    num_blocks = pool_bytes // layout.block_bytes
    fits = num_blocks * options.block_size
    wanted = options.max_model_len
    _require(
        wanted is None or 2 <= wanted <= config.max_position,
        f"max_model_len {wanted} is not between 2 and the model's own context of {config.max_position}.",
        f"Leave out --max-model-len, or give at most {config.max_position}.",
    )
    _require(
        num_blocks >= 2 and (wanted is None or wanted <= fits),
        f"{source} holds {max(0, num_blocks)} blocks of {layout.block_bytes} bytes"
        f" = {max(0, fits)} tokens, fewer than the {wanted or 2 * options.block_size} of max_model_len.",
        f"Raise {'--kv-cache-memory-bytes' if options.gpu_memory_utilization is None else '--gpu-memory-utilization'}"
        " or lower --max-model-len.",
    )
    longest = wanted if wanted is not None else min(config.max_position, fits)
    arithmetic = (
        f"{source}; a block of {layout.block_tokens} tokens takes {layout.layers} layers x {layout.kv_heads} KV heads"
        f" x 2 x {layout.block_tokens} x {layout.head_dim} x {DTYPE_BYTES[layout.dtype]} = {layout.block_bytes} bytes;"
        f" {num_blocks} blocks = {fits} tokens = {fits / longest:.1f} contexts of {longest}"
    )
    return PoolSize(layout, num_blocks, longest, arithmetic)


def _pool_bytes(options: EngineOptions, weight_bytes: int, free_bytes: int | None) -> tuple[int, str]:
    """The bytes of the pool, and where they come from."""
    share = options.gpu_memory_utilization
    if share is None:
        given = options.kv_cache_memory_bytes
        name = "kv_cache_memory_bytes" if given is not None else "the default KV pool of"
        size = given if given is not None else DEFAULT_KV_BYTES
        return size, f"{name} {size}"
    available = psutil.virtual_memory().available if free_bytes is None else free_bytes
    size = int(available * share) - weight_bytes
    return size, (
        f"gpu_memory_utilization {share:g} x {available / _MIB:.0f} MiB available"
        f" - weights {weight_bytes / _MIB:.0f} MiB = {size / _MIB:.0f} MiB"
    )


def require_memory(needed: dict[str, int], free_bytes: int | None = None) -> None:
    """Raises StartupError unless the parts, in bytes, fit into the memory that is available now: free_bytes of it, or
    this machine's own."""
    available = psutil.virtual_memory().available if free_bytes is None else free_bytes
    total = sum(needed.values())
    parts = " + ".join(f"{name} {size / _MIB:.0f} MiB" for name, size in needed.items())
    _require(
        total <= available,
        f"The engine needs {parts} = {total / _MIB:.0f} MiB, and {available / _MIB:.0f} MiB are available.",
        "Lower --kv-cache-memory-bytes or free memory.",
    )


def model_digest(files: ModelFiles, dtype: str, recipe: str = "kv plain") -> bytes:
    """The root of what two workers must share to exchange pages: weights, architecture, KV dtype and recipe."""
    return xxhash.xxh3_128(b"\0".join((files.digest, dtype.encode(), recipe.encode()))).digest()


def _require_one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    _require(
        value in choices, f"{name} {value!r} is unknown.", f"Choose --{name.replace('_', '-')} {', '.join(choices)}."
    )


def _require(holds: bool, sentence: str, remedy: str) -> None:
    if not holds:
        raise StartupError(sentence, remedy=remedy)
