"""Keys that are listed in the course of a stream: passes add up to one, within all budgets."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.engine import metrics
from streamveil.engine.capabilities import OF_GROWING
from streamveil.engine.messages import LEDGER, STATE
from streamveil.engine.run import discover
from streamveil.engine.run.one_by_one import release_by_discovery_slot
from streamveil.engine.run.release import release_plan
from streamveil.engine.stream.query_plan import QueryPlan, columns_for
from streamveil.mechanisms import ConfigurationError, Registry, Requirement
from streamveil.mechanisms.core.budgets import to_epsilon
from streamveil.mechanisms.core.records import REPLACE
from streamveil.mechanisms.discovery.key_draw import TooManyPairs
from streamveil.mechanisms.queries.definitions import QueryDefinition
from streamveil.mechanisms.queries.discovered import Listed, declared, discovered_keys
from streamveil.mechanisms.queries.query_stream import QueryStream
from streamveil.mechanisms.queries.reading import query_set

DAY = 86_400_000_000
FIRST, LAST = 100, 127
WINDOW = 4
TABLE = Registry.of(
    {f"u{n}": Requirement(*((3, 30.0), (WINDOW, 50.0))[n % 2]) for n in range(120)},
    default=(Requirement(WINDOW, 50.0), 40),
)
TOTALS = {"name": "all", "by": None, "keys": None}


def asked(*queries):
    every = ({"by": "key", "keys": "discover", **one} for one in queries)
    given = ({name: value for name, value in one.items() if value} for one in every)
    return query_set("1d", map(QueryDefinition.of, given))


def plan_of(asks, **options):
    given = {"noise_key": bytes(32), "delta": 1e-6, "growing": True, "registry": TABLE, **options}
    registry = given.pop("registry")
    return QueryPlan(
        asks,
        registry,
        columns_for(asks, "user", "time"),
        first_slot=FIRST,
        last_slot=LAST,
        may_be_empty=True,
        max_rejected=1.0,
        **given,
    )


def rows_of(seed=0, users=150):
    """Events, in any order: keys become popular one after the other."""
    random = np.random.default_rng(seed)
    found = []
    for day in range(FIRST, LAST + 1):
        there = random.permutation(users)[: users * 2 // 3]
        popular = 1 + (day - FIRST) // 3
        for user in there.tolist():
            number = int(random.integers(popular)) if random.random() < 0.8 else 100 + user
            found.append((f"u{user}", f"key {number}", float(random.integers(10)), day))
    return found


def batch(rows):
    users, keys, sizes, days = zip(*rows, strict=True) if rows else ((),) * 4
    times = pa.array(np.array(days, np.int64) * DAY, pa.timestamp("us", "UTC"))
    return pa.RecordBatch.from_pydict(
        {
            "user": pa.array(users, pa.string()),
            "key": pa.array(keys, pa.string()),
            "size": pa.array(sizes, pa.float64()),
            "time": times,
        }
    )


def passes(plan, rows, cuts):
    """What each pass gives: from one base slot of `cuts` to before the next one."""
    state, found = None, []
    edges = [FIRST, *sorted(cuts), LAST + 1]
    for first, after in pairwise(edges):
        if first == after:
            continue
        own = [row for row in rows if first <= row[-1] < after]
        due = replace(
            plan,
            first_slot=first,
            last_slot=after - 1,
            resume=state,
            ends=False,
            stream_start=FIRST,
            revise_rest=False,
        )
        events = [batch(own[:50]), batch(own[50:])]
        outputs = released(due, events)
        (state,) = (one.value[1] for one in outputs if one.tag == STATE)
        found.append((replace(plan, first_slot=after, last_slot=None, resume=state), outputs))
    return found


def released(due, events):
    """What a pass gives, over one discovery slot or several."""
    if len(due.discovery_ranges) > 1:
        return list(release_by_discovery_slot(due, events))
    return list(release_plan(discover.discover_keys(due, events), events))


def published(found):
    """All that is public: results and the ledger."""
    return [repr(one.value) for _, outputs in found for one in outputs if one.tag in (None, LEDGER)]


def state_of(found):
    return [one.value for _, outputs in found for one in outputs if one.tag == STATE][-1]


QUERIES = {
    "several": (
        {"name": "q", "keys": {"discover": {"max_keys": 2, "allow": ["key 1"]}}},
        {"name": "users", "statistic": "distinct", "every": "2d"},
        TOTALS,
    ),
    "count": ({"name": "q"},),
    "mean": ({"name": "q", "statistic": "mean", "of": "size", "bounds": [0, 10]},),
    "pba": ({"name": "q", "mechanism": "pba"},),
    "total": ({"name": "q", "levels": "all"},),
    "pairs": ({"name": "q", "max_contributions": 3, "null": "none", "every": "4d"},),
    "groups": (
        {
            "name": "q",
            "levels": [{"low": ["key 0", "key 1*"], "own": ["unlisted", "key 2"]}, "all"],
        },
        {
            "name": "mean",
            "statistic": "mean",
            "of": "size",
            "bounds": [0, 10],
            "null": "none",
            "levels": [{"b": ["key 3"], "a": ["none", "unlisted"], "low": ["key 1*"]}],
        },
        {"name": "pba", "levels": [{"b": ["key 3"], "a": ["unlisted"]}], "mechanism": "pba"},
    ),
}


@cache
def in_one_pass(name):
    """A plan, events, and what one pass gives."""
    plan, rows = plan_of(asked(*QUERIES[name])), comes_and_goes()
    return plan, rows, passes(plan, rows, [])


@pytest.mark.many
@pytest.mark.parametrize("name", QUERIES)
@settings(max_examples=8, deadline=None)
@given(cuts=st.sets(st.integers(FIRST, LAST), max_size=6), seed=st.integers(0, 99))
def test_passes_add_up_to_one(name, cuts, seed):
    plan, rows, once = in_one_pass(name)
    order = np.random.default_rng(seed).permutation(len(rows))
    several = passes(plan, [rows[number] for number in order], cuts)
    assert published(several) == published(once)
    assert state_of(several) == state_of(once)
    listed = discovered_keys(several[-1][0].query_set.queries[0])
    assert len(listed.since) > 3
    assert len(set(listed.since)) > 2
    assert all(since % WINDOW == 0 for since in listed.since)
    if name in ("count", "pba"):
        assert listed.ended


@pytest.mark.many
@pytest.mark.parametrize("statistic", ["sum", "variance", "quantiles"])
def test_passes_add_up_to_one_for_other_statistics(statistic):
    more = {"quantiles": [0.5]} if statistic == "quantiles" else {}
    query = {"name": "q", "statistic": statistic, "of": "size", "bounds": [0, 10], **more}
    plan, rows = plan_of(asked(query)), rows_of()
    assert published(passes(plan, rows, [103, 104, 110, 121])) == published(passes(plan, rows, []))


def test_the_first_pass_chooses_bounds_from_all_of_its_events():
    """There are no events in its first discovery slot."""
    plan = plan_of(asked({"name": "q", "statistic": "mean", "of": "size", "bounds": "auto"}))
    rows = [row for row in rows_of() if row[-1] >= FIRST + WINDOW]
    with metrics.counting() as counts:
        found = passes(plan, rows, [118])
    assert sum(name.startswith(metrics.BOUNDS_PREFIX) for name in counts.counters) == 1
    assert published(passes(plan, rows, [118, 119, 125])) == published(found)
    assert discovered_keys(found[-1][0].query_set.queries[0]).values


def answers(found, name="q"):
    """The figures of a query: by base slot, by key."""
    tables: dict[int, dict[str, float]] = {}
    for _, outputs in found:
        for one in outputs:
            if one.tag is None and one.value.query == name:
                figures = one.value.figures.values[:, 0].tolist()
                tables[one.value.slot] = dict(zip(one.value.labels, figures, strict=True))
    return tables


def test_a_key_is_counted_from_its_first_slot_on():
    rows = rows_of()
    found = passes(plan_of(asked({"name": "q"})), rows, [105, 113])
    listed = discovered_keys(found[-1][0].query_set.queries[0])
    known = dict(zip(listed.values, listed.since, strict=True))
    assert known["key 0"] == FIRST + WINDOW
    for slot, figures in answers(found).items():
        there = {key for key, since in known.items() if since <= slot}
        assert set(figures) == there | {"unlisted"}
        here = [key for _, key, _, day in rows if day == slot]
        for key in there:
            assert figures[key] == pytest.approx(here.count(key), abs=8)
        rest = sum(key not in there for key in here)
        assert figures["unlisted"] == pytest.approx(rest, abs=8)


GROUPS = {"low": ["key 0", "key 1*"], "mid": ["key 2"], "rest": ["unlisted", "none"]}


def group_of(key):
    own = "rest" if key is None else "low" if key == "key 0" or key[:5] == "key 1" else "rest"
    return "mid" if key == "key 2" else own


@pytest.mark.parametrize(("every", "levels"), [("1d", [GROUPS, "all"]), ("2d", [GROUPS])])
def test_groups_have_all_events_of_their_keys_before_and_after_these_are_listed(every, levels):
    rows = [
        (user, None if n % 9 == 0 else key, *more) for n, (user, key, *more) in enumerate(rows_of())
    ]
    query = {"name": "q", "every": every, "levels": levels, "null": "none"}
    found = passes(plan_of(asked(query)), rows, [104, 105, 114])
    results = [one.value for _, outputs in found for one in outputs if one.tag is None]
    days, checked = int(every[0]), set()
    for one in results:
        values = dict(zip(one.labels, one.values[:, 0].tolist(), strict=True))
        levels_of = dict(zip(one.labels, one.levels.tolist(), strict=True))
        keys = {key for key, level in levels_of.items() if level == 0}
        bins = {"unlisted: low": "low", "unlisted: mid": "mid", "unlisted": "rest", "none": "rest"}
        assert one.labels[-len(bins) - 3 - len(levels) + 1 :][: len(bins)] == tuple(bins)
        here = {(user, key) for user, key, _, day in rows if day // days == one.slot}
        for group in GROUPS:
            mine = [key for key in keys if bins.get(key, group_of(key)) == group]
            assert sum(values[key] for key in mine) == values[group]
            if days == 1:
                true = sum(group_of(key) == group for _, key in here)
                assert values[group] == pytest.approx(true, abs=12)
        checked |= {key for key in keys - bins.keys() if group_of(key) != "rest"}
    assert {"key 0", "key 1", "key 2"} <= checked


def test_a_key_that_is_called_as_a_group_is_never_listed():
    names = {"key 0": "all", "key 1": "low", "key 2": "unlisted: low", "key 3": "unlisted"}
    rows = [(user, names.get(key, key), *more) for user, key, *more in rows_of()]
    query = {"name": "q", "levels": [{"low": ["key 1*"], "rest": ["unlisted"]}, "all"]}
    found = passes(plan_of(asked(query)), rows, [112])
    listed = discovered_keys(found[-1][0].query_set.queries[0]).values
    assert "key 4" in listed
    assert not set(names.values()) & set(listed)


def test_a_rare_key_of_a_group_changes_only_the_noisy_counts_of_its_group():
    query = {"name": "q", "levels": [{"low": ["key *"], "rest": ["unlisted"]}]}
    rows = [(user, key.replace("key 1", "other 1"), *more) for user, key, *more in rows_of()]
    rare = [*rows, ("u7", "key secret/own\u2028", 1.0, 110)]
    for some in (rows, rare):
        found = passes(plan_of(asked(query)), some, [])
        public = " ".join(published(found)) + repr(found[-1][0].describe())
        assert "secret" not in public
        assert set(found[-1][0].query_set.queries[0].tree.levels[0]) == {"low", "rest"}


AWAY = range(FIRST + 2 * WINDOW, FIRST + 4 * WINDOW)
"""Days on which a key has no events."""


def comes_and_goes():
    """Events of a key that has none for some days, and then is popular again, and of others."""
    rows = [row for row in rows_of() if row[1] != "key 0" or row[-1] not in AWAY]
    last = [
        (f"u{user}", "key 0", 1.0, day) for day in range(AWAY[-1] + 1, LAST) for user in range(60)
    ]
    return rows + last


@pytest.mark.parametrize("mechanism", ["adaptive", "pba", "pbd", "ba", "bd"])
def test_a_key_without_events_leaves_and_returns(mechanism):
    query, rows = {"name": "q", "mechanism": mechanism}, comes_and_goes()
    found = passes(plan_of(asked(query)), rows, [])
    keys = discovered_keys(found[-1][0].query_set.queries[0])
    since, until = next(times for key, *times in keys.ended if key == "key 0")
    assert (since, until) == (FIRST + WINDOW, AWAY[0] + WINDOW)
    again = dict(zip(keys.values, keys.since, strict=True))["key 0"]
    assert again == AWAY[-1] + 1 + WINDOW
    for slot, figures in answers(found).items():
        assert ("key 0" in figures) == (since <= slot < until or slot >= again)


def test_keys_stay_on_request():
    query = {"name": "q", "keys": {"discover": {"stay": True}}}
    found = passes(plan_of(asked(query)), comes_and_goes(), [])
    keys = discovered_keys(found[-1][0].query_set.queries[0])
    assert not keys.ended
    assert dict(zip(keys.values, keys.since, strict=True))["key 0"] == FIRST + WINDOW


def test_keys_that_are_always_listed_never_leave():
    query = {"name": "q", "keys": {"discover": {"allow": ["never", "key 0"]}}}
    found = passes(plan_of(asked(query)), comes_and_goes(), [])
    keys = discovered_keys(found[-1][0].query_set.queries[0])
    assert keys.values[:2] == ("never", "key 0")
    assert {key for key, *_ in keys.ended}.isdisjoint(keys.values[:2])


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 99))
def test_the_keys_that_leave_follow_from_the_published_results(seed):
    plan = plan_of(asked({"name": "q"}), noise_key=bytes([seed] * 32))
    found = passes(plan, comes_and_goes(), [])
    keys = discovered_keys(found[-1][0].query_set.queries[0])
    excess, since = {}, {}
    left = []
    for one in (one.value for _, outputs in found for one in outputs if one.tag is None):
        if one.slot % WINDOW == 0:
            here = excess.items()
            left += [(key, since[key], one.slot) for key, over in here if sum(over) < 0]
            excess = {key: [] for key in one.labels if key != "unlisted"}
        since = {key: since.get(key, one.slot) for key in excess}
        over = (one.values - one.stderr)[:, 0].tolist()
        for key, value in zip(one.labels, over, strict=True):
            if key in excess:
                excess[key].append(value)
    assert keys.ended == tuple(left)


@pytest.mark.parametrize("queries", [({"name": "q"},), ({"name": "q"}, {"name": "r"})])
def test_events_are_accounted_for_alike_in_passes_of_any_length(queries):
    plan, tallies = plan_of(asked(*queries)), []
    for cuts in ([], range(FIRST, LAST, WINDOW)):
        with metrics.counting() as counts:
            passes(plan, rows_of() * 2, cuts)
        tallies.append(dict(counts.counters))
    assert tallies[0] == tallies[1]
    assert tallies[0][metrics.EVENTS_BOUNDED_AWAY + metrics.OF_QUERY + "q"] == len(rows_of())


def test_found_keys_that_an_earlier_version_saved_before_they_were_listed_are_left_out():
    written = {"keys": ["a", "b", "c"], "since": [4, 8]}
    assert Listed.of_record(written, 7) == Listed(("a", "b"), (4,))
    assert Listed.of_record(written, None) == Listed(("a",))


def test_keys_of_one_user_each_stay_unlisted():
    rows = [(user, f"own {user}", size, day) for user, _, size, day in rows_of()]
    found = passes(plan_of(asked({"name": "q"})), rows, [107])
    assert discovered_keys(found[-1][0].query_set.queries[0]).values == ()


class Recording(discover.Discovery):
    """Remembers what noise is added to, and lists the keys that the real one lists."""

    seen = {}

    def find(self, slot, pairs):
        counts = self._counts(slot, pairs)
        for place in np.flatnonzero(counts):
            assert (slot, *pairs.digests[place].tolist()) not in self.seen
            self.seen[(slot, *pairs.digests[place].tolist())] = int(counts[place])
        return super().find(slot, pairs)


def recorded(patch, rows, cuts):
    patch.setattr(discover, "Discovery", Recording)
    patch.setattr(Recording, "seen", {})
    found = passes(plan_of(asked({"name": "q"})), rows, cuts)
    keys = discovered_keys(found[-1][0].query_set.queries[0])
    came = {(since, key) for key, since in zip(keys.values, keys.since, strict=True)}
    for key, since, until in keys.ended:
        came |= {(since, key), (until, key, "left")}
    return dict(Recording.seen), came


@pytest.mark.parametrize(
    ("user", "window", "first"),
    [("u1", WINDOW, FIRST), ("u2", 3, 115), ("u149", WINDOW, 115)],
)
def test_a_window_of_a_user_changes_no_more_counts_than_is_paid_for(
    monkeypatch, user, window, first
):
    rows = comes_and_goes()
    (made,) = plan_of(asked({"name": "q"})).discoverers()
    before, listed = recorded(monkeypatch, rows, [102, 109, 118])
    left = [row for row in rows if row[0] != user or not first <= row[-1] < first + window]
    after, same = recorded(monkeypatch, left, [104, 118])
    # Slots after one in which another key came or left are compared given the keys.
    until = min((slot // WINDOW for slot, *_ in listed ^ same), default=LAST)
    keys = [key for key in before.keys() | after.keys() if key[0] < until]
    changes = [before.get(key, 0) - after.get(key, 0) for key in keys]
    k = [one.window for one in TABLE.classes].index(window)
    draw, weight = made._draws[k], int(made.terms.weights[k])
    assert any(changes)
    assert set(map(abs, changes)) <= {0, weight}
    assert sum(map(abs, changes)) <= weight * draw.in_window(draw.changed, window)


def test_no_window_spends_more_than_its_budget_with_the_discovery():
    found = passes(
        plan_of(
            asked(
                {"name": "q", "levels": "all"},
                {"name": "r", "max_contributions": 2},
                {"name": "s", "levels": [GROUPS], "null": "none", "every": "4d"},
            )
        ),
        comes_and_goes(),
        [108],
    )
    assert all(discovered_keys(query).ended for query in found[-1][0].query_set)
    entries = [one.value for _, outputs in found for one in outputs if one.tag == LEDGER]
    budgets = np.array([one.epsilon for one in TABLE.classes])
    for entry in entries:
        assert (entry.spent_in_window <= budgets[: len(entry.spent_in_window)] + 1e-9).all()
    look = found[0][0].describe().promise["classes"][0]["look"]
    assert max(entry.spent_in_window[0] for entry in entries) > look


def test_all_costs_of_a_window_add_up_to_no_more_than_its_budget(monkeypatch):
    costs = []
    charge = discover.DiscoveryFilter.charge

    def noted(books, slot, epsilon, delta):
        costs.append((slot, epsilon))
        return charge(books, slot, epsilon, delta)

    monkeypatch.setattr(discover.DiscoveryFilter, "charge", noted)
    queries = (
        {"name": "q", "levels": "all"},
        {"name": "s", "levels": [GROUPS], "null": "none", "every": "2d"},
    )
    found = passes(plan_of(asked(*queries)), rows_of(), [108])
    entries = [one.value for _, outputs in found for one in outputs if one.tag == LEDGER]
    made = found[-1][0]
    assert len(costs) == len(queries) * (LAST // WINDOW - FIRST // WINDOW)  # the last is open
    for k, requirement in enumerate(made.known.classes):
        (changed,) = {tuple(one._draws[k].changed.tolist()) for one in made.discoverers()}
        windows = []
        for first in range(FIRST - requirement.window + 1, LAST + 1):
            after = first + requirement.window
            own = (e for e in entries if e.first_base_slot < after and e.last_base_slot >= first)
            total = sum(entry.spent[k] for entry in own)
            for slot, epsilon in costs:
                covered = min(after, (slot + 1) * WINDOW) - max(first, slot * WINDOW)
                total += changed[max(covered, 0)] * to_epsilon(epsilon)[k]
            windows.append(total)
        assert 0.7 * requirement.epsilon < max(windows) <= requirement.epsilon + 1e-9


def test_a_user_changes_a_histogram_by_no_more_than_its_sensitivity(monkeypatch):
    seen = []
    release = QueryStream.release

    def noted(stream, state, slot, counts, *more):
        for q, one in counts.items():
            query = stream.query_set.queries[q]
            seen[-1][slot, query.name] = one.sum(axis=0), query.sensitivity, query.domain.labels
        return release(stream, state, slot, counts, *more)

    monkeypatch.setattr(QueryStream, "release", noted)
    queries = (
        {"name": "q", "levels": [GROUPS, "all"], "null": "none"},
        {"name": "s", "levels": [GROUPS], "null": "none", "every": "2d", "max_contributions": 3},
    )
    rows = rows_of()
    for user in (None, "u1", "u2", "u149"):
        seen.append({})
        passes(plan_of(asked(*queries)), [row for row in rows if row[0] != user], [109])
    compared = 0
    for other in seen[1:]:
        for place, (counts, sensitivity, labels) in seen[0].items():
            if other[place][2] == labels:
                compared += 1
                assert 0 <= np.abs(counts - other[place][0]).sum() <= sensitivity
    assert compared > 20
    assert {one[1] for one in seen[0].values()} == {2, 6}


def test_each_discovery_slot_is_charged_once_whether_anything_is_found(monkeypatch):
    charged = []
    charge = discover.DiscoveryFilter.charge

    def noted(books, slot, epsilon, delta):
        charged.append(slot)
        return charge(books, slot, epsilon, delta)

    monkeypatch.setattr(discover.DiscoveryFilter, "charge", noted)
    passes(plan_of(asked({"name": "q"})), [], [101, 102, 112, 125])
    assert charged == list(range(FIRST // WINDOW, LAST // WINDOW))  # the last one is still open


def test_a_slot_that_was_charged_before_is_refused():
    plan, rows = plan_of(asked({"name": "q"})), rows_of()
    made, outputs = passes(replace(plan, last_slot=FIRST + 7), rows, [FIRST + 8])[0]
    books = made.discoverers()[0].filter()
    (record,) = discover._kept_before(made.discovery, 1)
    books.read(record["filter"])
    terms = made.discoverers()[0].terms
    with pytest.raises(ValueError, match="is charged after slot"):
        books.charge(FIRST // WINDOW, terms.epsilon, terms.delta)
    assert outputs


def test_too_many_pairs_in_all_passes_of_a_slot_are_refused(monkeypatch):
    monkeypatch.setattr(discover, "MOST_PAIRS", 250)
    plan, rows = plan_of(asked({"name": "q"})), rows_of()
    with pytest.raises(TooManyPairs, match="smaller sample"):
        passes(plan, rows, [101, 102, 103])
    few = [row for row in rows if int(row[0][1:]) < 50]
    assert passes(plan, few, [101, 102, 103])


def test_keys_of_users_with_delta_0_are_not_kept_in_the_state(monkeypatch):
    asked_for = {f"u{n}": (WINDOW, 50.0, 0.0 if n < 60 else 1e-6) for n in range(120)}
    table = Registry.of(asked_for, default=(Requirement(WINDOW, 50.0), 40))
    plan = plan_of(asked({"name": "q"}), registry=table)
    rows = rows_of()
    pure = [(f"u{n}", f"secret {n}", 1.0, FIRST) for n in range(60)]
    states = []
    for some in (rows, rows + pure):
        made, _ = passes(plan, some, [102])[0]
        (kept,) = discover._kept_before(made.discovery, 1)
        states.append(kept)
    assert states[0] == states[1]
    assert b"key 0" in states[0]["texts"]
    others = len({row[:2] for row in rows if row[-1] < 104 and int(row[0][1:]) >= 60})
    monkeypatch.setattr(discover, "MOST_PAIRS", 2 * others)
    many = [(f"u{n}", f"secret {number}", 1.0, FIRST) for n in range(60) for number in range(99)]
    assert passes(plan, [row for row in rows if row[-1] < 104] + many, [])


@pytest.mark.parametrize(
    ("why", "query", "options"),
    [
        ("revise", {}, {"revise": 2}),
        ("rollups", {"rollups": ["4d"]}, {}),
        ("slots", {"every": "3d"}, {}),
        ("slots", {"every": "1mo"}, {}),
        ("keep", {"keep": "distinct", "max_contributions": 2}, {}),
        ("mechanism", {"mechanism": "uniform"}, {}),
    ],
)
def test_what_passes_cannot_have_is_refused_with_its_reason(why, query, options):
    with pytest.raises(ConfigurationError) as error:
        plan_of(asked({"name": "q", **query}), **options)
    assert f"query 'q': {OF_GROWING[why]}" in str(error.value)


def test_a_state_of_other_options_of_the_discovery_is_refused():
    plan, rows = plan_of(asked({"name": "q"})), rows_of()
    state = state_of(passes(plan, rows, [105])[:1])[1]
    other = asked({"name": "q", "keys": {"discover": {"max_keys": 2}}})
    with pytest.raises(ConfigurationError, match="query q changed"):
        replace(plan_of(other), first_slot=105, resume=state)
    listing = asked({"name": "q", "keys": ["key 0", "unlisted"]})
    with pytest.raises(ConfigurationError, match="changed"):
        replace(plan_of(listing, delta=None), first_slot=105, resume=state)


def test_a_state_that_does_not_say_what_its_discovery_has_spent_is_refused():
    whole = plan_of(asked({"name": "q"}), growing=False)
    events = [batch([row for row in rows_of() if row[-1] < 105])]
    made = discover.discover_keys(replace(whole, last_slot=104), events)
    (state,) = (one.value[1] for one in release_plan(made, events) if one.tag == STATE)
    with pytest.raises(ConfigurationError, match="not of a stream whose keys are discovered in"):
        replace(plan_of(asked({"name": "q"})), first_slot=105, resume=state)


def test_with_replacement_passes_add_up_too():
    plan, rows = plan_of(asked({"name": "q"}), adjacency=REPLACE), rows_of()
    assert published(passes(plan, rows, [102, 115])) == published(passes(plan, rows, []))


def test_what_a_discovery_is_bound_to_does_not_change_as_keys_are_found():
    made, _ = passes(plan_of(asked({"name": "q"})), rows_of(), [])[0]
    (query,) = made.query_set
    assert discovered_keys(query).values
    assert made.discovery_identity(query) == made.discovery_identity(declared(query))
