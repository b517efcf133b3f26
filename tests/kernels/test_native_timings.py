"""Timed runs of the native kernels: the same result, and time for the kinds that ran and no others."""

import pytest
import torch

from headrace_kernels import native
from headrace_kernels.native import Activation, Format, Gate, Head, Linear, Matrix, Norm, Program, Step, Timings
from headrace_kernels.packed_tensor import packed_tensor

pytestmark = pytest.mark.skipif(native.instruction_set() is None, reason="The native kernels are not built here.")

ROWS, WIDTH, INNER = 5, 64, 96


class Feed:
    """Norm, product, gate and product over buffers of its own."""

    def __init__(self) -> None:
        noise = torch.Generator().manual_seed(3)
        self.states = torch.randn(ROWS, WIDTH, generator=noise)
        self.out = torch.full((ROWS, WIDTH), torch.nan)
        normed, wide, inner = torch.empty(ROWS, WIDTH), torch.empty(ROWS, 2 * INNER), torch.empty(ROWS, INNER)
        up = packed_tensor(torch.randn(2 * INNER, WIDTH, generator=noise), Format.BF16)
        down = packed_tensor(torch.randn(WIDTH, INNER, generator=noise), Format.INT4)
        rooms = [native.scratch(Format.BF16, ROWS, WIDTH), native.scratch(Format.INT4, ROWS, INNER)]
        places = [None if room is None else room.ctypes.data for room in rooms]
        weight = torch.ones(WIDTH)
        operations = (
            Norm(self.states.data_ptr(), weight.data_ptr(), normed.data_ptr(), WIDTH, 1e-5, 0),
            Linear(
                *(normed.data_ptr(), up.address, None, wide.data_ptr(), places[0]),
                *(2 * INNER, WIDTH, Format.BF16, 0),
            ),
            Gate(wide.data_ptr(), inner.data_ptr(), INNER, Activation.SILU),
            Linear(
                *(inner.data_ptr(), down.address, None, self.out.data_ptr(), places[1]),
                *(WIDTH, INNER, Format.INT4, 0),
            ),
        )
        self.program = Program(operations, (normed, wide, inner, up, down, *rooms, weight))

    def run(self) -> torch.Tensor:
        self.out.fill_(torch.nan)
        self.program.run(Step(rows=ROWS), threads=2)
        return self.out.clone()


def test_a_timed_run_computes_the_same_bits() -> None:
    feed = Feed()
    plain = feed.run()
    feed.program.timings = Timings()
    assert torch.equal(feed.run(), plain)
    assert plain.isfinite().all()


def test_time_is_booked_by_kind_and_adds_up() -> None:
    feed = Feed()
    timings = feed.program.timings = Timings()
    feed.run()
    once = timings.seconds
    assert {kind for kind, seconds in once.items() if seconds > 0} == {"norm", "linear", "gate"}
    feed.run()
    assert all(timings.seconds[kind] > once[kind] for kind in ("norm", "linear", "gate"))
    feed.program.timings = None
    before = timings.seconds
    feed.run()
    assert timings.seconds == before


@pytest.mark.parametrize("format", [Format.INT4, Format.INT8, Format.INT8_GROUPS])
def test_a_product_without_its_scratch_is_refused(format: Format) -> None:
    """It would write to nowhere."""
    weights = packed_tensor(torch.ones(WIDTH, WIDTH), format)
    states, out = torch.ones(ROWS, WIDTH), torch.empty(ROWS, WIDTH)
    product = Linear(states.data_ptr(), weights.address, None, out.data_ptr(), None, WIDTH, WIDTH, format, 0)
    head = Head(*([states.data_ptr()] * 3), weights.address, None, WIDTH, WIDTH, 1e-5, 0.0, format)
    for operation in (product, head):
        with pytest.raises(ValueError, match=f"{format.name} wants scratch"):
            Program([operation], [weights])


def test_a_program_knows_its_matrices() -> None:
    assert Feed().program.matrices() == [
        Matrix(Format.BF16, 2 * INNER, WIDTH),
        Matrix(Format.INT4, WIDTH, INNER),
    ]
    assert Matrix(Format.BF16, 2 * INNER, WIDTH).bytes == 2 * INNER * WIDTH * 2
    # A code of 4 bits a value, and a scale and a minimum of 16 bits for 32 of them.
    assert Matrix(Format.INT4, WIDTH, INNER).bytes == WIDTH * INNER // 2 + WIDTH * INNER // 32 * 4


@pytest.mark.parametrize("threads", [1, 2])
def test_memory_is_read_to_its_end(threads: int) -> None:
    words = torch.arange(1001, dtype=torch.int64)
    assert native.read(words.numpy(), threads) == 1001 * 1000 // 2
