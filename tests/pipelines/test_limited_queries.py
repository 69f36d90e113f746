"""`--queries` with `--max_slots`: what the run says, the summary, the card and its check."""

import csv
import datetime as dt
import json

import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.io import read_table

UTC = dt.timezone.utc
QUERIES = """\
slot: 1d
queries:
  - {name: places, by: place, keys: [cafe, park], rollups: [14d]}
  - {name: bill, statistic: mean, of: bill, bounds: [0, 40]}
  - {name: weekly, every: 7d, statistic: distinct}
"""


def events():
    rows = [
        (f"u{user}", ("cafe", "park")[user % 2], float(user % 40), dt.datetime(2024, 1, day, 9))
        for user in range(60)
        for day in range(1, 29)
        if (user * 7 + day) % 5 == 0 or user < 3
    ]
    names = ("user", "place", "bill", "time")
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


@pytest.fixture
def limited(toolbox, tmp_path):
    """A query set over four weeks, of users who count in two slots of each half of a window."""
    made = toolbox.Job(tmp_path)
    made.write("events.parquet", events())
    made.requirements({f"u{user}": (28, 20.0) for user in range(60)})
    made.flags = {
        "queries": made.write("queries.yaml", QUERIES),
        "input": made.path("events.parquet"),
        "requirements": made.path("users.csv"),
        "user_column": "user",
        "time_column": "time",
        "noise_key": made.key(),
        "start": "2024-01-01",
        "end": "2024-01-29",
        "output": made.path("answers"),
        "ledger": made.path("ledger.csv"),
        "summary": made.path("summary.json"),
        "max_slots": 2,
    }
    return made


def test_a_run_says_whom_the_limit_is_for(limited):
    done = limited.done()
    words = done.out + done.err
    assert "max_slots=2: figures of bill describe the events that count" in words
    assert "max_slots=2 does not help for weekly for all users (5 slots in a window)" in words
    assert "beyond the slots in which they count" in words
    assert "planned again" not in words
    with open(limited.path("summary.json")) as file:
        summary = json.load(file)
    assert summary["read"] == summary["kept"] + summary["dropped"] == events().num_rows
    by_query = {name: one["beyond_limit"] for name, one in summary["queries"].items()}
    assert by_query["weekly"] == 0 < by_query["places"]


def test_the_call_gives_what_the_command_writes(limited, toolbox):
    limited.done()
    with open(limited.path("users.csv")) as file:
        asked = {row["user"]: (28, 20.0) for row in csv.DictReader(file)}
    found = sv.release(
        limited.path("events.parquet"),
        limited.path("queries.yaml"),
        user="user",
        time="time",
        requirements=asked,
        start="2024-01-01",
        end="2024-01-29",
        noise_key=limited.flags["noise_key"],
        max_slots=2,
    )
    for name in ("places", "bill", "weekly"):
        written = read_table(limited.path(f"answers/{name}.parquet"))
        assert found[name].to_arrow()["value"].to_pylist() == written["value"].to_pylist()


def test_the_card_states_the_limit_of_each_query_and_its_check_recounts(limited, toolbox):
    limited.done()
    with open(limited.path("answers/card.json")) as file:
        card = json.load(file)
    (promised,) = card["promise"]["classes"]
    assert {one["query"]: one["max_slots"] for one in promised["limits"]} == {
        **{"places": 2, "bill": 2, "weekly": None}
    }
    assert sum(one["epsilon"] for one in promised["limits"]) <= promised["epsilon"]


def faults(card, ledger):
    """What a check of a card finds, of a ledger that was changed and is taken for whole."""
    from streamveil.pipelines.cards.check_input import Read
    from streamveil.pipelines.cards.check_ledger import ledger_faults

    return list(ledger_faults(card, Read({"ledger": [("ledger.csv", ledger)]}), []))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda row: {**row, "spent": 2 * row["spent"]}, "the card promises epsilon 20 over 28"),
        (lambda row: {**row, "slot": row["slot"] + 1}, "does not begin with base slot"),
        (
            lambda row: {**row, "spent_in_window": row["spent_in_window"] - 2**-10},
            "the rows add up",
        ),
    ],
)
def test_a_ledger_that_was_changed_is_found(limited, change, words):
    limited.done()
    with open(limited.path("answers/card.json")) as file:
        card = json.load(file)
    ledger = read_table(limited.path("ledger.csv"))
    assert faults(card, ledger) == []
    changed = pa.Table.from_pylist(list(map(change, ledger.to_pylist())), schema=ledger.schema)
    assert words in " ".join(faults(card, changed))


def test_a_card_without_the_limit_of_a_query_is_refused(limited):
    from streamveil.pipelines.cards.check_input import Fault

    limited.done()
    with open(limited.path("answers/card.json")) as file:
        card = json.load(file)
    ledger = read_table(limited.path("ledger.csv"))
    limits = card["promise"]["classes"][0]["limits"]
    for changed in (limits[1:], [*limits, {**limits[0], "query": "other"}]):
        card["promise"]["classes"][0]["limits"] = changed
        with pytest.raises(Fault, match="restore the card"):
            faults(card, ledger)


@pytest.mark.slow
def test_a_page_of_lifetimes_says_what_is_true_of_them(limited):
    """No lifetime has a part of a slot, and nothing is left out of the first slots."""
    lived = {"requirements": None, "guarantee": "user", "epsilon": 40.0, "max_slots": 2}
    limited.done(page=limited.path("page.html"), **lived)
    html = (limited.folder / "page.html").read_text()
    assert "budget ε over the whole stream" in html
    assert "may have a part of" not in html
    notes = read_table(limited.path("answers/places.parquet"))["note"].to_pylist()
    assert not notes[0]
    assert any("beyond max_slots" in (note or "") for note in notes)


@pytest.mark.slow
def test_a_page_does_not_add_up_what_slots_cost(limited):
    """Nobody counts in all of them, so the sum over a window was three times the budget."""
    limited.done(page=limited.path("page.html"))
    html = (limited.folder / "page.html").read_text()
    assert "what slots cost does not add up" in html
    assert "too-much" not in html.split("<body>")[1]


# Each look has a part of the budget, and the recount of the ledger has both.
def test_one_run_chooses_bounds_and_limits(limited, toolbox):
    limited.write("queries.yaml", QUERIES.replace("bounds: [0, 40]", "bounds: auto"))
    limited.requirements({f"u{user}": (14, 900.0) for user in range(60)})
    done = limited.done(max_slots="auto")
    assert "bounds chosen: 0 to 63" in done.out
    assert "max_slots=auto: users count as chosen" in done.out
    path = limited.path("answers/card.json")
    with open(path) as file:
        card = json.load(file)
    (promised,) = card["promise"]["classes"]
    assert promised["look"] == 45
    assert {one["chosen"] for one in promised["limits"] if one["query"] != "weekly"} == {True}
    assert 45 + sum(one["epsilon"] for one in promised["limits"]) <= promised["epsilon"]
    checked = toolbox.run("card", "--check", path)
    assert (checked.code, "fine" in checked.out) == (0, True), checked
    ledger = read_table(limited.path("ledger.csv"))
    assert faults(card, ledger) == []
    assert max(ledger["spent_in_window"].to_pylist()) <= 900
    promised["look"] = 0
    assert any("the rows add up" in one for one in faults(card, ledger))
