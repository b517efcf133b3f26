"""Rows: how many a matrix product gets, so that a row is the same bits whichever are computed beside it."""

# Rows of a matrix product are padded to a multiple of this: products on CPUs choose their blocking, and with it their
# rounding, by the number of rows, and agree for multiples of 8.
ROW_MULTIPLE = 8


def padded_rows(count: int) -> int:
    """`count` rounded up to ROW_MULTIPLE."""
    return -(-count // ROW_MULTIPLE) * ROW_MULTIPLE
