"""The transform that users put between source and sink: one for a count and for query sets."""

import dataclasses
import datetime as dt

import apache_beam as beam
import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.io import RESULT_SCHEMA
from streamveil.mechanisms.core.records import Lifetime
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.queries.reading import query_set
from streamveil.transforms import PrivateQueries
from streamveil.transforms.release_plan import PrivateAnswers, PrivateHistograms

KEY = bytes(range(32))
DAYS = {"start": "2024-05-01", "end": "2024-05-08"}
ASKED = {"user": "user", "time": "time", "slot": "1d", **DAYS}
EVENTS = [
    {"user": f"u{n}", "place": ("cafe", "park")[n % 2], "delay": n % 9, "time": f"2024-05-0{d}"}
    for n in range(40)
    for d in range(1, 8)
    if (n + d) % 3
]
VISITS = sv.count("visits", by="place", keys=["cafe", "park"])
DELAY = sv.mean("delay", of="delay", bounds=(0, 9), every="7d")
BUDGET = {"budget": "2/3d"}


@pytest.fixture
def run(run_on, usual_runner):
    """Run it over the events on Beam, and collect what comes out."""

    def run(transform):
        return run_on(usual_runner, transform, beam.Create(EVENTS))

    return run


class Rows(beam.PTransform):
    """Gives the rows of the results as one more output."""

    def __init__(self, transform):
        super().__init__()
        self._transform = transform

    def expand(self, events):
        made = events | self._transform
        return _WithRows(made.results, made.ledger, made.rejected, made.rows)


@dataclasses.dataclass
class _WithRows:
    results: object
    ledger: object
    rejected: object
    rows: object
    _fields = ("results", "ledger", "rejected", "rows")

    def _asdict(self):
        return {name: getattr(self, name) for name in self._fields}


def called(*queries):
    """The same in this process."""
    table = pa.Table.from_pylist(EVENTS)
    return sv.release(table, *queries, **ASKED, **BUDGET, noise_key=KEY)


def row_tuples(rows):
    """Rows of Beam in an order, without their times' types."""
    return sorted(
        (row.query, row.slot, row.start.micros, row.end.micros, row.key, row.statistic, row.value)
        for row in rows
    )


def expected_tuples(table):
    return sorted(
        (
            *(row[name] for name in ("query", "slot")),
            *(round(row[name].timestamp()) * 1_000_000 for name in ("start", "end")),
            *(row[name] for name in ("key", "statistic", "value")),
        )
        for row in table.to_pylist()
    )


@pytest.mark.parametrize("queries", [(VISITS,), (VISITS, DELAY)], ids=["a count", "a set"])
def test_its_rows_are_those_of_a_call(run, queries):
    ran = run(Rows(PrivateQueries(*queries, **ASKED, **BUDGET, noise_key=KEY)))
    expected = called(*queries)
    assert row_tuples(ran.rows) == expected_tuples(expected.to_arrow())
    assert tuple(ran.rows[0].as_dict()) == tuple(RESULT_SCHEMA.names)
    assert len(ran.results) == sum(len(one) for one in expected.values())


def test_a_count_by_itself_is_the_plan_of_a_count():
    made = PrivateQueries(VISITS, **ASKED, **BUDGET).plan
    plain = PrivateHistograms(
        registry=sv.Registry.of(default=(sv.Requirement(3, 2.0), None)),
        domain=["cafe", "park"],
        slots="1d",
        columns=sv.Columns("user", ("place",), "time"),
    )
    assert made.context == plain.context
    assert (made.first_slot, made.last_slot) == (19844, 19850)
    limited = PrivateQueries([VISITS], **ASKED, budget="2/20d", limit=Limit(1)).plan
    assert limited.limits is not None


@pytest.mark.parametrize(
    ("queries", "given", "words"),
    [
        ((VISITS,), {"slot": None}, "slot is missing"),
        ((VISITS,), {"slot": "2d"}, "budget=2/3d is not over whole slots of 2d"),
        ((), {}, "no queries"),
        ((5,), {}, "5"),
        ((VISITS,), {"requirements": {"u1": (1, 1.0)}}, "leave out either requirements or budget"),
        ((VISITS,), {"budget": None}, "requirements"),
        ((VISITS, DELAY), {"limit": Limit(1)}, "max_slots=1 .* saves nothing over 3 slots"),
        ((VISITS, DELAY), {"revise": 5000}, "query 'visits': revise is 5000: .* up to 1000 slots"),
        ((VISITS,), {"start": "May"}, "time 'May'"),
        ((VISITS,), {"start": 5}, "start is 5, of type int: write ISO 8601"),
        ((VISITS,), {"longest_window": 9}, "longest_window=9 applies to changing requirements"),
        ((VISITS,), {"budget": None}, "budget='1/7d'"),
        (("one.yaml",), {}, "a query is 'one.yaml': give definitions"),
        ((sv.count("v", by="place", keys="keys.csv"),), {}, "keys.csv.*which is not read here"),
        ((VISITS,), {"user": ["card", "device"]}, "user names 2 columns .card, device."),
        ((VISITS, VISITS), {}, "two queries are called 'visits'"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(queries, given, words):
    with pytest.raises(sv.ConfigurationError, match=words) as caught:
        PrivateQueries(*queries, **{**ASKED, **BUDGET, **given})
    assert "\n" not in str(caught.value)


def test_a_query_set_is_released_as_one_though_it_has_one_count():
    """As a file with it is: else one file would have two releases."""
    made = PrivateQueries(query_set("1d", VISITS), **{**ASKED, "slot": None}, **BUDGET).plan
    assert isinstance(made, PrivateAnswers)
    assert PrivateQueries(VISITS, **{**ASKED, "start": dt.date(2024, 5, 1)}, **BUDGET).plan


def test_one_budget_for_ever_has_its_own_default():
    everyone = sv.Registry.of(default=(Lifetime(1.0), 50))
    made = PrivateQueries(VISITS, **ASKED, requirements=everyone).plan
    assert made.mechanism == "gated"
