"""Builds what torch computes: on the CPU, on a GPU, or one rank of several.

Owns the order on a GPU: weights come first, since what loading takes beside them is free again then.
"""

from dataclasses import replace

import structlog
import torch

from headrace.core.errors import InternalError
from headrace.engine.accelerator import Accelerator, pick_accelerator
from headrace.engine.build import Computing, plan
from headrace.engine.captured_decode import CapturedDecode
from headrace.engine.device_pages import DevicePages
from headrace.engine.models.architectures import load_decoder
from headrace.engine.models.rope import RopeTables
from headrace.engine.ops import PagedKv
from headrace.engine.options import EngineOptions, PoolSize
from headrace.engine.page_memory import PageMemory
from headrace.engine.parallel import ALONE, Parallel
from headrace.engine.torch_decoder import Angles, TorchDecoder
from headrace.engine.torch_model import TensorModel, TorchModel
from headrace.engine.weights.load import DTYPES, Weights
from headrace.modelfiles.files import ModelFiles

_CPU = torch.device("cpu")


def on_torch(files: ModelFiles, options: EngineOptions, size: PoolSize, pages: PageMemory) -> Computing:
    """The whole model on the CPU. Raises StartupError as load_model does."""
    _use_threads(options)
    model = load_model(files, DTYPES[size.layout.dtype], size.max_model_len)
    return over_pages(model, pages, options, size)


def over_pages(model: TensorModel, pages: PageMemory, options: EngineOptions, size: PoolSize) -> Computing:
    """A model, or rank 0 of one, over its share of the pages in the host's memory."""
    kv = _paged_kv(torch.from_numpy(pages.bytes), options, size)
    return Computing(TorchModel(model, kv), pages, "torch", _bits("torch"))


def on_accelerator(
    files: ModelFiles, options: EngineOptions, accelerator: Accelerator | None
) -> tuple[PoolSize, Computing]:
    """accelerator: by default what the options name. Raises StartupError if there is none, and as load_model does."""
    _use_threads(options)
    accelerator = accelerator or pick_accelerator(options)
    if accelerator is None:
        raise InternalError("An engine on an accelerator was asked for, and none was named.")
    size = plan(files, options, accelerator.free_bytes)
    decoder = load_model(files, DTYPES[size.layout.dtype], size.max_model_len, device=accelerator.device)
    pages = DevicePages(size.layout, size.num_blocks, accelerator.device)
    kv = _paged_kv(pages.pool, options, size)
    model = _captured(decoder, kv, options, size, accelerator)
    return size, Computing(TorchModel(model, kv), pages, accelerator.name, _bits(accelerator.name))


def load_model(
    files: ModelFiles, dtype: torch.dtype, length: int, parallel: Parallel = ALONE, device: torch.device = _CPU
) -> TorchDecoder:
    """One rank's share of the model on `device`, for contexts of up to `length` tokens; takes seconds.

    Raises StartupError if the architecture is not supported, the files are broken, or the ranks cannot share it.
    """
    decoder = load_decoder(files, Weights(files, dtype, parallel, device=device), length)
    angles = tuple(_angles(tables, dtype, device) for tables in decoder.ropes)
    return TorchDecoder(replace(decoder, ropes=()), angles, parallel)


def _use_threads(options: EngineOptions) -> None:
    if options.threads:
        torch.set_num_threads(options.threads)


def _angles(tables: RopeTables, dtype: torch.dtype, device: torch.device) -> Angles:
    cosines, sines = (
        torch.from_numpy(table).unsqueeze(1).to(device, dtype) for table in (tables.cosines, tables.sines)
    )
    return cosines, sines


def _captured(
    model: TorchDecoder, kv: PagedKv, options: EngineOptions, size: PoolSize, accelerator: Accelerator
) -> TensorModel:
    """The model, with its decode steps captured where that is wanted and possible."""
    if accelerator.make_graph is None:
        return model
    if model.has_experts:
        structlog.get_logger().info("engine.not_captured", reason="experts are chosen on the host")
        return model
    sequences, context = options.max_num_seqs, size.max_model_len
    return CapturedDecode(model, kv, sequences=sequences, context=context, make_graph=accelerator.make_graph)


def _bits(kernels: str) -> str:
    return f"{kernels}, {torch.backends.cpu.get_cpu_capability()}"


def _paged_kv(memory: torch.Tensor, options: EngineOptions, size: PoolSize) -> PagedKv:
    """Rank 0's pages as its model sees them."""
    layout = replace(size.layout, kv_heads=size.layout.kv_heads // options.tensor_parallel_size)
    return PagedKv(memory, layout, DTYPES[layout.dtype], batch_invariant=options.batch_invariant)
