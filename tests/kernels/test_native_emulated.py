"""The emulation of AVX-512 does what Intel's manual says, and the comparison at load finds what is off.

The kernels themselves are tested on it in test_native_linear.py, test_native_attention.py and test_native_rows.py.
"""

import ctypes
import math
import struct
from collections.abc import Callable

import pytest
from kernels.instruction_sets import MAY_BUILD

from headrace_kernels.native import Format

pytestmark = MAY_BUILD

_NORM, _LINEAR, _ROPE, _ATTEND, _GATE = 1, 2, 3, 4, 5


@pytest.fixture(scope="module")
def probe(emulation: Callable[[], ctypes.CDLL]) -> ctypes.CDLL:
    library = emulation()
    library.probe_dot.restype, library.probe_dot.argtypes = ctypes.c_float, (ctypes.c_float, *[ctypes.c_uint32] * 2)
    library.probe_agreement.argtypes = ctypes.c_int32, ctypes.c_int32, ctypes.c_int64
    library.probe_narrow.restype, library.probe_narrow.argtypes = ctypes.c_uint16, (ctypes.c_float,)
    return library


def _float(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def _pair(low: float, high: float) -> int:
    """Two values that bfloat16 holds, in a word."""
    return sum(
        int.from_bytes(struct.pack("<f", value)[2:], "little") << shift for value, shift in ((low, 0), (high, 16))
    )


TINY = 2.0**-126

DOTS = {
    "both products": (1.0, _pair(2, 3), _pair(5, 7), 32.0),
    "the upper product is added first": (1.0, _pair(-(2.0**24), 2.0**24), _pair(1, 1), 0.0),
    "each sum is rounded": (2.0**24, _pair(1, 1), _pair(1, 1), 2.0**24),
    "ties go to even": (2.0**24 + 2, _pair(0, 1), _pair(0, 1), 2.0**24 + 4),
    "a denormal factor is zero": (0.0, 0x0001, _pair(2.0**120, 0), 0.0),
    "a denormal sum is zero": (TINY / 2, _pair(TINY, 0), _pair(1, 0), TINY),
    "a denormal result is zero": (0.0, _pair(2.0**-100, 0), _pair(2.0**-30, 0), 0.0),
    "a denormal between is zero": (0.0, _pair(TINY, 2.0**-100), _pair(1, 2.0**-30), TINY),
    "infinity": (1.0, _pair(math.inf, 1), _pair(-2, 1), -math.inf),
}


@pytest.mark.parametrize("case", DOTS.values(), ids=DOTS.keys())
def test_pairs_are_added_as_the_manual_says(case: tuple[float, int, int, float], probe: ctypes.CDLL) -> None:
    total, a, b, expected = case
    assert probe.probe_dot(total, a, b) == expected


def test_a_pair_with_nan_is_nan(probe: ctypes.CDLL) -> None:
    assert math.isnan(probe.probe_dot(1.0, _pair(math.nan, 1), _pair(0, 1)))
    assert math.isnan(probe.probe_dot(1.0, _pair(math.inf, 1), _pair(0, 1)))


@pytest.mark.parametrize(
    ("bits", "half"),
    [
        (0x3F800000, 0x3F80),
        (0x3F808000, 0x3F80),  # a tie, to even
        (0x3F818000, 0x3F82),
        (0x3F808001, 0x3F81),
        (0xBF817FFF, 0xBF81),
        (0x7F7FFFFF, 0x7F80),
        (0xFF800000, 0xFF80),
        (0x807FFFFF, 0x8000),  # a denormal
    ],
)
def test_floats_are_narrowed_as_the_manual_says(bits: int, half: int, probe: ctypes.CDLL) -> None:
    assert probe.probe_narrow(_float(bits)) == half


def test_nan_stays_nan_when_narrowed(probe: ctypes.CDLL) -> None:
    assert probe.probe_narrow(math.nan) & 0x7FC0 == 0x7FC0


@pytest.mark.parametrize(
    ("kind", "format", "rows"),
    [
        *((_LINEAR, format, rows) for format in Format for rows in (1, 2, 3, 4, 8, 13, 14, 19)),
        *((kind, Format.F32, 19) for kind in (_NORM, _GATE)),
        (_ROPE, Format.F32, 301),
        *((_ATTEND, format, rows) for format in (Format.F32, Format.BF16) for rows in (1, 301)),
    ],
)
def test_a_set_that_computes_something_else_is_refused(
    kind: int, format: Format, rows: int, probe: ctypes.CDLL
) -> None:
    """Also where it does so for one row only, which other functions compute than many."""
    assert probe.probe_agreement(kind, format, rows) == 0


def test_a_set_that_computes_the_same_is_not_refused(probe: ctypes.CDLL) -> None:
    assert probe.probe_agreement(-1, Format.F32, 0) == 1
