"""How large the error of released counts is, and of their sums, checked by hand."""

import numpy as np
import pytest

from streamveil.mechanisms.core.records import Slots
from streamveil.pipelines.reports.accuracy import Accuracy, Turns, in_spans


def of(true, released, kept=None, length="1d", revised=None):
    true = np.array(true, float)
    edges = np.arange(len(true) + 1).astype("datetime64[D]")
    kept = true if kept is None else kept
    stderr = np.ones(true.shape)
    return Accuracy(Slots.of(length), edges, true, kept, np.array(released, float), stderr, revised)


def fortnight(released, dropped=0, **fields):
    """Two weeks and a day of two bins: ten and two a day, but the second week has twelve."""
    true = np.tile([10, 2], (15, 1))
    true[7:14, 0] = 12
    kept = true - dropped
    return of(true, kept + np.asarray(released), kept, **fields)


def test_errors_of_single_counts():
    # Errors: 10 and 0, 2 and 2, 2 and 1, 0 and 3; they sum to 20 where the truth sums to 80.
    known = of([[10, 0], [20, 10], [20, 1], [9, 10]], [[0, 0], [22, 8], [22, 0], [9, 7]])
    assert known.relative_error == 20 / 80
    assert known.absolute_error.mean() == 20 / 8
    assert known.busiest == [0, 1]
    assert known.dropped_share == 0
    assert np.isnan(known.revised_relative_error)
    assert np.isnan(of([[0]], [[1]]).relative_error)


def test_noise_fades_in_sums_and_what_is_dropped_stays():
    # Noise of +2 and -2 by turns: in a week one of them is left. One event a day is dropped.
    noise = np.array([[2, 0], [-2, 0]] * 7 + [[0, 0]])
    each, together = fortnight(noise, np.array([1, 0])).sums("shop")
    assert [(row.of, row.span) for row in each + together] == [
        *[("each of 2 shops", span) for span in ("day", "week")],
        *[("all shops together", span) for span in ("day", "week")],
    ]
    day, week = each
    # Off by 1, 3, 1, 3, ... in the first bin, and by 1 on the last day; of 194 events.
    assert day.error == (7 * 1 + 7 * 3 + 1) / 30
    assert day.share == pytest.approx(29 / 194)
    assert day.noise == pytest.approx(28 / 194)
    assert day.dropped == pytest.approx(15 / 194)
    # Seven are dropped in each week; of the noise, 2 more and then 2 fewer. The last day is out.
    assert week.true == (70 + 84 + 14 + 14) / 4
    assert week.error == (5 + 9) / 4
    assert week.noise == pytest.approx(4 / 182)
    assert week.dropped == pytest.approx(14 / 182)
    assert together[1].true == 2 * week.true
    assert together[1].share == week.share


def test_spans_are_longer_than_slots_and_there_twice():
    assert fortnight(np.zeros((15, 2), int)).spans == {"day": 1, "week": 7}
    hours = of(np.ones((50, 1)), np.ones((50, 1)), length="1h")
    assert hours.spans == {"hour": 1, "day": 24}
    assert hours.longest == ("day", 24)
    (each,) = hours.sums("bin")
    assert [row.span for row in each] == ["hour", "day"]
    few = of([[1]] * 13, [[1]] * 13)
    assert few.longest is None
    assert len(few.sums("bin")[0]) == 1


def test_sums_leave_out_what_is_left_over():
    assert in_spans(np.arange(10).reshape(5, 2), 2).tolist() == [[2, 4], [10, 12]]


def test_many_bins_are_distinguished_by_how_busy_they_are():
    counts = np.tile(np.arange(25), (2, 1))
    kinds = of(counts, counts + 1).sums("bin")
    assert [rows[0].of for rows in kinds] == [
        *("each of the 10 busiest bins", "each of the 12 rarest bins"),
        *("each of 25 bins", "all bins together"),
    ]
    assert [rows[0].true for rows in kinds] == [19.5, 5.5, 12, 300]


# From the first week to the second one bin rises by a fifth, and the other does not change.
@pytest.mark.parametrize(("shift", "same"), [(0, 1), (5, 0)])
def test_turns_that_the_releases_show(shift, same):
    noise = np.where(np.arange(15)[:, None] < 7, [shift, 0], 0)
    known = fortnight(noise)
    assert known.turns(7) == Turns(1, same, None)
    assert fortnight(noise, revised=known.true).turns(7).revised == 1
