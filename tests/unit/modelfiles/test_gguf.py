"""The GGUF reader: what it reads, and that a broken file costs one sentence and neither time nor memory."""

import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from fixtures.gguf_writer import F32, Tensor, gguf_bytes, text, tiny_metadata, tiny_tensors, write_tiny
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.errors import StartupError
from headrace.modelfiles.gguf import read_gguf


def test_reads_metadata_and_places_tensors_row_major(tmp_path: Path) -> None:
    values = np.arange(12, dtype="<f4")
    tensors = [Tensor("first", (5,), F32, bytes(20)), Tensor("second", (3, 4), F32, values.tobytes())]
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf_bytes({"n": 7, "x": 0.5, "yes": True, "t": "é", "ts": ["a", "b"], "is": [1, -2]}, tensors))

    file = read_gguf(path)

    assert file.metadata == {"n": 7, "x": 0.5, "yes": True, "t": "é", "ts": ["a", "b"], "is": [1, -2]}
    second = file.tensors[1]
    assert (second.name, second.encoding, second.shape, second.nbytes) == ("second", "F32", (3, 4), 48)
    assert path.read_bytes()[second.offset :][:48] == values.tobytes()


def test_honours_the_alignment_key(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf_bytes({"general.alignment": 64}, [Tensor("t", (2,), F32, b"12345678")], alignment=64))
    tensor = read_gguf(path).tensors[0]
    assert tensor.offset % 64 == 0
    assert path.read_bytes()[tensor.offset :][:8] == b"12345678"


def test_encodings_have_ggmls_sizes(tmp_path: Path) -> None:
    sizes = {tensor.name: len(tensor.data) for tensor in tiny_tensors()}
    for tensor in read_gguf(write_tiny(tmp_path / "a.gguf")).tensors:
        assert tensor.nbytes == sizes[tensor.name]


def test_every_truncation_is_refused_in_a_sentence(tmp_path: Path) -> None:
    whole = gguf_bytes({"a": 1, "b": "text", "c": ["x", "yy"], "d": [1, 2, 3]}, [Tensor("t", (4, 2), F32, bytes(32))])
    path = tmp_path / "cut.gguf"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(StartupError) as caught:
            read_gguf(path)
        assert "not a readable GGUF file" in caught.value.message
        assert caught.value.remedy


HUGE = struct.pack("<Q", 2**63 + 5)
HEAD = b"GGUF" + struct.pack("<I", 3)
ONE_KEY = HEAD + struct.pack("<QQ", 0, 1) + text("k")
ONE_TENSOR = HEAD + struct.pack("<QQ", 1, 0) + text("t")
BROKEN = {
    "magic": b"GGML" + bytes(60),
    "big_endian": b"GGUF" + struct.pack(">I", 3) + bytes(60),
    "version_1": b"GGUF" + struct.pack("<I", 1) + bytes(60),
    "huge_tensor_count": HEAD + HUGE + bytes(60),
    "huge_key_count": HEAD + bytes(8) + HUGE + bytes(60),
    "huge_key_length": HEAD + struct.pack("<QQ", 0, 1) + HUGE + bytes(60),
    "huge_text": ONE_KEY + struct.pack("<I", 8) + HUGE + bytes(60),
    "huge_array": ONE_KEY + struct.pack("<II", 9, 4) + HUGE + bytes(60),
    "huge_text_array": ONE_KEY + struct.pack("<II", 9, 8) + HUGE + bytes(60),
    "deep_arrays": ONE_KEY + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 50 + bytes(60),
    "unknown_value_type": ONE_KEY + struct.pack("<I", 99) + bytes(60),
    "not_utf8": HEAD + struct.pack("<QQ", 0, 1) + struct.pack("<Q", 1) + b"\xff" + bytes(60),
    "many_dimensions": ONE_TENSOR + struct.pack("<I", 2**31) + bytes(60),
    "no_dimensions": ONE_TENSOR + struct.pack("<I", 0) + bytes(60),
    "huge_shape": ONE_TENSOR + struct.pack("<IQQIQ", 2, 2**62, 2**62, 0, 0) + bytes(60),
    "empty_shape": ONE_TENSOR + struct.pack("<IQIQ", 1, 0, 0, 0) + bytes(60),
    "offset_beyond_end": ONE_TENSOR + struct.pack("<IQIQ", 1, 4, 0, 2**60) + bytes(60),
    "row_of_half_a_block": ONE_TENSOR + struct.pack("<IQIQ", 1, 16, 8, 0) + bytes(60),
    "zero_alignment": gguf_bytes({"general.alignment": 0}, []) + bytes(60),
    "text_alignment": gguf_bytes({"general.alignment": "x"}, []) + bytes(60),
    "key_twice": HEAD + struct.pack("<QQ", 0, 2) + (text("k") + struct.pack("<II", 4, 1)) * 2 + bytes(60),
    "tensor_twice": gguf_bytes({}, [Tensor("t", (4,), F32, bytes(16))] * 2),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_headers_are_refused_without_large_allocations(tmp_path: Path, name: str) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(BROKEN[name])
    tracemalloc.start()
    try:
        with pytest.raises(StartupError, match="not a readable GGUF file"):
            read_gguf(path)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_any_damaged_byte_gives_a_file_or_a_sentence(tmp_path: Path, data: st.DataObject) -> None:
    whole = bytearray(gguf_bytes(tiny_metadata(), tiny_tensors()[1:3]))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.gguf"
    path.write_bytes(whole)
    try:
        read_gguf(path)
    except StartupError as error:
        assert str(path) in error.message


def test_names_the_tensor_type_that_is_not_supported(tmp_path: Path) -> None:
    path = tmp_path / "k.gguf"
    path.write_bytes(gguf_bytes({}, [Tensor("blk.0.x", (256,), 12, bytes(144))]))
    with pytest.raises(StartupError, match=r"'blk\.0\.x' as Q4_K, which is not supported.*Q8_0"):
        read_gguf(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"none\.gguf cannot be read: No such file"):
        read_gguf(tmp_path / "none.gguf")
