"""`streamveil evaluate`: what it prints and writes, and what it refuses."""

import math
import os
import re
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import streamveil as sv
from streamveil.io import read_table
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.pipelines.evaluation import data, from_options
from streamveil.pipelines.evaluation.data import real_stream
from streamveil.pipelines.evaluation.w_event import WEvent
from streamveil.pipelines.pages import document
from streamveil.pipelines.sample_data import flights
from streamveil.pipelines.sample_data.streams import STREAMS

SMALL = ("--users=90", "--slots=8", "--seeds=2", "--processes=1", "--windows=6")


@pytest.fixture
def command(toolbox, tmp_path):
    """Runs the command in a folder."""

    class Command:
        folder = tmp_path

        def __call__(self, *flags):
            return toolbox.run("evaluate", *flags)

        def path(self, name):
            return str(tmp_path / name)

        def done(self, *flags):
            outcome = self(*flags)
            assert outcome.code == 0, outcome.err + outcome.log
            return outcome

        def refused(self, *words, flags):
            before = sorted(os.listdir(tmp_path))
            outcome = self(*flags)
            assert outcome.code == 2, outcome
            assert outcome.message.startswith("streamveil evaluate: ")
            missing = [word for word in words if word not in outcome.message]
            assert not missing, outcome.message
            assert sorted(os.listdir(tmp_path)) == before

    return Command()


def events(command, users=30, days=12):
    rows = [
        f"u{u},{'ABC'[(u + d) % 3]},2024-01-{d:02d}T08:00:00Z"
        for d in range(1, days + 1)
        for u in range(users)
    ]
    path = Path(command.path("events.csv"))
    path.write_text("\n".join(["user,value,time", *rows]) + "\n")
    return [
        *(f"--input={path}", "--user_column=user", "--value_column=value"),
        *("--time_column=time", "--slot=1d", "--domain=A,B,C"),
    ]


# ---- named streams ---------------------------------------------------------------------------


@pytest.mark.slow
def test_table_page_and_advice(command):
    out = command.done(
        *("--streams=sin,city-sparse", "--mechanisms=pba,ba", "--epsilons=0.3,0.6", *SMALL),
        *(f"--output={command.path('t.csv')}", f"--page={command.path('p.html')}"),
    ).out
    rows = read_table(command.path("t.csv")).to_pylist()
    keys = [(row["stream"], row["epsilon"], row["window"], row["mechanism"]) for row in rows]
    assert keys == [
        (stream, epsilon, 6, mechanism)
        for stream in ("sin", "city-sparse")
        for epsilon in (0.3, 0.6)
        for mechanism in ("pba", "ba")
    ]
    for row in rows:
        assert (row["users"], row["slots"], row["seeds"]) == (90, 8, 2)
        assert row["bins"] == (2 if row["stream"] == "sin" else 100)
        assert 0 < row["window_use"] <= 1
        assert row["amre"] > 0
        assert row["advice"] != "choose" or row["mechanism"] == "pba"
        assert all(
            row[f"{m.name}_stderr"] >= 0 for m in WEvent.measures if "coverage" not in m.name
        )
    assert out.count("| sin ") == 4
    assert "Choose, by AMRE:\nsin, epsilon 0.3, w 6: pba" in out
    assert "\noverall: pba" in out
    assert f"wrote {command.path('t.csv')}\nwrote {command.path('p.html')}\n" in out
    html = Path(command.path("p.html")).read_text()
    assert "streamveil evaluate --streams=sin,city-sparse" in html


def test_the_same_from_python(command):
    found = sv.evaluate(
        streams="sin", mechanisms=["pba", "ba"], users=90, slots=8, seeds=2, windows=6
    )
    path = command.path("t.csv")
    command.done("--streams=sin", "--mechanisms=pba,ba", *SMALL, f"--output={path}")
    columns = ["stream", "mechanism", "amre", "amre_stderr", "ajsd", "window_use", "coverage"]
    assert (
        found.to_arrow().select(columns).to_pylist() == read_table(path).select(columns).to_pylist()
    )
    assert found.to_arrow().column_names == read_table(path).column_names
    assert found.advice[0] == "Choose, by AMRE:"
    few = {"records": 200, "runs": 5, "seeds": 1, "statistics": ["count"]}
    assert sv.evaluate(per_record="zipf-3", **few).to_arrow()["data"][0].as_py() == "zipf-3"
    with pytest.raises(ConfigurationError, match="'abp' is unknown"):
        sv.evaluate(streams="sin", mechanisms="abp")
    with pytest.raises(ConfigurationError, match="unknown option seed=3"):
        sv.evaluate(streams="sin", seed=3)


def test_local_mechanisms_stand_beside_others(command):
    flags = ("--mechanisms=rotation,plpa,lba,pba", "--streams=sin", *SMALL)
    out = command.done(*events(command), *flags, f"--output={command.path('t.csv')}").out
    rows = read_table(command.path("t.csv")).to_pylist()
    assert [row["mechanism"] for row in rows] == ["rotation", "plpa", "lba", "pba"] * 2
    for row in rows:
        assert row["amse"] == pytest.approx(row["amre"] / row["users"] ** 2)
        assert 0 < row["window_use"] <= 1
        assert row["advice"] not in ("choose", "tie") or row["mechanism"] != "lba"
    assert "| rotation " in out


def test_devices_report_one_value(command):
    command.refused(
        *("one value a slot", "--max_contributions"),
        flags=(*events(command), "--mechanisms=rotation", "--seeds=1", "--max_contributions=2"),
    )


def test_the_same_again_but_for_the_clock(command):
    flags = ("--streams=step", "--mechanisms=pba", *SMALL)
    names = ("one.csv", "two.csv")
    for name in names:
        command.done(*flags, f"--output={command.path(name)}")
    one, two = (
        {k: v for k, v in read_table(command.path(name)).to_pylist()[0].items() if "sec" not in k}
        for name in names
    )
    assert one == two


def test_markdown_is_what_is_printed(command):
    out = command.done("--streams=log", *SMALL, f"--output={command.path('t.md')}").out
    text = Path(command.path("t.md")).read_text()
    assert text in out
    assert text.startswith("| stream |")
    defaults = list(from_options.DEFAULT_MECHANISMS)
    assert [line.split("|")[4].strip() for line in text.splitlines()[2:]] == defaults


@pytest.mark.slow
def test_in_processes_from_a_shell(tmp_path):
    flags = ["--streams=sin", *SMALL, "--processes=2"]
    done = subprocess.run(
        [sys.executable, "-m", "streamveil", "evaluate", *flags],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "| sin " in done.stdout


@pytest.mark.slow
def test_no_mechanism_is_advised_whose_intervals_miss_every_count(command):
    rows = [
        f"u{u},{'ABC'[u % 3]},2024-01-{d:02d}T0{h}:00:00Z"
        for d in range(1, 13)
        for u in range(60)
        for h in range(8)
    ]
    path = Path(command.path("events.csv"))
    path.write_text("\n".join(["user,value,time", *rows]) + "\n")
    flags = [
        *(f"--input={path}", "--user_column=user", "--value_column=value", "--time_column=time"),
        *("--slot=1d", "--domain=A,B,C", "--epsilons=9", "--windows=1", "--seeds=2"),
        *("--processes=1", "--mechanisms=pba,pbd"),
    ]
    out = command.done(*flags, f"--output={command.path('t.csv')}", f"--page={path}.html").out
    for row in read_table(command.path("t.csv")).to_pylist():
        assert row["coverage"] == 0
        assert row["advice"] == "not advised: low coverage"
    assert "no advice: coverage is far below 0.9: pb" in out
    assert "--max_contributions=8 is likely to err less" in out
    assert "coverage of each is far below 0.9" in Path(f"{path}.html").read_text()
    assert "pba" in command.done(*flags, "--max_contributions=8").out.split("w 1: ")[1]


@pytest.mark.slow
def test_flights_with_the_demos_requirements(command):
    flags = ("--streams=flights", "--mechanisms=pba", "--seeds=1", "--processes=1")
    command.done(*flags, f"--output={command.path('t.csv')}")
    (row,) = read_table(command.path("t.csv")).to_pylist()
    assert (row["stream"], row["epsilon"], row["window"]) == ("flights", 1.0, 14)
    assert (row["users"], row["slots"], row["bins"]) == (4043, 365, 105)
    assert 0 < row["window_use"] <= 1
    assert 0 < row["relative_error"] < 0.6
    out = command.done(*flags, "--epsilons=5,1", "--windows=7").out
    # What to choose, and what the users' bound costs.
    assert out.count("flights, epsilon 5, w 7") == out.count("flights, epsilon 1, w 7") == 2


@pytest.mark.slow
def test_hourly_flights_are_counted():
    with tempfile.TemporaryDirectory() as folder:
        counted = real_stream("flights-hourly", Path(folder))
        assert (counted.epsilon, counted.window) == (1.0, 14 * 24)
        assert np.load(counted.path, mmap_mode="r").shape == (8760, 9, 105)


def test_flights_without_their_package(command, monkeypatch):
    monkeypatch.setattr(flights.importlib.util, "find_spec", lambda name: None)
    flags = ["--streams=sin,flights", "--users=90", "--slots=8"]
    command.refused("not installed", "pip install '.[demo]'", flags=flags)


# ---- events ----------------------------------------------------------------------------------


def test_events_with_requirements(command):
    flags = events(command)
    users = [f"u{u},{3 + 4 * (u % 2)},{0.5 + u % 2}" for u in range(29)]
    Path(command.path("users.csv")).write_text("\n".join(["user,window,epsilon", *users]) + "\n")
    out = command.done(
        *(*flags, f"--requirements={command.path('users.csv')}", "--seeds=2", "--processes=1"),
        *("--name=visits", f"--output={command.path('t.csv')}"),
        f"--rejected={command.path('rejected.jsonl')}",
    ).out
    for row in read_table(command.path("t.csv")).to_pylist():
        assert (row["stream"], row["epsilon"], row["window"]) == ("visits", 0.5, 7)
        assert (row["users"], row["slots"], row["bins"]) == (29, 12, 3)
    assert "rejected: no requirement 12\n" in out
    assert stat.S_IMODE(os.stat(command.path("rejected.jsonl")).st_mode) == 0o600
    letters = read_table(command.path("rejected.jsonl")).to_pylist()
    assert {letter["reason"] for letter in letters} == {"no requirement"}
    assert len(letters) == 12


def test_events_without_requirements_beside_a_stream(command):
    out = command.done(
        *events(command), "--streams=sin", "--mechanisms=pba", *SMALL, "--epsilons=2"
    ).out
    assert "| events " in out
    assert "| sin " in out
    assert out.count("epsilon 2, w 6: pba") == 2


def test_requirements_are_scaled(command):
    flags = events(command)
    Path(command.path("users.csv")).write_text("user,window,epsilon\nu1,3,1\nu2,6,2\n")
    out = command.done(
        *(*flags, f"--requirements={command.path('users.csv')}", "--mechanisms=pba"),
        *("--epsilons=2000", "--windows=1", "--seeds=2", "--processes=1"),
        f"--output={command.path('t.csv')}",
    ).out
    (row,) = read_table(command.path("t.csv")).to_pylist()
    assert (row["epsilon"], row["window"], row["noise"]) == (2000, 1, 0)  # so much that it is exact
    assert row["published"] == 1
    assert "give --rejected=FILE" in out


def test_taxis_in_one_short_command(command):
    for taxi in range(12):
        lines = [
            f"{taxi},2008-02-02 15:{minute:02d}:08,{116.05 + taxi / 20},{39.9 + minute / 100}"
            for minute in range(0, 30, 1 + taxi % 3)
        ]
        Path(command.path(f"{taxi}.txt")).write_text("\n".join(lines) + "\n")
    Path(command.path("12.txt")).write_text(
        "12,2008-02-02 15:01:08,1.5,39.9\n12,no time,116.3,40\nx"
    )
    out = command.done(
        *(f"--input={command.folder}/*.txt", "--format=tdrive", "--windows=6", "--seeds=2"),
        *("--processes=1", f"--output={command.path('t.csv')}"),
    ).out
    row = read_table(command.path("t.csv")).to_pylist()[0]
    assert (row["stream"], row["epsilon"], row["window"]) == ("tdrive", 0.6, 6)
    assert (row["users"], row["slots"], row["bins"]) == (13, 30, 100)
    assert "outside the domain 1, unparsable 1, unparsable time 1" in out


def test_check_ins_in_one_short_command(command):
    lines = [
        f"{user}\tv\tc\tCaf\xe9\t40.7{user}\t-74.0\t-240\tTue Apr {day:02d} 18:00:09 +0000 2012\n"
        for user in range(10, 22)
        for day in (3, 4, 8)
    ]
    path = Path(command.path("dataset_TSMC2014_NYC.txt"))
    path.write_bytes("".join(lines).encode("latin-1"))
    command.done(
        *(f"--input={path}", "--format=foursquare", "--mechanisms=pba", "--seeds=2"),
        *("--processes=1", f"--output={command.path('t.csv')}"),
    )
    (row,) = read_table(command.path("t.csv")).to_pylist()
    assert (row["stream"], row["window"], row["slots"], row["users"]) == ("foursquare", 30, 6, 12)


# ---- what cannot be done ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], ["--streams is missing", "--input"]),
        (["--streams=sinus"], ["--streams", "'sinus' is unknown", *STREAMS]),
        (["--streams=sin,"], ["--streams=sin,", "empty name"]),
        (["--streams=sin", "--mechanisms=pba,abp"], ["'abp' is unknown", "pbd"]),
        (["--streams=sin", "--mechanisms=pba:gate=1"], ["pba has no option 'gate'"]),
        (["--streams=sin", "--epsilons=0.6,x"], ["--epsilons=0.6,x", "numbers, separated by"]),
        (["--streams=sin", "--epsilons=0"], ["--epsilons=0", "above 0"]),
        (["--streams=sin", "--windows=1.5"], ["--windows=1.5", "whole numbers"]),
        (["--streams=sin", "--windows=0"], ["--windows=0", "whole number of slots from 1"]),
        (["--streams=sin", "--users=8"], ["stream sin", "8 users are too few"]),
        (["--streams=sin", "--users=0"], ["--users=0", "1 or more"]),
        (["--streams=flights", "--slots=9"], ["--slots is for synthetic streams"]),
        (["--streams=flights", "--mechanisms=abp"], ["'abp' is unknown"]),
        (["--streams=sin", "--slots=0"], ["--slots=0", "1 or more"]),
        (["--streams=sin", "--seeds=0"], ["--seeds=0", "1 or more"]),
        (["--streams=sin", "--processes=-1"], ["--processes=-1", "1 or more"]),
        (["--streams=sin", "--slot=100"], ["--slot=100 is for events", "--slots?"]),
        (["--streams=sin", "--domain=A,B"], ["--domain=A,B is for events", "--input"]),
        (["--streams=sin", "--format=tdrive"], ["--format=tdrive is for events", "--input"]),
        (["--streams=sin", "--output=t.txt"], ["--output=t.txt", ".csv or .md"]),
        (["--streams=sin", "--page=p.pdf"], ["--page=p.pdf", ".html"]),
        (["--streams=sin", "--page=no/such/p.html"], ["no/such", "not a directory"]),
        (["--streams=sin", "--seed=3"], ["unknown option --seed=3", "--seeds"]),
        (["--streams=sin", "--runner=DirectRunner"], ["unknown option --runner"]),
        (["--input=*.txt", "--format=taxi"], ["--format", "'taxi'", "tdrive"]),
        (["--input=a.txt", "--format=foursquare"], ["--domain is missing"]),
        (["--input=a.csv"], ["--user_column is missing"]),
    ],
)
def test_refused(command, flags, words):
    command.refused(*words, flags=flags)


def test_users_of_a_stream_are_not_those_of_events(command):
    command.refused("--users is for synthetic streams", flags=[*events(command), "--users=9"])


def test_outputs_are_not_overwritten(command):
    for name in ("t.csv", "p.html"):
        Path(command.path(name)).write_text("mine")
    command.refused("t.csv", "exists", flags=["--streams=sin", f"--output={command.path('t.csv')}"])
    command.refused("p.html", "exists", flags=["--streams=sin", f"--page={command.path('p.html')}"])
    both = command.path("x.csv")
    flags = [*events(command), f"--output={both}", f"--rejected={both}"]
    command.refused("two outputs are named", flags=flags)


def test_no_output_is_where_the_next_one_reads(command):
    source, *flags = events(command)
    folder = source.removeprefix("--input=").rpartition("/")[0]
    for output in ("output=t.csv", "rejected=r.jsonl"):
        name, _, file = output.partition("=")
        message = f"{folder}/{file} would be written where the input {folder}/* takes it in"
        command.refused(message, flags=[f"--input={folder}/*", *flags, f"--{name}={folder}/{file}"])


def test_a_missing_column(command):
    flags = [*events(command), "--time_column=when"]
    command.refused("events.csv", "no column 'when'", flags=flags)


def test_page_without_its_packages(command, monkeypatch):
    monkeypatch.setattr(document, "find_spec", lambda name: None)
    flags = ["--streams=sin", f"--page={command.path('p.html')}"]
    command.refused("--page needs jinja2", ".[demo]", flags=flags)


def test_wrong_options_show_before_events_are_read(command, monkeypatch):
    monkeypatch.setattr(data.Data, "count", lambda *_: pytest.fail("events were read"))
    command.refused("'abp'", flags=[*events(command), "--mechanisms=abp"])


def test_help(command):
    out = command.done("--help").out
    assert "streamveil evaluate" in out
    for name in ("--streams", "--mechanisms", "--epsilons", "--page", "--requirements", "--format"):
        assert f"{name} " in out
    assert "Apache Beam" not in out.replace("Apache Beam's filesystems", "")


def test_default_sizes_are_those_of_the_reference():
    assert (from_options.DEFAULT_USERS, from_options.DEFAULT_SLOTS) == (10_000, 3_000)
    assert math.isclose(from_options.DEFAULT_EPSILON, 0.6)
    assert from_options.DEFAULT_WINDOW == 120


# ---- queries -------------------------------------------------------------------------------

ASKED = """\
slot: 1d
queries:
  - {name: places, by: value, keys: [A, B, C], levels: [all], weight: 2, mechanism: uniform}
  - {name: weeks, every: 4d, statistic: mean, of: speed, bounds: [0, 20], share: 0.7}
"""


def asked(command, queries=ASKED, days=12):
    """Options to score queries about thirty users, one of whom nobody knows."""
    rows = [
        f"u{u},{'ABC'[(u + d) % 3]},{u},2024-01-{d:02d}T08:00:00Z"
        for d in range(1, days + 1)
        for u in range(30)
    ]
    table = [f"u{u},{2 + u % 2},4000" for u in range(29)]
    for name, lines in {
        "events.csv": ["user,value,speed,time", *rows],
        "users.csv": ["user,window,epsilon", *table],
        "queries.yaml": [queries],
    }.items():
        Path(command.path(name)).write_text("\n".join(lines) + "\n")
    return [
        *(f"--queries={command.path('queries.yaml')}", f"--input={command.path('events.csv')}"),
        *("--user_column=user", "--time_column=time", "--seeds=2", "--processes=1"),
        "--origin=2024-01-01",
        f"--requirements={command.path('users.csv')}",
    ]


@pytest.mark.slow
def test_queries_are_scored_with_planned_and_with_even_shares(command):
    flags = [*asked(command), f"--output={command.path('t.csv')}"]
    done = command.done(*flags, f"--page={command.path('p.html')}")
    rows = {
        (row["query"], row["figure"], row["mechanism"]): row
        for row in read_table(command.path("t.csv")).to_pylist()
    }
    assert list(rows) == [
        (*case, kind)
        for case in (("places", "count"), ("weeks", "mean"), ("all queries", "together"))
        for kind in ("planned", "even")
    ]
    assert [round(row["share"], 2) for row in rows.values()] == [0.3, 0.5, 0.7, 0.5, 1, 1]
    for kind in ("planned", "even"):
        places, weeks, together = (
            rows[case, figure, kind]
            for case, figure in (
                ("places", "count"),
                ("weeks", "mean"),
                ("all queries", "together"),
            )
        )
        # So large a budget leaves the user whom nobody knows, in one of the bins and in the top.
        assert places["error"] == pytest.approx(math.sqrt(2 / 4), rel=0.05)
        assert (places["slots"], weeks["slots"], places["answered"]) == (12, 3, 1)
        # Of nine of 30 numbers that are clipped to 20, the mean of the others' is printed.
        assert weeks["error"] == pytest.approx(14.5 - 12.76, abs=0.5)
        assert together["weighted"] == pytest.approx(places["weighted"] + weeks["weighted"])
        assert 0 < together["window_use"] <= 1
        assert places["window_use"] is None
    assert "weighted error of all queries: " in done.out
    # That user is missing in one of the bins and in the top; intervals of means are wide.
    low = [line for line in done.out.splitlines() if "coverage is" in line]
    assert low == [
        f"events, places, count, {kind} shares: coverage is 0.5 (nominal 0.9): intervals are "
        "too narrow, or many events are dropped, which true values include"
        for kind in ("planned", "even")
    ]
    assert "rejected: no requirement 12" in done.out
    page = Path(command.path("p.html")).read_text()
    assert "2 queries about events, answered from one budget" in page
    assert "How to read it: dots and bars as above." in page
    assert not re.search(r"How to read it:\s*</p>", page)
    assert '<th class="text" scope="col">shares</th>' in page
    assert ">0.2</text>" in page
    assert ">0.15</text>" not in page


def test_one_query_has_no_other_shares(command):
    one = "\n".join(ASKED.splitlines()[:3])
    done = command.done(*asked(command, one), "--start=2024-01-02", "--end=2024-01-05")
    assert "| even " not in done.out
    assert done.out.count("| planned |") == 2


def test_queries_are_scored_with_one_budget_for_all_users(command):
    one = "\n".join(ASKED.splitlines()[:3])
    flags = asked(command, one)[:-1]
    done = command.done(*flags, "--budget=4000/3d")
    # Now the user without a requirement counts too, and nothing is rejected.
    assert "rejected" not in done.out
    assert done.out.count("| planned |") == 2
    words = "--budget=inverse:1 is not EPSILON/PERIOD"
    command.refused(words, flags=[*flags, "--budget=inverse:1"])


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--mechanisms=pba", "each query has its own"),
        ("--streams=sin", "about the events of --input"),
        ("--windows=3", "edit the requirements table"),
        ("--value_column=value", "each query has its own"),
        ("--max_slots=auto", "users contribute to every slot"),
        ("--per_record=input", "statistics of records"),
        ("--guarantee=infinite", "compared with budgets over windows"),
        ("--format=tdrive", "name the columns"),
    ],
)
def test_what_has_no_meaning_beside_queries(command, flag, words):
    command.refused(flag, "is not for --queries", words, flags=[*asked(command), flag])


def test_queries_need_events_that_count(command):
    flags = asked(command)
    with pytest.raises(ConfigurationError, match="data is missing"):
        sv.evaluate(queries=command.path("queries.yaml"), user="user", time="time")
    command.refused("--input is missing", flags=[flags[0], *flags[2:]])
    auto = asked(command, ASKED.replace("bounds: [0, 20]", "bounds: auto"))
    command.refused("write bounds: [LOW, HIGH] to score or audit the query", flags=auto)
    flags = asked(command)
    command.refused("--requirements is missing", flags=flags[:-1])
    Path(command.path("users.csv")).write_text("user,window,epsilon\nstranger,1,1\n")
    command.refused("no event counts for any query; rejected: no requirement 360", flags=flags)
