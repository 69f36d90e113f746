"""`streamveil audit`: what it prints and writes, and what it refuses."""

import json

import pytest

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.driver.dynamic_stream import DynamicStream
from streamveil.mechanisms.wevent import sampling
from streamveil.pipelines.audit import auditing, changes, clock, presence, replay, runs, streams
from streamveil.pipelines.audit.devices import auditing as devices
from streamveil.pipelines.audit.records import auditing as records
from streamveil.pipelines.commands import audit as command
from tests.audits import mutants

ASKED = "--default_requirement=4,3,100"
RECORDS = ("--statistic=sum", "--budget=inverse:10", "--value_max=20", "--epsilon_max=3")
QUICK = ("--mechanism=pba", "--runs=4", "--bins=8")


@pytest.fixture
def files(tmp_path):
    events, requirements = tmp_path / "events.csv", tmp_path / "requirements.csv"
    rows = [f"u{i % 7},{'ab'[i % 2]},2024-05-{1 + i % 20:02}T08:00:00Z" for i in range(60)]
    events.write_text("\n".join(["user,place,time", *rows, "u1,a,nonsense", ""]))
    asked = [f"u{i},{2 + i % 2},4.0" for i in range(7)]
    requirements.write_text("\n".join(["user,window,epsilon", *asked, ""]))
    return (
        *(f"--input={events}", "--user_column=user", "--value_column=place"),
        *("--time_column=time", "--slot=1d", "--domain=a,b", f"--requirements={requirements}"),
    )


@pytest.mark.usefixtures("short")
def test_a_page_and_json_are_written(toolbox, tmp_path):
    page, figures = tmp_path / "audit.html", tmp_path / "audit.json"
    outcome = toolbox.run("audit", ASKED, *QUICK, f"--page={page}", f"--json={figures}")
    assert outcome.code == 0, outcome.err
    assert "| w = 4, epsilon = 3 | bins | charge |" in outcome.out
    assert "no violation found in pba" in outcome.out
    found = json.loads(figures.read_text())
    assert found["verdict"] == "no violation found"
    assert found["confidence"] == 0.95
    assert {one["claim"] for one in found["checks"]} == {"charge", "window"}
    for one in found["checks"]:
        assert one["at_least"] == pytest.approx(one["times"] * one["claimed"])
        assert 0 <= one["right"] <= one["guesses"]
    html = page.read_text()
    assert "<h1>No violation detected</h1>" in html
    assert "is not a proof of privacy" in html
    assert 'href="#main"' in html.split('<main id="main"')[0]
    assert "<section" not in html.split("<main")[0] + html.split("</main>")[1]
    assert "streamveil audit --default_requirement=4,3,100" in html
    assert html.count('<tr><th class="text nowrap" scope="row">') == len(found["checks"])


@pytest.mark.parametrize(
    ("module", "flags"),
    [
        (auditing, ["--mechanism=adaptive"]),
        (auditing, ["--mechanism=adaptive", "events"]),
        (presence, ["--max_slots=1"]),
        (changes, ["--requirement_changes=drawn", "--mechanism=adaptive"]),
        (auditing, ["queries"]),
    ],
)
@pytest.mark.parametrize("some", [",100", ""])
def test_a_guessed_population_is_audited_as_one(
    toolbox, files, queries, monkeypatch, module, flags, some
):
    made, known = [], []

    def stop(audit, *_, **__):
        made.append(audit)
        raise ConfigurationError("made")

    def learn(*given, **options):
        known.append(options["default"])
        return DynamicStream(*given, **options)

    monkeypatch.setattr(module, "found_by", stop)
    monkeypatch.setattr(streams, "DynamicStream", learn)
    table, given = files[-1], f"--default_requirement=60,2.5{some}"
    more = {"events": files[:-1], "queries": [queries]}
    options = [one for flag in flags for one in more.get(flag, [flag])]
    outcome = toolbox.run("audit", table, given, *options)
    assert "made" in outcome.err, outcome
    (audit,) = made
    last = 2  # after the two classes of the table
    if module is changes:
        next(iter(next(audit.stages()).play()))
        assert known == [last]
    populations = audit.streams.scene.populations
    assert [one.guessed for one in populations] == [last] * (2 if "queries" in flags else 1)


@pytest.mark.parametrize("output", ["page=p.html", "json=f.json", "rejected=r.jsonl"])
def test_no_output_is_where_the_next_audit_reads(toolbox, files, output):
    folder = files[0].removeprefix("--input=").rpartition("/")[0]
    name, _, file = output.partition("=")
    given = (f"--input={folder}/*", *files[1:], f"--{name}={folder}/{file}")
    outcome = toolbox.run("audit", *given, "--runs=4")
    assert outcome.code == 2
    assert f"{folder}/{file} would be written where the input {folder}/* takes" in outcome.err


@pytest.mark.usefixtures("short")
def test_long_windows_are_warned_of(toolbox, monkeypatch, caplog):
    monkeypatch.setattr(command, "LONG", 3)
    assert toolbox.run("audit", ASKED, *QUICK).code == 0
    assert "the longest window, of 4 slots: there may be no time for guesses" in caplog.text


@pytest.mark.usefixtures("short")
def test_what_was_covered_is_reported_and_an_audit_that_covered_nothing_failed(
    toolbox, tmp_path, monkeypatch
):
    figures = tmp_path / "audit.json"
    outcome = toolbox.run("audit", ASKED, *QUICK, f"--json={figures}")
    assert "guesses: 4 whole rounds, " in outcome.out
    assert " slots (all there are) all that is published follows from noisy" in outcome.out
    found = json.loads(figures.read_text())
    assert (found["rounds"], found["replay"]["complete"]) == (4, True)

    def over():
        raise clock.TimeOver

    for module in (replay, runs):
        monkeypatch.setattr(module, "check_clock", over)
    figures.unlink()
    outcome = toolbox.run("audit", ASKED, "--mechanism=pba", "--seconds=60", f"--json={figures}")
    assert outcome.code == 1
    assert "no guesses: 0 of 4 rounds were made" in outcome.out
    assert "replay: no world was held against another one" in outcome.out
    assert "nothing was tested in pba: give it more time" in outcome.out
    assert json.loads(figures.read_text())["verdict"] == "nothing tested"


@pytest.mark.usefixtures("short")
def test_a_conviction_is_reported_and_the_exit_code_is_4(toolbox, tmp_path, monkeypatch):
    exact = sampling.discrete_laplace
    monkeypatch.setattr(sampling, "discrete_laplace", lambda units, *rest: exact(3 * units, *rest))
    page = tmp_path / "audit.html"
    outcome = toolbox.run("audit", ASKED, *QUICK, f"--page={page}")
    assert outcome.code == 4
    assert "VIOLATION: pba tells at least" in outcome.out
    assert "<h1>Violation detected</h1>" in page.read_text()


@pytest.mark.usefixtures("short")
def test_canaries_stand_beside_events_of_a_file(toolbox, files):
    outcome = toolbox.run("audit", *files, "--mechanism=pba", "--runs=4")
    assert outcome.code == 0, outcome.err
    assert "| w = 2, epsilon = 4 | bins | charge |" in outcome.out
    assert "| w = 3, epsilon = 4 | windows | window |" in outcome.out
    assert "rejected: unparsable time 1" in outcome.out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "no requirements are given"),
        ([ASKED, "--mechanism=rotation:cycle=x"], "option cycle is 'x'"),
        ([ASKED, "--mechanism=pba", "--devices"], "'pba' is for requirements over windows"),
        ([ASKED, "--devices=maybe"], "--devices=maybe"),
        ([ASKED, "--devices", "--max_contributions=2"], "a device reports one value per slot"),
        ([ASKED, "--devices", "--adjacency=replace"], "its guarantee always covers events"),
        ([ASKED, "--devices", "--queries=q.yaml"], "a device answers a single query"),
        ([ASKED, "--budget=inverse:3"], "is for statistics of records: give --statistic"),
        (["--mechanism=hat"], "--statistic is missing"),
        (["--statistic=count"], "--budget is missing"),
        (["--statistic=mean", "--budget=inverse:3"], "--statistic=mean is unknown"),
        ([*RECORDS, "--mechanism=pba"], "'pba' is for requirements over windows"),
        ([*RECORDS, ASKED], "is not for per-record: each record has its own budget"),
        ([*RECORDS, "--slot=1d"], "each record spends its budget once, whatever its slot"),
        ([*RECORDS, "--bins=4"], "--bins=4 is not for per-record: statistics of records have"),
        ([*RECORDS, "--queries=q.yaml"], "each is of users, and a record has a budget"),
        ([*RECORDS, "--epsilon_min=0.1"], "--epsilon_min=0.1 is for --budget=table:FILE"),
        ([*RECORDS, "--beta=0.1", "--mechanism=hat:beta=0.2"], "beta is given twice"),
        ([*RECORDS, "--input=e.csv"], "--value_column is missing"),
        (["--statistic=max", *RECORDS[1:], "--devices"], "count and sum, and not max"),
        (["--statistic=sum", "--budget=table:b.csv"], "--value_max is missing"),
        (["--statistic=count", "--budget=inverse:3", "--value_max=9"], "--epsilon_max is missing"),
        ([ASKED, "--devices", "--max_slots=3"], "devices limit their own reports"),
        ([ASKED, "--devices", "--guarantee=infinite", "--epsilon=1"], "budgets over windows only"),
        (
            [ASKED, "--devices", "--requirement_changes=drawn"],
            "requirements change when you edit the table",
        ),
        ([*RECORDS, "--guarantee=infinite", "--epsilon=1"], "each record has its own budget"),
        ([*RECORDS, "--max_slots=3"], "the privacy unit is the record"),
        ([ASKED, "--devices", "--domain=a,b"], "--domain=a,b is for events: give --input"),
        ([ASKED, "--mechanism=gated"], "'gated' is for lifetime budgets"),
        ([ASKED, "--guarantee=infinite", "--epsilon=1"], "applies to windows"),
        (
            [ASKED, "--queries=q.yaml", "--max_slots=3"],
            "is not for --queries: in an audit of queries",
        ),
        (
            [ASKED, "--queries=q.yaml", "--epsilon=1"],
            "is not for --queries: query sets are audited with",
        ),
        ([ASKED, "--queries=q.yaml"], "file of queries q.yaml does not exist"),
        ([ASKED, "--queries=q.yaml", "--mechanism=pba"], "is not for --queries: each query"),
        ([ASKED, "--queries=q.yaml", "--domain=a,b"], "is not for --queries: each query"),
        ([ASKED, "--queries=q.yaml", "--slot=1d"], "is not for --queries: the file sets"),
        ([ASKED, "--queries=q.yaml", "--user_column=u"], "is for events: give --input"),
        ([ASKED, "--queries=q.yaml", "--input=e.csv"], "--user_column is missing"),
        (["--queries=q.yaml"], "no requirements are given"),
        ([ASKED, "--domain=a,b"], "--domain=a,b is for events: give --input"),
        ([ASKED, "--input=e.csv"], "--user_column is missing"),
        ([ASKED, "--bins=0"], "bins is 0"),
        ([ASKED, "--runs=2"], "runs is 2"),
        ([ASKED, "--seconds=0"], "seconds is 0"),
        ([ASKED, "--seconds=nan"], "seconds is nan: give a number above 0"),
        ([ASKED, "--seconds=inf"], "seconds is inf"),
        ([*RECORDS, "--seed=-1"], "--seed=-1 is below 0: give a whole number from 0 on"),
        ([ASKED, "--page=page.pdf"], "--page=page.pdf: end the name in .html"),
        ([ASKED, "--report=page.pdf"], "--page=page.pdf: end the name in .html"),
        ([ASKED, "--json=page.html"], "end the name in .json"),
        ([ASKED, "--second=3"], "did you mean --seconds?"),
    ],
)
def test_what_is_wrong_is_reported_in_one_line(toolbox, flags, message):
    outcome = toolbox.run("audit", *flags)
    assert outcome.code == 2
    assert message in outcome.message
    assert outcome.message.count("\n") == 0


def test_a_table_that_limits_slots_is_refused_of_queries(toolbox, tmp_path, queries):
    table = tmp_path / "requirements.csv"
    table.write_text("user,window,epsilon,max_slots\nann,3,1.0,2\n")
    outcome = toolbox.run("audit", f"--requirements={table}", queries, "--runs=4")
    assert outcome.code == 2
    assert "limits the slots in which users count" in outcome.message


@pytest.mark.parametrize("flags", [["--mechanism=rotation"], ["--mechanism=lbu", "--devices"]])
def test_devices_are_audited(toolbox, tmp_path, monkeypatch, flags):
    monkeypatch.setattr(devices, "CELLS", 20_000)
    page, figures = tmp_path / "audit.html", tmp_path / "audit.json"
    made = [*flags, "--runs=4", f"--page={page}", f"--json={figures}"]
    outcome = toolbox.run("audit", ASKED, *made)
    assert outcome.code == 0, outcome.err
    assert "| w = 4, epsilon = 3 | asked again | report |" in outcome.out
    found = json.loads(figures.read_text())
    assert {one["claim"] for one in found["checks"]} == {"report", "window"}
    html = page.read_text()
    assert "An operator who sees all reports of all devices" in html
    assert "<dt>asked again</dt>" in html
    assert "publications" not in html


@pytest.mark.usefixtures("short")
def test_names_without_devices_are_those_of_streams(toolbox, files):
    outcome = toolbox.run("audit", files[-1], "--mechanism=lbu", "--runs=4", "--bins=4")
    assert outcome.code == 0, outcome.err
    assert "| publications | charge |" in outcome.out
    refused = toolbox.run("audit", ASKED, "--mechanism=lbu", "--runs=4", "--bins=4")
    assert "so it must be known how many there are" in refused.err  # as a run says


def test_devices_have_values_of_a_file(toolbox, files, monkeypatch):
    monkeypatch.setattr(devices, "CELLS", 20_000)
    outcome = toolbox.run("audit", *files, "--mechanism=rotation", "--runs=4")
    assert outcome.code == 0, outcome.err
    assert "| w = 2, epsilon = 4 | reports | report |" in outcome.out
    assert "rejected: unparsable time 1" in outcome.out


@pytest.fixture
def few(monkeypatch):
    """Few releases of each record."""
    monkeypatch.setattr(records, "DRAWN", 1000)
    monkeypatch.setattr(records, "RELEASED", 10)


@pytest.mark.usefixtures("few")
def test_records_are_audited(toolbox, tmp_path):
    page, figures = tmp_path / "audit.html", tmp_path / "audit.json"
    made = [*RECORDS, "--runs=4", f"--page={page}", f"--json={figures}"]
    outcome = toolbox.run("audit", *made)
    assert outcome.code == 0, outcome.err
    assert "| record of 20, epsilon = 0.5 | noise | budget | 0.5 |" in outcome.out
    assert "charges of a record reached 100.0% of its budget" in outcome.out
    found = json.loads(figures.read_text())
    assert {one["claim"] for one in found["checks"]} == {"budget"}
    assert found["checks"][0]["subject"] == "record of 20, epsilon = 0.5"
    assert found["checks"][0]["window"] is None
    html = page.read_text()
    assert "An attacker who knows all other records guessed" in html
    assert "Budget spent on a record, at most" in html
    assert "<dt>noise</dt>" in html


@pytest.fixture
def payments(tmp_path):
    records, table = tmp_path / "payments.csv", tmp_path / "budgets.csv"
    records.write_text("amount,kind\n3,a\n5,b\n19.5,a\n,a\n-2,b\n7,c\n")
    table.write_text("category,epsilon\na,2.0\nb,0.5\n")
    return f"--input={records}", f"--budget=table:{table}"


@pytest.mark.usefixtures("few")
def test_records_stand_beside_those_of_a_file(toolbox, payments):
    own, table = payments
    outcome = toolbox.run("audit", *RECORDS, own, "--value_column=amount", "--runs=4")
    assert outcome.code == 0, outcome.err
    assert "| record of 19.5, epsilon = 0.5128 | noise |" in outcome.out
    flags = ("--statistic=sum", table, "--value_max=20", own, "--value_column=amount")
    outcome = toolbox.run("audit", *flags, "--budget_column=kind", "--runs=4")
    assert outcome.code == 0, outcome.err
    assert "| record of 5, epsilon = 0.5 | noise |" in outcome.out
    assert "record of 7" not in outcome.out
    wrong = toolbox.run("audit", *RECORDS, own, "--value_column=kind", "--runs=4")
    assert "there is no record to audit" in wrong.message


@pytest.mark.usefixtures("few")
def test_budgets_of_a_table_are_audited_and_shared_among_records(toolbox, payments):
    _, table = payments
    shared = ("--statistic=count", table, "--max_records_per_user=2", "--runs=4")
    outcome = toolbox.run("audit", *shared)
    assert outcome.code == 0, outcome.err
    assert "| record with epsilon = 0.25 | noise |" in outcome.out
    assert "| record with epsilon = 1 | releases |" in outcome.out
    outcome = toolbox.run("audit", *shared, "--devices")
    assert "hat, a count of records on devices" in outcome.out


QUERIES = """
slot: 1d
queries:
  - {name: places, by: place, keys: [a, b], mechanism: uniform, max_contributions: 2}
  - {name: all, every: 2d, mechanism: uniform}
"""


@pytest.fixture
def queries(tmp_path):
    path = tmp_path / "queries.yaml"
    path.write_text(QUERIES)
    return f"--queries={path}"


@pytest.mark.usefixtures("short")
def test_queries_are_audited_together_and_each(toolbox, queries, tmp_path):
    page, figures = tmp_path / "audit.html", tmp_path / "audit.json"
    flags = (queries, "--runs=4", "--bins=16", f"--page={page}", f"--json={figures}")
    outcome = toolbox.run("audit", ASKED, *flags)
    assert outcome.code == 0, outcome.err
    assert "| all queries: w = 4, epsilon = 3 | windows | window |" in outcome.out
    assert "| all: w = 4, epsilon = 3 | windows | share |" in outcome.out
    assert "no violation found in the query set of queries.yaml" in outcome.out
    found = json.loads(figures.read_text())
    assert {one["query"] for one in found["checks"]} == {"all queries", "places", "all"}
    html = page.read_text()
    assert html.count('<tr><th class="text nowrap" scope="row">') == len(found["checks"])
    assert "All queries share a user's budget" in html


def test_a_conviction_of_a_query_is_reported_and_the_exit_code_is_4(toolbox, queries, monkeypatch):
    mutants.slots_in_part_as_whole(monkeypatch)
    outcome = toolbox.run("audit", ASKED, queries, "--runs=4", "--bins=32")
    assert outcome.code == 4
    assert "VIOLATION: the query set of queries.yaml tells at least" in outcome.out
    assert "by query 'all'" in outcome.out


@pytest.mark.usefixtures("short")
def test_queries_are_audited_beside_events_of_a_file(toolbox, files, queries):
    flags = [flag for flag in files if not flag.startswith(("--value", "--slot", "--domain"))]
    outcome = toolbox.run("audit", *flags, queries, "--runs=4")
    assert outcome.code == 0, outcome.err
    assert "| all queries: w = 3, epsilon = 4 | windows | window |" in outcome.out
    assert "rejected: unparsable time 1" in outcome.out
    refused = toolbox.run("audit", *flags, queries, "--runs=4", "--bins=3")
    assert "--bins=3 is for worst cases" in refused.message


def test_queries_whose_bounds_are_chosen_are_not_audited(toolbox, tmp_path):
    path = tmp_path / "auto.yaml"
    path.write_text("slot: 1d\nqueries: [{name: delay, statistic: mean, of: late, bounds: auto}]")
    outcome = toolbox.run("audit", ASKED, f"--queries={path}", "--runs=4")
    assert outcome.code == 2
    assert "query 'delay' has bounds: auto" in outcome.message
