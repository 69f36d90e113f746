"""PFO: unbiased, and as precise as it says.

Every statistical test accepts correct code with probability 1 - 1e-6 (FLAKINESS); keys are fixed.
"""

import numpy as np
import pytest
from scipy import stats

from streamveil.mechanisms.local.oracles import Oracle, perturb
from streamveil.mechanisms.local.protocol import GRR, OUE, Tally
from streamveil.mechanisms.local.server.combination import class_variances, combine
from streamveil.mechanisms.randomness.noise import RandomWords

FLAKINESS = 1e-6
UNIT = 2**40
RUNS, D = 3000, 4
ORACLES = [Oracle.of(GRR, UNIT, D), Oracle.of(OUE, UNIT // 2, D), Oracle.of(GRR, 3 * UNIT, D), None]
SIZES = np.array([60, 100, 20, 50])


def tallies(values) -> np.ndarray:
    """Supports in many runs, shape (RUNS, K, D), of what each class's users have."""
    supports = np.zeros((RUNS, len(ORACLES), D), np.int64)
    for k, oracle in enumerate(ORACLES):
        if oracle is not None:
            words = RandomWords(bytes([k]) * 32)
            reports = np.concatenate(list(perturb(oracle, np.tile(values[k], RUNS), words)))
            bits = (
                np.eye(D, dtype=np.int64)[reports]
                if oracle.kind == GRR
                else np.unpackbits(reports, axis=1, count=D)
            )
            supports[:, k] = bits.reshape(RUNS, -1, D).sum(axis=1)
    return supports


def estimates(values, weights=None) -> tuple[np.ndarray, np.ndarray]:
    reports = np.array([0 if o is None else n for o, n in zip(ORACLES, SIZES, strict=True)])
    found = [combine(Tally(s, reports), ORACLES, weights) for s in tallies(values)]
    assert all((variances == found[0][1]).all() for _, variances in found)  # public
    return np.array([frequencies for frequencies, _ in found]), found[0][1]


def near(samples, mean) -> bool:
    """Whether independent samples, shape (runs, ...), have these means."""
    z = (samples.mean(axis=0) - mean) / (samples.std(axis=0, ddof=1) / np.sqrt(len(samples)))
    return np.abs(z).max() < stats.norm.isf(FLAKINESS / (2 * z.size))


# Where all classes have the same values, the average is unbiased; and what it says of its variance,
# added up over the symbols, is what it has.
def test_pfo_is_unbiased_and_as_precise_as_it_says():
    values = [np.repeat(np.arange(D), np.array([5, 3, 1, 1]) * n // 10) for n in SIZES]
    truth = np.array([0.5, 0.3, 0.1, 0.1])
    found, variances = estimates(values)
    assert near(found, truth)
    errors = ((found - truth) ** 2).sum(axis=1)
    assert near(errors[:, None], variances.sum())


# Averaged by numbers of users it is unbiased however class and value hang together; by inverse
# variance it is not.
def test_weights_by_shares_are_unbiased_in_correlated_classes():
    values = [np.full(n, k % D) for k, n in enumerate(SIZES)]
    truth = np.append(SIZES[:3], 0) / SIZES[:3].sum()
    found, variances = estimates(values, weights=SIZES)
    assert near(found, truth)
    assert near(((found - truth) ** 2).sum(axis=1)[:, None], variances.sum())
    assert not near(estimates(values)[0], truth)


# No other weights are as precise; the variance is that of Equation 2.
def test_inverse_variances_are_best():
    reports = np.array([60, 100, 20, 0])
    tally = Tally(np.ones((4, D), np.int64), reports)
    best = combine(tally, ORACLES)[1]
    each = class_variances(reports, ORACLES, D)
    np.testing.assert_allclose(best, 1 / (1 / each).sum())
    for weights in np.random.default_rng(0).dirichlet(np.ones(4), 50):
        assert (combine(tally, ORACLES, weights)[1] >= best).all()


@pytest.mark.parametrize("kind", [GRR, OUE])
def test_total_variance_of_a_class(kind):
    oracle, m = Oracle.of(kind, UNIT, 7), 30
    p, q = oracle.p, oracle.q
    total = (7 * q * (1 - q) / (p - q) ** 2 + (1 - p - q) / (p - q)) / m
    assert 7 * class_variances(np.array([m]), [oracle], 7)[0] == pytest.approx(total)


# Without reports nothing is known, and nothing fails.
@pytest.mark.parametrize("weights", [None, [1, 1]])
def test_no_reports(weights):
    nothing = Tally(np.zeros((2, 5), np.int64), np.zeros(2, np.int64))
    frequencies, variances = combine(nothing, [None, Oracle.of(GRR, 1, 5)], weights)
    assert (frequencies == 0.2).all()
    assert np.isposinf(variances).all()
