"""Identities of public facts: on record byte for byte, and the same only for what is the same."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.engine.per_record.budgets import CategoryBudget, ColumnsBudget, ValueBudget
from streamveil.engine.per_record.mapper import Source
from streamveil.mechanisms import Categories, Edges, Grid, Lifetime, Registry, Requirement, Slots
from streamveil.mechanisms.core.domains import WithNull, WithOther
from streamveil.mechanisms.core.identity import Form, Identified, encoded, of_mechanism
from streamveil.mechanisms.core.local_days import CalendarMonths, CalendarSlots
from streamveil.mechanisms.discovery.discovered_keys import DiscoveredKeys
from streamveil.mechanisms.discovery.key_groups import KeyGroups
from streamveil.mechanisms.discovery.key_rules import KeyRules
from streamveil.mechanisms.local.protocol import Users
from streamveil.mechanisms.per_record.budget_functions import (
    Divided,
    Inverse,
    Logarithmic,
    Lookup,
    SquareRoot,
)
from streamveil.mechanisms.per_record.hat import HatCount, HatSum
from streamveil.mechanisms.per_record.prdp import PrdpCount, PrdpSum
from streamveil.mechanisms.per_record.protocol import Bounds
from streamveil.mechanisms.per_record.randomizer import Randomizer
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.choice import Auto
from streamveil.mechanisms.queries.bounds import AutoBounds
from streamveil.mechanisms.queries.conditions import Condition
from streamveil.mechanisms.queries.cuts import Months
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.statistics import (
    Count,
    DistinctUsers,
    Mean,
    Quantiles,
    StandardDeviation,
    Sum,
    TopK,
    Variance,
)
from streamveil.mechanisms.queries.trees import Tree
from streamveil.mechanisms.randomness.noise import digest
from streamveil.transforms import Columns

BOUNDS = Bounds(0.5, 4.0, 100.0)
FUNCTION = Inverse(20.0, 100.0, 5.0)
BUDGET = ValueBudget("fare", FUNCTION)


def ones(values):
    return np.ones(len(values))


# A function of a user goes by its name; this one is on record under the one that it had first.
ones.__module__ = "tests.mechanisms.test_identity"


TABLE = Registry.of({"ann": (3, 0.5), "bob": (1, 2.0)}, default=(Requirement(2, 1.0), 9))
USERS = Users((Requirement(3, 0.5), Requirement(1, 1.0)), np.array([0, 1, 1], np.int32), 4)
SOURCE = Source(BUDGET, "fare", key="zone", keys=("n", "s"), time="time", first_slot=3)
TREE = Tree((("near", "far"),))
QUERY = Query(
    *("visits", 24, ("place",), Categories(("cafe", "park"))),
    where=(Condition("km", low=2.5),),
    tree=TREE,
    weight=2,
    share=0.5,
)

# One of every form, and the digest of its identity. They never change: noise and saved states are
# bound to them.
ON_RECORD = [
    (Requirement(3, 0.5), "2dca0e2001f42a91"),
    (Lifetime(2.0), "48ef0314687ff5d1"),
    (Slots.of("1h", "2024-05-01"), "ad20215c4829a089"),
    (CalendarSlots(86_400_000_000, zone="Europe/Paris"), "7abe77fc9fb1e18c"),
    (CalendarMonths(months=3, zone="Europe/Paris"), "efa1146017326885"),
    (Months(3, 24, -96), "1efe8ddee4082633"),
    (Categories(("cafe", "park", "café")), "d91704c4f7cfb38b"),
    (KeyRules(("tea",), ("rum",), True, 80), "fedf769871386fcd"),
    (DiscoveredKeys(("tea",), KeyRules(), 2, 1, 0.3, 0.5, True), "5f543e9836ee9747"),
    (DiscoveredKeys(("tea", "rum"), found=True, since=(20,)), "eeebef7359196f21"),
    (KeyGroups(("hot",), (("tea*",),)), "e47c919e772275e6"),
    (
        DiscoveredKeys(("tea",), found=True, groups=KeyGroups(("hot",), (("tea*",),))),
        "c981cda2118b8f74",
    ),
    (TREE.with_keys([1, 0]), "1778a60ad60c750a"),
    (Edges((0, 1.5, 10)), "8fe542462ce0af1c"),
    (Grid(4.0, 50.5, 5.0, 51.0, 8, 6), "834db332676c2a71"),
    (WithOther(Categories(("cafe", "park")), "rest"), "97ce3c3778f1493b"),
    (WithNull(WithOther(Categories(("cafe", "park")), "rest"), "none"), "4c5ec8621bc13e26"),
    (Columns("user", ("place",), "time"), "47ec84b82958c35d"),
    (Columns("user", ("lon", "lat"), "time", "Europe/Paris", "ms"), "55623de2c7aa54c0"),
    (Columns("user", ("place",), "time", time_format="%d.%m.%Y"), "94c54b9b3172d2dc"),
    (TABLE, "df19e64e42ec3712"),
    (USERS, "dd2def057439e39e"),
    (BOUNDS, "c19dbd6b33b67712"),
    (FUNCTION, "2095f0096ac74853"),
    (SquareRoot(20.0, 100.0, 5.0), "64ed0a0769f1d085"),
    (Logarithmic(20.0, 100.0, 5.0), "bc568d93a5c9c051"),
    (Lookup({"a": 1.0, "b": 0.5}, 0.25), "8c3d04e17f9cfeae"),
    (Divided(FUNCTION, 3), "e7921c6e12b5ffce"),
    (BUDGET, "4337f223f40ec28f"),
    (CategoryBudget("kind", Lookup({"a": 1.0})), "a830b071261ffdf6"),
    (ColumnsBudget(("fare",), ones, 1.0, 1.0, {"fare": [1.0]}), "fe3b322b5a470ddf"),
    (SOURCE, "2baa52cf4cc2334f"),
    (HatCount("hat", BOUNDS), "830f4c6e70e07cbc"),
    (HatSum("hat", BOUNDS), "04d4ff8972ce421b"),
    (PrdpCount("prdp", BOUNDS), "034f1e1967d5313c"),
    (PrdpSum("prdp", BOUNDS, FUNCTION), "e62058121db7b84e"),
    (Limit(2, 3), "86e1a79ee2c4a43b"),
    (Auto(0.05, 3), "7808b0289d415ad8"),
    (Condition("kind", ("car", "van")), "8cb839d50b804fbc"),
    (TREE, "8cd27cbe346bc4b2"),
    (QUERY, "8dd46f187ecaad2c"),
    (QuerySet(Slots.of("1h"), (QUERY,)), "1adb698dc4ea9416"),
    (Count(), "a8174b7e62252322"),
    (DistinctUsers(), "0edf5bbb9f6d46b8"),
    (TopK(3), "d9ef3e1d34d39eb8"),
    (AutoBounds("sum", "fare", 0.0, 80.0), "872f1a5e9ee68818"),
    (Sum("fare", 0.0, 80.0), "ee6c9cb2abcd55fa"),
    (Mean("fare", 0.0, 80.0), "e1e08afab320272f"),
    (Variance("fare", 0.0, 80.0), "5103f55e39267305"),
    (StandardDeviation("fare", 0.0, 80.0), "712ebf2688ce0fb9"),
    (Quantiles("fare", (0.0, 5.0, 80.0), (0.5, 0.95)), "8b002ebc875b022d"),
    (Randomizer(HatCount("hat:beta=0.2", BOUNDS, beta=0.2)), "d3c2ec37b8336537"),
]


def id_of(pair):
    return type(pair[0]).__name__


@pytest.mark.parametrize("pair", ON_RECORD, ids=id_of)
def test_identities_stay_what_they_are(pair):
    value, on_record = pair
    assert digest(value.identity(), size=8).hex() == on_record


def every_form(kind=Identified):
    for one in kind.__subclasses__():
        if one.__module__.startswith("streamveil."):
            if "IDENTITY" in vars(one):
                yield one
            yield from every_form(one)


def test_every_form_is_on_record_and_no_tag_is_used_twice():
    forms = list(every_form())
    assert {type(value) for value, _ in ON_RECORD} >= set(forms)
    tags = [one.IDENTITY.tag for one in forms]
    assert len(set(tags)) == len(tags) >= 20
    assert len({on_record for _, on_record in ON_RECORD}) == len(ON_RECORD)


# Who adds a field must say whether it is a part of the identity: see mechanisms/core/identity.py.
@pytest.mark.parametrize("kind", list(every_form()), ids=lambda kind: kind.__name__)
def test_every_field_is_in_the_form_of_its_type(kind):
    form = kind.IDENTITY
    named = [*form.fields, *form.later, *form.apart]
    assert len(set(named)) == len(named)
    assert set(named) == {one.name for one in dataclasses.fields(kind)}


# ---- adding a field ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Before(Identified):
    IDENTITY = Form("test", ("user", "time"))

    user: str
    time: str


@dataclasses.dataclass(frozen=True)
class After(Identified):
    IDENTITY = Form("test", ("user", "time"), later={"zone": None, "keep": "all"}, apart=("label",))

    user: str
    time: str
    zone: str | None = None
    label: str = ""
    keep: str = "all"


def test_a_field_added_later_changes_nothing_where_it_is_as_before():
    before = Before("u", "t").identity()
    assert After("u", "t").identity() == before
    assert After("u", "t", label="shown").identity() == before
    others = [After("u", "t", "UTC"), After("u", "t", keep="first"), After("u", "t", "all")]
    identities = {one.identity() for one in others}
    assert len(identities) == 3
    assert before not in identities


# ---- the encoding --------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=4)
    | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)


def alike(a, b):
    """Equal, but for True and 1, which Python takes for equal."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(alike(a[key], b[key]) for key in a)
    return a == b


@settings(max_examples=50)
@given(VALUES, VALUES)
def test_encodings_are_the_same_only_for_the_same(a, b):
    assert (encoded(a) == encoded(b)) == alike(a, b)
    assert encoded((a, b)) != encoded((a,))
    assert encoded(((a,), b)) != encoded((a, (b,)))


def test_what_is_equal_has_one_encoding():
    for one, other in (
        (1, 1.0),
        (0.0, -0.0),
        (np.int32(7), 7),
        (np.float32(0.5), 0.5),
        (("a", 1), ["a", 1]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (np.arange(3).astype("<i8"), np.arange(3).astype(">i8")),
        (Grid(0, 0, 1, 1, 2, 2), Grid(0.0, 0.0, 1.0, 1.0, 2, 2)),
    ):
        assert encoded(one) == encoded(other)
    for one, other in (
        ("ab", b"ab"),
        (("a", "b"), ("ab",)),
        (1, True),
        (1, "1"),
        (None, ()),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        (Requirement(2**20, 1.0), Lifetime(1.0)),
    ):
        assert encoded(one) != encoded(other)
    with pytest.raises(TypeError, match="has no identity: give it one"):
        encoded(object())


def test_options_of_a_mechanism_count_whatever_their_order():
    assert of_mechanism("hat:a=1:b=2") == of_mechanism("hat:b=2:a=1")
    texts = ["hat", "hat:a=1", "hat:a=2", "hat:a=1:b=2", "prdp:a=1"]
    assert len({of_mechanism(text) for text in texts}) == len(texts)


# ---- the table of users -------------------------------------------------------------------------

IDS = ["ann", "bob", "cleo", "zoë", "dan"]
WINDOWS = np.array([3, 1, 3, 1, 1])
EPSILONS = np.array([0.5, 2.0, 0.5, 2.0, 2.0])


def table(users, windows=WINDOWS, epsilons=EPSILONS):
    return Registry.build(users, windows, epsilons).fingerprint


# This passed before: who was promised 0.5 got 2.0.
def test_users_who_exchange_their_classes_are_noticed():
    assert table(["bob", "ann", *IDS[2:]]) != table(IDS)


def test_a_table_is_the_same_however_it_is_held():
    text = pa.array(IDS)
    longer = pa.array(["x", *IDS, "y"], pa.large_string())
    forms = [
        text,
        pa.array(IDS, pa.large_string()),
        pa.chunked_array([IDS[:2], [], IDS[2:]], pa.string()),
        pa.chunked_array([[], IDS[:3], IDS[3:]], pa.large_string()),
        longer[1:-1],
        pa.concat_arrays([text[:1], text[1:]]),
        tuple(IDS),
    ]
    assert {table(users) for users in forms} == {table(IDS)}


def test_every_change_of_a_table_is_noticed():
    others = [
        table([*IDS[:4], "Dan"]),
        table(["annb", "ob", *IDS[2:]]),  # the same bytes, cut elsewhere
        table(IDS[:4], WINDOWS[:4], EPSILONS[:4]),
        table(IDS, WINDOWS[::-1].copy(), EPSILONS[::-1].copy()),
        table(IDS[::-1], WINDOWS[::-1].copy(), EPSILONS[::-1].copy()),  # the order counts
        table(IDS, epsilons=EPSILONS * 2),
        Registry.build(IDS, WINDOWS, EPSILONS, default=(Requirement(3, 0.5), 1)).fingerprint,
        Registry.of(default=(Requirement(1, 1.0), 1)).fingerprint,
    ]
    assert len({*others, table(IDS)}) == len(others) + 1


def test_an_empty_table_has_a_fingerprint_in_any_form():
    nobody = np.zeros(0, np.int64)
    default = (Requirement(1, 1.0), 5)
    found = {
        Registry.build(users, nobody, nobody, default=default).fingerprint
        for users in ([], pa.array([], pa.string()), pa.array([], pa.large_string()))
    }
    assert len(found) == 1
