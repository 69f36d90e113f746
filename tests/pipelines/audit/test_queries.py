"""The audit of a query set convicts what tells too much, together or by one query."""

from dataclasses import replace

import numpy as np
import pytest

from streamveil.mechanisms import Categories, Requirement, Slots
from streamveil.mechanisms.core.budgets import Requirements, to_epsilon
from streamveil.mechanisms.core.records import REPLACE
from streamveil.mechanisms.driver.stream import ReleaseStream
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.query_filter import QueryFilter
from streamveil.mechanisms.queries.query_stream import QueryStream
from streamveil.mechanisms.queries.statistics import Mean
from streamveil.mechanisms.queries.trees import Tree
from streamveil.pipelines.audit import streams, worlds
from streamveil.pipelines.audit.auditing import StreamsAudit, audited_queries
from streamveil.pipelines.audit.canaries import Canaries
from streamveil.pipelines.audit.findings import CHARGE, SHARE, TOGETHER, WINDOW
from streamveil.pipelines.audit.rounds import Extent
from streamveil.pipelines.audit.runs import published_in, spent_of
from streamveil.pipelines.audit.streams import Queries
from streamveil.pipelines.audit.worlds import KINDS, WINDOWS, World, world_of
from tests.audits import mutants
from tests.audits.scenes import BRIEF

ASKED = [Requirement(3, 3.0)]
PLACES = Categories(("a", "b"))


def query_set(mechanism="uniform", **more) -> QuerySet:
    """A query by base slot and one by three of them."""
    one = {"value": ("place",), "domain": PLACES, "mechanism": mechanism, **more}
    return QuerySet(Slots.of("1h"), (Query("hour", **one), Query("shift", slots=3, **one)))


@pytest.fixture
def short(monkeypatch):
    """Runs of as few slots as there can be."""
    monkeypatch.setattr(worlds, "LENGTH", 24)
    monkeypatch.setattr(worlds, "LONGEST", 2)


@pytest.fixture
def beyond_the_books(monkeypatch):
    """Every query runs on so many times its share, and books what it should have cost."""

    def beyond(times):
        stream, release = QueryStream._stream, ReleaseStream.release

        def rich(self, query, units, noise, **given):
            return stream(self, query, (units * times).astype(np.int64), noise, **given)

        def lying(self, *given):
            state, found = release(self, *given)
            return state, replace(found, spent=(found.spent / times).astype(np.int64))

        monkeypatch.setattr(QueryStream, "_stream", rich)
        monkeypatch.setattr(ReleaseStream, "release", lying)

    return beyond


@pytest.fixture
def without_the_last_filter(monkeypatch):
    """The filter over all queries lets everything pass."""
    monkeypatch.setattr(QueryFilter, "charge", lambda *_: None)


def together(found, claim=WINDOW):
    """The check of all queries."""
    return next(one for one in found.checks if (one.query, one.claim) == (TOGETHER, claim))


@pytest.mark.usefixtures("short")
def test_an_honest_query_set_is_granted_its_claim_by_query_and_together():
    found = audited_queries(query_set(), ASKED, bins=64, extent=BRIEF)
    assert not found.violated
    assert 0.99 < found.overspent <= 1.0
    assert {(one.query, one.part, one.claim) for one in found.checks} == {
        *((TOGETHER, "windows", claim) for claim in (CHARGE, WINDOW)),
        *(
            (name, part, claim)
            for name in ("hour", "shift")
            for part, claim in (
                *((part, CHARGE) for part in ("publications", "looks", "bins", "windows")),
                ("windows", SHARE),
            )
        ),
    }
    assert together(found).claimed == 3.0
    shares = {one.query: one.claimed for one in found.checks if one.claim == SHARE}
    assert shares == pytest.approx({"hour": 1.5, "shift": 1.5})
    bins = {one.query: one.times for one in found.checks if one.part == "bins"}
    assert min(bins.values()) > 0.6


@pytest.mark.slow
def test_a_fifth_more_than_all_queries_may_tell_is_seen_together(beyond_the_books):
    honest = audited_queries(query_set(), ASKED, bins=1024, extent=Extent(runs=4, seed=1))
    assert not honest.violated
    assert together(honest).visible < 1.25
    beyond_the_books(1.2)
    found = audited_queries(query_set(), ASKED, bins=1024, extent=Extent(runs=4, seed=1))
    assert found.overspent <= 1.0
    assert together(found).violated
    assert {one.query for one in found.checks if one.violated} >= {"hour", "shift"}


@pytest.mark.usefixtures("short")
def test_one_query_that_tells_twice_its_share_is_named(monkeypatch):
    mutants.slots_in_part_as_whole(monkeypatch)
    found = audited_queries(query_set(), ASKED, bins=64, extent=BRIEF)
    assert {one.query for one in found.checks if one.violated} == {"shift"}
    assert "by query 'shift'" in found.sentence


@pytest.mark.usefixtures("short", "without_the_last_filter")
def test_shares_of_more_than_all_are_convicted_exactly(monkeypatch):
    mutants.shares_of_more_than_all(monkeypatch)
    found = audited_queries(query_set(), ASKED, bins=4, extent=BRIEF)
    assert found.overspent == pytest.approx(1.2)
    assert "charged 1.2 times the budget of a window" in found.sentence


# All mechanisms and statistics, groups, and slots of which four are not three.
@pytest.mark.usefixtures("short")
@pytest.mark.slow
def test_queries_of_all_kinds_are_audited():
    tree = Tree.of(PLACES, ["all"])
    place = {"value": ("place",), "domain": PLACES}
    some = QuerySet(
        Slots.of("1h"),
        (
            Query("hour", mechanism="pba", max_contributions=2, **place),
            Query("shift", slots=4, statistic=Mean("delay", 0.0, 30.0), tree=tree, **place),
            Query("all", slots=2, mechanism="uniform", share=0.25),
        ),
    )
    both = [Requirement(3, 3.0), Requirement(6, 8.0)]
    found = audited_queries(some, both, bins=16, adjacency=REPLACE, extent=Extent(runs=4, seed=2))
    assert not found.violated
    assert 0.9 < found.overspent <= 1.0
    assert {one.requirement for one in found.checks if one.query == "shift"} == set(both)


@pytest.mark.usefixtures("short")
def test_canaries_stand_beside_counts_of_ones_own():
    draw = np.random.default_rng(3)
    counts = {
        "hour": draw.poisson(9, (62, 1, 2)).astype(np.int64),
        "shift": draw.poisson(20, (21, 1, 2)).astype(np.int64),
    }
    found = audited_queries(query_set(), ASKED, sizes=[50], counts=counts, first_slot=4)
    assert found.own
    assert not found.violated
    assert together(found).guesses > 0


@pytest.mark.usefixtures("short")
def test_queries_that_would_not_fit_into_memory_have_fewer_bins(monkeypatch):
    monkeypatch.setattr(streams, "MOST_COUNTS", 480 * 12)
    found = audited_queries(query_set(), ASKED, bins=16, extent=BRIEF)
    assert found.notes == (
        "query 'hour' is asked of 12 bins: more would not fit into memory; canaries of windows "
        "are as few",
    )


def test_the_same_seed_gives_the_same_audit(short):
    once, again, other = (
        audited_queries(query_set(), ASKED, bins=8, extent=Extent(runs=4, seed=seed))
        for seed in (1, 1, 2)
    )
    assert once.checks == again.checks
    assert once.checks != other.checks


# ---- worlds -----------------------------------------------------------------------------------


def changed(made, kind, number=0):
    """By query, cells of the histograms that differ with and without each canary alone."""
    random, scene = np.random.default_rng(number), made.scene
    world = world_of(kind, scene, 0, number, random, None)
    for others, plan, population in zip(world.others, world.plans, scene.populations, strict=True):
        for i in range(plan.users.size):
            lone = np.arange(plan.users.size) == i
            nobody = replace(plan, users=lone.astype(np.int64))
            apart = replace(nobody, there=lone).add_to(others) - nobody.add_to(others)
            yield plan, i, population, np.abs(apart).sum(axis=(1, 2))


@pytest.mark.parametrize("adjacency", ["add_remove", REPLACE])
@pytest.mark.parametrize("kind", KINDS)
def test_a_canary_changes_what_one_user_may_and_no_more(short, kind, adjacency):
    made = Queries.of(query_set(), Requirements(tuple(ASKED)), np.array([9]), adjacency).widened(4)
    for plan, i, population, apart in changed(made, kind):
        met = slice(plan.first[i], plan.end[i])
        assert apart[met].max() == population.sensitivity  # somewhere all that a user may change
        assert apart.sum() == apart[met].sum()
        assert met.stop - met.start <= population.requirements[0].window
        if kind == WINDOWS:
            assert met.stop - met.start == population.requirements[0].window


def test_what_is_charged_in_windows_is_added_up_over_all_queries():
    made = Queries.of(query_set(), Requirements(tuple(ASKED)), np.array([9]), "add_remove")
    nobody = [Canaries.nobody(0, (), *np.zeros((2, 0), np.int64))] * 2
    world = World((np.zeros((12, 1, 2), int), np.zeros((4, 1, 2), int)), tuple(nobody))
    outputs = published_in(made.public(bytes(32), world, nobody))
    hour, shift = (to_epsilon(spent_of(outputs, q))[:, 0] for q in (0, 1))
    most = max(hour[t : t + 3].sum() + shift[t // 3 : (t + 2) // 3 + 1].sum() for t in range(10))
    assert StreamsAudit("it", made, None, 0).fullest(outputs) * 3.0 == pytest.approx(most)
    assert [made.promised(outputs, q, 0)[0] for q in (0, 1)] == pytest.approx(
        to_epsilon(made.shares[:, 0])
    )


def test_counts_are_padded_to_slots_that_begin_and_end_together():
    made = Queries.of(query_set(), Requirements(tuple(ASKED)), np.array([9]), "add_remove")
    hours, shifts = made.padded([np.ones((8, 1, 2), int), np.ones((3, 1, 2), int)], 4)
    # Hours 4 to 11 and shifts 1 to 3 begin with hour 3.
    assert [len(hours), len(shifts)] == [9, 3]
    assert (hours[:, 0, 0] == [0, *[1] * 8]).all()
    assert shifts.all()


# As of `test_auditing.py`.
@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_honest_query_sets_are_acquitted_with_every_seed():
    convicted = [
        audited_queries(query_set(), ASKED, bins=64, extent=Extent(runs=4, seed=seed)).violated
        for seed in range(2)
    ]
    assert not any(convicted)
