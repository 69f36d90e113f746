"""The noise of keys: its distribution, its probability of failure, and estimates."""

import math
from fractions import Fraction

import numpy as np
import pytest

from streamveil.mechanisms import ConfigurationError
from streamveil.mechanisms.discovery.deltas import DELTA_ONE, delta_units, to_delta
from streamveil.mechanisms.discovery.truncated_noise import TruncatedNoise, smallest_noise
from streamveil.mechanisms.randomness.noise import RandomWords

EPSILON = 1 << 40
NOISES = [TruncatedNoise(unit, bound) for unit in (EPSILON // 3, EPSILON) for bound in (3, 9, 20)]


def words(number=0):
    return RandomWords(number.to_bytes(32, "big"))


def pmf(noise, lowest=-300, *, below=None):
    """Probabilities of values from `lowest` on; truncated below as well if `below` is given."""
    rate = noise.unit / EPSILON
    values = range(lowest, noise.bound + 1)
    weights = {y: math.exp(-rate * abs(y)) for y in values if below is None or y >= below}
    whole = sum(weights.values())
    return {y: weight / whole for y, weight in weights.items()}


def published(noise, count, *, threshold=None, below=None):
    """What is published of a key with a count, with its probabilities; None for nothing."""
    found = {}
    for y, probability in pmf(noise, below=below).items():
        seen = count + y > (noise.bound if threshold is None else threshold)
        value = count + y if seen and count else None
        found[value] = found.get(value, 0.0) + probability
    return found


def excess(left, right, epsilon):
    """The smallest delta with left <= exp(epsilon) * right + delta, over all events."""
    return sum(max(p - math.exp(epsilon) * right.get(v, 0.0), 0.0) for v, p in left.items())


def both(one, other):
    """What is published of two keys with independent noise."""
    return {(v, w): p * q for v, p in one.items() for w, q in other.items()}


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("weight", [1, 2, 3])
def test_the_tail_is_a_tight_upper_bound(noise, weight):
    exact = sum(p for y, p in pmf(noise, -400).items() if y > noise.bound - weight)
    assert noise.tail(weight) >= exact * DELTA_ONE * (1 - 1e-12)
    assert noise.tail(weight) <= exact * DELTA_ONE * (1 + 1e-12) + 1


def test_the_tail_is_exact_where_floats_are_not():
    # At rate ln 2, and so for a unit just below and above it, all probabilities are fractions.
    bound = 50
    exact = Fraction(1, 2**50) * Fraction(1, 2) / (1 + Fraction(1, 2) - Fraction(1, 2**51))
    unit = int(math.log(2) * EPSILON)
    assert TruncatedNoise(unit + 1, bound).tail(1) <= exact * DELTA_ONE + 1
    assert TruncatedNoise(unit, bound).tail(1) >= exact * DELTA_ONE
    assert TruncatedNoise(unit, bound).tail(1) - TruncatedNoise(unit + 1, bound).tail(1) <= 2


def test_the_tail_of_a_weight_above_the_bound_is_everything():
    noise = TruncatedNoise(EPSILON, 5)
    assert noise.tail(6) == DELTA_ONE
    assert noise.tail(0) == 0


def test_draws_have_the_distribution():
    noise = TruncatedNoise(EPSILON // 2, 2)
    drawn = noise.draw(200_000, words())
    assert drawn.max() == 2
    for y, probability in pmf(noise).items():
        if probability > 1e-4:
            seen = np.mean(drawn == y)
            assert abs(seen - probability) < 5 * math.sqrt(probability / len(drawn))


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("weight", [1, 2, 3])
def test_a_user_of_any_key_is_hidden_in_both_directions(noise, weight):
    epsilon, delta = weight * noise.unit / EPSILON, to_delta(noise.tail(weight))
    for count in range(3 * noise.bound + 5):
        without, with_user = published(noise, count), published(noise, count + weight)
        assert excess(with_user, without, epsilon) <= delta * (1 + 1e-9) + 1e-14
        assert excess(without, with_user, epsilon) <= 1e-14


@pytest.mark.parametrize("count", [0, 1, 30])
@pytest.mark.parametrize("other", [0, 1, 30])
def test_a_key_that_goes_and_one_that_comes_fail_once(count, other):
    noise = TruncatedNoise(EPSILON, 6)
    delta = to_delta(noise.tail(1))
    goes = [published(noise, count + added) for added in (1, 0)]
    comes = [published(noise, other + added) for added in (0, 1)]
    first, second = both(goes[0], comes[0]), both(goes[1], comes[1])
    assert excess(first, second, 2.0) <= delta * (1 + 1e-9) + 1e-14
    assert excess(second, first, 2.0) <= delta * (1 + 1e-9) + 1e-14


def test_symmetric_truncation_fails_twice_where_one_key_goes_and_another_comes():
    noise = TruncatedNoise(EPSILON, 6)
    below = -noise.bound
    delta = pmf(noise, below=below)[noise.bound]
    goes = [published(noise, 30 + added, below=below) for added in (1, 0)]
    comes = [published(noise, 30 + added, below=below) for added in (0, 1)]
    failed = excess(both(goes[0], comes[0]), both(goes[1], comes[1]), 2.0)
    assert failed > 1.9 * delta


def test_a_threshold_too_low_by_2_is_found():
    noise = TruncatedNoise(EPSILON, 9)
    single = published(noise, 1, threshold=noise.bound - 2)
    assert excess(single, {None: 1.0}, 1.0) > 10 * to_delta(noise.tail(1))


@pytest.mark.parametrize("guess", [1, 40, 1000])
def test_the_smallest_bound_is_found_from_anywhere(guess):
    rules = [(1, 2, delta_units(1e-9)), (3, 4, delta_units(1e-8))]
    noise = smallest_noise(EPSILON // 3, rules, guess)
    for bound, good in ((noise.bound, True), (noise.bound - 1, False)):
        tails = [times * TruncatedNoise(noise.unit, bound).tail(one) for one, times, _ in rules]
        assert all(tail <= rule[2] for tail, rule in zip(tails, rules, strict=True)) == good


@pytest.mark.parametrize("delta", [0, 1e-16, 0.2, math.nan, True, "1e-9", -1e-9])
def test_deltas_out_of_range_are_refused(delta):
    with pytest.raises(ConfigurationError, match="delta"):
        delta_units(delta)


def test_deltas_are_rounded_down():
    assert Fraction(delta_units(1e-9), DELTA_ONE) <= Fraction(1e-9)
    assert to_delta(delta_units(2.0**-30)) == 2.0**-30
