"""`--revise` and `--revisions`, and `sv.release(..., revise=)`: each slot is revised once."""

import datetime as dt

import pytest

import streamveil as sv
from streamveil.io import read_revisions, read_table
from streamveil.pipelines import yaml

UTC = dt.timezone.utc
DAYS = 12
ASKED = {"user": "user", "value": "value", "time": "time", "slot": "1d", "domain": ["A", "B", "C"]}


def visits(n):
    return [
        (f"u{u}", "ABC"[(u * u + n) % 3], dt.datetime(2024, 1, n, u % 24, tzinfo=UTC))
        for u in range(40)
        if (u + n) % 3
    ]


@pytest.fixture
def busy(job):
    """A job over twelve days."""
    job.requirements({f"u{u}": (3, 0.5 + u % 2) for u in range(40)})
    job.events([row for n in range(1, DAYS + 1) for row in visits(n)])
    job.flags |= {"noise_key": job.key(), "start": "2024-01-01", "end": f"2024-01-{DAYS + 1}"}
    return job


def test_a_call_revises_what_the_command_does(busy):
    busy.done(output=busy.path("plain.jsonl"))
    busy.done(revise=4, revisions=busy.path("revised.jsonl"))
    assert busy.rows("plain.jsonl") == busy.rows()
    rows = busy.rows("revised.jsonl")
    slots = [row["slot"] for row in busy.rows()]
    assert [row["slot"] for row in rows] == slots
    # The last four with what there is.
    assert [row["revised_slot"] for row in rows] == [min(slot + 4, slots[-1]) for slot in slots]
    found = sv.release(
        busy.path("events.csv"),
        **ASKED,
        requirements=busy.path("users.csv"),
        noise_key=busy.flags["noise_key"],
        start="2024-01-01",
        end=f"2024-01-{DAYS + 1}",
        run=sv.RunOptions(revise=4),
    )["count"]
    assert [one.counts.tolist() for one in found.revisions] == [row["counts"] for row in rows]
    table = found.revisions_to_arrow("rows")
    assert table["stderr"].to_pylist() == [row["stderr"] for row in rows]
    assert found.revisions_to_arrow().num_rows == 3 * DAYS
    with pytest.raises(sv.ConfigurationError, match="layout 'wide'"):
        found.revisions_to_arrow("wide")


def test_a_stream_of_releases_is_none_of_revisions(busy):
    topic = "kafka:localhost:9092/counts"
    words = f"--output and --revisions are both {topic}", "give them different names"
    busy.refused(*words, output=topic, revise=4, revisions=topic)
    both = f"folder:{busy.path('both')}"
    busy.done(output=both, revise=4, revisions=both)
    assert len(list((busy.folder / "both").glob("re*.json"))) == 2 * DAYS


def test_the_place_of_revisions_is_reported(busy):
    place = f"folder:{busy.path('later')}"
    outcome = busy.done(revise=4, revisions=place)
    assert f"wrote {place}\n" in outcome.out


def test_nothing_is_revised_unless_asked_for(busy):
    found = sv.release(
        busy.path("events.csv"),
        **ASKED,
        requirements=busy.path("users.csv"),
        noise_key=busy.flags["noise_key"],
    )["count"]
    assert found.revisions == ()
    assert found.revisions_to_arrow().num_rows == 0


def assert_refused(job, flags, words):
    given = dict(flags)
    if "revisions" in given:
        given["revisions"] = job.path(given["revisions"])
    job.refused(*(word.replace("=r.csv", f"={job.path('r.csv')}") for word in words), **given)


# Of both settings.
REFUSED = [
    ({"revise": 7}, ["--revise=7 needs a place", "--revisions"]),
    ({"revisions": "r.csv"}, ["--revisions=r.csv needs", "--revise=7"]),
    ({"revise": 0, "revisions": "r.csv"}, ["revise is 0", "1 or more"]),
    ({"revise": 5000, "revisions": "r.csv"}, ["revise is 5000", "1000"]),
    ({"revise": 7, "revisions": "r.xls"}, ["r.xls", ".parquet"]),
    ({"revise": 7, "revisions": "users.csv"}, ["--revisions=", "exists already"]),
    ({"revise": 7, "revisions": "out.jsonl"}, ["out.jsonl"]),
]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        *REFUSED,
        (
            {"revise": 7, "revisions": "r.csv", "mechanism": "pba"},
            ["'pba' cannot revise (--revise=7)", "choose adaptive"],
        ),
        (
            {
                **{"revise": 7, "revisions": "r.csv", "guarantee": "infinite", "epsilon": 1},
                "requirements": None,
            },
            ["'gated' cannot revise", "leave --revise out"],
        ),
    ],
)
def test_what_does_not_fit_is_refused(busy, flags, words):
    assert_refused(busy, flags, words)


@pytest.fixture
def local(busy, toolbox):
    """The same in the local setting."""
    job = toolbox.Job(busy.folder, "collect")
    job.flags = dict(busy.flags)
    return job


def test_the_local_setting_revises_as_well(local):
    local.done(output=local.path("plain.jsonl"))
    local.done(revise=4, revisions=local.path("revised.csv"))
    assert local.rows("plain.jsonl") == local.rows()
    rows = read_revisions(local.path("revised.csv"))
    slots = [row["slot"] for row in local.rows()]
    assert [row.slot for row in rows] == slots
    assert [row.revised_slot for row in rows] == [min(slot + 4, slots[-1]) for slot in slots]
    assert {row.mechanism for row in rows} == {"rotation"}
    found = sv.collect(
        local.path("events.csv"),
        **ASKED,
        requirements=local.path("users.csv"),
        noise_key=local.flags["noise_key"],
        start="2024-01-01",
        end=f"2024-01-{DAYS + 1}",
        run=sv.RunOptions(revise=4),
    )["count"]
    assert [r.counts.tolist() for r in found.revisions] == [row.counts.tolist() for row in rows]
    assert found.revisions_to_arrow().num_rows == 3 * DAYS


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        *REFUSED,
        (
            {"revise": 7, "revisions": "r.csv", "mechanism": "plpa"},
            ["'plpa' cannot revise (--revise=7)", "choose rotation,"],
        ),
    ],
)
def test_what_does_not_fit_the_local_setting_is_refused(local, flags, words):
    assert_refused(local, flags, words)


def test_yaml_names_the_output(busy):
    places = ("input", "output", "layout")
    given = {name: value for name, value in busy.flags.items() if name not in places}
    with pytest.raises(sv.ConfigurationError, match=r"^revise=4 needs a place"):
        yaml.private_queries(**given, revise=4)
    with pytest.raises(sv.ConfigurationError, match=r"^revisions=later needs"):
        yaml.collect_histograms(**given, revisions="later")
    for make in (yaml.private_queries, yaml.collect_histograms):
        made = make(**given, revise=4, revisions="later")
        assert made.outputs.args[1]["revisions"] == "later"
        assert made.transform.revise == 4


@pytest.mark.slow
def test_a_run_that_revises_no_more_says_what_is_lost(busy):
    clock = busy.folder / "clock"
    flags = {**busy.kept(), "clock_file": str(clock), "input": busy.path("events.csv")}
    revised = {"revise": 4, "revisions": busy.path("later.jsonl")}
    runs = ((3, revised, False), (4, revised, False), (5, {}, True), (6, {}, False))
    for n, given, warned in runs:
        clock.write_text(dt.datetime(2024, 1, n, 1, tzinfo=UTC).isoformat())
        outcome = busy.done(**flags, **given, resume=True if n > 3 else None)
        assert ("not revised yet never will be" in outcome.out + outcome.err) is warned


@pytest.mark.slow
@pytest.mark.parametrize("command", ["release", "collect"])
def test_passes_revise_as_one_run_does(busy, command):
    """A pass that is gone on from leaves its last slots to the next; the last one does the rest."""
    busy.command = command
    busy.done(revise=4, revisions=busy.path("once.jsonl"))
    (busy.folder / "in").mkdir()
    for n in range(1, DAYS + 1):
        busy.events(visits(n), f"in/{n:02}.csv")
    clock = busy.folder / "clock"
    flags = {
        **busy.kept(),
        "clock_file": str(clock),
        "output": busy.path("out_.jsonl"),
        "revise": 4,
        "revisions": busy.path("later.jsonl"),
    }
    for n in (2, 3, 6, DAYS, DAYS + 1):
        clock.write_text(dt.datetime(2024, 1, n, 1, tzinfo=UTC).isoformat())
        busy.done(**flags, resume=True if n > 2 else None)
    paths = sorted(busy.folder.glob("later-????????.jsonl"))
    each = [read_table(str(path)).to_pylist() for path in paths]
    assert [len(rows) for rows in each] == [0, 0, 1, 6, 5]
    assert [row for rows in each for row in rows] == busy.rows("once.jsonl")
