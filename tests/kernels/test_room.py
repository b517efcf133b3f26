"""Memory that matrices share: nobody gets a byte of another's, and what nobody holds is given back."""

import weakref

from headrace_kernels.room import Room


def test_pieces_are_aligned_and_nobody_elses() -> None:
    room, taken = Room(), []
    for number in range(300):
        taken.append(room.take(7 + 997 * number))
        taken[-1][:] = number % 251
    assert all(part.ctypes.data % 64 == 0 for part in taken)
    assert all((part == number % 251).all() for number, part in enumerate(taken))


def test_what_is_larger_than_a_piece_has_one_of_its_own() -> None:
    room = Room()
    small, large, after = room.take(64), room.take(80 << 20), room.take(64)
    assert len(large) == 80 << 20
    assert large.ctypes.data % 64 == 0
    assert small.base is not large.base
    assert after.ctypes.data % 64 == 0


def test_a_piece_goes_with_the_last_that_stands_in_it() -> None:
    room = Room()
    first, second = room.take(40 << 20), room.take(8 << 20)
    piece = first
    while piece.base is not None:
        piece = piece.base
    gone = weakref.ref(piece)
    del piece, first
    assert gone() is not None
    room.take(70 << 20)  # a new piece: the room lets go of the old one
    del second
    assert gone() is None
