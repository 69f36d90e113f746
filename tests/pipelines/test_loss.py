"""A run says what became of every event, and one that lost most of them releases nothing."""

import datetime as dt
import errno
import json
import os
import re
import stat

import numpy as np
import pyarrow.parquet as pq
import pytest

from streamveil.io.result_files import ResultFile
from streamveil.pipelines.reports.summary import write_summary

UTC = dt.timezone.utc
RANGE = {"start": "2024-01-01", "end": "2024-01-04"}
GOOD = ("u1,A,2024-01-01T08:00:00Z", "u2,B,2024-01-01T09:30:00Z", "u3,B,2024-01-02T00:00:00Z")


def figures(job):
    with open(job.path("sum.json"), encoding="utf-8") as file:
        return json.load(file)


def parts(found):
    """What the figures must add up to."""
    rejected = sum(found["rejected"].values())
    assert found["kept"] == found["counted"]
    assert found["dropped"] == found["beyond_bound"] + found["beyond_limit"]
    return rejected + found["dropped"] + found["late"] + found["kept"]


# ---- most of the input is lost -----------------------------------------------------------------

CAUSES = {
    "milliseconds as seconds": (
        [f"u1,A,{1_704_096_000_000 + i}" for i in range(3)],
        {"time_unit": "s"},
        [
            "unparsable time (3)",
            "events.csv line 2:",
            "1704096000000",
            "--time_unit=ms, but --time_unit=s",
        ],
    ),
    "seconds as milliseconds": (
        ["u1,A,1704096000", "u2,B,1704096001"],
        {"time_unit": "ms"},
        ["outside the released slots (2)", "--time_unit=s, but --time_unit=ms"],
    ),
    "seconds of the nineties without a unit": (
        ["u1,A,893286638", "u2,B,893286639"],
        {},
        ["unparsable time (2)", "893286638", "the times look like --time_unit=s"],
    ),
    "days first": (
        ["u1,A,31/01/2024", "u2,B,30/01/2024 10:00"],
        {},
        ["unparsable time", "31/01/2024", "come first", "ISO 8601", "--time_format=%d/%m/%Y"],
    ),
    "days or months first": (
        ["u1,A,01/02/2024 10:00", "u2,B,01/02/2024 10:00"],
        {},
        ["--time_format='%d/%m/%Y %H:%M' or --time_format='%m/%d/%Y %H:%M', whichever is meant"],
    ),
    "times of a log": (
        ["u1,A,01/Jan/2024:10:00:00 +0000", "u2,B,02/Jan/2024:10:00:00 +0000"],
        {},
        ["the times look like --time_format='%d/%b/%Y:%H:%M:%S %z'"],
    ),
    "dates of digits": (
        ["u1,A,20240101", "u2,B,20240131"],
        {},
        ["the times look like --time_format=%Y%m%d"],
    ),
    "two forms, one of them said": (
        ["u1,A,31.01.2024", "u2,B,30-Jan-2024"],
        {"time_format": "%d/%m/%Y"},
        ["not all of --time_format=%d/%m/%Y; this one looks like --time_format=%d"],
    ),
    "serial dates": (
        ["u1,A,45292", "u2,B,45293.5"],
        {},
        ["unparsable time (2)", "the times look like --time_unit=excel"],
    ),
    "another form": (
        ["u1,A,31/01/2024", "u2,B,30/01/2024"],
        {"time_format": "%d/%m/%Y %H:%M"},
        ["unparsable time", "not all of --time_format=%d/%m/%Y %H:%M"],
    ),
    "days first in another range": (
        ["u1,A,31/01/2024", "u2,B,30/01/2024"],
        {"time_format": "%d/%m/%Y", "start": "2025-01-01", "end": "2025-01-03"},
        ["outside the released slots (2)", "is not that of the events"],
    ),
    "header only": ([], {}, ["no event was read", "header alone"]),
    "blank after ids": (
        [line.replace(",", " ,", 1) for line in GOOD],
        {},
        ["no requirement (3)", "column user has blanks", "--requirements"],
    ),
    "blank after values": (
        [line.replace(",2024", " ,2024") for line in GOOD],
        {},
        ["outside the domain (3)", "column value has blanks", "--domain"],
    ),
    "wrong value column": (
        GOOD,
        {"value_column": "user"},
        ["outside the domain (3)", "column user is not what --domain lists", "--other"],
    ),
    "wrong user column": (
        GOOD,
        {"user_column": "value"},
        ["no requirement (3)", "column value is not what --requirements lists"],
    ),
    "another range": (
        GOOD,
        {"start": "2025-01-01", "end": "2025-01-03"},
        ["outside the released slots (3)", "2025-01-01T00:00:00Z to 2025-01-03T00:00:00Z"],
    ),
    "a field of a log": (
        ["u1,A,[31/Jan/2024:10:00:00", "u2,B,[30/Jan/2024:10:00:00"],
        {},
        ["the times look like --time_format='[%d/%b/%Y:%H:%M:%S'"],
    ),
    "decimal commas": (
        ['u1,"1,5",2024-01-01', 'u2,"2,5",2024-01-01'],
        {"domain": "edges:0,5,10"},
        ["not a number (2)", "value has decimal commas", "write points"],
    ),
    "no CSV": (["what is this", "and this"], {}, ["unparsable (2)", "format that its name says"]),
}


OTHER_FILES = {
    "another encoding": (
        "events.csv",
        "user,value,time\nä,A,2024-01-01\n".encode("cp1252"),
        ["not UTF-8 (1)", "the text is not UTF-8", "iconv -f WINDOWS-1252"],
    ),
    "objects": (
        "events.jsonl",
        b'{"user": {"id": 1}, "value": "A", "time": "2024-01-01"}\n',
        ["unparsable (1)", "'user' is an object", "move what is inside"],
    ),
}


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_lines_of_another_encoding_have_a_reason_of_their_own(job, ending):
    line = "ä,A,2024-01-01"
    rows = ["user,value,time", "u1,A,2024-01-01", line, line, "u2,A"]
    if ending == "jsonl":
        names = rows[0].split(",")
        rows = [json.dumps(dict(zip(names, row.split(","), strict=False))) for row in rows[1:]]
        rows = [row.replace("\\u00e4", "ä") for row in rows[:-1]] + ["[]"]
    name = job.write(f"events.{ending}", "\n".join(rows).encode("cp1252"))
    done = job.done(
        input=name, rejected=job.path("no.jsonl"), summary=job.path("s.json"), max_rejected=1
    )
    assert [row["reason"] for row in job.rows("no.jsonl")] == ["not UTF-8"] * 2 + ["unparsable"]
    summary = json.loads((job.folder / "s.json").read_text())
    assert summary["rejected"] == {"not UTF-8": 2, "unparsable": 1}
    assert "not UTF-8 2" in done.out


@pytest.mark.parametrize("case", OTHER_FILES)
def test_a_file_that_was_written_otherwise_is_lost_and_the_cause_is_named(job, case):
    name, content, words = OTHER_FILES[case]
    job.refused("likely cause", *words, code=3, input=job.write(name, content))


@pytest.mark.parametrize("case", CAUSES)
def test_a_lost_input_is_not_released_and_the_cause_is_named(job, case):
    lines, flags, words = CAUSES[case]
    job.lines(*lines)
    outcome = job.refused("nothing is released", *words, code=3, **{**RANGE, **flags})
    assert len(outcome.message.splitlines()) == 1


@pytest.mark.parametrize(
    ("bad", "flags", "code"),
    [
        (3, {}, 0),  # one half, which is not more than one half
        (4, {}, 3),
        (4, {"max_rejected": "0.6"}, 0),
        (1, {"max_rejected": "0"}, 3),
        (1, {"max_rejected": "0.25"}, 0),
        (0, {"max_rejected": "0"}, 0),
    ],
)
def test_more_than_the_share_that_may_be_rejected(job, bad, flags, code):
    job.lines(*GOOD, *["u1,?,2024-01-01"] * bad)
    outcome = job(**RANGE, **flags)
    assert outcome.code == code, outcome
    assert os.path.exists(job.path("out.jsonl")) == (code == 0)
    if code:
        assert f"{bad} of {3 + bad} events were rejected or late" in outcome.message


def test_with_one_whatever_is_left_is_released(job):
    job.lines("u1,?,2024-01-01")
    job.done(max_rejected="1", **RANGE)
    assert len(job.rows()) == 3


@pytest.mark.parametrize("flags", [{}, {"start": "2024-01-01"}])
def test_nothing_counted_fails_whatever_is_allowed_if_the_range_is_not_given(job, flags):
    job.lines("u1,?,2024-01-01")
    job.refused("no event was accepted", code=3, max_rejected="1", **flags)


@pytest.mark.parametrize("share", ["-0.1", "1.1", "nan"])
def test_a_share_is_a_number_from_0_to_1(job, share):
    job.refused("max_rejected", share, "from 0 to 1", max_rejected=share)


def test_collect_fails_as_well(toolbox, tmp_path):
    job = toolbox.Job(tmp_path, "collect")
    job.requirements({"u1": (1, 1.0)})
    job.lines("nobody,A,2024-01-01")
    job.refused("no requirement (1)", "nothing is released", code=3, **RANGE)


def test_users_whose_requirement_never_came_are_lost(job):
    job.lines(*GOOD)
    job.requirements({"u9": (1, 1.0)})
    job.write(
        "changes.csv",
        "user,slot,time,window_backward,epsilon_backward,window_forward,"
        "epsilon_forward\nu1,19723,,1,4000,1,4000\n",
    )
    job.refused(
        *("2 of 3 events", "no requirement (2)", "the column of the user (--user_column) is not"),
        code=3,
        requirement_changes=job.path("changes.csv"),
        **RANGE,
    )


def test_dead_letters_of_a_refused_run_are_reported_where_they_are(job):
    job.lines("u1,?,2024-01-01")
    outcome = job(rejected=job.path("dead.jsonl"), **RANGE)
    assert outcome.code == 3
    assert f"Dead letters: {job.path('dead.jsonl')}; before the next run, move" in outcome.message
    assert "or give --rejected another name" in outcome.message
    assert [row["record"] for row in job.json_rows("dead.jsonl")]
    assert not os.path.exists(job.path("out.jsonl"))


# ---- what became of every event ----------------------------------------------------------------

MIXED = (
    *GOOD,
    "u1,A,2024-01-01T10:00:00Z",
    "u1,C,2024-01-01T11:00:00Z",
    "u1,?,2024-01-01",
    "nobody,A,2024-01-01",
    ",A,2024-01-01",
    "u1,A,2023-01-01",
    "u1,A,soon",
    "too,many,2024-01-01,fields",
)


def test_all_events_are_in_the_summary(job):
    job.lines(*MIXED)
    outcome = job.done(summary=job.path("sum.json"), max_rejected="0.9", **RANGE)
    found = figures(job)
    assert found["rejected"] == {
        "no requirement": 1,
        "null user": 1,
        "outside the domain": 1,
        "outside the released slots": 1,
        "unparsable": 1,
        "unparsable time": 1,
    }
    assert (found["read"], found["beyond_bound"], found["late"], found["counted"]) == (11, 2, 0, 3)
    assert (found["slots"], sum(found["statuses"].values())) == (3, 3)
    assert "11 events read: 3 counted, 6 rejected, 0 late, 2 beyond" in outcome.out
    assert stat.S_IMODE(os.stat(job.path("sum.json")).st_mode) == 0o600


def test_the_summary_is_replaced_and_tells_of_a_refused_run(job):
    job.write("sum.json", "of another run")
    job.lines(*MIXED)
    job.done(summary=job.path("sum.json"), max_rejected="0.9", **RANGE)
    assert figures(job)["counted"] == 3
    job.lines(*MIXED[3:])
    outcome = job(
        summary=job.path("sum.json"), output=job.path("b.jsonl"), max_rejected="0.1", **RANGE
    )
    assert outcome.code == 3
    found = figures(job)
    assert found["read"] == parts(found) == 8
    assert (found["beyond_bound"], found["counted"], found["slots"]) == (1, 1, 0)
    assert found["rejected"]["unparsable"] == 1
    assert [name for name in os.listdir(job.folder) if "sum.json" in name] == ["sum.json"]


def test_a_record_cannot_speak_for_the_run(job):
    """What a record says is quoted in the message, short and in one line, and is not the tally."""
    text = (
        "Found: 5 read, 0 rejected, 0 late, 0 beyond the bound, 5 counted\n\\nConfigurationError: x"
    )
    lines = [json.dumps({"user": "u1", "value": text + "y" * 9000, "time": "2024-01-01"})] * 4
    place = job.write("events.jsonl", "\n".join(lines))
    outcome = job(input=place, summary=job.path("sum.json"), **RANGE)
    assert outcome.code == 3
    assert figures(job)["read"] == figures(job)["rejected"]["outside the domain"] == 4
    assert len(outcome.message) < 1000
    assert "\\" not in outcome.message


@pytest.mark.parametrize("option", ["input", "output", "requirements", "domain", "noise_key"])
def test_a_summary_takes_the_place_of_no_other_file(job, option):
    job.lines(*GOOD)
    job.write("bins.txt", "A\nB\n")
    place = {"domain": job.path("bins.txt"), "noise_key": job.key()}.get(
        option, job.flags.get(option)
    )
    names = {option: place, "summary": place.removeprefix("file:"), **RANGE}
    job.refused("--summary", f"--{option}", "another", **names)


@pytest.mark.parametrize("option", ["summary", "card"])
def test_what_the_input_takes_in_is_not_replaced(job, option):
    job.lines(*GOOD)
    place, taken, asked = job.path("events.csv"), job.path("even.csv"), job.path("ev*.csv")
    message = "would be written where the input"
    job.refused(taken, message, **{option: taken, "input": asked})
    job.refused(f"--{option}={place}", "would be overwritten", **{option: place})
    if option == "summary":  # a file that is not a card is refused as one
        job.refused(place, message, summary=place, input=asked)
    # A * of a file name matches no folder.
    os.mkdir(job.path("deep"))
    job.done(**{option: job.path("deep/even.csv"), "input": asked, **RANGE})


def test_a_summary_that_cannot_be_written_is_a_warning(tmp_path, monkeypatch, capsys):
    """What was released is released: the run must not end as one that failed."""
    path = tmp_path / "sum.json"
    assert write_summary(str(path), {"read": 1})
    before = path.read_text()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    assert not write_summary(str(path), {"read": 2})
    assert (
        f"--summary={path} cannot be written (No space left on device)" in capsys.readouterr().err
    )
    assert path.read_text() == before
    assert os.listdir(tmp_path) == ["sum.json"]


def test_a_summary_needs_a_folder(job):
    job.refused("--summary=", "create it", summary=job.path("no/sum.json"))
    job.refused("is a folder: name a file", summary=job.path(""))


def test_collect_and_one_budget_for_ever_tell_all_events(toolbox, tmp_path, job):
    job.lines(*MIXED)
    flags = {"summary": job.path("sum.json"), "max_rejected": "0.9", **RANGE}
    collect = toolbox.Job(tmp_path, "collect")
    collect.done(**flags)
    found = figures(job)
    assert found["read"] == parts(found) == 11
    job.done(
        *("--guarantee=infinite", "--epsilon=1"),
        requirements=None,
        output=job.path("b.jsonl"),
        **flags,
    )
    found = figures(job)
    assert found["read"] == parts(found) == 11
    assert (found["beyond_bound"], found["counted"]) == (2, 4)  # nobody needs a requirement here


def test_events_rejected_later_are_not_counted(job):
    job.lines(*GOOD, *GOOD[:1])
    job.requirements({"u2": (1, 1.0)})
    job.write(
        "changes.csv",
        "user,slot,time,window_backward,epsilon_backward,window_forward,"
        "epsilon_forward\nu1,19723,,1,4000,1,4000\n",
    )
    outcome = job.done(
        summary=job.path("sum.json"), requirement_changes=job.path("changes.csv"), **RANGE
    )
    found = figures(job)
    assert found["rejected"] == {"no requirement": 1}
    assert (found["read"], found["counted"], found["beyond_bound"]) == (4, 2, 1)
    assert "4 events read: 2 counted, 1 rejected" in outcome.out


def stream_of(job):
    """Flags of a stream that a clock closes, over a folder that is made, empty."""
    os.mkdir(job.path("in"))
    return {
        "state": job.path("state"),
        "clock_file": job.path("clock"),
        "start": "2024-01-01",
        "summary": job.path("sum.json"),
        "input": job.path("in/*.csv"),
        "noise_key": job.key(),
    }


@pytest.mark.slow
def test_passes_tell_each_event_once(job):
    """A file is read in two passes; late, waiting and unparsable ones are in one of them."""
    flags = stream_of(job)
    job.lines(*GOOD, *GOOD[:1], "u1,B", "u2,C,2024-01-03", name="in/a.csv")
    each = []
    for night in ("2024-01-02", "2024-01-03", "2024-01-04"):
        job.write("clock", f"{night}T00:00:00Z")
        outcome = job.done(resume=True if each else None, **flags)
        found = figures(job)
        assert [one["start"] for one in found["passes"]] == [
            f"{dt.date.fromisoformat(night) - dt.timedelta(1)}T00:00:00Z"
        ]
        assert found["read"] == parts(found) == found["passes"][0]["read"]
        assert re.search(
            rf"\b{found['read']} events? read: {found['counted']} counted", outcome.out
        )
        each.append(found)
        if len(each) == 1:
            assert "2 wait for a later slot" in outcome.out
            job.lines("u3,C,2024-01-01T23:00:00Z", "u3,C,2024-01-02", name="in/b.csv")
    assert {one["scope"] for one in each} == {
        "the passes of this run, without those of earlier runs with the same --state"
    }
    assert [one["read"] for one in each] == [4, 3, 1]
    assert [one["counted"] for one in each] == [2, 1, 1]
    assert [one["late"] for one in each] == [0, 1, 0]
    assert [one["beyond_bound"] for one in each] == [1, 1, 0]
    assert [one["rejected"] for one in each] == [{"unparsable": 1}, {}, {}]


@pytest.mark.slow
def test_a_pass_that_loses_most_commits_nothing(job):
    flags = stream_of(job)
    job.lines(*GOOD, name="in/a.csv")
    job.write("clock", "2024-01-03T00:00:00Z")
    job.done(**flags)
    # The first two of b.csv are late, and a quiet night alone is none of these.
    job.lines("u3,C,2024-01-01T23:00:00Z", "u3,C,2024-01-02", "u3,A,2024-01-03", name="in/b.csv")
    job.write("clock", "2024-01-04T00:00:00Z")
    outcome = job(resume=True, **flags)
    assert outcome.code == 3
    assert "late (2)" in outcome.message
    assert not os.path.exists(job.path("out-00000002.jsonl"))
    found = figures(job)
    assert (found["read"], found["late"], found["counted"]) == (3, 2, 1)
    job.done(resume=True, max_rejected="1", **flags)
    assert len(job.rows("out-00000002.jsonl")) == 1
    job.write("clock", "2024-01-05T00:00:00Z")
    job.done(resume=True, **flags)
    assert figures(job)["read"] == 0


def test_a_bound_that_drops_most_events_says_what_to_do(job):
    job.lines(*GOOD, *[f"u1,A,2024-01-01T1{i}:00:00Z" for i in range(9)])
    outcome = job.done(summary=job.path("sum.json"), **RANGE)
    assert "75% of the accepted events were dropped by the bound" in outcome.out
    assert "larger --max_contributions" in outcome.out
    again = job.done(max_contributions="10", output=job.path("b.jsonl"), **RANGE)
    assert "warning" not in again.out


# ---- which events count ------------------------------------------------------------------------


def test_shares_of_ratings_at_a_large_budget(job):
    """As in MovieLens: a user rates 20 to 700 films in one slot, low ratings are rare."""
    random = np.random.default_rng(16)
    rates = np.minimum(20 + random.exponential(85, 400), 700).astype(int)
    usual = np.array([0.06, 0.11, 0.27, 0.34, 0.22])
    values = random.choice(5, rates.sum(), p=usual)
    users = np.repeat(np.arange(400), rates)
    job.lines(
        *(f"u{u},{v + 1},2024-01-01" for u, v in zip(users.tolist(), values.tolist(), strict=True))
    )
    job.requirements({f"u{u}": (1, 1000.0) for u in range(400)})

    def shares(keep):
        job.done(domain="1,2,3,4,5", keep=keep, output=job.path(f"{keep}.jsonl"), noise_key=key)
        counts = np.array(job.rows(f"{keep}.jsonl")[0]["counts"])
        return counts / counts.sum()

    key = job.key()
    # Of 400 ratings; the key is fixed, and 5 deviations are passed once in a million.
    deviation = np.sqrt(usual * (1 - usual) / 400)
    assert (np.abs(shares("uniform") - usual) < 5 * deviation).all()
    assert shares("distinct")[0] > usual[0] + 5 * deviation[0]


def test_an_unknown_rule_is_refused(job):
    outcome = job(keep="some")
    assert outcome.code == 2
    assert "--keep" in outcome.err


# ---- other values ------------------------------------------------------------------------------


def test_other_values_have_a_bin(job):
    job.lines(*GOOD, "u1,Z,2024-01-03", "u2,,2024-01-03")
    outcome = job.done(other="other", output=job.path("out.parquet"), **RANGE)
    assert [row["counts"] for row in job.rows("out.parquet")] == [
        [1, 1, 0, 0],
        [0, 1, 0, 0],
        [0, 0, 0, 1],
    ]
    assert "null value 1" in outcome.out
    metadata = pq.read_schema(job.path("out.parquet")).metadata
    assert json.loads(metadata[b"streamveil.bins"]) == ["A", "B", "C", "other"]


@pytest.mark.parametrize(("name", "words"), [("B", ["'B'", "--other"]), ("", ["no name"])])
def test_the_bin_for_others_needs_a_name_of_its_own(job, name, words):
    job.refused(*words, other=name)


# ---- what was never measured -------------------------------------------------------------------


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet", "avro"])
def test_what_is_never_measured_says_so(job, form):
    flags = {"guarantee": "infinite", "epsilon": "0.5", "requirements": None, **RANGE}
    # By a key of its own one run in some dozens would measure something: noise alone.
    outcome = job.done(output=job.path(f"out.{form}"), noise_key=job.key(), **flags)
    rows = job.rows(f"out.{form}")
    assert {row["status"] for row in rows} == {"unmeasured"}
    assert all(row["stderr"] == [None] * 3 for row in rows)
    assert "in 3 slots nothing was measured yet" in outcome.out
    assert "events or more for anything to be measured" in outcome.out.splitlines()[0]


def test_a_public_total_that_is_hopeless_is_warned_of(job):
    flags = {"guarantee": "infinite", "epsilon": "0.5", "requirements": None, **RANGE}
    outcome = job.done(mechanism="gated:total=10", **flags)
    assert outcome.out.startswith("warning: slots need about ")
    assert "total is 10" in outcome.out.splitlines()[0]


def test_a_lost_input_is_reported_where_its_dead_letters_cannot_be_written(job, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device", job.path("dead.jsonl"))

    monkeypatch.setattr(ResultFile, "write", refuse)
    job.lines("u1,?,2024-01-01")
    outcome = job(rejected=job.path("dead.jsonl"), **RANGE)
    assert outcome.code == 3
    assert "warning: the dead letters are not written: " in outcome.out
    assert "no event was accepted" in outcome.message
    assert "Dead letters" not in outcome.message


def test_an_input_without_events_leaves_no_dead_letters(job):
    job.lines()
    outcome = job(rejected=job.path("dead.jsonl"), **RANGE)
    assert outcome.code == 3
    assert not os.path.exists(job.path("dead.jsonl"))
