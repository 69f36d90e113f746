"""Tables, columns and arrays as what is public: read, or refused in one line."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.mechanisms.core.arguments import domain_of
from streamveil.mechanisms.queries.reading import query_set_of
from streamveil.pipelines.in_memory.keyword_arguments import options_of
from streamveil.pipelines.options.command_table import COMMANDS

EVENTS = pd.DataFrame({"user": ["u0"], "place": ["cafe"], "time": ["2024-05-01"], "n": [1.0]})
ASKED = {
    **{"user": "user", "time": "time", "start": "2024-05-01", "end": "2024-05-02"},
    "requirements": {"u0": (1, 50.0)},
}
CAFE = ["cafe", "park"]
DOMAINS = [
    pd.DataFrame({"value": CAFE}),
    pd.DataFrame({"place": CAFE, "note": 1}),
    pd.DataFrame({"value": CAFE, "place": 1}),
    pd.DataFrame({0: CAFE}),
    pa.table({"q": CAFE}),
    pa.record_batch({"value": CAFE}),
    pa.array(CAFE),
    pa.chunked_array([CAFE[:1], CAFE[1:]]),
    pd.Series(CAFE),
    pd.Series(CAFE, dtype="category"),
    np.array(CAFE),
    sv.Categories(tuple(CAFE)),
]
NO_DOMAINS = [
    (pd.DataFrame({"a": CAFE, "b": 1}), r"table of the columns a, b: .*'value' or 'place'"),
    (pd.DataFrame(), "table of the columns none"),
    (pd.DataFrame({"value": ["cafe", None]}), "None"),
    (pd.Series([1.5]), "1.5"),
]


def query(**keys):
    return {"slot": "1d", "queries": [{"name": "n", **keys}]}


@pytest.mark.parametrize("domain", DOMAINS, ids=lambda value: type(value).__name__)
def test_a_domain_of_any_kind(domain):
    expected = sv.Categories(tuple(CAFE))
    assert domain_of(domain, "domain", "place") == expected
    assert query_set_of(query(by="place", keys=domain)).queries[0].domain == expected


@pytest.mark.parametrize(("domain", "words"), NO_DOMAINS)
def test_a_domain_that_is_none(domain, words):
    with pytest.raises(sv.ConfigurationError, match=f"domain.*{words}") as release:
        sv.release(EVENTS, value="place", slot="1d", domain=domain, **ASKED)
    with pytest.raises(sv.ConfigurationError, match=f"keys.*{words}") as answers:
        sv.release(EVENTS, query(by="place", keys=domain), **ASKED)
    for error in (release, answers):
        assert "\n" not in str(error.value)


def test_a_table_is_the_domain_of_a_release():
    found = sv.release(
        EVENTS, value="place", slot="1d", domain=DOMAINS[1], mechanism="uniform", **ASKED
    )
    assert found.to_pandas()["key"].tolist() == CAFE


@pytest.mark.parametrize(
    "requirements",
    [
        pd.Series({"u0": 1.0}),
        pd.DataFrame({"user": ["u0"]}),
        pd.DataFrame(),
        np.ones((2, 2)),
        [("u0", 1, 1.0)],
        pa.array([1]),
        3,
    ],
    ids=lambda value: type(value).__name__,
)
def test_requirements_that_are_none(requirements):
    for run in (
        lambda **asked: sv.release(EVENTS, value="place", slot="1d", domain=CAFE, **asked),
        lambda **asked: sv.release(EVENTS, query(), **asked),
    ):
        with pytest.raises(sv.ConfigurationError, match=r"^requirements") as error:
            run(**{**ASKED, "requirements": requirements})
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("queries", "words"),
    [
        (pd.DataFrame({"a": [1]}), "of type DataFrame"),
        (pd.Series([1]), "of type Series"),
        (np.array([1]), "of type ndarray"),
        (pa.table({"a": [1]}), "of type Table"),
        ({"slot": "1d", "queries": pd.DataFrame({"name": ["n"]})}, "of type DataFrame"),
        ({"slot": "1d", "queries": [pd.Series({"name": "n"})]}, "query 1 of the list"),
        ({"slot": pd.Series(["1d"]), "queries": [{"name": "n"}]}, "slot is"),
        (query(by=pd.DataFrame({"a": [1]})), "'n': by is"),
        (query(where=pd.DataFrame({"a": [1]})), "'n': where is"),
        (query(where={"place": pd.DataFrame({"a": [1]})}), "column 'place' is"),
    ],
)
def test_queries_that_are_none(queries, words):
    with pytest.raises(sv.ConfigurationError, match=words) as error:
        sv.release(EVENTS, queries, **ASKED)
    assert "\n" not in str(error.value)


def test_columns_and_arrays_inside_queries():
    asked = query(rollups=np.array(["2d", "4d"]), where={"place": pd.Series(["cafe"])})
    same = query(rollups=["2d", "4d"], where={"place": ["cafe"]})
    assert query_set_of(asked).queries == query_set_of(same).queries


def test_exact_numbers_inside_queries():
    asked = query(share=Decimal("0.3"), weight=Fraction(1, 2))
    same = query(share=0.3, weight=0.5)
    assert query_set_of(asked).identity() == query_set_of(same).identity()
    requirements = {"u0": (1, Decimal("4000"))}
    found = sv.release(EVENTS, asked, **{**ASKED, "requirements": requirements})
    assert round(found["n"].to_pandas().value[0]) == 1


@pytest.mark.parametrize(
    ("lower", "upper"),
    [
        (Decimal("0"), Decimal("2.5")),
        (Fraction(0), Fraction(5, 2)),
        (np.float32(0), np.float64(2.5)),
        (np.int8(0), np.array(2.5)),
    ],
)
def test_bounds_of_any_kind_of_number(lower, upper):
    asked = query(statistic="sum", of="n", bounds=[lower, upper])
    same = query(statistic="sum", of="n", bounds=[0, 2.5])
    assert query_set_of(asked).queries == query_set_of(same).queries
    asked = query(where={"n": {"from": lower, "to": upper}})
    same = query(where={"n": {"from": 0, "to": 2.5}})
    assert query_set_of(asked).queries == query_set_of(same).queries


@pytest.mark.parametrize("bound", [Decimal("nan"), Decimal("sNaN"), True, np.True_, 10**400, "0"])
def test_bounds_that_are_none(bound):
    with pytest.raises(sv.ConfigurationError, match="number 2 of bounds is"):
        query_set_of(query(statistic="sum", of="n", bounds=[0, bound]))


class Lazy:
    """A plan of Polars, whose rows are nowhere yet."""

    columns = ("user", "window", "epsilon")

    def collect(self):
        raise AssertionError


def test_a_plan_is_to_be_collected():
    for asked in ({"domain": Lazy()}, {"domain": CAFE, "requirements": Lazy()}):
        with pytest.raises(sv.ConfigurationError, match=r"of type Lazy: collect it first"):
            sv.release(EVENTS, value="place", slot="1d", **{**ASKED, **asked})


def test_options_are_any_kind_of_number():
    given = options_of("per-record", {"value_max": Decimal("10.5"), "epsilon_max": Fraction(5, 2)})
    assert (given.value_max, given.epsilon_max) == (10.5, 2.5)


def test_forms_of_times_are_listed_with_their_commas():
    forms = ["%d.%m.%Y", "%b %d, %Y"]
    assert options_of("release", {"time_format": forms}).time_format == "\n".join(forms)
    assert COMMANDS["per-record"].take({"time_format": forms}).time_format == "\n".join(forms)
