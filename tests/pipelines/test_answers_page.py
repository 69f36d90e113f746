"""The page of a portfolio: a section for each question, one for the budget, and what was lost."""

import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.figure import Figure

from streamveil.io.answers import PORTFOLIO_LEDGER_SCHEMA, answer_schema
from streamveil.mechanisms.core.records import MICROSECONDS, Requirement, Slots, format_duration
from streamveil.mechanisms.portfolio.bounds import AutoBounds
from streamveil.mechanisms.portfolio.questions import Question
from streamveil.mechanisms.portfolio.reading import portfolio_of
from streamveil.pipelines.answers_charts import draw_answer
from streamveil.pipelines.answers_page import context, write_answers_page
from streamveil.pipelines.answers_report import AnswersReport, QuestionFigures, meets_parts

DAY = MICROSECONDS["d"]
BOLD = "<b>bold</b>"
PORTFOLIO = portfolio_of(
    {
        "base_slot": "1d",
        "questions": [
            {"name": "places", "value": "place", "domain": [BOLD, *"BCDEFGHIJKL"], "share": 0.25},
            {
                "name": "late",
                "slot": "2d",
                "statistic": "quantiles",
                "column": "delay",
                "edges": [-30, 0, 60],
                "quantiles": [0.5, 0.9],
                "where": {"kind": ["bus", "tram"], "delay": {"from": -30}},
                "max_contributions": 3,
                "share": 0.5,
            },
        ],
    }
)
# Question, first and last base slot, and what it cost users with 1 over 2 days and 4 over 3.
CHARGES = [
    *(("places", 10, 10, (0.25, 0.5)), ("places", 11, 11, (0.25, 0.5))),
    *(("late", 10, 11, (0.5, 1.0)), ("places", 12, 12, (0.125, 0.5))),
    *(("places", 13, 13, (0.25, 0.5)), ("late", 12, 13, (0.125, 1.5))),
]
LOST = {
    "read": 1234,
    "rejected": {"null user": 12},
    "questions": {
        "places": {"counted": 900, "beyond_bound": 45, "unread": {"value out of domain": 67}},
        "late": {"counted": 800, "beyond_bound": 0, "unread": {}},
    },
}


def figures(question, values):
    """Answers from day 10 on, values of shape (slots, bins, figures)."""
    slots = PORTFOLIO.slots_of(question)
    return QuestionFigures.of(question, slots, as_table(question, values))


def as_table(question, values, spread=2.0):
    slots = PORTFOLIO.slots_of(question)
    labels, outputs = question.tree.labels(question.domain), question.statistic.outputs
    count = len(labels) * len(outputs)
    first = 10 // question.slots
    numbers = np.repeat(np.arange(first, first + len(values)), count)
    flat = np.asarray(values, float).ravel()
    columns = {
        "slot": numbers,
        "start": slots.origin + numbers * slots.length,
        "end": slots.origin + (numbers + 1) * slots.length,
        "length": np.full(len(flat), format_duration(slots.length), object),
        "bin": np.tile(np.repeat(np.array(labels, object), len(outputs)), len(values)),
        "level": np.zeros(len(flat), np.int64),
        "statistic": np.tile(np.array(outputs, object), len(labels) * len(values)),
        "value": flat,
        "stderr": np.full(len(flat), spread),
        "low": flat - spread,
        "high": flat + spread,
        "status": np.full(len(flat), "published", object),
        "note": np.full(len(flat), None, object),
        "clipping": np.zeros(len(flat)),
    }
    schema = answer_schema(question)
    return pa.table({f.name: pa.array(columns[f.name], f.type) for f in schema}, schema=schema)


def ledger():
    rows = [
        (name, first, last, window, epsilon, users, spent, 0.0)
        for name, first, last, both in CHARGES
        for (window, epsilon, users), spent in zip([(2, 1.0, 30), (3, 4.0, 5)], both, strict=True)
    ]
    columns = zip(*rows, strict=True)
    arrays = map(pa.array, columns, PORTFOLIO_LEDGER_SCHEMA.types)
    made = pa.Table.from_arrays(list(arrays), schema=PORTFOLIO_LEDGER_SCHEMA)
    most = pa.array([1.0, 4.0] * len(CHARGES))
    return made.set_column(made.num_columns - 1, "spent_in_window", most)


@pytest.fixture(scope="module")
def report():
    places, late = PORTFOLIO
    rising = np.arange(4 * 12).reshape(4, 12, 1)
    told = {
        "places": figures(places, rising),
        "late": figures(late, [[[-1.5, 30.0]], [[-2.5, 1234.5]]]),
    }
    return AnswersReport(PORTFOLIO, told, {"places": 0.25, "late": 0.5}, ledger(), LOST)


@pytest.fixture(scope="module")
def html(report, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "answers.html"
    write_answers_page(report, str(path))
    return path.read_text(encoding="utf-8")


def test_a_charge_counts_in_every_window_that_meets_its_slot(report):
    """By hand: days 10 to 13 on the left, the shares of 1 over windows of two days."""
    use = report.use_of(Requirement(2, 1.0))
    assert use.users == 30
    assert use.by_question.tolist() == [[0.25, 0.5, 0.375, 0.375], [0.5, 0.5, 0.625, 0.125]]
    assert use.together.max() == report.largest_use[Requirement(2, 1.0)] == 1
    three = report.use_of(Requirement(3, 4.0))
    assert (4 * three.by_question).tolist() == [[0.5, 1.0, 1.5, 1.5], [1.0, 1.0, 2.5, 2.5]]
    with pytest.raises(KeyError):
        report.use_of(Requirement(9, 9.0))


# What a look at bounds costs is in every window, and in no row of the ledger.
def test_a_look_at_bounds_is_part_of_what_was_spent(report):
    places, late = PORTFOLIO
    looking = Question("looking", statistic=AutoBounds("sum", "delay"))
    made = replace(report, portfolio=replace(PORTFOLIO, questions=(places, late, looking)))
    for asked, share in ((Requirement(2, 1.0), 0.05), (Requirement(3, 4.0), 0.0125)):
        use = made.use_of(asked)
        assert use.aside == pytest.approx(share)
        np.testing.assert_allclose(use.together, use.by_question.sum(axis=0) + share)
        assert report.use_of(asked).aside == 0
    figured = replace(made, portfolio=PORTFOLIO)
    object.__setattr__(figured, "_aside", made._aside)
    (*_, (_, names, mean)) = context(figured)["budget"]["questions"]
    assert names == "the look at bounds"
    assert mean == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("base", "window", "words"), [("1d", "2 days", "days"), ("6h", "2 slots of 6h", "slots of 6h")]
)
def test_windows_are_told_in_base_slots(report, base, window, words):
    budget = context(replace(report, portfolio=replace(PORTFOLIO, base=Slots.of(base))))["budget"]
    assert budget["window"] == window
    assert budget["base"] == words


def test_the_largest_come_first_and_then_the_surest(report):
    places, late = (report.figures[name] for name in ("places", "late"))
    assert places.best[:3] == [11, 10, 9]
    assert places.from_zero
    assert not late.from_zero
    assert [meets_parts(question) for question in PORTFOLIO] == [False, True]


def test_charts_of_counts_begin_at_0(report):
    figure = Figure()
    draw_answer(figure, report.figures["places"], 0, slice(0, 4))
    assert figure.axes[0].get_ylim()[0] == 0
    figure = Figure()
    draw_answer(figure, report.figures["late"], 0, slice(0, 2))
    assert figure.axes[0].get_ylim()[0] < -4


def test_what_is_true_is_compared(report):
    late = report.figures["late"]
    true = late.values + np.array([[[1.0, 3.0]], [[0.5, 1.0]]])
    told = replace(late, true=true)
    assert told.covered == 0.75
    assert told.error.tolist() == [0.75, 2.0]
    assert np.isnan(late.error).all()


def test_a_section_for_each_question_and_the_budget(html):
    assert re.findall(r'<section id="([\w-]+)"', html) == [
        *("question-places", "question-late", "budget", "lost"),
    ]
    assert set(re.findall(r'<a href="#([\w-]+)"', html)) <= set(re.findall(r'\bid="([^"]+)', html))
    assert "<b>25.0%</b> of everybody" in html
    assert "Quantiles of delay. Only events with kind bus or tram and delay from -30" in html
    assert "In the unit of delay" in html
    assert "A window may have a part of a slot of 2d, so noise is for twice as many" in html
    assert html.count("so noise is for twice as many") == 1
    assert "1,234 (1,232 to 1,236)" in html
    assert "30 users with ε = 1 over\n  2 days" in html


def test_longer_times_are_told_beside_slots(report, tmp_path):
    places = replace(PORTFOLIO.questions[0], times=(2,))
    table = as_table(places, np.arange(4 * 12).reshape(4, 12, 1))
    days = as_table(replace(places, slots=2, times=()), np.full((2, 12, 1), 4321.0))
    both = pa.concat_tables([table, days])
    slots = PORTFOLIO.of_length(2)
    longer = QuestionFigures.of(places, slots, both)
    assert longer.values.shape == (2, 12, 1)
    assert QuestionFigures.of(places, PORTFOLIO.slots_of(places), both).values.shape == (4, 12, 1)
    path = tmp_path / "answers.html"
    write_answers_page(replace(report, longer={"places": [longer]}), str(path))
    html = path.read_text(encoding="utf-8")
    assert "of the slot of 2d that begins on 13 Jan 1970, all its slots together" in html
    assert "4,321 (4,319 to 4,323)" in html


# Bounds that a run chose are known from its counters; a runner without them tells none.
@pytest.mark.parametrize(
    ("counted", "words"),
    [
        ({"bounds": [0, 64]}, "Mean of delay. Numbers count from 0 to 64, as the run chose."),
        ({}, "Mean of delay. Numbers count within bounds that the run chose."),
    ],
)
def test_bounds_that_a_run_chose(counted, words):
    asked = Question("mean", statistic=AutoBounds("mean", "delay"))
    portfolio = replace(PORTFOLIO, questions=(asked,))
    told = {"mean": figures(asked, [[[2.0]]])}
    made = AnswersReport(
        portfolio, told, {"mean": 0.95}, pa.table({}), {**LOST, "questions": {"mean": counted}}
    )
    assert context(made)["questions"][0]["words"].about == words


def test_an_hour_is_told_as_one(report, tmp_path):
    hours = replace(PORTFOLIO, base=replace(PORTFOLIO.base, length=PORTFOLIO.base.length // 24))
    path = tmp_path / "answers.html"
    made = figures(PORTFOLIO.questions[0], np.ones((2, 12, 1)))
    told = replace(made, slots=hours.slots_of(PORTFOLIO.questions[0]))
    late = report.figures["late"]
    write_answers_page(
        replace(report, portfolio=hours, figures={"places": told, "late": late}), str(path)
    )
    html = re.sub(r"\s+", " ", path.read_text(encoding="utf-8"))
    assert "counts in an hour" in html
    assert "in a hour" not in html


def test_losses_are_told_and_set_apart(html):
    before, lost = html.split('<section id="lost">')
    assert "1,234 events read, of which no question could count: null user 12." in lost
    assert "<td>900</td><td>45</td>" in re.sub(r">\s+<", "><", lost)
    assert "value out of domain 67" in lost
    assert "This section is not private" in lost
    assert "null user" not in before


def test_page_is_sound_html_and_needs_nothing_else(html):
    assert not re.search(r"https?:|<script|<link|<img|<iframe|@import|@font-face", html)
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    charts = re.findall(r'<svg[^>]*role="img" aria-label="[^"]+"[^>]*><title>[^<]', html)
    assert len(charts) == html.count("<svg") == 2 * (4 + 1 + 1) + 2
    drawn = "".join(re.findall(r"<svg.*?</svg>", html, re.DOTALL))
    assert set(re.findall(r"#[0-9a-f]{6}\b", drawn)) <= {"#ffffff"}
    assert BOLD not in html


def test_without_a_ledger_and_without_answers(report, tmp_path):
    places = PORTFOLIO.questions[0]
    none = figures(places, np.empty((0, 12, 1)))
    bare = replace(report, figures={**report.figures, "places": none}, ledger=pa.table({}))
    path = tmp_path / "answers.html"
    write_answers_page(bare, str(path))
    assert "The run kept no ledger" in path.read_text(encoding="utf-8")
