"""Queries by calendar months of a zone, as commands and calls answer them, count and check them."""

import datetime as dt
import itertools
import json
from zoneinfo import ZoneInfo

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamveil as sv
from streamveil.io import read_table

ZONE = ZoneInfo("Europe/Berlin")
QUERIES = """\
slot: 1d
queries:
  - {name: days, by: place, keys: [A, B], rollups: [1w, 1mo]}
  - {name: visits, by: place, keys: [A, B], every: 1mo, max_contributions: 31, rollups: [3mo, 1y]}
  - {name: bill, every: 1mo, statistic: mean, of: bill, bounds: [0, 40]}
"""
NAMES = ("days", "visits", "bill")
RANGE = {"slot_zone": "Europe/Berlin", "start": "2024-02-01", "end": "2024-05-01"}


def events():
    """A visit of each of 20 users half an hour after every midnight, in another month in UTC."""
    days = [dt.date(2024, 2, 1) + dt.timedelta(days=n) for n in range(29 + 31 + 30)]
    rows = [
        (
            f"u{user}",
            "AB"[user % 2],
            float(user),
            dt.datetime(day.year, day.month, day.day, 0, 30, tzinfo=ZONE),
        )
        for day in days
        for user in range(20)
    ]
    names = ("user", "place", "bill", "time")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    columns["time"] = [time.astimezone(dt.timezone.utc) for time in columns["time"]]
    return pa.table(columns)


@pytest.fixture
def spring(toolbox, tmp_path):
    """Three months of which one is a leap year's February, and clocks skip an hour in another."""
    made = toolbox.Job(tmp_path)
    made.write("events.parquet", events())
    made.requirements({f"u{user}": (1, toolbox.EXACT) for user in range(20)})
    made.flags = {
        "queries": made.write("queries.yaml", QUERIES),
        "input": made.path("events.parquet"),
        "requirements": made.path("users.csv"),
        "user_column": "user",
        "time_column": "time",
        "noise_key": made.key(),
        "output": made.path("answers"),
        "ledger": made.path("ledger.csv"),
        **RANGE,
    }
    return made


@pytest.fixture(scope="module")
def schema(pytestconfig):
    path = pytestconfig.rootpath / "pipelines" / "cards" / "card.schema.json"
    return jsonschema.Draft202012Validator(json.loads(path.read_text()))


def answers(job, name):
    return pq.read_table(job.path(f"answers/{name}.parquet")).to_pylist()


def of_length(length, rows):
    """Rows of the first bin in slots of a length."""
    return [row for row in rows if (row["key"], row["length"]) == ("A", length)]


def called(job, **more):
    return sv.release(
        job.path("events.parquet"),
        job.path("queries.yaml"),
        **{"user": "user", "time": "time", "requirements": job.path("users.csv")},
        **{name: RANGE[name] for name in ("start", "end")},
        noise_key=job.key(),
        run=sv.RunOptions(slot_zone=RANGE["slot_zone"]),
        **more,
    )


def test_months_are_those_of_the_zone(spring, toolbox):
    done = spring.done(page=spring.path("page.html"), summary=spring.path("summary.json"))
    assert "query: visits: 3 slots of 1mo (3 published)" in done.out
    visits = answers(spring, "visits")
    months, (winter, rest), (year,) = (of_length(one, visits) for one in ("1mo", "3mo", "1y"))
    assert [row["start"].astimezone(ZONE).isoformat() for row in months] == [
        "2024-02-01T00:00:00+01:00",
        "2024-03-01T00:00:00+01:00",
        "2024-04-01T00:00:00+02:00",
    ]
    assert winter["end"].astimezone(ZONE).isoformat() == "2024-04-01T00:00:00+02:00"
    assert [row["slot"] for row in (*months, winter, rest, year)] == [649, 650, 651, 216, 217, 54]
    assert [row["value"] for row in (*months, winter, rest, year)] == pytest.approx(
        [290, 310, 300, 600, 300, 900], abs=4
    )
    assert "a part of the time: 3 of its 12 slots of 1mo" in year["note"]
    days = of_length("1mo", answers(spring, "days"))
    assert [row["value"] for row in days] == pytest.approx([290, 310, 300], abs=4)
    assert [row["slot"] for row in days] == [649, 650, 651]
    bills = answers(spring, "bill")
    assert [row["value"] for row in bills] == pytest.approx([9.5] * 3, abs=0.5)
    ledger = read_table(spring.path("ledger.csv")).to_pylist()
    costs = [row for row in ledger if row["query"] == "bill"]
    first = (dt.date(2024, 2, 1) - dt.date(1970, 1, 5)).days  # a Monday, for there are weeks
    assert [(row["slot"], row["first_base_slot"], row["last_base_slot"]) for row in costs] == [
        (649, first, first + 28),
        (650, first + 29, first + 59),
        (651, first + 60, first + 89),
    ]
    page = (spring.folder / "page.html").read_text()
    assert "by month" in page


def test_the_card_counts_months_again(spring, toolbox, schema):
    spring.done()
    path = spring.path("answers/card.json")
    with open(path) as file:
        card = json.load(file)
    schema.validate(card)
    assert [one["slots"] for one in card["data"]["queries"]] == [1, "1mo", "1mo"]
    assert card["runs"][0]["answered"]["visits"] == [649, 651]
    done = toolbox.run("card", "--check", path)
    assert (done.code, "fine" in done.out) == (0, True), done
    words = toolbox.run("card", path).out
    assert "by 1mo, in base slots of 1d by the calendar of Europe/Berlin" in words
    ledger = (spring.folder / "ledger.csv").read_text()
    (spring.folder / "ledger.csv").write_text(ledger.replace(",650,", ",651,"))
    done = toolbox.run("card", "--check", path)
    assert (done.code, "slot 651 of query" in done.out + done.err) == (1, True), done


@pytest.mark.parametrize("more", [{}, {"max_slots": 1}, {"revise": 1}])
def test_passes_that_end_within_months_are_the_run_as_a_whole_and_a_call_too(spring, more):
    spring.requirements({f"u{user}": (180, 50.0) for user in range(20)})
    kept = {"revisions": spring.path("revised.parquet")} if "revise" in more else {}
    spring.done(**more, **kept)
    expected = {name: answers(spring, name) for name in NAMES}
    options = {"max_slots": 1} if "max_slots" in more else {}
    if "revise" not in more:
        found = called(spring, **options)
        same = {name: one.to_arrow().to_pylist() for name, one in found.items()}
        assert str(same) == str(expected)
    kept = {"revisions": spring.path("revised_parts.parquet")} if "revise" in more else {}
    spring.flags |= {**more, **kept, "output": spring.path("parts"), "state": spring.path("state")}
    spring.done(ledger=spring.path("costs.csv"), end="2024-03-20")
    spring.done("--resume", ledger=spring.path("costs.csv"))
    for name in NAMES:
        files = sorted(spring.folder.glob(f"parts/{name}-*.parquet"))
        assert len(files) == 2
        rows = pa.concat_tables(map(pq.read_table, files)).to_pylist()
        over = [row for row in expected[name] if row["end"] <= rows[-1]["end"]]
        assert str(rows) == str(over)
        assert {row["slot"] for row in rows if row["length"] == "1mo"} == {649, 650, 651}


# In a lifetime a user counts in one month, and in one day: the first ones.
def test_a_lifetime_is_for_the_first_months(spring, toolbox):
    spring.done(requirements=None, guarantee="user", epsilon=4000.0, max_slots=1)
    first = of_length("1mo", answers(spring, "visits"))[0]
    assert first["value"] == pytest.approx(290, abs=20)
    costs = read_table(spring.path("ledger.csv")).to_pylist()
    assert {row["query"] for row in costs} == set(NAMES)
    done = toolbox.run("card", "--check", spring.path("answers/card.json"))
    assert (done.code, "fine" in done.out) == (0, True), done


def test_commands_speak_of_months(spring, toolbox, caplog):
    done = spring.done(dry_run=True, end="2024-04-20")
    assert "visits: count of 1mo in 2 bins" in done.out
    spring.done(end="2024-04-20")
    within = "within a slot of visits, bill, days by 1w, days by 1mo, visits by 3mo, visits by 1y"
    assert within in caplog.text
    asked = f"--queries={spring.path('queries.yaml')}", "--default_requirement=30,1,100"
    visits = QUERIES.splitlines(keepends=True)
    path = spring.write("visits.yaml", "".join([*visits[:2], visits[3]]))
    plan = toolbox.run("plan", f"--queries={path}", asked[1], "--rate=20", "--drift=0")
    assert "| visits | 1mo | count |" in plan.out, plan
    audit = toolbox.run("audit", *asked, "--seconds=1")
    words = (
        "streamveil audit: query 'visits' has slots of calendar months, which is for slots of one"
    )
    assert (audit.code, words in audit.err) == (2, True), audit


# ---- months as base slots ----------------------------------------------------------------------

MONTHLY = """\
slot: 1mo
queries:
  - {name: visits, by: place, keys: [A, B], max_contributions: 31, rollups: [3mo]}
  - {name: bill, every: 3mo, statistic: mean, of: bill, bounds: [0, 40], max_contributions: 91}
"""
COUNTED = {
    **{"queries": None, "value_column": "place", "domain": "A,B", "slot": "1mo"},
    **{"max_contributions": 31, "layout": "tidy"},
}


@pytest.fixture
def monthly(spring):
    """The same, in base slots of months."""
    spring.write("queries.yaml", MONTHLY)
    spring.flags |= {"requirements": None, "budget": "4000/1y"}
    return spring


def test_base_slots_of_months(monthly, toolbox, schema):
    monthly.done(page=monthly.path("page.html"), start="2024-01-01", end="2024-07-01")
    visits = of_length("1mo", answers(monthly, "visits"))
    assert [row["start"].astimezone(ZONE).isoformat() for row in visits] == [
        *("2024-01-01T00:00:00+01:00", "2024-02-01T00:00:00+01:00", "2024-03-01T00:00:00+01:00"),
        *("2024-04-01T00:00:00+02:00", "2024-05-01T00:00:00+02:00", "2024-06-01T00:00:00+02:00"),
    ]
    assert [row["slot"] for row in visits] == [*range(648, 654)]
    assert [row["value"] for row in visits] == pytest.approx([0, 290, 310, 300, 0, 0], abs=4)
    quarters = of_length("3mo", answers(monthly, "visits"))
    assert [(row["slot"], round(row["value"], -1)) for row in quarters] == [(216, 600), (217, 300)]
    bills = answers(monthly, "bill")
    assert [(row["slot"], row["length"]) for row in bills] == [(216, "3mo"), (217, "3mo")]
    ledger = read_table(monthly.path("ledger.csv")).to_pylist()
    assert {row["window"] for row in ledger} == {12}
    booked = [
        (row["first_base_slot"], row["last_base_slot"]) for row in ledger if row["query"] == "bill"
    ]
    assert booked == [(648, 650), (651, 653)]
    path = monthly.path("answers/card.json")
    with open(path) as file:
        card = json.load(file)
    schema.validate(card)
    assert (card["data"]["slot"], card["data"]["slot_zone"]) == ("1mo", "Europe/Berlin")
    done = toolbox.run("card", "--check", path)
    assert (done.code, "fine" in done.out) == (0, True), done
    words = toolbox.run("card", path).out
    assert "by 3 base slots of 1mo by the calendar of Europe/Berlin" in words
    assert "by month" in (monthly.folder / "page.html").read_text()


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_one_count_by_month(monthly, toolbox, schema, zone):
    asked = {**COUNTED, "output": monthly.path("out.parquet"), "slot_zone": zone}
    monthly.done(**asked, page=monthly.path("page.html"), start="2024-02-10")
    rows = [row for row in monthly.rows("out.parquet") if row["key"] == "A"]
    midnights = [
        dt.datetime(2024, month, 1, tzinfo=ZONE if zone else dt.timezone.utc)
        for month in (2, 3, 4, 5)
    ]
    assert [(row["start"], row["end"]) for row in rows] == [*itertools.pairwise(midnights)]
    counts = [290, 310, 300 if zone else 290]
    assert [row["value"] for row in rows] == pytest.approx(counts, abs=4)
    card = monthly.path("out.parquet.card.json")
    with open(card) as file:
        schema.validate(json.load(file))
    done = toolbox.run("card", "--check", card)
    assert (done.code, "fine" in done.out) == (0, True), done


# Months close by the clock, here a file: a pass within April releases January, February and March.
@pytest.mark.parametrize(
    ("more", "name"), [({}, "visits.parquet"), ({}, "bill.parquet"), (COUNTED, "visits.parquet")]
)
def test_passes_over_months_are_the_run_as_a_whole(monthly, more, name):
    monthly.flags |= {**more, "ledger": None, "end": None, "start": "2024-01-01"}
    for folder in ("whole", "parts") if more else ():
        (monthly.folder / folder).mkdir()
    folders = {
        one: monthly.path(one if not more else f"{one}/{name}") for one in ("whole", "parts")
    }
    monthly.done(output=folders["whole"], **{"end": "2024-07-01"})
    passes = {
        **{"output": folders["parts"], "state": monthly.path("state")},
        "clock_file": monthly.path("clock"),
    }
    wrote = []
    for time in ("2024-04-10", "2024-04-30T21:59:00Z", "2024-07-01T00:00:00Z"):
        monthly.write("clock", time)
        monthly.done(*["--resume"] * bool(wrote), **passes)
        wrote.append(sorted(monthly.folder.glob(f"parts/{name.replace('.', '-*.')}")))
    tables = [pq.read_table(path) for path in wrote[-1]]
    assert [len(one) for one in wrote] == [1, 1, 2]
    ends = [table["end"].to_pylist()[-1].astimezone(ZONE).month for table in tables]
    assert ends == [4, 7]
    whole = pq.read_table(monthly.path(f"whole/{name}"))
    assert pa.concat_tables(tables).to_pylist() == whole.to_pylist()
    days = {"slot": "1d"} if more else {"queries": monthly.write("days.yaml", QUERIES)}
    days |= {"budget": "4000/365d"}
    monthly.refused("the slots changed", "slot 1mo", resume=True, **{**passes, **days})
    monthly.refused("--slot_zone", resume=True, **{**passes, "slot_zone": "Asia/Tokyo"})
