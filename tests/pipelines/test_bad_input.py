"""`streamveil release` on bad input: it says what, where and what to do, and leaves nothing.

Every test asserts the words that a person needs: the value, the place and the remedy.
"""

import datetime as dt
import gzip
import io
import os
import subprocess
import sys
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

UTC = dt.timezone.utc
FIRST = dt.datetime(2024, 1, 1, tzinfo=UTC)
OUTPUTS = ("output", "ledger", "rejected")


def table(**columns):
    """Three good events, but for the columns given."""
    good = {
        "user": ["u1", "u2", "u3"],
        "value": ["A", "B", "C"],
        "time": pa.array([FIRST] * 3, pa.timestamp("us", "UTC")),
    }
    return pa.table({**good, **columns})


# ---- the file of events ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["parquet", "avro", "csv", "jsonl"])
def test_missing_column(job, kind):
    path = job.events([("u1", "A", FIRST)], f"events.{kind}")
    job.refused(
        path, "no column 'town'", "'user', 'value', 'time'", input=path, value_column="town"
    )


def test_column_twice(job):
    path = job.write("events.csv", "user,value,time,value\nu1,A,2024-01-01,B\n")
    job.refused(path, "2 columns named 'value'", input=path)


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("user", [1.0, 2.0, 3.0], ["double", "text or whole numbers", "convert"]),
        ("user", [True, False, True], ["bool", "text or whole numbers"]),
        ("user", [b"u1", b"u2", b"u3"], ["binary", "text or whole numbers"]),
        ("time", [[1], [2], [3]], ["list<", "timestamps", "ISO 8601", "--time_unit"]),
        ("time", [1704067200] * 3, ["int64", "--time_unit=s, ms, us or ns"]),
        ("value", [{"a": 1}] * 3, ["struct<", "text, whole numbers or booleans", "convert"]),
        ("value", [1.0, 2.0, 3.0], ["double", "numeric edges"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_type_of_a_column(job, column, values, words):
    path = job.write("events.parquet", table(**{column: values}))
    job.refused(f"column '{column}'", *words, input=path)


def test_wrong_type_names_the_file(job):
    """Of a hundred files, one may have a column of another type."""
    job.write("a.parquet", table())
    bad = job.write("b.parquet", table(user=[1.0, 2.0, 3.0]))
    job.refused(bad, "column 'user'", "double", input=job.path("?.parquet"))


def test_message_has_no_steps_of_the_pipeline(job):
    path = job.write("events.parquet", table(user=[1.0, 2.0, 3.0]))
    outcome = job.refused("column 'user'", input=path)
    assert "while running" not in outcome.message
    assert "ParDo" not in outcome.message


def test_edges_need_numbers(job):
    path = job.write("events.parquet", table(value=[b"0", b"1", b"0"]))
    job.refused("column 'value'", "binary", "numbers", input=path, domain="edges:0,1,2")


@pytest.mark.parametrize("pattern", ["nothing.csv", "nothing-*.parquet", "no/where/*.csv"])
def test_no_file_matches(job, pattern):
    path = job.path(pattern)
    job.refused(path, "no file matches", "check the path", input=path)


def test_folder_without_files_of_events(job):
    os.makedirs(job.path("in"))
    job.refused("holds no file whose name says a format", input=job.path("in"))


def test_unknown_format(job):
    path = job.write("events.txt", "user,value,time\n")
    job.refused(path, "format", ".parquet, .avro, .csv, .jsonl", input=path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file(job):
    path = job.path("events.csv")
    Path(path).chmod(0)
    outcome = job(input=path)
    Path(path).chmod(0o600)
    assert outcome.code == 2
    assert path in outcome.message
    assert "Permission" in outcome.message


def test_unknown_filesystem(job):
    job.refused("nowhere://x/events.csv", "scheme", input="nowhere://x/events.csv")


@pytest.mark.parametrize("kind", ["parquet", "avro", "csv", "jsonl", "csv.gz"])
def test_empty_file(job, kind):
    path = job.write(f"events.{kind}", b"")
    job.refused(path, "empty (0 bytes)", "leave it out", input=path)


def parquet_bytes():
    sink = io.BytesIO()
    pq.write_table(table(), sink)
    return sink.getvalue()


def avro_bytes():
    """Three blocks of a hundred events each."""
    fields = [{"name": name, "type": "string"} for name in ("user", "value", "time")]
    schema = {"type": "record", "name": "Event", "fields": fields}
    event = {"user": "u1", "value": "A", "time": "2024-01-01"}
    sink = io.BytesIO()
    fastavro.writer(sink, schema, [event] * 300, sync_interval=1)
    return sink.getvalue()


CSV_TEXT = b"user,value,time\n" + b"u1,A,2024-01-01\n" * 5000


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("cut.parquet", parquet_bytes()[:-20]),
        ("hole.parquet", parquet_bytes()[:30] + parquet_bytes()[60:]),
        ("text.parquet", CSV_TEXT),
        ("cut.avro", avro_bytes()[:-40]),
        ("header.avro", avro_bytes()[:30]),
        ("text.avro", CSV_TEXT),
        ("cut.csv.gz", gzip.compress(CSV_TEXT)[:-12]),
        ("text.csv.gz", CSV_TEXT),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_broken_file(job, name, content):
    path = job.write(name, content)
    job.refused(path, "cannot be read", "check that it is complete", input=path)


def test_one_broken_file_of_many_stops_it(job):
    good = job.write("a.parquet", table())
    bad = job.write("b.parquet", parquet_bytes()[:-20])
    outcome = job.refused(bad, "cannot be read", input=job.path("?.parquet"))
    assert good not in outcome.message


def test_other_format_than_the_name_says(job):
    path = job.write("events.jsonl", CSV_TEXT)
    job.refused(path, "no JSON object", "one object on every line", input=path)
    path = job.write("events.csv", "\n")
    job.refused(path, "line 1", "name the columns", input=path)
    path = job.write("events.csv", parquet_bytes())
    outcome = job.refused(path, input=path)
    assert outcome.message.isprintable()


def test_reserved_column(job):
    path = job.write("events.csv", "__row__,value,time\nu1,A,2024-01-01\n")
    job.refused("__row__", "rename", input=path, user_column="__row__")


# ---- how CSV files are written -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "header", "words"),
    [
        ({}, "user;value;time", ["parted by ';'", "--delimiter=';'"]),
        ({}, "user\tvalue\ttime", ["parted by 'tab'", "--delimiter='tab'"]),
        ({"delimiter": ";"}, "user,value,time", ["parted by 'comma'", "--delimiter='comma'"]),
        ({}, "u1,A,2024-01-01", ["no column 'user'", "line 1 is an event already", "--columns="]),
        ({"columns": "who,value,time"}, "u1,A,2024-01-01", ["no column 'user'", "of --columns"]),
        ({"delimiter": ";;"}, "user;;value", ["';;'", "--delimiter", "not one character", "tab"]),
        ({"delimiter": '"'}, "user", ["--delimiter", "not one character"]),
        ({"columns": "user,value,,time"}, "u1,A", ["--columns", "name every field"]),
        ({"columns": "user,value,user"}, "u1,A", ["--columns", "name every field"]),
    ],
)
def test_how_csv_is_written(job, flags, header, words):
    path = job.write("events.csv", f"{header}\n")
    job.refused(*words, input=path, **flags)


def test_dialects_are_of_csv_alone(job):
    path = job.write("events.parquet", table())
    job.refused(path, "CSV files only", "leave them out", input=path, delimiter=";")
    job.refused("no CSV files", input="kafka:h:1/t", output="kafka:h:1/u", columns="a,b")


def test_a_table_of_requirements_parted_otherwise(job):
    path = job.write("users.csv", "user;window;epsilon\nu1;1;1\n")
    outcome = job.refused(path, "parted by ';'", "write commas")
    assert "--delimiter" not in outcome.message


def test_names_with_line_breaks_stay_in_one_line(job):
    outcome = job.refused("a\\nb.csv", input="a\nb.csv")
    assert len(outcome.message.splitlines()) == 1


# ---- nothing to count ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["parquet", "avro", "csv", "jsonl"])
def test_no_rows(job, kind):
    if kind == "jsonl":  # a line without content: a file of no bytes is refused as such
        job.refused("JSON object", input=job.write("events.jsonl", "\n"))
        return
    path = job.events([], f"events.{kind}")
    job.refused("no event was accepted", "--start", "--end", code=3, input=path)


def test_all_rows_rejected(job):
    job.lines("who,A,2024-01-01", "u1,D,2024-01-01", "u1,A,tomorrow")
    job.refused("no event was accepted", "--start and --end", code=3)


def test_all_rows_rejected_says_why(job):
    """Nobody can check rejected events that were not written: the message must say it."""
    job.lines(*["who,A,2024-01-01"] * 7)
    outcome = job(rejected=job.path("no.jsonl"))
    assert outcome.code == 3
    kept = Path(job.path("no.jsonl")).exists()
    assert kept or "no requirement" in outcome.message, outcome.message


# ---- the domain ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("domain", "words"),
    [
        ("A,B,A", ["'A' twice", "once"]),
        ("A,B,A ", ["'A' twice"]),
        ("A,,B", ["empty value", "name every bin"]),
        (" ,A", ["empty value"]),
        ("edges:0", ["0", "two or more"]),
        ("edges:0,x", ["edges:0,x", "not a number"]),
        ("edges:2,1", ["2.0", "1.0", "rise"]),
        ("edges:1,1", ["rise"]),
        ("edges:0,inf", ["inf", "finite"]),
        ("grid:0,0,1", ["grid:0,0,1", "WEST,SOUTH,EAST,NORTH,COLUMNS,ROWS"]),
        ("grid:0,0,1,1,1.5,2", ["WEST,SOUTH,EAST,NORTH,COLUMNS,ROWS"]),
        ("grid:10,0,1,1,2,2", ["west < east", "10.0"]),
        ("grid:0,0,1,1,2,2", ["longitude,latitude", "value"]),
        ("no/bins", ["no/bins", "does not exist"]),
        ("missing.txt", ["missing.txt", "does not exist", "check its name"]),
    ],
)
def test_domain(job, domain, words):
    job.refused(*words, domain=domain)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("bins.txt", "A\nB\nA\n", ["'A' twice"]),
        ("bins.txt", "\n", ["no bins", "at least one"]),
        ("bins.txt", b"\xff\xfe", ["UTF-8"]),
        ("bins.csv", "value\nA\nA\n", ["'A' twice"]),
        ("bins.csv", "value,x\nA,1\n,2\n", ["empty value"]),
        ("bins.json", '["A", "A"]', ["'A' twice"]),
        ("bins.json", '["A", ""]', ["empty value"]),
        ("bins.json", '["A", null]', ["empty value"]),
        ("bins.json", '{"A": 1}', ["not a list"]),
        ("bins.json", "[", ["JSON"]),
        ("bins.jsonl", '{"bin":"A"}\n', ["no column 'value'", "bin"]),
        ("bins.parquet", pa.table({"value": ["A", None]}), ["empty value"]),
        ("bins.parquet", b"PAR1", ["cannot be read"]),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value else "",
)
def test_domain_file(job, name, content, words):
    path = job.write(name, content)
    job.refused(path, *words, domain=path)


def test_domain_folder(job):
    job.refused(str(job.folder), domain=str(job.folder))


# ---- the requirements ------------------------------------------------------------------------

WINDOW = "whole number of slots from 1 to"
EPSILON = "number above 0 and at most 4096"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("u1,0,1", ["line 2", "window", "'0'", WINDOW]),
        ("u1,1,1\nu2,-3,1", ["line 3", "'-3'", WINDOW]),
        ("u1,1.5,1", ["line 2", "'1.5'", WINDOW]),
        ("u1,week,1", ["line 2", "'week'", "not a number"]),
        ("u1,,1", ["line 2", "window", "missing"]),
        ("u1,99999999,1", ["line 2", "'99999999'", WINDOW]),
        ("u1,1,0", ["line 2", "epsilon", "'0'", EPSILON]),
        ("u1,1,-1", ["line 2", "'-1'", EPSILON]),
        ("u1,1,NaN", ["line 2", "'NaN'", "not a number"]),
        ("u1,1,inf", ["line 2", "'inf'", "not a finite number"]),
        ("u1,1,5000", ["line 2", "'5000'", EPSILON]),
        ("u1,1,", ["line 2", "epsilon", "missing"]),
        ('u1,1,"1,5"', ["line 2", "'1,5'", "not a number"]),
        ("u1,1,1e-300", ["1e-300"]),
        (",1,1", ["line 2", "user", "missing", "name the user"]),
        ("u1,1", ["line 2", "2 fields", "'u1,1'", "correct the line"]),
        ("u1,1,1\nu2,1,1\nu1,2,3", ["'u1'", "two different", "line 2", "line 4", "keep one"]),
        ("", ["no rows", "add rows", "default"]),
    ],
)
def test_requirements(job, lines, words):
    path = job.write("users.csv", f"user,window,epsilon\n{lines}\n")
    outcome = job.refused(*words)
    assert path in outcome.message


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"user": ["u1"], "window": [0], "epsilon": [1.0]}, ["row 0", "window 0", WINDOW]),
        ({"user": ["u1"], "window": [1.5], "epsilon": [1.0]}, ["row 0", "1.5", WINDOW]),
        ({"user": ["u1"], "window": [1], "epsilon": [float("inf")]}, ["row 0", "inf", EPSILON]),
        ({"user": ["u1"], "window": [1], "epsilon": [float("nan")]}, ["row 0", "nan", EPSILON]),
        ({"user": [None], "window": [1], "epsilon": [1.0]}, ["row 0", "user", "missing"]),
        ({"user": [1.5], "window": [1], "epsilon": [1.0]}, ["column 'user'", "double"]),
        ({"user": ["u1"], "window": [[1]], "epsilon": [1.0]}, ["column 'window'", "list"]),
        (
            {"user": ["u1"], "window": [1]},
            ["no column 'epsilon'", "'user', 'window'", "--requirement_columns"],
        ),
    ],
)
def test_requirements_in_parquet(job, columns, words):
    path = job.write("users.parquet", pa.table(columns))
    job.refused(path, *words, requirements=path)


def test_requirements_listed_twice_alike(job):
    job.write("users.csv", "user,window,epsilon\nu1,1,4000\nu1,1.0,4e3\n")
    outcome = job.done(ledger=job.path("ledger.jsonl"))
    assert {row["users"] for row in job.rows("ledger.jsonl")} == {1}
    assert "no requirement 2" in outcome.out


def test_requirements_missing(job):
    job.refused("--requirements", "--budget=1/7d", requirements=None)
    path = job.path("nobody.csv")
    job.refused(path, "no file matches", requirements=path)


def test_windows_too_long_for_the_memory(job):
    """Known from the requirements alone, so before anything is read."""
    job.requirements({f"u{n}": (1_000_000 - n, 1.0) for n in range(40)})
    outcome = job.refused("window of 1000000 slots", "40 classes", "longer slots")
    assert "Traceback" not in outcome.log


@pytest.mark.parametrize(
    "text", ["7", "7,", "7,1,", "7,1,many", "7,1,1.5", "7,1,5,6", "", "7;1;5", "7,1,inf"]
)
def test_malformed_default_requirement(job, text):
    words = [f"--default_requirement={text} ", "WINDOW,EPSILON,USERS", "7,1.0,5000"]
    job.refused(*words, default_requirement=text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0,1,10", ["window", "0", "from 1"]),
        ("1.5,1,10", ["window 1.5"]),
        ("7,0,10", ["epsilon", "0", "above 0"]),
        ("7,nan,10", ["epsilon nan"]),
        ("7,1,0", ["default requirement", "0 users", "1 or more"]),
        ("7,1,-5", ["default requirement", "-5 users"]),
        ("7,1e-12,10", ["--default_requirement=7,1e-12,10", "window=7", "2**-40", "ask for more"]),
    ],
)
def test_default_requirement_out_of_range(job, text, words):
    job.refused(*words, default_requirement=text)


def test_default_requirement_out_of_range_names_the_flag(job):
    job.refused("--default_requirement", "window", default_requirement="0,1,10")


def test_a_user_is_what_one_column_says(job):
    job.refused(
        "--user_column names 2 columns (card, device)",
        "join them into one column first",
        user_column="card,device",
    )


# ---- the budget of everyone --------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["1", "1/", "1_0/7d", "/7d", "7d", "1/7", "one/7d", "0/7d", "-1/7d", "nan/7d"]
)
def test_malformed_budget(job, text):
    job.refused(f"--budget={text} is not EPSILON/PERIOD", "1/7d", requirements=None, budget=text)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget": "1/36h"}, ["--budget=1/36h is not over whole slots of 1d", "1/1d or 1/2d"]),
        ({"budget": "1/1h"}, ["--budget=1/1h is not over whole slots of 1d", "write 1/1d"]),
        ({"budget": "5e3/1d"}, ["--budget=5e3/1d", "EPSILON/PERIOD"]),
        ({"budget": "1e-12/7d"}, ["--budget=1e-12/7d", "2**-40"]),
        (
            {"budget": "1/7d", "requirements": "users.csv"},
            ["--budget=1/7d is the requirement of every user", "leave --requirements out"],
        ),
        (
            {"budget": "1/7d", "default_requirement": "7,1"},
            ["--budget=1/7d", "leave --default_requirement out"],
        ),
        ({"epsilon": "1"}, ["--epsilon=1 alone", "write --budget=1/7d"]),
        ({"epsilon": "1", "budget": "1/7d"}, ["--epsilon=1 alone", "leave it out"]),
        ({"budget": "1/7d", "guarantee": "infinite", "epsilon": "1"}, ["--budget=1/7d applies to"]),
    ],
)
def test_wrong_budget(job, given, words):
    job.refused(*words, **{"requirements": None, **given})


def test_a_budget_is_the_requirement_of_every_user(job):
    given = {"requirements": None, "noise_key": job.key()}
    job.done(ledger=job.path("ledger.csv"), budget="0.5/48h", **given)
    ledger = job.rows("ledger.csv")
    assert {(row["window"], row["epsilon"]) for row in ledger} == {(2, 0.5)}
    again = {"output": job.path("again.jsonl"), "ledger": job.path("same.csv")}
    job.done(default_requirement="2,0.5", **again, **given)
    assert job.rows("same.csv") == ledger


# ---- changes of requirements -------------------------------------------------------------------

HEADER = "user,slot,window_backward,epsilon_backward,window_forward,epsilon_forward"


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("user,window,epsilon", ["no column 'slot'", "name one of them"]),
        (HEADER.replace("user", "who"), ["no column 'user'"]),
        (HEADER.replace(",epsilon_forward", ""), ["no column 'epsilon_forward'"]),
    ],
)
def test_columns_of_changes(job, header, words):
    path = job.write("changes.csv", header + "\n")
    job.refused(path, *words, requirement_changes=path, start="2024-01-01")


def test_changes_need_a_start(job):
    path = job.write("changes.csv", HEADER + "\n")
    job.refused("--requirement_changes", "give --start", requirement_changes=path)


@pytest.mark.parametrize("longest", [2, 0, 2**21])
def test_longest_window_shorter_than_one_of_the_table(job, longest):
    path = job.write("changes.csv", HEADER + "\n")
    words = [str(longest), "longest"]
    job.refused(*words, requirement_changes=path, longest_window=longest, start="2024-01-01")


def test_changes_without_end_for_events_with_one(job):
    source = "pubsub:projects/project/subscriptions/some"
    job.refused(source, "is unbounded", requirement_changes=source, start="2024-01-01")


def test_longest_window_without_changes(job):
    job.refused("--longest_window=9", "--requirement_changes", longest_window=9)


# ---- time ------------------------------------------------------------------------------------


@pytest.mark.parametrize("slot", ["0", "0d", "1", "1mon", "-1d", "1.5h", "1d1h", "1us", "day"])
def test_slot(job, slot):
    job.refused(f"'{slot}'", "slot length", "1d, 1h, 5m, 60s", slot=slot)


def test_slot_longer_than_history(job):
    job.refused("slot", "99999999999d", slot="99999999999d")


@pytest.mark.parametrize("flag", ["origin", "start", "end"])
@pytest.mark.parametrize("time", ["today", "2024-13-01", "1704067200.5"])
def test_time_of_a_flag(job, flag, time):
    job.refused(f"'{time}'", "ISO 8601", "2024-03-31T00:00:00+02:00", **{flag: time})


@pytest.mark.parametrize("flag", ["origin", "start", "end"])
def test_time_of_a_flag_names_the_flag(job, flag):
    job.refused(f"--{flag}", "'today'", **{flag: "today"})


def test_origin_finer_than_milliseconds(job):
    job.refused("origin", "milliseconds", origin="2024-01-01T00:00:00.000001Z")


def test_range_that_is_empty(job):
    job.refused("range", "empty", start="2024-01-04", end="2024-01-02")
    job.refused("range", "empty", start="2024-01-04", end="2024-01-04")


def test_range_that_is_empty_names_the_times(job):
    job.refused("2024-01-04", "2024-01-02", start="2024-01-04", end="2024-01-02")


@pytest.mark.parametrize("zone", ["Mars/Phobos", "+02:00", "../etc/passwd", ""])
def test_time_zone(job, zone):
    job.refused("--time_zone", f"time zone {zone!r}", "Europe/Berlin", time_zone=zone)


@pytest.mark.parametrize(("slot", "time"), [("60s", "9999-01-01"), ("1h", "0001-01-01")])
def test_one_event_far_away(job, slot, time):
    """It must not be taken for a million quiet slots."""
    job.lines("u1,A,2024-01-01", "u2,B,2024-01-01T01:00:00Z", f"u1,A,{time}")
    far = time if time.startswith("9") else "2024-01-01"
    job.refused("quiet slots", "wrong time", far, "--start and --end", slot=slot)


def streamveil(*arguments, timeout=600, **more):
    """The command in a process of its own."""
    command = [sys.executable, "-m", "streamveil", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **more)


@pytest.mark.slow
def test_one_event_far_before_a_given_end(job):
    """One end of the range does not tell that the other is meant."""
    job.lines("u1,A,0001-01-01", "u2,B,2024-01-01T01:00:00Z")
    arguments = job.arguments(slot="60s", end="2024-01-02")
    try:
        done = streamveil(*arguments)
    except subprocess.TimeoutExpired:
        pytest.fail("it still releases one quiet minute after the other, from the year 1 on")
    assert done.returncode == 2
    assert "--start" in done.stderr


def test_range_of_too_many_slots(job):
    """A mistyped year is refused before anything runs: this would take days."""
    from streamveil.mechanisms.core.records import ConfigurationError
    from streamveil.pipelines.options.command_table import COMMANDS

    flags = job.arguments(slot="60s", start="2024-01-01", end="9024-01-01")[1:]
    with pytest.raises(ConfigurationError, match=r"--start|--end"):
        COMMANDS["release"].request(flags).read()


# ---- the other flags -------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["input", "output", "user_column", "value_column", "time_column"])
def test_missing_flag(job, flag):
    job.refused(f"--{flag} is missing", "--help", **{flag: None})


@pytest.mark.parametrize("flag", ["slot", "domain"])
def test_missing_flag_of_the_counts(job, flag):
    job.refused(f"--{flag} is missing", "--help", **{flag: None})


@pytest.mark.parametrize("name", ["pbaa", "PBA", "laplace", ""])
def test_unknown_mechanism(job, name):
    job.refused(f"'{name}'", "unknown", "pba, pbd, ba, bd", mechanism=name)


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("max_contributions", "0", ["max_contributions", "0", "1 or more"]),
        ("max_contributions", "-1", ["max_contributions", "-1", "1 or more"]),
        ("max_contributions", "some", ["--max_contributions=some", "not a whole number"]),
        ("max_contributions", "1.5", ["--max_contributions=1.5", "not a whole number"]),
        ("adjacency", "bounded", ["--adjacency", "'bounded'", "'add_remove', 'replace'"]),
        ("time_unit", "h", ["--time_unit", "'h'", "'s', 'ms', 'us', 'ns'"]),
        ("shards", "0", ["shards", "0", "1 or more"]),
        ("allowed_lateness", "soon", ["--allowed_lateness", "'soon'", "10m"]),
        ("allowed_lateness", "-5m", ["--allowed_lateness", "'-5m'", "10m"]),
        ("value_column", "value,user", ["one column", "value, user"]),
    ],
)
def test_flag_out_of_range(job, flag, value, words):
    job.refused(*words, **{flag: value})


def test_unknown_runner(job):
    job.refused("NoSuchRunner", "DirectRunner", runner="NoSuchRunner")


# ---- outputs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", OUTPUTS)
def test_output_exists(job, flag):
    path = job.write("old.jsonl", "precious\n")
    words = "exists already", "never overwritten", "another name", "spends the users' budgets again"
    job.refused(path, *words, **{flag: path})
    assert Path(path).read_text() == "precious\n"


@pytest.mark.parametrize("flag", OUTPUTS)
@pytest.mark.parametrize("name", ["out.txt", "out", "out.csv.gz", "out.xlsx"])
def test_output_of_unknown_format(job, flag, name):
    job.refused(job.path(name), "format", ".parquet, .avro, .csv", **{flag: job.path(name)})


@pytest.mark.parametrize("flag", OUTPUTS)
def test_output_folder_missing(job, flag):
    path = job.path("no/where/out.csv")
    job.refused(path, job.path("no/where"), "not a directory", "create it", **{flag: path})


def test_output_is_the_input(job):
    job.refused("events.csv", "exists already", output=job.path("events.csv"))


@pytest.mark.parametrize("flag", ["ledger", "rejected"])
def test_two_outputs_of_one_name(job, flag):
    job.refused(
        "two outputs", job.path("out.jsonl"), "different names", **{flag: job.path("out.jsonl")}
    )


@pytest.mark.parametrize("other", ["./out.jsonl", "sub/../out.jsonl"])
def test_two_outputs_of_one_place(job, monkeypatch, other):
    """Otherwise one of them silently replaces the other."""
    monkeypatch.chdir(job.folder)
    (job.folder / "sub").mkdir()
    job.refused("two outputs", "different names", output="out.jsonl", ledger=other)


def test_output_on_an_unknown_filesystem(job):
    job.refused("nowhere://x/out.csv", "scheme", output="nowhere://x/out.csv")


# ---- a process of its own --------------------------------------------------------------------


def test_what_a_person_sees(job):
    """The last line of all that appears is the message."""
    path = job.write("events.parquet", table(user=[1.0, 2.0, 3.0]))
    done = streamveil(*job.arguments(input=path))
    assert done.returncode == 2
    assert done.stdout == ""
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("streamveil release: ")
    assert "column 'user' holds double" in last
    assert not Path(job.path("out.jsonl")).exists()
