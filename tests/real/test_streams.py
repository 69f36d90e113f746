"""The streams are what they say, the same each time, and their truth is computed rightly."""

import numpy as np
import pandas as pd
import pytest

from tests.real.streams import STREAMS
from tests.real.truth import starts, truth

UTC = {"slot": "1d", "zone": "UTC", "first": "2024-05-01"}


@pytest.fixture(scope="module")
def drawn():
    return {name: stream.draw(np.random.default_rng(0)) for name, stream in STREAMS.items()}


@pytest.mark.slow
def test_a_stream_is_a_function_of_its_seed(drawn):
    assert len(STREAMS) >= 10
    for name, stream in STREAMS.items():
        again, other = (stream.draw(np.random.default_rng(seed)) for seed in (0, 1))
        pd.testing.assert_frame_equal(drawn[name], again)
        assert not drawn[name].equals(other)


def test_events_lie_in_the_days_and_users_of_their_stream(drawn):
    for name, stream in STREAMS.items():
        events = drawn[name]
        first, end = (pd.Timestamp(day, tz=stream.zone) for day in stream.span)
        assert first <= events.time.min()
        assert events.time.max() < end
        assert events.user.nunique() <= stream.users
        assert 1000 < len(events) < 30_000


def test_shapes_of_public_files(drawn):
    by_user = {name: events.user.value_counts() for name, events in drawn.items()}
    heavy = by_user["devices"]
    assert heavy.iloc[: len(heavy) // 10].sum() > 0.4 * heavy.sum()
    assert by_user["ratings"].max() == by_user["surveys"].max() == 1
    riders = drawn["riders"].groupby(drawn["riders"].time.dt.dayofweek).size()
    assert riders[[5, 6]].mean() < 0.5 * riders[:5].mean()
    night = drawn["stops"].time.dt.hour < 6
    assert night.mean() < 0.01
    assert 0.03 < drawn["payments"].amount.isna().mean() < 0.07
    amounts = drawn["payments"].amount
    assert amounts.max() > 20 * amounts.median()
    assert drawn["logins"].ok.dtype == bool
    shops = drawn["shops"].shop.value_counts()
    assert shops.iloc[0] > 10 * shops.iloc[-1]
    daily = drawn["alarms"].groupby(drawn["alarms"].time.dt.floor("D")).size()
    assert daily.iloc[28:].median() > 3 * daily.iloc[:28].median()
    assert drawn["issues"].label.nunique() > 4 * len(drawn["issues"]) / 42


def test_slots_of_a_zone_have_23_hours_where_clocks_go_forward():
    times = pd.Series(pd.date_range("2024-03-30T12:00Z", periods=60, freq="h"))
    found = starts(times, "1d", "Europe/Berlin", "2024-03-30").drop_duplicates().tolist()
    assert [one.isoformat() for one in found] == [
        *("2024-03-29T23:00:00+00:00", "2024-03-30T23:00:00+00:00", "2024-03-31T22:00:00+00:00"),
        "2024-04-01T22:00:00+00:00",
    ]


def test_truth_of_a_few_events():
    events = pd.DataFrame(
        {
            "user": ["a", "b", "c", "a", "d"],
            "time": pd.to_datetime(["2024-05-01T03:00Z"] * 3 + ["2024-05-02T01:00Z"] * 2),
            "bin": ["x", "y", "x", "x", "z"],
            "number": [1.0, 2.0, np.nan, 5.0, 6.0],
        }
    )

    def found(**query):
        rows = truth(events, query, UTC)
        return {(r.start.day, r.key, r.statistic, r.level): r.true for r in rows.itertuples()}

    assert found(by="bin", levels=["all"]) == {
        **{(1, "x", "count", 0): 2, (1, "y", "count", 0): 1, (1, "all", "count", 1): 3},
        **{(2, "x", "count", 0): 1, (2, "z", "count", 0): 1, (2, "all", "count", 1): 2},
    }
    sums = found(statistic="sum", of="number")
    assert sums == {(1, "all", "sum", 0): 3, (2, "all", "sum", 0): 11}
    assert found(where={"bin": "x"}, statistic="mean", of="number") == {
        (1, "all", "mean", 0): 1,
        (2, "all", "mean", 0): 5,
    }
    assert found(statistic="quantiles", of="number", quantiles=[0.5])[2, "all", "p50", 0] == 5


def test_truth_keeps_some_events_of_a_user():
    events = pd.DataFrame(
        {"user": ["a"] * 5 + ["b"], "time": pd.to_datetime(["2024-05-01T03:00Z"] * 6)}
    )
    assert truth(events, {"max_contributions": 4}, UTC).true.tolist() == [5]
    assert truth(events, {"statistic": "distinct"}, UTC).true.tolist() == [2]
    with pytest.raises(AssertionError):
        truth(events.assign(bin="x"), {"by": "bin"}, UTC)
