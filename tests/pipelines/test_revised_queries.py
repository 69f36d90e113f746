"""`--queries` with `--revise` and `--revisions`, and the call: each slot of a query once more."""

import datetime as dt
import json

import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.io import RESULT_SCHEMA, read_table
from streamveil.pipelines import yaml

UTC = dt.timezone.utc
FIRST, LAST = 6, 17
"""Days of January 2024, with which slots of all queries begin and end."""
QUERIES = """\
slot: 1d
queries:
  - {name: places, by: place, keys: ["=A", B], levels: [all], where: {kind: [car, bus]}}
  - {name: speed, every: 2d, statistic: mean, of: kmh, bounds: [0, 128], rollups: [4d]}
  - {name: late, every: 3d, statistic: quantiles, of: kmh, edges: [0, 30, 60], quantiles: [0.5]}
"""
SLOTS = {"places": 12, "speed": 6, "late": 4}


def events(day):
    return [
        (f"u{u}", ("=A", "B")[u % 2], ("car", "bus", "van")[u % 3], float((u * 7 + day) % 60), at)
        for u in range(60)
        for at in [dt.datetime(2024, 1, day, u % 24, tzinfo=UTC)]
        if (u + day) % 4
    ]


def table(rows):
    names = ("user", "place", "kind", "kmh", "time")
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


@pytest.fixture
def busy(toolbox, tmp_path):
    """A query set over twelve days."""
    made = toolbox.Job(tmp_path)
    made.write(
        "events.parquet", table([row for day in range(FIRST, LAST + 1) for row in events(day)])
    )
    made.requirements({f"u{u}": (3, 8.0 + u % 2) for u in range(60)})
    made.flags = {
        "queries": made.write("queries.yaml", QUERIES),
        "input": made.path("events.parquet"),
        "requirements": made.path("users.csv"),
        "user_column": "user",
        "time_column": "time",
        "noise_key": made.key(),
        "start": f"2024-01-{FIRST:02}",
        "end": f"2024-01-{LAST + 1}",
        "output": made.path("answers"),
        "ledger": made.path("ledger.csv"),
    }
    return made


def revised_by(rows, query):
    """Slots of a query from the first one on, and days until each is revised."""
    own = [row for row in rows if row["query"] == query]
    begun = min(row["slot"] for row in own)
    days = {row["slot"] - begun: (row["revised_at"] - row["end"]).days for row in own}
    assert len({(row["slot"], row["key"], row["statistic"]) for row in own}) == len(own)
    return days


def test_the_command_writes_what_the_call_gives(busy, toolbox):
    busy.done(output=busy.path("plain"), ledger=None)
    outcome = busy.done(revise=2, revisions=busy.path("revised.parquet"))
    assert f"wrote {busy.path('revised.parquet')}\n" in outcome.out
    for name in SLOTS:
        plain = read_table(busy.path(f"plain/{name}.parquet"))
        assert plain.equals(read_table(busy.path(f"answers/{name}.parquet")))
    revised = read_table(busy.path("revised.parquet"))
    diagnostics = ["length", "level", "note"]
    assert revised.column_names == [*RESULT_SCHEMA.names, "revised_at", *diagnostics]
    rows = revised.to_pylist()
    assert {row["status"] for row in rows} == {"revised"}
    for (name, slots), days in zip(SLOTS.items(), (1, 2, 3), strict=True):
        first = read_table(busy.path(f"answers/{name}.parquet")).to_pylist()[0]["slot"]
        last = max(row["revised_at"] for row in rows if row["query"] == name)
        found = revised_by(rows, name)
        assert list(found) == list(range(slots))
        assert first == min(row["slot"] for row in rows if row["query"] == name)
        ends = [min(2, slots - 1 - slot) * days for slot in range(slots)]
        assert list(found.values()) == ends, last
    given = {
        **{"user": "user", "time": "time", "requirements": busy.path("users.csv")},
        **{"noise_key": busy.flags["noise_key"], "start": f"2024-01-{FIRST:02}"},
        "end": f"2024-01-{LAST + 1}",
    }
    result = sv.release(
        busy.path("events.parquet"),
        busy.path("queries.yaml"),
        **given,
        run=sv.RunOptions(revise=2),
    )
    tables = [one.revisions_to_arrow() for one in result.values()]
    assert tables[0].schema.equals(revised.schema)
    called = [row for each in tables for row in each.to_pylist()]
    assert sorted(map(str, called)) == sorted(map(str, rows))
    with pytest.raises(sv.ConfigurationError, match="layout 'rows' is for a single count"):
        result["places"].revisions_to_arrow("rows")
    nothing = sv.release(busy.path("events.parquet"), busy.path("queries.yaml"), **given)
    assert nothing["places"].revisions == ()
    assert nothing["places"].revisions_to_arrow().num_rows == 0
    done = toolbox.run("card", "--check", busy.path("answers/card.json"))
    assert (done.code, "fine" in done.out) == (0, True), done


def test_a_file_of_text_quotes_what_spreadsheets_run(busy):
    busy.done(revise=2, revisions=busy.path("revised.csv"))
    rows = read_table(busy.path("revised.csv")).to_pylist()
    assert {row["key"] for row in rows if row["query"] == "places"} == {"'=A", "B", "all"}


def test_streams_take_revisions_too(busy, toolbox):
    both = f"folder:{busy.path('both')}"
    busy.done(output=both, ledger=None, revise=2, revisions=both, card=busy.path("run.card.json"))
    paths = sorted((busy.folder / "both").glob("revision-*.json"))
    assert len(paths) == sum(SLOTS.values())
    record = json.loads(paths[0].read_text().splitlines()[0])
    assert paths[0].name.startswith("revision-20240106T000000.000000Z-")
    assert record["status"] == "revised"
    assert {"revised_at", "query", "slot"} <= record.keys()
    assert set(record) >= {"key", "statistic", "value", "low", "high", "stderr"}
    topic = "kafka:localhost:9092/counts"
    words = f"--output and --revisions are both {topic}", "give them different names"
    busy.refused(*words, output=topic, ledger=None, revise=2, revisions=topic)
    checked = "card", "--check", busy.path("run.card.json"), f"--releases={busy.path('both')}"
    done = toolbox.run(*checked)
    assert "revisions went to folder, and were not compared" in done.err
    done = toolbox.run(*checked, f"--revisions={busy.path('both')}")
    assert "revisions" not in done.err


def test_a_check_finds_revisions_that_no_run_has_made(busy, toolbox):
    busy.done(revise=2, revisions=busy.path("revised.jsonl"))
    card = json.loads((busy.folder / "answers" / "card.json").read_text())
    del card["runs"][0]["files"]["revisions"]["sha256"]
    (busy.folder / "answers" / "card.json").write_text(json.dumps(card))
    path = busy.folder / "revised.jsonl"
    lines = path.read_text().splitlines()
    strange = {**json.loads(lines[0]), "slot": 30_000}
    path.write_text("\n".join([*lines, lines[0], json.dumps(strange)]) + "\n")
    done = toolbox.run("card", "--check", busy.path("answers/card.json"))
    assert done.code == 1
    assert "revisions of slots 30000 of query places were never answered" in done.err + done.out
    assert "are there twice: take one of them out" in done.err + done.out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"revise": 7}, ["--revise=7 needs a place", "--revisions"]),
        ({"revisions": "r.csv"}, ["--revisions=", "needs the slots", "--revise=7"]),
        ({"revise": 0, "revisions": "r.csv"}, ["revise is 0", "1 or more"]),
        ({"revise": 5000, "revisions": "r.csv"}, ["query 'places'", "revise is 5000", "1000"]),
        ({"revise": 7, "revisions": "r.xls"}, ["r.xls", ".parquet"]),
        ({"revise": 7, "revisions": "users.csv"}, ["--revisions=", "exists already"]),
        ({"revise": 7, "revisions": "ledger.csv"}, ["ledger.csv"]),
    ],
)
def test_what_does_not_fit_is_refused(busy, flags, words):
    place = flags.get("revisions")
    busy.refused(*words, **{**flags, "revisions": place and busy.path(place)})


def test_a_mechanism_that_cannot_revise_is_refused_with_its_query(busy):
    wrong = busy.write("ba.yaml", QUERIES.replace("every: 2d,", "every: 2d, mechanism: ba,"))
    words = "query 'speed': mechanism 'ba' cannot revise", "choose adaptive"
    busy.refused(*words, queries=wrong, revise=2, revisions=busy.path("r.csv"))


def test_yaml_names_the_output(busy):
    places = ("input", "output", "ledger", "queries")
    given = {name: value for name, value in busy.flags.items() if name not in places}
    given |= {"queries": busy.flags["queries"]}
    with pytest.raises(sv.ConfigurationError, match=r"^revise=2 needs a place"):
        yaml.private_queries(**given, revise=2)
    with pytest.raises(sv.ConfigurationError, match=r"^revisions=later needs"):
        yaml.private_queries(**given, revisions="later")
    made = yaml.private_queries(**given, revise=2, revisions="later")
    assert made.transform.revise == 2


@pytest.mark.slow
def test_passes_revise_as_one_run_does(busy, toolbox):
    """Each pass leaves its last slots to the next one, and the last one does the rest."""
    busy.done(revise=2, revisions=busy.path("once.jsonl"))
    (busy.folder / "in").mkdir()
    for day in range(FIRST, LAST + 1):
        busy.write(f"in/{day:02}.parquet", table(events(day)))
    clock = busy.folder / "clock"
    flags = {
        "input": busy.path("in/*.parquet"),
        "state": busy.path("state"),
        "clock_file": str(clock),
        "output": busy.path("parts"),
        "ledger": busy.path("costs.csv"),
        "revise": 2,
        "revisions": busy.path("later.jsonl"),
    }
    for day in (11, LAST + 1):
        clock.write_text(dt.datetime(2024, 1, day, 1, tzinfo=UTC).isoformat())
        busy.done(**flags, resume=True if day > 11 else None)
    paths = sorted(busy.folder.glob("later-????????.jsonl"))
    each = [read_table(str(path)).to_pylist() for path in paths]
    assert len(each) == 2
    assert all(each)
    rows = [row for some in each for row in some]
    assert sorted(map(str, rows)) == sorted(map(str, busy.rows("once.jsonl")))
    done = toolbox.run("card", "--check", busy.path("parts/card.json"))
    assert (done.code, "fine" in done.out) == (0, True), done
    # A stream whose end is moved on revises what comes, and no slot twice.
    for day in range(18, 22):
        busy.write(f"in/{day:02}.parquet", table(events(day)))
    clock.write_text(dt.datetime(2024, 1, 22, 1, tzinfo=UTC).isoformat())
    busy.done(**flags, resume=True, end="2024-01-22")
    (path,) = set(busy.folder.glob("later-????????.jsonl")) - set(paths)
    more = read_table(str(path)).to_pylist()
    assert [r["slot"] for r in more if r["query"] == "places" and r["key"] == "B"] == [
        max(r["slot"] for r in rows if r["query"] == "places") + n for n in (1, 2, 3, 4)
    ]
