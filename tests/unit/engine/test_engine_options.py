"""How large the KV pool becomes: by bytes, by a share of the memory, and what is refused."""

import pytest
from fixtures.tiny_model import CONFIG

from headrace.core.errors import StartupError
from headrace.engine import options as module
from headrace.engine.options import DEFAULT_KV_BYTES, EngineOptions, plan_pool, require_memory

TOKEN_BYTES = CONFIG.layers * CONFIG.kv_heads * 2 * CONFIG.head_dim * 2  # bfloat16
MIB = 2**20


class _Memory:
    available = 1000 * MIB


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.psutil, "virtual_memory", _Memory)


@pytest.mark.parametrize("block_size", [16, 32, 48, 256])
def test_bytes_divided_by_the_bytes_of_a_page(block_size: int) -> None:
    size = plan_pool(CONFIG, EngineOptions(block_size=block_size, kv_cache_memory_bytes=2 * MIB + 1))
    assert size.layout.block_tokens == block_size
    assert size.num_blocks == 2 * MIB // (block_size * TOKEN_BYTES)
    assert size.max_model_len == 512


def test_the_default_is_a_gibibyte() -> None:
    assert plan_pool(CONFIG, EngineOptions()).num_blocks == DEFAULT_KV_BYTES // (16 * TOKEN_BYTES)


def test_a_share_of_the_memory_less_the_weights() -> None:
    size = plan_pool(CONFIG, EngineOptions(gpu_memory_utilization=0.5), weight_bytes=400 * MIB)
    assert size.num_blocks == 100 * MIB // (16 * TOKEN_BYTES)


def test_a_share_of_another_memory_than_this_machines() -> None:
    size = plan_pool(CONFIG, EngineOptions(gpu_memory_utilization=0.5), 400 * MIB, free_bytes=2000 * MIB)
    assert size.num_blocks == 600 * MIB // (16 * TOKEN_BYTES)
    require_memory({"pages": 2000 * MIB}, 2000 * MIB)
    with pytest.raises(StartupError, match="1999 MiB are available"):
        require_memory({"pages": 2000 * MIB}, 1999 * MIB)


def test_the_arithmetic_is_told() -> None:
    size = plan_pool(CONFIG, EngineOptions(gpu_memory_utilization=0.5), weight_bytes=400 * MIB)
    assert size.arithmetic == (
        "gpu_memory_utilization 0.5 x 1000 MiB available - weights 400 MiB = 100 MiB; a block of 16 tokens takes"
        " 2 layers x 2 KV heads x 2 x 16 x 16 x 2 = 4096 bytes; 25600 blocks = 409600 tokens = 800.0 contexts of 512"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"block_size": 24}, "no multiple of 16"),
        ({"block_size": 8}, "no multiple of 16"),
        ({"block_size": 0}, "no multiple of 16"),
        ({"kv_cache_memory_bytes": MIB, "gpu_memory_utilization": 0.5}, "Give --kv-cache-memory-bytes or --gpu"),
        ({"max_step_ms": -1.0}, "max_step_ms -1.0 is no time .* Give --max-step-ms milliseconds"),
        ({"max_step_ms": float("nan")}, "max_step_ms nan is no time"),
        ({"max_step_ms": float("inf")}, "max_step_ms inf is no time"),
        ({"cpu_isa": "neon"}, "cpu_isa 'neon' is unknown. Choose --cpu-isa auto, avx2, avx512, avx512bf16"),
        ({"cpu_isa": "avx2", "device": "cuda"}, "On a GPU there are neither native kernels .* --cpu-isa"),
        ({"enforce_eager": True}, "enforce_eager is about .* a GPU.* Leave out --enforce-eager"),
        ({"cpu_isa": "avx2", "kernels": "torch"}, "cpu_isa needs the native kernels, .* Leave out --cpu-isa"),
        ({"cpu_isa": "avx2", "tensor_parallel_size": 2}, "cpu_isa needs the native kernels, .* Leave out --cpu-isa"),
        ({"gpu_memory_utilization": 0.0}, "above 0"),
        ({"gpu_memory_utilization": 1.5}, "above 0"),
        ({"device": "tpu"}, "Choose --device cpu, cuda"),
        ({"device": "cuda", "kernels": "native"}, "On a GPU there are neither native kernels"),
        ({"device": "cuda", "quantization": "int8"}, "nor quantization"),
        ({"device": "cuda", "tensor_parallel_size": 2}, "nor several ranks"),
        ({"gpu_memory_utilization": 0.3}, "holds 0 blocks .* Raise --gpu-memory-utilization"),  # the weights take it
        ({"kv_cache_memory_bytes": 4096}, "holds 1 blocks .* Raise --kv-cache-memory-bytes"),
        ({"kv_cache_memory_bytes": 16384, "max_model_len": 100}, "64 tokens, fewer than the 100"),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy(options: dict[str, object], said: str) -> None:
    with pytest.raises(StartupError, match=said):
        plan_pool(CONFIG, EngineOptions(**options), weight_bytes=400 * MIB)  # type: ignore[arg-type]
