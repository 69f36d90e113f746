"""`streamveil release --queries`: answers in a folder, one ledger, what is refused or reported."""

import datetime as dt
import json
import math
import os
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import streamveil as sv
from streamveil.engine.count import bounds_choice
from streamveil.engine.count.loss_limit import tally_in
from streamveil.io import read_table
from streamveil.pipelines.commands.release import job_of

UTC = dt.timezone.utc
QUERIES = """\
slot: 1h
queries:
  - {name: places, by: place, keys: [A, B], every: 1h, mechanism: pba}
  - {name: speed, by: kind, keys: [car, bus], every: 1d, statistic: mean, of: kmh,
     bounds: [0, 128], mechanism: ba}
  - {name: late, every: 1w, statistic: quantiles, of: kmh, edges: [0, 50, 100],
     quantiles: [0.5, 0.95], where: {kind: [car, van]}, mechanism: ba}
"""
KEY = "5e" * 32
LEDGER = [
    *("query", "slot", "first_base_slot", "last_base_slot"),
    *("window", "epsilon", "users", "spent", "spent_in_window"),
]


def events(users=40, days=2):
    """One event of a user in a day."""
    return [
        (
            f"u{u}",
            "AB"[u % 2],
            ("car", "bus")[u % 3 == 0],
            float(u),
            dt.datetime(2024, 1, 1 + d, (u + d) % 24, tzinfo=UTC),
        )
        for d in range(days)
        for u in range(users)
    ]


@pytest.fixture
def job(toolbox, tmp_path):
    """Events of two days, and budgets so large that all is exact."""
    made = toolbox.Job(tmp_path)
    made.write("events.parquet", table(events()))
    made.requirements({f"u{u}": (1 + u % 3, toolbox.EXACT) for u in range(40)})
    made.flags = {
        "queries": made.write("queries.yaml", QUERIES),
        "input": made.path("events.parquet"),
        "requirements": made.path("users.csv"),
        "user_column": "user",
        "time_column": "time",
        "output": made.path("answers"),
        "ledger": made.path("ledger.csv"),
        "noise_key": made.key(),
    }
    return made


def table(rows):
    names = ("user", "place", "kind", "kmh", "time")
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


def answers(job, name):
    return pq.read_table(job.path(f"answers/{name}.parquet")).to_pylist()


@pytest.mark.slow
def test_longer_times_are_in_the_same_file_and_not_in_the_ledger(job):
    text = QUERIES.replace("every: 1h, mechanism: pba", "every: 6h, rollups: [1d, 1w]")
    job.write("queries.yaml", text)
    job.done(page=job.path("page.html"), start="2024-01-01", end="2024-01-03")
    places = answers(job, "places")
    slots, days, weeks = (
        [row for row in places if row["length"] == length] for length in ("6h", "1d", "1w")
    )
    assert [len(slots), len(days), len(weeks)] == [2 * 4 * 2, 2 * 2, 2]
    for bin_ in "AB":
        values = [row["value"] for row in slots if row["key"] == bin_]
        assert [row["value"] for row in days if row["key"] == bin_] == [
            *(sum(values[:4]), sum(values[4:])),
        ]
    assert weeks[0]["note"].startswith("a part of the time: 8 of its 28 slots of 6h")
    assert len(pa.csv.read_csv(job.path("ledger.csv"))) == 3 * (8 + 2 + 1)
    with open(job.path("page.html"), encoding="utf-8") as page:
        assert "for the day that begins on 2 Jan 2024, all its slots together" in page.read()


def test_answers_ledger_and_summary(job):
    done = job.done(rejected=job.path("rejected.jsonl"), summary=job.path("summary.json"))
    assert sorted(os.listdir(job.path("answers"))) == [
        "card.json",
        "late.parquet",
        "places.parquet",
        "speed.parquet",
    ]
    places = answers(job, "places")
    assert list(places[0]) == [
        *("query", "slot", "start", "end", "key", "statistic", "value", "low", "high", "stderr"),
        *("status", "length", "level", "note"),
    ]
    true = {}
    for _, place, _, _, time in events():
        true[time, place] = true.get((time, place), 0) + 1
    # The week of the longest query is answered to its end.
    assert len(places) == 2 * 24 * 7
    fresh = [row for row in places if row["status"] != "nullified"]  # which repeats the last
    assert all(row["value"] == true.get((row["start"], row["key"]), 0) for row in fresh)
    assert len(fresh) > len(places) - 20
    speed = answers(job, "speed")
    cars = [kmh for _, _, kind, kmh, time in events() if kind == "car" and time.day == 1]
    assert speed[0]["key"] == "car"
    assert speed[0]["value"] == pytest.approx(sum(cars) / len(cars), abs=0.2)
    assert speed[0]["end"] - speed[0]["start"] == dt.timedelta(days=1)
    assert "clipping" in speed[0]
    late = answers(job, "late")
    assert [(row["key"], row["statistic"]) for row in late] == [("all", "p50"), ("all", "p95")]
    assert late[0]["start"] == dt.datetime(2024, 1, 1, tzinfo=UTC)

    ledger = read_table(job.path("ledger.csv"))
    assert ledger.column_names == LEDGER
    rows = ledger.to_pylist()
    lengths = {row["query"]: row["last_base_slot"] - row["first_base_slot"] for row in rows}
    assert lengths == {"places": 0, "speed": 23, "late": 167}
    assert {row["window"] for row in rows} == {1, 2, 3}
    assert all(row["spent_in_window"] <= row["epsilon"] for row in rows)

    summary = json.loads((job.folder / "summary.json").read_text())
    assert (summary["read"], summary["counted"], summary["beyond_bound"]) == (80, 80, 0)
    assert summary["rejected"] == {}
    assert [summary[name] for name in ("kept", "dropped", "late")] == [80, 0, 0]
    assert summary["queries"]["places"]["counted"] == 80
    assert summary["queries"]["speed"]["slots"] == 7
    assert summary["queries"]["late"]["beyond_bound"] == 26
    assert "query: places: 168 slots of 1h" in done.out
    assert "shares of every user's budget, with windows in slots of 1h: places" in done.out


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "avro"])
@pytest.mark.slow
def test_the_ledger_in_every_format(job, ending):
    job.done(ledger=job.path(f"ledger.{ending}"), queries=only_places(job))
    assert read_table(job.path(f"ledger.{ending}")).column_names == LEDGER


CITY = """\
slot: 1h
queries:
  - {name: trips, by: place, keys: [A, B, C], levels: LEVELS, weight: 2}
  - {name: people, every: 1d, by: place, keys: [A, B, C], statistic: distinct, levels: LEVELS}
  - {name: way, every: 1d, by: place, keys: [A, B, C], statistic: sum, of: kmh,
     bounds: [0, 30], levels: LEVELS}
  - {name: speed, every: 1d, by: place, keys: [A, B, C], statistic: mean, of: kmh,
     bounds: [0, 30], levels: LEVELS}
""".replace("LEVELS", "[{in: [A], out: [B, C]}, all]")


# With noise, what is released of bins and of the top does not agree by itself.
@pytest.mark.slow
def test_groups_add_up_in_files_and_in_python(job):
    events_of = [(*row[:1], "ABC"[int(row[0][1:]) % 3], *row[2:]) for row in events()]
    job.write("events.parquet", table(events_of))
    job.requirements({f"u{u}": (2, 16.0) for u in range(40)})
    asked = {"noise_key": job.key(KEY), "start": "2024-01-01", "end": "2024-01-03"}
    job.done(**asked, queries=job.write("city.yaml", CITY))
    value, low, high = {}, {}, {}
    for name in ("trips", "people", "way", "speed"):
        rows = answers(job, name)
        assert [(row["key"], row["level"]) for row in rows[:6]] == [
            *(("A", 0), ("B", 0), ("C", 0), ("in", 1), ("out", 1), ("all", 2))
        ]
        for figures, column in ((value, "value"), (low, "low"), (high, "high")):
            values = [np.nan if row[column] is None else row[column] for row in rows]
            figures[name] = np.array(values).reshape(-1, 6).T
    assert [len(each.T) for each in value.values()] == [48, 2, 2, 2]
    for name in ("trips", "people", "way"):
        a, b, c, inside, outside, everything = value[name]
        assert np.nansum(everything) > 0
        np.testing.assert_array_equal(inside, a)
        for whole, parts in ((outside, b + c), (everything, a + b + c)):
            np.testing.assert_allclose(whole, parts, rtol=0 if name != "way" else 1e-12)
        if name != "way":
            known = value[name][:, ~np.isnan(everything)]
            assert (known == np.rint(known)).all()
    # A group's mean is one of its bins' events, so it may lie between theirs.
    _, b, c, _, outside, _ = value["speed"]
    assert (np.fmin(b, c) <= high["speed"][4]).all()
    assert (low["speed"][4] <= np.fmax(b, c)).all()
    found = sv.release(
        job.path("events.parquet"),
        job.path("city.yaml"),
        user="user",
        time="time",
        requirements=job.path("users.csv"),
        **asked,
    )
    for name in value:
        assert found[name].to_arrow().equals(pq.read_table(job.path(f"answers/{name}.parquet")))


def only_places(job):
    return job.write("places.yaml", "\n".join(QUERIES.splitlines()[:3]))


def test_the_same_key_gives_the_same_answers(job):
    again = {"noise_key": job.key(KEY), "queries": only_places(job)}
    job.requirements({f"u{u}": (2, 1.0) for u in range(40)})
    job.done(**again)
    job.done(**again, output=job.path("b"), ledger=job.path("b.csv"))
    first = pq.read_table(job.path("answers/places.parquet"))
    assert first.equals(pq.read_table(job.path("b/places.parquet")))
    assert any(row["value"] for row in first.to_pylist())


def test_what_one_query_cannot_read_is_reported_and_is_no_loss(job):
    rows = [
        (u, "C" if u != "u1" else place, kind, kmh if u != "u2" else float("nan"), time)
        for u, place, kind, kmh, time in events()
    ]
    job.write("events.parquet", table(rows))
    done = job.done(rejected=job.path("rejected.jsonl"))
    assert "80 events read: 78 counted, 2 rejected" in done.out
    assert "rejected: outside the domain (query places) 2" in done.out  # the first of them
    assert "2 events counted, 0 beyond the users' contribution bound, 78 outside the domain" in (
        done.out
    )
    assert "2 not a finite number" in done.out
    assert "warning:  query places: 98% of its events could not be counted" in done.out
    reasons = {row["reason"] for row in job.json_rows("rejected.jsonl")}
    assert "outside the domain (query places, counted in others)" in reasons


PLACE = "{name: places, by: place, keys: [A, B]}"
SPEED = "{name: speed, statistic: sum, of: kmh, bounds: [0, 9]}"
LOST = {
    "outside the domain": (
        PLACE,
        {"place": "C"},
        ["place is c", "not what query 'places' lists", "other: NAME gives"],
    ),
    "blanks": (
        PLACE,
        {"place": "A "},
        ["column place has blanks", "what query 'places' lists without"],
    ),
    "no value": (
        PLACE,
        {"place": None},
        ["null value", "column place is empty", "(query 'places', key 'by')"],
    ),
    "no number for an edge": (
        "{name: fast, by: kmh, keys: {edges: [0, 9]}}",
        {"kmh": math.nan},
        ["not a number", "column kmh is not the right one", "keys of query 'fast' should be texts"],
    ),
    "not a number": (SPEED, {"kmh": None}, ["column kmh is empty", "(query 'speed', key 'of')"]),
    "an endless number": (
        SPEED,
        {"kmh": math.inf},
        ["kmh is inf", "no finite one", "(query 'speed', key 'of')"],
    ),
}


@pytest.mark.parametrize("case", LOST)
def test_most_events_lost_to_all_stop_the_run_and_the_cause_is_named(job, case):
    query, fault, words = LOST[case]
    names = ("user", "place", "kind", "kmh", "time")
    rows = [{**dict(zip(names, row, strict=True)), **fault} for row in events(users=9, days=1)]
    job.write("events.parquet", table([tuple(row.values()) for row in rows]))
    asked = job.write("one.yaml", f"slot: 1d\nqueries:\n  - {query}\n")
    outcome = job.refused("likely cause", *words, code=3, queries=asked)
    assert "see the dead letters" not in outcome.message
    assert not os.listdir(job.path("answers"))


# A query that lost its input is no success, whatever others count.
def test_a_query_that_can_read_none_of_its_events_stops_the_run(job):
    rows = [(u, "C", kind, kmh, time) for u, _, kind, kmh, time in events()]
    job.write("events.parquet", table(rows))
    outcome = job.refused(
        "query 'places' asks about 80 events and can read none of them, so nothing is released",
        *["most often: outside the domain (query places) (80)", "place is c"],
        *["not what query 'places' lists", "--max_rejected=1"],
        code=3,
    )
    assert "Nor does a range" not in outcome.message
    assert not os.listdir(job.path("answers"))
    done = job.done(max_rejected=1)
    assert "warning:  query places: 100% of its events could not be counted" in done.out


# Events that another query counts are no loss: the cause is that of those which nobody counts.
def test_the_cause_is_that_of_a_loss_and_its_figures_are_reported(job):
    time = events()[0][-1]
    rows = [("u1", "C", "car", 1.0, time)] * 4  # for the speed
    rows += [("u1", None, "bus", 1.0, time)] * 4 + [(None, "A", "bus", 1.0, time)] * 3
    job.write("events.parquet", table(rows))
    asked = f"slot: 1d\nqueries:\n  - {PLACE}\n  - {SPEED[:-1]}, where: {{kind: car}}}}\n"
    outcome = job.refused(
        "outside the domain (query places, counted in others) 4",
        "most often: null value (query places) (4)",
        code=3,
        queries=job.write("two.yaml", asked),
    )
    tally = tally_in(outcome.message)
    assert (tally.read, tally.all_lost, sum(tally.rejected.values())) == (11, 7, 11)


FOREIGN = {
    "value_column": "place",
    "domain": "A,B",
    "other": "rest",
    "slot": "1d",
    "mechanism": "pba",
    "max_contributions": 2,
    "keep": "distinct",
    "layout": "tidy",
    "guarantee": "infinite",
    "restart_budget": 1,
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_a_query_set_says_itself_or_does_not_know_is_refused(job, name):
    job.refused(f"--{name}={FOREIGN[name]} is not for --queries: ", **{name: FOREIGN[name]})


CALENDAR = """\
slot: 1d
queries:
  - {name: places, by: place, keys: [A, B], max_contributions: 24}
  - {name: weeks, every: 1w, max_contributions: 200}
"""
PARIS = {"slot_zone": "Europe/Paris", "start": "2024-03-25", "end": "2024-04-08"}


@pytest.fixture
def spring(job):
    """An event of each of 10 users in every hour of two weeks, in one of which clocks skip one."""
    first = dt.datetime(2024, 3, 24, 23, tzinfo=UTC)  # midnight in Paris
    hours = [first + dt.timedelta(hours=n) for n in range(14 * 24 - 1)]
    rows = [(f"u{u}", "A", "car", 1.0, at) for at in hours for u in range(10)]
    job.write("events.parquet", table(rows))
    job.requirements({f"u{u}": (1, 4000.0) for u in range(10)})
    job.flags |= {"queries": job.write("queries.yaml", CALENDAR), **PARIS}
    return job


def test_days_and_weeks_are_those_of_a_calendar(spring, toolbox):
    """The last Sunday of March has 23 hours in Paris, and so 230 events."""
    spring.done(page=spring.path("page.html"))
    places = [row for row in answers(spring, "places") if row["key"] == "A"]
    counts = [round(row["value"], -1) for row in places]
    assert counts == [*[240] * 6, 230, *[240] * 7]
    local = [row["start"].astimezone(ZoneInfo("Europe/Paris")) for row in places]
    assert [one.isoformat() for one in local[5:8]] == [
        "2024-03-30T00:00:00+01:00",
        "2024-03-31T00:00:00+01:00",
        "2024-04-01T00:00:00+02:00",
    ]
    assert {row["length"] for row in places} == {"1d"}
    weeks = answers(spring, "weeks")
    assert [round(row["value"], -2) for row in weeks] == [1700, 1700]
    done = toolbox.run("card", "--check", spring.path("answers/card.json"))
    assert (done.code, "fine" in done.out) == (0, True), done


def test_passes_by_a_calendar_are_the_run_as_a_whole_and_a_call_too(spring):
    spring.done(noise_key=spring.key())
    expected = answers(spring, "places"), answers(spring, "weeks")
    result = sv.release(
        spring.path("events.parquet"),
        spring.path("queries.yaml"),
        **{"user": "user", "time": "time", "requirements": spring.path("users.csv")},
        **{name: PARIS[name] for name in ("start", "end")},
        noise_key=spring.key(),
        run=sv.RunOptions(slot_zone="Europe/Paris"),
    )
    assert tuple(one.to_arrow().to_pylist() for one in result.values()) == expected
    spring.flags |= {"noise_key": spring.key(), "output": spring.path("parts")}
    kept = {"state": spring.path("state"), "ledger": spring.path("costs.csv")}
    spring.done(**kept, end="2024-03-31")
    spring.done("--resume", **kept)
    for name, rows in zip(("places", "weeks"), expected, strict=True):
        files = sorted(spring.folder.glob(f"parts/{name}-*.parquet"))
        assert len(files) == 2
        assert pa.concat_tables(map(pq.read_table, files)).to_pylist() == rows


def test_hours_have_no_calendar(spring):
    hours = spring.write("hours.yaml", CALENDAR.replace("slot: 1d", "slot: 1h"))
    spring.refused("not whole days", "--slot_zone=Europe/Paris", "in days or weeks", queries=hours)


REFUSED = {
    "a file": ({"output": "out.parquet"}, "name a folder"),
    "a source": ({"output": "watch:a"}, "does not accept query results: name a folder"),
    "a stream in": (
        {"input": "watch:in/*.csv"},
        "answers: a file is written at the end of the input",
    ),
    "no runner": (
        {"input": "watch:in/*.csv", "output": "folder:a", "ledger": None},
        "give --runner",
    ),
    "a ledger": (
        {"input": "watch:in/*.csv", "output": "folder:a", "start": "2024-01-01"},
        "ledger.csv: a file is written at the end of the input",
    ),
    "no user": ({"user_column": None}, "--user_column is missing"),
    "no requirements": ({"requirements": None}, "--requirements is missing"),
    "no queries file": ({"queries": "no.yaml"}, "--queries: no file matches 'no.yaml'"),
    "no such column": ({"time_column": "when"}, "'when'"),
}


@pytest.mark.parametrize(("flags", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_wrong_options_are_refused(job, flags, words):
    job.refused(words, **flags)


def test_a_fault_of_the_file_names_its_place(job):
    wrong = job.write("wrong.yaml", QUERIES.replace("every: 1d", "every: 90m"))
    job.refused("--queries", "wrong.yaml", "query 'speed': every is 90m", queries=wrong)
    twice = job.write("twice.yaml", QUERIES + "slot: 1h\n")
    job.refused("twice.yaml is not YAML: line 8, column 1: the key 'slot'", queries=twice)


def test_a_column_that_a_query_reads_must_be_there(job):
    rows = pa.table({name: table(events())[name] for name in ("user", "place", "kind", "time")})
    job.write("events.parquet", rows)
    job.refused("no column 'kmh'")


def test_answers_are_never_replaced(job):
    os.mkdir(job.path("answers"))
    job.write("answers/speed.parquet", "kept")
    job.refused("answers/speed.parquet: the output exists already")


@pytest.mark.slow
def test_bounds_that_a_run_chooses(job):
    job.write("queries.yaml", QUERIES.replace("bounds: [0, 128]", "bounds: auto"))
    dry = job.done("--dry_run", start="2024-01-01", end="2024-01-08")
    assert "query: speed: mean of 1d in 2 bins by ba, of 80 events of the sample" in dry.out
    done = job.done(summary=job.path("summary.json"), page=job.path("answers.html"))
    assert "the users' contribution bound; bounds chosen: 0 to 64" in done.out + done.log
    html = (job.folder / "answers.html").read_text(encoding="utf-8")
    assert "Numbers count from 0 to 64, as the run chose." in html
    with open(job.path("summary.json")) as file:
        assert json.load(file)["queries"]["speed"]["bounds"] == [0, 64]
    speed = answers(job, "speed")
    cars = [kmh for _, _, kind, kmh, time in events() if kind == "car" and time.day == 1]
    assert speed[0]["value"] == pytest.approx(sum(cars) / len(cars), abs=0.2)


@pytest.mark.parametrize("beam", [{}, {"runner": "FnApiRunner"}])
def test_a_run_that_lost_its_input_looks_at_no_numbers(job, monkeypatch, beam):
    asked = []
    monkeypatch.setattr(bounds_choice, "answer", lambda *given: asked.append(given))
    job.write("queries.yaml", QUERIES.replace("bounds: [0, 128]", "bounds: auto"))
    job.write("events.parquet", table([(*row[:3], None, row[4]) for row in events()]))
    message = "query 'speed' asks about 80 events and can read none of them"
    job.refused(message, "nothing is released", "the column kmh is empty", code=3, **beam)
    assert not os.listdir(job.path("answers"))
    assert not os.path.exists(job.path("ledger.csv"))
    assert not asked
    if not beam:
        with pytest.raises(sv.InputLost, match=message):
            sv.release(
                job.path("events.parquet"),
                job.path("queries.yaml"),
                user="user",
                time="time",
                requirements=job.path("users.csv"),
            )
        assert not asked


def test_too_few_numbers_to_choose_bounds_by_are_reported_in_a_line(job):
    job.write("queries.yaml", QUERIES.replace("bounds: [0, 128]", "bounds: auto"))
    job.requirements({f"u{u}": (1, 1.0) for u in range(40)})
    job.refused("query 'speed': bounds: auto found too few numbers in column 'kmh'", code=1)


def test_a_limit_of_the_table_that_pays_for_no_query_is_refused(job):
    job.write("users.csv", "user,window,epsilon,max_slots\nu1,3,1,1\n")
    job.refused("users.csv: line 2: user 'u1'", "saves nothing over 3 slots", "leave the limit out")


def test_one_budget_for_a_lifetime_is_that_of_all_queries(job, toolbox):
    lived = {"requirements": None, "guarantee": "user", "epsilon": 900.0}
    job.refused("--max_slots is missing: --guarantee=user", **lived)
    lived["max_slots"] = 2
    done = job.done(**lived)
    assert "max_slots=2: figures of speed, late describe the events" in done.out + done.err
    with open(job.path("answers/card.json")) as file:
        promise = json.load(file)["promise"]
    assert promise["guarantee"] == "user"
    (promised,) = promise["classes"]
    assert (promised["window"], promised["epsilon"]) == (None, 900.0)
    assert {one["in_life"] for one in promised["limits"]} == {2}
    checked = toolbox.run("card", "--check", job.path("answers/card.json"))
    assert checked.code == 0, checked.err


def test_a_dry_run_tells_of_each_query(job):
    done = job.done("--dry_run", start="2024-01-01", end="2024-01-08")
    assert "query: speed: mean of 1d in 2 bins by ba, of 80 events of the sample" in done.out
    assert "168 slots, from 2024-01-01T00:00:00Z" in done.out
    assert "would write answers to files of" in done.out
    assert not os.listdir(job.path("answers"))


def test_a_range_that_ends_within_a_slot_is_reported(job):
    done = job.done(queries=job.path("queries.yaml"), start="2024-01-01", end="2024-01-02")
    assert "within a slot of late" in done.log
    assert len(answers(job, "places")) == 2 * 24
    assert len(answers(job, "late")) == 2


def test_answers_one_by_one(job):
    """Files of a folder, each written once: the same whoever writes them again."""
    given = {"queries": only_places(job), "output": f"folder:{job.path('one')}"}
    given |= {"noise_key": job.key(KEY), "ledger": None}
    done = job.done(**given, rejected=job.path("rejected.jsonl"))
    assert f"wrote {given['output']}" in done.out
    assert len(os.listdir(job.path("one"))) == 48
    rows = job.json_rows("one/places.1h-20240101T010000.000000Z.json")
    assert {(row["query"], row["start"], row["end"]) for row in rows} == {
        ("places", "2024-01-01T01:00:00Z", "2024-01-01T02:00:00Z")
    }
    assert [(row["key"], row["statistic"]) for row in rows] == [
        ("A", "count"),
        ("B", "count"),
    ]
    job.done(**given)


def test_a_stream_settles_where_there_are_checkpoints(job):
    flags = {"input": "watch:in/*.csv", "output": "folder:a", "ledger": None}
    given = job.asked(
        *("--runner=FlinkRunner", "--checkpointing_interval=2500"), **flags, start="2024-01-01"
    )
    assert job_of("release", *given).plan.settle == 2_500_000


@pytest.mark.parametrize("command", ["collect", "per-record"])
def test_other_commands_have_no_queries(toolbox, tmp_path, command):
    outcome = toolbox.run(command, "--queries=q.yaml")
    assert outcome.code == 2
    assert "--queries=q.yaml" in outcome.message


@pytest.mark.slow
def test_page(job):
    done = job.done(page=job.path("answers.html"))
    assert f"wrote {job.path('answers.html')}" in done.out
    html = (job.folder / "answers.html").read_text(encoding="utf-8")
    for name in ("places", "speed", "late"):
        assert f'<section id="query-{name}">' in html
    assert "80 events read: 80 kept, 0 late" in html
    assert html.count('class="strip"') == 3


def test_page_that_cannot_be(job):
    (job.folder / "there.html").write_text("precious")
    job.refused("--page=", "ends in .html", page=job.path("answers.pdf"))
    job.refused("--page=", "exists already", page=job.path("there.html"))
    job.refused("none/answers.html", page=job.path("none/answers.html"))
    stream = {"output": f"folder:{job.path('each')}", "ledger": None}
    job.refused("is a stream: write to files", page=job.path("a.html"), **stream)
    assert (job.folder / "there.html").read_text() == "precious"
