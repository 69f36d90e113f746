"""The shared record types: what they accept, how they read it, and what a refusal says."""

import datetime as dt
import gc
import math
import pickle
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import (
    Categories,
    ConfigurationError,
    Edges,
    Grid,
    Registry,
    Requirement,
    Slots,
)
from streamveil.mechanisms.records import as_requirement, format_time, parse_time

PROPERTY = settings(max_examples=150, deadline=None, derandomize=True)

# ---- requirements ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "window", [0, -1, 2**20 + 1, 1.5, math.nan, math.inf, True, np.True_, "3", None]
)
def test_bad_window_is_named(window):
    with pytest.raises(ConfigurationError, match=rf"window {re.escape(repr(window))} is not"):
        Requirement(window, 1.0)


@pytest.mark.parametrize("epsilon", [0, -0.5, 4097.0, math.nan, math.inf, True, "1", None])
def test_bad_epsilon_is_named(epsilon):
    with pytest.raises(ConfigurationError, match=rf"epsilon {re.escape(repr(epsilon))} is not"):
        Requirement(1, epsilon)


# Numbers of any kind become plain ones, so that equal requirements are one class.
def test_requirement_is_normalised():
    exotic = Requirement(np.int32(3), np.float64(0.5))
    assert exotic == Requirement(3.0, 0.5)
    assert hash(exotic) == hash(Requirement(3, 0.5))
    assert (type(exotic.window), type(exotic.epsilon)) == (int, float)
    assert type(Requirement(1, 2).epsilon) is float
    assert Requirement(2**20, 4096).window == 2**20


@pytest.mark.parametrize("value", [3, (1,), (1, 2.0, 3), None, "ab c"])
def test_what_is_no_requirement_is_named(value):
    with pytest.raises(ConfigurationError, match=re.escape(repr(value))):
        as_requirement(value)


# ---- time -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("1d", 86_400_000_000),
        ("1h", 3_600_000_000),
        ("5m", 300_000_000),
        ("60s", 60_000_000),
        ("500ms", 500_000),
        (" 2 h ", 7_200_000_000),
    ],
)
def test_slot_lengths(text, microseconds):
    assert Slots.of(text).length == microseconds


@pytest.mark.parametrize(
    "text", ["0h", "0ms", "", "1", "h", "-1h", "1.5h", "1w", "1H", "1h30m", "one hour", "1 h x"]
)
def test_bad_slot_length_is_named(text):
    with pytest.raises(ConfigurationError, match=rf"{re.escape(repr(text))}.*write 1d, 1h"):
        Slots.of(text)


@pytest.mark.parametrize(("length", "origin"), [(0, 0), (-1000, 0), (1500, 0), (1000, 1), (999, 0)])
def test_slots_are_whole_milliseconds(length, origin):
    with pytest.raises(ConfigurationError, match=f"{length} us and origin {origin} us"):
        Slots(length, origin)


# An origin without an offset is UTC; with one it is that instant.
@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("2024-03-31", 0),
        ("2024-03-31T00:00:00", 0),
        ("2024-03-31T00:00:00Z", 0),
        ("2024-03-31T00:00:00z", 0),
        ("2024-03-31T00:00:00+02:00", -2),
        ("2024-03-30T19:30:00-05:00", 0.5),
        (" 2024-03-31T01:00 ", 1),
        (dt.datetime(2024, 3, 31), 0),
        (dt.datetime(2024, 3, 31, tzinfo=dt.timezone(dt.timedelta(hours=2))), -2),
    ],
)
def test_origins(text, hours):
    midnight = 1_711_843_200_000_000
    assert Slots.of("1h", text).origin == midnight + hours * 3_600_000_000


@pytest.mark.parametrize("text", ["yesterday", "", "31.03.2024", "2024-13-01", "2024-02-30T00:00"])
def test_bad_time_is_named(text):
    with pytest.raises(ConfigurationError, match=rf"{re.escape(repr(text))} is not ISO 8601"):
        Slots.of("1h", text)


# No origin is the epoch, and a microsecond that slots cannot start at is refused.
def test_origin_ends():
    assert Slots.of("1h").origin == 0
    assert Slots.of("1h", "1969-12-31T23:00Z").origin == -3_600_000_000
    with pytest.raises(ConfigurationError, match="whole milliseconds"):
        Slots.of("1h", "2024-03-31T00:00:00.000001")


# Slots tile all of time, before the origin as after it: every time is in the slot of its index,
# from the first microsecond to before the end.
@PROPERTY
@given(st.integers(1, 10**8), st.integers(-(10**12), 10**12), st.integers(-(10**16), 10**16))
def test_slots_tile_time(length, origin, time):
    slots = Slots(length * 1000, origin * 1000)
    slot = slots.index(time)
    assert slots.start(slot) <= time < slots.end(slot)
    assert slots.end(slot) == slots.start(slot + 1)


def test_floor_before_the_origin():
    slots = Slots.of("1h", "2024-03-31T00:00Z")
    assert [slots.index(slots.origin + us) for us in (-1, 0, 1)] == [-1, 0, 0]
    assert slots.index(slots.origin - 3_600_000_000) == -1
    assert slots.index(slots.origin - 3_600_000_001) == -2


@PROPERTY
@given(st.integers(-(10**16), 10**16))
def test_time_round_trip(time):
    assert format_time(time).endswith("Z")
    assert parse_time(format_time(time)) == time


# ---- domains --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [((), "at least one"), (("a", ""), "empty"), (("a", "b", "a"), "'a' twice"), ((1, "1"), "'1'")],
)
def test_bad_categories_are_named(values, message):
    with pytest.raises(ConfigurationError, match=message):
        Categories(values)


def test_categories():
    domain = Categories([3, "b"])
    assert domain.values == domain.labels == ("3", "b")
    assert domain.bins == 2
    assert hash(domain) == hash(Categories(("3", "b")))


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ((), "two or more"),
        ((1.0,), r"\(1.0,\)"),
        ((0.0, math.inf), "inf"),
        ((0.0, math.nan, 1.0), "nan"),
        ((0.0, 2.0, 2.0), "2.0 comes before 2.0"),
        ((3.0, 1.5), "3.0 comes before 1.5"),
    ],
)
def test_bad_edges_are_named(edges, message):
    with pytest.raises(ConfigurationError, match=message):
        Edges(edges)


def test_edges():
    domain = Edges([0, 1, 2.5])
    assert domain.edges == (0.0, 1.0, 2.5)
    assert domain.bins == 2
    assert domain.labels == ("[0, 1)", "[1, 2.5)")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"west": 1.0, "east": 1.0}, r"\(1.0, 40.0, 1.0, 41.0\)"),
        ({"south": 42.0}, "42.0"),
        ({"west": -181.0}, "-181.0"),
        ({"north": 90.5}, "90.5"),
        ({"east": math.nan}, "nan"),
        ({"columns": 0}, "0 columns"),
        ({"rows": -1}, "-1 rows"),
    ],
)
def test_bad_grid_is_named(change, message):
    good = {"west": -74.0, "south": 40.0, "east": -73.0, "north": 41.0, "columns": 3, "rows": 2}
    assert Grid(**good).bins == 6
    with pytest.raises(ConfigurationError, match=message):
        Grid(**{**good, **change})


# Labels are in the order of the bins: row by row from the south-west corner.
def test_grid_labels():
    assert Grid(-74, 40, -73, 41, 2, 2).labels == ("r0c0", "r0c1", "r1c0", "r1c1")


# ---- registry -------------------------------------------------------------------------------

TABLE = {"ann": (3, 1.0), "bob": (5, 0.5), "cleo": (3, 1.0), "dan": (3, 0.1)}


# Users who ask for the same are one class; classes are distinct and sorted; sizes add up.
def test_grouping():
    registry = Registry.of(TABLE)
    assert registry.classes == (Requirement(3, 0.1), Requirement(3, 1.0), Requirement(5, 0.5))
    assert registry.sizes.tolist() == [1, 2, 1]
    assert registry.class_of.tolist() == [1, 2, 1, 0]
    assert list(registry.users) == ["ann", "bob", "cleo", "dan"]
    assert registry.default_class is None


@PROPERTY
@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from([0.1, 1.0, 2.5])), min_size=1))
def test_every_user_is_in_the_class_of_their_requirement(pairs):
    registry = Registry.of({str(i): pair for i, pair in enumerate(pairs)})
    assert len(set(registry.classes)) == len(registry.classes) == len(registry.sizes)
    for (window, epsilon), k in zip(pairs, registry.class_of, strict=True):
        assert registry.classes[k] == Requirement(window, epsilon)
    np.testing.assert_array_equal(
        np.bincount(registry.class_of, minlength=len(registry.sizes)), registry.sizes
    )


# Users outside the table join a class that is there, or one of their own: with their public
# number, not with how many of them turn up.
def test_default_joins_a_class():
    registry = Registry.of(TABLE, default=(Requirement(3, 1.0), 100))
    assert registry.default_class == 1
    assert registry.sizes.tolist() == [1, 102, 1]


def test_default_is_a_class_of_its_own():
    registry = Registry.of(TABLE, default=(Requirement(1, 9.0), 100))
    assert registry.classes[registry.default_class] == Requirement(1, 9.0)
    assert registry.sizes[registry.default_class] == 100
    assert registry.sizes.sum() == 104
    for user, k in zip(registry.users, registry.class_of, strict=True):
        assert registry.classes[k] == Requirement(*TABLE[user])


def test_default_alone():
    registry = Registry.of(default=(Requirement(2, 1.0), 7))
    assert registry.classes == (Requirement(2, 1.0),)
    assert registry.sizes.tolist() == [7]
    assert len(registry.users) == len(registry.class_of) == 0


@pytest.mark.parametrize("count", [0, -3])
def test_default_needs_a_public_number(count):
    with pytest.raises(ConfigurationError, match=f"is for {count} users"):
        Registry.of(TABLE, default=(Requirement(2, 1.0), count))


def test_empty_registry_is_refused():
    with pytest.raises(ConfigurationError, match="nobody could be counted"):
        Registry.of({})


@pytest.mark.parametrize(
    ("requirement", "message"),
    [((0, 1.0), "window 0"), ((1, -2.0), "epsilon -2.0"), ((1, math.nan), "nan"), (5, "5 is")],
)
def test_bad_requirement_in_a_registry_is_named(requirement, message):
    with pytest.raises(ConfigurationError, match=message):
        Registry.of({"ann": (1, 1.0), "bob": requirement})
    if isinstance(requirement, tuple):
        windows, epsilons = np.array([requirement]).T
        with pytest.raises(ConfigurationError, match=message):
            Registry.build(["bob"], windows.astype(np.int64), epsilons)


# What a worker loads again: changed by a test to be another table than the pipeline was built on.
stored = dict(TABLE)
loads = []


def load() -> Registry:
    loads.append(1)
    pairs = [Requirement(*pair) for pair in stored.values()]
    return Registry.build(
        list(stored),
        np.array([pair.window for pair in pairs]),
        np.array([pair.epsilon for pair in pairs]),
        default=(Requirement(1, 9.0), 100),
        reload=load,
    )


@pytest.fixture
def table(monkeypatch):
    """A copy of the stored table that a test may change, with no loads counted yet."""
    copy = dict(TABLE)
    monkeypatch.setitem(globals(), "stored", copy)
    loads.clear()
    gc.collect()
    return copy


def same(a: Registry, b: Registry) -> bool:
    return (
        list(a.users) == list(b.users)
        and a.classes == b.classes
        and a.class_of.tolist() == b.class_of.tolist()
        and a.sizes.tolist() == b.sizes.tolist()
        and a.default_class == b.default_class
        and a.fingerprint == b.fingerprint
    )


# Without a way to load it again, a registry travels whole.
def test_pickling_without_reload():
    registry = Registry.of(TABLE, default=(Requirement(1, 9.0), 100))
    data = pickle.dumps(registry)
    assert b"cleo" in data
    assert same(pickle.loads(data), registry)


# With one, its users do not travel; in this process it is found, elsewhere it is loaded.
def test_pickling_with_reload(table):
    registry = load()
    data = pickle.dumps(registry)
    assert b"cleo" not in data
    assert pickle.loads(data) is registry
    assert len(loads) == 1
    whole = Registry.of(TABLE, default=(Requirement(1, 9.0), 100))
    del registry
    gc.collect()
    assert same(pickle.loads(data), whole)
    assert len(loads) == 2


# A table that changed after the pipeline was built is noticed, whatever changed in it.
@pytest.mark.parametrize(
    "change",
    [{"ann": (5, 0.5)}, {"ann": (3, 1.5)}, {"eve": (3, 1.0)}, {"ann": (3, 0.1), "dan": (3, 1.0)}],
)
def test_changed_table_is_noticed(table, change):
    data = pickle.dumps(load())
    gc.collect()
    table.update(change)
    with pytest.raises(ConfigurationError, match=r"changed .*load.*launch the pipeline again"):
        pickle.loads(data)
    del table["bob"]
    with pytest.raises(ConfigurationError, match="changed"):
        pickle.loads(data)
