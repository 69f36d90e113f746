"""Keyed noise and exact sampling.

Every test of a distribution accepts a correct sampler with probability 1 - 1e-6 (FLAKINESS).
Keys are fixed, so a result stays what it is; only OpenDP's sampler cannot be keyed.
"""

import math
from decimal import Decimal, localcontext

import numpy as np
import opendp.prelude as dp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy import stats

from streamveil.mechanisms import NoiseSource
from streamveil.mechanisms.randomness import noise
from streamveil.mechanisms.randomness.noise import (
    RandomWords,
    SlotNoise,
    discrete_laplace,
    probability_threshold,
    thin,
)
from streamveil.mechanisms.wevent.obs import keep_probability

dp.enable_features("contrib")

FLAKINESS = 1e-6
# A standard normal is further than this from 0 with probability FLAKINESS.
SIGMAS = stats.norm.isf(FLAKINESS / 2)

KEY = bytes(range(32))
PROPERTY = settings(max_examples=300)
BUDGETS = pytest.mark.parametrize("units", [2**30, 2**37, 2**40, 3 * 2**40 + 12345])


def keyed(label: object) -> RandomWords:
    """Words of a fixed key, others for every label."""
    return NoiseSource(KEY, "tests").slot(0, repr(label).encode()).words("test")


class FixedWords:
    """A stream of words made by hand; it ends with an error."""

    def __init__(self, *words: int) -> None:
        self.left = list(words)

    def draw(self, size: int) -> np.ndarray:
        if size > len(self.left):
            raise AssertionError(f"{size} words drawn, {len(self.left)} left")
        drawn, self.left = self.left[:size], self.left[size:]
        return np.array(drawn, dtype=np.uint64)


# ---- discrete Laplace -----------------------------------------------------------------------


def distribution(y: np.ndarray, units: float) -> np.ndarray:
    """P(Y <= y) of the discrete Laplace distribution with P(Y = y) ~ exp(-|y| units / 2**40)."""
    epsilon = units / 2**40
    tail = np.exp(-epsilon * np.where(y < 0, -y, y + 1)) / (1 + np.exp(-epsilon))
    return np.where(y < 0, tail, 1 - tail)


def cells(units: int, size: int) -> np.ndarray:
    """Last integers of up to 100 neighbouring cells that expect at least 50 samples each."""
    epsilon = units / 2**40
    reach = math.ceil(math.log(size / 100) / epsilon)
    ends = np.unique(np.linspace(-reach, reach, min(99, 2 * reach + 1)).astype(np.int64))
    while True:
        expected = np.diff(distribution(ends, units), prepend=0, append=1) * size
        if expected[0] >= 50 and expected[-1] >= 50:
            return ends
        ends = ends[1:-1]


def fit(samples: np.ndarray, units: int) -> float:
    """Chi-square p-value of samples as discrete Laplace noise of this budget."""
    ends = cells(units, samples.size)
    observed = np.bincount(np.searchsorted(ends, samples), minlength=ends.size + 1)
    expected = np.diff(distribution(ends, units), prepend=0, append=1) * samples.size
    return stats.chisquare(observed, expected).pvalue


# The samples have the exact probability mass, for scales of 1000 down to less than 1.
@BUDGETS
def test_discrete_laplace_has_its_distribution(units):
    assert fit(discrete_laplace(units, 300_000, keyed(units)), units) > FLAKINESS


# The test above sees a budget that is 2% off, so it can fail.
@BUDGETS
def test_the_fit_would_notice_two_per_cent(units):
    assert fit(discrete_laplace(units, 300_000, keyed(units)), units * 51 // 50) < FLAKINESS


# OpenDP's exact sampler, which is code of other people, draws from the same distribution.
@pytest.mark.slow
@BUDGETS
def test_discrete_laplace_is_opendps(units):
    size = 60_000
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int)
    theirs = np.array(dp.m.make_laplace(*space, scale=2**40 / units)([0] * size))
    ours = discrete_laplace(units, size, keyed(("opendp", units)))
    ends = cells(units, size)
    table = [
        np.bincount(np.searchsorted(ends, samples), minlength=ends.size + 1)
        for samples in (ours, theirs)
    ]
    assert stats.chi2_contingency(table).pvalue > FLAKINESS


# Noise favours neither sign, in number or in size.
@BUDGETS
def test_discrete_laplace_is_symmetric(units):
    samples = discrete_laplace(units, 200_000, keyed(("symmetric", units)))
    above, below = samples[samples > 0], -samples[samples < 0]
    assert stats.binomtest(above.size, above.size + below.size).pvalue > FLAKINESS
    assert stats.ks_2samp(above, below).pvalue > FLAKINESS


# Neighbouring samples and neighbouring streams are uncorrelated.
def test_samples_are_independent_of_each_other():
    n = 100_000
    samples = discrete_laplace(2**38, n, keyed("a"))
    others = discrete_laplace(2**38, n, keyed("b"))
    for x, y in [(samples[1:], samples[:-1]), (samples, others)]:
        assert abs(np.corrcoef(x, y)[0, 1]) * math.sqrt(n) < SIGMAS


# A vector is what it is whatever its length: asking for none draws nothing that matters, and the
# largest and smallest budgets work.
def test_ends_of_the_range():
    assert discrete_laplace(2**40, 0, keyed(0)).shape == (0,)
    assert not discrete_laplace(2**52, 1000, keyed(1)).any()
    smallest = discrete_laplace(1, 50_000, keyed(2))
    assert fit(smallest, 1) > FLAKINESS


@pytest.mark.parametrize("units", [0, -1, 2**52 + 1])
def test_budgets_out_of_range_are_refused(units):
    with pytest.raises(ValueError, match=rf"budget of {units} units"):
        discrete_laplace(units, 10, keyed(0))


# ---- what 64 bits cannot decide -------------------------------------------------------------


def joined(words: list[int]) -> Decimal:
    """The number in [0, 1) whose binary digits the words are."""
    value = 0
    for word in words:
        value = (value << 64) | word
    return Decimal(value) / Decimal(1 << (64 * len(words)))


# A rational probability decides by its next 64 binary digits, and by the next on a tie.
@pytest.mark.parametrize(("numerator", "denominator"), [(1, 3), (2, 3), (5, 7), (1, 2), (3, 4)])
def test_bernoulli_rational_ties(numerator, denominator):
    digits = [((numerator << 64 * (i + 1)) // denominator) & (2**64 - 1) for i in range(3)]
    for ties in range(3):
        prefix, decisive = digits[:ties], digits[ties]
        if decisive > 0:
            words = FixedWords(*prefix, decisive - 1)
            assert noise._bernoulli_rational(numerator, denominator, words)
            assert not words.left
        words = FixedWords(*prefix, decisive + 1)
        assert not noise._bernoulli_rational(numerator, denominator, words)
        assert not words.left


def test_bernoulli_rational_ends():
    assert not noise._bernoulli_rational(0, 5, FixedWords(0, 0, 1))
    assert noise._bernoulli_rational(5, 5, FixedWords(2**64 - 1))


@PROPERTY
@given(st.integers(1, 50), st.integers(1, 50), st.integers(0, 2**32))
def test_bernoulli_rational_is_fair(a, b, seed):
    numerator, denominator = sorted([a, b])
    words = keyed((a, b, seed)).draw(2).tolist()
    expected = joined(words) < Decimal(numerator) / Decimal(denominator)
    assert noise._bernoulli_rational(numerator, denominator, FixedWords(*words)) == expected


# exp(-f / 2**40) fails at term k if its word is at or above (f / 2**40) / k. A word equal to the
# first 64 digits of that goes on with the digits after them: success below them, failure above.
@pytest.mark.parametrize("fraction", [1, 12345, 2**39 + 1, 2**40 - 1, 2**40 - 5])
@pytest.mark.parametrize("k", [3, 5, 6, 7])
def test_bernoulli_exp_ties(fraction, k):
    scaled = fraction << 24
    successes = [0] * (k - 1)
    limit, rest = divmod(scaled, k)
    digits = (rest << 64) // k
    never = 2**64 - 1  # a word that fails any term
    vector = np.array([fraction], dtype=np.uint64)
    if digits > 0:
        # Success at term k, failure at k + 1: alive when k + 1 is odd.
        words = FixedWords(*successes, limit, digits - 1, never)
        assert noise._bernoulli_exp(vector, words)[0] == (k % 2 == 0)
        assert not words.left
    # Failure at term k: alive when k is odd.
    words = FixedWords(*successes, limit, digits + 1)
    assert noise._bernoulli_exp(vector, words)[0] == (k % 2 == 1)
    assert not words.left


# A tie at an exact 64-bit probability is a failure: the digits after it are all 0.
def test_bernoulli_exp_tie_without_rest():
    half = np.array([2**39], dtype=np.uint64)
    words = FixedWords(2**63, 5)
    assert noise._bernoulli_exp(half, words)[0]
    assert not words.left


# Each element of a vector takes its own way, with the tie-breaks in order of position.
def test_bernoulli_exp_ties_within_a_vector():
    fractions = np.array([2**39, 2**39, 0, 2**39], dtype=np.uint64)
    never = 2**64 - 1
    words = FixedWords(
        *(2**63, 0, 0, never),  # k = 1: a tie, success, a tie with 0, failure
        *(1, 1),  # both ties fail
        never,  # k = 2: the only one left fails
    )
    assert noise._bernoulli_exp(fractions, words).tolist() == [True, False, True, True]
    assert not words.left


def exp_digits(v: int, words: int) -> list[int]:
    """The first binary digits of exp(-v), in words of 64, from Decimal alone."""
    with localcontext() as context:
        context.prec = 200
        value = int(Decimal(-v).exp() * (1 << 64 * words))
    return [(value >> 64 * (words - 1 - i)) & (2**64 - 1) for i in range(words)]


# P(at least v) = exp(-v): a word equal to exp(-v)'s first digits goes on with the next.
@pytest.mark.parametrize("v", [1, 2, 3, 10, 30, 43, 44, 45])
def test_geometric_ties(v):
    first, second, third = exp_digits(v, 3)
    for tail, expected in [
        ([second - 1], v),
        ([second + 1], v - 1),
        ([second, third - 1], v),
        ([second, third + 1], v - 1),
    ]:
        words = FixedWords(first, *tail)
        assert noise._geometric(1, words).tolist() == [expected]
        assert not words.left


# Words that are next to the table's, and the largest, need no second word.
@pytest.mark.parametrize("v", [1, 2, 10, 30, 43])
def test_geometric_next_to_ties(v):
    (first,) = exp_digits(v, 1)
    words = FixedWords(first - 1, first + 1, 2**64 - 1)
    assert noise._geometric(3, words).tolist() == [v, v - 1, 0]


# A word of 0 is beyond the table: more words tell how far, without an end.
def test_geometric_word_0():
    beyond = exp_digits(45, 2)
    assert beyond[0] == 0
    assert noise._geometric(1, FixedWords(0, beyond[1] - 1)).tolist() == [45]
    assert noise._geometric(1, FixedWords(0, beyond[1] + 1)).tolist() == [44]
    # 128 zeros tie with exp(-89) * 2**128 < 1: the third word decides between 88 and 89.
    decisive = exp_digits(89, 3)
    assert decisive[:2] == [0, 0]
    assert noise._geometric(1, FixedWords(0, 0, decisive[2] + 1)).tolist() == [88]
    assert noise._geometric(1, FixedWords(0, 0, decisive[2] - 1)).tolist() == [89]
    with localcontext() as context:
        context.prec = 200
        many = noise._geometric(1, FixedWords(0, 0, 0, 0, 1)).tolist()[0]
        assert joined([0, 0, 0, 0, 1]) < Decimal(-many).exp()
        assert joined([0, 0, 0, 0, 2]) > Decimal(-many - 1).exp()


# Several ties in one vector are decided in order, each by words of its own.
def test_geometric_ties_within_a_vector():
    one, two = exp_digits(1, 2), exp_digits(2, 2)
    words = FixedWords(one[0], 2**64 - 1, two[0], one[0], one[1] - 1, two[1] + 1, one[1] + 1)
    assert noise._geometric(4, words).tolist() == [1, 0, 1, 0]


# ---- the same on a finer scale, each sample with a budget of its own -----------------------

FINE = [8, 9, 1001, 2**40 + 7, 2**51 // 3, 2**52 - 1, 2**52]


# Every sample has the distribution of its own rate, whatever is sampled beside it.
def test_fine_laplace_has_its_distributions():
    rates = np.array(FINE)
    samples = noise.fine_laplace(rates, keyed("fine"), 60_000)
    assert samples.shape == (60_000, rates.size)
    for rate, column in zip(rates.tolist(), samples.T, strict=True):
        assert fit(column, rate / 2**16) > FLAKINESS
        assert fit(column, rate / 2**16 * 1.05) < FLAKINESS


# What is kept is floor((fraction + whole * 2**56) / rate) in exact arithmetic, for products of any
# size that occurs.
def test_fine_laplace_divides_exactly():
    rates = np.array(FINE).repeat(500)
    alive, fraction, whole, negative = noise._exponentials(56, rates.size, keyed("divide"))
    tried = zip(rates[alive], fraction, whole, negative, strict=True)
    exact = [(int(f) + int(w) * 2**56) // int(r) * (-1 if n else 1) for r, f, w, n in tried]
    kept = np.array([y != 0 or not n for y, n in zip(exact, negative, strict=True)])
    samples = noise.fine_laplace(rates, keyed("divide"))[0]
    assert samples[np.flatnonzero(alive)[kept]].tolist() == np.array(exact)[kept].tolist()


def test_fine_laplace_refuses_other_rates():
    assert noise.fine_laplace(np.array([], np.int64), keyed(0)).shape == (1, 0)
    for rate in (0, 7, 2**52 + 1):
        with pytest.raises(ValueError, match=f"rates from 8 to {max(rate, 8)}|from {rate} to 8"):
            noise.fine_laplace(np.array([8, rate]), keyed(0))


# ---- thinning -------------------------------------------------------------------------------


# The number kept of n events is binomial.
@pytest.mark.parametrize("p", [0.03, 0.3, 0.5, 0.97])
@pytest.mark.parametrize("chunk", [noise._MAX_WORDS, 1000])
def test_thinned_counts_are_binomial(monkeypatch, p, chunk):
    monkeypatch.setattr(noise, "_MAX_WORDS", chunk)
    cells, events = 20_000, 20
    counts = np.full((1, cells), events)
    kept = thin(counts, [round(p * 2**64)], keyed(("thin", p, chunk)))[0]
    expected = stats.binom.pmf(np.arange(events + 1), events, p) * cells
    observed = np.bincount(kept, minlength=events + 1).astype(float)
    common = expected >= 20
    assert (
        stats.chisquare(
            np.append(observed[common], observed[~common].sum()),
            np.append(expected[common], expected[~common].sum()),
        ).pvalue
        > FLAKINESS
    )


# Thinning a class's counts is sampling each of its users: the sums over the classes have the same
# distribution when users are drawn one by one.
def test_thinning_is_sampling_users():
    runs = 30_000
    users = np.array([[5, 1], [0, 4], [3, 2]])  # (class, bin)
    probabilities = np.array([0.25, 0.75, 1.0])
    rng = np.random.default_rng(7)
    one_by_one = np.zeros((runs, 2), dtype=np.int64)
    for k, p in enumerate(probabilities):
        for j in range(2):
            one_by_one[:, j] += (rng.random((runs, users[k, j])) < p).sum(axis=1)
    thresholds = [int(p * 2**64) for p in probabilities]
    by_class = thin(np.tile(users, runs), thresholds, keyed("users")).sum(axis=0).reshape(runs, 2)
    table = np.zeros((2, 9, 8))
    np.add.at(table[0], tuple(one_by_one.T), 1)
    np.add.at(table[1], tuple(by_class.T), 1)
    table = table.reshape(2, -1)
    rare = table.sum(axis=0) < 40
    table = np.column_stack([table[:, ~rare], table[:, rare].sum(axis=1)])
    assert stats.chi2_contingency(table[:, table.sum(axis=0) > 0]).pvalue > FLAKINESS


# Bins and classes are thinned independently of each other.
def test_cells_are_thinned_independently():
    n = 50_000
    kept = thin(np.full((2, 2 * n), 10), [2**63, 2**62], keyed("cells"))
    for x, y in [(kept[0, :n], kept[0, n:]), (kept[0], kept[1]), (kept[1, 1:], kept[1, :-1])]:
        assert abs(np.corrcoef(x, y)[0, 1]) * math.sqrt(x.size) < SIGMAS


# Nothing is ever added, whatever the counts and thresholds, in one draw or in many.
@PROPERTY
@given(
    npst.arrays(np.int64, (3, 4), elements=st.integers(0, 60)),
    st.lists(
        st.one_of(st.sampled_from([0, 1, 2**63, 2**64 - 1, 2**64]), st.integers(0, 2**64)),
        min_size=3,
        max_size=3,
    ),
    st.sampled_from([7, 100, noise._MAX_WORDS]),
)
def test_thinning_keeps_no_more_than_there_is(counts, thresholds, chunk):
    before = counts.copy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "_MAX_WORDS", chunk)
        kept = thin(counts, thresholds, keyed((counts.tolist(), thresholds)))
    np.testing.assert_array_equal(counts, before)
    assert kept.dtype == np.int64
    assert (kept >= 0).all()
    assert (kept <= counts).all()
    for k, threshold in enumerate(thresholds):
        if threshold == 2**64:
            np.testing.assert_array_equal(kept[k], counts[k])
        if threshold == 0:
            assert not kept[k].any()


# A word equal to the threshold is not kept: exactly `threshold` of 2**64 words are.
def test_thinning_at_the_threshold():
    words = FixedWords(99, 100, 101, 0, 7, 6)
    assert thin(np.array([[2, 1], [1, 2]]), [100, 7], words).tolist() == [[1, 0], [1, 1]]
    assert not words.left


# Classes kept whole or dropped whole cost no randomness.
def test_whole_classes_draw_nothing():
    counts = np.array([[5, 3]])
    np.testing.assert_array_equal(thin(counts, [2**64], FixedWords()), counts)
    assert thin(counts, [0], FixedWords()).tolist() == [[0, 0]]
    mixed = thin(np.array([[5, 3], [1, 1], [5, 3]]), [0, 100, 2**64], FixedWords(99, 100))
    assert mixed.tolist() == [[0, 0], [1, 0], [5, 3]]
    assert thin(np.zeros((0, 3), dtype=np.int64), [], FixedWords()).shape == (0, 3)


# More cells than words drawn at once, with one event each, are thinned too.
def test_thinning_more_cells_than_words_at_once(monkeypatch):
    monkeypatch.setattr(noise, "_MAX_WORDS", 64)
    kept = thin(np.ones((2, 100), dtype=np.int64), [2**63, 2**62], keyed("many cells"))
    assert 0 < kept.sum() < 200


# ---- sampling probabilities -----------------------------------------------------------------

# Budgets of every size from 1 unit to 2**52.
UNITS = st.builds(
    lambda bits, low: (low >> (52 - bits)) + 1, st.integers(0, 52), st.integers(0, 2**52 - 1)
)


@st.composite
def pairs(draw):
    """A budget and a larger threshold, in units: far apart, near and next to each other."""
    budget = draw(UNITS)
    threshold = draw(st.one_of(UNITS, st.builds(lambda d: budget + d, st.integers(1, 1000))))
    budget, threshold = sorted([budget, threshold])
    return budget, min(max(threshold, budget + 1), 2**52 + 1)


# The threshold never keeps more than e allows: it is at most the exact probability, and hardly
# below it; so SM costs at most e, in exact arithmetic: ln(1 + p (exp(th) - 1)) <= e.
@PROPERTY
@given(pairs())
def test_sampling_never_costs_more_than_the_budget(pair):
    e_units, th_units = pair
    keep = float(keep_probability([math.ldexp(e_units, -40)], math.ldexp(th_units, -40))[0])
    drawn = probability_threshold(keep)
    with localcontext() as context:
        context.prec = 2000 if th_units > 2**49 else 250  # exp(4096) has 1779 digits
        budget, threshold = Decimal(e_units) / 2**40, Decimal(th_units) / 2**40
        growth = threshold.exp() - 1
        exact = (budget.exp() - 1) / growth * 2**64
        assert 0 <= drawn <= exact
        assert exact - drawn <= exact / 2**46 + 1
        assert (1 + Decimal(drawn) / 2**64 * growth).ln() <= budget


# Only certainty is certain; the largest float below it is not.
def test_probability_threshold_at_the_ends():
    assert probability_threshold(1.0) == 2**64
    assert probability_threshold(0.0) == 0
    assert probability_threshold(math.nextafter(1.0, 0.0)) < 2**64
    assert probability_threshold(5e-324) == 0


# ---- keys -----------------------------------------------------------------------------------


def words_of(key=KEY, stream="s", slot=5, digest=b"d", purpose="p", size=64):
    return NoiseSource(key, stream).slot(slot, digest).words(purpose).draw(size)


# The same key, stream, slot, digest and purpose: the same words, however they are drawn.
@given(st.lists(st.integers(0, 300), max_size=12))
def test_words_are_the_same_however_many_are_drawn_at_once(sizes):
    apart, at_once = SlotNoise(KEY).words("release"), SlotNoise(KEY).words("release")
    drawn = [apart.draw(size) for size in sizes]
    assert [len(some) for some in drawn] == sizes
    expected = at_once.draw(sum(sizes))
    assert np.concatenate([expected[:0], *drawn]).tolist() == expected.tolist()


def test_same_input_same_words():
    np.testing.assert_array_equal(words_of(), words_of())
    words = NoiseSource(KEY, "s").slot(5, b"d").words("p")
    parts = np.concatenate([words.draw(1), words.draw(0), words.draw(20), words.draw(43)])
    np.testing.assert_array_equal(parts, words_of())


# Change any of them and every word is another; moving a character from one to the next as well.
@pytest.mark.parametrize(
    "change",
    [
        {"key": bytes(31) + b"\1"},
        {"key": KEY[:-1] + b"\0"},
        {"stream": "t"},
        {"stream": ""},
        {"slot": 6},
        {"slot": -5},
        {"digest": b"e"},
        {"digest": b""},
        {"digest": b"d\0"},
        {"purpose": "q"},
        {"stream": "s5", "slot": 0},
        {"slot": 55, "digest": b""},
        {"digest": b"dp", "purpose": ""},
    ],
)
def test_any_change_changes_all_words(change):
    assert not (words_of() == words_of(**change)).any()


def bits_are_fair(words: np.ndarray) -> bool:
    ones = int(np.unpackbits(np.ascontiguousarray(words).view(np.uint8)).sum())
    return stats.binomtest(ones, 64 * words.size).pvalue > FLAKINESS


# Words over consecutive slots are uniform bytes, each slot's independent of the one before it.
def test_consecutive_slots_are_uniform_and_independent():
    source = NoiseSource(KEY)
    words = np.array([source.slot(t, b"").words("p").draw(32) for t in range(2000)])
    for data in (words, words[1:] ^ words[:-1], words[:, 1:] ^ words[:, :-1]):
        octets = np.bincount(np.ascontiguousarray(data).view(np.uint8).ravel(), minlength=256)
        assert stats.chisquare(octets).pvalue > FLAKINESS
        assert bits_are_fair(data)


# Two purposes in one slot are independent, though they share its key.
def test_purposes_are_independent():
    slot = SlotNoise(KEY)
    differ = slot.words("a").draw(20_000) ^ slot.words("b").draw(20_000)
    assert bits_are_fair(differ)


# The key is in no text that an error or a log could show.
def test_key_is_never_shown():
    key = b"a very secret key of 32 bytes..."
    source = NoiseSource(key)
    slot = source.slot(1, b"")
    for shown in (repr(source), str(source), f"{source}", repr(slot), repr(slot.words("p"))):
        assert "secret key" not in shown
        assert key.hex() not in shown
        assert source._keys.first.hex() not in shown
        assert repr(source._keys.first)[2:-1] not in shown


@pytest.mark.parametrize("size", [0, 16, 31, 33, 64])
def test_key_length_is_checked(size):
    with pytest.raises(ValueError, match=f"has {size} bytes"):
        NoiseSource(b"k" * size)
