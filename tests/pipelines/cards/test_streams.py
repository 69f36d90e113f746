"""Cards of streams, from their launch on: what they promise, and what a check makes of them."""

import copy
import datetime as dt
import errno
import io
import json
import shutil
from pathlib import Path
from typing import ClassVar
from unittest import mock

import pytest
from apache_beam.io.filesystem import FileSystem

from streamveil.pipelines.cards import run_card
from streamveil.pipelines.cards.files import read_card, write_card
from streamveil.pipelines.cards.registry_form import deployment_of
from streamveil.pipelines.jobs import run
from streamveil.pipelines.reports.summary import Summary
from streamveil.pipelines.runners import launch

FIRST = dt.date(2024, 1, 1)
NUMBER = (FIRST - dt.date(1970, 1, 1)).days
USERS = {f"u{u}": ((3, 1.0), (5, 2.0))[u % 2] for u in range(12)}
DAYS = 12
RUNNER = "--runner=BundleBasedDirectRunner"


class Stream:
    """A job that releases to a folder, and its card."""

    def __init__(self, job, toolbox):
        self.job, self.toolbox = job, toolbox
        self.folder = Path(job.path("out"))
        self.path = job.path("card.json")
        self.flags = {
            **{"output": f"folder:{self.folder}", "card": self.path, "noise_key": job.key()},
            "start": str(FIRST),
        }
        self.end = str(FIRST + dt.timedelta(DAYS))

    def filled(self, **flags):
        """Release the days of the file of events to the folder."""
        return self.job.done(**{**self.flags, "end": self.end, "card": None, **flags})

    def launched(self, how=None, **flags):
        """Launch it over an input without an end, where the runner does `how`."""
        flags = {**self.flags, "input": f"watch:{self.job.path('in')}/*.csv", **flags}
        with mock.patch.object(launch, "run", side_effect=how or KeyboardInterrupt):
            return self.job(RUNNER, **flags)

    @property
    def card(self):
        return read_card(self.path)

    def change(self, change):
        card = self.card
        change(card)
        write_card(self.path, card)

    def checked(self, *more, releases=None):
        """What `--check` says: its outcome."""
        where = [f"--releases={releases or self.folder}"]
        done = self.toolbox.run("card", "--check", self.path, *where, *more)
        assert "Traceback" not in done.err
        assert ("fine" in done.out) == (done.code == 0), done
        return done

    def rows(self):
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("release-*"))]

    def exported(self, rows, name="rows.jsonl"):
        """A file of rows, as a consumer of a topic writes it."""
        return self.job.write(name, "".join(json.dumps(row) + "\n" for row in rows))


def with_events(job):
    """The job with users, and events of twelve days."""
    job.requirements(USERS)
    job.lines(
        *(
            f"u{u},{'ABC'[(u + d) % 3]},{FIRST + dt.timedelta(d)}T08:00:00Z"
            for d in range(DAYS)
            for u in range(12)
            if (u * d) % 5
        )
    )
    return job


@pytest.fixture
def events(job):
    return with_events(job)


@pytest.fixture
def stream(events, toolbox):
    return Stream(events, toolbox)


@pytest.fixture(scope="module")
def launched(tmp_path_factory, toolbox):
    """The folder of a stream that goes on, of which twelve days are released."""
    made = Stream(with_events(toolbox.Job(tmp_path_factory.mktemp("endless"))), toolbox)
    made.launched()
    made.filled()
    return made.job.folder


@pytest.fixture
def endless(launched, tmp_path, toolbox):
    """A copy of it."""
    return Stream(toolbox.Job(Path(shutil.copytree(launched, tmp_path / "copy"))), toolbox)


def test_a_stream_without_an_end_has_its_card_from_the_launch_on(endless, schema):
    card = endless.card
    schema.validate(card)
    (run,) = card["runs"]
    assert run["open"]
    assert run["streams"] == {"releases": "folder"}
    assert run["files"] == {}
    assert (run["first_slot"], run.get("last_slot")) == (NUMBER, None)
    assert card["data"]["range"] == "stream"
    assert str(endless.folder) not in json.dumps(card)
    done = endless.checked()
    assert done.code == 0, done
    assert "12 slots was released once" in done.out
    assert "there is no ledger" in done.err
    outcome = endless.toolbox.run("card", endless.path)
    assert "from 2024-01-01T00:00:00Z on, as launched: releases to folder" in outcome.out


def test_the_card_of_a_stream_that_ends_says_so(stream, schema):
    stream.launched(lambda *_: Summary(), end=stream.end)
    stream.filled()
    (run,) = stream.card["runs"]
    schema.validate(stream.card)
    assert "open" not in run
    assert run["last_slot"] == NUMBER + DAYS - 1
    assert stream.checked().code == 0
    max(stream.folder.glob("release-*")).unlink()
    assert f"slots {NUMBER + DAYS - 1} are missing" in stream.checked().err


def test_a_stream_goes_on_under_its_card(endless):
    endless.launched()
    assert len(endless.card["runs"]) == 1
    endless.change(lambda card: card["runs"][0].update(streamveil="0.0.9"))
    endless.launched()
    first, _ = endless.card["runs"]
    assert first["streamveil"] == "0.0.9"
    assert "0.0.9, " in endless.card["deployment"]["implementation"]["mechanisms"]
    assert endless.checked().code == 0


OTHERS = {
    "a larger epsilon": (lambda s: s.job.requirements({**USERS, "u0": (3, 9.0)}), {}, "classes"),
    "another mechanism": (lambda s: None, {"mechanism": "pba"}, "mechanism"),
    "another adjacency": (lambda s: None, {"adjacency": "replace"}, "promise.adjacency"),
    "other bins": (lambda s: None, {"domain": "A,B"}, "data"),
    "other slots": (lambda s: None, {"slot": "12h"}, "data"),
    "a key of its own": (lambda s: None, {"noise_key": None}, "another noise key"),
    "another first key": (lambda s: s.job.key("7a" * 32), {}, "another noise key"),
    "an end": (lambda s: None, {"input": None}, "data"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_another_stream_is_not_launched_under_the_card(case, endless):
    """Or a reader would take the promise to one for that to the other."""
    change, flags, words = OTHERS[case]
    before = Path(endless.path).read_text()
    change(endless)
    if case == "an end":
        flags = {"input": endless.job.path("events.csv"), "end": endless.end}
    done = endless.launched(**flags)
    assert done.code == 2, done
    assert words in done.err
    assert "name another file (--card)" in done.err
    assert "wrote" not in done.out
    assert done.err.count("\n") == 1
    assert Path(endless.path).read_text() == before


@pytest.mark.parametrize("case", ["its words promise less", "it tells of passes", "no run"])
def test_a_stream_does_not_go_on_under_a_card_that_was_forged(case, endless):
    """Or what somebody wrote into it would be said by the run."""
    endless.change(CARDS[case][0])
    before = Path(endless.path).read_text()
    done = endless.launched()
    assert done.code == 2, done
    assert done.err.count("\n") == 1
    assert "(--card)" in done.err
    assert Path(endless.path).read_text() == before


def test_a_later_key_is_added_and_none_is_taken_back(endless):
    place = endless.flags["noise_key"]
    later = f"{place},{endless.job.key('7a' * 32, 'later')}@2024-03-01"
    endless.launched(noise_key=later)
    assert len(endless.card["noise_key"]["keys"]) == 2
    assert "another noise key" in endless.launched().err
    other = f"{place},{endless.job.key('8b' * 32, 'other')}@2024-03-01"
    assert "another noise key" in endless.launched(noise_key=other).err


def test_it_is_said_in_one_line_where_there_is_no_card(stream):
    done = stream.launched(card=None)
    assert "no card says what is promised" in done.out
    assert "give --card=FILE" in done.out
    assert not Path(stream.path).exists()


def test_a_dry_run_says_what_becomes_of_card_and_ledger(stream):
    flags = {**stream.flags, "input": f"watch:{stream.job.path('in')}/*.csv"}
    text = stream.job("--dry_run", RUNNER, **flags).out
    assert f"would write the card to {stream.path}" in text
    assert "card:     written at the launch, and open: only if the stream comes to an end" in text
    assert "ledger:   none: it is a file, written when the input has ended" in text
    text = stream.job("--dry_run", RUNNER, **{**flags, "card": None}).out
    assert "card:     no card says what is promised, for releases go to folder:" in text
    assert "would write the card" not in text
    text = stream.job("--dry_run", **{**stream.flags, "end": stream.end}).out
    assert "only at the end of the input does it say what was released" in text
    assert "ledger:" not in text


@pytest.mark.slow
def test_beside_the_ledger_there_is_a_card_by_itself(stream, schema):
    ledger = stream.job.path("ledger.jsonl")
    stream.filled(ledger=ledger)
    stream.path = f"{ledger}.card.json"
    schema.validate(stream.card)
    assert set(stream.card["runs"][0]["files"]) == {"ledger"}
    assert "sha256" in stream.card["runs"][0]["files"]["ledger"]
    done = stream.checked()
    assert done.err == "", done
    assert "no window" in done.out
    rows = Path(ledger).read_text()
    Path(ledger).write_text(rows.replace('"spent":0', '"spent":1', 1))
    assert "not as the run wrote it" in stream.checked().err


@pytest.mark.slow
def test_without_start_and_end_the_slots_are_those_that_are_there(stream):
    stream.filled(start=None, end=None, card=stream.path)
    (run,) = stream.card["runs"]
    assert "first_slot" not in run
    done = stream.checked()
    assert "released without a ledger" in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.slow
def test_a_ledger_that_the_card_does_not_name_is_checked_too(endless):
    """Such as one that a pipeline of Beam wrote: it books what the releases of this key cost."""
    ledger = endless.job.path("ledger.jsonl")
    endless.filled(output=endless.job.path("same.jsonl"), ledger=ledger)
    done = endless.checked(f"--ledger={ledger}")
    assert done.err == "", done
    rows = Path(ledger).read_text()
    Path(ledger).write_text(rows.replace('"spent":0.', '"spent":7.', 1))
    assert "cost 7" in endless.checked(f"--ledger={ledger}").err


def test_a_ledger_in_a_table_is_checked_as_it_is_exported(stream):
    """In any order, perhaps twice, with whole numbers as text."""
    ledger = stream.job.path("ledger.jsonl")
    stream.filled(ledger=ledger, card=stream.path)

    def to_a_table(card):
        run_of(card).update(files={}, streams={"releases": "folder", "ledger": "bigquery"})

    stream.change(to_a_table)
    assert "the ledger went to bigquery" in stream.checked().err
    rows = [json.loads(line) for line in Path(ledger).read_text().splitlines()]
    texts = ("slot", "first_base_slot", "last_base_slot", "window", "users")
    exported = [{**row, **{name: str(row[name]) for name in texts}} for row in reversed(rows)]
    place = stream.exported([*exported, exported[3]], "export.json")
    done = stream.checked(f"--ledger={place}")
    assert done.code == 0, done
    assert "1 row stood there once more" in done.err
    exported[3]["spent"] += 8
    place = stream.exported(exported, "export.json")
    assert "promises epsilon" in stream.checked(f"--ledger={place}").err


@pytest.mark.slow
def test_requirements_that_changed_after_the_launch_are_those_of_the_ledger(stream):
    job, ledger = stream.job, stream.job.path("ledger.jsonl")
    changes = job.write(
        "changes.csv",
        "user,slot,window_backward,epsilon_backward,window_forward,epsilon_forward\n"
        f"u1,{NUMBER + 5},3,4.0,3,4.0\n",
    )
    stream.launched(requirement_changes=f"watch:{job.path('in')}/*.csv", longest_window=6)
    changing = {"requirement_changes": changes, "longest_window": 6}
    stream.filled(**changing)
    stream.filled(output=job.path("same.jsonl"), ledger=ledger, **changing)
    assert stream.card["promise"]["requirements_change"]
    assert stream.checked().code == 0
    done = stream.checked(f"--ledger={ledger}")
    assert done.err == "", done
    rows = [json.loads(line) for line in Path(ledger).read_text().splitlines()]
    max(rows, key=lambda row: row["spent"])["spent"] += 8
    Path(ledger).write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert stream.checked(f"--ledger={ledger}").code == 1


KINDS = {
    "replaced": {"adjacency": "replace"},
    "pbd": {"mechanism": "pbd"},
    "no start": {"start": None},
    "calendar": {"slot_zone": "Europe/Berlin"},
    "presence": {"max_slots": "1", "requirements": "long.csv"},
    "one budget": {"guarantee": "infinite", "epsilon": 2, "requirements": None},
    "a life": {"guarantee": "user", "epsilon": 20, "max_slots": 3, "requirements": None},
    "local": {"command": "collect"},
    "local, in turns": {"command": "collect", "mechanism": "rotation:turns=2"},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_honest_streams_of_every_kind_are_fine(kind, stream, schema):
    flags = dict(KINDS[kind])
    stream.job.command = flags.pop("command", "release")
    if flags.get("requirements"):
        flags["requirements"] = stream.job.requirements(dict.fromkeys(USERS, (30, 1.0)), "long.csv")
    stream.launched(**flags)
    stream.filled(**flags)
    schema.validate(stream.card)
    done = stream.checked()
    assert done.code == 0, done
    assert len(done.err.splitlines()) == 1, done
    assert stream.toolbox.run("card", stream.path).code == 0
    rows = stream.rows()
    rows[4]["start"] = rows[3]["start"]
    assert stream.checked(releases=stream.exported(rows)).code == 1


@pytest.mark.slow
def test_windows_of_records_without_an_end_are_checked(job, toolbox, schema):
    job.write(
        "paid.csv", "amount,time\n" + "".join(f"{n},{FIRST}T0{n % 9}:00:00Z\n" for n in range(60))
    )
    given = {"output": f"folder:{job.path('sums')}", "card": job.path("card.json")}
    given |= {"statistic": "sum", "value_column": "amount", "budget": "inverse:100"}
    given |= {"value_max": 100, "epsilon_max": 5, "time_column": "time", "slot": "1h"}
    given |= {"start": str(FIRST), "window": 2, "noise_key": job.key()}

    def flags(**more):
        return [f"--{name}={value}" for name, value in {**given, **more}.items()]

    watched = flags(input=f"watch:{job.path('in')}/*.csv")
    with mock.patch.object(launch, "run", side_effect=KeyboardInterrupt):
        toolbox.run("per-record", *watched, RUNNER)
    schema.validate(read_card(given["card"]))
    ended = flags(input=job.path("paid.csv"), end=f"{FIRST}T09:00:00Z", card=job.path("ended.json"))
    assert toolbox.run("per-record", *ended).code == 0
    check = ("card", "--check", given["card"], f"--releases={job.path('sums')}")
    assert toolbox.run(*check).err == ""
    sorted(Path(job.path("sums")).glob("row-*"))[3].unlink()
    assert "is missing" in toolbox.run(*check).err


BAD_PLACES = {
    "of a stream": ("kafka:h:9092/cards", "a card is one file"),
    "that is not a card": ("users.csv", "users.csv"),
    "in no folder": ("nowhere/card.json", "not a folder where a file may be written"),
    "of events": ("in/x.csv", "would be written where the input"),
    "of another file": ("text.json", "is not a card, and would be overwritten"),
}


@pytest.mark.parametrize("case", BAD_PLACES)
def test_a_place_where_no_card_can_be_is_refused_before_anything_runs(case, stream):
    name, words = BAD_PLACES[case]
    stream.job.write("text.json", "a letter")
    Path(stream.job.path("in")).mkdir()
    place = name if ":" in name else stream.job.path(name)
    done = stream.launched(card=place)
    assert done.code == 2
    assert words in done.err
    assert Path(stream.job.path("text.json")).read_text() == "a letter"


def test_nothing_is_launched_where_the_card_cannot_be_written(stream):
    full = OSError(errno.ENOSPC, "No space left on device", stream.path)
    with mock.patch.object(run_card, "write_card", side_effect=full):
        done = stream.launched()
    assert done.code == 1  # a fault of the machine, after which the same launch may do
    assert "so nothing was launched: choose another place (--card)" in done.err
    assert done.err.count("\n") == 1


def test_results_are_whole_though_their_card_is_not(stream):
    full = OSError(errno.ENOSPC, "No space left on device", stream.path)
    out = stream.job.path("out.jsonl")
    with mock.patch.object(run_card, "write_card", side_effect=full):
        done = stream.job(**{**stream.flags, "end": stream.end, "output": out})
    assert done.code == 1
    assert f"The results are whole: {out}" in done.err


class Elsewhere(FileSystem):
    """A store of whole files in memory, with no folders, as those of clouds are."""

    kept: ClassVar[dict] = {}

    @classmethod
    def scheme(cls):
        return "elsewhere"

    def join(self, *parts):
        return "/".join(part.rstrip("/") for part in parts)

    def split(self, path):
        return path.rsplit("/", 1)

    def create(self, path, mime_type=None, compression_type=None):
        class File(io.BytesIO):
            def close(self):
                Elsewhere.kept[path] = self.getvalue()
                super().close()

        return File()

    def open(self, path, mime_type=None, compression_type=None):
        return io.BytesIO(self.kept[path])

    def exists(self, path):
        return path in self.kept

    def rename(self, sources, destinations):
        for source, destination in zip(sources, destinations, strict=True):
            self.kept[destination] = self.kept.pop(source)

    def delete(self, paths):
        for path in paths:
            self.kept.pop(path, None)

    def has_dirs(self):
        return False

    mkdirs = _list = copy = size = last_updated = checksum = metadata = None


def test_a_card_is_on_any_filesystem_of_beam(stream):
    Elsewhere.kept.clear()
    stream.path = "elsewhere://bucket/cards/card.json"
    stream.flags["card"] = stream.path
    stream.launched()
    stream.launched()
    stream.filled()
    assert list(Elsewhere.kept) == [stream.path]
    assert stream.checked().code == 0
    Elsewhere.kept["elsewhere://bucket/text"] = b"a letter"
    assert "is not a card" in stream.launched(card="elsewhere://bucket/text").err


# What somebody may do to the rows of a stream, or to its card.
ROWS = {
    "a slot taken out": (lambda rows: rows[:4] + rows[5:], f"slots {NUMBER + 4} are missing"),
    "the first slot taken out": (lambda rows: rows[1:], f"slots {NUMBER} are missing"),
    "a slot released twice": (
        lambda rows: [*rows, {**rows[3], "counts": [9, 9, 9]}],
        f"slots {NUMBER + 3} are there twice",
    ),
    "a slot before the first": (
        lambda rows: [{**rows[0], "slot": NUMBER - 1, "start": "2023-12-31T00:00:00Z"}, *rows],
        f"slots {NUMBER - 1} are of no run",
    ),
    "another time": (
        lambda rows: [*rows[:5], {**rows[5], "start": "2024-01-06T01:00:00Z"}, *rows[6:]],
        "another slot length or origin",
    ),
    "another mechanism": (lambda rows: [{**row, "mechanism": "pba"} for row in rows], "by pba"),
    "a bin more": (
        lambda rows: [{**row, "counts": [*row["counts"], 1]} for row in rows],
        "4 counts",
    ),
    "other names of bins": (
        lambda rows: [{**row, "bins": ["A", "B", "D"]} for row in rows],
        "its bins are",
    ),
    "a dearer publication": (
        lambda rows: [{**row, "epsilon": 2.5} for row in rows],
        "promises no more than 2 to anybody",
    ),
    "dearer ones in a window": (
        lambda rows: [{**row, "epsilon": 1.875, "published_slot": row["slot"]} for row in rows],
        "within 3 slots",
    ),
    "two costs of one publication": (
        lambda rows: [
            {**row, "published_slot": NUMBER, "epsilon": 0.25 + 0.25 * (n % 2)}
            for n, row in enumerate(rows)
        ],
        "say different costs",
    ),
    "what is no row": (lambda rows: [*rows, 5], "cannot be read"),
    "no column of slots": (
        lambda rows: [{k: v for k, v in row.items() if k != "slot"} for row in rows],
        "no column slot",
    ),
    "nothing left": (lambda rows: [], "nothing that was released is there"),
}  # fmt: skip


@pytest.mark.parametrize("case", ROWS)
def test_changed_rows_of_a_stream_are_reported(case, endless):
    change, words = ROWS[case]
    done = endless.checked(releases=endless.exported(change(endless.rows())))
    assert done.code == 1
    assert words in done.err, done.err


def run_of(card):
    return card["runs"][0]


CARDS = {
    "it promises less": (
        lambda c: [one.update(epsilon=0.1) for one in c["promise"]["classes"]],
        "promise makes it",
    ),
    "it promises less, in words as well": (
        lambda c: (
            [one.update(epsilon=0.1) for one in c["promise"]["classes"]],
            c["deployment"]["privacy_loss"].update(privacy_parameters={"epsilon": 0.1, "delta": 0}),
        ),
        "anybody",
    ),
    "its words promise less": (
        lambda c: c["deployment"]["privacy_loss"].update(
            privacy_parameters_details="epsilon 0.01 for ever: users, how many is not known"
        ),
        "not in the words of its own promise",
    ),
    "it begins later": (
        lambda c: run_of(c).update(first_slot=NUMBER + 3, start="2024-01-04T00:00:00Z"),
        "are of no run",
    ),
    "it begins earlier": (
        lambda c: run_of(c).update(first_slot=NUMBER - 3, start="2023-12-29T00:00:00Z"),
        "are missing",
    ),
    "it begins at another time": (
        lambda c: run_of(c).update(start="2024-01-04T00:00:00Z"),
        "are of 2024-01-01",
    ),
    "it ends before its slots do": (
        lambda c: run_of(c).update(last_slot=NUMBER + 5, end="2024-01-07T00:00:00Z"),
        "are of no run",
    ),
    "it is over, and lacks slots": (
        lambda c: (
            run_of(c).pop("open"),
            run_of(c).update(last_slot=NUMBER + 20, end="2024-01-22T00:00:00Z"),
        ),
        "are missing",
    ),
    "it went to files": (
        lambda c: (run_of(c).pop("streams"), run_of(c).update(files={"releases": {"name": "x"}})),
        "could write no files",
    ),
    "it went nowhere": (lambda c: run_of(c).pop("streams"), "could write no files"),
    "it went to files and a stream": (
        lambda c: run_of(c).update(files={"releases": {"name": "out"}}),
        "where no run sends them",
    ),
    "it went to a place that is none": (
        lambda c: run_of(c).update(streams={"releases": "fax"}),
        "where no run sends them",
    ),
    "it has a ledger in a stream": (
        lambda c: run_of(c)["streams"].update(ledger="kafka"),
        "where no run sends them",
    ),
    "its input had an end": (
        lambda c: c["data"].update(range="events"),
        "released without a ledger",
    ),
    "it tells of passes": (lambda c: run_of(c).update(passes=[1, 4]), "tells of passes"),
    "it has a digest of what was not there": (
        lambda c: run_of(c).update(files={"ledger": {"name": "l.csv", "sha256": "0" * 64}}),
        "has a digest of ledger",
    ),
    "other bins": (
        lambda c: c["data"].update(domain={"values": ["A", "B"]}),
        "3 counts, and the domain of the card 2 bins",
    ),
    "another mechanism": (lambda c: c.update(mechanism="pba"), "the card says pba"),
    "it promises a delta": (lambda c: c["promise"].update(delta=1e-6), "delta 1e-06"),
    "it promises to fewer classes": (lambda c: c["promise"]["classes"].pop(), "promise makes it"),
    "windows that are longer": (
        lambda c: [one.update(window=30) for one in c["promise"]["classes"]],
        "not in the words of its own promise",
    ),
    "one budget forever": (
        lambda c: c["promise"].update(guarantee="infinite", granted_again=0),
        "another kind",
    ),
    "another command": (lambda c: c.update(command="collect"), "streamveil collect gives"),
    "another slot length": (lambda c: c["data"].update(slot="12h"), "are of"),
    "a run more": (
        lambda c: c["runs"].append({**run_of(c), "first_slot": NUMBER + 90}),
        "are of",
    ),
    "a run that was cut in two": (
        lambda c: c["runs"].append(
            {**run_of(c), "last_slot": NUMBER + 3, "end": "2024-01-05T00:00:00Z"}
        ),
        "are of no run",
    ),
    "no run": (lambda c: c["runs"].clear(), "tells of no run"),
    "streams that are none": (lambda c: run_of(c).update(streams=["releases"]), "was edited"),
}


@pytest.mark.parametrize("case", CARDS)
def test_a_changed_card_of_a_stream_is_reported(case, endless):
    change, words = CARDS[case]
    endless.change(change)
    done = endless.checked()
    assert done.code == 1
    assert words in done.err, done.err


CONSISTENT = {
    "smaller epsilons": (
        lambda c: [one.update(epsilon=0.125) for one in c["promise"]["classes"]],
        "promises no more than 0.125 to anybody",
    ),
    "longer windows": (
        lambda c: [one.update(window=90) for one in c["promise"]["classes"]],
        "within 90 slots",
    ),
    "fewer classes": (lambda c: c["promise"]["classes"].pop(), "promises no more than 1"),
    "a later launch": (
        lambda c: run_of(c).update(first_slot=NUMBER + 3, start="2024-01-04T00:00:00Z"),
        "are of no run",
    ),
}


@pytest.mark.parametrize("case", CONSISTENT)
def test_a_card_that_was_forged_in_all_of_its_parts_is_reported_by_the_rows(case, endless):
    """Of a stream without a ledger: its releases say what publications have cost."""
    change, words = CONSISTENT[case]

    def forge(card):
        change(card)
        card["deployment"] = deployment_of(card)

    endless.change(forge)
    assert words in endless.checked().err


def test_a_card_of_files_that_is_made_one_of_a_stream_is_reported(stream):
    """An attacker would be rid of the ledger by that."""
    out = stream.job.path("out.jsonl")
    stream.filled(output=out, ledger=stream.job.path("ledger.jsonl"), card=stream.path)
    assert stream.checked(releases=out).err == ""
    whole = stream.card

    def forged(**run):
        card = copy.deepcopy(whole)
        card["runs"][0].update(run)
        write_card(stream.path, card)
        return stream.checked(releases=out).err

    releases = {"releases": whole["runs"][0]["files"]["releases"]}
    assert "without a ledger" in forged(files=releases)
    assert "has a digest of releases" in forged(open=True)
    assert "without a ledger" in forged(files={}, streams={"releases": "kafka"})
    assert "has no digest of ledger" in forged(
        files={**releases, "ledger": {"name": "ledger.jsonl"}}
    )
    stream.change(lambda card: card["data"].update(range="stream"))
    assert "could write no files" in stream.checked(releases=out).err


def test_rows_that_came_twice_and_in_any_order_are_taken_once(endless):
    """As Kafka, Pub/Sub and BigQuery hold them after a failure."""
    rows = endless.rows()
    done = endless.checked(releases=endless.exported([*reversed(rows), rows[4], rows[4]]))
    assert done.code == 0, done
    assert "2 rows stood there once more" in done.err


@pytest.fixture(scope="module")
def launched_tidy(tmp_path_factory, toolbox):
    """The same of a stream of tidy rows, which is what nobody has to ask for."""
    made = Stream(with_events(toolbox.Job(tmp_path_factory.mktemp("tidy"))), toolbox)
    made.flags["layout"] = None
    made.launched()
    made.filled()
    return made.job.folder


@pytest.fixture
def tidy(launched_tidy, tmp_path, toolbox):
    """A copy of it."""
    return Stream(toolbox.Job(Path(shutil.copytree(launched_tidy, tmp_path / "copy"))), toolbox)


def messages_of(stream):
    """What a consumer of a topic has: a message for each slot."""
    for path in sorted(stream.folder.glob("release-*")):
        rows = list(map(json.loads, path.read_text().splitlines()))
        common = {name: rows[0][name] for name in ("query", "slot", "start", "end", "status")}
        names = [name for name in rows[0] if name not in common]
        yield {**common, "rows": [{name: row[name] for name in names} for row in rows]}


def test_tidy_rows_in_a_folder_and_in_messages_are_checked(tidy):
    done = tidy.checked()
    assert done.code == 0, done
    assert "12 slots was released once" in done.out
    assert "release with --layout=rows to have that checked as well" in done.err
    assert "nothing was compared that says a cost" in done.err
    messages = list(messages_of(tidy))
    again = tidy.checked(releases=tidy.exported([*reversed(messages), messages[4]]))
    assert again.code == 0, again
    assert "3 rows stood there once more" in again.err
    lost = tidy.checked(releases=tidy.exported(messages[1:]))
    assert f"slots {NUMBER} are missing" in lost.err
    messages[3]["rows"][0]["key"] = "Z"
    assert "the bin 'Z' is not both" in tidy.checked(releases=tidy.exported(messages)).err


def test_rows_as_bigquery_exports_them(endless):
    """Whole numbers and times are text there, and each row names the bins."""

    def exported(row):
        texts = {
            name: row[name].replace("T", " ").replace("Z", " UTC") for name in ("start", "end")
        }
        whole = {name: row[name] and str(row[name]) for name in ("slot", "published_slot")}
        counts = {"counts": list(map(str, row["counts"])), "bins": ["A", "B", "C"]}
        return {**row, **texts, **whole, **counts}

    rows = [exported(row) for row in endless.rows()]
    done = endless.checked(releases=endless.exported(rows, "export.json"))
    assert done.code == 0, done


def test_releases_of_a_stream_must_be_named(endless):
    done = endless.toolbox.run("card", "--check", endless.path)
    assert done.code == 1
    assert "releases went to folder" in done.err
    assert "(--releases)" in done.err
    assert "there is no file" in endless.checked(releases=endless.job.path("in")).err


@pytest.mark.slow
def test_revisions_of_a_stream_are_checked_where_they_are_named(stream):
    revised = {"revise": 2, "revisions": f"folder:{stream.job.path('revised')}"}
    stream.launched(**revised)
    stream.filled(**revised)
    assert "revisions went to folder, and were not compared" in stream.checked().err
    where = f"--revisions={stream.job.path('revised')}"
    assert "revisions" not in stream.checked(where).err
    one = min(Path(stream.job.path("revised")).iterdir())
    row = json.loads(one.read_text())
    shutil.copy(one, one.with_name("revision-20300101T000000.000000Z.json"))
    assert "once more" in stream.checked(where).err
    one.write_text(json.dumps({**row, "counts": [1, 2]}))
    assert "there twice" in stream.checked(where).err


QUERIES = """
slot: 1d
queries:
  - {name: visits, by: value, keys: [A, B, C], every: 1d, rollups: [1w]}
  - {name: people, every: 2d, statistic: distinct}
"""


@pytest.mark.slow
def test_answers_in_a_folder_are_checked_against_card_and_ledger(stream, schema):
    job, ledger = stream.job, stream.job.path("ledger.jsonl")
    asked = {"value_column": None, "domain": None, "slot": None, "mechanism": None}
    asked |= {"queries": job.write("q.yaml", QUERIES), "ledger": ledger, "card": stream.path}
    stream.filled(**asked)
    schema.validate(stream.card)
    assert stream.card["runs"][0]["streams"] == {
        "answers-visits": "folder",
        "answers-people": "folder",
    }
    done = stream.checked(f"--ledger={ledger}")
    assert done.err == "", done
    min(stream.folder.glob("people.2d-*")).unlink()
    assert "people" in stream.checked(f"--ledger={ledger}").err


@pytest.mark.slow
def test_records_in_a_folder_are_checked(job, toolbox, schema):
    job.write("paid.csv", "amount,shop\n" + "".join(f"{n % 90},x\n" for n in range(400)))
    given = {"input": job.path("paid.csv"), "output": f"folder:{job.path('sums')}"}
    given |= {"statistic": "sum", "value_column": "amount", "budget": "inverse:100"}
    given |= {"value_max": 100, "epsilon_max": 5, "key_column": "shop", "keys": "x,y"}
    given |= {"card": job.path("card.json")}
    done = toolbox.run("per-record", *(f"--{name}={value}" for name, value in given.items()))
    assert done.code == 0, done
    schema.validate(read_card(given["card"]))
    check = ("card", "--check", given["card"], f"--releases={job.path('sums')}")
    assert toolbox.run(*check).err == ""
    min(Path(job.path("sums")).glob("row-*")).unlink()
    assert "is missing" in toolbox.run(*check).err


@pytest.mark.slow
def test_limits_that_a_run_may_choose_are_all_in_the_card_of_its_launch(stream):
    """Whoever chose one that is not among them did not keep what was promised."""
    stream.job.requirements(dict.fromkeys(USERS, (15, 4.0)))
    flags = {**stream.flags, "end": str(FIRST + dt.timedelta(40)), "max_slots": "auto"}
    with mock.patch.object(run, "run_here", side_effect=KeyboardInterrupt):
        stream.job(**flags)
    (one,) = stream.card["promise"]["classes"]
    assert None in one["limits"][0]["max_slots"]
    assert 1 in one["limits"][0]["max_slots"]
    stream.job.done(**flags)
    (one,) = stream.card["promise"]["classes"]
    assert len(one["limits"][0]["max_slots"]) == 1


@pytest.mark.slow
def test_a_stream_in_passes_has_its_card_before_the_first_slot_is_over(events, toolbox, schema):
    stream = Stream(events, toolbox)
    clock = events.write("clock", "2024-01-01T06:00:00Z")
    kept = {"state": events.path("state"), "clock_file": clock, "start": str(FIRST)}
    kept |= {"ledger": events.path("ledger.jsonl"), "card": stream.path}
    events.done(**kept)
    schema.validate(stream.card)
    assert run_of(stream.card)["open"]
    assert stream.card["data"]["range"] == "clock"
    nothing = toolbox.run("card", "--check", stream.path)
    assert nothing.code == 1
    assert "nothing that was released is there" in nothing.err
    Path(clock).write_text("2024-01-05T00:00:00Z")
    events.done(**kept)
    assert run_of(stream.card)["passes"] == [1, 1]
    assert not Path(events.path("out.jsonl.card.json")).exists()
    assert toolbox.run("card", "--check", stream.path).err == ""

    forged = copy.deepcopy(stream.card)
    forged["noise_key"]["keys"][0]["fingerprint"] = "0" * 16
    write_card(stream.path, forged)
    Path(clock).write_text("2024-01-07T00:00:00Z")
    done = events(**kept, resume=True, noise_key=events.key("b2" * 32))
    assert done.code == 2, "another key is refused"
    events.done(**kept, resume=True)
    assert run_of(stream.card)["passes"] == [1, 2]
    assert stream.card["noise_key"]["keys"][0]["fingerprint"] != "0" * 16
