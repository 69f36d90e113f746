"""Files of queries: what is read of them, and what a refusal says."""

import datetime as dt

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from streamveil.mechanisms import Categories, ConfigurationError, Edges, Grid, Slots
from streamveil.mechanisms.core.domains import WithOther
from streamveil.mechanisms.core.records import DISTINCT, MICROSECONDS, MONDAY, parse_time
from streamveil.mechanisms.queries.bounds import AutoBounds
from streamveil.mechanisms.queries.conditions import Condition
from streamveil.mechanisms.queries.definitions import STATISTICS
from streamveil.mechanisms.queries.queries import EVERYTHING, Query, QuerySet
from streamveil.mechanisms.queries.reading import query_set_of
from streamveil.mechanisms.queries.statistics import Count, Mean, Quantiles, TopK, log_edges
from streamveil.mechanisms.queries.trees import Tree

CONTRACT = """
slot: 1h
queries:
  - {name: places, by: dest, keys: [ORD, ATL], every: 1h, weight: 2}
  - {name: delay, by: carrier, keys: [AA, UA], every: 1d, statistic: mean, of: dep_delay, \
bounds: [-30, 180]}
  - {name: late, every: 1w, statistic: quantiles, of: dep_delay, edges: [-30, 0, 15, 60, 180], \
quantiles: [0.5, 0.95]}
"""


def read(text, **options):
    return query_set_of(yaml.safe_load(text), **options)


def one(keys, base="1h"):
    """The query of a file with one, whose keys are given."""
    (query,) = read(f"slot: {base}\nqueries:\n  - {{{keys}}}\n")
    return query


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
    assert read(CONTRACT) == QuerySet(
        Slots(MICROSECONDS["h"], MONDAY),
        (
            Query("places", hours, ("dest",), Categories(("ORD", "ATL")), weight=2),
            Query("delay", days, ("carrier",), Categories(("AA", "UA")), mean),
            Query("late", weeks, statistic=quantiles),
        ),
    )


def test_weeks_begin_on_mondays_and_days_at_midnight():
    query_set = read(CONTRACT)
    _, days, weeks = map(query_set.slots_of, query_set)
    monday, tuesday = parse_time("2024-04-01"), parse_time("2024-04-02")
    assert weeks.start(weeks.index(tuesday)) == monday
    assert days.start(days.index(tuesday + 5)) == tuesday
    assert query_set.base.start(168 * weeks.index(monday)) == monday
    assert read("{slot: 1h, queries: [{name: a, every: 7d}]}").base.origin == 0


@pytest.mark.parametrize(
    ("keys", "field", "value"),
    [
        ("by: a, keys: [1, x, '007']", "domain", Categories(("1", "x", "007"))),
        ("by: a, keys: 'x, y'", "domain", Categories(("x", "y"))),
        ("by: a, keys: 'x, \"y, z\"'", "domain", Categories(("x", "y, z"))),
        ("by: a, keys: [x, 'y ']", "domain", Categories(("x", "y "))),
        ("by: a, keys: 'edges:0,1.5'", "domain", Edges((0, 1.5))),
        ("by: a, keys: {edges: [0, 1.5]}", "domain", Edges((0, 1.5))),
        ("by: [x, y], keys: {grid: [4, 50, 5, 51, 3, 2]}", "domain", Grid(4, 50, 5, 51, 3, 2)),
        ("by: 'x,y', keys: 'grid:4,50,5,51,3,2'", "value", ("x", "y")),
        ("by: a, keys: [x], other: y", "domain", WithOther(Categories(("x",)), "y")),
        ("every: 2h", "domain", EVERYTHING),
        ("every: 2h", "slots", 2),
        ("statistic: count", "slots", 1),
        ("statistic: count", "statistic", Count()),
        ("statistic: top, k: 1", "statistic", TopK(1)),
        (
            "statistic: quantiles, of: a, edges: {lower: 1, upper: 100, intervals: 4}",
            "statistic",
            Quantiles("a", log_edges(1, 100, 4)),
        ),
        (
            "statistic: mean, of: a, bounds: auto",
            "statistic",
            AutoBounds("mean", "a"),
        ),
        (
            "statistic: quantiles, of: a, bounds: auto, quantiles: [0.9]",
            "statistic",
            AutoBounds("quantiles", "a", quantiles=(0.9,)),
        ),
        ("where: {kind: car}", "where", (Condition("kind", ("car",)),)),
        ("where: {kind: ' car '}", "where", (Condition("kind", (" car ",)),)),
        ("where: {year: [2023, 2024]}", "where", (Condition("year", ("2023", "2024")),)),
        ("where: {km: {from: 1, to: 2.5}}", "where", (Condition("km", low=1, high=2.5),)),
        (
            "where: {km: {to: 0}, kind: car}",
            "where",
            (Condition("km", high=0), Condition("kind", ("car",))),
        ),
        ("by: a, keys: [x, y], levels: all", "tree", Tree((("all", "all"),))),
        (
            "by: a, keys: [x, y, z], levels: [{1: [z, x], w: [y]}, all]",
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
        **{"by": "x", "keys": np.array(["a", "b"]), "weight": np.float64(2)},
        **{"statistic": "quantiles", "of": "n", "edges": np.linspace(0, 4, 5)},
        **{"quantiles": np.array([0.5]), "max_contributions": np.int64(3)},
    }
    plain = {
        **{"by": "x", "keys": ["a", "b"], "weight": 2.0},
        **{"statistic": "quantiles", "of": "n", "edges": [0, 1, 2, 3, 4]},
        **{"quantiles": [0.5], "max_contributions": 3},
    }
    cut = {"by": "n", "keys": {"edges": np.array([0.0, 1.5])}}
    asked, meant = (
        query_set_of({"slot": "1h", "queries": [{"name": "q", **one}, {"name": "r", **more}]})
        for one, more in ((given, cut), (plain, {"by": "n", "keys": {"edges": [0, 1.5]}}))
    )
    assert asked == meant
    assert asked.identity() == meant.identity()
    with pytest.raises(ConfigurationError, match="keys is empty"):
        query_set_of({"slot": "1h", "queries": [{"name": "q", "keys": np.array([])}]})


def test_keys_as_text_are_read_with_the_name_of_its_column():
    asked = []

    def read_domain(text, column):
        asked.append((text, column))
        return Categories((text,))

    read(
        "{slot: 1h, queries: [{name: a, by: dest, keys: airports.txt}]}",
        read_domain=read_domain,
    )
    assert asked == [("airports.txt", "dest")]


@pytest.mark.parametrize("statistic", STATISTICS)
def test_every_statistic_is_called_what_it_is_called_in_files(statistic):
    keys = {
        "count": "",
        "distinct": "",
        "quantiles": "of: a, edges: [0, 1]",
        "top": "k: 1, by: a, keys: [x, y]",
    }.get(statistic, "of: a, bounds: [0, 1]")
    assert one(f"name: q, statistic: {statistic}, {keys}").statistic.name == statistic


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "the file of queries is [1, 2]: write a mapping"),
        ("", "it is empty: write slot and queries"),
        ("{slot: 1h}", "queries is missing"),
        ("{queries: [{name: a}]}", "slot is missing"),
        ("{slots: 1h, queries: []}", "'slots' is unknown: did you mean slot?"),
        ("{slot: 1h, queries: []}", "the query set has no queries: ask at least one"),
        ("{slot: 1h, queries: {name: a}}", "queries is {'name': 'a'}: write a list"),
        ("{slot: 3600, queries: [{name: a}]}", "slot is 3600: write a length with"),
        ("{slot: 1x, queries: [{name: a}]}", "slot: slot length '1x'"),
        ("{slot: 0h, queries: [{name: a}]}", "slot: slot length '0h'"),
        ("{slot: 1h, queries: [{}]}", "query 1 of the list is {}: write a mapping"),
        ("{slot: 1h, queries: [{name: a}, ]}", None),
        ("{slot: 1h, queries: [{name: a}, null]}", "query 2 of the list is None"),
        ("{slot: 1h, queries: [{slot: 1d}]}", "query 1 of the list: it has no name: give"),
        ("{slot: 1h, queries: [{name: no}]}", "query 1 of the list: query name False"),
        ("{slot: 1h, queries: [{name: a/b}]}", "query name 'a/b' cannot be that of a"),
        ("{slot: 1h, queries: [{name: a}, {name: a}]}", "two queries are called 'a'"),
        ("{slot: 1h, queries: [{name: a}, {name: A}]}", "'a' and 'A' differ only in upper"),
        (
            "{slot: 1h, queries: [{name: a, share: 0.7}, {name: b, share: 0.4}]}",
            "the shares add up to 1.1, more than the whole budget",
        ),
        (
            "{slot: 1h, queries: [{name: a, share: 1}, {name: b}]}",
            "the shares add up to 1, which leaves nothing for query 'b'",
        ),
        ("{slot: 100d, queries: [{name: a, every: 40000d}]}", "query 'a': every: slot"),
    ],
)
def test_faults_of_a_file_are_reported(text, message):
    if message is None:
        assert len(read(text).queries) == 1
    else:
        assert message in refused(text)


MEAN = "statistic: mean, of: a"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("sloth: 1h", "the key 'sloth' is unknown: write every"),
        ("Lower: 1", "the key 'Lower' is unknown: write bounds: [LOW, HIGH]"),
        ("titel: x", "the key 'titel' is unknown: did you mean title?"),
        ("zzz: 1", "the key 'zzz' is unknown: known are name, by, keys"),
        ("5: 1", "the key 5 is unknown"),
        ("every: null", "every is empty: write a value, or leave every out"),
        ("keys: []", "keys is empty"),
        ("where: {}", "where is empty"),
        ("every: 90m", "every is 90m, which is not a multiple of slot 1h: write 1h or 2h"),
        ("every: 30m", "every is 30m, which is not a multiple of slot 1h: write 1h, or"),
        ("every: 24", "every is 24: write a length with its unit"),
        ("every: -1h", "every: slot length '-1h'"),
        # Values and domains.
        ("by: a", "the keys of a are missing: give the public values"),
        ("keys: [x]", "it has keys, but no column that has them as values: name the column"),
        ("by: [a, b], keys: [x]", "the values of one column are counted (given: a, b)"),
        ("by: a, keys: {grid: [4, 50, 5, 51, 3, 2]}", "a grid reads two columns (given: a)"),
        ("by: yes, keys: [x]", "by is True: write a list"),
        ("by: [1], keys: [x]", "by is 1: write text, in quotes"),
        ("by: a, keys: [1.5, 2]", "keys is 1.5: values are text or whole numbers"),
        ("by: a, keys: [.nan]", "keys is nan: values are text or whole numbers"),
        ("by: a, keys: [2024-01-01]", "keys is datetime.date(2024, 1, 1): write text"),
        ("by: a, keys: [x, null]", "keys is None: write text"),
        ("by: a, keys: [x, x]", "keys: the domain lists the bin 'x' twice"),
        ("by: a, keys: 7", "keys is 7: write a list"),
        (
            "by: a, keys: {edges: [0, .nan]}",
            "keys: number 2 of edges is nan: write",
        ),
        (
            "by: a, keys: {edges: [0, .inf]}",
            "keys: number 2 of edges is inf: write",
        ),
        ("by: a, keys: {edges: [0, '1']}", "keys: number 2 of edges is '1': write a number"),
        ("by: a, keys: {edges: [2, 1]}", "keys: numeric edges must rise strictly"),
        ("by: a, keys: {edge: [2, 1]}", "the key 'edge' is unknown: did you mean edges?"),
        ("by: a, keys: {grid: [1, 2]}", "keys: grid is [1, 2]: write [WEST, SOUTH"),
        ("by: a, keys: {grid: [4, 50, 5, 51, 3.5, 2]}", "grid: COLUMNS is 3.5: give a whole"),
        ("by: a, keys: {grid: [5, 50, 4, 51, 3, 2]}", "must be west < east"),
        ("by: a, keys: [x], other: x", "keys: the bin for other values cannot be called"),
        (
            "other: x",
            "other is 'x', the key of values that are none of the keys, and there are no keys",
        ),
        # Statistics.
        ("statistic: meen", "statistic is 'meen': did you mean mean?"),
        ("statistic: median", "statistic is 'median': write statistic: quantiles with edges, and"),
        ("statistic: Average", "statistic is 'Average': write mean"),
        ("statistic: zzz", "statistic is 'zzz': choose one of count, distinct, sum"),
        ("statistic: no", "statistic is False: choose one of"),
        (
            "statistic: mean, bounds: [0, 1]",
            "of is missing, the column of numbers that the statistic mean needs",
        ),
        (
            "statistic: mean, of: a",
            "bounds are missing, which the statistic mean needs: write bounds: [LOW, HIGH], or",
        ),
        ("statistic: mean, of: 5, bounds: [0, 1]", "of is 5: write text"),
        (
            "statistic: mean, of: a, bounds: [1, 0]",
            "bounds are [1, 0]: write the smaller number first",
        ),
        (
            "statistic: mean, of: a, bounds: [x, 0]",
            "number 1 of bounds is 'x': write a number without",
        ),
        ("statistic: mean, of: a, bounds: [1e3, 0]", "YAML reads 1.0e+3 as one, not 1e3"),
        ("statistic: mean, of: a, bounds: [.nan, 0]", "number 1 of bounds is nan: write a finite"),
        ("statistic: mean, of: a, bounds: [0, .inf]", "number 2 of bounds is inf: write a finite"),
        ("statistic: mean, of: a, bounds: [no, 1]", "number 1 of bounds is False: write a finite"),
        ("of: a", "of is for the statistics sum, mean, variance, stddev, quantiles, and"),
        ("statistic: sum, of: a, bounds: [0, 1], k: 2", "k is for the statistics top, and"),
        ("statistic: top, by: a, keys: [x], k: 0", "k is 0: give a whole number, 1 or more"),
        ("statistic: top, by: a, keys: [x], k: yes", "k is True: give a whole number"),
        ("statistic: quantiles, of: a", "edges are missing: write either edges, such as"),
        ("statistic: quantiles, of: a, edges: 5", "edges is 5: write a list"),
        ("statistic: quantiles, of: a, edges: [1, 0]", "numeric edges must rise strictly"),
        (
            "statistic: quantiles, of: a, edges: [0, 1], quantiles: [50]",
            "quantile 50 is not between 0 and 1",
        ),
        (
            "statistic: quantiles, of: a, edges: {lower: 0, upper: 9, intervals: 2}",
            "edges: log-spaced edges from 0 to 9",
        ),
        (
            "statistic: quantiles, of: a, edges: {lower: 1, upper: 9}",
            "edges: intervals is missing",
        ),
        ("statistic: sum, of: a, bounds: wide", "bounds is 'wide': write [LOW, HIGH], or auto"),
        (
            "statistic: sum, bounds: auto",
            "of is missing, the column of numbers that the statistic sum needs",
        ),
        ("statistic: sum, of: a, bounds: [1]", "bounds is [1]: write [LOW, HIGH], or auto"),
        ("statistic: sum, of: a, bounds: [0, 1, 2]", "bounds is [0, 1, 2]: write [LOW, HIGH]"),
        ("statistic: sum, of: a, bounds: 5", "bounds is 5: write [LOW, HIGH], or auto"),
        (
            "statistic: sum, of: a, bounds: [0, 1.0e-80]",
            "lower is 0 and upper is 1e-80: they are too close together",
        ),
        (
            "statistic: quantiles, of: a, bounds: wide",
            "bounds is 'wide': write [LOW, HIGH] or auto, or edges in place of bounds",
        ),
        (
            "statistic: quantiles, of: a, bounds: [0, 1], edges: [0, 1]",
            "both edges and bounds are given: write either",
        ),
        ("statistic: top, by: a, keys: [x, y]", "k is missing, the number of keys to name"),
        ("statistic: sum, of: a, bounds: auto, k: 5", "k is for the statistics top, and"),
        (
            "bounds: auto",
            "bounds is for the statistics sum, mean, variance, stddev, quantiles, and not for",
        ),
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
        ("levels: all", "levels are groups of keys, and there are none: give keys"),
        ("by: a, keys: [x, y], levels: [{g: [x]}]", "levels: 'y' is in none of 'g'"),
        (
            "by: a, keys: [x, y], levels: [{g: [x, y], h: [y]}]",
            "levels: 'y' is listed in 'g' and in 'h'",
        ),
        ("by: a, keys: [x, y], levels: [{g: [x, z]}]", "levels: 'g' lists 'z', which is neit"),
        ("by: a, keys: [x, y], levels: [{x: [x, y]}]", "levels: the group 'x' is called as a"),
        ("by: a, keys: [x, y], levels: [al]", "levels is 'al': write what is in each group"),
        ("by: a, keys: [x, y], levels: [{g: x}]", "levels: g is 'x': write a list"),
        ("by: a, keys: [x, y], levels: [all, all]", "'all' names groups of two levels"),
        # What a query checks itself.
        ("mechanism: best", "mechanism 'best' is unknown: choose one of adaptive"),
        ("mechanism: gated", "mechanism 'gated' is for lifetime budgets"),
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
        pytest.param(f"{MEAN}, bounds: [{10**400}, 1]", "write a finite number", id="long low"),
        pytest.param(f"where: {{a: {{to: {10**400}}}}}", "write a finite number", id="long bound"),
        (r'by: a, keys: [x, "\ud83d"]', "it has half of a character"),
        ("by: a, keys: !!binary aGVsbG8=", "keys is b'hello': write a list"),
        (
            "by: [a, b], keys: {grid: [0, 0, 1, 1, 3000, 3000]}",
            "its histogram has 9,000,000 cells, and at most 4,194,304 can be counted",
        ),
        (
            "statistic: quantiles, of: a, quantiles: [0.5], edges: {lower: 1, upper: 2, "
            "intervals: 1000000000}",
            "edges: there are 1,000,000,000 intervals, and each takes noise of its own: give at "
            "most 1,024",
        ),
        (
            'by: a, keys: [x, y], levels: {"g\\nh": [x]}',
            "levels: 'y' is in none of 'g\\nh': put it in one",
        ),
        ("share: 1.5", "share is 1.5: give a number above 0 and at most 1"),
        ("share: .nan", "share is nan: give a number above 0 and at most 1"),
        ("share: yes", "share is True: give a number above 0 and at most 1"),
    ],
)
def test_faults_of_a_query_are_reported_with_its_name(keys, message):
    error = refused(f"slot: 1h\nqueries:\n  - {{name: asked, {keys}}}\n")
    assert error.startswith("query 'asked': ")
    assert error.count("query 'asked'") == 1
    assert message in error


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("value", "by"),
        ("domain", "keys"),
        ("slot", "every"),
        ("times", "rollups"),
        ("column", "of"),
        ("lower", "bounds: [LOW, HIGH]"),
        ("upper", "bounds: [LOW, HIGH]"),
        ("group_by", "by"),
        ("filter", "where"),
    ],
)
def test_a_key_that_was_renamed_is_refused_with_its_new_name(key, remedy):
    message = refused(f"{{slot: 1h, queries: [{{name: a, {key}: 1d}}]}}")
    assert message == f"query 'a': the key {key!r} is unknown: write {remedy}"


def test_a_base_slot_is_now_called_slot():
    message = refused("{base_slot: 1h, queries: [{name: a}]}")
    assert message == "the key 'base_slot' is unknown: write slot"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{slot: 1 month, queries: [{name: a}]}",
            "slot is '1 month': write calendar months as 1mo, 3mo for a quarter, and years as 1y",
        ),
        (
            "{slot: 1mo, queries: [{name: a, every: 45d}]}",
            "query 'a': every is 45d, which is not a multiple of slot 1mo: write 1mo or 2mo, or "
            "choose another slot",
        ),
        (
            "{slot: 2mo, queries: [{name: a, every: 3mo}]}",
            "query 'a': every is 3mo, which is not a multiple of slot 2mo: write 2mo or 4mo, or "
            "choose another slot",
        ),
        (
            "{slot: 1mo, queries: [{name: a, rollups: 1w}]}",
            "query 'a': rollups: 1w is not made of two or more whole times of 1mo, which the "
            "query's slots have: write such as 2mo, from the shortest to the longest, or leave it "
            "out",
        ),
        (
            "{slot: 1d, queries: [{name: a, rollups: [1 month]}]}",
            "query 'a': rollups is '1 month': write calendar months as 1mo, 3mo for a quarter, and "
            "years as 1y",
        ),
        (
            "{slot: 1d, queries: [{name: a, every: 101y}]}",
            "query 'a': every: slots cannot have 1212 months: write from one month to a hundred "
            "years, such as 1mo, 3mo or 1y",
        ),
        (
            "{slot: 1d, queries: [{name: a, every: 0mo}]}",
            "query 'a': every: slots cannot have 0 months: write from one month to a hundred "
            "years, such as 1mo, 3mo or 1y",
        ),
        (
            "{slot: 1w, queries: [{name: a, every: 1mo}]}",
            "query 'a': slots of 1mo are made of whole days, and base slots of 1w are not parts of "
            "a day: choose base slots of 1d, or of a part of it such as 1h",
        ),
        (
            "{slot: 7h, queries: [{name: a, rollups: 1y}]}",
            "query 'a': slots of 1y are made of whole days, and base slots of 7h are not parts of "
            "a day: choose base slots of 1d, or of a part of it such as 1h",
        ),
        (
            "{slot: 1d, queries: [{name: a, every: 1w, rollups: 1mo}]}",
            "query 'a': rollups: 1mo is not made of two or more whole times of 1w, which the "
            "query's slots have: write such as 4w, from the shortest to the longest, or leave it "
            "out",
        ),
        (
            "{slot: 1d, queries: [{name: a, every: 2mo, rollups: [3mo]}]}",
            "query 'a': rollups: 3mo is not made of two or more whole times of 2mo, which the "
            "query's slots have: write such as 4mo, from the shortest to the longest, or leave it "
            "out",
        ),
    ],
)
def test_months_that_do_not_fit_are_refused_in_words(text, message):
    assert refused(text) == message


def test_title_and_unit_are_text_for_people_and_change_no_identity():
    plain, titled = one("name: a"), one("name: a, title: Late buses, unit: minutes")
    assert (titled.title, titled.unit, titled.heading, plain.heading) == (
        *("Late buses", "minutes"),
        *("Late buses", "a"),
    )
    assert titled.identity() == plain.identity()
    for keys, message in {
        "title: 5": "title is 5: write text",
        'title: "a\\nb"': "title is 'a\\nb': write one line of at most 200 characters",
        f"unit: {'u' * 41}": "write one line of at most 40 characters",
    }.items():
        assert message in refused(f"{{slot: 1h, queries: [{{name: a, {keys}}}]}}")
    twice = refused("{slot: 1h, queries: [{name: a, title: b}, {name: b}]}")
    assert twice == "two queries are headed 'b' on pages: give one of them another title"


def test_bounds_of_quantiles_are_the_outer_ones_of_32_even_intervals():
    asked = one("name: a, statistic: quantiles, of: b, bounds: [0, 64]").statistic
    assert asked == Quantiles("b", tuple(range(0, 65, 2)), (0.5,))
    odd = one("name: a, statistic: quantiles, of: b, bounds: [0.1, 0.7]").statistic
    assert (len(odd.edges), odd.edges[0], odd.edges[-1]) == (33, 0.1, 0.7)


def test_a_long_value_is_cut():
    domain = [[n] for n in range(100)]
    message = refused(f"{{slot: 1h, queries: [{{name: a, where: {domain}}}]}}")
    assert "where is [[0], [1]" in message
    assert len(message) < 200


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
    *("name", "by", "keys", "other", "null", "every", "rollups", "where", "levels", "statistic"),
    *("of", "bounds", "edges", "quantiles", "k", "mechanism", "max_contributions", "keep"),
    *("weight", "share", "title", "unit", "sloth", "value"),
)
WHOLE = (
    {"name": "a", "by": "b", "keys": ["x", "y"], "levels": ["all"], "where": {"c": "d"}},
    {"name": "a", "statistic": "mean", "of": "b", "bounds": [0, 1]},
    {"name": "a", "statistic": "quantiles", "of": "b", "edges": [0, 1]},
    {"name": "a", "statistic": "top", "by": "b", "keys": ["x", "y"], "k": 1},
)


@pytest.mark.property
@given(
    st.sampled_from(WHOLE),
    st.dictionaries(st.sampled_from(KEYS), ANYTHING, min_size=1, max_size=2),
    st.just("1h") | ANYTHING,
)
def test_whatever_is_written_is_read_or_refused_in_one_line(query, changes, base):
    text = ""
    try:
        query_set_of({"slot": base, "queries": [{**query, **changes}]})
    except ConfigurationError as error:
        text = str(error)
    assert text.isprintable()
