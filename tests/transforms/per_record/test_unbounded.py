"""Streams that never end: the rows of a bounded input, each as its window closes."""

import pytest

from streamveil.mechanisms import ConfigurationError
from streamveil.transforms import (
    PerRecordCount,
    PerRecordMax,
    PerRecordRunningTotal,
    PerRecordSum,
    in_time,
)

pytestmark = pytest.mark.slow  # whole runs, pass after pass

KEY = bytes(range(32))
KINDS = {
    "sliding sum": lambda budget, **options: PerRecordSum(budget, "amount", sliding=3, **options),
    "sliding max": lambda budget, **options: PerRecordMax(budget, "amount", sliding=2, **options),
    "running": lambda budget, **options: PerRecordRunningTotal(budget, "amount", **options),
}


def keyed(records, **options):
    return {"key": "key", "keys": ("a", "b"), "noise_key": KEY, **records.windows(**options)}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_a_bounded_input(release, release_stream, records, kind):
    rows = records.some(60)
    by_hour = [[row for row in rows if row[2] == hour] for hour in range(6)]
    bounded = release(
        KINDS[kind](records.noisy, **keyed(records, last=6)),
        [records.batch(rows)],
    )
    transform = KINDS[kind](records.noisy, **keyed(records, last=6))
    line = records.timeline(transform).records(*by_hour[0], *by_hour[1]).records(*by_hour[5])
    line.advance(1.5).records(*by_hour[2][:3]).records(*by_hour[2][3:], *by_hour[4]).advance(2.5)
    line.records(*by_hour[3]).advance(9)  # the watermark jumps over some panes
    ran = release_stream(transform, line)
    assert ran.figures == bounded.figures
    for key in "ab":
        starts = [row.end for row in ran.rows if row.key == key]
        assert starts == sorted(starts)


def test_quiet_panes_and_late_records(release_stream, records):
    transform = PerRecordCount(records.exact, **keyed(records, first=None, last=None))
    line = records.timeline(transform, start=2).records((1.0, "a", 2), (1.0, "a", 0))
    line.advance(3.5).records((1.0, "a", 2), (1.0, "b", 3), (1.0, "a", 900)).advance(5)
    line.records((1.0, "b", 3), (1.0, "b", 2.5)).advance(6)
    ran = release_stream(transform, line)
    expected = {(key, hour, hour + 1): 0 for key in "ab" for hour in range(2, 7)}
    assert ran.whole == {**expected, ("a", 2, 3): 1, ("b", 3, 4): 1}


def test_allowed_lateness(release_stream, records):
    transform = PerRecordCount(records.exact, allowed_lateness="30m", **keyed(records, last=1))
    line = records.timeline(transform).advance(1.25).records((1.0, "a", 0)).advance(1.75)
    ran = release_stream(transform, line.records((1.0, "a", 0), (1.0, "b", 1)).advance(3))
    assert ran.whole == {("a", 0, 1): 1, ("b", 0, 1): 0, ("a", 1, 2): 0, ("b", 1, 2): 1}


def test_records_do_not_change_what_is_released_when(release_stream, records):
    def rows(*some):
        transform = PerRecordSum(records.exact, "amount", value_max=9.0, **keyed(records, last=3))
        line = records.timeline(transform)
        for row, after in zip(some, (0.5, 2.5, 3.5), strict=False):
            line.records(row).advance(after)
        ran = release_stream(transform, line.advance(8))
        return [[row.start for row in ran.rows if row.key == key] for key in "ab"]

    assert rows() == rows((1.0, "b", 1), (1.0, "a", 0), (2.0, "z", 9))


def test_a_window_of_all_times_would_never_close(release_stream, records):
    transform = PerRecordCount(records.exact)
    with pytest.raises(ConfigurationError, match=r"unbounded.*--slot"):
        release_stream(transform, records.timeline(transform))


def test_bad_records_leave_no_trace(release_stream, records, monkeypatch):
    monkeypatch.setattr(in_time._Kept, "now", 1_000_000)  # parts of slots wait no time
    rows = records.some(40, hours=2)
    bad = [
        (float("nan"), "a", 1),
        (None, "a", 1),
        (-1.0, "b", 1),
        (201.0, "b", 1),
        (2.0, None, 1),
        (2.0, "other", 1),
        (2.0, "a", None),
        (2.0, "a", -900),
        (2.0, "a", 0),  # late
    ]

    def observed(*more):
        transform = PerRecordSum(records.noisy, "amount", **keyed(records, last=3))
        line = records.timeline(transform).records(*rows).advance(1.5).records(rows[0], *more)
        ran = release_stream(transform, line.advance(5))
        return ran.rows, str(ran.metrics.query())

    assert observed(*bad) == observed()
