"""What is left out of each bin, of all classes together."""

from dataclasses import replace

import numpy as np
import pytest

from streamveil.mechanisms.presence.kept_share import KeptShare, ShareQuery
from streamveil.mechanisms.presence.left_out import SPREAD, LeftOut, _spread

QUERY = ShareQuery(120, 6, 24, 2, 4)
KEPT = np.array([400.0, 300, 200, 100])


def known(kept=50_000, near=5_000, rest=0, bins=(0.4, 0.3, 0.2, 0.1), noise=1.0, query=QUERY):
    """After some answers with so much noise: what counts, what does not and, near, by bin."""
    sums = [kept, near, rest, *(near * np.array(bins))]
    return KeptShare(query, np.array(sums), np.full(4, noise), 5)


def test_bins_are_alike_where_they_are_measured_to_be():
    found = LeftOut.of({0: known()}, [1000], KEPT)
    np.testing.assert_allclose(found.odds, 0.1, rtol=0.02)
    assert found.all == pytest.approx(0.1, rel=0.02)
    assert np.sqrt(found.variances).max() < 0.03  # of which some is what bins may still differ by
    counts, variances = found.made_up([100, 0, 100, 100], [4.0, 4.0, 4.0, np.nan])
    np.testing.assert_allclose(counts, [110, 0, 110, 110], rtol=0.01)
    assert variances[1] == pytest.approx(4 * 1.1**2, rel=0.01)
    assert variances[0] > variances[1]
    assert np.isnan(variances[3])


def test_a_bin_that_those_prefer_who_are_left_out_has_odds_of_its_own():
    bins = np.array([0.1, 0.3, 0.2, 0.4])
    found = LeftOut.of({0: known(bins=bins)}, [1000], KEPT)
    np.testing.assert_allclose(found.odds, 0.1 * bins / (KEPT / 1000), rtol=0.05)
    assert found.odds @ KEPT == pytest.approx(100, rel=0.02)  # all together stay what they are


@pytest.mark.parametrize("noise", [1e9, 1e14])
def test_where_noise_hides_bins_they_are_alike_and_that_is_doubted(noise):
    one = replace(known(bins=(0.1, 0.3, 0.2, 0.4)), variances=np.array([1, 1, 1, noise]))
    found = LeftOut.of({0: one}, [1000], KEPT)
    np.testing.assert_allclose(found.odds, 0.1, rtol=0.05)
    doubt = np.sqrt(found.variances - found.variance) / found.all
    assert (doubt > 0.9 * SPREAD).all()


def test_of_many_bins_it_is_the_common_share():
    many = np.full(5000, 1.0)
    one = known(query=replace(QUERY, bins=1), bins=())
    found = LeftOut.of({0: one}, [1000], many)
    assert (found.odds == found.all).all()
    assert len(set(found.variances)) == 1
    assert LeftOut.of({0: one}, [1000], np.ones(1)).variances[0] == found.variance


def test_nothing_released_yet():
    found = LeftOut.of({0: KeptShare.unknown(QUERY)}, [1000], np.zeros(4))
    assert (found.odds == found.all).all()
    assert found.all > 0


def test_classes_weigh_what_they_have_of_the_events():
    """Users of the second class are few, come often, and are left out often."""
    often = known(kept=50_000, near=25_000)
    rarely = known(kept=50_000, near=2_500)
    found = LeftOut.of({0: rarely, 1: often}, [9000, 1000], KEPT)
    assert found.all == pytest.approx(27_500 / 100_000, rel=0.02)
    assert np.sqrt(found.variance) < 0.02


def test_a_class_without_a_limit_weighs_what_is_likely_and_that_is_doubted():
    found = LeftOut.of({0: known(near=25_000)}, [1000, 1000], KEPT)
    assert found.all == pytest.approx(0.25, rel=0.05)
    assert 0.1 < np.sqrt(found.variance) < 0.4
    before = LeftOut.of({0: KeptShare.unknown(QUERY)}, [1000, 1000], KEPT)
    assert before.all == pytest.approx(KeptShare.unknown(QUERY).odds().all / 2)
    assert LeftOut.of({0: KeptShare.unknown(QUERY)}, [0, 0], KEPT).all == 0


def test_the_spread_of_bins_is_learnt():
    random = np.random.default_rng(1)
    for spread in (0.05, 0.5, 1.5):
        noise = random.uniform(0.01, 0.3, 300)
        differ = spread * random.standard_normal(300) + np.sqrt(noise) * random.standard_normal(300)
        # Flakiness: the key is fixed.
        assert np.sqrt(_spread(differ, noise)) == pytest.approx(spread, rel=0.25, abs=0.1)
    nothing = np.zeros(0)
    assert _spread(nothing, nothing) == pytest.approx(SPREAD**2)
