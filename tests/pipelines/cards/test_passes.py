"""Cards of runs on files: of passes, of queries, of records; each is checked, and damaged."""

import datetime as dt
import json
import os
import warnings
from pathlib import Path

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamveil.pipelines.cards.files import file_of, read_card, write_card

pytestmark = pytest.mark.slow  # whole runs

FIRST = dt.date(2024, 1, 1)
NUMBER = (FIRST - dt.date(1970, 1, 1)).days
USERS = {f"u{u}": ((3, 1.0), (5, 2.0))[u % 2] for u in range(12)}


@pytest.fixture
def files(job, pytestconfig):
    """A job over three weeks, and how to check its card."""
    job.requirements(USERS)
    job.lines(
        *(
            f"u{u},{'ABC'[(u + d) % 3]},{FIRST + dt.timedelta(d)}T08:00:00Z"
            for d in range(20)
            for u in range(12)
            if (u * d) % 5
        )
    )
    return Files(job, pytestconfig.rootpath / "pipelines" / "cards" / "card.schema.json")


class Files:
    def __init__(self, job, schema):
        self.job = job
        self.schema = jsonschema.Draft202012Validator(json.loads(schema.read_text()))
        self.state = {
            **{"state": job.path("state"), "clock_file": job.path("clock")},
            **{"start": "2024-01-01", "ledger": job.path("ledger.jsonl")},
        }

    def passes(self, *days, **flags):
        for day in days:
            Path(self.job.path("clock")).write_text(f"{FIRST + dt.timedelta(day)}T00:00:00Z")
            begun = os.path.exists(self.job.path("state/manifest.json"))
            self.job.done(**{**self.state, **flags, "resume": True if begun else None})
        return self.card("out.jsonl.card.json")

    def card(self, name):
        card = read_card(self.job.path(name))
        self.schema.validate(card)
        return card

    def faults(self, toolbox, name="out.jsonl.card.json", **flags):
        more = [f"--{key}={value}" for key, value in flags.items()]
        done = toolbox.run("card", "--check", self.job.path(name), *more)
        assert done.code == bool(done.err), done
        assert "Traceback" not in done.err
        return done.err


def test_a_card_goes_through_passes_changed_tables_and_new_keys(files, toolbox):
    job = files.job
    first, second = job.key("a1" * 32, "first"), job.key("b2" * 32, "second")
    files.passes(4, 9, noise_key=first)
    job.requirements({**USERS, "u1": (4, 0.5), "new": (5, 2.0)})
    keys = f"{first},{second}@2024-01-12"
    card = files.passes(14, 17, noise_key=keys, longest_window=8)
    assert [run["passes"] for run in card["runs"]] == [[1, 4]]
    assert [key["from_slot"] for key in card["noise_key"]["keys"]] == [None, NUMBER + 11]
    assert card["promise"]["requirements_change"]
    assert files.faults(toolbox) == ""

    path = Path(job.path("ledger-00000003.jsonl"))
    text = path.read_text()
    path.write_text(text.replace('"spent":', '"spent":1', 1))
    problems = files.faults(toolbox)
    assert "one of " in problems
    assert "slot" in problems
    path.write_text(text)
    os.unlink(job.path("out-00000002.jsonl"))
    assert "out-00000002.jsonl is not there" in files.faults(toolbox)


def test_an_older_card_of_a_stream_that_went_on_is_reported(files, toolbox):
    """It would hide the later passes, and what they cost."""
    older = files.passes(4)
    files.passes(9)
    write_card(files.job.path("out.jsonl.card.json"), older)
    problems = files.faults(toolbox)
    assert "out-00000002.jsonl is there" in problems
    assert "passes up to 1 alone" in problems


def test_a_card_that_joins_the_passes_of_two_streams_is_reported(files, toolbox):
    """Each has budgets of its own, and a window over both would be promised once."""
    card = files.passes(4, 9)
    run = card["runs"][0]
    slots, files.state = run["last_slot"], {**files.state, "state": files.job.path("other")}
    files.job.flags["output"] = files.job.path("more.jsonl")
    files.state |= {"ledger": files.job.path("costs.jsonl"), "start": "2024-01-10"}
    files.state["max_rejected"] = 1
    for day in (11, 14):
        Path(files.job.path("clock")).write_text(f"{FIRST + dt.timedelta(day)}T00:00:00Z")
        files.job.done(**files.state, resume=True if day > 11 else None)
    second = files.card("more.jsonl.card.json")["runs"][0]
    assert second["first_slot"] == slots + 1
    both = {**card, "runs": [run, {**second, "passes": [3, 4]}]}
    for kind in ("releases", "ledger"):
        name = {"releases": ("more", "out"), "ledger": ("costs", "ledger")}[kind]
        for number in (1, 2):
            path = Path(files.job.path(f"{name[0]}-{number:08d}.jsonl"))
            path.rename(files.job.path(f"{name[1]}-{number + 2:08d}.jsonl"))
        both["runs"][1]["files"][kind]["name"] = f"{name[1]}.jsonl"
    write_card(files.job.path("out.jsonl.card.json"), both)
    assert "add up to" in files.faults(toolbox)


def test_a_killed_pass_gets_its_card_with_the_next_run(files, toolbox):
    files.passes(4)
    os.unlink(files.job.path("out.jsonl.card.json"))
    files.passes(4)  # nothing is due
    assert files.faults(toolbox) == ""


def test_a_budget_that_is_granted_again_is_promised_twice(files, toolbox):
    flags = {"guarantee": "infinite", "epsilon": 2, "requirements": None}
    files.passes(4, **flags)
    card = files.passes(8, restart_budget=1, **flags)
    assert card["promise"]["granted_again"] == 1
    assert card["deployment"]["privacy_loss"]["privacy_parameters"]["epsilon"] == 4
    assert files.faults(toolbox) == ""
    card["promise"]["granted_again"] = 0
    write_card(files.job.path("out.jsonl.card.json"), card)
    assert "granted again 0 times" in files.faults(toolbox)


def test_limits_that_a_run_chose_are_in_the_card_of_its_passes(files, toolbox):
    files.job.requirements(dict.fromkeys(USERS, (15, 4.0)))
    card = files.passes(16, 20, max_slots="auto")
    (one,) = card["promise"]["classes"]
    assert one["limits"][0]["chosen"]
    assert not isinstance(one["limits"][0]["max_slots"], list)
    assert files.faults(toolbox) == ""


QUERIES = """
slot: 1d
queries:
  - {name: visits, by: value, keys: [A, B, C], every: 1d, rollups: [1w]}
  - {name: people, every: 1w, statistic: distinct}
"""
ASKED = {"value_column": None, "domain": None, "slot": None}


def test_queries_have_one_card_for_all(files, toolbox, monkeypatch):
    job = files.job
    asked = {**ASKED, "queries": job.write("q.yaml", QUERIES), "output": job.path("answers")}
    asked["ledger"] = job.path("ledger.jsonl")
    job.done(start="2024-01-03", end="2024-01-17", **asked)
    card = files.card("answers/card.json")
    assert set(card["runs"][0]["answered"]) == {"visits", "people"}
    where = {"name": "answers/card.json", "ledger": job.path("ledger.jsonl")}
    assert files.faults(toolbox, **where) == ""
    # The ledger is beside the folder.
    assert files.faults(toolbox, "answers/card.json") == ""
    monkeypatch.chdir(job.path("answers"))
    assert toolbox.run("card", "--check", "card.json").err == ""
    assert toolbox.run("card", "--check", "./card.json").err == ""

    path = Path(job.path("ledger.jsonl"))
    rows = [json.loads(line) for line in path.read_text().splitlines()]

    def tampered(some):
        path.write_text("".join(json.dumps(row) + "\n" for row in some))
        card["runs"][0]["files"]["ledger"] = file_of(str(path))
        write_card(job.path("answers/card.json"), card)
        return files.faults(toolbox, **where)

    dear = [{**row, "spent": row["spent"] + 2} if i == 5 else row for i, row in enumerate(rows)]
    assert "a window of all queries cost" in tampered(dear)
    assert "no row of it for every class" in tampered(rows[:3] + rows[4:])
    assert "twice" in tampered([*rows, rows[3]])
    lost = tampered([{"asked" if k == "query" else k: v for k, v in row.items()} for row in rows])
    assert "has no column query" in lost
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "1e+300 as spent" in tampered([{**rows[0], "spent": 1e300}, *rows[1:]])
    assert tampered(rows) == ""
    path.rename(job.path("kept.jsonl"))
    path.mkdir()
    assert "the card says" not in files.faults(toolbox, **where)
    path.rmdir()
    Path(job.path("kept.jsonl")).rename(path)
    visits = job.path("answers/visits.parquet")
    table = pq.read_table(visits)
    moved = table.column("start").to_pylist()
    moved[0] = moved[-1]
    place = table.column_names.index("start")
    pq.write_table(table.set_column(place, "start", pa.array(moved, table["start"].type)), visits)
    card["runs"][0]["files"]["answers-visits"] = file_of(visits)
    write_card(job.path("answers/card.json"), card)
    assert "by the card" in files.faults(toolbox, **where)
    os.replace(job.path("answers/people.parquet"), visits)
    assert "visits" in files.faults(toolbox, **where)


def test_queries_in_passes_add_up_as_well(files, toolbox):
    job = files.job
    asked = {**ASKED, "queries": job.write("q.yaml", QUERIES), "output": job.path("answers")}
    job.flags |= asked
    for day in (5, 16):
        Path(job.path("clock")).write_text(f"{FIRST + dt.timedelta(day)}T00:00:00Z")
        job.done(**files.state, resume=True if day > 5 else None)
    card = files.card("answers/card.json")
    assert card["runs"][0]["passes"] == [1, 2]
    problems = files.faults(toolbox, "answers/card.json", ledger=job.path("ledger.jsonl"))
    assert problems == ""


def test_records_have_a_card_without_a_ledger(files, toolbox):
    job = files.job
    job.write("paid.csv", "amount,shop\n" + "".join(f"{n % 90},x\n" for n in range(400)))
    place = job.path("sums.jsonl")
    given = {"input": job.path("paid.csv"), "output": place, "statistic": "sum"}
    given |= {"value_column": "amount", "budget": "inverse:100", "value_max": 100}
    given |= {"epsilon_max": 5, "key_column": "shop", "keys": "x,y"}
    done = toolbox.run("per-record", *(f"--{name}={value}" for name, value in given.items()))
    assert done.code == 0, done
    card = files.card("sums.jsonl.card.json")
    assert card["promise"]["unit"] == "one record"
    assert files.faults(toolbox, "sums.jsonl.card.json") == ""
    rows = Path(place).read_text().splitlines(keepends=True)
    for changed, word in ((rows[:1], "is missing"), ([*rows, rows[0]], "twice")):
        Path(place).write_text("".join(changed))
        card["runs"][0]["files"]["releases"] = file_of(place)
        write_card(place + ".card.json", card)
        assert word in files.faults(toolbox, "sums.jsonl.card.json")
