"""Files of questions: what is read of them, and what a refusal says."""

import datetime as dt

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from streamveil.mechanisms import Categories, ConfigurationError, Edges, Grid, Slots
from streamveil.mechanisms.core.domains import WithOther
from streamveil.mechanisms.core.records import DISTINCT, MICROSECONDS, MONDAY, parse_time
from streamveil.mechanisms.portfolio.bounds import AutoBounds
from streamveil.mechanisms.portfolio.conditions import Condition
from streamveil.mechanisms.portfolio.questions import EVERYTHING, Portfolio, Question
from streamveil.mechanisms.portfolio.reading import STATISTICS, portfolio_of
from streamveil.mechanisms.portfolio.statistics import Count, Mean, Quantiles, TopK, log_edges
from streamveil.mechanisms.portfolio.trees import Tree

CONTRACT = """
base_slot: 1h
questions:
  - {name: places, value: dest, domain: [ORD, ATL], slot: 1h, weight: 2}
  - {name: delay, value: carrier, domain: [AA, UA], slot: 1d, statistic: mean, column: dep_delay, \
lower: -30, upper: 180}
  - {name: late, slot: 1w, statistic: quantiles, column: dep_delay, edges: [-30, 0, 15, 60, 180], \
quantiles: [0.5, 0.95]}
"""


def read(text, **options):
    return portfolio_of(yaml.safe_load(text), **options)


def one(keys, base="1h"):
    """The question of a file with one, whose keys are given."""
    (question,) = read(f"base_slot: {base}\nquestions:\n  - {{{keys}}}\n")
    return question


def refused(text):
    with pytest.raises(ConfigurationError) as caught:
        read(text)
    message = str(caught.value)
    assert message.isprintable()
    return message


def test_the_file_of_the_contract():
    hours, days, weeks = 1, 24, 168
    mean = Mean("dep_delay", -30, 180)
    quantiles = Quantiles("dep_delay", (-30, 0, 15, 60, 180), (0.5, 0.95))
    assert read(CONTRACT) == Portfolio(
        Slots(MICROSECONDS["h"], MONDAY),
        (
            Question("places", hours, ("dest",), Categories(("ORD", "ATL")), weight=2),
            Question("delay", days, ("carrier",), Categories(("AA", "UA")), mean),
            Question("late", weeks, statistic=quantiles),
        ),
    )


def test_weeks_begin_on_mondays_and_days_at_midnight():
    portfolio = read(CONTRACT)
    _, days, weeks = map(portfolio.slots_of, portfolio)
    monday, tuesday = parse_time("2024-04-01"), parse_time("2024-04-02")
    assert weeks.start(weeks.index(tuesday)) == monday
    assert days.start(days.index(tuesday + 5)) == tuesday
    assert portfolio.base.start(168 * weeks.index(monday)) == monday
    assert read("{base_slot: 1h, questions: [{name: a, slot: 7d}]}").base.origin == 0


@pytest.mark.parametrize(
    ("keys", "field", "value"),
    [
        ("value: a, domain: [1, x, '007']", "domain", Categories(("1", "x", "007"))),
        ("value: a, domain: 'x, y'", "domain", Categories(("x", "y"))),
        ("value: a, domain: 'edges:0,1.5'", "domain", Edges((0, 1.5))),
        ("value: a, domain: {edges: [0, 1.5]}", "domain", Edges((0, 1.5))),
        ("value: [x, y], domain: {grid: [4, 50, 5, 51, 3, 2]}", "domain", Grid(4, 50, 5, 51, 3, 2)),
        ("value: 'x,y', domain: 'grid:4,50,5,51,3,2'", "value", ("x", "y")),
        ("value: a, domain: [x], other: y", "domain", WithOther(Categories(("x",)), "y")),
        ("slot: 2h", "domain", EVERYTHING),
        ("slot: 2h", "slots", 2),
        ("statistic: count", "slots", 1),
        ("statistic: count", "statistic", Count()),
        ("statistic: top, k: 1", "statistic", TopK(1)),
        (
            "statistic: quantiles, column: a, edges: {lower: 1, upper: 100, intervals: 4}",
            "statistic",
            Quantiles("a", log_edges(1, 100, 4)),
        ),
        (
            "statistic: mean, column: a, bounds: auto",
            "statistic",
            AutoBounds("mean", "a"),
        ),
        ("where: {kind: car}", "where", (Condition("kind", ("car",)),)),
        ("where: {year: [2023, 2024]}", "where", (Condition("year", ("2023", "2024")),)),
        ("where: {km: {from: 1, to: 2.5}}", "where", (Condition("km", low=1, high=2.5),)),
        (
            "where: {km: {to: 0}, kind: car}",
            "where",
            (Condition("km", high=0), Condition("kind", ("car",))),
        ),
        ("value: a, domain: [x, y], levels: all", "tree", Tree((("all", "all"),))),
        (
            "value: a, domain: [x, y, z], levels: [{1: [z, x], w: [y]}, all]",
            "tree",
            Tree((("1", "w", "1"), ("all",) * 3)),
        ),
        ("mechanism: 'adaptive:cycle=24'", "mechanism", "adaptive:cycle=24"),
        ("max_contributions: 3", "max_contributions", 3),
        ("keep: distinct", "keep", DISTINCT),
        ("share: 0.25", "share", 0.25),
    ],
)
def test_keys(keys, field, value):
    assert getattr(one(f"name: q, {keys}"), field) == value


# As programs have them: the values of a column, edges from numpy, a weight that was computed.
def test_arrays_and_numbers_of_numpy_are_read_as_lists_and_numbers():
    given = {
        **{"value": "x", "domain": np.array(["a", "b"]), "weight": np.float64(2)},
        **{"statistic": "quantiles", "column": "n", "edges": np.linspace(0, 4, 5)},
        **{"quantiles": np.array([0.5]), "max_contributions": np.int64(3)},
    }
    plain = {
        **{"value": "x", "domain": ["a", "b"], "weight": 2.0},
        **{"statistic": "quantiles", "column": "n", "edges": [0, 1, 2, 3, 4]},
        **{"quantiles": [0.5], "max_contributions": 3},
    }
    cut = {"value": "n", "domain": {"edges": np.array([0.0, 1.5])}}
    asked, meant = (
        portfolio_of(
            {"base_slot": "1h", "questions": [{"name": "q", **one}, {"name": "r", **more}]}
        )
        for one, more in ((given, cut), (plain, {"value": "n", "domain": {"edges": [0, 1.5]}}))
    )
    assert asked == meant
    assert asked.identity() == meant.identity()
    with pytest.raises(ConfigurationError, match="domain is empty"):
        portfolio_of({"base_slot": "1h", "questions": [{"name": "q", "domain": np.array([])}]})


def test_a_domain_as_text_is_read_with_the_name_of_its_column():
    asked = []

    def read_domain(text, column):
        asked.append((text, column))
        return Categories((text,))

    read(
        "{base_slot: 1h, questions: [{name: a, value: dest, domain: airports.txt}]}",
        read_domain=read_domain,
    )
    assert asked == [("airports.txt", "dest")]


@pytest.mark.parametrize("statistic", STATISTICS)
def test_every_statistic_is_called_what_it_is_called_in_files(statistic):
    keys = {
        "count": "",
        "distinct": "",
        "quantiles": "column: a, edges: [0, 1]",
        "top": "k: 1, value: a, domain: [x, y]",
    }.get(statistic, "column: a, lower: 0, upper: 1")
    assert one(f"name: q, statistic: {statistic}, {keys}").statistic.name == statistic


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "the file of questions is [1, 2]: write a mapping"),
        ("", "it is empty: write base_slot and questions"),
        ("{base_slot: 1h}", "questions is missing"),
        ("{questions: [{name: a}]}", "base_slot is missing"),
        ("{base_slots: 1h, questions: []}", "'base_slots' is unknown: did you mean base_slot?"),
        ("{base_slot: 1h, questions: []}", "the portfolio has no questions: ask at least one"),
        ("{base_slot: 1h, questions: {name: a}}", "questions is {'name': 'a'}: write a list"),
        ("{base_slot: 3600, questions: [{name: a}]}", "base_slot is 3600: write a length with"),
        ("{base_slot: 1x, questions: [{name: a}]}", "base_slot: slot length '1x'"),
        ("{base_slot: 0h, questions: [{name: a}]}", "base_slot: slot length '0h'"),
        ("{base_slot: 1h, questions: [{}]}", "question 1 of the list is {}: write a mapping"),
        ("{base_slot: 1h, questions: [{name: a}, ]}", None),
        ("{base_slot: 1h, questions: [{name: a}, null]}", "question 2 of the list is None"),
        ("{base_slot: 1h, questions: [{slot: 1d}]}", "question 1 of the list has no name: give"),
        ("{base_slot: 1h, questions: [{name: no}]}", "question 1 of the list: question name False"),
        ("{base_slot: 1h, questions: [{name: a/b}]}", "question name 'a/b' cannot be that of a"),
        ("{base_slot: 1h, questions: [{name: a}, {name: a}]}", "two questions are called 'a'"),
        ("{base_slot: 1h, questions: [{name: a}, {name: A}]}", "'a' and 'A' differ in capitals"),
        (
            "{base_slot: 1h, questions: [{name: a, share: 0.7}, {name: b, share: 0.4}]}",
            "the shares add up to 1.1, more than the whole budget",
        ),
        (
            "{base_slot: 1h, questions: [{name: a, share: 1}, {name: b}]}",
            "the shares add up to 1, which leaves nothing for question 'b'",
        ),
        ("{base_slot: 100d, questions: [{name: a, slot: 40000d}]}", "question 'a': slot: slot"),
    ],
)
def test_faults_of_a_file_are_told(text, message):
    if message is None:
        assert len(read(text).questions) == 1
    else:
        assert message in refused(text)


MEAN = "statistic: mean, column: a, upper: 1"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("sloth: 1h", "the key 'sloth' is unknown: did you mean slot?"),
        ("Lower: 1", "the key 'Lower' is unknown: did you mean lower?"),
        ("zzz: 1", "the key 'zzz' is unknown: known are name, value, domain"),
        ("5: 1", "the key 5 is unknown"),
        ("slot: null", "slot is empty: write a value, or leave slot out"),
        ("domain: []", "domain is empty"),
        ("where: {}", "where is empty"),
        ("slot: 90m", "slot is '90m', which is not a multiple of base_slot 1h: write 1h or 2h"),
        ("slot: 30m", "slot is '30m', which is not a multiple of base_slot 1h: write 1h, or"),
        ("slot: 24", "slot is 24: write a length with its unit"),
        ("slot: -1h", "slot: slot length '-1h'"),
        # Values and domains.
        ("value: a", "the domain of a is missing"),
        ("domain: [x]", "it has a domain of 1 bins, but no column"),
        ("value: [a, b], domain: [x]", "a Categories domain reads 1 value column(s), not a, b"),
        ("value: a, domain: {grid: [4, 50, 5, 51, 3, 2]}", "reads 2 value column(s), not a"),
        ("value: yes, domain: [x]", "value is True: write a list"),
        ("value: [1], domain: [x]", "value is 1: write text, in quotes"),
        ("value: a, domain: [1.5, 2]", "domain is 1.5: values are text or whole numbers"),
        ("value: a, domain: [.nan]", "domain is nan: values are text or whole numbers"),
        ("value: a, domain: [2024-01-01]", "domain is datetime.date(2024, 1, 1): write text"),
        ("value: a, domain: [x, null]", "domain is None: write text"),
        ("value: a, domain: [x, x]", "domain: the domain lists the bin 'x' twice"),
        ("value: a, domain: 7", "domain is 7: write a list"),
        (
            "value: a, domain: {edges: [0, .nan]}",
            "domain: number 2 of edges is nan: write",
        ),
        (
            "value: a, domain: {edges: [0, .inf]}",
            "domain: number 2 of edges is inf: write",
        ),
        ("value: a, domain: {edges: [0, '1']}", "domain: number 2 of edges is '1': write a number"),
        ("value: a, domain: {edges: [2, 1]}", "domain: numeric edges must rise strictly"),
        ("value: a, domain: {edge: [2, 1]}", "the key 'edge' is unknown: did you mean edges?"),
        ("value: a, domain: {grid: [1, 2]}", "domain: grid is [1, 2]: write [WEST, SOUTH"),
        ("value: a, domain: {grid: [4, 50, 5, 51, 3.5, 2]}", "grid: COLUMNS is 3.5: give a whole"),
        ("value: a, domain: {grid: [5, 50, 4, 51, 3, 2]}", "must be west < east"),
        ("value: a, domain: [x], other: x", "domain: the bin for other values cannot be called"),
        ("other: x", "other is 'x', the bin of values outside the domain, and there is no domain"),
        # Statistics.
        ("statistic: meen", "statistic is 'meen': did you mean mean?"),
        ("statistic: median", "statistic is 'median': write statistic: quantiles with edges, and"),
        ("statistic: Average", "statistic is 'Average': write mean"),
        ("statistic: zzz", "statistic is 'zzz': choose one of count, distinct, sum"),
        ("statistic: no", "statistic is False: choose one of"),
        ("statistic: mean, lower: 0, upper: 1", "column is missing, which the statistic mean"),
        (
            "statistic: mean, column: a, upper: 1",
            "lower is missing, which the statistic mean",
        ),
        ("statistic: mean, column: 5, lower: 0, upper: 1", "column is 5: write text"),
        ("statistic: mean, column: a, lower: 1, upper: 0", "lower is 1 and upper is 0: give"),
        ("statistic: mean, column: a, lower: x, upper: 0", "lower is 'x': write a number without"),
        ("statistic: mean, column: a, lower: 1e3, upper: 0", "YAML reads 1.0e+3 as one, not 1e3"),
        ("statistic: mean, column: a, lower: .nan, upper: 0", "lower is nan: write a finite"),
        ("statistic: mean, column: a, lower: 0, upper: .inf", "upper is inf: write a finite"),
        ("statistic: mean, column: a, lower: no, upper: 1", "lower is False: write a finite"),
        ("column: a", "column is for the statistics sum, mean, variance, stddev, quantiles, and"),
        ("statistic: sum, column: a, lower: 0, upper: 1, k: 2", "k is for the statistics top, and"),
        ("statistic: top, value: a, domain: [x], k: 0", "k is 0: give a whole number, 1 or more"),
        ("statistic: top, value: a, domain: [x], k: yes", "k is True: give a whole number"),
        ("statistic: quantiles, column: a", "edges is missing, which the statistic quantiles"),
        ("statistic: quantiles, column: a, edges: 5", "edges is 5: write a list"),
        ("statistic: quantiles, column: a, edges: [1, 0]", "numeric edges must rise strictly"),
        (
            "statistic: quantiles, column: a, edges: [0, 1], quantiles: [50]",
            "quantile 50 is not between 0 and 1",
        ),
        (
            "statistic: quantiles, column: a, edges: {lower: 0, upper: 9, intervals: 2}",
            "edges: log-spaced edges from 0 to 9",
        ),
        (
            "statistic: quantiles, column: a, edges: {lower: 1, upper: 9}",
            "edges: intervals is missing",
        ),
        ("statistic: sum, column: a, bounds: wide", "bounds is 'wide': write auto, or give lower"),
        ("statistic: sum, bounds: auto", "column is missing, which the statistic sum needs"),
        ("statistic: sum, column: a, bounds: auto, upper: 5", "bounds is auto, and upper is 5"),
        ("statistic: sum, column: a, bounds: auto, k: 5", "k is for the statistics top, and"),
        ("bounds: auto", "bounds are for the statistics sum, mean, variance, stddev, and not for"),
        # Conditions.
        ("where: car", "where is 'car': write columns and what counts"),
        ("where: {kind: 1.5}", "where, column 'kind' is 1.5: values are text or whole numbers"),
        ("where: {kind: null}", "where, column 'kind' is None: write text"),
        ("where: {kind: []}", "where, column 'kind' is []: write a list"),
        ("where: {kind: [a, a]}", "where, column 'kind': 'a' is listed twice"),
        ("where: {no: a}", "where is False: without quotes YAML reads"),
        ("where: {km: {from: 2, to: 1}}", "where, column 'km': no number is from 2 on and below 1"),
        ("where: {km: {from: x}}", "where, column 'km': from is 'x': write a number"),
        ("where: {km: {to: .nan}}", "where, column 'km': to is nan: write a finite number"),
        ("where: {km: {form: 1}}", "where, column 'km': the key 'form' is unknown: did you mean"),
        ("where: {km: {}}", "where, column 'km': give the values that count, or the range"),
        # Levels.
        ("levels: all", "levels are groups of bins, and there are none: give a domain"),
        ("value: a, domain: [x, y], levels: [{g: [x]}]", "levels: 'y' is in none of 'g'"),
        (
            "value: a, domain: [x, y], levels: [{g: [x, y], h: [y]}]",
            "levels: 'y' is listed in 'g' and in 'h'",
        ),
        ("value: a, domain: [x, y], levels: [{g: [x, z]}]", "levels: 'g' lists 'z', which is neit"),
        ("value: a, domain: [x, y], levels: [{x: [x, y]}]", "levels: the group 'x' is called as a"),
        ("value: a, domain: [x, y], levels: [al]", "levels is 'al': write what is in each group"),
        ("value: a, domain: [x, y], levels: [{g: x}]", "levels: g is 'x': write a list"),
        ("value: a, domain: [x, y], levels: [all, all]", "'all' names groups of two levels"),
        # What a question checks itself.
        ("mechanism: best", "mechanism 'best' is unknown: choose one of adaptive"),
        ("mechanism: gated", "mechanism 'gated' is for one budget forever"),
        ("mechanism: 'adaptive:x=1'", "adaptive has no option 'x'"),
        ("mechanism: 5", "mechanism is 5, of type int: give the name of a mechanism"),
        ("max_contributions: 0", "max_contributions is 0: give a whole number, 1 or more"),
        ("max_contributions: yes", "max_contributions is True: give a whole number"),
        ("keep: all", "keep 'all' is unknown: choose uniform or distinct"),
        ("weight: 0", "weight is 0: give a number above 0"),
        ("weight: '2'", "weight is '2': give a number above 0"),
        ("weight: .inf", "weight is inf: give a number above 0"),
        ("weight: 1.0e+13", "weight is 10000000000000.0: give a number above 0, from 1e-12"),
        pytest.param(f"weight: {10**400}", "give a number above 0, from 1e-12", id="long weight"),
        pytest.param(f"share: {10**400}", "give a number above 0 and at most 1", id="long share"),
        pytest.param(f"{MEAN}, lower: {10**400}", "write a finite number", id="long lower"),
        pytest.param(f"where: {{a: {{to: {10**400}}}}}", "write a finite number", id="long bound"),
        (r'value: a, domain: [x, "\ud83d"]', "it has half of a character"),
        ("value: a, domain: !!binary aGVsbG8=", "domain is b'hello': write a list"),
        (
            "value: [a, b], domain: {grid: [0, 0, 1, 1, 3000, 3000]}",
            "its histogram has 9,000,000 cells, and at most 4,194,304 can be counted",
        ),
        (
            "statistic: quantiles, column: a, quantiles: [0.5], edges: {lower: 1, upper: 2, "
            "intervals: 1000000000}",
            "edges: there are 1,000,000,000 intervals, and each takes noise of its own: give at "
            "most 1,024",
        ),
        (
            'value: a, domain: [x, y], levels: {"g\\nh": [x]}',
            "levels: 'y' is in none of 'g\\nh': put it in one",
        ),
        ("share: 1.5", "share is 1.5: give a number above 0 and at most 1"),
        ("share: .nan", "share is nan: give a number above 0 and at most 1"),
        ("share: yes", "share is True: give a number above 0 and at most 1"),
    ],
)
def test_faults_of_a_question_are_told_with_its_name(keys, message):
    told = refused(f"base_slot: 1h\nquestions:\n  - {{name: asked, {keys}}}\n")
    assert told.startswith("question 'asked': ")
    assert told.count("question 'asked'") == 1
    assert message in told


def test_a_long_value_is_cut():
    domain = [[n] for n in range(100)]
    told = refused(f"{{base_slot: 1h, questions: [{{name: a, where: {domain}}}]}}")
    assert "where is [[0], [1]" in told
    assert len(told) < 200


# What YAML can make of a value.
PLAIN = st.sampled_from(
    [
        None,
        True,
        "",
        "x",
        "all",
        "1e3",
        "edges:1,2",
        0,
        -1,
        7,
        10**30,
        10**400,
        b"xy",
        0.5,
        float("nan"),
        dt.date.max,
    ]
)
ANYTHING = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PLAIN, inner, max_size=3),
    max_leaves=5,
)
KEYS = (
    *("name", "value", "domain", "other", "slot", "where", "levels", "statistic", "column"),
    *("lower", "upper", "edges", "quantiles", "k", "mechanism", "max_contributions", "keep"),
    *("weight", "share", "sloth", "bounds"),
)
WHOLE = (
    {"name": "a", "value": "b", "domain": ["x", "y"], "levels": ["all"], "where": {"c": "d"}},
    {"name": "a", "statistic": "mean", "column": "b", "lower": 0, "upper": 1},
    {"name": "a", "statistic": "quantiles", "column": "b", "edges": [0, 1]},
    {"name": "a", "statistic": "top", "value": "b", "domain": ["x", "y"], "k": 1},
)


@pytest.mark.property
@given(
    st.sampled_from(WHOLE),
    st.dictionaries(st.sampled_from(KEYS), ANYTHING, min_size=1, max_size=2),
    st.just("1h") | ANYTHING,
)
def test_whatever_is_written_is_read_or_refused_in_one_line(question, changes, base):
    told = ""
    try:
        portfolio_of({"base_slot": base, "questions": [{**question, **changes}]})
    except ConfigurationError as error:
        told = str(error)
    assert told.isprintable()
