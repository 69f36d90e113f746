"""`streamveil release --state` while users sign up, leave and ask for something else."""

import datetime as dt
import json
import os
from collections import Counter

import pytest

from streamveil.io import read_table

pytestmark = pytest.mark.slow  # whole runs, pass after pass

UTC = dt.timezone.utc
TABLE = {f"u{u}": (1 + u % 4, 0.5 + u % 2) for u in range(12)}
PEOPLE = [*TABLE, "x0", "x1", "x2"]


def day(n, hour=0):
    return dt.datetime(2024, 1, n, hour, tzinfo=UTC)


def slot_of(n):
    return (day(n) - dt.datetime(1970, 1, 1, tzinfo=UTC)).days


def visits(n, users=PEOPLE):
    return [(user, "ABC"[(i * i + n) % 3], day(n, i)) for i, user in enumerate(users)]


class Stream:
    """A job that keeps its state; each call is a pass up to a day."""

    def __init__(self, job):
        self.job = job
        os.unlink(job.path("events.csv"))
        for name in ("in", "changes"):
            os.mkdir(job.path(name))
        job.requirements(TABLE)
        for n in range(1, 10):
            job.events(visits(n), f"in/{n}.csv")
        self.flags = job.kept()

    def given(self, until, **flags):
        resume = True if os.path.exists(self.job.path("state/manifest.json")) else None
        return {**self.flags, "end": f"2024-01-{until + 1:02}", "resume": resume, **flags}

    def __call__(self, until, **flags):
        return self.job.done(**self.given(until, **flags))

    def refused(self, *words, until=9, **flags):
        return self.job.refused(*words, **self.given(until, **flags))

    def changes(self, name, rows):
        """(user, day, (window, epsilon) or None) rows."""
        lines = ["user,slot,window_backward,epsilon_backward,window_forward,epsilon_forward"]
        for user, n, asked in rows:
            figures = ",,," if asked is None else f"{asked[0]},{asked[1]},{asked[0]},{asked[1]}"
            lines.append(f"{user},{slot_of(n)},{figures}")
        return self.job.write(f"changes/{name}", "\n".join(lines) + "\n")

    def rows(self, name):
        """Rows of all passes, as they stand in the files."""
        paths = sorted(self.job.folder.glob(f"{name}-????????.jsonl"))
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]

    def once(self, **flags):
        """Rows of one run over all of it with all changes: releases, ledger, dead letters."""
        names = ("once.jsonl", "once_ledger.jsonl", "once_rejected.jsonl")
        outputs = dict(
            zip(("output", "ledger", "rejected"), map(self.job.path, names), strict=True)
        )
        given = {**self.flags, "state": None, "end": "2024-01-10", **flags, **outputs}
        self.job.done(**given)
        return [self.job.json_rows(name) for name in names]


@pytest.fixture
def stream(job):
    return Stream(job)


def homeless(rows):
    """Events without a requirement, by slot."""
    found = Counter()
    for row in rows:
        assert row["reason"] == "no requirement"
        record = json.loads(row["record"])
        if "slot" in record:
            found[record["slot"]] += record["events"]
        else:  # a row of its own while nobody can change
            found[slot_of(int(record["time"][8:10]))] += 1
    return found


# A run with a kept state is the run over all of it, with the table's changes as changes.
def test_a_table_that_changes_between_passes_is_one_run_with_changes(stream):
    flags = {"mechanism": "dpbd", "longest_window": 6}
    first = dict(TABLE)
    stream(3, **flags)
    second = {**TABLE, "x0": (6, 2.0), "u3": (2, 0.25)}
    del second["u5"]
    stream.job.requirements(second)
    outcome = stream(5, mechanism="dpbd")  # the longest window is known
    assert (
        "the table of requirements has changed: 1 joined, 1 left, 1 ask for something else; in "
        "force from 2024-01-04" in outcome.out
    )
    assert "changes of requirements: 3 accepted, 0 rejected, 0 late" in outcome.out
    stream(6, mechanism="dpbd")
    third = {**second, "u5": TABLE["u5"]}
    del third["x0"]
    stream.job.requirements(third)
    stream(9, mechanism="dpbd")
    stream.job.requirements(first)
    stream.changes(
        "all.csv",
        [
            *[("x0", 4, (6, 2.0)), ("u3", 4, (2, 0.25)), ("u5", 4, None)],
            *[("u5", 7, TABLE["u5"]), ("x0", 7, None)],
        ],
    )
    releases, ledger, rejected = stream.once(
        requirement_changes=stream.job.path("changes/*.csv"), **flags
    )
    assert stream.rows("out") == releases
    # While nobody had changed, the ledger was that of classes.
    assert stream.rows("ledger") == ledger
    assert homeless(stream.rows("rejected")) == homeless(rejected)
    assert homeless(rejected)[slot_of(5)] == 3  # u5, x1, x2


def test_files_of_changes_are_read_once_and_say_what_is_late(stream):
    stream.flags["requirement_changes"] = stream.job.path("changes/*.csv")
    stream(2)  # no file yet
    stream.changes("a.csv", [("x0", 4, (3, 1.0)), ("u2", 8, (4, 0.5)), ("u4", 3, None)])
    stream(4)
    os.unlink(stream.job.path("changes/a.csv"))  # what it says of later slots is known
    stream.changes("b.csv", [("x1", 2, (2, 1.0)), ("u6", 6, (2, 9.0)), ("?", "x", (1, 1))][:2])
    outcome = stream(6)
    assert "2 accepted, 0 rejected, 1 late, which hold from 2024-01-05" in outcome.out
    stream(9)
    stream.changes("a.csv", [("x0", 4, (3, 1.0)), ("u2", 8, (4, 0.5)), ("u4", 3, None)])
    stream.changes("b.csv", [("x1", 5, (2, 1.0)), ("u6", 6, (2, 9.0))])
    releases, ledger, rejected = stream.once()
    assert stream.rows("out") == releases
    assert stream.rows("ledger") == ledger
    assert homeless(stream.rows("rejected")) == homeless(rejected)


# The default mechanism; before, one appended row refused the state.
def test_one_appended_row_goes_on_with_the_same_ledgers(stream):
    stream(3)
    before = stream.rows("ledger")
    stream.job.requirements({**TABLE, "x0": (9, 1.0)})
    stream(9)
    ledger = stream.rows("ledger")
    assert ledger[: len(before)] == before
    after = ledger[len(before) :]
    assert sum(row["users"] for row in after if row["slot"] == slot_of(4)) == len(TABLE) + 1
    assert [row for row in after if row["window_backward"] == 9]
    # What classes had spent before still counts in their windows, to the last unit.
    spent = {}
    for row in before:
        spent.setdefault((row["window"], row["epsilon"]), []).append(row["spent"])
    for row in after:
        asked = (row["window_backward"], row["epsilon_backward"])
        costs = spent.setdefault(asked, [])
        costs.append(row["spent"])
        assert row["spent_backward"] == sum(costs[-asked[0] :]) <= asked[1]
    assert homeless(stream.rows("rejected"))[slot_of(9)] == 2


def test_users_who_exchange_their_rows_keep_what_each_was_promised(stream):
    stream.flags["max_rejected"] = 1  # there are events of many others
    stream.job.requirements({"u0": (5, 0.5), "u1": (5, 3.0)})
    stream(3)
    stream.job.requirements({"u1": (5, 0.5), "u0": (5, 3.0)})
    outcome = stream(9)
    assert "0 joined, 0 left, 2 ask for something else" in outcome.out
    rows = [row for row in stream.rows("ledger") if "window" not in row]
    for n in range(4, 10):
        there = {row["epsilon_backward"]: row for row in rows if row["slot"] == slot_of(n)}
        assert {asked: row["users"] for asked, row in there.items()} == {0.5: 1, 3.0: 1}
        if n < 8:  # u0's promise of 0.5 ahead from day 3 holds up to day 7
            mine = [
                row["spent"]
                for row in rows
                if row["slot"] <= slot_of(n) and row["epsilon_backward"] == 3.0
            ]
            first = [row["spent"] for row in stream.rows("ledger") if row.get("epsilon") == 0.5]
            assert sum(first[-1:] + mine) <= 0.5
        # u1 spends nothing as long as five days back would be more than 0.5.
        assert there[0.5]["spent"] == 0 or there[0.5]["spent_backward"] <= 0.5


# A change of the table holds from the first slot of the pass, one of a file from its own.
def test_table_and_files_change_together(stream):
    stream.flags |= {"requirement_changes": stream.job.path("changes/*.csv"), "longest_window": 5}
    stream(3)
    stream.job.requirements({**TABLE, "x0": (2, 1.0), "x1": (2, 1.0), "x2": (2, 1.0)})
    stream.changes("a.csv", [("x0", 4, (5, 2.0)), ("x1", 6, (3, 3.0)), ("x2", 2, (1, 5.0))])
    stream(8)
    ledger = {
        (row["slot"], row["window_backward"], row["epsilon_backward"]): row["users"]
        for row in stream.rows("ledger")
    }
    assert (
        ledger[slot_of(4), 5, 1.0] == 1
    )  # both of one slot: the longest window, the least epsilon
    assert ledger[slot_of(5), 2, 1.0] == 2
    assert ledger[slot_of(6), 2, 1.0] == 1
    assert ledger[slot_of(6), 3, 3.0] == 1


def test_what_a_stream_cannot_follow_is_refused(stream):
    stream(3, mechanism="pba")
    stream.job.requirements({**TABLE, "x0": (9, 1.0), "x1": (1, 1.0), "u0": (1, 9.0)})
    stream.refused("2 joined, 0 left, 1 ask", "'pba'", "adaptive, dpbd, dpba", mechanism="pba")
    stream.job.requirements(TABLE)
    place = stream.job.path("changes/*.csv")
    stream.refused("'pba' is for", mechanism="pba", requirement_changes=place)
    stream.refused("files", requirement_changes="kafka:broker:9092/changes", mechanism="pba")
    stream.refused("no requirement", "--default_requirement", default_requirement="3,1.0,20")
    stream.job.requirements(dict(reversed(TABLE.items())))
    stream(4, mechanism="pba")  # the order of rows does not matter


def test_the_longest_window_is_settled_when_somebody_changes(stream):
    stream(3, longest_window=7)
    stream.job.requirements({**TABLE, "x0": (8, 1.0)})
    stream.refused("user 'x0'", "8 slots", "of this stream is 7", "a larger --longest_window")
    stream(4, longest_window=8)
    stream.job.requirements({**TABLE, "x0": (8, 1.0), "x1": (9, 1.0)})
    stream.refused("user 'x1'", "9 slots", "longest window of this stream is 8", "was settled")
    stream.job.requirements({**TABLE, "x0": (8, 1.0)})
    stream.refused("--longest_window=9", "which is 8", longest_window=9)
    users = read_table(stream.job.path("state/pass-00000002/users.parquet"))
    assert users.column("user").to_pylist() == [*TABLE, "x0"]
