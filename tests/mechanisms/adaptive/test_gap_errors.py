"""What gaps cost: the table is what the filters themselves come to."""

import numpy as np
import pytest

from streamveil.mechanisms.adaptive import gap_errors
from streamveil.mechanisms.adaptive.filter_bank import Bank
from streamveil.mechanisms.adaptive.gap_errors import GAPS, POINT, SUM, expected_error
from streamveil.mechanisms.adaptive.kalman import LAST_SLOT, MEMBERS, WHITE, present

KINDS = pytest.mark.parametrize("kind", [POINT, SUM])


def settled(kind, gap, log_ratio, releases=400):
    """The bank's own mean variance of each member's level between releases, after many."""
    bank = Bank(1.0, 1)
    state = bank.start()
    one, none, noise = np.ones(1), np.zeros(1), 2.0**log_ratio
    shares = LAST_SLOT if kind == POINT else np.full(gap, 1 / gap)
    for _ in range(releases):
        state.scale, state.elapsed = one, gap
        bank.observe(state, bank.forecast(state).mean, noise, none, shares)  # nothing jumps
    state.scale = one
    variances = []
    for state.elapsed in range(gap):
        variances.append(present(state).level_var)
    return np.mean(variances, axis=0)[:, 0]


def in_table(kind, gap, log_ratio):
    place = int(np.flatnonzero(gap == GAPS)[0])
    return gap_errors._settled()[kind, place, list(gap_errors._RATIOS).index(log_ratio)]


# What the table says of points and sums is where the filters settle, slot by slot.
@pytest.mark.many
@KINDS
@pytest.mark.parametrize(("gap", "log_ratio"), [(1, 0), (2, -12), (7, 3), (24, 5), (168, 2)])
def test_the_table_is_that_of_the_filters(kind, gap, log_ratio):
    np.testing.assert_allclose(
        in_table(kind, gap, log_ratio), settled(kind, gap, log_ratio), rtol=0.04
    )


# A sum of one slot is a release of that slot.
def test_kinds_are_the_same_at_a_gap_of_one():
    beliefs, ratios = np.full(MEMBERS, 1 / MEMBERS), np.full((len(GAPS), 2), 4.0)
    points, sums = (expected_error(kind, beliefs, ratios)[0] for kind in (POINT, SUM))
    np.testing.assert_allclose(points[0], sums[0], rtol=0.01)


# The expected error of one member is its curve's and the slot's own, less what releases tell of it.
@KINDS
def test_expected_error_of_one_member(kind):
    for member in range(MEMBERS):
        weights = np.eye(MEMBERS)[member]
        error, curve = expected_error(kind, weights, np.full((len(GAPS), 2), 4.0))
        table = gap_errors._settled()[kind, :, list(gap_errors._RATIOS).index(2), member]
        np.testing.assert_allclose(curve, np.stack([table, table], axis=1))
        white, gaps = float(WHITE[member, 0]), GAPS[:, None]
        each = white if kind == POINT else white / gaps
        explained = each**2 / (each + 4.0 + curve) / gaps
        np.testing.assert_allclose(error, curve + white - explained)


# Between the table's ratios, and beyond its ends, errors rise with the ratio.
@KINDS
def test_expected_error_rises_with_the_noise(kind):
    beliefs = np.full(MEMBERS, 1 / MEMBERS)
    ratios = 2.0 ** np.linspace(-30, 30, 301)
    error, curve = expected_error(kind, beliefs, np.tile(ratios, (len(GAPS), 1)))
    assert (np.diff(curve, axis=1) >= 0).all()
    assert (np.diff(error, axis=1) >= -1e-12).all()
    assert np.isfinite(error).all()


def test_gaps():
    assert GAPS[0] == 1
    assert (np.diff(GAPS) > 0).all()
