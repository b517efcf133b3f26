"""Cosines, sines and powers against far more digits, over every angle that a long context makes."""

from decimal import Context, Decimal

import numpy as np
import pytest

from headrace.engine.models.turns import power, turns

PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
DIGITS = Context(prec=50)


def _exact(angle: float) -> tuple[float, float]:
    """Cosine and sine by their series, of the angle's rest to a whole turn."""
    rest = DIGITS.remainder_near(Decimal(angle), 2 * PI)
    cosine = sine = Decimal(0)
    term, index = Decimal(1), 0
    while abs(term) > Decimal("1e-40"):
        if index % 2 == 0:
            cosine = DIGITS.add(cosine, term if index % 4 == 0 else -term)
        else:
            sine = DIGITS.add(sine, term if index % 4 == 1 else -term)
        index += 1
        term = DIGITS.divide(DIGITS.multiply(term, rest), index)
    return float(cosine), float(sine)


ANGLES = [
    *(0.0, 1e-9, 0.5, 0.7853981633974483, 0.7853981633974484, 1.5707963267948966, 3.141592653589793),
    *(4.71238898038469, 6.283185307179586, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8191.0, 131071.0, 1.0e6),
    *np.random.default_rng(0).uniform(0, 131072, 100).astype(np.float32).astype(float).tolist(),
]


def test_turns_are_right_to_the_last_bits() -> None:
    cosines, sines = turns(np.array(ANGLES))
    exact = np.array([_exact(angle) for angle in ANGLES]).T
    for mine, theirs in zip((cosines, sines), exact, strict=True):
        assert (np.abs(mine - theirs) <= 1.5 * np.spacing(np.abs(theirs)) + 1e-17).all()


def test_they_agree_with_numpys_wherever_a_context_reaches() -> None:
    angles = np.outer(np.arange(4096), 10000.0 ** -np.linspace(0, 1, 32))
    cosines, sines = turns(angles)
    np.testing.assert_allclose(cosines, np.cos(angles), rtol=0, atol=3e-16)
    np.testing.assert_allclose(sines, np.sin(angles), rtol=0, atol=3e-16)


@pytest.mark.parametrize(("base", "exponent", "value"), [(10000.0, 0.5, 100.0), (10.0, 0.0, 1.0), (2.0, 0.25, 2**0.25)])
def test_powers(base: float, exponent: float, value: float) -> None:
    assert power(base, exponent) == value
