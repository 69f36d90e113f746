"""Whole runs are replayed: rows, intervals, answers, ledger and card follow from noise."""

from dataclasses import replace

import pyarrow as pa
import pytest

from streamveil.io import answers
from streamveil.mechanisms import Requirement, Slots
from streamveil.mechanisms.core.records import Lifetime, Release
from streamveil.mechanisms.driver.stream import ReleaseStream
from streamveil.mechanisms.portfolio.questions import Portfolio, Question
from streamveil.mechanisms.portfolio.statistics import DistinctUsers, Mean, Quantiles
from streamveil.pipelines.audit import whole_runs
from streamveil.pipelines.audit.replay import replayed
from streamveil.pipelines.audit.whole_runs import answers_stage, release_stage
from streamveil.pipelines.cards import writing
from streamveil.pipelines.in_memory import functions

WINDOWS, LONG = [Requirement(4, 2.0)], [Requirement(11, 3.0)]
QUERIES = Portfolio(
    Slots.of("1d"),
    (
        Question("amount", statistic=Mean("amount", -5.0, 20.0), slots=3, times=(6,)),
        Question("spread", statistic=Quantiles("amount", (0.0, 5.0, 20.0), (0.5,)), slots=3),
        Question("people", value=("x",), domain=["a", "b"], statistic=DistinctUsers(), slots=3),
    ),
)


def release(requirements=WINDOWS, **given):
    return release_stage(requirements, bins=3, **{"seed": 1, "mechanism": "pba", **given})


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
}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(whole_runs, "LENGTH", 72)


@pytest.mark.parametrize("name", STAGES)
def test_all_that_honest_runs_make_public_follows_from_noise(name, monkeypatch):
    found = replayed([STAGES[name]()])
    assert not found.violation
    assert not found.left_out
    assert found.complete
    assert found.worlds >= 2
    assert 0 < found.worst <= 1


# ---- mistakes, each of one place ------------------------------------------------------------


def told(monkeypatch):
    """How many events slots had so far."""
    counted, exact = [0], ReleaseStream.release

    def release(self, state, slot, counts):
        counted[0] += int(counts.sum())
        return exact(self, state, slot, counts)

    monkeypatch.setattr(ReleaseStream, "release", release)
    return counted


def a_card_tells_how_many_events_there_were(monkeypatch):
    made = functions.card_in_memory

    def card(command, transform, tables, counters, **given):
        return {**made(command, transform, tables, counters, **given), "events": counters}

    monkeypatch.setattr(functions, "card_in_memory", card)


def a_card_tells_of_slots(monkeypatch):
    counted, made = told(monkeypatch), writing.card_of
    monkeypatch.setattr(writing, "card_of", lambda *a, **b: {**made(*a, **b), "last": counted[0]})


def a_ledger_tells_of_slots(monkeypatch):
    counted = told(monkeypatch)

    def telling(made):
        def table(entries, **given):
            found = made(entries, **given)
            place = found.schema.get_field_index("spent")
            spent = found["spent"].to_pylist()
            spent[-1] -= 1e-9 * counted[0]
            return found.set_column(place, found.schema.field(place), pa.array(spent))

        return table

    for module, name in ((functions, "ledger_table"), (answers, "portfolio_ledger_table")):
        monkeypatch.setattr(module, name, telling(getattr(module, name)))


def a_field_tells_of_its_slot(monkeypatch, record, field):
    counted, made = told(monkeypatch), record.__init__

    def telling(self, *given, **options):
        made(self, *given, **options)
        object.__setattr__(self, field, getattr(self, field) + 1e-9 * counted[0])

    monkeypatch.setattr(record, "__init__", telling)


def a_record_tells_of_its_slot(monkeypatch):
    a_field_tells_of_its_slot(monkeypatch, Release, "stderr")


def an_answer_tells_of_its_slot(monkeypatch):
    from streamveil.mechanisms.portfolio.slot_answers import SlotAnswer

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


@pytest.mark.parametrize(
    ("mistake", "name"),
    [
        *((one, name) for one in _EVERYWHERE for name in ("windows", "lives", "queries")),
        *((a_record_tells_of_its_slot, name) for name in ("windows", "max_slots")),
        (an_answer_tells_of_its_slot, "queries"),
        (a_ledger_says_too_little, "windows"),
    ],
)
def test_what_is_told_besides_is_convicted(mistake, name, monkeypatch):
    mistake(monkeypatch)
    assert replayed([STAGES[name]()]).violation


def test_what_a_run_refuses_is_left_out_and_said():
    found = replayed([release(LONG, max_slots="9,1")])
    assert found.slots == 0
    assert "whole runs: max_slots" in found.left_out
    assert "max_slots" in found.sentence
