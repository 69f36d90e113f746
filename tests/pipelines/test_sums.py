"""Released counts added up: how far the sums are off, checked by hand."""

import numpy as np
import pytest

from streamveil.mechanisms.core.records import Revised, Revision
from streamveil.pipelines.sums import Turns, all_sums, in_spans, longest, spans, turns
from tests.pipelines.test_report import make


def fortnight(released, counted=None, **fields):
    """Two weeks and a day of two bins: ten and two a day, but the second week has twelve."""
    true = np.tile([10, 2], (15, 1))
    true[7:14, 0] = 12
    counted = true if counted is None else true - counted
    return make(true, counted + np.asarray(released), counted=counted, **fields)


def test_noise_fades_in_sums_and_what_does_not_count_stays():
    # Noise of +2 and -2 by turns: in a week one of them is left. One event a day does not count.
    noise = np.array([[2, 0], [-2, 0]] * 7 + [[0, 0]])
    each, together = all_sums(fortnight(noise, counted=np.array([1, 0]), bin_name="shop"))
    assert [(row.of, row.span) for row in each + together] == [
        *[("each of 2 shops", span) for span in ("day", "week")],
        *[("all shops together", span) for span in ("day", "week")],
    ]
    day, week = each
    # Off by 1, 3, 1, 3, ... in the first bin, and by 1 on the last day; of 194 events.
    assert day.error == (7 * 1 + 7 * 3 + 1) / 30
    assert day.share == pytest.approx(29 / 194)
    assert day.noise == pytest.approx(28 / 194)
    assert day.missing == pytest.approx(15 / 194)
    # Seven do not count in each week; of the noise, 2 more and then 2 fewer. The last day is out.
    assert week.true == (70 + 84 + 14 + 14) / 4
    assert week.error == (5 + 9) / 4
    assert week.noise == pytest.approx(4 / 182)
    assert week.missing == pytest.approx(14 / 182)
    assert together[1].true == 2 * week.true
    assert together[1].share == week.share


def test_spans_are_longer_than_slots_and_there_twice():
    assert spans(fortnight(np.zeros((15, 2), int))) == {"day": 1, "week": 7}
    hours = make(np.ones((50, 1), int), np.ones((50, 1), int), length="1h")
    assert spans(hours) == {"hour": 1, "day": 24}
    assert longest(hours) == ("day", 24)
    (each,) = all_sums(hours)
    assert [row.span for row in each] == ["hour", "day"]
    few = make([[1]] * 13, [[1]] * 13)
    assert longest(few) is None
    assert len(all_sums(few)[0]) == 1


def test_sums_leave_out_what_is_left_over():
    assert in_spans(np.arange(10).reshape(5, 2), 2).tolist() == [[2, 4], [10, 12]]


def test_many_bins_are_told_apart_by_how_busy_they_are():
    counts = np.tile(np.arange(25), (2, 1))
    kinds = all_sums(make(counts, counts + 1))
    assert [rows[0].of for rows in kinds] == [
        *("each of the 10 busiest bins", "each of the 12 rarest bins"),
        *("each of 25 bins", "all bins together"),
    ]
    assert [rows[0].true for rows in kinds] == [19.5, 5.5, 12, 300]


# From the first week to the second one bin rises by a fifth, and the other does not change.
@pytest.mark.parametrize(("shift", "same"), [(0, 1), (5, 0)])
def test_turns_that_the_releases_show(shift, same):
    report = fortnight(np.where(np.arange(15)[:, None] < 7, [shift, 0], 0))
    assert turns(report, 7) == Turns(1, same, None)
    revised = [
        Revision.of(Revised(t, counts, np.ones(2)), min(t + 1, 14), report.slots, "m")
        for t, counts in enumerate(report.true_counts)
    ]
    object.__setattr__(report, "revisions", revised)
    assert turns(report, 7).revised == 1
