"""Configuration of `headrace bench`: what is measured, and the engine's own flags under their own names and defaults.

Read by `config.read`, like every other.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveInt
from pydantic_settings import BaseSettings, CliPositionalArg

from headrace.config import ProcessConfig, WorkerConfig


def _workers(name: str) -> Any:
    """The default that a worker has."""
    return WorkerConfig.model_fields[name].default


class BenchConfig(BaseSettings):
    """Measure the engine against what memory and processor can do, or hand-offs of pages against what links can."""

    model_config = ProcessConfig.model_config

    action: CliPositionalArg[Literal["engine", "handoff"]] = Field(description="engine or handoff: what is measured")
    model: str = Field(_workers("model"), description="alias, directory, .gguf file or hub id")
    batch: tuple[PositiveInt, ...] = Field((1, 8, 32), description="answers at once, such as 1,8,32")
    context: tuple[PositiveInt, ...] = Field((128, 1024), description="tokens before each answer, such as 128,1024")
    prefill: tuple[PositiveInt, ...] = Field((128, 1024), description="lengths of prompts, such as 128,1024")
    links: tuple[Literal["ucx", "ucx-posix", "tcp", "nccl", "loopback"], ...] = Field(
        ("ucx", "ucx-posix", "tcp", "nccl", "loopback"), description="of hand-offs, such as ucx,tcp"
    )
    gbits: float = Field(
        0.0,
        ge=0,
        le=1000,
        description="rate of a network between the two processes, 10^9 bits a second, made of network namespaces (needs"
        " root) for links that leave a host; 0: this host itself",
    )
    blocks: PositiveInt = Field(160, description="KV blocks of one hand-off")
    rounds: PositiveInt = Field(9, description="hand-offs a link, and as many times the bare link")
    prompt: int = Field(2048, ge=0, description="tokens of the prompts behind which hand-offs hide; 0: none")
    prompts: PositiveInt = Field(3, description="prompts a link, streamed, and as many withheld")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(_workers("dtype"), description="as a worker's")
    kernels: Literal["auto", "native", "torch"] = Field(_workers("kernels"), description="as a worker's")
    cpu_isa: Literal["auto", "avx2", "avx512", "avx512bf16"] = Field(_workers("cpu_isa"), description="as a worker's")
    quantization: Literal["gguf", "int8", "int4"] | None = Field(None, description="as a worker's")
    batch_invariant: bool = Field(False, description="as a worker's")
    max_num_batched_tokens: int = Field(_workers("max_num_batched_tokens"), ge=16, description="as a worker's")
    threads: int = Field(_workers("threads"), ge=0, description="CPU threads; 0: all cores")
    cache_dir: Path = Field(_workers("cache_dir"), description="downloaded models and what is derived from them")
    json_output: bool = Field(False, alias="json", description="print JSON")
