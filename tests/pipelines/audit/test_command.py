"""`streamveil audit`: what it prints and writes, and what it refuses."""

import json

import pytest

from streamveil.mechanisms.wevent import sampling
from streamveil.pipelines.audit import command
from tests.audits import mutants

ASKED = "--default_requirement=4,3,100"
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
    assert "| w = 4, E = 3 | bins | charge |" in outcome.out
    assert "no violation found in pba" in outcome.out
    found = json.loads(figures.read_text())
    assert found["verdict"] == "no violation found"
    assert found["confidence"] == 0.95
    assert {one["claim"] for one in found["checks"]} == {"charge", "window"}
    for one in found["checks"]:
        assert one["at_least"] == pytest.approx(one["times"] * one["claimed"])
        assert 0 <= one["right"] <= one["guesses"]
    html = page.read_text()
    assert "<h1>No violation found</h1>" in html
    assert "An acquittal is none" in html
    assert 'href="#main"' in html.split('<main id="main"')[0]
    assert "<section" not in html.split("<main")[0] + html.split("</main>")[1]
    assert "streamveil audit --default_requirement=4,3,100" in html
    assert html.count('<tr><td class="text nowrap">') == len(found["checks"])


@pytest.mark.usefixtures("short")
def test_long_windows_are_warned_of(toolbox, monkeypatch, caplog):
    monkeypatch.setattr(command, "LONG", 3)
    assert toolbox.run("audit", ASKED, *QUICK).code == 0
    assert "the longest window, of 4 slots: the 4 rounds that every audit makes" in caplog.text


def test_a_conviction_is_told_and_the_exit_code_is_1(toolbox, tmp_path, monkeypatch):
    exact = sampling.discrete_laplace
    monkeypatch.setattr(sampling, "discrete_laplace", lambda units, *rest: exact(3 * units, *rest))
    page = tmp_path / "audit.html"
    outcome = toolbox.run("audit", ASKED, *QUICK, f"--page={page}")
    assert outcome.code == 1
    assert "CONVICTED: pba tells at least" in outcome.out
    assert "<h1>Convicted</h1>" in page.read_text()


@pytest.mark.usefixtures("short")
def test_canaries_stand_beside_events_of_a_file(toolbox, files):
    outcome = toolbox.run("audit", *files, "--mechanism=pba", "--runs=4")
    assert outcome.code == 0, outcome.err
    assert "| w = 2, E = 4 | bins | charge |" in outcome.out
    assert "| w = 3, E = 4 | windows | window |" in outcome.out
    assert "rejected: unparsable time 1" in outcome.out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "nobody's requirements are known"),
        ([ASKED, "--mechanism=rotation"], "'rotation' is for devices"),
        ([ASKED, "--mechanism=gated"], "'gated' is for one budget forever"),
        ([ASKED, "--guarantee=infinite", "--epsilon=1"], "is about windows"),
        ([ASKED, "--questions=q.yaml", "--max_slots=3"], "is not for --questions: their users"),
        ([ASKED, "--questions=q.yaml"], "file of questions q.yaml does not exist"),
        ([ASKED, "--questions=q.yaml", "--mechanism=pba"], "is not for --questions: each question"),
        ([ASKED, "--questions=q.yaml", "--domain=a,b"], "is not for --questions: each question"),
        ([ASKED, "--questions=q.yaml", "--slot=1d"], "is not for --questions: the file has"),
        ([ASKED, "--questions=q.yaml", "--user_column=u"], "is for events: give --input"),
        ([ASKED, "--questions=q.yaml", "--input=e.csv"], "--user_column is missing"),
        (["--questions=q.yaml"], "nobody's requirements are known"),
        ([ASKED, "--domain=a,b"], "--domain=a,b is for events: give --input"),
        ([ASKED, "--input=e.csv"], "--user_column is missing"),
        ([ASKED, "--bins=0"], "bins is 0"),
        ([ASKED, "--runs=2"], "runs is 2"),
        ([ASKED, "--seconds=0"], "seconds is 0"),
        ([ASKED, "--page=page.pdf"], "--page=page.pdf: end the name in .html"),
        ([ASKED, "--report=page.pdf"], "--page=page.pdf: end the name in .html"),
        ([ASKED, "--json=page.html"], "end the name in .json"),
        ([ASKED, "--second=3"], "did you mean --seconds?"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(toolbox, flags, message):
    outcome = toolbox.run("audit", *flags)
    assert outcome.code == 2
    assert message in outcome.message
    assert outcome.message.count("\n") == 0


def test_a_table_that_limits_slots_is_refused_of_questions(toolbox, tmp_path, questions):
    table = tmp_path / "requirements.csv"
    table.write_text("user,window,epsilon,max_slots\nann,3,1.0,2\n")
    outcome = toolbox.run("audit", f"--requirements={table}", questions, "--runs=4")
    assert outcome.code == 2
    assert "limits the slots in which users count" in outcome.message


QUESTIONS = """
base_slot: 1d
questions:
  - {name: places, value: place, domain: [a, b], mechanism: uniform, max_contributions: 2}
  - {name: all, slot: 2d, mechanism: uniform}
"""


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.yaml"
    path.write_text(QUESTIONS)
    return f"--questions={path}"


@pytest.mark.usefixtures("short")
def test_questions_are_audited_together_and_each(toolbox, questions, tmp_path):
    page, figures = tmp_path / "audit.html", tmp_path / "audit.json"
    flags = (questions, "--runs=4", "--bins=16", f"--page={page}", f"--json={figures}")
    outcome = toolbox.run("audit", ASKED, *flags)
    assert outcome.code == 0, outcome.err
    assert "| all questions: w = 4, E = 3 | windows | window |" in outcome.out
    assert "| all: w = 4, E = 3 | windows | share |" in outcome.out
    assert "no violation found in the portfolio of questions.yaml" in outcome.out
    found = json.loads(figures.read_text())
    assert {one["question"] for one in found["checks"]} == {"all questions", "places", "all"}
    html = page.read_text()
    assert html.count('<tr><td class="text nowrap">') == len(found["checks"])
    assert "A user's budget is of all questions together" in html


def test_a_conviction_of_a_question_is_told_and_the_exit_code_is_1(toolbox, questions, monkeypatch):
    mutants.slots_in_part_as_whole(monkeypatch)
    outcome = toolbox.run("audit", ASKED, questions, "--runs=4", "--bins=32")
    assert outcome.code == 1
    assert "CONVICTED: the portfolio of questions.yaml tells at least" in outcome.out
    assert "by question 'all'" in outcome.out


@pytest.mark.usefixtures("short")
def test_questions_are_audited_beside_events_of_a_file(toolbox, files, questions):
    flags = [flag for flag in files if not flag.startswith(("--value", "--slot", "--domain"))]
    outcome = toolbox.run("audit", *flags, questions, "--runs=4")
    assert outcome.code == 0, outcome.err
    assert "| all questions: w = 3, E = 4 | windows | window |" in outcome.out
    assert "rejected: unparsable time 1" in outcome.out
    refused = toolbox.run("audit", *flags, questions, "--runs=4", "--bins=3")
    assert "--bins=3 is for worst cases" in refused.message


def test_questions_whose_bounds_are_chosen_are_not_audited(toolbox, tmp_path):
    path = tmp_path / "auto.yaml"
    path.write_text(
        "base_slot: 1d\nquestions: [{name: delay, statistic: mean, column: late, bounds: auto}]"
    )
    outcome = toolbox.run("audit", ASKED, f"--questions={path}", "--runs=4")
    assert outcome.code == 2
    assert "question 'delay' has bounds: auto" in outcome.message
