"""A whole engine as it is on a GPU, with the GPU left out: pages, kernels and captured steps over tensors of a CPU.

Triton's interpreter runs the kernels, and a graph whose replay runs the step again stands for CUDA's.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from fixtures.engine_driver import generate, hand_over, make_job, prompt
from fixtures.rerun_graph import RerunGraph
from fixtures.tiny_model import CONFIG, VOCABULARY, tiny_files

from headrace.engine.accelerator import Accelerator
from headrace.engine.build import build_engine
from headrace.engine.options import EngineOptions
from headrace.engine.replica import Replica
from headrace.modelfiles.files import ModelFiles

OPTIONS = EngineOptions(
    dtype="float32", kv_cache_memory_bytes=2**18, max_model_len=48, max_num_seqs=3, max_num_batched_tokens=16,
    kernels="torch",
)  # fmt: skip
PROMPTS = (prompt(1, 20), prompt(2, 5), prompt(3, 14))


@dataclass
class Graphs:
    made: list[RerunGraph] = field(default_factory=list)

    def __call__(self) -> RerunGraph:
        self.made.append(RerunGraph())
        return self.made[-1]

    @property
    def replayed(self) -> list[int]:
        """Of each size, the largest first."""
        return [graph.replayed for graph in self.made]


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    return tiny_files(tmp_path, replace(CONFIG, layers=1, heads=2, kv_heads=1))


def _engine(files: ModelFiles, graphs: Graphs | None) -> Replica:
    accelerator = Accelerator(torch.device("cpu"), "an interpreter", 2**30, graphs)
    return build_engine(files, VOCABULARY, OPTIONS, accelerator=accelerator)


@pytest.fixture
def expected(files: ModelFiles) -> list[list[int]]:
    """What torch says on a CPU."""
    jobs = [make_job(str(index), tokens, max_tokens=4) for index, tokens in enumerate(PROMPTS)]
    return generate(build_engine(files, VOCABULARY, OPTIONS), *jobs)


def test_tokens_are_those_of_a_cpu(
    files: ModelFiles, expected: list[list[int]], request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("on_cpu_tensors")
    graphs = Graphs()
    engine = _engine(files, graphs)
    jobs = [make_job(str(index), tokens, max_tokens=4) for index, tokens in enumerate(PROMPTS)]
    assert generate(engine, *jobs) == expected
    engine.check()
    assert len(graphs.made) == 3
    assert sum(graphs.replayed) >= 3


def test_pages_are_handed_over_either_way(
    files: ModelFiles, expected: list[list[int]], request: pytest.FixtureRequest
) -> None:
    """From a CPU's pages to a device's and back: both are the same bytes."""
    host = build_engine(files, VOCABULARY, OPTIONS)
    request.getfixturevalue("on_cpu_tensors")
    device = _engine(files, Graphs())
    assert device.info.model_digest == host.info.model_digest
    assert hand_over(host, device, "there", PROMPTS[0], max_tokens=4) == expected[0]
    device.check()
    assert hand_over(device, _engine(files, None), "onward", PROMPTS[2], max_tokens=4) == expected[2]
