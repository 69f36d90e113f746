"""`--max_slots`: users count in a few slots only; whole runs, pieces of them, and in Python."""

import datetime as dt
import json
from pathlib import Path

import numpy as np
import pytest

import streamveil as sv
from streamveil.mechanisms.presence.choice import Look
from streamveil.mechanisms.presence.counters import Tally

START = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
DAYS, USERS = 90, 60
FROM, TO = "2024-01-01", "2024-03-31"
CUT = "2024-02-10"


def visits(seed=4, often=0.1):
    """Events of users who are there every tenth day or so, at most one a day."""
    random = np.random.default_rng(seed)
    there = random.random((USERS, DAYS)) < often
    return [
        (f"u{user}", "ABC"[random.integers(3)], START + dt.timedelta(days=int(day)))
        for user, day in zip(*np.nonzero(there), strict=True)
    ]


ROWS = visits()


@pytest.fixture
def rarely(job):
    """A job over events of users who are rarely there."""
    job.events(ROWS)
    job.requirements({f"u{user}": (30, 900.0) for user in range(USERS)})
    job.flags |= {"start": FROM, "end": TO, "noise_key": job.key(), "max_slots": "2"}
    return job


def test_a_run_counts_users_in_a_few_slots_and_says_how_many_events_are_left_out(rarely):
    outcome = rarely.done(ledger=rarely.path("ledger.jsonl"))
    assert "beyond the slots in which they count" in outcome.out + outcome.err + outcome.log
    rows = rarely.json_rows("out.jsonl")
    assert len(rows) == DAYS
    assert 0.5 < rows[-1]["diagnostics"]["kept_share"] <= 1
    ledger = rarely.json_rows("ledger.jsonl")
    assert {(row["window"], row["epsilon"]) for row in ledger} == {(30, 900.0)}
    price = 900.0 * 0.95 / 8
    assert max(row["spent"] for row in ledger) <= price
    assert max(row["spent_in_window"] for row in ledger) <= 900.0


def test_a_decision_that_is_broken_is_refused_in_one_line_and_nothing_is_written(
    rarely, monkeypatch
):
    add = Tally.add
    monkeypatch.setattr(Tally, "add", lambda *given: np.maximum(add(*given) - 1, 0))
    said = rarely.refused("more than 2 slots of a block, so nothing is released", code=1).message
    assert len(said.splitlines()) == 1


CHANGES = """user,slot,window_backward,epsilon_backward,window_forward,epsilon_forward
u1,19730,30,500,30,500
u2,19740,30,900,20,900
u3,19758,,,,
u4,19760,31,900,30,900
new,19765,30,900,30,900
"""


@pytest.mark.slow
def test_requirements_may_change_meanwhile(rarely):
    """`new` joins on 12 February and was there on all days; u3 has left on the 5th."""
    new = [("new", "A", START + dt.timedelta(days=day)) for day in range(DAYS)]
    rarely.events(ROWS + new)
    changes = rarely.write("changes.csv", CHANGES)
    outcome = rarely.done(
        requirement_changes=changes,
        ledger=rarely.path("ledger.jsonl"),
        rejected=rarely.path("dead.jsonl"),
        max_rejected="0.5",
    )
    assert "changes:  5 read, 4 accepted, 0 of them late" in outcome.out
    ledger = rarely.json_rows("ledger.jsonl")
    assert {(row["window"], row["epsilon"], row["users"]) for row in ledger} == {(30, 900.0, USERS)}
    assert max(row["spent_in_window"] for row in ledger) <= 900.0
    dead = rarely.json_rows("dead.jsonl")
    slots = [json.loads(row["record"])["slot"] for row in dead if row["reason"] == "no requirement"]
    assert set(range(19723, 19765)) <= set(slots)  # of `new`, before
    after = {slot for slot in slots if slot >= 19765}
    gone = {(at - START).days + 19723 for user, _, at in ROWS if user == "u3"}
    assert after == {slot for slot in gone if slot >= 19765}


@pytest.mark.slow
@pytest.mark.parametrize("changes", [None, CHANGES])
def test_pieces_of_a_stream_release_what_one_run_does(rarely, changes):
    if changes is not None:
        rarely.flags["requirement_changes"] = rarely.write("changes.csv", changes)
    rarely.done()
    whole = rarely.counts()
    pieces = {"state": rarely.path("state"), "output": rarely.path("part.jsonl")}
    rarely.done(**pieces, end=CUT)
    rarely.done("--resume", **pieces)
    counts = {**rarely.counts("part-00000001.jsonl"), **rarely.counts("part-00000002.jsonl")}
    assert counts == whole


def joined(job, user, window=30, epsilon=900.0):
    """The table with one more user."""
    job.requirements({f"u{i}": (30, 900.0) for i in range(USERS)} | {user: (window, epsilon)})


@pytest.mark.slow
def test_the_table_may_gain_users_between_pieces(rarely):
    """`new` is there on all days, and counts in some of those after the table says so."""
    new = [("new", "A", START + dt.timedelta(days=day)) for day in range(DAYS)]
    rarely.events(ROWS + new)
    pieces = {"state": rarely.path("state"), "output": rarely.path("part.jsonl")}
    pieces |= {"max_rejected": "0.9", "summary": rarely.path("summary.json")}
    rarely.done(**pieces, end=CUT)
    before = json.loads(Path(rarely.path("summary.json")).read_text())
    assert before["rejected"]["no requirement"] == 40
    joined(rarely, "new", window=31)
    longer = "user 'new' asks for epsilon 900 over 31 slots, but the longest window of this stream"
    rarely.refused(longer, "is 30 slots", "in another folder", **pieces, resume="true")
    joined(rarely, "new")
    pieces["end"] = "2024-03-01"
    said = rarely.done("--resume", **pieces, ledger=rarely.path("ledger.jsonl")).out
    assert "1 joined, 0 left, 0 ask for something else; in force from 2024-02-10" in said
    after = json.loads(Path(rarely.path("summary.json")).read_text())
    assert not after["rejected"]
    there = sum(40 <= (at - START).days < 60 for _, _, at in ROWS)
    assert after["counted"] + after["beyond_limit"] == there + 20
    assert max(row["spent_in_window"] for row in rarely.json_rows("ledger-00000002.jsonl")) <= 900.0
    joined(rarely, "new", epsilon=899.0)
    outcome = rarely.done("--resume", **{**pieces, "end": "2024-03-03"})
    assert "1 of the users in the table ask for less than epsilon 900" in outcome.out


@pytest.mark.slow
def test_whoever_says_that_changes_will_come_may_have_any_windows(rarely):
    rarely.flags["requirement_changes"] = rarely.path("changes-*.csv")  # none is there yet
    rarely.requirements({f"u{i}": (30 - i % 2, 900.0) for i in range(USERS)})
    pieces = {"state": rarely.path("state"), "output": rarely.path("part.jsonl")}
    rarely.done(**pieces, end=CUT)
    rarely.requirements({f"u{i}": (30 - i % 2, 900.0) for i in range(1, USERS)} | {"new": (7, 900)})
    said = rarely.done("--resume", **pieces, max_rejected="0.5").out
    assert "1 joined, 1 left, 0 ask for something else" in said


@pytest.mark.slow
def test_in_python_it_is_the_same(rarely):
    rarely.done()
    made = sv.release(
        rarely.flags["input"],
        user="user",
        value="value",
        time="time",
        slot="1d",
        domain=["A", "B", "C"],
        requirements=rarely.flags["requirements"],
        start=FROM,
        end=TO,
        noise_key=rarely.flags["noise_key"],
        max_slots=2,
    )
    assert [one.counts.tolist() for one in made["count"]] == list(rarely.counts().values())
    assert made.summary["beyond_limit"] > 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"max_slots": "many"}, ["--max_slots=many is not M, M,BLOCKS or auto", "3,4"]),
        ({"max_slots": "2,3,4"}, ["--max_slots=2,3,4 is not M, M,BLOCKS or auto"]),
        ({"max_slots": "auto:"}, ["--max_slots=auto: is not M, M,BLOCKS or auto"]),
        ({"max_slots": "auto:5"}, ["--max_slots=auto:5: a presence rate of 5", "below 1"]),
        (
            {"max_slots": "auto", "mechanism": "dpbd"},
            [("'dpbd' does not support a participation limit")],
        ),
        (
            {"max_slots": "auto:0.05", "requirement_changes": "changes.csv"},
            [
                "max_slots=auto is for requirements that never change",
                "--max_slots=2",
                "the changes",
            ],
        ),
        ({"max_slots": "0"}, ["--max_slots=0", "1 or more"]),
        ({"max_slots": "8"}, ["saves nothing over 30 slots", "max_slots=2"]),
        ({"max_slots": "3"}, ["does not help over 30 slots", "1/12 of the budget", "max_slots=2"]),
        (
            {"mechanism": "dpbd"},
            ["'dpbd' does not support a participation limit (--max_slots", ("another")],
        ),
        (
            {"guarantee": "infinite", "epsilon": "1", "requirements": None},
            ["--max_slots=2 applies to windows", "--guarantee=infinite"],
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_words(rarely, flags, words):
    rarely.refused(*words, **flags)


def test_a_limit_that_may_increase_errors_is_reported_before_and_after_the_run(job):
    """Over 28 days a limit of 2 helps users who are there on one day in 20, but not in 7."""
    job.events(visits(often=1 / 7))
    job.requirements({f"u{user}": (28, 900.0) for user in range(USERS)})
    outcome = job.done(start=FROM, end=TO, noise_key=job.key(), max_slots="2")
    words = outcome.out + outcome.err + outcome.log
    assert "max_slots=2 reduces errors if users are present in at most 5.2% of the slots" in words
    assert "where less than 82% is kept, the limit may increase errors" in words


def test_a_table_of_which_some_windows_are_too_short_limits_the_others(rarely):
    # Over 20 slots a limit of 2 would gain something, but less than it leaves out.
    rarely.requirements({f"u{user}": (30 if user % 2 else 20, 900.0) for user in range(USERS)})
    outcome = rarely.done()
    assert (
        "max_slots=2 does not help for 30 users (20 slots in a window): there users count in every "
        "slot"
    ) in outcome.out + outcome.err + outcome.log
    rarely.requirements({f"u{user}": (3, 900.0) for user in range(USERS)})
    other = rarely.path("other.jsonl")
    rarely.refused("saves nothing over 3 slots", "give longer windows", output=other)


# ---- a column of the table ----------------------------------------------------------------------


def with_limits(job, limit_of, window=30):
    rows = [f"u{user},{window},900.0,{limit_of(user)}" for user in range(USERS)]
    return job.write("users.csv", "\n".join(("user,window,epsilon,max_slots", *rows)) + "\n")


@pytest.fixture
def by_table(rarely):
    """The same job, where the table says who is limited: every other user."""
    with_limits(rarely, lambda user: 2 if user % 2 else "")
    rarely.flags |= {"max_slots": None, "ledger": rarely.path("ledger.jsonl")}
    return rarely


def test_a_column_of_the_table_limits_some_and_the_option_the_others(by_table):
    by_table.done(summary=by_table.path("a.json"))
    assert {row["users"] for row in by_table.json_rows("ledger.jsonl")} == {USERS // 2}
    other = {"output": by_table.path("b.jsonl"), "ledger": None}
    by_table.done(summary=by_table.path("b.json"), max_slots="1", **other)
    one, both = (json.loads(Path(by_table.path(name)).read_text()) for name in ("a.json", "b.json"))
    assert 0 < 3 * one["beyond_limit"] < both["beyond_limit"]


def test_a_limit_of_the_table_that_does_not_pay_is_refused(by_table):
    for limit, words in ((3, ["does not help", "at most max_slots=2"]), (40, ["saves nothing"])):
        with_limits(by_table, lambda user, limit=limit: limit if user % 2 else "")
        message = (
            "users.csv: line 3: user 'u1' and whoever asks for the same (window 30, epsilon 900)"
        )
        by_table.refused(message, f"max_slots={limit}", *words)


def test_where_devices_answer_there_are_no_limits(by_table, toolbox):
    collect = toolbox.Job(by_table.folder, "collect")
    collect.flags |= {"start": FROM, "end": TO}
    collect.refused("participation limits (max_slots)", "leave the column out")


def test_a_limit_of_the_table_cannot_change_in_a_stream(by_table):
    pieces = {"state": by_table.path("state"), "output": by_table.path("part.jsonl")}
    by_table.done(**pieces, end="2024-01-03", ledger=None)
    message = "a column max_slots, --max_slots=auto): give the table that the stream started with"
    for limit_of in (lambda user: 1 if user % 2 else "", lambda user: ""):
        with_limits(by_table, limit_of)
        by_table.refused("30 ask for something else", message, **pieces, resume="true")


# ---- a limit that is chosen ----------------------------------------------------------------------


@pytest.fixture
def chosen(rarely):
    """The same job over longer windows, where a limit is to be chosen."""
    rarely.requirements({f"u{user}": (60, 900.0) for user in range(USERS)})
    rarely.flags |= {"max_slots": "auto", "ledger": rarely.path("ledger.jsonl")}
    return rarely


def test_a_run_chooses_its_limit_and_pays_for_the_look(chosen):
    outcome = chosen.done()
    assert "limits:   max_slots=auto: users count as chosen, 60 users in the first" in outcome.out
    assert "beyond the slots in which they count" in outcome.out + outcome.err + outcome.log
    ledger = chosen.json_rows("ledger.jsonl")
    assert max(row["spent_in_window"] for row in ledger) <= 900.0
    looks = ledger[0]["spent_in_window"] - ledger[0]["spent"]
    assert looks == pytest.approx(900.0 * 0.09)
    assert "kept_share" in chosen.json_rows("out.jsonl")[-1]["diagnostics"]


def test_a_run_that_lost_its_input_does_not_look_at_anybody(chosen, monkeypatch):
    asked = []
    monkeypatch.setattr(Look, "answer", lambda *given: asked.append(given))
    chosen.events([(user, "elsewhere", time) for user, _, time in ROWS])
    chosen.refused("outside the domain", "nothing is released", code=3)
    assert not asked
    assert not list(Path(chosen.folder).glob("*.jsonl"))


def test_where_no_limit_is_worth_it_none_is_chosen(chosen):
    chosen.events(visits(5, often=0.6))
    chosen.done()
    ledger = chosen.json_rows("ledger.jsonl")
    look = ledger[0]["spent_in_window"] - ledger[0]["spent"]
    assert look == pytest.approx(900.0 * 0.04)
    assert max(row["spent_in_window"] for row in ledger) <= 900.0
    assert "kept_share" not in chosen.json_rows("out.jsonl")[-1]["diagnostics"]


def test_a_public_rate_chooses_without_a_look(chosen):
    outcome = chosen.done(max_slots="auto:0.05")
    message = "max_slots=auto:0.05: users count as chosen, 60 users in the first 5 of 30 slots"
    assert message in outcome.out + outcome.err + outcome.log
    first = chosen.json_rows("ledger.jsonl")[0]
    assert first["spent_in_window"] - first["spent"] == pytest.approx(900.0 * 0.05)
    outcome = chosen.done(max_slots="auto:0.9", output=chosen.path("b.jsonl"), ledger=None)
    assert (
        "max_slots=auto:0.9: over windows of 60 slots or less, in 2 blocks, no"
        in outcome.out + outcome.err + outcome.log
    )
    assert "kept_share" not in chosen.json_rows("b.jsonl")[-1]["diagnostics"]


@pytest.mark.slow
@pytest.mark.parametrize("often", [0.1, 0.6])
def test_pieces_of_a_stream_keep_to_what_the_first_chose(chosen, often):
    chosen.events(visits(often=often))
    pieces = {"state": chosen.path("state"), "output": chosen.path("part.jsonl"), "ledger": None}
    chosen.done(**pieces, end="2024-03-02")
    chosen.done("--resume", **pieces, end="2024-03-10")
    chosen.done("--resume", **pieces)
    for number in (1, 2, 3):
        rows = chosen.json_rows(f"part-0000000{number}.jsonl")
        assert ("kept_share" in rows[-1]["diagnostics"]) == (often == 0.1)
    for other in ("2", "auto:0.05", None):
        flags = {**pieces, "max_slots": other, "resume": "true"}
        chosen.refused("the participation limit", "changed since it was written", **flags)


def test_where_no_limit_can_be_worth_it_nobody_is_looked_at_and_a_run_says_so(chosen):
    for flags in ({}, {"max_slots": "auto:0.01,60"}):
        chosen.requirements({f"u{user}": (10, 900.0) for user in range(USERS)})
        outcome = chosen.done("--dry_run", **flags)
        message = "over windows of 10 slots or less, in"
        assert message in outcome.out + outcome.err + outcome.log


def test_a_first_piece_without_a_window_is_refused(chosen):
    pieces = {"state": chosen.path("state"), "output": chosen.path("part.jsonl")}
    chosen.refused(
        "there are 10 slots and no window shorter than 60",
        "auto:0.05",
        **pieces,
        ledger=None,
        end="2024-01-11",
    )


def test_a_pass_without_a_window_is_refused(chosen):
    pieces = {"state": chosen.path("state"), "output": chosen.path("part.jsonl"), "ledger": None}
    chosen.refused(
        "10 slots and no window shorter", "--slots_per_pass", **pieces, slots_per_pass="10"
    )


def test_a_state_of_another_limit_is_reported_before_a_range_that_is_too_short(chosen):
    pieces = {"state": chosen.path("state"), "output": chosen.path("part.jsonl"), "ledger": None}
    chosen.done(**pieces, max_slots="2", end="2024-01-03")
    said = "the participation limit (--max_slots) changed"
    chosen.refused(said, **pieces, resume="true", end="2024-01-11")


def test_a_dry_run_tells_what_a_slot_costs(chosen):
    rows = {f"u{user}": (60, 900.0) if user % 2 else (6, 900.0) for user in range(USERS)}
    chosen.requirements(rows)
    text = chosen.done("--dry_run", max_slots="3").out
    assert "class:    epsilon 900 over 6 slots: 30 users, who count in every slot\n" in text
    assert (
        "class:    epsilon 900 over 60 slots: 30 users, who count in the first 3 of 30 slots: one "
        "costs 71.2, for 12 can differ, 4.8 times what it would without a limit\n"
    ) in text
    text = chosen.done("--dry_run").out
    assert "30 users, at whom a run looks, for 1/25 of the budget, to choose a limit\n" in text
