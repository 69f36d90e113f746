"""When to release next: the longer, the stiller the stream and the dearer a release."""

import numpy as np
import pytest

from streamveil.mechanisms import Population, Requirement
from streamveil.mechanisms.adaptive import kalman
from streamveil.mechanisms.adaptive.budget_plan import Plan
from streamveil.mechanisms.adaptive.gap_errors import GAPS, POINT, SUM, expected_error
from streamveil.mechanisms.adaptive.jumps import ALERTS, Jumps, Watch
from streamveil.mechanisms.adaptive.weighting import Choices, Risk

NONE = Risk(0.0, 0.0)
QUIET = Watch(Jumps(), 0, np.inf, 0.0, 1.0, 2, np.ones(len(ALERTS)), largest=np.inf)
UNIT = 2**40


def plan_of(epsilon, window=40, users=10_000) -> Plan:
    """Releases of one class that saves its budget up."""
    people = Population((Requirement(window, epsilon),), np.array([users]), 2)
    rate = int(epsilon * UNIT) // window

    def possible(slots):
        return Choices.of(np.array([rate * slots]), people)

    return Plan(lambda gap: possible(min(gap, window)), possible(1), possible)


def member(drift=0.0, bend=0.0, white=0.0):
    """Belief in one member alone."""
    rows = np.stack([kalman.DRIFT, kalman.BEND, kalman.WHITE])[:, :, 0].T
    rows_of = np.flatnonzero((rows == [drift, bend, white]).all(axis=1))
    assert rows_of.size == 1
    return np.eye(kalman.MEMBERS)[rows_of[0]]


def gap_of(plan, beliefs, scale=1000.0, risk=NONE, kinds=(POINT,)) -> int:
    return plan.best_gap(beliefs, np.full(2, scale), risk, QUIET, kinds).gap


# The stiller the stream, the longer the gap.
@pytest.mark.parametrize("white", [0.0, 1.0])
def test_the_gap_grows_when_the_stream_is_still(white):
    plan = plan_of(1.0)
    drifting = [gap_of(plan, member(drift=d, white=white)) for d in (10.0, 1.0, 0.1, 0.01, 0.001)]
    bending = [gap_of(plan, member(bend=b, white=white)) for b in (1e-3, 1e-4, 1e-5, 1e-6)]
    for gaps in (drifting, bending):
        assert gaps == sorted(gaps)
        assert gaps[-1] > gaps[0] or white  # releases also tell of the slot's own deviation
    assert drifting[0] < drifting[-1] / 8 or white


# The dearer a release, the longer the gap; one without noise to speak of is made in every slot.
@pytest.mark.parametrize("beliefs", [member(drift=1e-3), member(drift=1.0), member(bend=1e-4)])
def test_the_gap_is_1_when_noise_is_negligible(beliefs):
    gaps = [gap_of(plan_of(epsilon), beliefs) for epsilon in (4000.0, 100.0, 1.0, 0.05)]
    assert gaps[0] == 1
    assert gaps == sorted(gaps)
    assert gaps[-1] > 1


# No gap is longer than useful: once the budget of a window is saved, waiting only loses.
def test_no_gap_beyond_the_window():
    for epsilon in (0.01, 1.0):
        assert gap_of(plan_of(epsilon, window=5), member(drift=1e-3)) <= 5


# Bins of other sizes are planned for together: the gap lies between those of each alone, and the
# order of bins is no matter.
def test_bins_are_planned_together():
    plan, beliefs = plan_of(1.0), member(drift=0.1)
    small, large = gap_of(plan, beliefs, 10.0), gap_of(plan, beliefs, 10_000.0)
    assert large < small
    mixed = [
        plan.best_gap(beliefs, np.array(one), NONE, QUIET) for one in ([10.0, 1e4], [1e4, 10.0])
    ]
    assert mixed[0] == pytest.approx(mixed[1])
    assert large <= mixed[0][0] <= small


# The patience says how certain the curve is between releases, in parts of a release's error: what
# the table of the filters says of the gap chosen.
def test_patience_is_that_of_the_gap():
    plan, beliefs = plan_of(1.0), member(drift=0.1)
    gap, kind, patience, *_ = plan.best_gap(beliefs, np.full(3, 1024.0), NONE, QUIET)
    error = plan.error_after(kind, gap, 1024.0, NONE)
    ratios = np.full((len(GAPS), 1), error / 1024.0)
    _, curve = expected_error(kind, beliefs, ratios)
    place = int(np.flatnonzero(gap == GAPS)[0])
    assert patience == pytest.approx(float(curve[place, 0]) * 1024 / error, rel=1e-6)
    assert 0 < patience < 3


def test_error_after_falls_with_waiting():
    plan = plan_of(1.0)
    errors = [plan.error_after(POINT, since, 1000.0, NONE) for since in (1, 2, 3, 13, 40, 64, 1000)]
    assert errors == sorted(errors, reverse=True)
    assert errors[4] == errors[5] == errors[6]  # the full budget of the window
    assert errors[0] == pytest.approx(2 * 40**2, rel=1e-6)


# Without any budget in a slot there is nothing to plan.
def test_no_plan_without_budget():
    people = Population((Requirement(4, 1.0),), np.array([0]), 2)
    possible = Choices.of(np.array([UNIT]), people)
    nothing = Plan(lambda gap: possible, possible, lambda slots: possible)
    beliefs, scale = member(drift=0.1), np.full(3, 1024.0)
    assert nothing.best_gap(beliefs, scale, NONE, QUIET) is None
    assert plan_of(1.0).best_gap(beliefs, scale, NONE, QUIET) is not None


# Sums take the deviations of single slots off, and go on beyond the window; without deviations, or
# where the curve moves quickly, the last slot tells more.
def test_sums_are_planned_where_they_are_better():
    scale = np.full(3, 1000.0)
    deviating, smooth = member(drift=1e-3, white=1.0), member(drift=1e-3)
    wide, narrow = plan_of(0.3, window=120), plan_of(0.01, window=10)
    assert wide.best_gap(deviating, scale, NONE, QUIET).kind == SUM
    assert wide.best_gap(smooth, scale, NONE, QUIET).kind == POINT
    beyond = narrow.best_gap(smooth, scale, NONE, QUIET)
    assert beyond.kind == SUM
    assert beyond.gap > 10
    assert narrow.best_gap(smooth, scale, NONE, QUIET, (POINT,)).gap <= 10
    assert wide.best_gap(member(bend=1e-3), scale, NONE, QUIET).kind == POINT


# A plan that remembers its last results returns what a fresh one returns, whatever came before.
def test_plans_remember_no_other_query():
    kept, quick, slow = plan_of(1.0), member(drift=1.0), member(drift=1e-3)
    asked = [
        (beliefs, np.full(2, scale), risk, QUIET, kinds)
        for beliefs in (quick, slow)
        for scale in (10.0, 1000.0)
        for risk in (NONE, Risk(5.0, 2.0))
        for kinds in ((POINT, SUM), (SUM,))
    ]
    for query in (*asked, *asked):
        assert kept.best_gap(*query) == plan_of(1.0).best_gap(*query)
    for since in (1, 5, 1000):
        for risk in (NONE, Risk(5.0, 2.0)):
            fresh = plan_of(1.0).error_after(POINT, since, 10.0, risk)
            assert kept.error_after(POINT, since, 10.0, risk) == fresh
