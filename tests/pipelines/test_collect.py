"""`streamveil collect`: what it releases and writes, and what it refuses."""

import datetime as dt
import json
import os
import stat
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pytest

from streamveil.io import read_ledger, read_releases

DAYS, USERS = 6, 60


def day(n, hour=0):
    return dt.datetime(2024, 1, n, hour, tzinfo=dt.timezone.utc)


def visits():
    """At most one event of a user in a day, with a quiet day 4."""
    return [
        (f"u{u}", "ABC"[(u * u + d) % 3], day(d, u % 24))
        for d in range(1, DAYS + 1)
        for u in range(USERS)
        if (u + d) % 3 and d != 4
    ]


@pytest.fixture
def local(toolbox, tmp_path):
    job = toolbox.Job(tmp_path, "collect")
    job.events(visits())
    job.requirements({f"u{u}": (1 + u % 3, 1.0 + u % 2) for u in range(USERS)})
    job.flags |= {"start": "2024-01-01", "end": "2024-01-07"}
    return job


def test_rotation_is_the_default_and_keeps_every_requirement(local):
    outcome = local.done(ledger=local.path("ledger.jsonl"), noise_key=local.key())
    rows = local.rows()
    assert [row["start"] for row in rows] == [day(d) for d in range(1, DAYS + 1)]
    assert {row["mechanism"] for row in rows} == {"rotation"}
    assert all(len(row["counts"]) == len(row["stderr"]) == 3 for row in rows)
    spent = defaultdict(list)
    for row in local.rows("ledger.jsonl"):
        assert row["users"] == 10
        assert row["spent"] <= row["spent_in_window"] <= row["epsilon"]
        spent[row["window"], row["epsilon"]].append(row["spent_in_window"])
    # Rotation leaves nobody's budget unused.
    assert all(max(found) == epsilon for (_, epsilon), found in spent.items())
    events = len(visits())
    assert f"{events} events read: {events} counted" in outcome.out
    assert "at most 100.0% of any user's budget was spent" in outcome.out
    assert outcome.out.count("wrote") == 3  # the card too


def test_devices_that_tell_one_event_are_asked_often_and_keep_every_requirement(local):
    local.done(ledger=local.path("ledger.jsonl"), mechanism="rotation:turns=2")
    rows = local.rows()
    assert {row["mechanism"] for row in rows} == {"rotation:turns=2"}
    assert all(0 < dict(row["diagnostics"])["reported_share"] <= 1 for row in rows)
    asked = {(1 + u % 3, 1.0 + u % 2) for u in range(USERS)}
    ledger = local.rows("ledger.jsonl")
    assert {(row["window"], row["epsilon"]) for row in ledger} == asked
    assert all(row["spent"] in (0, row["epsilon"] / 2) for row in ledger)
    assert max(row["spent_in_window"] / row["epsilon"] for row in ledger) == 1


def test_counts_are_true_with_budget_enough(local, toolbox):
    local.requirements({f"u{u}": (1, 40.0) for u in range(USERS)})
    local.done(mechanism="plbu")
    truth = toolbox.true_counts(visits())
    assert local.counts() == {day(d): truth.get(day(d), [0, 0, 0]) for d in range(1, DAYS + 1)}


def test_formats_give_the_same_with_one_key(local):
    key, kinds = local.key(), ("parquet", "csv")
    rows = [*visits(), ("stranger", "A", day(2)), ("u1", "D", day(3)), ("u1", "A", day(9))]
    for kind in kinds:
        local.done(
            input=local.events(rows, f"events.{kind}"),
            output=local.path(f"out.{kind}"),
            ledger=local.path(f"ledger.{kind}"),
            rejected=local.path(f"rejected.{kind}"),
            noise_key=key,
            mechanism="plpa+:project=true",
        )
    counts = [[r.counts.tolist() for r in read_releases(local.path(f"out.{k}"))] for k in kinds]
    costs = [[e.spent.tolist() for e in read_ledger(local.path(f"ledger.{k}"))] for k in kinds]
    assert counts == [counts[0]] * 2
    assert costs == [costs[0]] * 2
    for kind in kinds:
        assert stat.S_IMODE(os.stat(local.path(f"rejected.{kind}")).st_mode) == 0o600
        reasons = {row["reason"] for row in local.rows(f"rejected.{kind}")}
        assert reasons == {"no requirement", "outside the domain", "outside the released slots"}
    labels = pa.parquet.read_schema(local.path("out.parquet")).metadata[b"streamveil.bins"]
    assert json.loads(labels) == ["A", "B", "C"]


def test_an_output_that_is_there_is_never_replaced(local):
    Path(local.path("out.jsonl")).write_text("mine\n")
    local.refused("out.jsonl", "exists")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"input": None}, ["--input is missing", "collect --help"]),
        ({"requirements": None}, ["--requirements is missing"]),
        ({"mechanism": "pba"}, ["'pba' is for requirements", "rotation"]),
        ({"mechanism": "plpa+:projects=true"}, ["no option 'projects'"]),
        ({"mechanism": "rotation:turns=1"}, ["turns is 1: give 2 or more"]),
        ({"mechanism": "rotation:turns=3:oracle=grr"}, ["oue0", "leave oracle out"]),
        ({"max_slots": 2}, ["--max_slots=2", "--mechanism=rotation:turns="]),
        ({"max_contributions": 2}, ["--max_contributions=2", "one value"]),
        ({"adjacency": "replace"}, ["--adjacency=replace", "its guarantee always covers"]),
        (
            {"default_requirement": "7,1.0,50"},
            ["--default_requirement", "which users it can request reports from"],
        ),
        ({"requirement_changes": "c.csv"}, ["--requirement_changes=c.csv"]),
        ({"resume": True}, ["--resume", "--state"]),
        ({"restart_budget": 1}, ["--restart_budget"]),
        ({"mechnism": "plpa"}, ["unknown option", "--mechanism"]),
        ({"slot": "1yr"}, ["'1yr'"]),
        ({"end": "2023-01-01"}, ["the range of slots is empty"]),
        ({"input": "kafka:host:9092/topic"}, ["is unbounded"]),
        ({"noise_key": "file:none"}, ["none"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_flags_that_do_not_fit_are_refused(local, flags, words):
    local.refused(*words, **flags)


def test_a_window_that_leaves_nobody_to_ask_is_refused(local):
    local.requirements({f"u{u}": (1 + 50 * (u == 0), 1.0) for u in range(USERS)})
    local.refused("window", mechanism="plpa")
