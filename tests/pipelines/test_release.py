"""`streamveil release` on good input: what it counts, writes, and says."""

import datetime as dt
import gzip
import json
import math
import os
import re
import stat
import zoneinfo
from collections import Counter, defaultdict
from pathlib import Path

import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.io import RESULT_SCHEMA, read_ledger, read_releases, read_table
from streamveil.mechanisms.core.records import STATUSES

FORMATS = ("parquet", "avro", "csv", "jsonl")
MECHANISMS = ("bd", "ba", "pbd", "pba")
UTC = dt.timezone.utc


def day(n, hour=0):
    return dt.datetime(2024, 1, n, hour, tzinfo=UTC)


def visits(users=12, days=10):
    """At most one event of a user in a day, unlike from day to day, with a quiet day 6."""
    return [
        (f"u{u}", "ABC"[(u * u + d) % 3], day(d, (u * 7 + d) % 24))
        for d in range(1, days + 1)
        for u in range(users)
        if (u + d) % 3 and d != 6
    ]


# ---- the four mechanisms ---------------------------------------------------------------------

DOMAINS = {
    "bd": ("A,B,C", None),
    "ba": ("bins.txt", "A\n\nB\r\nC\n"),
    "pbd": ("bins.json", '["A", "B", "C"]'),
    "pba": ("bins.csv", "label,value\nalpha,A\nbeta,B\ngamma,C\n"),
}


@pytest.fixture(scope="module", params=MECHANISMS)
def exact(request, toolbox, tmp_path_factory):
    """A run with so large a budget that all that is published is the truth."""
    job = toolbox.Job(tmp_path_factory.mktemp(request.param))
    job.events(visits())
    job.requirements({f"u{u}": (1 + u % 3, toolbox.EXACT) for u in range(12)})
    domain, content = DOMAINS[request.param]
    if content:
        domain = job.write(domain, content)
    job.mechanism = request.param
    job.outcome = job.done(mechanism=request.param, domain=domain, ledger=job.path("ledger.jsonl"))
    return job


def test_counts_are_the_true_ones(exact, toolbox):
    truth = toolbox.true_counts(visits())
    rows = exact.rows()
    assert [row["start"] for row in rows] == [day(d) for d in range(1, 11)]
    last = [0, 0, 0]
    for row in rows:
        if row["status"] == "nullified":
            assert row["counts"] == last
        else:
            assert row["counts"] == truth.get(row["start"], [0, 0, 0]), row
        last = row["counts"]
    assert [row["status"] for row in rows].count("published") >= 3


def test_release_rows(exact, toolbox):
    rows = exact.json_rows("out.jsonl")
    published = None
    for previous, row in zip([None, *rows], rows, strict=False):
        assert set(row) == {
            *("slot", "start", "end", "counts", "status", "published_slot", "epsilon", "stderr"),
            *("mechanism", "alarm", "diagnostics"),
        }
        assert previous is None or row["slot"] == previous["slot"] + 1
        assert previous is None or row["start"] == previous["end"]
        assert row["mechanism"] == exact.mechanism
        if row["status"] == "published":
            published = row["slot"]
        assert row["published_slot"] == published
        assert len(row["counts"]) == len(row["stderr"]) == 3
        assert all(error is None or error >= 0 for error in row["stderr"])
    first = rows[0]
    assert first["slot"] == (day(1) - dt.datetime(1970, 1, 1, tzinfo=UTC)).days
    assert first["start"] == "2024-01-01T00:00:00Z"


def test_ledger_adds_up(exact):
    spent = defaultdict(list)
    slots = [row["slot"] for row in exact.rows()]
    rows = exact.rows("ledger.jsonl")
    assert Counter(row["slot"] for row in rows) == dict.fromkeys(slots, 3)
    for row in rows:
        assert row["users"] == 4
        key = row["window"], row["epsilon"]
        assert row["epsilon"] == 4000.0
        assert row["spent"] > 0
        spent[key].append(row["spent"])
        in_window = math.fsum(spent[key][-row["window"] :])
        assert row["spent_in_window"] == pytest.approx(in_window, abs=1e-9)
        assert in_window <= row["epsilon"] * (1 + 1e-12)
    assert sorted(window for window, _ in spent) == [1, 2, 3]


def test_summary(exact):
    counted = Counter(row["status"] for row in exact.rows())
    out = exact.outcome.out
    events = len(visits())
    assert f"{events} events read: {events} counted, 0 rejected, 0 late" in out
    listed = ", ".join(f"{counted[status]} {status}" for status in STATUSES if counted[status])
    assert f"slots:    {listed}\n" in out
    assert "rejected:" not in out
    use = max(row["spent_in_window"] / row["epsilon"] for row in exact.rows("ledger.jsonl"))
    (percent,) = re.findall(r"at most (\d+\.\d)% of any user's budget was spent", out)
    assert float(percent) == pytest.approx(100 * use, abs=0.06)
    assert out.count("wrote") == 3  # the card too
    assert f"wrote {exact.path('out.jsonl')}" in out


# ---- formats ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def in_all_formats(toolbox, tmp_path_factory):
    """The same events with noise of the same key, read from and written to every format."""
    job = toolbox.Job(tmp_path_factory.mktemp("formats"))
    job.requirements({f"u{u}": (1 + u % 3, 4.0) for u in range(12)})
    rows = [*visits(), ("stranger", "A", day(2)), ("u1", 'Zürich, "Z"', day(3))]
    key = job.key()
    for kind in FORMATS:
        job.done(
            input=job.events(rows, f"events.{kind}"),
            output=job.path(f"out.{kind}"),
            ledger=job.path(f"ledger.{kind}"),
            rejected=job.path(f"rejected.{kind}"),
            noise_key=key,
        )
    return job


def plain(releases):
    return [
        (
            *(r.slot, r.start, r.end, r.counts.tolist(), r.status, r.published_slot),
            *(r.epsilon, str(r.stderr.tolist()), r.mechanism, r.alarm, r.diagnostics),
        )
        for r in releases
    ]


@pytest.mark.parametrize("kind", FORMATS)
def test_formats_give_the_same(in_all_formats, kind):
    job = in_all_formats
    releases = plain(read_releases(job.path(f"out.{kind}")))
    assert len(releases) == 10
    assert releases == plain(read_releases(job.path("out.jsonl")))
    entries = read_ledger(job.path(f"ledger.{kind}"))
    others = read_ledger(job.path("ledger.jsonl"))
    assert len(entries) == 10
    for entry, other in zip(entries, others, strict=True):
        assert entry.slot == other.slot
        assert entry.classes == other.classes
        assert entry.spent.tolist() == other.spent.tolist()
        assert entry.spent_in_window.tolist() == other.spent_in_window.tolist()


@pytest.mark.parametrize("kind", FORMATS)
def test_dead_letters_in_every_format(in_all_formats, kind):
    job = in_all_formats
    assert stat.S_IMODE(os.stat(job.path(f"rejected.{kind}")).st_mode) == 0o600
    rows = {row["reason"]: row for row in job.rows(f"rejected.{kind}")}
    assert set(rows) == {"no requirement", "outside the domain"}
    stranger, outside = rows["no requirement"], rows["outside the domain"]
    assert stranger["source"] == outside["source"] == job.path(f"events.{kind}")
    # Rows count from 0; lines from 1, of which a CSV file has one more.
    first = {"csv": 2, "jsonl": 1}.get(kind, 0)
    assert stranger["row"] == first + len(visits())
    assert outside["row"] == stranger["row"] + 1
    assert "stranger" in stranger["detail"]
    assert json.loads(outside["record"])["value"] == 'Zürich, "Z"'


def test_labels_travel_with_the_releases(in_all_formats):
    metadata = pa.parquet.read_schema(in_all_formats.path("out.parquet")).metadata
    assert json.loads(metadata[b"streamveil.bins"]) == ["A", "B", "C"]


# ---- where events come from ------------------------------------------------------------------


def test_glob_of_files(job, toolbox):
    rows = [(f"u{1 + d % 3}", "ABC"[d % 3], day(d)) for d in range(1, 7)]
    job.events(rows[:2], "part-1.csv")
    job.events(rows[2:4], "part-2.csv")
    plain_file = Path(job.events(rows[4:], "part-3.csv"))
    job.write("part-3.csv.gz", gzip.compress(plain_file.read_bytes()))
    plain_file.unlink()
    job.events(rows * 2, "other.csv")
    job.done(input=job.path("part-*"))
    assert job.counts() == toolbox.true_counts(rows)


def test_glob_without_a_folder(job, monkeypatch):
    monkeypatch.chdir(job.folder)
    outcome = job.done(input="event*.csv")
    assert "4 events read" in outcome.out


def test_mixed_formats_and_column_order(job, toolbox):
    job.write("a1.csv", "time,extra,value,user\r\n2024-01-01,x,A,u1\r\n")
    job.write("a2.jsonl", '{"value":"B","time":"2024-01-02T03:00:00+03:00","user":"u2"}\n')
    job.events([("u3", "C", day(3))], "a3.parquet")
    job.done(input=job.path("a?.*"))
    assert job.counts() == {day(1): [1, 0, 0], day(2): [0, 1, 0], day(3): [0, 0, 1]}


def test_integer_ids_match_text_ids(job):
    job.requirements({"7": (1, 4000), "08": (1, 4000), "-9": (1, 4000)})
    table = {
        "user": pa.array([7, 7, 8, -9], pa.int32()),
        "value": pa.array([1, 2, 1, 1], pa.int64()),
        "time": pa.array([day(1), day(2), day(1), day(1)], pa.timestamp("ns", "UTC")),
    }
    outcome = job.done(input=job.write("events.parquet", pa.table(table)), domain="1,2")
    assert job.counts() == {day(1): [2, 0], day(2): [0, 1]}
    assert "rejected: no requirement 1 (give --rejected=FILE to keep them)" in outcome.out


def test_dictionary_and_large_columns(job, toolbox):
    rows = visits(3, 4)
    users, values, times = zip(*rows, strict=True)
    table = {
        "user": pa.array([f"u{1 + int(u[1])}" for u in users]).dictionary_encode(),
        "value": pa.array(values, pa.large_string()),
        "time": pa.array(times, pa.timestamp("ms", "UTC")),
    }
    job.done(input=job.write("events.parquet", pa.table(table)))
    assert job.counts() == toolbox.true_counts(rows)


@pytest.mark.parametrize(("unit", "scale"), [("s", 1), ("ns", 10**9)])
def test_times_as_numbers(job, unit, scale):
    seconds = int(day(3, 5).timestamp())
    table = {"user": ["u1"], "value": ["A"], "time": pa.array([seconds * scale], pa.int64())}
    job.done(input=job.write("events.parquet", pa.table(table)), time_unit=unit)
    assert job.counts() == {day(3): [1, 0, 0]}


def test_times_as_numbers_in_csv(job):
    """The unit holds for the digits of a text file as well."""
    job.lines(f"u1,A,{int(day(3, 5).timestamp())}", f"u2,B,{int(day(3).timestamp())}")
    job.done(time_unit="s")
    assert job.counts() == {day(3): [1, 1, 0]}


# ---- slots -----------------------------------------------------------------------------------


def test_range_and_quiet_slots(job):
    job.lines(
        "u1,A,2023-12-31T23:59:59Z",
        "u1,A,2024-01-03T00:00:00Z",
        "u2,B,2024-01-06T23:59:59Z",
        "u1,A,2024-01-08T00:00:00Z",
    )
    outcome = job.done(
        start="2024-01-02", end="2024-01-08", rejected=job.path("no.jsonl"), mechanism="pba"
    )
    counts = job.counts()
    assert list(counts) == [day(d) for d in range(2, 8)]
    assert counts[day(2)] == [0, 0, 0]
    assert counts[day(3)] == [1, 0, 0]
    assert counts[day(6)] == [0, 1, 0]
    rows = sorted(job.rows("no.jsonl"), key=lambda row: row["row"])
    assert [(row["row"], row["reason"]) for row in rows] == [
        (2, "outside the released slots"),
        (5, "outside the released slots"),
    ]
    assert "rejected: outside the released slots 2\n" in outcome.out
    # Before anything was published there is nothing to be wrong by.
    first = job.json_rows("out.jsonl")[0]
    assert (first["published_slot"], first["stderr"]) == (None, [None] * 3)


def test_range_without_any_event(job):
    job.lines()
    job.done(start="2024-01-01", end="2024-01-04", ledger=job.path("ledger.csv"), max_rejected="1")
    assert list(job.counts().values()) == [[0, 0, 0]] * 3
    assert len(job.rows("ledger.csv")) == 3 * 3


def test_end_within_a_slot_includes_it(job):
    job.done(
        origin="2024-01-01",  # or the slots would begin at the start
        start="2024-01-01T12:00Z",
        end="2024-01-02T00:00:01Z",
        rejected=job.path("no.csv"),
    )
    assert job.counts() == {day(1): [1, 1, 0], day(2): [0, 1, 0]}
    assert [row["row"] for row in job.rows("no.csv")] == [5]


def test_slots_of_an_hour_with_an_origin(job):
    job.lines("u1,A,2024-01-01T08:29:59Z", "u2,B,2024-01-01T08:30:00Z", "u3,C,2024-01-01T10:29:59Z")
    job.done(slot="1h", origin="2024-01-01T09:30:00+02:00")
    rows = {row["slot"]: (row["start"], row["counts"]) for row in job.rows()}
    assert rows == {
        0: (day(1, 7) + dt.timedelta(minutes=30), [1, 0, 0]),
        1: (day(1, 8) + dt.timedelta(minutes=30), [0, 1, 0]),
        2: (day(1, 9) + dt.timedelta(minutes=30), [0, 0, 1]),
    }


def test_origin_that_is_a_date_with_an_offset_is_refused(job):
    """Not read as 02:00 o'clock, as Python does."""
    job.refused("2024-01-01+02:00", "ISO 8601", origin="2024-01-01+02:00")


def test_before_1970(job):
    job.lines("u1,A,1969-12-31T23:59:59.999999Z", "u2,B,1969-12-30", "u3,C,1970-01-01")
    job.done()
    assert [(row["slot"], row["counts"]) for row in job.rows()] == [
        (-2, [0, 1, 0]),
        (-1, [1, 0, 0]),
        (0, [0, 0, 1]),
    ]


def test_local_times(job):
    """Clock times of Berlin, where 02:30 came twice on that day, and never in March."""
    job.lines(
        "u1,A,2024-10-27T00:30:00",
        "u2,B,2024-10-27 02:30:00",
        "u3,B,2024-10-27T02:30:00+01:00",
        "u1,C,2024-10-28T00:59",
        "u1,C,2024-03-31T02:30:00",
    )
    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    midnight = dt.datetime(2024, 10, 27, tzinfo=berlin).astimezone(UTC)
    job.done(
        slot="1h",
        time_zone="Europe/Berlin",
        origin=midnight.isoformat(),
        rejected=job.path("no.jsonl"),
    )
    busy = {row["slot"]: row["counts"] for row in job.rows() if any(row["counts"])}
    assert busy[0] == [1, 0, 0]
    assert busy[3] == [0, 1, 0]
    assert max(busy) == 25  # a day of 25 hours has passed
    letters = {row["row"]: row for row in job.rows("no.jsonl")}
    assert set(letters) == {3, 6}
    assert {row["reason"] for row in letters.values()} == {"ambiguous time"}
    assert "2024-10-27 02:30:00" in letters[3]["detail"]


# ---- users and what they may contribute ------------------------------------------------------


def test_default_requirement(job):
    job.lines("u1,A,2024-01-01", "guest,B,2024-01-01", "guest,B,2024-01-01", "other,B,2024-01-01")
    outcome = job.done(default_requirement="2,4000,50", ledger=job.path("ledger.jsonl"))
    assert job.counts() == {day(1): [1, 2, 0]}
    assert "4 events read: 3 counted, 0 rejected, 0 late, 1 beyond" in outcome.out
    sizes = {row["window"]: row["users"] for row in job.rows("ledger.jsonl")}
    assert sizes == {1: 1, 2: 51, 3: 1}


def test_default_requirement_alone(job):
    job.done(requirements=None, default_requirement="7,4000,50", ledger=job.path("ledger.jsonl"))
    assert job.counts() == {day(1): [1, 1, 0], day(2): [0, 1, 0], day(3): [0, 0, 1]}
    assert {(row["window"], row["users"]) for row in job.rows("ledger.jsonl")} == {(7, 50)}


def test_contributions(job):
    """Of a user's events in a slot, those in different bins go first if they are to."""
    job.lines("u1,A,2024-01-01", *["u1,B,2024-01-01"] * 3, "u2,A,2024-01-01", "u1,C,2024-01-02")
    outcome = job.done(max_contributions=2, keep="distinct")
    assert job.counts() == {day(1): [2, 1, 0], day(2): [0, 0, 1]}
    assert "6 events read: 4 counted, 0 rejected, 0 late, 2 beyond" in outcome.out


@pytest.mark.parametrize(("adjacency", "sensitivity"), [("add_remove", 3), ("replace", 6)])
def test_noise_fits_the_sensitivity(job, adjacency, sensitivity):
    job.requirements({f"u{u}": (1, 2.0) for u in range(600)})
    job.lines(*(f"u{u},A,2024-01-01" for u in range(600)))
    job.done(max_contributions=3, adjacency=adjacency, mechanism="pbd", noise_key=job.key())
    (row,) = job.rows()
    assert row["status"] == "published"
    # Half of the budget pays for the publication: Laplace noise has deviation sqrt(2) s / epsilon.
    assert row["epsilon"] <= 1.0
    expected = math.sqrt(2) * sensitivity / row["epsilon"]
    assert row["stderr"][1] == pytest.approx(expected, rel=0.03)
    assert row["counts"][0] == pytest.approx(600, abs=20 * expected)


# ---- numbers and places as values ------------------------------------------------------------


def test_edges(job):
    job.lines("u1,0,2024-01-01", "u2,10,2024-01-01", "u3, 9.99 ,2024-01-01", "u1,20,2024-01-01")
    outcome = job.done(domain="edges:0,10,20")
    assert job.counts() == {day(1): [2, 1]}
    assert "rejected: outside the domain 1 " in outcome.out


def test_grid(job):
    job.write(
        "events.csv",
        "user,lon,lat,time\nu1,-1,50.5,2024-01-01\nu2,0.5,51.9,2024-01-01\nu3,3,51,2024-01-01\n",
    )
    outcome = job.done(domain="grid:-2,50,2,52,2,2", value_column="lon,lat")
    assert job.counts() == {day(1): [1, 0, 0, 1]}
    assert "rejected: outside the domain 1 " in outcome.out


# ---- dead letters ----------------------------------------------------------------------------

FAULTS = {
    2: ("u1,A,yesterday", "unparsable time", "yesterday"),
    3: ("u1,A,2024-02-30", "unparsable time", "2024-02-30"),
    4: ("u1,A,2024-01-01T25:00:00", "unparsable time", "25:00"),
    5: ("u1,A,1704067200", "unparsable time", "1704067200"),
    6: ("u1,A,", "null time", "time"),
    7: (",A,2024-01-01", "null user", "user"),
    8: ('"",A,2024-01-01', "null user", "user"),
    9: ("who,A,2024-01-01", "no requirement", "who"),
    10: ("u1,D,2024-01-01", "outside the domain", "D"),
    11: ("u1,a,2024-01-01", "outside the domain", "a"),
    12: ("u1,,2024-01-01", "null value", "value"),
    13: ("u1,A", "unparsable", "2 fields where the header has 3"),
    14: ("u1,A,2024-01-01,x", "unparsable", "4 fields where the header has 3"),
}


@pytest.fixture(scope="module")
def faulty(toolbox, tmp_path_factory):
    job = toolbox.Job(tmp_path_factory.mktemp("faulty"))
    job.requirements({"u1": (1, 4000), "u2": (2, 4000)})
    job.lines(*(line for line, _, _ in FAULTS.values()), "u2,B,2024-01-01T12:00:00Z")
    job.outcome = job.done(rejected=job.path("no.jsonl"), max_rejected="1")
    return job


def test_every_fault_is_a_dead_letter(faulty):
    letters = {row["row"]: row for row in faulty.json_rows("no.jsonl")}
    assert {number: row["reason"] for number, row in letters.items()} == {
        number: reason for number, (_, reason, _) in FAULTS.items()
    }
    for number, (line, _, detail) in FAULTS.items():
        letter = letters[number]
        assert letter["source"] == faulty.path("events.csv")
        assert detail in letter["detail"], letter
        raw = [part for part in line.replace('"', "").split(",") if part]
        assert all(part in letter["record"] for part in raw), letter
    assert faulty.counts() == {day(1): [0, 1, 0]}


def test_summary_counts_every_dead_letter(faulty):
    out = faulty.outcome.out
    assert f"{len(FAULTS) + 1} events read: 1 counted, {len(FAULTS)} rejected" in out
    (line,) = re.findall(r"rejected: (.*)", out)
    said = dict(part.rsplit(" ", 1) for part in line.split(", "))
    counted = Counter(reason for _, reason, _ in FAULTS.values())
    assert {reason: int(number) for reason, number in said.items()} == counted


def test_numbers_that_are_none(job):
    table = {
        "user": pa.array(["u1", "u1", "u2", None, "u3"]),
        "value": pa.array([float("nan"), None, 1.0, 1.0, float("inf")]),
        "time": pa.array([day(1)] * 5, pa.timestamp("us", "UTC")),
    }
    path = job.write("events.parquet", pa.table(table))
    job.done(input=path, domain="edges:0,2", rejected=job.path("no.jsonl"), max_rejected="1")
    assert job.counts() == {day(1): [1]}
    reasons = {row["row"]: row["reason"] for row in job.rows("no.jsonl")}
    assert reasons == {
        0: "not a number",
        1: "null value",
        3: "null user",
        4: "outside the domain",
    }


def test_record_of_a_dead_letter_is_json(job):
    """NaN is no JSON: other readers stumble over it."""
    table = {"user": ["u1", "u1"], "value": [float("nan"), 1.0], "time": ["2024-01-01"] * 2}
    path = job.write("events.parquet", pa.table(table))
    job.done(input=path, domain="edges:0,2", rejected=job.path("no.jsonl"))
    (letter,) = job.json_rows("no.jsonl")

    def refuse(name):
        raise AssertionError(f"{name} in {letter['record']}")

    json.loads(letter["record"], parse_constant=refuse)


def test_json_lines_that_are_no_events(job):
    job.write(
        "events.jsonl",
        '{"user":"u1","value":"A","time":"2024-01-01"}\n'
        "not json\n"
        "\n"
        "[1]\n"
        '{"user":["u1"],"value":"A","time":"2024-01-01"}\n'
        '{"user":{},"value":"A","time":"2024-01-01"}\n'
        '{"user":"u2","value":"B"}\n'
        '{"user":"u2","value":"B"',
    )
    job.done(input=job.path("events.jsonl"), rejected=job.path("no.jsonl"), max_rejected="1")
    assert job.counts() == {day(1): [1, 0, 0]}
    letters = {row["row"]: (row["reason"], row["detail"]) for row in job.rows("no.jsonl")}
    assert set(letters) == {2, 4, 5, 6, 7, 8}
    assert letters[7][0] == "null time"
    assert all(letters[n][0] == "unparsable" for n in (2, 4, 5, 6, 8))
    assert "list" in letters[5][1]
    assert "object" in letters[6][1]


# ---- Beam ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ["--runner=BundleBasedDirectRunner"],
        ["--runner=DirectRunner", "--job_name=x"],
        ["--direct_num_workers=1", "--job_name", "x", "--experiments=a"],
    ],
    ids=lambda flags: flags[0].lstrip("-"),
)
def test_flags_of_beam_pass_through(job, flags):
    outcome = job(*flags)
    # What failed wrote nothing, as it says itself.
    assert outcome.code == 0 or not Path(job.path("out.jsonl")).exists(), outcome.message
    assert outcome.code == 0, outcome.message
    assert job.counts() == {day(1): [1, 1, 0], day(2): [0, 1, 0], day(3): [0, 0, 1]}


def test_shards_change_nothing(job, toolbox):
    job.events([(f"u{1 + d % 3}", "ABC"[d % 3], day(1 + d % 2, d)) for d in range(20)])
    key = job.key()
    job.done(noise_key=key)
    job.done(noise_key=key, output=job.path("sharded.jsonl"), shards=3)
    assert job.counts("sharded.jsonl") == job.counts()


# ---- requirements that change ------------------------------------------------------------------

CHANGES = """user,slot,time,window_backward,epsilon_backward,window_forward,epsilon_forward
u1,19725,,1,4000,1,4000
u1,,2024-01-04T12:00:00Z,2,4000,2,4000
u2,19726,,,,,
new,,2024-01-03,1,4000,1,4000
u3,19726,,9,4000,1,4000
u4,later,,1,4000,1,4000
"""


@pytest.mark.parametrize("name", ["adaptive", "dpbd", "dpba"])
def test_requirements_that_change(job, toolbox, name):
    days = [day(d, 3) for d in range(1, 8)]
    job.events([(u, "A", d) for d in days for u in ("u0", "u1", "u2", "u3", "u4", "new", "nobody")])
    job.requirements({f"u{u}": (3, toolbox.EXACT) for u in range(5)})
    outcome = job.done(
        mechanism=name,
        requirement_changes=job.write("changes.csv", CHANGES),
        start="2024-01-01",
        end="2024-01-08",
        ledger=job.path("ledger.csv"),
        rejected=job.path("dead.jsonl"),
    )
    assert "changes:  6 read, 4 accepted, 0 of them late" in outcome.out
    # 19725 is 3 January: `new` joins on that day, u2 leaves on the next.
    assert [row["slot"] for row in job.rows()] == list(range(19723, 19730))
    ledger = job.rows("ledger.csv")
    users = Counter()
    for row in ledger:
        users[int(row["slot"])] += int(row["users"])
        assert float(row["spent_backward"]) <= float(row["epsilon_backward"]) + 1e-9
    assert [users[slot] for slot in range(19723, 19730)] == [5, 5, 6, 5, 5, 5, 5]
    asked = Counter((int(row["slot"]), int(row["window_forward"])) for row in ledger)
    assert asked[19725, 1] == 2  # u1 and `new`, who have not the same history
    assert asked[19726, 2] == 0
    assert asked[19727, 2] == 1
    reasons = Counter(row["reason"] for row in job.rows("dead.jsonl"))
    assert reasons["window longer than the longest"] == 1
    assert reasons["no slot"] == 1
    assert reasons["no requirement"] >= 7


def test_changes_and_what_does_not_go_with_them(job, toolbox):
    job.events([("u0", "A", day(1))])
    job.requirements({"u0": (3, 1.0)})
    changes = job.write("changes.csv", CHANGES)
    both = {"requirement_changes": changes, "start": "2024-01-01"}
    job.refused("'pba' is for requirements that never change", mechanism="pba", **both)
    job.refused("give --start", requirement_changes=changes)
    job.refused("--longest_window=9 applies to changing", longest_window=9)
    wrong = job.write("wrong.csv", "user,slot\nu0,3\n")
    job.refused("window_backward", requirement_changes=wrong, start="2024-01-01")


@pytest.mark.parametrize(("delimiter", "state"), [("\\t", None), (";", "state")])
def test_files_without_header_and_of_another_delimiter(job, delimiter, state):
    parted = ";" if delimiter == ";" else "\t"
    lines = [["u1", "A", "2024-01-01"], ["u2", "B", "2024-01-01"], ["u3", "B"]]
    path = job.write("u.data", "\n".join(map(parted.join, lines)) + "\n")
    given = {"delimiter": delimiter, "columns": "user,value,time", "domain": "A,B"}
    outcome = job.done(
        input=path,
        start="2024-01-01",
        end="2024-01-02",
        state=state and job.path(state),
        **given,
    )
    assert re.search("unparsable 1|1 rejected", outcome.out)
    (made,) = (Path(file).name for file in job.files() if Path(file).match("out*.jsonl"))
    assert job.rows(made)[0]["counts"] == [1, 1]


def test_requirements_with_columns_of_other_names(job):
    job.write("users.csv", "id,days,eps\nu1,1,4000\nu2,2,4000\nu3,3,4000\n")
    job.done(requirement_columns="id,days,eps")
    assert sum(map(sum, job.counts().values())) == 4
    job.refused("eps,days", "USER,WINDOW,EPSILON", requirement_columns="eps,days")


def test_weeks_begin_where_the_release_does(job):
    """They began on Thursdays, as 1970 did, and the first one was half empty."""
    job.done(slot="1w", start="2024-01-01", end="2024-01-15")
    assert [f"{start:%A %d}" for start in job.counts()] == ["Monday 01", "Monday 08"]


def test_days_of_a_calendar_and_times_in_a_form(job):
    """On 31 March the clocks in Berlin went from 2 to 3: the day had 23 hours."""
    job.lines("u1,A,30.03.2024 23:30", "u2,B,31.03.2024 23:30", "u3,C,01.04.2024 00:30")
    job.done(
        slot="1d",
        slot_zone="Europe/Berlin",
        time_zone="Europe/Berlin",
        time_format="%d.%m.%Y %H:%M",
        start="2024-03-30",
        end="2024-04-02",
    )
    rows = job.rows()
    assert [row["counts"] for row in rows] == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert [(row["end"] - row["start"]).total_seconds() / 3600 for row in rows] == [24, 23, 24]


@pytest.mark.parametrize("layout", [None, "tidy"])
def test_files_are_tidy_unless_asked_for_otherwise(job, layout):
    job.done(layout=layout)
    rows = job.rows()
    assert list(rows[0]) == RESULT_SCHEMA.names
    assert [(row["slot"], row["key"], round(row["value"])) for row in rows[:3]] == [
        (19723, "A", 1),
        (19723, "B", 1),
        (19723, "C", 0),
    ]
    assert all(row["low"] <= row["value"] <= row["high"] for row in rows)


def test_times_of_a_calendar_are_local(job):
    """In text as well; the clocks of Berlin go forward in the second slot."""
    job.lines("u1,A,2024-03-30T12:00:00Z")
    days = {"start": "2024-03-30", "end": "2024-04-02", "slot_zone": "Europe/Berlin"}
    job.done(**days, layout=None)
    starts = list(dict.fromkeys((row["start"], row["end"]) for row in job.json_rows("out.jsonl")))
    assert starts == [
        ("2024-03-30T00:00:00+01:00", "2024-03-31T00:00:00+01:00"),
        ("2024-03-31T00:00:00+01:00", "2024-04-01T00:00:00+02:00"),
        ("2024-04-01T00:00:00+02:00", "2024-04-02T00:00:00+02:00"),
    ]
    job.done(**days, layout=None, output=job.path("out.parquet"))
    table = read_table(job.path("out.parquet"))
    assert table.schema.field("start").type.tz == "Europe/Berlin"
    assert table["start"].to_pylist()[3].isoformat() == starts[1][0]


def test_times_in_several_forms(job):
    """As flags, which are repeated, and as a list of Python, which is the same."""
    job.lines("u1,A,31.01.2024", 'u2,B,"Jan 30, 2024"', "u3,C,2024-01-29T10:00Z")
    forms = ["%d.%m.%Y", "%b %d, %Y", "iso"]
    flags = (f"--time_format={form}" for form in forms)
    outcome = job(*flags, start="2024-01-29", end="2024-02-01")
    assert outcome.code == 0, outcome
    assert [row["counts"] for row in job.rows()] == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]
    found = sv.release(
        job.path("events.csv"),
        **{"user": "user", "value": "value", "time": "time", "slot": "1d", "domain": "A,B,C"},
        **{"start": "2024-01-29", "end": "2024-02-01", "mechanism": "uniform"},
        requirements=job.path("users.csv"),
        run=sv.RunOptions(time_format=forms),
    )
    assert found.rejected.num_rows == 0


@pytest.mark.parametrize(
    ("zone", "day", "start"),
    [("Africa/Cairo", 26, "2024-04-25T22:00Z"), ("Asia/Gaza", 20, "2024-04-19T22:00Z")],
)
def test_a_date_without_a_midnight_is_its_day(job, zone, day, start):
    """Clocks skip the first hour of these days; their events were lost, and published as 0."""
    job.lines(*(f"u{i},A,2024-04-{day + i - 2}" for i in (1, 2, 3)))
    range_of = {"start": f"2024-04-{day - 1}", "end": f"2024-04-{day + 2}"}
    job.done(slot="1d", slot_zone=zone, time_zone=zone, **range_of)
    rows = job.rows()
    assert [row["counts"][0] for row in rows] == [1, 1, 1]
    assert rows[1]["start"] == dt.datetime.fromisoformat(start.replace("Z", "+00:00"))
