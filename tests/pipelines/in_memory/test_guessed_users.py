"""Without a list of users their number is a guess, which bounds nothing that is released."""

import logging

import numpy as np
import pandas as pd
import pytest

import streamveil as sv

USERS = 800
GUESSES = [(1, 4, 80), (1, 4, 8000), (1, 4), "1,4"]
NAMED = "about 800 users or more in a slot, but default_requirement names 80:"


@pytest.fixture(scope="module")
def events():
    """One event of each of 800 users."""
    random = np.random.default_rng(1)
    day = pd.Timestamp("2024-01-01", tz="UTC")
    return pd.DataFrame(
        {
            "user": [f"u{i}" for i in range(USERS)],
            "kind": random.choice(["f", "m"], USERS),
            "one": 1.0,
            "time": day + pd.to_timedelta(random.uniform(0, 24, USERS), "h"),
        }
    )


def warnings(caplog):
    return [one.message for one in caplog.records if one.levelno >= logging.WARNING]


@pytest.mark.parametrize("guess", GUESSES)
def test_releases_are_not_cut_off_at_a_guess(events, guess, caplog):
    found = sv.release(
        events,
        user="user",
        value="kind",
        time="time",
        slot="1d",
        domain=["f", "m"],
        run=sv.RunOptions(default_requirement=guess),
    )
    truth = events.groupby("kind").size().tolist()
    rows = found.to_pandas()
    assert (np.abs(rows["value"] - truth) < 10).all()
    assert (rows["high"] - rows["value"] < 10).all()
    assert ("names 80:" in found.text) == any(NAMED in one for one in warnings(caplog))
    assert ("names 80:" in found.text) == (guess == GUESSES[0])


@pytest.mark.parametrize("guess", GUESSES)
def test_answers_are_not_cut_off_at_a_guess(events, guess, caplog):
    queries = [
        {"name": "users", "statistic": "distinct"},
        {"name": "events"},
        {"name": "sum", "statistic": "sum", "of": "one", "bounds": [0, 1]},
        {"name": "kinds", "by": "kind", "keys": ["f", "m"], "levels": ["all"]},
    ]
    found = sv.release(
        events,
        {
            "slot": "1d",
            "queries": [{**one, "share": 0.25} for one in queries],
        },
        run=sv.RunOptions(default_requirement=guess),
        user="user",
        time="time",
    )
    for name in ("users", "events", "sum"):
        row = found[name].to_pandas().iloc[0]
        assert abs(row["value"] - USERS) < 30
        assert abs(row["high"] - row["value"]) < 30
    kinds = found["kinds"].to_pandas()
    assert abs(kinds[kinds.level == 0]["value"].sum() - USERS) < 60
    assert [NAMED in one for one in warnings(caplog)].count(True) == (guess == GUESSES[0])
    assert ("names 80:" in found.text) == (guess == GUESSES[0])


def test_a_full_table_bounds_counts(events):
    """Of 800 users one half is in the table, and the rest is not counted."""
    known = dict.fromkeys(events["user"][:400], (1, 0.05))
    found = sv.release(
        events.iloc[:400],
        user="user",
        value="kind",
        time="time",
        slot="1d",
        domain=["f", "m"],
        requirements=known,
    )
    assert max(found["count"][0].counts) <= 400
