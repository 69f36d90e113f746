"""`--sql` on the command line: it takes the place of `--input` wherever events are read."""

import json

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
    told = {(row["row"], row["detail"]) for row in job.rows("rejected.jsonl")}
    assert told == {(8, "'moment' of --sql fails"), (9, "1 fields where the header has 3")}


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


def test_a_sample_is_shown(job, sql):
    outcome = job.done("--dry_run", **sql())
    assert "place (string): a" in outcome.out
    assert not job.folder.joinpath("out.jsonl").exists()


def test_what_is_refused_in_one_line(job, sql):
    for told, flags in (
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
        job.refused(*told, **flags)
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
