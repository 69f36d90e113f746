"""`sv.release` of a query set gives what `streamveil release --queries` writes."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

import streamveil as sv
from streamveil.io import RESULT_SCHEMA, read_table
from streamveil.mechanisms.core.local_days import CalendarSlots
from streamveil.mechanisms.queries.reading import query_set_of

QUERIES = """\
slot: 1d
queries:
  - {name: places, by: value, keys: [A, B, C]}
  - {name: users, every: 2d, statistic: distinct, share: 0.25}
  - {name: most, by: value, keys: [A, B, C], every: 3d, statistic: top, k: 2}
"""


@pytest.fixture
def same(job, asked):
    """What the command wrote, and what to ask a call for to have the same."""
    job.flags = {
        **{name: job.flags[name] for name in ("input", "requirements", "noise_key")},
        **{name: job.flags[name] for name in ("user_column", "time_column", "summary")},
        "queries": job.write("queries.yaml", QUERIES),
        "output": job.path("answers"),
        "ledger": job.path("ledger.parquet"),
    }
    job.done()
    given = {name: asked[name] for name in ("user", "time", "requirements", "noise_key")}
    return given, job.path("queries.yaml")


def test_answers_ledger_and_figures_are_those_of_the_command(job, same):
    given, queries = same
    found = sv.release(job.path("events.csv"), queries, **given)
    assert list(found) == ["places", "users", "most"]
    for name in found:
        assert found[name].to_arrow().equals(read_table(job.path(f"answers/{name}.parquet")))
    assert found.ledger.equals(read_table(job.path("ledger.parquet")))
    assert found.summary == json.loads(Path(job.path("summary.json")).read_text())
    together = found.to_arrow()
    assert together.num_rows == sum(found[name].to_arrow().num_rows for name in found)
    assert together.schema == RESULT_SCHEMA


def test_queries_in_memory(job, same):
    given, queries = same
    found = sv.release(job.path("events.csv"), queries, **given)
    mapping = yaml.safe_load(QUERIES)
    for other in (mapping, query_set_of(mapping), Path(queries)):
        again = sv.release(read_table(job.path("events.csv")), other, **given)
        assert again.to_arrow().equals(found.to_arrow())


def test_how_results_show_themselves(job, same):
    given, queries = same
    found = sv.release(job.path("events.csv"), queries, **given)
    assert "places: count of 3 keys in 11 slots" in str(found)
    assert "events read" in found.text
    assert {"rank", "chance"} <= set(found["most"].to_pandas().columns)
    assert found["users"][0].outputs == ("users",)
    assert "<table>" in found._repr_html_()
    with pytest.raises(KeyError, match="there is no query 'none': choose of places, users"):
        found["none"]


def test_wrong_arguments_are_named_as_in_python(job, same):
    given, queries = same
    with pytest.raises(sv.ConfigurationError, match=r"none\.yaml does not exist"):
        sv.release(job.path("events.csv"), "none.yaml", **given)
    with pytest.raises(sv.ConfigurationError, match="the queries: queries is missing"):
        sv.release(job.path("events.csv"), {"slot": "1d"}, **given)
    with pytest.raises(sv.ConfigurationError, match="requirements is missing"):
        sv.release(job.path("events.csv"), queries, **{**given, "requirements": None})
    with pytest.raises(TypeError, match="data is of type int"):
        sv.release(3, queries, **given)


def test_what_is_in_a_group_adds_up_to_it(job, same):
    """Of bins, districts and the whole, although what lies between was not measured."""
    levels = [{"east": ["A", "B"], "west": ["C"]}, "all"]
    bins = {"by": "value", "keys": ["A", "B", "C"], "levels": levels}
    parts = {"slot": "1d", "queries": [{"name": "parts", **bins}]}
    given, _ = same
    found = sv.release(job.path("events.csv"), parts, **given)["parts"]
    assert found[0].labels == ("A", "B", "C", "east", "west", "all")
    for answer in found:
        a, b, c, east, west, everything = answer.values[:, 0]
        assert (a + b, c, east + west) == (east, west, everything)
        assert min(a, b, c) >= 0
    assert found.to_arrow().num_rows == 6 * len(found)


def test_a_bad_line_is_reported_once_where_bounds_are_chosen(tmp_path):
    """The bounds are chosen by a look at all events, before they are counted."""
    lines = [f"u{i},2024-01-0{1 + i % 4},{60 + i % 40}" for i in range(800)]
    text = "\n".join(["user,time,speed", *lines, "one,line,of,too,many", "another,of,such,lines"])
    (tmp_path / "events.csv").write_text(text)
    speed = {"name": "speed", "statistic": "mean", "of": "speed", "bounds": "auto"}
    found = sv.release(
        tmp_path / "events.csv",
        {"slot": "1d", "queries": [speed]},
        user="user",
        time="time",
        requirements={f"u{i}": (2, 20.0) for i in range(800)},
        noise_key=bytes(range(32)),
    )
    assert found.rejected.num_rows == 2
    assert (found.summary["read"], found.summary["rejected"]) == (802, {"unparsable": 2})


DEFINED = (
    sv.count("places", by="value", keys=["A", "B", "C"]),
    sv.distinct("users", every="2d", share=0.25),
    sv.top("most", by="value", keys=["A", "B", "C"], every="3d", k=2),
)


def test_definitions_are_the_file_they_describe(job, same):
    given, queries = same
    expected = sv.release(job.path("events.csv"), queries, **given)
    found = sv.release(job.path("events.csv"), *DEFINED, slot="1d", **given)
    assert found.to_arrow().equals(expected.to_arrow())
    assert found.ledger.equals(expected.ledger)
    listed = sv.release(job.path("events.csv"), [*DEFINED], slot="1d", **given)
    assert listed.to_arrow().equals(expected.to_arrow())


def test_one_count_is_the_short_form(job, asked):
    """With all that only a count by itself can have."""
    more = {"start": "2024-01-01", "end": "2024-01-10", "adjacency": "replace"}
    short = sv.release(job.path("events.csv"), **{**asked, **more, "max_contributions": 2})
    columns = {name: asked[name] for name in ("user", "time", "slot", "requirements", "noise_key")}
    count = sv.count("visits", by="value", keys=["A", "B", "C"], max_contributions=2)
    found = sv.release(job.path("events.csv"), count, **columns, **more)
    assert list(found) == ["visits"]
    for one, other in zip(found["visits"], short["count"], strict=True):
        assert one.values.tolist() == other.values.tolist()
    assert set(found.ledger["query"].to_pylist()) == {"visits"}
    assert found.ledger.drop_columns(["query"]).equals(short.ledger.drop_columns(["query"]))
    assert set(found.to_arrow()["query"].to_pylist()) == {"visits"}


def test_keys_may_be_in_a_file(job, asked):
    job.write("places.txt", "A\nB\nC\n")
    columns = {name: asked[name] for name in ("user", "time", "slot", "requirements")}
    count = sv.count("visits", by="value", keys=job.path("places.txt"))
    for queries in ((count,), (count, sv.distinct("users"))):
        found = sv.release(job.path("events.csv"), *queries, **columns)
        assert found["visits"].keys == ("A", "B", "C")


@pytest.mark.parametrize(
    ("queries", "more", "words"),
    [
        (DEFINED, {"slot": None}, "slot is missing"),
        (DEFINED, {"value": "value"}, "value is for one count without queries"),
        (DEFINED, {"mechanism": "pba"}, "mechanism=pba is not for queries: each query has its own"),
        (DEFINED[:1], {"mechanism": "pba"}, "mechanism=pba is not for queries"),
        (DEFINED[:1], {"max_contributions": 2}, "max_contributions=2 is not for queries"),
        (DEFINED, {"budget": "1/7d"}, "leave requirements out, or leave budget out"),
        ((sv.count("a"), 5), {}, "a query is 5"),
        ((sv.count("a"), sv.count("a")), {}, "two queries are called 'a'"),
        ((sv.count("a", every="36h"), sv.count("b")), {}, "not a multiple of slot 1d"),
    ],
)
def test_what_does_not_fit_together_is_refused(job, asked, queries, more, words):
    columns = {name: asked[name] for name in ("user", "time", "slot", "requirements")}
    with pytest.raises(sv.ConfigurationError, match=words) as caught:
        sv.release(job.path("events.csv"), *queries, **{**columns, **more})
    assert "--" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_count_by_itself_has_the_slots_that_it_has_beside_others(job, asked):
    """Weeks begin on Mondays, whatever the start, and wherever a slot is said to begin."""
    columns = {name: asked[name] for name in ("user", "time", "requirements")}
    week = {**columns, "slot": "1w", "start": "2024-01-03", "end": "2024-01-10"}
    visits = sv.count("visits", by="value", keys=["A", "B"])
    alone = sv.release(job.path("events.csv"), visits, **week)["visits"]
    both = sv.release(job.path("events.csv"), visits, sv.count("all"), **week)["visits"]
    starts = [[one.start for one in found] for found in (alone, both)]
    assert starts[0] == starts[1]
    assert alone.to_arrow()["start"][0].as_py().isoformat() == "2024-01-01T00:00:00+00:00"
    paris = CalendarSlots(86_400_000_000, zone="Europe/Paris")
    for queries in ((visits,), (visits, sv.count("all"))):
        found = sv.release(job.path("events.csv"), *queries, slot=paris, **columns)["visits"]
        assert found.to_arrow()["start"].type.tz == "Europe/Paris"
        assert found.to_arrow()["start"][0].as_py().hour == 0


@pytest.mark.parametrize(("guarantee", "more"), [("infinite", {}), ("user", {"max_slots": 2})])
def test_a_count_by_itself_may_have_one_budget_for_ever(job, asked, guarantee, more):
    columns = {name: asked[name] for name in ("user", "time", "slot")}
    visits = sv.count("visits", by="value", keys=["A", "B", "C"])
    given = {**columns, "guarantee": guarantee, "epsilon": 8, **more}
    found = sv.release(job.path("events.csv"), visits, **given)
    assert found.card["promise"]["guarantee"] == guarantee


def test_events_of_one_query_add_up(job, asked):
    columns = {name: asked[name] for name in ("user", "time", "slot", "requirements")}
    twice = pa.concat_tables([read_table(job.path("events.csv"))] * 2)
    for query in (sv.distinct("users"), sv.count("some", where=sv.where.value == "A")):
        summary = sv.release(twice, query, **columns).summary
        rejected = sum(summary["rejected"].values())
        assert summary["dropped"] > 0
        assert summary["read"] == sum(summary[n] for n in ("kept", "late", "dropped")) + rejected


def test_a_plot_is_of_one_statistic_and_of_no_rollups(job, asked):
    columns = {name: asked[name] for name in ("user", "time", "slot", "requirements")}
    queries = sv.top("most", by="value", keys=["A", "B", "C"], k=1), sv.count("all", rollups="2d")
    found = sv.release(job.path("events.csv"), *queries, **columns)
    (line,) = found["all"].plot().get_lines()
    assert len(line.get_xdata()) == 9
    assert found["all"].plot().get_ylabel() == "released count"
    assert found["all"].plot().get_title() == ""
    with pytest.raises(sv.ConfigurationError, match="layout 'rows' is for a single count"):
        found["all"].to_arrow("rows")


def test_a_title_is_shown(job, asked):
    columns = {name: asked[name] for name in ("user", "time", "slot", "requirements")}
    visits = sv.count("visits", by="value", keys=["A", "B", "C"], title="Visits of a day")
    for queries in ((visits,), (visits, sv.count("all"))):
        assert "Visits of a day" in str(sv.release(job.path("events.csv"), *queries, **columns))


def test_options_of_a_run_are_run_options(job, asked):
    with pytest.raises(TypeError, match=r"run is of type dict: give sv.RunOptions"):
        sv.release(job.path("events.csv"), **asked, run={"revise": 2})
    with pytest.raises(sv.ConfigurationError, match="queries are missing"):
        sv.release(job.path("events.csv"), user="user", time="time", slot="1d", budget="1/7d")
