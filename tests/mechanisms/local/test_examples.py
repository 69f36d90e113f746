"""Figures of the paper's Examples 4, 6 and 7: what is right, and the right value of what is not."""

import numpy as np
import pytest

from streamveil.mechanisms.local.oracles import Oracle
from streamveil.mechanisms.local.protocol import GRR, Tally
from streamveil.mechanisms.local.server.combination import combine
from streamveil.mechanisms.local.server.expected_error import (
    dissimilarity,
    perturbation_variance,
    report_variances,
    reporting_error,
    sampling_variance,
)

BUDGETS = [0.2, 0.4, 0.6, 0.8]
SHARES_6 = [0.35, 0.25, 0.25, 0.15]


def oracles(budgets):
    return [Oracle.of(GRR, int(e * 2**40), 5) for e in budgets]


# p and q, right in print.
def test_probabilities():
    four = oracles(BUDGETS)
    np.testing.assert_allclose([o.p for o in four], [0.23, 0.27, 0.31, 0.36], atol=5e-3)
    np.testing.assert_allclose([o.q for o in four], [0.19, 0.18, 0.17, 0.16], atol=5e-3)


# 125 users in the shares of all, each group with the printed obfuscated frequencies. Printed are
# the estimate 0.396, 0.2, 0.004, 0.396, 0.004, the variance 0.606 and the dissimilarity 0.185.
def test_example_6_dissimilarity():
    sizes = np.array(SHARES_6) * 125
    reports = np.rint(sizes * 100_000).astype(np.int64)  # in parts, to have whole counts
    reported = np.array([0.22, 0.2, 0.18, 0.22, 0.18])
    supports = np.rint(reports[:, None] * reported).astype(np.int64)
    frequencies, _ = combine(Tally(supports, reports), oracles(BUDGETS))
    np.testing.assert_allclose(frequencies, [0.351, 0.2, 0.049, 0.351, 0.049], atol=1e-3)
    variance = perturbation_variance(report_variances(BUDGETS, 5), sizes)
    assert variance == pytest.approx(0.464, abs=5e-4)
    moved = dissimilarity(frequencies, np.full(5, variance / 5), np.zeros(5))
    assert moved == pytest.approx(-0.0346, abs=5e-4)
    # Nor does 0.185 follow from the printed figures.
    printed = np.array([0.396, 0.2, 0.004, 0.396, 0.004])
    assert dissimilarity(printed, np.full(5, 0.606 / 5), np.zeros(5)) == pytest.approx(
        -0.0505, abs=5e-5
    )


# Printed are 0.061 (Example 6) and 0.03 (Example 7) for the same 250 users; so nothing would be
# published in slot 1.
def test_examples_6_and_7_error():
    variances = report_variances(BUDGETS, 5)
    error = reporting_error(variances, np.array(SHARES_6) * 1000, 250, 5)
    assert error == pytest.approx(0.0470, abs=5e-5)


# Printed: 0.021, and 0.05 for 250 users or 125.
def test_example_4_errors():
    budgets, counts = [0.1, 0.2, 0.3, 0.4, 0.6, 0.8], [56, 387, 114, 688, 374, 381]
    variances = report_variances(budgets, 5)
    errors = [reporting_error(variances, counts, z, 5) for z in (500, 250, 125)]
    np.testing.assert_allclose(errors, [0.0218, 0.0437, 0.0876], atol=5e-5)
    estimate = np.array([0.301, 0.194, -0.047, 0.336, 0.215])
    # Printed: 0.541; 0.041 follows from its own variance of 0.085.
    assert dissimilarity(estimate, np.full(5, 0.085 / 5), np.zeros(5)) == pytest.approx(
        0.0409, abs=5e-5
    )


# Equation 5 at its ends: everybody asked, or one user.
def test_sampling_variance():
    assert sampling_variance(100, 100) == 0
    assert sampling_variance(100, 1) == 1
    assert sampling_variance(100, 0) == float("inf")
    assert sampling_variance(1, 1) == 0
