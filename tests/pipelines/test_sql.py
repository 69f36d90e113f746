"""`--sql` on the command line: it takes the place of `--input` wherever events are read."""

import datetime as dt
import json
import signal
import subprocess
import sys

import pytest

import streamveil as sv

pytest.importorskip("duckdb")

LINES = [
    *(f"u{n},A,2024-01-0{day} 10:00:00" for n in range(1, 4) for day in (1, 2)),
    "u1,B,soon",
    "u2",
]
SQL = """SELECT user, lower(value) AS place, time::TIMESTAMP AS moment FROM 'EVENTS'"""
NAMES = {"value_column": "place", "time_column": "moment", "domain": "a,b"}


@pytest.fixture
def sql(job):
    """A job that reads its events by a SELECT, given without the path."""
    job.lines(*LINES)

    def given(text=SQL):
        return {"input": None, "sql": text.replace("EVENTS", job.path("events.csv")), **NAMES}

    return given


def released(job, name="out.jsonl"):
    return [row["counts"] for row in job.rows(name)]


@pytest.mark.parametrize("more", [(), ("--runner=FnApiRunner",)], ids=["here", "runner"])
def test_release(job, sql, more):
    letters = job.path("rejected.jsonl")
    outcome = job.done(*more, **sql(), rejected=letters, max_rejected=1)
    assert released(job) == [[3, 0], [3, 0]]
    assert "unparsable 2" in outcome.out + outcome.err + outcome.log
    rejected = {(row["row"], row["detail"]) for row in job.rows("rejected.jsonl")}
    assert rejected == {(8, "'moment' of --sql fails"), (9, "1 field where the header has 3")}


def test_a_text_in_a_file(job, sql):
    text = job.write("query.sql", sql()["sql"] + "\n-- of the trips\n;\n")
    job.done(**{**sql(), "sql": f"file:{text}"}, max_rejected=1)
    assert released(job) == [[3, 0], [3, 0]]


def test_passes_with_a_state(job, sql):
    given = {**job.kept(), **sql(SQL.replace("EVENTS", job.path("in/*.csv")))}
    (job.folder / "in").mkdir()
    flags = {**given, "end": "2024-01-03", "max_rejected": 1}
    job.lines(*LINES, name="in/1.csv")
    job.done(**flags)
    (made,) = (path for path in job.folder.glob("out*.jsonl"))
    assert [row["counts"] for row in job.rows(made.name)] == [[3, 0], [3, 0]]


def test_a_state_keeps_to_its_columns_wherever_the_files_are(job, sql):
    given = {**job.kept(), **sql(SQL.replace("EVENTS", job.path("in/*.csv")))}
    (job.folder / "in").mkdir()
    job.lines(*LINES, name="in/1.csv")
    job.done(**{**given, "end": "2024-01-02", "max_rejected": 1})
    on = {**given, "resume": "true", "start": None, "end": "2024-01-03", "max_rejected": 1}
    others = given["sql"].replace("SELECT user", "SELECT user || value AS user")
    job.refused("another configuration", "the columns changed", **{**on, "sql": others})
    as_they_are = {"sql": None, "input": job.path("in/*.csv")}
    job.refused("another configuration", "the columns changed", **{**on, **as_they_are})
    elsewhere = given["sql"].replace("in/*", "in/[1-9]").replace(" ", "\n  ") + ";"
    job.done(**{**on, "sql": elsewhere})


# Each line of its input asks for a run that is killed at some call for a batch, or before it does
# something to its files; it answers how that ended.
KILLED = """
import itertools, json, os, signal, sys
from streamveil.io.sql import Query
from streamveil.pipelines import main
from streamveil.pipelines.commands import release
def run(moment, at, folder, arguments):
    numbers, compute = itertools.count(), Query.compute
    def strike():
        if next(numbers) == at:
            os.killpg(0, signal.SIGKILL)
    def computed(*given):
        if moment == "before a batch":
            strike()
        made = compute(*given)
        if moment == "after a batch":
            strike()
        return made
    def changed(event, given):
        flags = given[2] if event == "open" and isinstance(given[2], int) else 0
        places = f"{folder}/state", f"{folder}/results"
        if flags & (os.O_WRONLY | os.O_RDWR) or event in (
            "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"
        ):
            if str(given[0]).startswith(places):
                strike()
    Query.compute = computed
    if moment == "writes":
        sys.addaudithook(changed)
    os.setpgid(0, 0)
    os.dup2(2, 1)
    os._exit(main.main(arguments))
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        run(*json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
# By pass, which reads two files.
KILLS = [
    [("before a batch", 0), ("after a batch", 1), ("writes", 1)],
    [("before a batch", 1), ("writes", 3)],
    [("writes", 6), ("writes", 2)],
    [("writes", 9)],
    [("writes", 12)],
    [("writes", 16), ("after a batch", 0)],
    [("writes", 20)],
]


class Passes:
    """A stream of a folder, released day by day, by --sql."""

    def __init__(self, job, folder):
        self.job, self.folder = job, folder
        for name in ("in", "results"):
            (folder / name).mkdir(parents=True)

    def arguments(self):
        place = self.folder / "results"
        known = (self.folder / "state" / "manifest.json").exists()
        own = {
            "input": None,
            "sql": SQL.replace("EVENTS", str(self.folder / "in" / "*.csv")),
            "state": self.folder / "state",
            "clock_file": self.folder / "clock",
            "max_rejected": 1,
        }
        own |= {name: place / f"{name}.jsonl" for name in ("output", "ledger", "rejected")}
        return self.job.arguments(*["--resume"] * known, **{**self.job.kept(), **NAMES, **own})

    def advance(self, day):
        """Two files of a day come, and it is over."""
        for half in (0, 1):
            users = range(half * 20, half * 20 + 20)
            rows = [f"u{u},{'AB'[(u + day) % 2]},2024-01-0{day} 10:00:00" for u in users]
            path = self.folder / "in" / f"{day}-{half}.csv"
            path.write_text("\n".join(("user,value,time", *rows, "u1,B,soon")) + "\n")
        now = dt.datetime(2024, 1, day + 1, tzinfo=dt.timezone.utc)
        (self.folder / "clock").write_text(now.isoformat())

    def made(self):
        """What readers can see, by name, whatever the folder is called."""
        here = str(self.folder).encode()
        paths = self.folder.glob("results/[!.]*")
        return {path.name: path.read_bytes().replace(here, b"") for path in paths}


@pytest.fixture
def kill():
    """Run a stream until it is killed at some moment."""
    command = [sys.executable, "-c", KILLED]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:

        def kill(stream, moment, at):
            asked = json.dumps((moment, at, str(stream.folder), stream.arguments()))
            process.stdin.write(f"{asked}\n".encode())
            process.stdin.flush()
            assert int(process.stdout.readline()) == -signal.SIGKILL, (moment, at)

        yield kill
        process.stdin.close()


@pytest.mark.slow
def test_passes_that_are_killed_release_each_slot_once(toolbox, job, kill, script):
    job.requirements({f"u{u}": (1 + u % 3, 1.0) for u in range(40)})
    once, killed = (Passes(job, job.folder / name) for name in ("once", "killed"))
    for day, kills in enumerate(KILLS, 1):
        for stream in (once, killed):
            stream.advance(day)
        for moment, at in kills:
            seen = killed.made()
            kill(killed, moment, at)
            assert {**killed.made(), **seen} == killed.made()
        for stream in (once, killed):
            outcome = toolbox.run(*stream.arguments())
            assert outcome.code == 0, outcome.message
    rows = {
        kind: [
            json.loads(line)
            for path in sorted(killed.folder.glob(f"results/{kind}-*.jsonl"))
            for line in path.read_text().splitlines()
        ]
        for kind in ("output", "ledger", "rejected")
    }
    assert killed.made() == once.made()
    assert len({row["slot"] for row in rows["output"]}) == len(rows["output"]) == len(KILLS)
    assert len(rows["rejected"]) == 2 * len(KILLS)
    for window in (1, 2, 3):
        spent = [(row["slot"], row["spent"]) for row in rows["ledger"] if row["window"] == window]
        assert len(spent) == len(KILLS)
        assert not script("_drill").overspent(spent, window, 1.0)
    assert not list(killed.folder.rglob("*.part"))


def test_a_sample_is_shown(job, sql):
    outcome = job.done("--dry_run", **sql())
    assert "place (string): a" in outcome.out
    assert not job.folder.joinpath("out.jsonl").exists()


def test_what_is_refused_in_one_line(job, sql):
    for words, flags in (
        (["--input=", "exclude each other"], {**sql(), "input": job.path("events.csv")}),
        (["--delimiter=;", "exclude each other"], {**sql(), "delimiter": ";"}),
        (["DISTINCT", "leave it out"], sql("SELECT DISTINCT user FROM 'EVENTS'")),
        (["no file matches", "nowhere"], sql(SQL.replace("EVENTS", job.path("nowhere/*.csv")))),
        (["no column 'moment'", "AS NAME"], sql("SELECT user, value AS place FROM 'EVENTS'")),
        (["file:", "one SELECT"], {**sql(), "sql": f"file:{job.path('nowhere.sql')}"}),
        (
            ["takes it in", "would be written"],
            {**sql(SQL.replace("EVENTS", job.path("*.csv"))), "output": job.path("out.csv")},
        ),
    ):
        job.refused(*words, **flags)
    assert not job.folder.joinpath("out.jsonl").exists()


def test_without_duckdb_the_extra_is_named(job, sql, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    from streamveil.io import sql as module

    module.query_of.cache_clear()
    monkeypatch.setattr(module, "_OPEN", type("", (), {})())
    job.refused("'.[sql]'", "DuckDB", **sql())


def test_per_record(toolbox, job, sql):
    text = "SELECT length(value) * 3 AS amount FROM 'EVENTS'"
    out = job.path("sums.jsonl")
    outcome = toolbox.run(
        "per-record",
        f"--sql={sql(text)['sql']}",
        f"--output={out}",
        *("--statistic=sum", "--value_column=amount", "--value_max=5"),
        *("--budget=inverse:1000", "--epsilon_max=500"),
    )
    assert outcome.code == 0, outcome.message
    (row,) = job.rows("sums.jsonl")
    assert row["estimate"] == pytest.approx(21, abs=3)


@pytest.mark.slow
def test_evaluate_and_audit(toolbox, job, sql):
    given = {**sql(), "slot": "1d", "start": "2024-01-01", "end": "2024-01-03"}
    flags = [f"--{name}={value}" for name, value in given.items() if value is not None]
    flags += ["--user_column=user", "--default_requirement=2,1,3"]
    outcome = toolbox.run("evaluate", *flags, "--mechanisms=uniform", "--seeds=1", "--processes=1")
    assert outcome.code == 0, outcome.message
    assert "events" in outcome.out
    outcome = toolbox.run(
        "audit", *flags, "--mechanism=uniform", "--seconds=1", f"--json={job.path('audit.json')}"
    )
    assert outcome.code in (0, 1), outcome.message
    assert json.loads(job.folder.joinpath("audit.json").read_text())


def test_evaluate_of_python(job, sql):
    options = {"user": "user", "value": "place", "time": "moment", "slot": "1d", "domain": "a,b"}
    options |= {"default_requirement": "2,1,3", "mechanisms": ["uniform"], "seeds": 1}
    made = sv.evaluate(sql=sql()["sql"], **options)
    assert "events" in str(made)
    with pytest.raises(sv.ConfigurationError, match="data"):
        sv.evaluate(job.path("events.csv"), sql=sql()["sql"], **options)
