"""Whole runs are replayed: rows, intervals, answers, ledger and card follow from noise."""

from dataclasses import replace

import pyarrow as pa
import pytest

from streamveil.mechanisms import BudgetExceeded, Requirement, Slots
from streamveil.mechanisms.accounting.presence_filter import PresenceFilter
from streamveil.mechanisms.core.records import Lifetime, Release
from streamveil.mechanisms.driver.stream import ReleaseStream
from streamveil.mechanisms.presence import Counters, changing
from streamveil.mechanisms.queries import limits as query_limits
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.statistics import DistinctUsers, Mean, Quantiles
from streamveil.pipelines.audit import whole_runs
from streamveil.pipelines.audit.replay import replayed
from streamveil.pipelines.audit.whole_runs import answers_stage, release_stage
from streamveil.pipelines.cards import card_writer
from streamveil.pipelines.in_memory import functions

WINDOWS, LONG = [Requirement(4, 2.0)], [Requirement(11, 3.0)]
QUERIES = QuerySet(
    Slots.of("1d"),
    (
        Query("amount", statistic=Mean("amount", -5.0, 20.0), slots=3, times=(6,)),
        Query("spread", statistic=Quantiles("amount", (0.0, 5.0, 20.0), (0.5,)), slots=3),
        Query("people", value=("x",), domain=["a", "b"], statistic=DistinctUsers(), slots=3),
    ),
)


def release(requirements=WINDOWS, **given):
    return release_stage(requirements, bins=3, **{"seed": 1, "mechanism": "pba", **given})


def limited_queries(seed=1, **given):
    asked = replace(QUERIES, queries=(*QUERIES.queries, Query("visits", mechanism="pba")))
    return answers_stage(asked, [Requirement(30, 4.0)], seed=seed, max_slots="1,1", **given)


def queries_of_lifetimes(seed=1):
    asked = replace(QUERIES, queries=(*QUERIES.queries, Query("visits", mechanism="pba")))
    promised = {"guarantee": "user", "epsilon": 6.0, "max_slots": 2}
    return answers_stage(asked, [Lifetime(6.0)], seed=seed, **promised)


FIRST_HOUR = 473_352  # of 2024, in which runs begin


def changing_queries(seed=1, window=12, every=20, **given):
    """The one who is there or not asks for more again and again, and takes it back in time.

    So all the time the smaller epsilon was in force within the longest window.
    """
    slots = [slot + back for slot in range(5, 168, every) for back in (0, 8)]
    epsilons = [20.0, 2.0] * (len(slots) // 2)
    figures = {f"window_{way}": [window] * len(slots) for way in ("backward", "forward")}
    figures |= {f"epsilon_{way}": epsilons for way in ("backward", "forward")}
    user = [str(whole_runs._last(0))] * len(slots)
    changes = pa.table({"user": user, "slot": [FIRST_HOUR + one for one in slots], **figures})
    asked = replace(QUERIES, queries=(*QUERIES.queries, Query("visits", mechanism="pba")))
    classes = [Requirement(window, 2.0), Requirement(window, 20.0)]
    return answers_stage(asked, classes, seed=seed, requirement_changes=changes, **given)


STAGES = {
    "windows": release,
    "adaptive": lambda: release(mechanism="adaptive", revise=5),
    "classes": lambda: release([*WINDOWS, Requirement(6, 9.0)], guessed=1, most=2),
    "replaced": lambda: release(mechanism="adaptive", adjacency="replace", seed=2),
    "unchanging": lambda: release(mechanism="dpbd"),
    "max_slots": lambda: release(LONG, max_slots="1,1"),
    "lives": lambda: release([Lifetime(6.0)], guarantee="user", epsilon=6.0, max_slots=2),
    "forever": lambda: release(
        [Lifetime(2.0)], guarantee="infinite", epsilon=2.0, mechanism="gated"
    ),
    "queries": lambda: answers_stage(QUERIES, [Requirement(12, 4.0)], seed=1),
    "limited queries": limited_queries,
    "queries of lifetimes": queries_of_lifetimes,
    "changing queries": changing_queries,
    "changing limited queries": lambda: changing_queries(window=30, max_slots="1,1"),
}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(whole_runs, "LENGTH", 72)


@pytest.mark.many
@pytest.mark.parametrize("name", STAGES)
def test_all_that_honest_runs_make_public_follows_from_noise(name, monkeypatch):
    found = replayed([STAGES[name]()])
    assert not found.violation
    assert not found.left_out
    assert found.complete
    assert found.worlds >= 2
    assert 0 < found.worst <= 1


# ---- mistakes, each of one place ------------------------------------------------------------


def events_counted(monkeypatch):
    """How many events slots had so far."""
    counted, exact = [0], ReleaseStream.release

    def release(self, state, slot, counts):
        counted[0] += int(counts.sum())
        return exact(self, state, slot, counts)

    monkeypatch.setattr(ReleaseStream, "release", release)
    return counted


def a_card_tells_how_many_events_there_were(monkeypatch):
    made = card_writer.Cards.of_memory

    def card(cards, tables, counters):
        return {**made(cards, tables, counters), "events": counters}

    monkeypatch.setattr(card_writer.Cards, "of_memory", card)


def a_card_tells_of_slots(monkeypatch):
    counted, made = events_counted(monkeypatch), card_writer.Cards.card
    last = lambda *a, **b: {**made(*a, **b), "last": counted[0]}  # noqa: E731
    monkeypatch.setattr(card_writer.Cards, "card", last)


def a_ledger_tells_of_slots(monkeypatch):
    counted = events_counted(monkeypatch)

    def telling(made):
        def table(entries, **given):
            found = made(entries, **given)
            place = found.schema.get_field_index("spent")
            spent = found["spent"].to_pylist()
            spent[-1] -= 1e-9 * counted[0]
            return found.set_column(place, found.schema.field(place), pa.array(spent))

        return table

    monkeypatch.setattr(functions, "ledger_table", telling(functions.ledger_table))


def a_field_tells_of_its_slot(monkeypatch, record, field):
    counted, made = events_counted(monkeypatch), record.__init__

    def telling(self, *given, **options):
        made(self, *given, **options)
        object.__setattr__(self, field, getattr(self, field) + 1e-9 * counted[0])

    monkeypatch.setattr(record, "__init__", telling)


def a_record_tells_of_its_slot(monkeypatch):
    a_field_tells_of_its_slot(monkeypatch, Release, "stderr")


def an_answer_tells_of_its_slot(monkeypatch):
    from streamveil.mechanisms.queries.slot_answers import SlotAnswer

    a_field_tells_of_its_slot(monkeypatch, SlotAnswer, "epsilon")


def a_ledger_says_too_little(monkeypatch):
    made = functions.ledger_table

    def table(entries, **given):
        return made([replace(one, spent=one.spent / 2) for one in entries], **given)

    monkeypatch.setattr(functions, "ledger_table", table)


_EVERYWHERE = (
    a_card_tells_how_many_events_there_were,
    a_card_tells_of_slots,
    a_ledger_tells_of_slots,
)


@pytest.mark.many
@pytest.mark.parametrize(
    ("mistake", "name"),
    [
        *((one, name) for one in _EVERYWHERE for name in ("windows", "lives", "queries")),
        *((a_record_tells_of_its_slot, name) for name in ("windows", "max_slots")),
        (an_answer_tells_of_its_slot, "queries"),
        (a_ledger_says_too_little, "windows"),
    ],
)
def test_what_is_released_besides_is_convicted(mistake, name, monkeypatch):
    mistake(monkeypatch)
    assert replayed([STAGES[name]()]).violation


def test_what_a_run_refuses_is_left_out_and_said():
    found = replayed([release(LONG, max_slots="9,1")])
    assert found.slots == 0
    assert "whole runs: max_slots" in found.left_out
    assert "max_slots" in found.sentence


# ---- several queries whose requirements change ------------------------------------------------


@pytest.mark.many
def test_to_pay_by_what_is_in_force_now_is_convicted(monkeypatch):
    """Windows that began before look ahead, by what was in force as they began."""

    before = changing.Asking._changed

    def now(self, *visits):
        self.prices = replace(self.prices, longest=1)
        return before(self, *visits)

    monkeypatch.setattr(changing.Asking, "_changed", now)
    assert "times the budget of a user" in replayed([changing_queries()]).violation


# ---- participation limits of several queries ------------------------------------------------


# Parts of slots at the price of whole ones are convicted where all small inputs are tried: in
# tests/mechanisms/queries/test_limits.py.
LIMITED = pytest.mark.parametrize(
    ("stage", "epsilon", "where"),
    [(limited_queries, 4.0, "of a block"), (queries_of_lifetimes, 6.0, "of a life")],
)


@pytest.mark.many
@LIMITED
def test_queries_that_all_have_the_whole_budget_are_convicted(stage, epsilon, where, monkeypatch):
    priced = query_limits.priced

    def dearer(limits, requirements, adjacency):
        whole = [replace(one, epsilon=epsilon) for one in requirements]
        return priced(limits, whole, adjacency)

    monkeypatch.setattr(query_limits, "priced", dearer)
    monkeypatch.setattr(PresenceFilter, "charge", lambda *_: None)
    monkeypatch.setattr(query_limits.LimitedFilter, "charge", lambda *_: None)
    assert "times the budget of a user" in replayed([stage()]).violation


@pytest.mark.many
@LIMITED
def test_one_slot_more_than_is_paid_for_is_refused(stage, epsilon, where, monkeypatch):
    begin = Counters.__init__

    def late(self, rules, key, like):
        begin(self, rules, key, like)
        self.rules = replace(rules, most=rules.most + 1, in_life=rules.in_life + 1)

    monkeypatch.setattr(Counters, "__init__", late)
    with pytest.raises(BudgetExceeded, match=rf"more than \d slots {where}"):
        replayed([stage()])
