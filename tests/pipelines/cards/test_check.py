"""`streamveil card --check`: honest streams are fine, and whatever was changed is reported."""

import copy
import datetime as dt
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import streamveil as sv
from streamveil.io import read_table, write_table
from streamveil.pipelines.cards.files import file_of, read_card, write_card
from tests.calls import arguments

START = dt.date(2024, 5, 1)
FIRST = (START - dt.date(1970, 1, 1)).days
KEY = b"k" * 32


def day(n):
    return (START + dt.timedelta(n)).isoformat()


def visits(users=60, days=16, share=0.6):
    random = np.random.default_rng(5)
    there = [(u, d) for u in range(users) for d in range(days) if random.random() < share]
    places = random.choice(["cafe", "park"], len(there))
    return pd.DataFrame(
        [(f"u{u}", p, day(d)) for (u, d), p in zip(there, places, strict=True)],
        columns=["user", "place", "time"],
    )


def requirements(users=60):
    return {f"u{u}": ((3, 1.0), (7, 2.0), (5, 0.5))[u % 3] for u in range(users)}


def call(function=sv.release, days=16, data=None, **options):
    given = {"user": "user", "value": "place", "time": "time", "slot": "1d", "start": day(0)}
    given |= {"domain": ["cafe", "park"], "end": day(days), "noise_key": KEY, **options}
    return function(visits(days=days) if data is None else data, **arguments(given))


def put(folder, result, layout="rows"):
    """Write what a call gave as its command would, and the card of it; gives the card's path."""
    tables = {"releases": result["count"].to_arrow(layout), "ledger": result.ledger}
    files = {}
    for kind, table in tables.items():
        path = str(folder / f"{kind}.jsonl")
        write_table(path, table.schema, table.to_batches())
        files[kind] = file_of(path)
    card = copy.deepcopy(dict(result.card))
    card["runs"][0]["files"] = files
    write_card(str(folder / "card.json"), card)
    return folder / "card.json"


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """The files of a release, which every test gets a copy of."""
    folder = tmp_path_factory.mktemp("honest")
    put(folder, call(requirements=requirements()))
    return folder


@pytest.fixture
def stream(honest, tmp_path):
    """The files of a release to change."""
    return Files(shutil.copytree(honest, tmp_path / "copy"))


class Files:
    """A card, releases and a ledger as JSON Lines."""

    def __init__(self, folder):
        self.folder = folder

    def rows(self, kind):
        return [json.loads(line) for line in (self.folder / f"{kind}.jsonl").open()]

    def rewrite(self, kind, change):
        """Change the list of rows of a file, and the digest that the card has of it."""
        rows = self.rows(kind)
        rows = change(rows) or rows  # changed in place, or made anew
        path = self.folder / f"{kind}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.card(lambda card: card["runs"][0]["files"].update({kind: file_of(str(path))}))

    def card(self, change):
        path = str(self.folder / "card.json")
        card = read_card(path)
        change(card)
        write_card(path, card)


def faults(toolbox, folder, *more):
    """What the command says of a folder; nothing if all is fine."""
    done = toolbox.run("card", "--check", f"--card={folder / 'card.json'}", *more)
    assert done.code == bool(done.err), done
    assert "Traceback" not in done.err
    assert ("fine" in done.out) == (not done.err)
    return done.err.splitlines()


CHANGES = pd.DataFrame(
    [
        {"user": f"u{u}", "slot": FIRST + 2 + u, "window_backward": 3 + u % 4}
        | {"epsilon_backward": 0.4 + 0.1 * u, "window_forward": 4, "epsilon_forward": 1.0}
        for u in range(6)
    ]
    + [{"user": "u7", "slot": FIRST + 5}]
)

KINDS = {
    "windows": lambda: call(requirements=requirements()),
    "replaced": lambda: call(requirements=requirements(), adjacency="replace"),
    "pbd": lambda: call(requirements=requirements(), mechanism="pbd"),
    "no range": lambda: call(requirements=requirements(), start=None, end=None),
    "calendar": lambda: call(requirements=requirements(), slot_zone="Europe/Berlin"),
    "changes": lambda: call(
        requirements=requirements(), requirement_changes=CHANGES, longest_window=9
    ),
    "changes by dpba": lambda: call(
        requirements=requirements(), requirement_changes=CHANGES, longest_window=9, mechanism="dpba"
    ),
    "presence": lambda: call(
        data=visits(days=40, share=0.05), days=40, requirements=dict.fromkeys(
            (f"u{u}" for u in range(60)), (20, 1.0)
        ), max_slots=1,
    ),
    "presence, chosen": lambda: call(
        data=visits(400, days=40, share=0.05), days=40, requirements=dict.fromkeys(
            (f"u{u}" for u in range(400)), (30, 4.0)
        ), max_slots="auto",
    ),
    "one budget": lambda: call(guarantee="infinite", epsilon=2),
    "a life": lambda: call(guarantee="user", epsilon=20, max_slots=3),
    "local": lambda: call(sv.collect, requirements=requirements()),
    "local, in turns": lambda: call(
        sv.collect, requirements=requirements(), mechanism="rotation:turns=2"
    ),
    "local, plpa": lambda: call(sv.collect, requirements=requirements(), mechanism="plpa"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_honest_streams_of_every_kind_are_fine_and_costs_raised_in_them_are_not(
    kind, tmp_path, toolbox, schema
):
    put(tmp_path, KINDS[kind]())
    schema.validate(read_card(str(tmp_path / "card.json")))
    assert faults(toolbox, tmp_path) == []
    outcome = toolbox.run("card", str(tmp_path / "card.json"))
    assert outcome.code == 0, outcome
    files = Files(tmp_path)

    def raise_one(rows):
        row = next(row for row in reversed(rows) if row["spent"] > 0)
        row["spent"] += 8.0

    files.rewrite("ledger", raise_one)
    assert faults(toolbox, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["rows", "tidy"])
def test_both_layouts_are_checked(layout, tmp_path, toolbox):
    put(tmp_path, call(requirements=requirements()), layout)

    def check():
        return toolbox.run("card", "--check", f"--card={tmp_path / 'card.json'}")

    done = check()
    assert (done.code, "fine" in done.out) == (0, True), done
    # Tidy rows have no epsilon, so less can be checked in them, which is said.
    assert ("but not their noise with their epsilon" in done.err) == (layout == "tidy")
    assert done.err.count("\n") == (layout == "tidy")
    Files(tmp_path).rewrite("releases", lambda rows: [*rows, rows[-1]])
    done = check()
    assert (done.code, "twice" in done.err) == (1, True), done


def test_an_honest_card_is_fine_and_fits_the_schema(honest, toolbox, schema):
    schema.validate(read_card(str(honest / "card.json")))
    assert faults(toolbox, honest) == []


# Of tiers 2 and 3, by the registry's schema of July 2026, but for what a run cannot know: why.
REGISTRY = {
    "dp_variant": {"variant_name", "data_domain", "unprotected_quantities"},
    "privacy_loss": {
        *("privacy_unit", "privacy_unit_details"),
        *("privacy_parameters", "privacy_parameters_details"),
    },
    "deployment_model": {
        *("model_name", "model_name_details", "actors", "release_type", "release_type_details"),
        *("data_source_type", "data_source_type_details", "access_type", "access_type_details"),
    },
    "accounting": {"post_processing", "composition"},
    "implementation": {"preprocessing_and_hyperparameter_tuning", "mechanisms"},
}


def test_the_deployment_has_the_fields_of_the_registry(honest):
    deployment = read_card(str(honest / "card.json"))["deployment"]
    assert {part: set(fields) for part, fields in deployment.items()} == REGISTRY
    assert all(text for fields in deployment.values() for text in fields.values())


def test_the_schema_refuses_what_is_no_card(honest, schema):
    card = read_card(str(honest / "card.json"))
    for change in (
        lambda c: c["promise"].update(delta=0.5),
        lambda c: c["promise"]["classes"][0].update(epsilon="1"),
        lambda c: c["runs"][0]["files"]["releases"].update(name="/home/ann/releases.csv"),
        lambda c: c.update(secret="k"),
        lambda c: c.pop("noise_key"),
    ):
        other = copy.deepcopy(card)
        change(other)
        assert not schema.is_valid(other)


def test_a_card_has_neither_users_nor_events_nor_paths_nor_the_key(honest):
    text = (honest / "card.json").read_text()
    assert str(honest) not in text
    assert KEY.hex() not in text
    assert KEY.decode() not in text
    assert not any(f'"u{u}"' in text for u in range(60))


def largest(rows):
    return max(rows, key=lambda row: row["spent"])


LEDGER = {
    "a cost raised": (lambda rows: largest(rows).update(spent=3.0), ["cost", "promises"]),
    "a cost raised within the promise": (
        lambda rows: rows[0].update(spent=rows[0]["spent"] + 2.0**-40),
        ["spent_in_window", "add up to"],
    ),
    "a sum lowered": (
        lambda rows: rows[-1].update(spent_in_window=rows[-1]["spent_in_window"] - 2.0**-40),
        ["spent_in_window", "add up to"],
    ),
    "a cost below nothing": (lambda rows: rows[4].update(spent=-0.5), ["-0.5", "row 4"]),
    "a cost that is not a number": (
        lambda rows: rows[4].update(spent="much"),
        ["cannot be read", "much"],
    ),
    "a row lost": (lambda rows: rows[:5] + rows[6:], ["2 classes", "promises to 3"]),
    "a row doubled": (lambda rows: [*rows[:5], rows[4], *rows[5:]], ["4 classes"]),
    "a slot lost": (lambda rows: rows[:6] + rows[9:], [f"slot {FIRST + 2}", "no row of it"]),
    "the last slot lost": (lambda rows: rows[:-3], [f"slot {FIRST + 15}", "no row of it"]),
    "a slot more": (
        lambda rows: [*rows, *({**row, "slot": FIRST + 16} for row in rows[-3:])],
        [f"books slot {FIRST + 16}"],
    ),
    "rows mixed up": (lambda rows: rows[::-1], ["not in order"]),
    "another promise": (
        lambda rows: [{**row, "epsilon": 9.0} if row["window"] == 3 else row for row in rows],
        ["9 as epsilon", "the card says 1"],
    ),
    "another window": (
        lambda rows: [{**row, "window": 2} if row["window"] == 3 else row for row in rows],
        ["2 as window", "the card says 3"],
    ),
    "other users": (lambda rows: rows[0].update(users=7), ["7 as users", "the card says 20"]),
    "nothing left": (lambda rows: rows.clear(), ["no row that can be read"]),
    "a column lost": (
        lambda rows: [{k: v for k, v in row.items() if k != "spent"} for row in rows],
        ["no column spent"],
    ),
}


@pytest.mark.parametrize("case", LEDGER)
def test_a_changed_ledger_is_reported(case, stream, toolbox):
    change, words = LEDGER[case]
    stream.rewrite("ledger", change)
    problems = faults(toolbox, stream.folder)
    assert any(all(word in line for word in words) for line in problems), problems


RELEASES = {
    "a slot missing": (lambda rows: rows[:3] + rows[4:], [f"slots {FIRST + 3} are missing"]),
    "nothing left": (lambda rows: rows.clear(), ["are missing"]),
    "a slot doubled": (lambda rows: [*rows, rows[3]], [f"slots {FIRST + 3} are there twice"]),
    "a slot more": (
        lambda rows: [*rows, {**rows[-1], "slot": FIRST + 16, "start": f"{day(16)}T00:00:00Z"}],
        [f"slots {FIRST + 16} are of no run"],
    ),
    "another time": (
        lambda rows: rows[2].update(start="2024-05-03T01:00:00Z"),
        [f"slot {FIRST + 2} begins", "another slot length or origin"],
    ),
    "other bins": (
        lambda rows: [{**row, "counts": [*row["counts"], 0]} for row in rows],
        ["3 counts", "2 bins"],
    ),
    "a cost raised": (
        lambda rows: [{**row, "epsilon": 8.0} for row in rows],
        ["says epsilon 8", "booked"],
    ),
    "another mechanism": (
        lambda rows: [{**row, "mechanism": "uniform"} for row in rows],
        ["by uniform", "the card says adaptive"],
    ),
}


@pytest.mark.parametrize("case", RELEASES)
def test_changed_releases_are_reported(case, stream, toolbox):
    change, words = RELEASES[case]
    stream.rewrite("releases", change)
    problems = faults(toolbox, stream.folder)
    assert any(all(word in line for word in words) for line in problems), problems


def promise_less(card):
    card["promise"]["classes"][0]["epsilon"] = 0.25


def promise_more(card):
    card["promise"]["classes"][2]["epsilon"] = 5.0
    card["deployment"]["privacy_loss"]["privacy_parameters"]["epsilon"] = 5.0


CARDS = {
    "it promises a smaller epsilon": (promise_less, ["1 as epsilon", "the card says 0.25"]),
    "it promises a larger epsilon": (promise_more, ["2 as epsilon", "the card says 5"]),
    "it says one epsilon in words and promises another": (
        lambda c: c["deployment"]["privacy_loss"].update(
            privacy_parameters={"epsilon": 0.1, "delta": 0}
        ),
        ["deployment.privacy_loss.privacy_parameters", "'epsilon': 2.0"],
    ),
    "it promises a delta": (lambda c: c["promise"].update(delta=0.01), ["delta 0.01"]),
    "it promises a class more": (
        lambda c: c["promise"]["classes"].append({"window": 9, "epsilon": 1.0, "users": 3}),
        ["3 classes", "promises to 4"],
    ),
    "it leaves a class out": (lambda c: c["promise"]["classes"].pop(), ["3 classes", "to 2"]),
    "it promises another guarantee": (
        lambda c: c["promise"].update(guarantee="user-forever"),
        ["user-forever"],
    ),
    "another domain": (
        lambda c: c["data"].update(domain={"values": ["cafe", "park", "zoo"]}),
        ["2 counts", "3 bins"],
    ),
    "other slots": (lambda c: c["data"].update(slot="12h"), ["are of"]),
    "another origin": (lambda c: c["data"].update(origin="1970-01-01T06:00:00Z"), ["are of"]),
    "a run that ended before": (
        lambda c: c["runs"][0].update(last_slot=FIRST + 9, end=f"{day(10)}T00:00:00Z"),
        [f"{FIRST + 10}", "are of no run"],
    ),
    "no run": (lambda c: c["runs"].clear(), ["tells of no run"]),
    "no ledger": (lambda c: c["runs"][0]["files"].pop("ledger"), ["without a ledger"]),
    "no releases": (lambda c: c["runs"][0]["files"].pop("releases"), ["cannot be checked"]),
    "the local setting": (
        lambda c: c["promise"].update(guarantee="local w-event", adjacency="any", setting="local"),
        ["streamveil release gives"],
    ),
    "another unit in words": (
        lambda c: c["promise"].update(unit="all events of one user, for ever"),
        ["for ever' as unit", "`window` consecutive slots"],
    ),
    "the local setting in words": (lambda c: c["promise"].update(setting="local"), ["as setting"]),
    "a slot that is none": (lambda c: c["runs"][0].update(first_slot="x"), ["'x' as first_slot"]),
    "a slot beyond all times": (lambda c: c["runs"][0].update(last_slot=10**40), ["was edited"]),
    "one budget forever": (lambda c: c["promise"].update(guarantee="infinite"), ["another kind"]),
    "no promise": (lambda c: c.pop("promise"), ["was edited", "promise"]),
    "a class that is none": (
        lambda c: c["promise"]["classes"][0].update(window="long"),
        ["card"],
    ),
    "a format to come": (lambda c: c.update(format="streamveil card 9"), ["card 9"]),
}


@pytest.mark.parametrize("case", CARDS)
def test_a_changed_card_is_reported(case, stream, toolbox):
    change, words = CARDS[case]
    stream.card(change)
    problems = faults(toolbox, stream.folder)
    assert any(all(word in line for word in words) for line in problems), problems


def test_files_that_are_missing_or_not_as_they_were_written_are_reported(stream, toolbox):
    path = stream.folder / "releases.jsonl"
    path.write_text(path.read_text().replace('"alarm":false', '"alarm":true', 1))
    assert "not as the run wrote it" in faults(toolbox, stream.folder)[0]
    path.unlink()
    problems = faults(toolbox, stream.folder)
    assert any("releases.jsonl is not there" in line for line in problems)
    assert any("--releases" in line for line in problems)


def test_files_elsewhere_are_found_by_their_options(stream, tmp_path, toolbox):
    for kind in ("releases", "ledger"):
        shutil.move(stream.folder / f"{kind}.jsonl", tmp_path / f"moved-{kind}.jsonl")
    options = [f"--{kind}={tmp_path / f'moved-{kind}.jsonl'}" for kind in ("releases", "ledger")]
    assert faults(toolbox, stream.folder, *options) == []


def test_a_card_is_reported_in_words(honest, toolbox):
    card = json.loads((honest / "card.json").read_text())
    card["data"]["domain"]["values"].append("cargo, large")
    (honest / "other.json").write_text(json.dumps(card))
    outcome = toolbox.run("card", str(honest / "other.json"))
    (honest / "other.json").unlink()
    assert outcome.code == 0
    for words in (
        "w-event",
        "epsilon 0.5 over any 5 slots: 20 users",
        "delta 0",
        "none in the other",
        'cafe, park, "cargo, large"',
        "1d, of which slot number 0 begins at 1970-01-01T00:00:00Z",
        "given by the operator",
    ):
        assert words in outcome.out


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "--card is missing"),
        (["nothing.json"], "nothing.json"),
        (["card.json", "--ledger=l.csv"], "add --check"),
        (["card.json", "--card=other.json"], "two cards"),
        (["releases.jsonl"], "is not a card"),
    ],
)
def test_what_cannot_be_a_card_is_refused_in_a_line(given, words, honest, toolbox, monkeypatch):
    monkeypatch.chdir(honest)
    outcome = toolbox.run("card", *given)
    assert outcome.code == 2
    assert words in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_card_of_nothing_but_brackets_is_refused_in_a_line(toolbox, tmp_path):
    (tmp_path / "deep.json").write_text("[" * 100_000 + "]" * 100_000)
    outcome = toolbox.run("card", "--check", str(tmp_path / "deep.json"))
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "is not a card" in outcome.err


def test_a_fingerprint_tells_keys_apart_and_not_more(honest):
    same = read_card(str(honest / "card.json"))["noise_key"]
    other = call(requirements=requirements(), noise_key=b"o" * 32).card["noise_key"]
    assert same["source"] == other["source"] == "given"
    assert same["keys"] != other["keys"]
    assert len(same["keys"][0]["fingerprint"]) == 16


def test_read_back_tables_are_those_of_the_files(honest):
    """What tests change is what a run writes."""
    assert read_table(str(honest / "releases.jsonl")).num_rows == 16


SIXTEENTH = 2.0**-4


# Somebody spends sixteen times the budget, and rewrites ledger, epsilons and digests alike.
@pytest.mark.parametrize("mechanism", ["uniform", "pba", "adaptive"])
def test_costs_that_do_not_fit_the_noise_are_reported(mechanism, tmp_path, toolbox):
    asked = {f"u{u}": (3, 16.0) for u in range(60)}
    path = put(tmp_path, call(requirements=asked, mechanism=mechanism))
    assert toolbox.run("card", "--check", f"--card={path}").code == 0
    card = read_card(str(path))
    for one in card["promise"]["classes"]:
        one["epsilon"] *= SIXTEENTH
    for kind, columns in (
        ("releases", ["epsilon"]),
        ("ledger", ["epsilon", "spent", "spent_in_window"]),
    ):
        file = tmp_path / f"{kind}.jsonl"
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows:
            row.update({name: row[name] * SIXTEENTH for name in columns})
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        card["runs"][0]["files"][kind] = file_of(str(file))
    write_card(str(path), card)
    outcome = toolbox.run("card", "--check", f"--card={path}")
    assert outcome.code == 1
    assert "beside a standard error of" in outcome.err
    assert "or one of the two was changed" in outcome.err


def test_a_card_is_signed_where_a_key_is_given(tmp_path, toolbox, monkeypatch):
    def check():
        return toolbox.run("card", "--check", f"--card={path}")

    asked = {f"u{u}": (3, 1.0) for u in range(60)}
    path = put(tmp_path, call(requirements=asked))
    monkeypatch.setenv("STREAMVEIL_CARD_KEY", "c" * 64)
    assert "is not signed, and STREAMVEIL_CARD_KEY is given" in check().err
    path = put(tmp_path, call(requirements=asked))
    assert check().code == 0
    monkeypatch.setenv("STREAMVEIL_CARD_KEY", "d" * 64)
    assert "or signed with another key" in check().err
    card = json.loads(path.read_text())
    card["runs"][0]["files"]["ledger"]["sha256"] = "0" * 64
    path.write_text(json.dumps(card))
    monkeypatch.setenv("STREAMVEIL_CARD_KEY", "c" * 64)
    outcome = check()
    assert outcome.code == 1
    assert "was changed since it was signed" in outcome.err
    monkeypatch.setenv("STREAMVEIL_CARD_KEY", "short")
    assert "a key of cards needs 32 or more" in check().err
    with pytest.raises(sv.ConfigurationError, match="a key of cards needs 32 or more"):
        call(requirements=asked)  # before anything is released


@pytest.mark.parametrize(
    ("given", "users"),
    [({"budget": "1/7d"}, 0), ({"run": sv.RunOptions(default_requirement=(7, 1.0, 40))}, 40)],
    ids=["not said", "said"],
)
def test_a_number_of_users_that_nobody_said_is_not_stated(given, users, tmp_path, toolbox):
    """What mechanisms assume then is no fact about the data."""
    result = call(requirements=None, **given)
    card = str(put(tmp_path, result))
    (promised,) = read_card(card)["promise"]["classes"]
    assert promised["users"] == users
    assert set(result.ledger["users"].to_pylist()) == {users}
    assert toolbox.run("card", "--check", card).code == 0
    said = toolbox.run("card", card).out
    assert ("users, how many is not known" in said) == (users == 0)


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="Linux counts threads there")
def test_a_card_leaves_no_thread_that_holds_the_ledger():
    """Such a thread may still run as Python exits."""
    program = """if True:
        import os
        import pyarrow as pa
        import streamveil as sv
        pa.set_cpu_count(8)
        columns = {"user": ["a"], "place": ["park"], "time": ["2024-05-01T00:00:00Z"]}
        visits = sv.count("visits", by="place", keys=["park"])
        days = {"slot": "1d", "start": "2024-05-01", "end": "2024-05-02"}
        before = set(os.listdir("/proc/self/task"))
        sv.release(pa.table(columns), visits, user="user", time="time", budget="1/7d", **days)
        print(len(set(os.listdir("/proc/self/task")) - before))"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == 0
