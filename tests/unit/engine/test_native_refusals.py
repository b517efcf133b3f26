"""What the native kernels cannot run is said at the start, with what to leave out; unless asked for, torch runs it."""

from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.tiny_model import CONFIG, VOCABULARY, tiny_files

from headrace.core.errors import StartupError
from headrace.engine.build import build_engine
from headrace.engine.options import EngineOptions
from headrace.modelfiles.files import ModelConfig
from headrace_kernels import native

pytestmark = pytest.mark.skipif(native.instruction_set() is None, reason="The native kernels are not built here.")

SMALL = EngineOptions(dtype="float32", kv_cache_memory_bytes=2**20)
UNEVEN = {
    "hidden": replace(CONFIG, hidden_size=72),
    "inner": replace(CONFIG, intermediate_size=72),
    "attended": replace(CONFIG, heads=3, kv_heads=1, head_dim=16),
}


@pytest.mark.parametrize("kernels", ["auto", "native"])
@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("config", UNEVEN.values(), ids=UNEVEN.keys())
def test_rows_that_fill_no_group_are_not_rounded(
    tmp_path: Path, config: ModelConfig, quantization: str, kernels: str
) -> None:
    options = replace(SMALL, quantization=quantization, kernels=kernels)
    with pytest.raises(
        StartupError, match=r"--quantization asks .* rows of (72|48) values.* Do without --quantization"
    ):
        build_engine(tiny_files(tmp_path, config), VOCABULARY, options)


@pytest.mark.parametrize("config", UNEVEN.values(), ids=UNEVEN.keys())
def test_rows_of_any_length_are_kept_as_they_are(tmp_path: Path, config: ModelConfig) -> None:
    build_engine(tiny_files(tmp_path, config), VOCABULARY, replace(SMALL, kernels="native"))
