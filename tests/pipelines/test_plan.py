"""`streamveil plan`: what is told of expected errors, and what is refused in one line."""

import re

import pytest

from streamveil.pipelines import plan

QUESTIONS = """
base_slot: 1h
questions:
  - {name: places, value: place, domain: [cafe, park, zoo], mechanism: uniform, weight: 2}
  - {name: delay, slot: 3h, statistic: mean, column: delay, lower: -30, upper: 180}
  - {name: late, slot: 6h, statistic: quantiles, column: delay, edges: [0, 10, 60],
     quantiles: [0.5, 0.95], share: 0.25}
"""


@pytest.fixture
def run(toolbox, tmp_path):
    file = tmp_path / "questions.yaml"
    file.write_text(QUESTIONS)

    def run(*flags, text=None):
        if text is not None:
            file.write_text(text)
        given = ("--default_requirement=6,1,2000", *flags)
        return toolbox.run("plan", f"--questions={file}", *given)

    return run


@pytest.mark.slow  # three questions are simulated
def test_errors_shares_and_the_epsilon_that_is_needed_are_told(run):
    outcome = run("--rate=400,late:100", "--drift=0", "--wanted=places:50,late:5")
    assert outcome.code == 0, outcome.err
    rows = [line.split(" | ") for line in outcome.out.splitlines() if line.startswith("| ")]
    assert [(row[0], row[1], row[2]) for row in rows[2:]] == [
        ("| places", "1h", "count"),
        ("| delay", "3h", "mean"),
        ("| late", "6h", "p50"),
        ("| late", "6h", "p95"),
    ]
    for row in rows[2:4]:
        error, half, twice = (float(cell.strip(" |").replace(",", "")) for cell in row[4:])
        assert half > error > twice
    assert rows[4][3] == "25.0%"
    assert "400 events in 1h" in outcome.out
    assert "assumed for late: 100 events" in outcome.out
    assert "asked for: epsilon 1 over 6 base slots; 2,000 users (a guess)" in outcome.out
    assert re.search(r"^places: for an error of 50, .* [\d.]+ times what it is", outcome.out, re.M)
    assert re.search(r"^late: for an error of 5, .* over 6 base slots$", outcome.out, re.M)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--wanted=places",), "write QUESTION:ERROR, such as places:10"),
        (("--wanted=place:3",), "there is no question 'place': choose one of places, delay, late"),
        (("--wanted=places:0",), "give an error above 0"),
        (("--rate=5,5",), "--rate=5,5 has two numbers for all questions: give one"),
        (("--rate=late:1,5,late:2",), "has two numbers for question 'late': give one"),
        (("--rate=many",), "'many' is no number"),
        (("--rate=0",), "the rate is 0: give the number of events"),
        (("--rate=5,place:3",), "there is no question 'place'"),
        (("--drift=2",), "the drift is 2: give by what part"),
        (("--long_drift=late:-1",), "question 'late': the long drift is -1: give by what part"),
        (("--chance=nan",), "the chance is nan: give the variance"),
        (("--default_requirement=",), "nobody's requirements are known"),
    ],
)
def test_what_cannot_be_planned_is_told_in_one_line(run, flags, words):
    outcome = run(*flags)
    assert outcome.code == 2
    assert words in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("base_slot: [1h", "is not YAML: line 1"),
        (
            "base_slot: 1h\nbase_slot: 2h\n",
            "line 2, column 1: the key 'base_slot' is written twice",
        ),
        ("base_slot: 1h\n", "questions is missing"),
        ("base_slot: 2001-02-30\n", "is not YAML: "),
        ("", "it is empty: write base_slot and questions"),
    ],
)
def test_a_file_of_questions_that_is_none_is_told_in_one_line(run, text, words):
    outcome = run(text=text)
    assert outcome.code == 2
    assert words in outcome.err
    assert "questions.yaml" in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_file_that_is_not_there_and_no_file_at_all(toolbox):
    asked = "--default_requirement=6,1,2000"
    outcome = toolbox.run("plan", "--questions=gone.yaml", asked)
    assert "file of questions gone.yaml does not exist" in outcome.err
    assert "--questions is missing" in toolbox.run("plan", asked).err


def test_numbers_are_for_all_questions_or_for_one(tmp_path):
    (tmp_path / "q.yaml").write_text(QUESTIONS)
    portfolio = plan.read_questions(str(tmp_path / "q.yaml"))
    of = plan._by_question
    assert of("rate", None, portfolio, 7.0) == [7.0, 7.0, 7.0]
    assert of("rate", "5", portfolio, 7.0) == [5.0, 5.0, 5.0]
    assert of("rate", "late:1,5", portfolio, 7.0) == [5.0, 5.0, 1.0]
    assert of("rate", "late:1", portfolio, 7.0) == [7.0, 7.0, 1.0]


def test_bounds_that_nobody_knows_cannot_be_planned(run):
    asked = "{name: a, statistic: mean, column: b, bounds: auto}"
    outcome = run(text=f"base_slot: 1h\nquestions: [{asked}]\n")
    assert outcome.code == 2
    assert "question 'a' has bounds: auto, and without bounds nobody knows" in outcome.err
    assert outcome.err.count("\n") == 1
