"""Test mode of `sv.release`: exact statistics of the kept events, marked wherever they are."""

import dataclasses
import inspect
import logging
import pickle
from collections import Counter

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import streamveil as sv
from streamveil.engine.stream.histogram_plan import HistogramPlan
from streamveil.engine.stream.query_plan import QueryPlan
from streamveil.mechanisms import INFINITE_MECHANISMS, MECHANISMS
from streamveil.mechanisms.core.records import NO_NOISE, NOT_PRIVATE, TEST
from streamveil.mechanisms.registry import REGISTRY
from streamveil.pipelines.options.command_table import COMMANDS
from streamveil.transforms import PrivateQueries
from streamveil.transforms.release_plan import PrivateAnswers, PrivateHistograms

TESTING = sv.RunOptions(test_mode=True)
PLACES = ["cafe", "park", "pier"]
DRAW = np.random.default_rng(7)
EVENTS = pd.DataFrame(
    {
        "user": [f"u{n}" for n in DRAW.integers(60, size=600)],
        "place": DRAW.choice([*PLACES, "moon"], 600, p=[0.5, 0.3, 0.15, 0.05]),
        "kind": DRAW.choice(["car", "bus"], 600),
        "speed": DRAW.uniform(5, 55, 600),
        "time": [
            f"2024-05-0{d}T{h:02}:00:00Z" for d, h in DRAW.integers([1, 0], [5, 24], (600, 2))
        ],
    }
)
KNOWN = EVENTS[EVENTS["place"] != "moon"]
ASKED = {"user": "user", "time": "time", "start": "2024-05-01", "end": "2024-05-05"}
BUDGET = {"budget": "1/3d"}
VISITS = sv.count("visits", by="place", keys=PLACES, max_contributions=100)


def exact(*queries, **more):
    given = {"slot": "1d", **ASKED, **BUDGET, "run": TESTING, **more}
    return sv.release(EVENTS, *queries, **given)


def values(result, name, statistic=None):
    """Those of a query by day and key, of slots alone."""
    table = result[name].to_pandas()
    if statistic is not None:
        table = table[table["statistic"] == statistic]
    return {(f"{row.start:%Y-%m-%d}", row.key): row.value for row in table.itertuples(index=False)}


def by_day(events, figure):
    """Brute force: a figure of the events of each day."""
    days = events.groupby(events["time"].str[:10])
    return {(day, "all"): figure(some) for day, some in days}


def test_a_count_is_exact():
    result = exact(VISITS)
    expected = Counter(zip(KNOWN["time"].str[:10], KNOWN["place"], strict=True))
    assert values(result, "visits") == expected
    table = result["visits"].to_pandas()
    assert (table[["low", "high"]].to_numpy() == table[["value"]].to_numpy()).all()
    assert set(table["stderr"]) == {0.0}


def test_contribution_bounding_and_requirements_stay():
    """One event of each user counts in a slot, of those alone who are in the table."""
    table = {f"u{n}": (3, 1.0) for n in range(45)}
    once = sv.count("visits", by="place", keys=PLACES)
    result = exact(once, requirements=table, budget=None, run=TESTING)
    known = KNOWN[KNOWN["user"].isin(table)]
    expected = known.groupby(known["time"].str[:10])["user"].nunique()
    assert result.to_pandas().groupby("slot")["value"].sum().tolist() == expected.tolist()
    assert result.summary["rejected"]["no requirement"] == (~KNOWN["user"].isin(table)).sum()


@pytest.mark.parametrize(
    ("query", "figure", "near"),
    [
        (sv.count("n", max_contributions=100), len, 0.0),
        (
            sv.count("n", where={"kind": "car"}, max_contributions=100),
            lambda some: (some["kind"] == "car").sum(),
            0.0,
        ),
        (sv.distinct("n"), lambda some: some["user"].nunique(), 0.0),
        # Numbers are rounded to thousandths of the range, as without test mode.
        (
            sv.sum("n", of="speed", bounds=(10, 50), max_contributions=100),
            lambda some: some["speed"].clip(10, 50).sum(),
            3.0,
        ),
        (
            sv.mean("n", of="speed", bounds=(10, 50), max_contributions=100),
            lambda some: some["speed"].clip(10, 50).mean(),
            0.04,
        ),
        (
            sv.variance("n", of="speed", bounds=(10, 50), max_contributions=100),
            lambda some: some["speed"].clip(10, 50).var(ddof=0),
            3.0,
        ),
        (
            sv.quantiles(
                "n",
                of="speed",
                edges=list(range(0, 61, 2)),
                quantiles=[0.5],
                max_contributions=100,
            ),
            lambda some: some["speed"].quantile(0.5),
            2.0,
        ),
    ],
    ids=["count", "condition", "distinct", "sum", "mean", "variance", "quantiles"],
)
def test_each_statistic_is_that_of_the_events(query, figure, near):
    # Beside another query, so that all of them go the way of a query set.
    result = exact(query, sv.count("other"))
    found, expected = values(result, "n"), by_day(EVENTS, figure)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, abs=near + 1e-9)


def test_the_largest_keys_groups_and_rollups_add_up():
    top = sv.top("top", by="place", keys=PLACES, k=1, max_contributions=100)
    levels = sv.count(
        "levels",
        by="place",
        keys=PLACES,
        levels=["all"],
        rollups=["2d"],
        max_contributions=100,
    )
    result = exact(top, levels)
    counts = Counter(zip(KNOWN["time"].str[:10], KNOWN["place"], strict=True))
    assert values(result, "top") == counts
    ranks = result["top"].to_pandas()
    assert ranks[ranks["rank"] == 1]["key"].tolist() == ["cafe"] * 4
    table = result["levels"].to_pandas()
    days, longer = (table[table["length"] == length] for length in ("1d", "2d"))
    total = days[days["key"] == "all"]["value"].tolist()
    assert total == KNOWN.groupby(KNOWN["time"].str[:10]).size().tolist()
    assert longer[longer["key"] == "all"]["value"].sum() == len(KNOWN)
    assert set(longer["status"]) == {TEST}
    assert set(longer["stderr"]) == {0.0}


def test_bounds_are_chosen_without_noise_of_few_events():
    few = EVENTS.head(5).assign(speed=[3.0, 4.0, 5.0, 6.0, 7.0], time="2024-05-01")
    speed = sv.mean("speed", of="speed", bounds="auto", max_contributions=5)
    for _ in range(3):
        result = sv.release(few, speed, slot="1d", user="user", time="time", **BUDGET, run=TESTING)
        assert result.summary["queries"]["speed"]["bounds"] == [2.0, 8.0]
        assert result["speed"][0].values[0, 0] == pytest.approx(5.0, abs=0.01)
    assert result.ledger["spent_in_window"].to_pylist() == [0.0]


@pytest.mark.parametrize("max_slots", [1, "auto"])
def test_participation_limits_stay_and_counts_are_not_scaled(max_slots):
    days = pd.date_range("2024-05-01", periods=40, freq="D", tz="UTC")
    rows = pd.DataFrame({"user": "u1", "place": "cafe", "time": days})
    result = sv.release(
        rows,
        VISITS,
        **{"user": "user", "time": "time", "slot": "1d", "budget": "1/20d"},
        max_slots=max_slots,
        run=TESTING,
    )
    summary = result.summary
    assert result.to_pandas()["value"].sum() == summary["kept"]
    assert summary["kept"] + summary["beyond_limit"] == 40
    # The look sees that the user is there in all slots.
    assert (summary["beyond_limit"] > 20) == (max_slots == 1)


def test_participation_limits_of_queries_stay_and_nothing_is_scaled():
    days = pd.date_range("2024-05-01", periods=40, freq="D", tz="UTC")
    rows = pd.DataFrame({"user": "u1", "place": "cafe", "n": 4.0, "time": days})
    total = sv.sum("total", of="n", bounds=(0, 8), max_contributions=9)
    result = sv.release(
        rows,
        *(VISITS, total),
        **{"user": "user", "time": "time", "slot": "1d", "budget": "1/20d"},
        max_slots=1,
        run=TESTING,
    )
    counts = values(result, "visits")
    kept = [counts[f"{day:%Y-%m-%d}", "cafe"] for day in days]
    assert 0 < sum(kept) < 20
    assert sum(kept) == result.summary["queries"]["visits"]["counted"]
    assert set(kept) == {0.0, 1.0}
    assert {round(value) for value in values(result, "total").values()} == {0, 4}
    assert set(result.to_pandas()["status"]) == {TEST}
    assert not result.ledger.to_pandas()[["epsilon", "spent", "spent_in_window"]].to_numpy().any()


def test_requirements_that_change_and_budgets_of_a_life():
    changes = pd.DataFrame(
        {
            "user": ["u1", "u2"],
            "time": ["2024-05-02", "2024-05-03"],
            **dict.fromkeys(("window_backward", "window_forward"), 2),
            **dict.fromkeys(("epsilon_backward", "epsilon_forward"), 0.5),
        }
    )
    table = {f"u{n}": (3, 1.0) for n in range(60)}
    every_day = values(exact(VISITS), "visits")
    changed = exact(VISITS, budget=None, requirements=table, requirement_changes=changes)
    assert values(changed, "visits") == every_day
    ledger = changed.ledger.to_pandas()
    assert (
        not ledger[["epsilon_backward", "epsilon_forward", "spent", "spent_backward"]]
        .to_numpy()
        .any()
    )
    forever = exact(VISITS, budget=None, guarantee="infinite", epsilon=1.0)
    assert values(forever, "visits") == every_day
    first = forever["visits"][0]
    assert first.shares.tolist() == (first.counts / first.counts.sum()).tolist()
    assert first.diagnostics == {}
    lives = exact(VISITS, budget=None, guarantee="user", epsilon=1.0, max_slots=2)
    assert lives.to_pandas()["value"].sum() == lives.summary["kept"]
    assert lives.summary["beyond_limit"] > 0


def test_what_cannot_be_released_is_refused_as_always():
    with pytest.raises(sv.ConfigurationError, match="'pbe'"):
        exact(VISITS, sv.count("n", mechanism="pbe"))
    with pytest.raises(sv.ConfigurationError, match="less than 2"):
        exact(VISITS, budget="0.000000000001/4d")
    with pytest.raises(sv.ConfigurationError, match=r"revise=2 .* with test_mode") as caught:
        exact(VISITS, run=sv.RunOptions(test_mode=True, revise=2))
    assert "\n" not in str(caught.value)
    with pytest.raises(sv.ConfigurationError, match="neither true nor false"):
        exact(VISITS, run=sv.RunOptions(test_mode="maybe"))
    with pytest.raises(sv.ConfigurationError, match=r"test_mode.* devices never report"):
        sv.collect(
            EVENTS,
            **ASKED,
            **{"value": "place", "slot": "1d", "domain": PLACES},
            requirements={"u1": (3, 1.0)},
            run=TESTING,
        )


@pytest.mark.parametrize("queries", [(VISITS,), (VISITS, sv.distinct("users"))])
def test_every_output_is_marked(queries, caplog):
    with caplog.at_level(logging.WARNING, "streamveil"):
        result = exact(*queries)
    assert caplog.messages[0] == NOT_PRIVATE
    assert repr(result).startswith(f"warning:  {NOT_PRIVATE}\n")
    assert NOT_PRIVATE in result._repr_html_()
    assert result.summary["test_mode"] is True
    assert result.summary["largest_window_use"] is None
    assert set(result.summary["statuses"]) == {TEST}
    assert set(result.to_pandas()["status"]) == {TEST}
    assert result.card == {}
    ledger = result.ledger.to_pandas()
    assert not ledger[["epsilon", "spent", "spent_in_window"]].to_numpy().any()
    for name, one in result.items():
        assert repr(one).startswith(f"{name}: ")
        assert NO_NOISE in repr(one)
        assert {(each.mechanism, each.epsilon) for each in one} == {(NO_NOISE, 0.0)}
        axes = one.plot()
        assert axes.get_title() == NOT_PRIVATE
        plt.close(axes.figure)
    if len(queries) == 1:
        rows = result["visits"].to_arrow("rows").to_pylist()
        assert {(row["status"], row["mechanism"], row["epsilon"]) for row in rows} == {
            (TEST, NO_NOISE, 0.0)
        }


def test_a_release_without_it_is_not_marked():
    result = exact(VISITS, run=sv.RunOptions())
    assert TEST not in set(result.to_pandas()["status"])
    assert "test_mode" not in result.summary
    assert "test" not in repr(result)
    assert result.card["promise"]["guarantee"] == "w-event"
    axes = result.plot()
    assert axes.get_title() == ""
    plt.close(axes.figure)


# Can a real run end up without noise? Only the argument itself, given as it is, does that.


def test_it_is_off_unless_it_is_given():
    assert sv.RunOptions().test_mode is False
    assert inspect.signature(PrivateQueries).parameters["test_mode"].default is False
    for name in ("release", "collect"):
        assert COMMANDS[name].defaults["test_mode"] is False
    for kind in (HistogramPlan, QueryPlan, PrivateHistograms, PrivateAnswers):
        (field,) = (one for one in dataclasses.fields(kind) if one.name == "test_mode")
        assert field.default is False


def test_no_environment_switches_it_on(monkeypatch):
    for name in ("STREAMVEIL_TEST_MODE", "TEST_MODE", "test_mode", "PYTEST_CURRENT_TEST"):
        monkeypatch.setenv(name, "true")
    result = exact(VISITS, run=sv.RunOptions())
    assert TEST not in set(result.to_pandas()["status"])
    assert result.card


def test_no_name_of_a_mechanism_switches_it_on():
    assert all("exact" not in spec.place and spec.name != NO_NOISE for spec in REGISTRY)
    assert {NO_NOISE, TEST, "exact", "none"}.isdisjoint({*MECHANISMS, *INFINITE_MECHANISMS})
    for name in (NO_NOISE, "exact", "adaptive:test_mode=true"):
        with pytest.raises(sv.ConfigurationError):
            exact(sv.count("n", mechanism=name), run=sv.RunOptions())


@pytest.mark.parametrize("given", [1, "true", None])
def test_transforms_take_no_value_but_true_and_false(given):
    with pytest.raises(sv.ConfigurationError, match="test_mode"):
        PrivateQueries(VISITS, **ASKED, **BUDGET, slot="1d", test_mode=given)


@pytest.mark.parametrize("queries", [(VISITS,), (VISITS, sv.distinct("users"))])
def test_no_state_goes_from_one_mode_to_the_other(queries):
    """Nor does one that a runner keeps, as a savepoint."""
    given = {**ASKED, **BUDGET, "slot": "1d", "noise_key": bytes(32)}
    real, test = (PrivateQueries(*queries, **given, test_mode=mode).plan for mode in (False, True))
    drivers = [plan.ledgers(plan.layout(bounded=True)).make() for plan in (real, test)]
    states = [driver.encode(driver.start()) for driver in drivers]
    for driver, state in zip(drivers, reversed(states), strict=True):
        with pytest.raises(sv.ConfigurationError, match="test mode"):
            driver.decode(state)
    with pytest.raises(sv.ConfigurationError, match="leave resume out") as caught:
        PrivateQueries(*queries, **given, resume=states[0], test_mode=True)
    assert "\n" not in str(caught.value)
    with pytest.raises(sv.ConfigurationError, match="test mode"):
        PrivateQueries(*queries, **given, resume=states[1])
    assert not test.release_config(test.layout(bounded=True), None, **_changes(test)).keeps


def _changes(plan):
    return {"changes": False} if isinstance(plan, HistogramPlan) else {}


@pytest.mark.parametrize("queries", [(VISITS,), (VISITS, sv.distinct("users"))])
def test_what_is_pickled_stays_as_it_was(queries):
    """Also a plan of a version that had no test mode."""
    for mode in (False, True):
        plan = PrivateQueries(*queries, **ASKED, **BUDGET, slot="1d", test_mode=mode).plan
        ledgers = pickle.loads(pickle.dumps(plan.ledgers(plan.layout(bounded=True))))
        assert ledgers.test_mode is mode
    before = object.__new__(type(ledgers))
    state = {name: one for name, one in vars(ledgers).items() if name != "test_mode"}
    before.__dict__.update(state)
    assert before.test_mode is False
