"""`--dry_run`: what a run would do, from a sample; nothing is released, spent or written."""

import json
import math
import re
import statistics

import pyarrow as pa
import pytest

RANGE = {"start": "2024-01-01", "end": "2024-01-08"}


def lines(outcome, kind):
    return [line for line in outcome.out.splitlines() if line.startswith(f"{kind}:")]


@pytest.fixture(params=["release", "collect"])
def histograms(request, job):
    job.command = request.param
    return job


def test_it_shows_what_would_be_read_counted_and_written(histograms):
    job = histograms
    job.requirements({f"u{w}": (w, 4.0) for w in (1, 2, 3)})
    job.lines(
        "u1,A,2024-01-02T08:00:00Z",
        "u1,B,2024-01-02T09:00:00Z",
        "u2,B,yesterday",
        "stranger,B,2024-01-03T00:00:00Z",
        "u3,Z,2024-01-05T00:00:00Z",
        "u3,Z",
    )
    before = job.files()
    outcome = job("--dry_run", **RANGE, ledger=job.path("ledger.csv"), max_rejected=0.9)
    assert outcome.code == 0, outcome.err + outcome.log
    assert job.files() == before
    assert "not private, so never publish" in outcome.out.splitlines()[0]
    assert lines(outcome, "sample") == ["sample:   the first 6 records"]
    assert "column:   value (string): A, B, B" in outcome.out
    assert lines(outcome, "times") == ["times:    2024-01-02T08:00:00Z to 2024-01-05T00:00:00Z"]
    assert "counts in slot 19724 (2024-01-02T00:00:00Z), bin A" in lines(outcome, "event")[0]
    (rejected,) = lines(outcome, "rejected")
    for reason in ("no requirement 1", "outside the domain 1", "unparsable 1", "unparsable time 1"):
        assert reason in rejected
    assert "4 of the sample" in rejected
    assert lines(outcome, "bound")[0].startswith("bound:    1 of 2 events")
    assert lines(outcome, "slots") == [
        "slots:    7 slots, from 2024-01-01T00:00:00Z to 2024-01-08T00:00:00Z"
    ]
    assert lines(outcome, "class")[0] == "class:    epsilon 4 over 1 slot: 1 user"
    assert re.search(r"about [\d.]+ for each count", lines(outcome, "error")[0])
    assert f"would write releases to {job.path('out.jsonl')}" in outcome.out
    assert f"would write the ledger to {job.path('ledger.csv')}" in outcome.out
    assert lines(outcome, "card") == [
        "card:     written at the end, once what was released is whole"
    ]


def test_users_without_a_table_are_bounded_too(job):
    job.lines(*[f"u1,A,2024-01-01T1{i}:00:00Z" for i in range(4)], "u2,A,2024-01-01T10:00:00Z")
    outcome = job("--dry_run", "--budget=1/7d", requirements=None, **RANGE)
    assert outcome.code == 0, outcome.err + outcome.log
    assert lines(outcome, "bound") == [
        "bound:    3 of 5 events would be dropped by contribution bounding (1 per user and slot, "
        "--max_contributions)"
    ]


def test_a_time_that_python_does_not_have_is_shown(job):
    far = pa.array([1 << 62, 1_704_153_600_000_000], pa.timestamp("us"))
    table = pa.table({"user": ["u1", "u2"], "value": ["A", "A"], "time": far})
    outcome = job("--dry_run", **RANGE, input=job.write("far.parquet", table), max_rejected=1)
    assert outcome.code == 0, outcome.err
    assert "time (timestamp[us]): <value out of range: 4611686018427387904>" in outcome.out


def test_the_error_is_the_one_that_a_run_states(job):
    job.requirements({f"u{i}": (2, 1.0) for i in range(50)})
    expected = float(
        re.search(
            r"about ([\d.]+)", lines(job("--dry_run", **RANGE, mechanism="uniform"), "error")[0]
        )[1]
    )
    job.done(**RANGE, mechanism="uniform")
    stated = {round(error, 1) for row in job.rows() for error in row["stderr"]}
    assert stated == {expected}


# Simulated on a stream without events, the error would be 4.1: nothing changes there.
def test_the_error_of_a_mechanism_that_learns_is_not_that_of_an_empty_stream(job):
    rows = [
        f"u{u},{'AB'[u * 7 % 2]},2024-01-{day:02}T08:00:00Z"
        for day in range(1, 15)
        for u in range(200)
        if (u * 31 + day * 17) % 10 < 6
    ]
    job.lines(*rows)
    flags = {"start": "2024-01-01", "end": "2024-01-15", "requirements": None}
    outcome = job("--dry_run", "--budget=1/7d", **flags, mechanism="adaptive")
    expected = float(re.search(r"about ([\d.]+)", lines(outcome, "error")[0])[1])
    assert "of 120 events in 1d" in lines(outcome, "error")[0]
    job.done("--budget=1/7d", **flags, mechanism="adaptive")
    stated = statistics.median(error for row in job.rows() for error in row["stderr"])
    assert expected == pytest.approx(stated, rel=0.25)


def test_events_and_errors_of_each_query(job):
    queries = """
slot: 1d
queries:
  - {name: places, by: value, keys: [A, B], where: {value: A}, mechanism: uniform}
  - {name: users, every: 2d, statistic: distinct, mechanism: uniform}
"""
    job.lines("u1,A,2024-01-01T08:00:00Z", "u2,B,2024-01-02T09:00:00Z")
    flags = {"queries": job.write("queries.yaml", queries), "output": job.path("answers")}
    left_out = {"value_column": None, "domain": None, "slot": None, "requirements": None}
    outcome = job("--dry_run", "--budget=1/4d", **RANGE, **flags, **left_out)
    assert outcome.code == 0, outcome.err
    assert lines(outcome, "event") == [
        "event:    u1, A, 2024-01-01T08:00:00Z counts in query places, slot 19723 "
        "(2024-01-01T00:00:00Z), bin A; query users, slot 9861 (2023-12-31T00:00:00Z), bin all",
        "event:    u2, B, 2024-01-02T09:00:00Z counts in query users, slot 9862 "
        "(2024-01-02T00:00:00Z), bin all",
    ]
    places, users = lines(outcome, "error")
    # The noise of half a budget that is spent evenly over 4 slots, or over 3 of 2 days each.
    assert float(re.search(r"places: count about ([\d.]+)", places)[1]) == pytest.approx(
        math.sqrt(2) * 4 / 0.5, rel=0.2
    )
    assert "of 1 events in 1d" in places
    assert re.search(r"users: \w+ about [\d.]+ \(root mean squared error", users)


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ({"slot": "1yr"}, "slot length"),
        ({"requirements": "nobody.csv"}, "no file matches"),
        ({"user_column": "person"}, "person"),
        ({"output": "events.csv"}, "exists already"),
    ],
)
def test_what_a_run_would_refuse_is_refused(job, flags, word):
    flags = {name: job.path(v) if v.endswith(".csv") else v for name, v in flags.items()}
    outcome = job("--dry_run", **flags)
    assert outcome.code == 2
    assert word in outcome.message


def test_no_state_is_begun(job):
    before = job.files()
    outcome = job("--dry_run", **{**RANGE, "end": None}, state=job.path("state"))
    assert job.path("state") in lines(outcome, "state")[0]
    assert lines(outcome, "slots") == [
        "slots:    from 2024-01-01T00:00:00Z on, as the time of each is over"
    ]
    assert outcome.code == 0, outcome.err
    assert job.files() == before
    assert not (job.folder / "state").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({}, "--start is missing: a stream with --state needs it"),
        ({**RANGE, "resume": True}, "has no state to resume"),
        (
            {**RANGE, "close_by": "marker:%H"},
            "gives the slots of 2024-01-01T00:00:00Z and",
        ),
    ],
)
def test_a_stream_that_a_run_refuses_to_begin_is_refused(job, flags, words):
    flags = {"state": job.path("state"), **flags}
    dry = job("--dry_run", **flags)
    assert dry.code == 2, dry.out
    assert words in dry.message
    assert not (job.folder / "state").exists()
    assert job(**flags).code == 2


def test_a_state_is_not_begun_twice(job):
    flags = {"state": job.path("state"), "start": "2024-01-01", "end": "2024-01-04"}
    job.done(**flags)
    words = "has the state of a stream: resume it with --resume"
    assert words in job("--dry_run", **flags).message
    assert words in job(**flags).message
    assert job("--dry_run", **flags, resume=True).code == 0


def test_queries_of_a_stream_need_a_start_in_a_dry_run_too(job):
    queries = "{slot: 1d, queries: [{name: places, by: value, keys: [A, B]}]}"
    flags = {"queries": job.write("queries.yaml", queries), "output": f"folder:{job.folder}/o"}
    left_out = {"value_column": None, "domain": None, "slot": None, "end": None}
    stream = {"input": "watch:in/*.csv", "runner": "PrismRunner"}
    outcome = job("--dry_run", **flags, **left_out, **stream)
    assert outcome.code == 2, outcome.out
    assert "the base slot with which it begins must be known: give --start" in outcome.message


def test_one_budget_for_ever(job):
    outcome = job("--dry_run", **RANGE, requirements=None, guarantee="infinite", epsilon="1")
    assert outcome.code == 0, outcome.err
    assert lines(outcome, "class") == ["class:    epsilon 1 forever: all users"]


def test_a_stream_is_not_read(job):
    outcome = job(
        "--dry_run", "--runner=PrismRunner", input="watch:in/*.csv", output=f"folder:{job.folder}/o"
    )
    assert outcome.code == 0, outcome.err
    assert lines(outcome, "sample") == [
        "sample:   watch:in/*.csv is unbounded: it is not read in a dry run"
    ]


def test_without_a_sample(job):
    job.lines()
    outcome = job("--dry_run=true")
    assert outcome.code == 3, outcome.err
    assert "no event was read" in outcome.err
    assert lines(outcome, "times") == ["times:    none of the sample can be read"]
    assert "give --start and --end" in lines(outcome, "slots")[0]


def test_a_file_without_header_of_another_delimiter(job):
    path = job.write("u.data", "u1;A;2024-01-02\nu2;B;2024-01-03\n")
    outcome = job("--dry_run", input=path, delimiter=";", columns="user,value,time", **RANGE)
    assert outcome.code == 0, outcome.err
    assert lines(outcome, "times") == ["times:    2024-01-02T00:00:00Z to 2024-01-03T00:00:00Z"]


@pytest.mark.parametrize("value", ["false", "False"])
def test_it_can_be_said_to_be_off(job, value):
    job.done(f"--dry_run={value}")
    assert job.rows()


@pytest.mark.parametrize("statistic", ["sum", "max"])
def test_a_statistic_of_records_does_not_report_bad_ones(toolbox, tmp_path, statistic):
    (tmp_path / "r.csv").write_text(
        "amount,time\n1,2024-01-01T10:00:00Z\nmany,2024-01-02\n7,never\n"
    )
    arguments = (
        *("per-record", f"--input={tmp_path / 'r.csv'}", f"--output={tmp_path / 'out.csv'}"),
        *(f"--statistic={statistic}", "--value_column=amount", "--value_max=10"),
        "--budget=inverse:1",
        *("--epsilon_max=2", "--time_column=time", "--slot=1d", "--start=2024-01-01"),
    )
    outcome = toolbox.run(*arguments, "--end=2024-01-03", "--dry_run")
    assert outcome.code == 0, outcome.err
    assert lines(outcome, "sample") == ["sample:   the first 3 records"]
    assert lines(outcome, "times") == ["times:    2024-01-01T10:00:00Z to 2024-01-02T00:00:00Z"]
    assert lines(outcome, "slots")[0].startswith("slots:    2 slots")
    # Without records nothing is covered, and the error is not a number that means anything.
    assert re.search(r"\d", lines(outcome, "error")[0]) is None
    assert "rejected" not in outcome.out
    assert [path.name for path in tmp_path.iterdir()] == ["r.csv"]


def test_it_is_reported_in_the_form_of_the_log(job):
    outcome = job("--dry_run", **RANGE, log_format="json")
    assert outcome.out == ""
    messages = [json.loads(line)["message"] for line in outcome.err.splitlines()]
    assert "not private, so never publish" in messages[0]


def test_an_expected_number_of_users_is_reported_as_such(job):
    for expected, users in (("7,1,50", "50"), ("7,1", "1,000")):
        outcome = job(dry_run=True, requirements=None, default_requirement=expected)
        message = f"class:    epsilon 1 over 7 slots: {users} users (expected)"
        assert lines(outcome, "class") == [message]


def test_days_of_a_zone_are_written_in_that_zone(job):
    job.lines("u1,A,2024-03-30 23:30")
    paris = {"time_zone": "Europe/Paris", "start": "2024-03-30", "end": "2024-04-01"}
    outcome = job("--dry_run", **paris, slot_zone="Europe/Paris")
    assert lines(outcome, "slots") == [
        "slots:    2 slots, from 2024-03-30T00:00:00+01:00 to 2024-04-01T00:00:00+02:00"
    ]
    assert "(2024-03-30T00:00:00+01:00), bin A" in lines(outcome, "event")[0]
    assert "--slot_zone" not in outcome.out + outcome.err
    # Without their zone, days are those of UTC, which is said.
    outcome = job("--dry_run", **paris)
    assert (
        "warning: slots of 1d begin at 2024-03-30T00:00:00Z, which is 2024-03-30T01:00:00+01:00 in "
        "the zone of the times (--time_zone): give --slot_zone=Europe/Paris for days of that zone"
    ) in outcome.out + outcome.err
    for not_days in ({"slot": "6h"}, {"start": "2024-03-30T00:00+01:00"}):
        outcome = job("--dry_run", **{**paris, **not_days})
        assert "--slot_zone" not in outcome.out + outcome.err


def test_days_of_a_query_are_looked_at_too(job):
    queries = "{slot: 12h, queries: [{name: a}, {name: b, every: 1w}]}"
    flags = {"queries": job.write("queries.yaml", queries), "output": job.path("answers")}
    left_out = {"value_column": None, "domain": None, "slot": None, "requirements": None}
    outcome = job("--dry_run", "--budget=1/7d", **flags, **left_out, time_zone="Asia/Tokyo")
    assert "warning: slots of 1w begin at " in outcome.out + outcome.err


GOOD = [f"u{1 + n % 3},A,2024-01-02T08:00:00Z" for n in range(4)]
REFUSED = {
    "year 1": ([*GOOD, "u1,A,0001-01-02"], {}, 2),
    "year 1 after a start": ([*GOOD, "u1,A,9001-01-02"], {"start": "2024-01-01"}, 2),
    "no row": ([], {}, 3),
    "unparsable times": (["u1,A,yesterday"] * 5, {}, 3),
    "unparsable times in a range": (["u1,A,yesterday"] * 5, RANGE, 3),
    "unparsable records": (["u1"] * 5, RANGE, 3),
    "outside the range": (["u1,A,2023-01-01"] * 5, RANGE, 3),
    "strangers": (["u9,A,2024-01-02"] * 5, RANGE, 3),
    "most of it": ([*GOOD[:1], *["u1,Z,2024-01-02"] * 5], RANGE, 3),
}
TAKEN = {
    "all that may be lost": (["u1,A,yesterday"] * 5, {**RANGE, "max_rejected": 1}),
    "a gap in a range": ([*GOOD, "u1,A,1924-01-01"], {"start": "1024-01-01", "end": "2024-01-08"}),
}


@pytest.mark.many
@pytest.mark.parametrize("case", REFUSED)
def test_what_a_run_refuses_a_dry_run_refuses_in_the_same_words(histograms, case):
    job = histograms
    rows, flags, code = REFUSED[case]
    job.lines(*rows)
    dry, run = job("--dry_run", **flags), job(**flags)
    assert (dry.code, run.code) == (code, code), dry
    said, would = run.err.partition(" Found: ")[0], dry.err.partition(" Found: ")[0]
    assert said == would
    assert dry.out.startswith("dry run: ")


@pytest.mark.parametrize("case", TAKEN)
def test_what_a_run_takes_a_dry_run_takes(job, case):
    rows, flags = TAKEN[case]
    job.lines(*rows)
    assert job("--dry_run", **flags).code == 0


def test_a_sample_that_loses_too_much_is_refused_as_a_run_of_such_events(job, monkeypatch):
    monkeypatch.setattr("streamveil.pipelines.jobs.dry_run.SAMPLE", 5)
    bad = ["u1,A,yesterday"] * 5
    job.lines(*bad[:2], *GOOD, *GOOD)
    assert job("--dry_run", **RANGE).code == 0
    job.lines(*bad[:4], *GOOD, *GOOD)
    assert job("--dry_run", **RANGE, max_rejected=0.9).code == 0
    for lost, words in ((4, "4 of 5 events were rejected"), (5, "all 5 events were rejected")):
        job.lines(*bad[:lost], *GOOD, *GOOD)
        outcome = job("--dry_run", **RANGE)
        assert outcome.code == 3
        assert f"like the sample, which is the first 5, a run would end like this: {words}" in (
            outcome.err
        )
        assert "Likely cause: the column time is not that of the times" in outcome.err
    job.lines("u1,A,0001-01-01", *GOOD, *GOOD)
    assert job("--dry_run").code == 0


def test_a_stream_that_would_lose_its_input_is_refused(job):
    job.lines(*["u1,A,yesterday"] * 5)
    flags = {"state": job.path("state"), "start": "2024-01-01"}
    assert job("--dry_run", **flags).code == 3
    job.lines()
    assert job("--dry_run", **flags).code == 0
    assert not (job.folder / "state").exists()
