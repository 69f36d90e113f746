"""The bias of weighted releases: learnt where there is one, none where there is none."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import NoiseSource, Population, ReleaseStream, Requirement, mechanism
from streamveil.mechanisms.adaptive.weighting import Correlation, CorrelationState, Mixed

PROPERTY = settings(max_examples=50)
DISPERSION = 0.25


def audited(beta, audits=60, error_size=0.3, seed=1):
    """Belief after audits of a stream of these true betas, shape (d,)."""
    rng = np.random.default_rng(seed)
    beta = np.array(beta)
    correlation = Correlation(len(beta), DISPERSION)
    scale = rng.uniform(100, 1000, len(beta))
    state = correlation.start(scale)
    lever = scale * np.sqrt(DISPERSION)
    deviation = error_size * 0.1 * lever
    for _ in range(audits):
        missed = beta * lever + rng.normal(0, deviation)
        correlation.learn(state, missed, scale, DISPERSION, deviation**2)
    return correlation, state, scale


# Audits find betas of each size, sign and mixture: within a seventh of the largest.
@pytest.mark.parametrize(
    "beta", [[0.6, -0.6], [1.0, 0.5, -1.2], [0.1, -0.1, 0.1, -0.1], [0.5, 0.0, 0.0, -0.5]]
)
def test_bias_is_recovered(beta):
    correlation, state, scale = audited(beta)
    belief = correlation.belief(state, scale)
    mean, variance = belief.mean, belief.variance
    np.testing.assert_allclose(mean, beta, atol=max(np.abs(beta)) / 7)
    assert (variance < 0.05).all()
    bias, doubt = correlation.bias(state, scale, DISPERSION)
    np.testing.assert_allclose(bias, mean * scale * np.sqrt(DISPERSION))
    assert (doubt > 0).all()
    # Weights spread less are less biased, and none are not.
    assert (np.abs(correlation.bias(state, scale, DISPERSION / 4)[0]) <= np.abs(bias)).all()
    even, certain = correlation.bias(state, scale, 0.0)
    assert not even.any()
    assert not certain.any()


# Where there is none, none is found (fixed seeds): that hypothesis is believed most, and what is
# left of the others is small compared with what noise of the audits would allow.
@pytest.mark.parametrize(("error_size", "most"), [(0.3, 0.01), (1.0, 0.02), (10.0, 0.15)])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_bias_is_found_where_there_is_none(error_size, most, seed):
    correlation, state, scale = audited([0.0] * 6, error_size=error_size, seed=seed)
    mean = correlation.belief(state, scale).mean
    assert state.scores.argmax() in (0, 1)  # none, or chance alone
    assert np.abs(mean).max() < most
    before = correlation.belief(correlation.start(scale), scale).risk
    after = correlation.belief(state, scale).risk
    assert after.here < 0.5 * before.here
    assert after.elsewhere < 0.05 * before.here


# A belief follows a bias that turns round.
def test_a_bias_that_turns_is_followed():
    correlation, state, scale = audited([0.6, -0.6], audits=20)
    rng = np.random.default_rng(2)
    lever = scale * np.sqrt(DISPERSION)
    for _ in range(100):
        missed = np.array([-0.6, 0.6]) * lever + rng.normal(0, 0.03 * lever)
        correlation.learn(state, missed, scale, DISPERSION, (0.03 * lever) ** 2)
    np.testing.assert_allclose(correlation.belief(state, scale).mean, [-0.6, 0.6], atol=0.1)


# An audit of a bin where hardly anybody is shows noise. What it tells of that bin is not multiplied
# with a count that later noise makes large, or the count would grow by what is added to it.
def test_a_bias_does_not_feed_itself():
    correlation = Correlation(1, 1.0)
    count = np.array([0.5])
    state = correlation.start(count)
    correlation.learn(state, np.array([-6.0]), count, 1.0, np.array([4.0]))
    for _ in range(50):
        count = 60 - correlation.bias(state, count, 0.8)[0]
    assert 60 <= count[0] < 100


# Whatever audits show, beliefs are numbers with a variance, and never less certain for an audit
# than their hypothesis allows.
@PROPERTY
@given(st.integers(1, 5), st.integers(0, 2**32))
def test_beliefs_stay_beliefs(bins, seed):
    rng = np.random.default_rng(seed)
    correlation = Correlation(bins, DISPERSION)
    state = correlation.start(rng.choice([0.5, 10.0, 1e6], bins))
    for _ in range(40):
        missed = rng.normal(0, 1, bins) * 10.0 ** rng.integers(-3, 9)
        scale = rng.choice([0.5, 10.0, 1e6], bins)
        error = rng.choice([1e-3, 1.0, 1e9], bins)
        correlation.learn(state, missed, scale, float(rng.choice([0, 1e-9, 0.2, 9])), error)
        belief = correlation.belief(state, scale)
        mean, variance = belief.mean, belief.variance
        assert np.isfinite(mean).all()
        assert (variance >= 0).all()
        bias, _ = correlation.bias(state, scale, 0.2)
        assert (-scale <= bias).all()
        assert (bias <= scale).all()
        assert not state.mean[0].any()  # the hypothesis of none
        assert np.isfinite(correlation.belief(state, scale).risk).all()


# Mixtures are kept for three scales: an audit must remove all of them.
def test_what_is_mixed_is_of_the_last_audit():
    rng = np.random.default_rng(6)
    correlation = Correlation(3, DISPERSION)
    scales = [rng.uniform(1, 100, 3) for _ in range(3)]
    state = correlation.start(scales[0])
    for scale in scales:
        for one in scales:
            correlation.belief(state, one)
        correlation.learn(state, rng.normal(0, 30, 3), scale, DISPERSION, np.ones(3))
        fresh = CorrelationState(state.mean, state.deviation, state.scores)
        for one in scales:
            belief, expected = (correlation.belief(each, one) for each in (state, fresh))
            np.testing.assert_array_equal(belief.mean, expected.mean)
            np.testing.assert_array_equal(belief.variance, expected.variance)
            assert belief.risk == expected.risk


# Those after a release are beliefs of the slots up to the next one, and those before it are kept.
def test_beliefs_are_mixed_once_a_release(monkeypatch):
    mixed, of = [], Mixed.of
    monkeypatch.setattr(Mixed, "of", lambda *given: mixed.append(given) or of(*given))
    people = Population((Requirement(40, 0.6), Requirement(60, 1.0)), np.array([900, 900]), 9)
    stream = ReleaseStream(mechanism("adaptive", people), NoiseSource(bytes(32)))
    state, random, published = stream.start(), np.random.default_rng(5), 0
    for slot in range(240):
        counts = random.poisson(60, (2, 9))
        state, release = stream.release(state, slot, counts)
        published += release.status == "published"
    audits = 240 // 60
    assert published > 2 * audits
    assert len(mixed) <= published + 2 * audits
