"""A call releases what the command releases: to the bit, with its ledger and its figures."""

import json
from pathlib import Path

import pyarrow.csv
import pytest

import streamveil as sv
from streamveil.io import events, read_table, write_table
from tests.calls import arguments

CHANGES = """user,slot,window_backward,epsilon_backward,window_forward,epsilon_forward
u1,19724,2,0.5,2,0.5
u39,19726,3,1.0,3,1.0
u2,19727,,,,
"""
RANGE = {"start": "2023-12-31", "end": "2024-01-11"}
CASES = {
    "default": {},
    "range": {**RANGE, "max_contributions": 2, "keep": "distinct"},
    "pba": {"mechanism": "pba", "adjacency": "replace"},
    "strangers": {"mechanism": "pbd", "default_requirement": "3,0.7,10", "other": "rest"},
    "changes": {**RANGE, "requirement_changes": "changes.csv", "longest_window": 4},
    "dpbd": {"mechanism": "dpbd", **RANGE},
    "infinite": {"guarantee": "infinite", "epsilon": "5", "requirements": None, **RANGE},
}
SLOW = {"pba", "dpbd", "infinite"}


def as_written(job, table):
    """The bytes of a table in a file of JSON Lines."""
    path = job.path("again.jsonl")
    write_table(path, table.schema, table.to_batches())
    return Path(path).read_bytes()


def check_same(job, found):
    """What a call gave must be what the command wrote."""
    for table, name in (
        (found["count"].to_arrow("rows"), "out.jsonl"),
        (found.ledger, "ledger.jsonl"),
    ):
        assert as_written(job, table) == Path(job.path(name)).read_bytes()


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] * (case in SLOW)) for case in CASES]
)
def test_releases_ledger_and_figures_are_those_of_the_command(job, asked, case):
    more = dict(CASES[case])
    if "requirement_changes" in more:
        more["requirement_changes"] = job.write("changes.csv", CHANGES)
    job.done(**more)
    table = pyarrow.csv.read_csv(job.path("events.csv"))
    for data in (job.path("events.csv"), table):
        found = sv.release(data, **arguments({**asked, **more}))
        check_same(job, found)
        assert found.summary == json.loads(Path(job.path("summary.json")).read_text())
        letters = read_table(job.path("rejected.parquet"))
        assert found.rejected.select(["reason", "detail"]).equals(
            letters.select(["reason", "detail"])
        )


@pytest.mark.slow
def test_the_local_setting_as_well(job, asked):
    job.command = "collect"
    job.done()
    check_same(job, sv.collect(job.path("events.csv"), **asked))


@pytest.mark.slow
def test_statistics_of_records_as_well(toolbox, tmp_path):
    job = toolbox.Job(tmp_path, "per-record")
    rows = "\n".join(f"{'ab'[i % 2]},{i % 90}" for i in range(300))
    options = {
        "statistic": "sum",
        "value_max": 100,
        "epsilon_max": 4,
        "budget": "inverse:100",
        "keys": "a,b",
        "noise_key": job.key(),
    }
    job.flags = {
        "input": job.write("records.csv", f"shop,amount\n{rows}\n"),
        "output": job.path("out.jsonl"),
        "value_column": "amount",
        "key_column": "shop",
        **options,
    }
    job.done()
    found = sv.per_record(
        pyarrow.csv.read_csv(job.flags["input"]), value="amount", key="shop", **options
    )
    assert as_written(job, found.to_arrow()) == Path(job.path("out.jsonl")).read_bytes()
    assert [row.key for row in found] == ["a", "b"]


def test_a_day_of_events_can_come_in_any_number_of_batches(job, asked):
    table = pyarrow.csv.read_csv(job.path("events.csv"))
    whole = sv.release(table, **asked)
    parts = sv.release(table.to_batches(max_chunksize=7), **asked)
    assert parts.to_arrow().equals(whole.to_arrow())
    assert parts.rejected.sort_by("row").equals(whole.rejected.sort_by("row"))


def test_a_file_that_changes_while_another_is_read_is_refused(tmp_path, monkeypatch):
    def write(name, users):
        lines = [f"u{i},a,2024-01-01 00:00:00" for i in range(users)]
        (tmp_path / name).write_text("\n".join(["user,value,time", *lines]))

    def read(part, *given):
        yield from read_part(part, *given)
        if part.path.endswith("a.csv"):
            write("b.csv", 5)

    write("a.csv", 30)
    write("b.csv", 30)
    read_part = events.read_part
    monkeypatch.setattr(events, "read_part", read)
    with pytest.raises(sv.ConfigurationError, match=r"b\.csv was written to while it was read"):
        sv.release(
            f"{tmp_path}/*.csv",
            user="user",
            value="value",
            time="time",
            slot="1d",
            domain=["a", "b"],
            requirements={f"u{i}": (1, 5.0) for i in range(30)},
        )
