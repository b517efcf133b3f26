"""Memory that matrices share: nobody gets a byte of another's, and what nobody holds is given back."""

import weakref
from typing import Any

from headrace_kernels.room import Room


def test_pieces_are_aligned_and_nobody_elses() -> None:
    room, taken = Room(), []
    for number in range(300):
        taken.append(room.take(7 + 997 * number))
        taken[-1][:] = number % 251
    assert all(part.ctypes.data % 64 == 0 for part in taken)
    assert all((part == number % 251).all() for number, part in enumerate(taken))


def owner(part: Any) -> Any:
    while part.base is not None:
        part = part.base
    return part


def test_what_is_large_has_a_piece_of_its_own_and_goes_with_it() -> None:
    room = Room()
    before, large, after = room.take(64), room.take(80 << 20), room.take(64)
    assert len(large) == 80 << 20
    assert large.ctypes.data % 64 == after.ctypes.data % 64 == 0
    assert owner(before) is owner(after) is not owner(large)
    gone = weakref.ref(owner(large))
    del large
    assert gone() is None


def test_a_piece_goes_with_the_last_that_stands_in_it() -> None:
    room = Room()
    first, second = room.take(30 << 20), room.take(30 << 20)
    gone = weakref.ref(owner(first))
    room.take(30 << 20)  # a new piece: the room lets go of the old one
    del first
    assert gone() is not None
    del second
    assert gone() is None
