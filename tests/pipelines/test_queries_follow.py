"""`streamveil release --queries --state`: passes add up to one run, and say what is wrong."""

import contextlib
import datetime as dt
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamveil.io import StateFolder, read_table
from streamveil.pipelines.monitoring.monitor import Monitor

UTC = dt.timezone.utc
NAMES = ("state", "speed", "late")
QUERIES = """\
slot: 1h
queries:
  - {name: state, by: place, keys: [A, B], rollups: 12h, weight: 2, mechanism: pba}
  - {name: speed, by: place, keys: [A, B], every: 6h, statistic: mean, of: kmh,
     bounds: [0, 128], mechanism: ba}
  - {name: late, every: 1d, statistic: quantiles, of: kmh, edges: [0, 50, 100],
     quantiles: [0.5, 0.95], max_contributions: 2, mechanism: ba}
"""


def at(hour):
    return dt.datetime(2024, 1, 1, tzinfo=UTC) + dt.timedelta(hours=hour)


def rows(first, last, users=60):
    """Events of some hours: of most users several in a day."""
    return [
        (f"u{u}", "AB"[(u * u + hour) % 2], float((7 * u + hour) % 120), at(hour))
        for hour in range(first, last + 1)
        for u in range(users)
        if (u + hour) % 5 == 0
    ]


class Stream:
    """A job over queries that keeps its state, with a clock that the test moves on."""

    def __init__(self, job):
        self.job, self.folder = job, Path(job.folder)
        (self.folder / "in").mkdir()
        job.requirements({f"u{u}": (6 + u % 3, 40.0 + u % 2) for u in range(60)})
        self.ask(QUERIES)
        self.flags = {
            **job.kept(),
            "queries": job.path("queries.yaml"),
            "output": job.path("answers"),
            "input": job.path("in/*.parquet"),
            "clock_file": job.path("clock"),
            **dict.fromkeys(("value_column", "slot", "domain")),
        }

    def ask(self, text):
        self.job.write("queries.yaml", text)

    def events(self, name, rows):
        names = ("user", "place", "kmh", "time")
        table = pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
        pq.write_table(table, self.folder / "in" / f"{name}.parquet")

    def clock(self, hour):
        (self.folder / "clock").write_text(at(hour).isoformat())

    def given(self, flags):
        begun = (self.folder / "state" / "manifest.json").exists()
        return {"resume": begun or None, **self.flags, **flags}

    def __call__(self, **flags):
        return self.job.done(**self.given(flags))

    def refused(self, *words, **flags):
        return self.job.refused(*words, **self.given(flags))

    def table(self, name):
        """Of all passes."""
        paths = sorted((self.folder / "answers").glob(f"{name}-????????.parquet"))
        return pa.concat_tables([pq.read_table(path) for path in paths])

    def ledger(self):
        return [
            row
            for path in sorted(self.folder.glob("ledger-????????.jsonl"))
            for row in read_table(str(path)).to_pylist()
        ]

    def once(self, end, **flags):
        """One run over all of it: the table of each query, the ledger and the dead letters."""
        paths = {
            "output": self.job.path("once"),
            "ledger": self.job.path("once.jsonl"),
            "rejected": self.job.path("once_rejected.jsonl"),
        }
        given = {**self.flags, "state": None, "clock_file": None, **flags, **paths}
        self.job.done(**given, end=at(end).isoformat())
        found = {name: pq.read_table(self.folder / "once" / f"{name}.parquet") for name in NAMES}
        return found, self.job.rows("once.jsonl"), self.job.rows("once_rejected.jsonl")

    def adds_up_to(self, once):
        """What all passes wrote is what one run writes of the slots that are over."""
        found, ledger, _ = once
        for name in NAMES:
            table = self.table(name)
            assert table.num_rows
            assert table.equals(found[name].slice(0, table.num_rows)), name
        keys = ("last_base_slot", "query", "window", "epsilon")
        last = max(row["last_base_slot"] for row in self.ledger())
        there = [row for row in ledger if row["last_base_slot"] <= last]
        assert sorted(self.ledger(), key=lambda row: [row[key] for key in keys]) == there


@pytest.fixture
def stream(job):
    return Stream(job)


# Passes end within slots of longer queries; their files may go when they are read.
def test_passes_add_up_to_one_run(stream):
    stream.events("a", [*rows(0, 15), ("nobody", "A", 1.0, at(2)), ("u1", "?", 2.0, at(3))])
    stream.events("b", [*rows(16, 30), ("u1", "A", None, at(30))])
    once = stream.once(31)
    stream.clock(16)
    first = stream(summary=stream.job.path("summary.json"))
    assert "16 base slots over, slots released: state 16, speed 2; 194 events read: 1" in first.out
    assert stream.table("late").num_rows == 0
    (stream.folder / "in" / "a.parquet").rename(stream.folder / "gone.parquet")
    stream.clock(31)
    second = stream(summary=stream.job.path("summary.json"), shards=2)
    assert "15 base slots over, slots released: state 15, speed 3, late 1;" in second.out
    stream.adds_up_to(once)
    letters = [row for n in (1, 2) for row in stream.job.rows(f"rejected-0000000{n}.jsonl")]
    assert sorted(row["reason"] for row in letters) == sorted(row["reason"] for row in once[2])
    summary = json.loads((stream.folder / "summary.json").read_text())
    assert summary["queries"]["late"]["slots"] == 1
    assert summary["passes"][0]["queries"]["state"]["slots"] == 15
    assert sorted(path.name for path in (stream.folder / "state" / "pass-00000002").iterdir()) == [
        "card.json",
        "manifest.json",
        "state.parquet",
        "waiting.parquet",
    ]
    # No slot is new, and the page that is asked for now shows those that are there.
    again = stream(page=stream.job.path("page.html"))
    assert "nothing to do" in again.out
    shown = (stream.folder / "page.html").read_text()
    assert all(name in shown for name in NAMES)
    assert "This run: 0 events read" in re.sub(r"\s+", " ", shown)


def changes_of(rows):
    """A file of changes: user, base slot from 2024-01-01 on, and the window and epsilon or not."""
    first = int(at(0).timestamp()) // 3600
    lines = ["user,slot,window_backward,epsilon_backward,window_forward,epsilon_forward"]
    for user, hour, *asked in rows:
        lines.append(",".join(map(str, (user, first + hour, *(asked or ["", ""]) * 2))))
    return "\n".join(lines) + "\n"


CHANGED = [("u3", 9, 8, 40.0), ("u5", 10), ("u7", 16, 7, 41.0), ("new", 16, 6, 40.0), ("u9", 16)]


# Of the changes some are in a file and others in the table of the second run.
def test_requirements_change_by_files_and_by_the_table(stream):
    job, users = stream.job, {f"u{u}": (8, 40.0 + u % 2) for u in range(60)}
    job.requirements(users)
    stream.events("a", [*rows(0, 15), ("new", "A", 1.0, at(15))])
    stream.events("b", [*rows(16, 30), ("new", "A", 1.0, at(20)), ("u9", "B", 1.0, at(20))])
    job.write("all.csv", changes_of(CHANGED))
    once = stream.once(31, requirement_changes=job.path("all.csv"))
    job.write("some.csv", changes_of(CHANGED[:2]))
    stream.clock(16)
    first = stream(requirement_changes=job.path("some.csv"), longest_window=8)
    assert "2 accepted, 0 rejected" in first.out
    del users["u9"]
    job.requirements({**users, "u7": (7, 41.0), "new": (6, 40.0)})
    stream.clock(31)
    second = stream()
    assert "the table of requirements has changed: 1 joined, 1 left, 1 ask" in second.out
    stream.adds_up_to(once)
    card = json.loads((stream.folder / "answers" / "card.json").read_text())
    assert card["promise"]["requirements_change"]


def test_a_longest_window_alone_begins_a_stream_with_changes(stream):
    users = {f"u{u}": (8, 40.0 + u % 2) for u in range(60)}
    stream.job.requirements(users)
    stream.events("a", rows(0, 15))
    stream.clock(4)
    stream(longest_window=8)
    stream.job.requirements({**users, "u7": (7, 40.0)})
    stream.job.write("some.csv", changes_of(CHANGED[:1]))
    stream.clock(9)
    second = stream(requirement_changes=stream.job.path("some.csv"))
    assert "the table of requirements has changed: 0 joined, 0 left, 1 ask" in second.out
    assert "2 accepted, 0 rejected, 0 late" in second.out
    stream.job.write("late.csv", changes_of([("u8", 2, 8, 40.0)]))
    stream.clock(12)
    third = stream(requirement_changes=stream.job.path("late.csv"))
    assert "1 accepted, 0 rejected, 1 late" in third.out


@pytest.mark.parametrize("changes", [False, True])
def test_each_pass_says_what_became_of_what_it_read(stream, changes):
    """Slots of a day hold events that earlier passes have read."""
    stream.ask(QUERIES[: QUERIES.index("  - ")] + QUERIES[QUERIES.index("  - {name: late") :])
    stream.events("a", [*rows(0, 25), ("nobody", "A", 1.0, at(2))])
    stream.job.write("some.csv", changes_of(CHANGED[:2]))
    asked = {"requirement_changes": stream.job.path("some.csv"), "longest_window": 8}
    for hour in (4, 9, 25):
        stream.clock(hour)
        stream(summary=stream.job.path("summary.json"), **(asked if changes else {}))
        made = json.loads((stream.folder / "summary.json").read_text())
        lost = sum(made["rejected"].values())
        assert made["read"] == made["kept"] + lost + made["late"] + made["dropped"]
        assert made["kept"]
    assert made["queries"]["late"]["counted"]


def test_a_stream_of_queries_that_began_without_changes_keeps_to_its_table(stream):
    stream.events("a", rows(0, 15))
    stream.clock(4)
    stream()
    stream.clock(9)
    stream.job.write("changes.csv", changes_of(CHANGED))
    asked = {"requirement_changes": stream.job.path("changes.csv")}
    stream.refused("began without changes", "leave both out", **asked)
    stream.refused("began without changes", longest_window=9)
    stream.job.requirements({"u1": (6, 40.0)})
    stream.refused("another configuration")


# Also where a later pass ends the slot that the stream began within.
def test_results_of_a_slot_that_the_start_cuts_say_so(stream):
    stream.flags["start"] = "2024-01-01T03:00"
    stream.events("a", rows(3, 30))
    once = stream.once(31)
    for hour in (5, 14, 25):
        stream.clock(hour)
        stream()
    stream.adds_up_to(once)
    part = "a part of the time: {} of its {} slots of 1h".format
    for name, words in (("late", part(21, 24)), ("speed", part(3, 6)), ("state", None)):
        found = stream.table(name).to_pylist()
        (first, *_) = (row["slot"] for row in found if row["length"] != "12h")
        for row in found:
            if row["length"] != "12h":
                cut = (row["note"] or "").endswith(words or "a part of the time")
                assert cut == (row["slot"] == first and words is not None)


@pytest.mark.slow
def test_following_answers_every_slot_as_it_closes(stream, monkeypatch):
    stream.events("a", rows(0, 30))
    once = stream.once(31)
    hours = iter((3, 7, 13, 25, 31))
    look = Monitor.looked

    def and_goes_on(monitor, waits_for=None):
        look(monitor, waits_for)
        with contextlib.suppress(StopIteration):
            stream.clock(next(hours))

    monkeypatch.setattr(Monitor, "looked", and_goes_on)
    stream.clock(1)
    page = stream.job.path("page.html")
    done = stream(follow="1ms", end=at(31).isoformat(), page=page, slots_per_pass=8)
    assert (
        "--end is within a slot of speed, late, state by 12h, at 2024-01-02T07:00:00Z" in done.out
    )
    assert len(list((stream.folder / "answers").glob("late-*.parquet"))) == 7
    stream.adds_up_to(once)
    assert stream.table("late").num_rows == 2
    shown = Path(page).read_text()
    assert all(name in shown for name in NAMES)
    # The end may move on: what it had cut is answered completely, and half days are published once.
    stream.clock(36)
    stream(end=at(36).isoformat())
    assert stream.table("speed").num_rows == 12
    state = stream.table("state").to_pylist()
    halves = [row for row in state if row["end"] - row["start"] == dt.timedelta(hours=12)]
    assert [row["start"] for row in halves[::2]] == [at(0), at(12), at(24)]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["_settle", "_publish", "commit"])
def test_a_run_that_is_killed_answers_no_slot_twice(stream, monkeypatch, where):
    stream.events("a", rows(0, 30))
    once = stream.once(31)
    stream.clock(16)
    stream()
    stream.clock(31)
    with monkeypatch.context() as patched:

        def killed(*_, **__):
            raise KeyboardInterrupt

        patched.setattr(StateFolder, where, killed)
        stream.job(**stream.given({}))
    before = {name: stream.table(name).num_rows for name in NAMES}
    stream()
    assert stream.table("late").num_rows > before["late"]
    stream.adds_up_to(once)


@pytest.mark.slow
def test_slots_that_were_answered_are_not_answered_again(stream):
    stream.events("a", rows(0, 30))
    stream.clock(16)
    stream()
    stream.clock(31)
    stream.refused("resume it with --resume", resume=None)
    stream.refused("--start is not in the slot that the stream started with", start="2024-01-02")
    # Late for its hour, and so for all queries.
    stream.events("b", [("u1", "A", 3.0, at(13))])
    stream()
    (letter,) = stream.job.rows("rejected-00000002.jsonl")
    assert letter["reason"] == "late"
    stream.job.requirements({f"u{u}": (6, 40.0) for u in range(60)})
    stream.refused("another configuration: the requirements, ", "the table of users changed")


SLOT = "the slots changed: slot: 30m, but those of the stream"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("weight: 2", "weight: 9", "the weights or shares asked for changed since it was"),
        ("[A, B], rollups", "[A, 'B '], rollups", "the query state changed since it was written"),
        ("bounds: [0, 128]", "bounds: [0, 64]", "the query speed changed since it was written"),
        (
            "  - {name: late",
            "  - {name: new}\n  - {name: late",
            "the query late, the query n",
        ),
        ("slot: 1h", "slot: 30m", SLOT),
        ("bounds: [0, 128]", "bounds: auto", "bounds of numbers were given when it was"),
    ],
)
def test_other_queries_are_refused(stream, before, after, words):
    stream.events("a", rows(0, 30))
    stream.clock(16)
    stream()
    stream.clock(31)
    assert before in QUERIES
    stream.ask(QUERIES.replace(before, after))
    stream.refused("another configuration", words)


@pytest.mark.slow
def test_bounds_that_the_first_pass_chose_stay(stream):
    stream.ask(QUERIES.replace("bounds: [0, 128]", "bounds: auto"))
    stream.job.requirements({f"u{u}": (6, 4000.0) for u in range(60)})
    stream.events("a", rows(0, 15))
    stream.clock(16)
    first = stream(page=stream.job.path("page.html"))
    assert "; bounds chosen: speed 0 to 130; wrote" in first.out
    page = (stream.folder / "page.html").read_text()
    assert "Numbers count from 0 to 130, as the run chose." in page
    stream.events("b", [(user, place, 9 * kmh, time) for user, place, kmh, time in rows(16, 30)])
    stream.clock(31)
    stream(page=stream.job.path("page.html"))
    assert max(stream.table("speed")["value"].to_pylist()) < 131
    assert "Numbers count from 0 to 130." in (stream.folder / "page.html").read_text()


# Nothing was looked at, so nothing is paid: the stream can still choose.
def test_a_stream_whose_first_input_is_lost_can_still_choose(stream):
    stream.ask(QUERIES.replace("bounds: [0, 128]", "bounds: auto"))
    stream.job.requirements({f"u{u}": (6, 4000.0) for u in range(60)})
    stream.events("a", [(user, place, float("nan"), time) for user, place, _, time in rows(0, 15)])
    stream.clock(16)
    outcome = stream.job(**stream.given({}))
    assert outcome.code == 3
    assert "query 'speed' asks about 192 events and can read none" in outcome.message
    assert not stream.ledger()
    stream.events("a", rows(0, 15))
    assert "bounds chosen: speed 0 to 130" in stream().out


# Whatever starts a command again must not pay for one look after another.
@pytest.mark.slow
def test_a_look_in_vain_is_not_paid_again(stream):
    stream.ask(QUERIES.replace("bounds: [0, 128]", "bounds: auto"))
    stream.job.requirements({f"u{u}": (6, 2.0) for u in range(60)})
    stream.events("a", rows(0, 15))
    stream.clock(16)
    outcome = stream.job(**stream.given({}))
    assert "bounds: auto found too few numbers in column 'kmh'" in outcome.message
    stream.events("b", rows(16, 30))
    stream.clock(31)
    stream.refused("has tried to estimate bounds (bounds: auto) and chose none", resume=None)
    stream.refused("has tried to estimate bounds (bounds: auto) and chose none")
    stream.ask(QUERIES)
    stream()
    assert stream.table("late").num_rows == 2


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"output": "folder:out"}, "--output=folder:out is not a folder of files"),
        (
            {"restart_budget": 1, "resume": True},
            "is not for --queries: it works only for the single count",
        ),
        ({"page": "state/page.html"}, "is for the state alone"),
    ],
)
@pytest.mark.slow
def test_options_that_do_not_fit_are_refused(stream, monkeypatch, flags, words):
    monkeypatch.chdir(stream.folder)
    stream.clock(1)
    stream.events("a", rows(0, 1))
    outcome = stream.job(**stream.given(flags))
    assert outcome.code == 2
    assert words in outcome.message
