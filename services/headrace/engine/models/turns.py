"""Cosines, sines and powers that are the same bits on every processor.

Owns nothing. What numpy or C calls cos, sin or pow differs in its last bit between processors and libraries. Here are
operations alone that round alike everywhere: fdlibm's polynomials (Sun Microsystems, 1993) behind a reduction by parts
of pi / 2 (Cody and Waite), and decimal arithmetic for the few powers.
"""

from decimal import Context, Decimal

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

# pi / 2 in three parts: multiples of the first two below 2^20 are exact, so angles may go up to 1.6 million.
_PARTS = (1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624879595063154e-21)
_COSINE = (
    *(4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05),
    *(-2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11),
)
_SINE = (
    *(-1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04),
    *(2.75573137070700676789e-06, -2.50507602534068634195e-08, 1.58969099521155010221e-10),
)
_DIGITS = Context(prec=40)


def turns(angles: Doubles) -> tuple[Doubles, Doubles]:
    """Cosines and sines of angles of 0 or more, within 1.5 ulp or 1e-17."""
    quarters = np.rint(angles * (2 / np.pi))
    rest = ((angles - quarters * _PARTS[0]) - quarters * _PARTS[1]) - quarters * _PARTS[2]
    square = rest * rest
    cosine = 1.0 - (0.5 * square - square * square * _polynomial(_COSINE, square))
    sine = rest + rest * square * _polynomial(_SINE, square)
    quarter = quarters.astype(np.int64) & 3
    swapped, behind, below = quarter & 1 == 1, (quarter == 1) | (quarter == 2), quarter >= 2
    cosines, sines = np.where(swapped, sine, cosine), np.where(swapped, cosine, sine)
    return np.where(behind, -cosines, cosines), np.where(below, -sines, sines)


def power(base: float, exponent: float) -> float:
    """base to the exponent, rounded once. base: positive."""
    return float(_DIGITS.power(Decimal(base), Decimal(exponent)))


def _polynomial(coefficients: tuple[float, ...], x: Doubles) -> Doubles:
    value = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + coefficient
    return value
