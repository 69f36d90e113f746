"""The registry of users: classes, users outside it, what it refuses, and how it travels."""

import gc
import math
import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import ConfigurationError, Registry, Requirement

PROPERTY = settings(max_examples=150)

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
    with pytest.raises(ConfigurationError, match="no user could be counted"):
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


def built(users, pair=(1, 1.0)):
    windows, epsilons = (np.full(len(users), value) for value in pair)
    return Registry.build(users, windows, epsilons)


# One id in two rows would be two users with a budget each, of whom only one is ever found.
@pytest.mark.parametrize(
    "users",
    [
        ["ann", "bob", "ann"],
        [7, 8, "7"],
        [np.int64(7), 7],
        pa.array(["ann", "bob", "ann"]),
        pa.chunked_array([["ann", "bob"], ["ann"]], pa.large_string()),
    ],
)
def test_a_user_twice_is_refused_and_named(users):
    with pytest.raises(ConfigurationError, match=r"'(ann|7)' is in the registry twice"):
        built(users)


@pytest.mark.parametrize(
    "pairs", [{7: (1, 1.0), "7": (2, 1.0)}, [("7", (1, 1.0)), ("7", (1, 1.0))]]
)
def test_a_user_twice_in_a_mapping_is_refused(pairs):
    with pytest.raises(ConfigurationError, match="'7' is in the registry twice"):
        Registry.of(pairs)


@pytest.mark.parametrize(
    ("users", "message"),
    [
        (["ann", ""], "missing or empty"),
        (pa.array(["ann", ""]), "missing or empty"),
        (pa.array(["ann", None]), "missing or empty"),
        (["ann", None], "None is neither text"),
        ([7.0, 8.0], "7.0 is neither text"),
        ([True, False], "True is neither text"),
        ([b"ann", b"bob"], "b'ann' is neither text"),
        (pa.array([1, 2]), "int64 in Arrow"),
        (pa.array(["ann", "bob"]).dictionary_encode(), "dictionary.* in Arrow"),
    ],
)
def test_what_names_no_user_is_refused(users, message):
    with pytest.raises(ConfigurationError, match=message):
        built(users)


@pytest.mark.parametrize("limits", [[True, True], [-3, 1], [2.5, 1.0], [2]])
def test_what_is_no_limit_is_refused(limits):
    with pytest.raises(ConfigurationError, match=r"max_slots has type .* for 2 users: give each"):
        Registry.build(["a", "b"], np.full(2, 9), np.ones(2), max_slots=np.array(limits))


def test_users_who_differ_in_delta_are_different_classes():
    asked = {"ann": (7, 1.0), "bob": (7, 1.0, 1e-9), "cy": (7, 1.0, 0), "dan": Requirement(7, 1.0)}
    registry = Registry.of(asked, default=(Requirement(7, 1.0), 10))
    assert registry.deltas == (None, 0.0, 1e-9)
    assert registry.class_of.tolist() == [0, 2, 1, 0]
    assert registry.sizes.tolist() == [12, 1, 1]
    assert registry.default == (Requirement(7, 1.0), 10)
    again = pickle.loads(pickle.dumps(registry))
    assert (again.deltas, again.fingerprint) == (registry.deltas, registry.fingerprint)


def test_the_default_class_never_has_a_delta_of_the_table():
    registry = Registry.of({"ann": (7, 1.0, 1e-9)}, default=(Requirement(7, 1.0), 10))
    assert (registry.deltas, registry.default_class) == ((1e-9, None), 1)
    assert registry.sizes.tolist() == [1, 10]
    assert registry.without_deltas().sizes.tolist() == [11]


figures = st.tuples(
    st.integers(1, 2), st.sampled_from([0.5, 1.0]), st.sampled_from([math.nan, 0.0, 1e-9, 0.1])
)


@PROPERTY
@given(st.lists(st.tuples(figures, st.integers(0, 2)), min_size=1, max_size=12), st.booleans())
def test_without_deltas_a_table_is_as_if_it_never_had_any(rows, outside):
    asked, limits = zip(*rows, strict=True)
    windows, epsilons, deltas = map(np.array, zip(*asked, strict=True))
    table = [str(user) for user in range(len(rows))], windows, epsilons
    more = {"max_slots": np.array(limits), "default": (Requirement(1, 0.5), 5) if outside else None}
    made = Registry.build(*table, deltas=deltas, **more)
    plain = Registry.build(*table, **more)
    assert made.without_deltas().fingerprint == plain.fingerprint
    assert made.sizes.sum() == plain.sizes.sum()
    own = made.deltas or (None,) * len(made.classes)
    for user, delta in enumerate(deltas.tolist()):
        assert own[made.class_of[user]] == (None if math.isnan(delta) else delta)


@pytest.mark.parametrize("deltas", [[0.2, 0], [-1.0, 0], [1e-16, 0], [0.01], [math.inf, 0]])
def test_what_is_no_delta_is_refused(deltas):
    with pytest.raises(ConfigurationError, match=r"deltas have shape .* for 2 users: give each"):
        Registry.build(["a", "b"], np.full(2, 9), np.ones(2), deltas=np.array(deltas))


def test_ids_are_text():
    assert list(built([7, np.int64(8), "ann"]).users) == ["7", "8", "ann"]
    assert built(pa.array(["7", "8"])).users.to_pylist() == ["7", "8"]


# A share below one unit can never be spent: such users would be waited for in vain. At exactly
# one unit they are served.
@pytest.mark.parametrize("window", [1, 7, 2**20])
def test_a_budget_too_small_for_its_window_is_refused(window):
    least = 2 * window * 2.0**-40
    below = math.nextafter(least, 0)
    assert built(["ann"], (window, least)).classes == (Requirement(window, least),)
    assert Registry.of(default=(Requirement(window, least), 5)).sizes.tolist() == [5]
    message = rf"window={window}, epsilon={below!r}\) leaves less than 2\*\*-40 .*ask for more"
    for make in (
        lambda: built(["ann"], (window, below)),
        lambda: Registry.of({"ann": (window, below), "bob": (1, 1.0)}),
        lambda: Registry.of(default=(Requirement(window, below), 5)),
    ):
        with pytest.raises(ConfigurationError, match=message):
            make()


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


def test_up_to_the_longest_window_classes_differ_by_epsilon_alone():
    asked = {"a": (5, 2.0), "b": (9, 1.0), "c": (7, 2.0)}
    registry = Registry.of(asked, default=(Requirement(3, 0.5), 7))
    made = registry.up_to(12)
    assert tuple(made.classes) == (Requirement(12, 0.5), Requirement(12, 1.0), Requirement(12, 2.0))
    assert made.class_of.tolist() == [2, 1, 2]
    assert made.sizes.tolist() == [7, 1, 2]
    assert made.default_class == 0
    assert made.users == registry.users
    assert made.up_to(12) is made
    with pytest.raises(ConfigurationError, match=r"longest window is 8 slots, and .* ask for 9"):
        registry.up_to(8)
