"""What can be said of an engine before any process starts: options that its model or this machine rules out.

The worker would find all of it too, in its log and after its imports.
"""

import ctypes

from headrace.bootstrap.engine_options import engine_options
from headrace.config import EngineConfig
from headrace.core.errors import StartupError
from headrace.engine.build import plan
from headrace.engine.models.attention import rank_heads
from headrace.engine.native.build import require_native
from headrace.modelfiles.files import ModelFiles
from headrace.transfer.data_address import port_range
from headrace.transfer.factory import make_link

_AMPLE = 1 << 60


def require_feasible(config: EngineConfig, files: ModelFiles) -> None:
    """Raises StartupError, with a remedy. What a GPU has room for is its worker's to say."""
    make_link(config.link, tls=config.ucx_tls, ports=port_range(config.data_port_range))
    options = engine_options(config)
    on_gpu = config.device == "cuda" and config.engine != "fake"
    if on_gpu:
        require_gpu()
    # Whether there is room, for all workers together, is asked elsewhere.
    plan(files, options, _AMPLE)
    if config.engine != "fake":
        rank_heads(files.config, options.tensor_parallel_size)
    if config.engine != "fake" and not on_gpu and config.kernels != "torch":
        require_native(files, options)


def require_gpu() -> None:
    """Raises StartupError if this machine's driver knows no GPU. Whether torch can use it is for who imports torch."""
    remedy = "Leave out --device, or install NVIDIA's driver where there is a GPU."
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise StartupError("--device cuda needs NVIDIA's driver, and it is not installed.", remedy=remedy) from None
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or not count.value:
        raise StartupError("--device cuda needs a GPU, and this machine has none.", remedy=remedy)
