"""The audit of a portfolio convicts what tells too much, together or by one question."""

from dataclasses import replace

import numpy as np
import pytest

from streamveil.mechanisms import Categories, Requirement, Slots
from streamveil.mechanisms.core.budgets import Requirements, to_epsilon
from streamveil.mechanisms.core.records import REPLACE
from streamveil.mechanisms.driver.stream import ReleaseStream
from streamveil.mechanisms.portfolio.portfolio_filter import PortfolioFilter
from streamveil.mechanisms.portfolio.portfolio_stream import PortfolioStream
from streamveil.mechanisms.portfolio.questions import Portfolio, Question
from streamveil.mechanisms.portfolio.statistics import Mean
from streamveil.mechanisms.portfolio.trees import Tree
from streamveil.pipelines.audit import asked, asked_worlds
from streamveil.pipelines.audit.asked import Asked, run_asked
from streamveil.pipelines.audit.asked_worlds import asked_world, padded
from streamveil.pipelines.audit.findings import CHARGE, SHARE, TOGETHER, WINDOW
from streamveil.pipelines.audit.questions import audited_questions
from streamveil.pipelines.audit.rounds import Extent
from streamveil.pipelines.audit.worlds import KINDS, WINDOWS
from tests.audits import mutants
from tests.audits.scenes import BRIEF

ASKED = [Requirement(3, 3.0)]
PLACES = Categories(("a", "b"))


def portfolio(mechanism="uniform", **more) -> Portfolio:
    """A question by base slot and one by three of them."""
    one = {"value": ("place",), "domain": PLACES, "mechanism": mechanism, **more}
    return Portfolio(Slots.of("1h"), (Question("hour", **one), Question("shift", slots=3, **one)))


@pytest.fixture
def short(monkeypatch):
    """Runs of as few slots as there can be."""
    monkeypatch.setattr(asked_worlds, "LENGTH", 24)
    monkeypatch.setattr(asked_worlds, "LONGEST", 2)


@pytest.fixture
def beyond_the_books(monkeypatch):
    """Every question runs on so many times its share, and books what it should have cost."""

    def beyond(times):
        stream, release = PortfolioStream._stream, ReleaseStream.release

        def rich(self, question, units, *given):
            return stream(self, question, (units * times).astype(np.int64), *given)

        def lying(self, *given):
            state, found = release(self, *given)
            return state, replace(found, spent=(found.spent / times).astype(np.int64))

        monkeypatch.setattr(PortfolioStream, "_stream", rich)
        monkeypatch.setattr(ReleaseStream, "release", lying)

    return beyond


@pytest.fixture
def without_the_last_filter(monkeypatch):
    """The filter over all questions lets everything pass."""
    monkeypatch.setattr(PortfolioFilter, "charge", lambda *_: None)


def together(found, claim=WINDOW):
    """The check of all questions."""
    return next(one for one in found.checks if (one.question, one.claim) == (TOGETHER, claim))


@pytest.mark.usefixtures("short")
def test_an_honest_portfolio_is_granted_its_claim_by_question_and_together():
    found = audited_questions(portfolio(), ASKED, bins=64, extent=BRIEF)
    assert not found.convicted
    assert 0.99 < found.overspent <= 1.0
    assert {(one.question, one.part, one.claim) for one in found.checks} == {
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
    shares = {one.question: one.claimed for one in found.checks if one.claim == SHARE}
    assert shares == pytest.approx({"hour": 1.5, "shift": 1.5})
    bins = {one.question: one.times for one in found.checks if one.part == "bins"}
    assert min(bins.values()) > 0.6


@pytest.mark.slow
def test_a_fifth_more_than_all_questions_may_tell_is_seen_together(beyond_the_books):
    honest = audited_questions(portfolio(), ASKED, bins=1024, extent=Extent(runs=4, seed=1))
    assert not honest.convicted
    assert together(honest).visible < 1.25
    beyond_the_books(1.2)
    found = audited_questions(portfolio(), ASKED, bins=1024, extent=Extent(runs=4, seed=1))
    assert found.overspent <= 1.0
    assert together(found).convicted
    assert {one.question for one in found.checks if one.convicted} >= {"hour", "shift"}


@pytest.mark.usefixtures("short")
def test_one_question_that_tells_twice_its_share_is_named(monkeypatch):
    mutants.slots_in_part_as_whole(monkeypatch)
    found = audited_questions(portfolio(), ASKED, bins=64, extent=BRIEF)
    assert {one.question for one in found.checks if one.convicted} == {"shift"}
    assert "by question 'shift'" in found.sentence


@pytest.mark.usefixtures("short", "without_the_last_filter")
def test_shares_of_more_than_all_are_convicted_exactly(monkeypatch):
    mutants.shares_of_more_than_all(monkeypatch)
    found = audited_questions(portfolio(), ASKED, bins=4, extent=BRIEF)
    assert found.overspent == pytest.approx(1.2)
    assert "charged 1.2 times the budget of a window" in found.sentence


# All mechanisms and statistics, groups, and slots of which four are not three.
@pytest.mark.usefixtures("short")
@pytest.mark.slow
def test_questions_of_all_kinds_are_audited():
    tree = Tree.of(PLACES, ["all"])
    place = {"value": ("place",), "domain": PLACES}
    some = Portfolio(
        Slots.of("1h"),
        (
            Question("hour", mechanism="pba", max_contributions=2, **place),
            Question("shift", slots=4, statistic=Mean("delay", 0.0, 30.0), tree=tree, **place),
            Question("all", slots=2, mechanism="uniform", share=0.25),
        ),
    )
    both = [Requirement(3, 3.0), Requirement(6, 8.0)]
    found = audited_questions(some, both, bins=16, adjacency=REPLACE, extent=Extent(runs=4, seed=2))
    assert not found.convicted
    assert 0.9 < found.overspent <= 1.0
    assert {one.requirement for one in found.checks if one.question == "shift"} == set(both)


@pytest.mark.usefixtures("short")
def test_canaries_stand_beside_counts_of_ones_own():
    draw = np.random.default_rng(3)
    counts = {
        "hour": draw.poisson(9, (62, 1, 2)).astype(np.int64),
        "shift": draw.poisson(20, (21, 1, 2)).astype(np.int64),
    }
    found = audited_questions(portfolio(), ASKED, sizes=[50], counts=counts, first_slot=4)
    assert found.own
    assert not found.convicted
    assert together(found).guesses > 0


@pytest.mark.usefixtures("short")
def test_questions_that_would_not_fit_into_memory_have_fewer_bins(monkeypatch):
    monkeypatch.setattr(asked, "MOST_COUNTS", 480 * 12)
    found = audited_questions(portfolio(), ASKED, bins=16, extent=BRIEF)
    assert found.notes == (
        "question 'hour' is asked of 12 bins: more would not fit into memory; canaries of windows "
        "are as few",
    )


def test_the_same_seed_gives_the_same_audit(short):
    once, again, other = (
        audited_questions(portfolio(), ASKED, bins=8, extent=Extent(runs=4, seed=seed))
        for seed in (1, 1, 2)
    )
    assert once.checks == again.checks
    assert once.checks != other.checks


# ---- worlds -----------------------------------------------------------------------------------


def changed(made, kind, number=0):
    """By question, cells of the histograms that differ with and without each canary alone."""
    populations = [one.mechanism.population for one in made.stream(bytes(32)).streams]
    random = np.random.default_rng(number)
    world = asked_world(kind, made, populations, 0, number, random, None)
    for others, plan, population in zip(world.others, world.plans, populations, strict=True):
        for i in range(plan.users.size):
            lone = np.arange(plan.users.size) == i
            nobody = replace(plan, users=lone.astype(np.int64))
            apart = replace(nobody, there=lone).add_to(others) - nobody.add_to(others)
            yield plan, i, population, np.abs(apart).sum(axis=(1, 2))


@pytest.mark.parametrize("adjacency", ["add_remove", REPLACE])
@pytest.mark.parametrize("kind", KINDS)
def test_a_canary_changes_what_one_user_may_and_no_more(short, kind, adjacency):
    made = Asked.of(portfolio(), Requirements(tuple(ASKED)), np.array([9]), adjacency).widened(4)
    for plan, i, population, apart in changed(made, kind):
        met = slice(plan.first[i], plan.end[i])
        assert apart[met].max() == population.sensitivity  # somewhere all that a user may change
        assert apart.sum() == apart[met].sum()
        assert met.stop - met.start <= population.requirements[0].window
        if kind == WINDOWS:
            assert met.stop - met.start == population.requirements[0].window


def test_what_is_charged_in_windows_is_added_up_over_all_questions():
    made = Asked.of(portfolio(), Requirements(tuple(ASKED)), np.array([9]), "add_remove")
    told = run_asked(made, bytes(32), [np.zeros((12, 1, 2), int), np.zeros((4, 1, 2), int)])
    hour, shift = (one.spent[:, 0] for one in told.transcripts)
    most = max(hour[t : t + 3].sum() + shift[t // 3 : (t + 2) // 3 + 1].sum() for t in range(10))
    assert told.fullest * 3.0 == pytest.approx(most)
    assert [caps[0, 0] for caps in told.caps] == pytest.approx(to_epsilon(made.shares[:, 0]))


def test_counts_are_padded_to_slots_that_begin_and_end_together():
    made = Asked.of(portfolio(), Requirements(tuple(ASKED)), np.array([9]), "add_remove")
    hours, shifts = padded(made, [np.ones((8, 1, 2), int), np.ones((3, 1, 2), int)], 4)
    # Hours 4 to 11 and shifts 1 to 3 begin with hour 3.
    assert [len(hours), len(shifts)] == [9, 3]
    assert (hours[:, 0, 0] == [0, *[1] * 8]).all()
    assert shifts.all()


# As of `test_auditing.py`.
@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_honest_portfolios_are_acquitted_with_every_seed():
    convicted = [
        audited_questions(portfolio(), ASKED, bins=64, extent=Extent(runs=4, seed=seed)).convicted
        for seed in range(2)
    ]
    assert not any(convicted)
