"""`streamveil collect --state`: passes add up to one run, for devices and server alike."""

import datetime as dt
import json
import os

import pytest

from streamveil.io import read_table

pytestmark = pytest.mark.slow  # whole runs, pass after pass

USERS = {f"u{u}": (1 + u % 3, 1.0 + u % 2) for u in range(24)}
LAST = 7


def day(n, hour=0):
    return dt.datetime(2024, 1, n, hour, tzinfo=dt.timezone.utc)


@pytest.fixture
def local(toolbox, tmp_path):
    job = toolbox.Job(tmp_path, "collect")
    os.unlink(job.path("events.csv")) if os.path.exists(job.path("events.csv")) else None
    for n in (1, 2, 3, 5, 7):
        rows = [(user, "ABC"[(u + n) % 3], day(n, u)) for u, user in enumerate(USERS) if u % n]
        job.events(rows, f"{n}.csv")
    job.requirements(USERS)
    job.flags |= {
        "input": job.path("[0-9].csv"),
        "start": "2024-01-01",
        "ledger": job.path("ledger.jsonl"),
        "noise_key": job.key(),
    }
    return job


def passes(local, name):
    paths = sorted(local.folder.glob(f"{name}-????????.jsonl"))
    return [row for path in paths for row in read_table(str(path)).to_pylist()]


@pytest.mark.parametrize("mechanism", ["rotation", "rotation:turns=2", "plpa"])
def test_passes_of_devices_and_server_add_up_to_one_run(local, mechanism):
    local.flags["mechanism"] = mechanism
    for until in (3, 4, LAST):
        resume = True if until > 3 else None
        local.done(state=local.path("state"), end=f"2024-01-{until + 1:02}", resume=resume)
    releases, ledger = (passes(local, name) for name in ("out", "ledger"))
    local.done(end=f"2024-01-{LAST + 1:02}")
    assert releases == local.rows("out.jsonl")
    assert ledger == local.rows("ledger.jsonl")
    assert len(releases) == LAST


def test_a_state_of_devices_is_for_its_users_and_options(local):
    local.flags |= {"state": local.path("state"), "end": "2024-01-04"}
    local.done()
    given = {"resume": True, "end": "2024-01-05"}
    local.refused("another configuration", "mechanism", mechanism="plpa", **given)
    local.refused("--restart_budget", "by themselves", restart_budget=1, **given)
    local.refused("--requirement_changes=c.csv", requirement_changes="c.csv", **given)


def test_a_table_that_changes_between_passes_is_followed(local):
    given = {"state": local.path("state"), "rejected": local.path("rejected.jsonl")}
    rows = [(user, "B", day(n, 5)) for n in (5, 7) for user in ("x", "y")]
    local.events(rows, "8.csv")
    local.done(end="2024-01-04", **given)
    given["resume"] = True
    second = {"x": (2, 4.0), **USERS, "u3": (2, 0.5), "y": (3, 1.0)}
    del second["u6"]
    local.requirements(second)
    local.refused("the longest window", end="2024-01-05", longest_window=2, **given)
    outcome = local.done(end="2024-01-06", **given)
    assert (
        "the table of requirements has changed: 2 joined, 1 left, 1 ask for something else; in "
        "force from 2024-01-04" in outcome.out
    )
    local.refused(
        *("user 'x'", "epsilon 4 over 5 slots", "longest window of this stream is 3 slots"),
        end="2024-01-07",
        **given,
        **table(local, {**second, "x": (5, 4.0)}),
    )
    local.refused("--longest_window=9", end="2024-01-07", longest_window=9, **given)
    third = {**second, "u6": USERS["u6"]}
    del third["x"]
    local.done(end="2024-01-07", **given, **table(local, third))
    assert "changed" not in local.done(end="2024-01-08", **given).out

    releases, ledger = (passes(local, name) for name in ("out", "ledger"))
    assert [row["slot"] - releases[0]["slot"] for row in releases] == list(range(LAST))
    present = {}
    for row in ledger:
        present[row["slot"]] = present.get(row["slot"], 0) + row["users"]
        assert row["spent"] <= row["spent_in_window"] <= row["epsilon"]
    assert list(present.values()) == [24, 24, 24, 25, 25, 25, 25]
    # On day 5 both had joined, u6 had left; on day 7 x had left.
    lost = [json.loads(row["record"])["user"] for row in passes(local, "rejected")]
    assert lost == ["u6", "x"]


def table(local, users):
    """Write the table of users; gives no more options."""
    local.requirements(users)
    return {}


def test_counts_are_of_the_users_who_take_part(local):
    people = [f"p{u}" for u in range(40)]
    for n in range(1, 8):
        local.events([(user, "A", day(n, 1)) for user in people], f"{n}.csv")
    local.flags |= {"state": local.path("state"), "mechanism": "rotation:filtered=False"}
    local.flags["max_rejected"] = 1
    for until, present in ((2, people[:10]), (4, people), (6, people[3:8])):
        local.requirements(dict.fromkeys(present, (1, 30.0)))
        resume = True if until > 2 else None
        local.done(end=f"2024-01-{until + 1:02}", resume=resume)
    assert [row["counts"] for row in passes(local, "out")] == [
        [count, 0, 0] for count in (10, 10, 40, 40, 5, 5)
    ]


def test_the_order_of_the_table_says_nothing(local):
    local.flags |= {"state": local.path("state"), "end": "2024-01-04"}
    local.done()
    local.requirements(dict(reversed(USERS.items())))
    assert "changed" not in local.done(resume=True, end="2024-01-05").out


@pytest.mark.parametrize("mechanism", ["plpa", "lbu"])
def test_other_mechanisms_keep_to_the_table_that_they_began_with(local, mechanism):
    local.flags |= {"state": local.path("state"), "end": "2024-01-04", "mechanism": mechanism}
    local.done()
    local.requirements({**USERS, "x": (2, 1.0)})
    local.refused(
        *("another configuration", "the table of users changed", "1 joined", f"'{mechanism}'"),
        *("with rotation (--mechanism)", "another folder"),
        resume=True,
        end="2024-01-05",
    )


def test_devices_that_tell_one_event_keep_to_the_table_as_well(local):
    mechanism = "rotation:turns=2"
    local.flags |= {"state": local.path("state"), "end": "2024-01-04", "mechanism": mechanism}
    local.done()
    local.requirements({**USERS, "x": (2, 1.0)})
    local.refused("turns is for users and requirements that never", resume=True, end="2024-01-05")


def test_the_longest_window_is_settled_with_the_first_change(local):
    local.refused("--longest_window=9", "--state", end="2024-01-04", longest_window=9)
    local.flags["state"] = local.path("state")
    local.refused("a window of 3 slots", end="2024-01-04", longest_window=2)
    local.done(end="2024-01-04")
    local.requirements({**USERS, "x": (6, 1.0), "u0": (8, 1.0)})
    local.done(resume=True, end="2024-01-05")
    local.requirements({**USERS, "x": (8, 1.0), "u0": (9, 1.0)})
    local.refused("user 'u0'", "is 8 slots", "--longest_window", resume=True, end="2024-01-06")
    local.requirements({**USERS, "x": (8, 1.0), "u0": (1, 9.0)})
    local.done(resume=True, end="2024-01-08")
