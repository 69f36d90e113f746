"""Convergent series in exact arithmetic; and the published schedule, which is none."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special

from streamveil.mechanisms import ConfigurationError
from streamveil.mechanisms.infinite.series import Harmonic, Series, as_power, zeta_above


@pytest.mark.parametrize("power", [1.05, 1.1, 1.2, 1.5, 2.0, 3.0])
def test_zeta_is_bounded_from_above_and_nearly_met(power):
    above = float(zeta_above(as_power(power)))
    assert special.zeta(power) <= above <= special.zeta(power) * (1 + 1e-6)


# Terms up to k are summed as they are. The rest is at most units / Z times what Euler and Maclaurin
# give, whose next member is negative; for k = root**b all of it is a fraction.
@pytest.mark.parametrize(
    ("power", "root"), [(2.0, 3000), (1.5, 60), (1.2, 5), (1.25, 8), (3.0, 400)]
)
@pytest.mark.parametrize("whole", [1, 12345, 1 << 40, (1 << 52) - 1])
def test_infinitely_many_terms_stay_within_the_whole(power, root, whole):
    p, root = as_power(power), Fraction(root)
    a, b = p.numerator, p.denominator
    series = Series(whole, power)
    head = sum(series.term(k) for k in range(1, int(root**b) + 1))
    rest = root ** (b - a) / (p - 1) - root**-a / 2 + p * root ** (-a - b) / 12
    assert head + whole / zeta_above(p) * rest <= whole


@given(
    whole=st.integers(0, 1 << 52),
    k=st.integers(1, 10**9),
    power=st.sampled_from([1.05, 1.1, 1.2, 1.5, 2.0]),
)
@settings(max_examples=100)
def test_a_term_is_the_exact_one_rounded_down(whole, k, power):
    p, term = as_power(power), Series(whole, power).term(k)
    zeta = zeta_above(p)

    def fits(value):  # value <= whole * k**-p / zeta
        return (value * zeta) ** p.denominator * k**p.numerator <= whole**p.denominator

    assert fits(term)
    assert not fits(term + 1)


# The part of the first n is n / (n + half), as 1 / ((k - 1 + h) (k + h)) telescopes.
@given(whole=st.integers(0, 1 << 52), half=st.integers(1, 10**6), n=st.integers(1, 300))
def test_harmonic_terms_are_rounded_down_parts_of_the_whole(whole, half, n):
    terms = [Harmonic(whole, half).term(k) for k in range(1, n + 1)]
    exact = Fraction(whole * n, n + half)
    assert exact - n < sum(terms) <= exact <= whole
    assert terms == sorted(terms, reverse=True)
    assert terms[-1] == math.floor(Fraction(whole * half, (n - 1 + half) * (n + half)))


@pytest.mark.parametrize("power", [1.0, 0.5, 4.5, 1.2345, math.nan])
def test_powers_that_do_not_converge_are_refused(power):
    with pytest.raises(ConfigurationError, match="power"):
        Series(100, power)


# DPI as published: alpha_t = X_t / 2 with X_t = (1 - q**t) / (zeta t**2), where q solves
# Li2(q) = pi**2 / 6 - epsilon / C and C = 2 / (mu zeta). A user in every slot shifts the sum of
# the scores by t times what one slot does, so slot t costs 2 alpha_t t, for scores that shift by 1
# in a slot; the theorem forgets the t. What remains grows with ln T: whoever brings the schedule
# back meets this test.
def published_loss(slots, epsilon, mu, zeta):
    wanted = math.pi**2 / 6 - epsilon * mu * zeta / 2
    q = optimize.brentq(lambda x: special.spence(1 - x) - wanted, 0, 1)
    t = np.arange(1, slots + 1)
    alpha = (1 - q**t) / (zeta * t**2) / 2
    return float((2 * alpha * t).sum())


@pytest.mark.parametrize(("slots", "known"), [(10**3, 17.9), (10**6, 52.4)])
def test_the_published_schedule_exceeds_its_budget(slots, known):
    total = published_loss(slots, epsilon=2.0, mu=0.5, zeta=0.2)
    assert total == pytest.approx(known, abs=0.06)
    assert total > 2.0
