"""`--guarantee=user`: users count in so many slots of their lives; whole runs, pieces, refusals."""

import datetime as dt

import numpy as np
import pytest

import streamveil as sv

START = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
DAYS, IN_LIFE, EPSILON = 60, 3, 600.0
FROM, TO, CUT = "2024-01-01", "2024-03-01", "2024-01-25"


def visits(days=4, users=200, seed=4):
    """Users who come on so many days on end, and never again."""
    random = np.random.default_rng(seed)
    return [
        (f"u{user}", "ABC"[random.integers(3)], START + dt.timedelta(days=int(first) + day))
        for user, first in enumerate(random.integers(0, DAYS - days + 1, users))
        for day in range(days)
    ]


@pytest.fixture
def comers(job):
    """A job over events of users who come and go."""
    return of(job, visits())


def of(job, rows):
    job.events(rows)
    job.flags |= {"start": FROM, "end": TO, "noise_key": job.key(), "requirements": None}
    job.flags |= {"guarantee": "user", "epsilon": str(EPSILON), "max_slots": str(IN_LIFE)}
    return job


def test_a_run_counts_lives_and_makes_up_for_what_is_left_out(comers):
    outcome = comers.done(ledger=comers.path("ledger.jsonl"), summary=comers.path("summary.json"))
    text = outcome.out + outcome.err + outcome.log
    assert "200 beyond the slots in which they count" in text
    assert "more seems to be left out than counts" not in text
    assert "of any user's budget was spent" in text  # there are no windows
    rows = comers.json_rows("out.jsonl")
    assert len(rows) == DAYS
    assert rows[IN_LIFE - 1]["diagnostics"]["kept_share"] == 1
    assert rows[-1]["diagnostics"]["kept_share"] == pytest.approx(0.75, abs=0.05)
    assert sum(sum(row["counts"]) for row in rows[-20:]) == pytest.approx(
        sum(1 for row in visits() if (row[2] - START).days >= DAYS - 20), rel=0.1
    )
    ledger = comers.json_rows("ledger.jsonl")
    assert {(row["window"], row["epsilon"], row["users"]) for row in ledger} == {(None, EPSILON, 0)}
    assert max(row["spent"] for row in ledger) <= 0.95 * EPSILON / IN_LIFE
    assert max(row["spent_in_window"] for row in ledger) <= EPSILON


def test_people_who_stay_are_warned_of_and_another_mechanism_is_named(job):
    staying = [
        (f"u{user}", "A", START + dt.timedelta(days=day)) for user in range(20) for day in range(40)
    ]
    outcome = of(job, staying).done()
    text = outcome.out + outcome.err + outcome.log
    assert "more seems to be left out than counts" in text
    assert "or none" not in text  # a life has a limit
    assert "--guarantee=infinite, whose mechanism gated" in text


def test_pieces_of_a_stream_release_what_one_run_does(comers):
    comers.done()
    whole = comers.counts()
    pieces = {"state": comers.path("state"), "output": comers.path("part.jsonl")}
    comers.done(**pieces, end=CUT)
    going_on = {**pieces, "resume": "true"}
    comers.refused("--shards=1, and this run has 2", **going_on, shards="2")
    comers.refused("the participation limit", **going_on, max_slots="4")
    comers.refused("no budget can be granted again", **going_on, restart_budget="1")
    comers.done(**going_on)
    counts = {**comers.counts("part-00000001.jsonl"), **comers.counts("part-00000002.jsonl")}
    assert counts == whole


@pytest.mark.slow
def test_in_python_it_is_the_same(comers):
    comers.done()
    made = sv.release(
        comers.flags["input"],
        user="user",
        value="value",
        time="time",
        slot="1d",
        domain=["A", "B", "C"],
        guarantee="user",
        epsilon=EPSILON,
        max_slots=IN_LIFE,
        start=FROM,
        end=TO,
        noise_key=comers.flags["noise_key"],
    )
    assert [one.counts.tolist() for one in made["count"]] == list(comers.counts().values())
    assert made.summary["beyond_limit"] == 200


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"epsilon": None}, ["--epsilon is missing: --guarantee=user needs"]),
        ({"max_slots": None}, ["--max_slots is missing: --guarantee=user", "--max_slots=5"]),
        ({"max_slots": "3,4"}, ["--max_slots=3,4 is not M", "which has no parts"]),
        ({"max_slots": "0"}, ["--max_slots=0", "1 or more"]),
        ({"default_requirement": "7,1,10"}, ["applies to windows", "with --guarantee=user"]),
        ({"requirement_changes": "c.csv"}, ["applies to windows", "with --guarantee=user"]),
        ({"epsilon": "1,2"}, ["several budgets"]),
        ({"epsilon": "1e-9"}, ["epsilon 1e-09 as a lifetime budget is too small", "1.91e-06"]),
        ({"epsilon": "1e-5", "max_slots": "9000000"}, ["epsilon 1e-05 forever", "--max_slots"]),
        ({"mechanism": "gated"}, ["--guarantee=infinite", "choose one of adaptive"]),
        ({"mechanism": "dpbd"}, ["does not support a participation limit"]),
        ({"guarantee": "infinite"}, ["--max_slots=3 applies to windows", "--guarantee=user"]),
        ({"guarantee": None}, ["for a lifetime budget give --guarantee=infinite or user"]),
        ({"mechanism": "plbu"}, ["10,000,000,000 users would be drawn one by one", "uniform"]),
    ],
)
def test_what_does_not_fit_is_refused_in_words(comers, flags, words):
    comers.refused(*words, **flags)


def test_a_dry_run_tells_what_a_slot_of_a_life_costs(comers):
    outcome = comers.done("--dry_run")
    message = "all users, who count in the first 3 slots of their lives: one costs 190"
    assert message in outcome.out + outcome.err + outcome.log


def test_evaluate_says_that_it_does_not_compare_this():
    with pytest.raises(ValueError, match="guarantee=user is not compared here"):
        sv.evaluate(guarantee="user", epsilon=1)
