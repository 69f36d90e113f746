"""Frequency oracles: exact probabilities, and reports that have them.

Every test of a distribution accepts correct code with probability 1 - 1e-6 (FLAKINESS). Keys are
fixed, so a result stays what it is.
"""

from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from streamveil.mechanisms.local import oracles
from streamveil.mechanisms.local.oracles import (
    Oracle,
    best_oracle,
    check_symbols,
    perturb,
    supports,
)
from streamveil.mechanisms.local.protocol import GRR, OUE
from streamveil.mechanisms.randomness.noise import RandomWords

FLAKINESS = 1e-6
UNIT = 2**40
KINDS = pytest.mark.parametrize("kind", [GRR, OUE])


def words(seed) -> RandomWords:
    return RandomWords(bytes([seed]) * 32)


def whole(oracle, values, seed) -> np.ndarray:
    return np.concatenate(list(perturb(oracle, values, words(seed))))


def largest_ratio(oracle) -> Fraction:
    """How much likelier a report can be for one value than for another, by what is drawn."""
    chance = Fraction(oracle.threshold, 1 << 64)
    if oracle.kind == GRR:
        lie = (1 - chance) / oracle.symbols
        return (chance + lie) / lie
    # The two bits that differ between two values, of which one is set and one is not.
    half = Fraction(1, 2)
    return max(half * (1 - chance) / (chance * half), 1 / (2 * chance), 2 * (1 - chance))


# ---- privacy --------------------------------------------------------------------------------


# No report is more than exp(e) times as likely for one value as for another: exactly, for the
# integers that decide.
@KINDS
@settings(max_examples=400)
@given(units=st.integers(1, 1 << 52) | st.integers(1, 1 << 44), symbols=st.integers(2, 2000))
def test_a_report_never_costs_more_than_its_price(kind, units, symbols):
    ratio = largest_ratio(Oracle.of(kind, units, symbols))
    with localcontext() as context:
        context.prec = 60
        bound = (Decimal(units) / Decimal(UNIT)).exp()
        # Over 2**64 a ratio has at most 128 bits: 60 digits tell which is greater.
        assert Decimal(ratio.numerator) / Decimal(ratio.denominator) <= bound * (
            1 + Decimal("1e-50")
        )


# Nor does rounding waste anything worth mentioning.
@KINDS
@pytest.mark.parametrize("units", [1 << 20, 1 << 36, UNIT, 12 * UNIT])
def test_a_report_costs_nearly_its_price(kind, units):
    ratio = largest_ratio(Oracle.of(kind, units, 7))
    assert np.log1p(float(ratio - 1)) > units / UNIT * (1 - 1e-6)


# The largest budget of all is still randomised.
def test_the_ends_of_the_range():
    assert Oracle.of(GRR, 1 << 52, 2).threshold < 1 << 64
    assert Oracle.of(OUE, 1 << 52, 2).threshold == 1
    with pytest.raises(ValueError, match="no oracle 'grr' for 0 units"):
        Oracle.of(GRR, 0, 2)
    with pytest.raises(ValueError, match="no oracle 'rr' for 1 units"):
        Oracle.of("rr", 1, 2)


# ---- distributions --------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "symbols"), [(0.5, 2), (1.0, 5), (4.0, 3)])
def test_grr_has_its_distribution(epsilon, symbols):
    oracle, each = Oracle.of(GRR, int(epsilon * UNIT), symbols), 60_000
    reports = whole(oracle, np.repeat(np.arange(symbols), each), 1).reshape(symbols, each)
    for value, row in enumerate(reports):
        expected = np.full(symbols, oracle.q)
        expected[value] = oracle.p
        observed = np.bincount(row, minlength=symbols)
        assert stats.chisquare(observed, expected * each).pvalue > FLAKINESS / symbols


# All 2**d reports are as likely as independent bits make them.
@pytest.mark.parametrize(("epsilon", "symbols"), [(0.5, 2), (1.0, 3), (2.0, 4)])
def test_oue_has_its_distribution(epsilon, symbols):
    oracle, each = Oracle.of(OUE, int(epsilon * UNIT), symbols), 60_000
    reports = whole(oracle, np.repeat(np.arange(symbols), each), 2)
    seen = (reports[:, 0] >> (8 - symbols)).reshape(symbols, each)
    codes = np.arange(1 << symbols)
    for value, row in enumerate(seen):
        expected = np.ones(codes.size)
        for symbol in range(symbols):
            p = oracle.p if symbol == value else oracle.q
            expected *= np.where(codes >> (symbols - 1 - symbol) & 1, p, 1 - p)
        observed = np.bincount(row, minlength=codes.size)
        assert stats.chisquare(observed, expected * each).pvalue > FLAKINESS / symbols


# Neighbouring reports and neighbouring bits say nothing of each other.
def test_reports_are_independent():
    oracle, n = Oracle.of(OUE, UNIT, 16), 20_000
    bits = np.unpackbits(whole(oracle, np.zeros(n, np.int64), 3), axis=1)
    bound = stats.norm.isf(FLAKINESS / 4)
    for x, y in [(bits[1:, 1], bits[:-1, 1]), (bits[:, 3], bits[:, 4])]:
        assert abs(np.corrcoef(x, y)[0, 1]) * np.sqrt(n) < bound


# A byte that ties with the probability's first is decided by 56 bits more: exactly at the threshold
# the bit is 0, just below it is 1.
def test_ties_are_decided_exactly():
    oracle = Oracle.of(OUE, UNIT, 5)
    first_byte, rest = divmod(oracle.threshold, 1 << 56)
    drawn = [[int.from_bytes(bytes([200, *[first_byte] * 3, 0, 0, 0, 0]), "little")]]
    drawn.append([rest << 8, (rest << 8) - 1, 0])

    class Words:
        def draw(self, size):
            given = np.array(drawn.pop(0), np.uint64)
            assert given.size == size
            return given.astype("<u8")

    (reports,) = perturb(oracle, np.array([0]), Words())
    assert np.unpackbits(reports[0], count=5).tolist() == [0, 0, 1, 1, 1]


# ---- chunks and counts ----------------------------------------------------------------------


# Chunks bound the memory, and each report has its own randomness.
@KINDS
def test_chunks(monkeypatch, kind):
    monkeypatch.setattr(oracles, "_MAX_WORDS", 3)
    monkeypatch.setattr(oracles, "_MAX_BITS", 3 * 1000)
    oracle = Oracle.of(kind, 30 * UNIT, 1000)
    values = np.arange(7) * 100
    chunks = list(perturb(oracle, values, words(4)))
    assert [len(chunk) for chunk in chunks] == [3, 3, 1]
    total = sum(supports(kind, 1000, chunk) for chunk in chunks)
    assert total.dtype == np.int64
    if kind == GRR:
        assert np.flatnonzero(total).tolist() == values.tolist()
    else:
        assert np.isin(np.flatnonzero(total), values).all()
    assert list(perturb(oracle, values[:0], words(4))) == []


# The estimate from many reports of 1000 symbols is as near as its variance says.
@KINDS
def test_estimates_of_many_symbols(kind):
    oracle, n, d = Oracle.of(kind, 2 * UNIT, 1000), 20_000, 1000
    values = np.repeat([3, 700], [n // 4, n - n // 4])
    total = sum(supports(kind, d, chunk) for chunk in perturb(oracle, values, words(5)))
    truth = np.bincount(values, minlength=d) / n
    scaled = (oracle.frequencies(total, n) - truth) / np.sqrt(oracle.variance(truth) / n)
    assert np.abs(scaled).max() < stats.norm.isf(FLAKINESS / (2 * d)) * 1.2  # skewed a little
    assert stats.kstest(scaled, "norm").pvalue > FLAKINESS or kind == GRR  # few, discrete


def test_wrong_symbols_are_refused():
    check_symbols(np.array([0, 4]), 5)
    for wrong in (5, -1):
        with pytest.raises(ValueError, match=f"value {wrong} is none of the 5 symbols"):
            check_symbols(np.array([0, wrong]), 5)


def test_oue_for_many_symbols():
    assert best_oracle(UNIT, 10) == GRR
    assert best_oracle(UNIT, 11) == OUE
    for symbols in (10, 11):
        variances = [Oracle.of(kind, UNIT, symbols).variance(0.0) for kind in (GRR, OUE)]
        assert (variances[1] < variances[0]) == (symbols == 11)
