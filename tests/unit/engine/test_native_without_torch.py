"""On the native kernels a worker needs no torch: without it an engine answers as it does elsewhere."""

import json
import subprocess
import sys
from pathlib import Path

import fixtures
import pytest
from fixtures.engine_driver import generate, make_job, prompt
from fixtures.tiny_model import VOCABULARY, tiny_files

from headrace.engine.build import build_engine
from headrace.engine.options import EngineOptions
from headrace_kernels import native

pytestmark = pytest.mark.skipif(native.instruction_set() is None, reason="The native kernels are not built here.")

ANSWER = """
import json, sys
sys.modules["torch"] = sys.modules["triton"] = None
sys.path[:0] = sys.argv[2:]
import headrace.bootstrap.worker
from pathlib import Path
from test_native_without_torch import answer
print(json.dumps(answer(Path(sys.argv[1]))))
"""


def answer(directory: Path) -> list[list[int]]:
    options = EngineOptions(dtype="bfloat16", kv_cache_memory_bytes=2**20, kernels="native", batch_invariant=True)
    engine = build_engine(tiny_files(directory), VOCABULARY, options)
    seeded = make_job("seeded", prompt(7, 5), temperature=1.0, seed=3, top_p=0.9, logprobs=2)
    return generate(engine, make_job("greedy", prompt(0, 40)), seeded)


def test_an_engine_answers_where_torch_is_not(tmp_path: Path) -> None:
    paths = [str(Path(__file__).parent), *(str(Path(path).parent) for path in fixtures.__path__)]
    command = [sys.executable, "-c", ANSWER, str(tmp_path), *paths]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=50)
    assert json.loads(said.stdout.splitlines()[-1]) == answer(tmp_path)
