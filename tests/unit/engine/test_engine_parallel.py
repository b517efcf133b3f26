"""One model over several ranks: shares of every tensor, what cannot be shared, and the same logits as alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fixtures.paged_model import PagedModel
from fixtures.ranks import ThreadRank, run_ranks
from fixtures.tiny_model import CONFIG, tiny_files, tiny_weights

from headrace.core.errors import StartupError
from headrace.engine.parallel import ALONE, share_length
from headrace.engine.runner import Span
from headrace.engine.torch_build import load_model
from headrace.engine.weights.decode import read_tensor
from headrace.engine.weights.load import Weights
from headrace.engine.weights.size import weight_bytes
from headrace.modelfiles.files import ModelConfig, TensorEntry

# Eight KV heads for up to eight ranks, and sizes that do not divide: the last rank's share is filled up.
WIDE = replace(CONFIG, heads=16, kv_heads=8, head_dim=8, intermediate_size=90, vocab_size=301)
TOKENS = [3 + (7 * index) % 290 for index in range(40)]
BLOCKS = [11, 2, 14]


def _logits(directory: Path, config: ModelConfig, size: int) -> list[torch.Tensor]:
    files = tiny_files(directory, config)

    def work(parallel: ThreadRank) -> torch.Tensor:
        paged = PagedModel(files, parallel)
        first = paged.run(Span(TOKENS, 0, 32, BLOCKS, None))
        rest = [paged.run(Span(TOKENS, start, 1, BLOCKS, None)) for start in range(32, 40)]
        return torch.cat([first, *rest])

    return run_ranks(size, work)


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_ranks_say_what_one_says(tmp_path: Path, size: int, tied: bool) -> None:
    config = replace(WIDE, tied_embeddings=tied)
    (alone,) = _logits(tmp_path, config, 1)
    ranks = _logits(tmp_path, config, size)
    for rank in ranks:
        assert torch.equal(rank, ranks[0])
    torch.testing.assert_close(ranks[0], alone, atol=1e-4, rtol=0)


def test_alone_exchanges_nothing() -> None:
    tensor = torch.ones(2, 3)
    assert ALONE.sum(tensor) is tensor
    assert ALONE.gather(tensor) is tensor
    assert (ALONE.rank, ALONE.size) == (0, 1)


@pytest.mark.parametrize(
    ("changes", "size", "sentence"),
    [
        ({"kv_heads": 2, "heads": 16}, 4, "2 key-value heads cannot be split over 4"),
        ({"kv_heads": 8, "heads": 16}, 3, "8 key-value heads cannot be split over 3"),
    ],
)
def test_heads_that_do_not_divide_are_refused(
    tmp_path: Path, changes: dict[str, int], size: int, sentence: str
) -> None:
    files = tiny_files(tmp_path, replace(WIDE, **changes))
    with pytest.raises(StartupError, match=sentence):
        run_ranks(size, lambda parallel: load_model(files, torch.float32, 64, parallel))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("shard", [0, 1])
def test_shares_make_up_the_tensor(tmp_path: Path, size: int, shard: int) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    files, whole = tiny_files(tmp_path), torch.from_numpy(tiny_weights()[name])
    take = [Weights(files, torch.float32, rank).matrix(name, tuple(whole.shape), shard) for rank in _ranks(size)]
    joined = torch.cat(take, dim=shard)
    length = whole.shape[shard]
    assert len({share.shape for share in take}) == 1
    assert torch.equal(joined.narrow(shard, 0, length), whole)
    assert not joined.narrow(shard, length, joined.shape[shard] - length).any()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_fused_matrix_shares_as_its_sections_do(tmp_path: Path, size: int) -> None:
    files = tiny_files(tmp_path)
    gate, up = "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"
    rows, hidden = CONFIG.intermediate_size, CONFIG.hidden_size
    entries = {entry.name: entry for entry in files.tensors}
    # gate and up lie one behind the other in the file.
    assert entries[gate].offset + entries[gate].nbytes == entries[up].offset
    fused = replace(entries[gate], name="fused", nbytes=2 * entries[gate].nbytes, shape=(2 * rows, hidden))
    for rank in _ranks(size):
        weights = Weights(replace(files, tensors=(*files.tensors, fused)), torch.float32, rank)
        apart = weights.stacked((gate, up), ((rows, hidden), (rows, hidden)))
        assert torch.equal(weights.fused("fused", (rows, rows), hidden), apart)


@pytest.mark.parametrize("encoding", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("columns", [(0, 96), (32, 64), (17, 50), (40, 96), (7, 7), (96, 96)], ids=str)
@pytest.mark.parametrize("rows", [(0, 8), (2, 6), (5, 5)], ids=str)
def test_a_part_is_cut_out_of_the_whole(
    tmp_path: Path, encoding: str, columns: tuple[int, int], rows: tuple[int, int]
) -> None:
    gguf = pytest.importorskip("gguf")
    values = np.random.default_rng(1).standard_normal((8, 96)).astype(np.float32)
    raw = np.ascontiguousarray(gguf.quants.quantize(values, gguf.GGMLQuantizationType[encoding])).tobytes()
    (tmp_path / "t").write_bytes(raw)
    entry = TensorEntry("tensor", tmp_path / "t", 0, len(raw), encoding, (8, 96))
    whole = read_tensor(entry)
    np.testing.assert_array_equal(
        read_tensor(entry, slice(*rows), slice(*columns)), whole[slice(*rows), slice(*columns)]
    )


def test_permuted_rows_of_some_heads_are_put_back(tmp_path: Path) -> None:
    heads, dim, width = 4, 8, 2
    values = np.arange(heads * dim * width, dtype=np.float32).reshape(heads * dim, width)
    (tmp_path / "t").write_bytes(values.reshape(heads, 2, dim // 2, width).swapaxes(1, 2).tobytes())
    entry = TensorEntry("tensor", tmp_path / "t", 0, values.nbytes, "F32", values.shape, permuted_heads=heads)
    for start, stop in ((0, 32), (0, 16), (16, 32), (8, 16)):
        np.testing.assert_array_equal(read_tensor(entry, slice(start, stop)), values[start:stop])


@pytest.mark.parametrize("size", [1, 2, 4])
def test_memory_is_asked_for_by_the_rank(tmp_path: Path, size: int) -> None:
    files = tiny_files(tmp_path, replace(WIDE, intermediate_size=96, vocab_size=304))
    numbers = sum(int(np.prod(entry.shape)) for entry in files.tensors)
    embedding = 304 * CONFIG.hidden_size
    assert weight_bytes(files, "bfloat16", size) == 2 * (embedding + share_length(numbers - embedding, size))


def _ranks(size: int) -> list[ThreadRank]:
    """For what needs no exchange."""
    return run_ranks(size, lambda parallel: parallel)
