"""Discovery from events: what one user changes in the counts, whatever the batches."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.engine.encode import query_mapper
from streamveil.engine.encode.event_mapper import NO_KEY, keys_of_texts
from streamveil.engine.run import discover
from streamveil.engine.stream.query_plan import QueryPlan, columns_for
from streamveil.engine.stream.unprotected_queries import true_keys
from streamveil.mechanisms import BudgetExceeded, Lifetime, Registry, Requirement
from streamveil.mechanisms.core.records import ADD_REMOVE, REPLACE
from streamveil.mechanisms.discovery.key_draw import TooManyPairs
from streamveil.mechanisms.discovery.key_rules import KeyRules
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.queries.definitions import QueryDefinition
from streamveil.mechanisms.queries.discovered import discovered_keys
from streamveil.mechanisms.queries.reading import query_set

DAY = 86_400_000_000
ANN, BOB, OTHERS = Requirement(3, 6.0), Requirement(5, 3.0), Requirement(4, 6.0)
TABLE = Registry.of({"ann": ANN, "bob": BOB}, default=(OTHERS, 5))
REQUIREMENTS = {"ann": ANN, "bob": BOB, "zoe": OTHERS}


def plan(max_keys=1, table=TABLE, limit=None, adjacency=ADD_REMOVE, **options):
    keys = {"discover": {"max_keys": max_keys, **options}}
    asked = query_set("1d", QueryDefinition.of({"name": "q", "by": "key", "keys": keys}))
    return QueryPlan(
        *(asked, table, columns_for(asked, "user", "time"), None, adjacency, bytes(32)),
        delta=1e-6,
        limit=limit,
    )


def batch(rows):
    users, keys, days = zip(*rows, strict=True) if rows else ((),) * 3
    times = pa.array(np.array(days, np.int64) * DAY, pa.timestamp("us", "UTC"))
    return pa.RecordBatch.from_pydict(
        {"user": pa.array(users, pa.string()), "key": pa.array(keys, pa.string()), "time": times}
    )


class Recording(discover.Discovery):
    """Finds nothing, and remembers what the noise would be added to."""

    seen = {}

    def find(self, slot, pairs):
        counts = self._counts(slot, pairs)
        for place in np.flatnonzero(counts):
            self.seen[(slot, *pairs.digests[place].tolist())] = int(counts[place])
        return np.zeros(0, np.int64)


def counted(monkeypatch, rows, max_keys, size=100, **options):
    monkeypatch.setattr(discover, "Discovery", Recording)
    monkeypatch.setattr(Recording, "seen", {})
    batches = [batch(rows[at : at + size]) for at in range(0, len(rows), size)]
    discover.discover_keys(plan(max_keys, **options), batches)
    return dict(Recording.seen)


events = st.lists(
    st.tuples(st.sampled_from(list(REQUIREMENTS)), st.sampled_from("abcdef"), st.integers(0, 14)),
    min_size=1,
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(
    events,
    st.sampled_from(list(REQUIREMENTS)),
    *(st.integers(0, 14), st.integers(1, 4), st.integers(1, 3)),
)
def test_a_window_of_a_user_changes_no_more_than_is_paid_for(rows, user, first, max_keys, windows):
    window = REQUIREMENTS[user].window
    rest = [row for row in rows if row[0] != user or not first <= row[2] < first + window]
    (made,) = plan(max_keys, windows=windows).discoverers()
    assert made.length == 5 * windows
    k = list(made._windows).index(window)
    with pytest.MonkeyPatch.context() as patch:
        before, after = (counted(patch, some, max_keys, windows=windows) for some in (rows, rest))
    changes = [before.get(key, 0) - after.get(key, 0) for key in before.keys() | after.keys()]
    draw, weight = made._draws[k], int(made.terms.weights[k])
    assert set(map(abs, changes)) <= {0, weight}
    assert sum(map(bool, changes)) <= draw.in_window(draw.changed, window)
    for sign in (1, -1):
        assert sum(sign * change > 0 for change in changes) <= draw.in_window(draw.removed, window)


LIVES = {"table": Registry.of(default=(Lifetime(6.0), 0)), "limit": Limit(None, in_life=3)}


@settings(max_examples=60, deadline=None)
@given(
    *(events, events, st.sampled_from(list(REQUIREMENTS)), st.integers(1, 4)),
    *(st.booleans(), st.sampled_from([0, -7, 2**20 - 7])),
)
def test_a_life_of_a_user_changes_no_more_than_is_paid_for(
    rows, others, user, max_keys, replaced, begin
):
    adjacency = REPLACE if replaced else ADD_REMOVE
    rows = [(each, key, begin + day) for each, key, day in rows]
    rest = [row for row in rows if row[0] != user]
    if replaced:
        rest += [(user, key, begin + day) for each, key, day in others if each == user]
    asked = {**LIVES, "adjacency": adjacency}
    (made,) = plan(max_keys, **asked).discoverers()
    with pytest.MonkeyPatch.context() as patch:
        before, after = (counted(patch, some, max_keys, **asked) for some in (rows, rest))
    assert {slot for slot, *_ in before.keys() | after.keys()} <= {0}
    changes = [before.get(key, 0) - after.get(key, 0) for key in before.keys() | after.keys()]
    weight, keys = int(made.terms.weights[0]), max_keys * (2 if replaced else 1)
    assert set(map(abs, changes)) <= {0, weight}
    assert sum(map(bool, changes)) <= keys
    for sign in (1, -1):
        assert sum(sign * change > 0 for change in changes) <= max_keys
    assert made._budgets[0] / 2 < keys * int(made.terms.epsilon[0]) <= made._budgets[0]
    assert 0 < max_keys * int(made.terms.delta[0]) <= made._deltas[0]
    books = made.filter()
    books.charge(0, made.terms.epsilon, made.terms.delta)
    with pytest.raises(BudgetExceeded):
        books.charge(1, made.terms.epsilon, made.terms.delta)


@settings(max_examples=40, deadline=None)
@given(events, st.randoms(), st.integers(1, 7))
def test_batches_and_their_order_have_no_part_in_it(rows, random, size):
    again = [*rows, *rows[:3]]
    random.shuffle(again)
    with pytest.MonkeyPatch.context() as patch:
        assert counted(patch, rows, 2) == counted(patch, again, 2, size)


def test_keys_are_found_once_and_take_no_place_afterwards():
    rows = [(f"u{user}", "old", day) for user in range(300) for day in range(15)]
    rows += [(f"u{user}", "new", day) for user in range(300) for day in (10, 11)]
    made = discover.discover_keys(plan(), [batch(rows)])
    (query,) = made.query_set
    assert discovered_keys(query).values == ("old", "new")
    assert query.domain.labels == ("old", "new", "unlisted")
    assert made.query_set != plan().query_set


def test_longer_discovery_slots_see_more_users_of_a_key_for_the_same_price():
    rows = [(f"u{user}", f"k{(user + day) % 80}", day) for user in range(400) for day in range(40)]
    short, long = plan(2), plan(2, windows=8)
    needed = [one.discoverers()[0].terms.users_for_half_chance for one in (short, long)]
    assert needed[0] == needed[1]
    short, long = (discover.discover_keys(one, [batch(rows)]) for one in (short, long))
    listed = [discovered_keys(one.query_set.queries[0]).values for one in (short, long)]
    assert len(listed[0]) < len(listed[1]) == 80


def test_true_keys_are_ranked_by_their_users():
    rows = [(f"u{user}", "old", 0) for user in range(3)]
    rows += [(f"u{user}", " new", 5 * user) for user in range(4)]
    rows += [("u1", "old", 1), ("u1", "Unlisted", 2), ("u1", "bad", 2), ("u1", "fine", 2)]
    rows += [("u1", "", 2), ("u1", "x" * 300, 2), ("u2", "unlisted", 1), ("u9", "rare", 1)]
    made = plan(allow=["fine"], deny=["bad"])
    found = true_keys(made, [batch(rows[:4]), batch(rows[4:])])["q"]
    assert found.texts == ("new", "old", "Unlisted", "rare")
    assert found.users.tolist() == [4, 3, 1, 1]
    assert found.most.tolist() == [1, 3, 1, 1]
    assert found.needed == made.discoverers()[0].terms.users_for_half_chance


def test_listed_keys_and_names_of_bins_are_no_candidates(monkeypatch):
    monkeypatch.setattr(discover, "MOST_PAIRS", 1)
    public = [("ann", key, 1) for key in ("old", "bad", " old", "unlisted", " ", "")]
    made = discover.discover_keys(plan(allow=["old"], deny=["bad"]), [batch(public)])
    assert made.query_set.queries[0].domain.labels == ("old", "unlisted")


def test_users_whose_digests_agree_in_one_word_are_two_users(monkeypatch):
    def alike(texts, key):
        return np.column_stack([np.zeros(len(texts)), np.arange(len(texts))]).astype(np.uint64)

    def find_users(text, registered, key):
        none = np.full(len(text), -1)
        return none, alike(text, key), np.zeros(0, np.int64)

    monkeypatch.setattr(query_mapper, "find_users", find_users)
    rows = [(f"u{user}", "old", 1) for user in range(300)]
    made = discover.discover_keys(plan(), [batch(rows)])
    assert made.query_set.queries[0].domain.labels == ("old", "unlisted")


def test_more_pairs_than_fit_in_memory_are_refused_while_they_are_read(monkeypatch):
    monkeypatch.setattr(discover, "MOST_PAIRS", 9)
    rows = [("ann", f"key {number}", number % 2) for number in range(10)]
    assert discover.discover_keys(plan(), [batch(rows[:9])])
    with pytest.raises(TooManyPairs, match="more than 9 pairs of a key and a user"):
        discover.discover_keys(plan(), [batch(rows[:5]), batch(rows[5:])])


def test_nothing_is_read_of_an_empty_input():
    made = discover.discover_keys(plan(), [batch([])])
    assert made.query_set.queries[0].domain.labels == ("unlisted",)


@pytest.mark.parametrize("coded", [False, True])
def test_texts_are_normalised_where_events_are_mapped(coded):
    texts = pa.array([" tea", "TEA", None, " ", "x" * 300, "tea", "TRUE"])
    texts = texts.dictionary_encode() if coded else texts
    found = keys_of_texts(texts, KeyRules(fold_case=True))
    assert found.to_pylist() == ["tea", "tea", None, "", NO_KEY, "tea", "true"]
    assert keys_of_texts(texts, KeyRules()).to_pylist()[-2:] == ["tea", "true"]


@settings(max_examples=200)
@given(
    st.lists(st.text(max_size=8) | st.sampled_from(["True", "FALSE "])),
    st.booleans(),
    st.integers(1, 6),
)
def test_texts_are_normalised_as_lists_of_keys_are(texts, fold_case, longest):
    rules = KeyRules(fold_case=fold_case, longest=longest)
    found = keys_of_texts(pa.array(texts, pa.string()), rules).to_pylist()
    for text, key in zip(texts, found, strict=True):
        assert (rules.key(text) or ("" if not text.strip() else NO_KEY)) == key


def test_a_time_that_is_far_away_takes_no_longer(monkeypatch):
    """The release refuses such a gap; to discover keys in each slot of it would take hours."""
    charged = []
    charge = discover.DiscoveryFilter.charge

    def noted(books, slot, epsilon, delta):
        charged.append(slot)
        return charge(books, slot, epsilon, delta)

    monkeypatch.setattr(discover.DiscoveryFilter, "charge", noted)
    made = discover.discover_keys(plan(), [batch([("ann", "a", 1), ("bob", "a", 1_000_000)])])
    assert discovered_keys(made.query_set.queries[0]).values == ()
    assert charged == [0, 200_000]


def test_pairs_that_come_again_in_other_batches_count_once(monkeypatch):
    rows = [(f"u{user}", f"key {user % 3}", day) for user in range(20) for day in (1, 2)]
    once = counted(monkeypatch, rows, 1, size=40)
    monkeypatch.setattr(discover, "MOST_PAIRS", 40)
    assert counted(monkeypatch, rows * 5, 1, size=7) == once
    with pytest.raises(TooManyPairs):
        counted(monkeypatch, [*rows * 5, ("u1", "key 2", 1)], 1, size=7)
