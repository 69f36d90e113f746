"""Every window and public key has its row, with the records that are its own."""

from collections import defaultdict

import pytest

from streamveil.engine.stream.noise_keys import GivenKey
from streamveil.mechanisms import ConfigurationError, Slots
from streamveil.transforms import (
    CollectPerRecordCount,
    PerRecordCount,
    PerRecordDistinctCount,
    PerRecordMax,
    PerRecordRunningTotal,
    PerRecordSum,
    RotatedKey,
)

pytestmark = pytest.mark.slow  # whole runs, pass after pass

KEY = bytes(range(32))
KEYS = ("a", "b", "c")
# By how much an estimate may be off: a maximum lies between the two largest values.
OFF = {"count": 0, "sum": 1, "max": 30, "distinct": 0}
STATISTICS = {
    "count": (PerRecordCount, {}, len),
    "sum": (PerRecordSum, {"value": "amount", "value_max": 200.0}, sum),
    "max": (PerRecordMax, {"value": "amount", "value_max": 200.0}, lambda v: max(v, default=0)),
    "distinct": (
        PerRecordDistinctCount,
        {"value": "amount", "value_max": 200.0},
        lambda v: len(set(v)),
    ),
}


def true(rows, of, windows, keys=KEYS):
    """What of every window (first pane, last pane) and key there is, by brute force."""
    found = defaultdict(list)
    for amount, key, hour in rows:
        for window in windows:
            if window[0] <= hour <= window[1]:
                found[key, window].append(amount)
    return {(key, w[0], w[1] + 1): of(found[key, w]) for key in keys for w in windows}


def close(kind, found, expected):
    assert found.keys() == expected.keys()
    for window, value in expected.items():
        if kind != "max" or value:  # the maximum of no record may be anything
            assert abs(found[window] - value) <= OFF[kind], window


def records_for(kind, records):
    """Some records; values differ for a maximum, as draws know no more than a rank."""
    rows = records.some()
    if kind == "max":
        rows = [((7 * i % 400 + 1) / 2, key, hour) for i, (_, key, hour) in enumerate(rows)]
    return rows


@pytest.mark.parametrize("kind", STATISTICS)
def test_fixed_windows_by_key(release, records, kind):
    transform, options, of = STATISTICS[kind]
    rows = records_for(kind, records)
    made = transform(
        records.exact, key="key", keys=KEYS, noise_key=KEY, **options, **records.windows()
    )
    ran = release(made, [records.batch(rows[:150]), records.batch(rows[150:])])
    assert {row.statistic for row in ran.rows} == {kind}
    close(kind, ran.whole, true(rows, of, [(t, t) for t in range(8)]))


@pytest.mark.parametrize("kind", ["sum", "max"])
def test_sliding_windows(release, records, kind):
    transform, options, of = STATISTICS[kind]
    rows = records_for(kind, records)
    made = transform(
        records.exact,
        key="key",
        keys=KEYS,
        noise_key=KEY,
        **options,
        **records.windows(sliding=3),
    )
    ran = release(made, [records.batch(rows)])
    close(kind, ran.whole, true(rows, of, [(t, t + 2) for t in range(6)]))


@pytest.mark.parametrize("kind", ["count", "sum"])
def test_running_totals(release, records, kind):
    rows = records.some()
    value, of = {"count": ({}, len), "sum": (STATISTICS["sum"][1], sum)}[kind]
    made = PerRecordRunningTotal(
        records.exact,
        key="key",
        keys=KEYS,
        noise_key=KEY,
        **value,
        **records.windows(first=1),
    )
    ran = release(made, [records.batch(rows)])
    assert {row.statistic for row in ran.rows} == {f"running_{kind}"}
    close(kind, ran.whole, true(rows, of, [(1, t) for t in range(1, 8)]))


def test_one_window_of_all_times(release, records):
    rows = records.some()
    (row,) = release(PerRecordCount(records.exact), [records.batch(rows)]).rows
    assert (row.key, row.start, row.end) == (None, None, None)
    assert round(row.estimate) == len(rows)
    empty = release(PerRecordSum(records.noisy, "amount", key="key", keys=KEYS), [])
    assert sorted(row.key for row in empty.rows) == ["a", "b", "c"]


def test_how_records_are_batched_does_not_matter(release_on, records, runner):
    rows = records.some()
    options = {"key": "key", "keys": KEYS, "noise_key": KEY, **records.windows(sliding=2)}

    def figures(batches):
        made = PerRecordSum(records.noisy, "amount", **options)
        return release_on(runner, made, [records.batch(batch) for batch in batches]).figures

    once = figures([rows])
    assert figures([rows[300:], [], rows[:1], rows[1:300][::-1]]) == once
    changed = figures([rows[:-1]])
    assert changed != once
    # The records of one hour have noise of their own: others are not touched by a change.
    hour = rows[-1][2]
    touched = {row[:2] for row in set(changed) ^ set(once)}
    assert touched <= {(rows[-1][1], hour - 1), (rows[-1][1], hour)}


def test_noise_is_of_the_key_and_of_all_that_shapes_the_release(release, records):
    rows = [(a, key, hour) for a, _, hour in records.some(100) for key in "ab"]
    batches = [records.batch(rows)]

    def figures(**options):
        options = {"key": "key", "keys": ("a", "b"), "noise_key": KEY, **options}
        made = PerRecordCount(records.noisy, **{**records.windows(last=2), **options})
        return [figures for *_, figures in release(made, batches).figures]

    once = figures()
    assert figures() == once
    assert not set(once[:3]) & set(once[3:])  # of two keys with the same records
    for other in (
        {"noise_key": bytes(32)},
        {"last_slot": 3},
        {"beta": 0.2},
        {"max_records_per_user": 2},
    ):
        assert not set(figures(**other)) & set(once)


def test_records_of_one_user_share_a_budget(release, records):
    batches = [records.batch(records.some(2000))]

    def row(m):
        made = PerRecordCount(records.noisy, max_records_per_user=m, noise_key=KEY)
        return release(made, batches).rows[0]

    assert row(4).stderr == pytest.approx(4 * row(1).stderr, rel=0.01)


def test_slots_may_start_anywhere(release, records):
    made = PerRecordCount(
        records.exact,
        **records.windows(first=-3, last=-2, slots=Slots.of("2h", "1970-01-01T05:00")),
    )
    ran = release(made, [records.batch([(1.0, "a", h) for h in (-2, -1, 0, 0.5, 1, 2.9, 3)])])
    assert ran.whole == {(None, -1, 1): 3, (None, 1, 3): 2}


@pytest.mark.parametrize("transform", [PerRecordMax, PerRecordDistinctCount])
def test_neither_does_it_for_the_framework(release, records, transform):
    rows = records.some()

    def figures(batches):
        made = transform(records.noisy, "amount", noise_key=KEY)
        return release(made, [records.batch(batch) for batch in batches]).figures

    assert figures([rows]) == figures([rows[300:], rows[:1], rows[1:300][::-1]])


# ---- another noise key from a pane on ------------------------------------------------------------


@pytest.mark.parametrize("kind", ["count", "sliding sum", "running"])
def test_panes_before_a_new_key_keep_the_old_one(release_on, records, runner, kind):
    transform, options = {
        "count": (PerRecordCount, {}),
        "sliding sum": (PerRecordSum, {"value": "amount", "sliding": 2}),
        "running": (PerRecordRunningTotal, {}),
    }[kind]
    options |= records.windows(first=2, last=9)

    def found(key):
        made = transform(records.noisy, noise_key=key, **options)
        rows = release_on(runner, made, [records.batch(records.some(hours=9))]).rows
        return [row.estimate for row in sorted(rows, key=lambda row: row.end)]

    old, new = found(KEY), found(RotatedKey(GivenKey(KEY), ((6, GivenKey(bytes(32))),)))
    before = 3 if kind == "sliding sum" else 4
    assert len(old) == len(new) == before + 4
    assert old[:before] == new[:before]
    assert all(one != other for one, other in zip(old[before:], new[before:], strict=True))


def test_a_new_key_needs_panes(records):
    key = RotatedKey(GivenKey(KEY), ((6, GivenKey(bytes(32))),))
    with pytest.raises(ConfigurationError, match=r"no slots.*--slot"):
        PerRecordCount(records.noisy, noise_key=key)
    with pytest.raises(ConfigurationError, match="devices report once"):
        CollectPerRecordCount(records.noisy, device="key", noise_key=key)
