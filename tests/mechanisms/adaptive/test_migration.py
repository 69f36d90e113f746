"""A stream that goes on as one whose requirements may change, in the middle of a sum."""

import numpy as np
import pytest

from streamveil.mechanisms import (
    DynamicStream,
    NoiseSource,
    ReleaseStream,
    dynamic_mechanism,
    mechanism,
)
from streamveil.mechanisms.adaptive.budget_plan import Plan, Planned
from streamveil.mechanisms.adaptive.gap_errors import SUM
from streamveil.mechanisms.adaptive.migration import migrated
from streamveil.mechanisms.core.budgets import asked_units
from streamveil.mechanisms.core.cohorts import Moves
from streamveil.mechanisms.driver.dynamic_stream import CohortCounts
from streamveil.mechanisms.protocol import Setting
from tests.mechanisms.streams import KEY, people

REQUIREMENTS, SIZES = [(6, 1.0), (10, 3.0)], [500, 300]
LATER = asked_units([[4, 0.2, 4, 0.2]])


# The sum goes on, its noise comes once, at its end, and no window of anybody is overspent: neither
# of those who stay as they are nor of those who then ask for less.
@pytest.mark.parametrize("slots", [14, 15, 17])
def test_a_sum_goes_on_when_requirements_begin_to_change(monkeypatch, slots):
    monkeypatch.setattr(Plan, "best_gap", lambda *_: Planned(7, SUM, 0.0))
    source = NoiseSource(KEY)
    fixed = ReleaseStream(mechanism("adaptive:gate=0", people(REQUIREMENTS, SIZES)), source)
    asked = asked_units([[w, e, w, e] for w, e in REQUIREMENTS])
    machine = dynamic_mechanism("adaptive:gate=0", Setting(2, 10))
    stream = DynamicStream(machine, asked, np.array(SIZES), source)
    counts = np.array([[200, 250], [200, 50]])
    state, spent = fixed.start(), []
    for slot in range(slots):
        state, release = fixed.release(state, slot, counts)
        spent.append(release.spent)
    running = state.mechanism.running
    assert running is not None
    begun = migrated(fixed, state, stream)
    assert begun.mechanism.running is running
    change = Moves(np.array([0]), np.array([2]), np.array([100]), LATER)
    rows = [(0, 0, 150), (0, 1, 200), (1, 0, 200), (1, 1, 50), (2, 0, 50), (2, 1, 50)]
    cohorts = CohortCounts(*np.array(rows).T)
    published = 0
    for slot in range(slots, slots + 20):
        moves = change if slot == slots else Moves.none()
        begun, release = stream.release(begun, slot, cohorts, moves)
        published += release.status == "published"
        ledgers = begun.interned.ledgers_of(np.arange(3))
        spent.append(release.spent[ledgers[:2]])
    assert published
    spent = np.array(spent).astype(object)
    for (window, _), column, (_, _, _, cap) in zip(
        REQUIREMENTS, spent.T, asked.tolist(), strict=True
    ):
        assert max(sum(column[i : i + window]) for i in range(len(column))) <= cap


# A common factor is followed where the changing stream looks for one, whatever the windows so far:
# a state that goes through bytes is the same as one that does not.
@pytest.mark.parametrize(("window", "horizon"), [(1, 10), (6, 10), (1, 1)])
def test_a_factor_is_followed_where_it_is_looked_for(window, horizon):
    source, bins = NoiseSource(KEY), 6
    fixed = ReleaseStream(mechanism("adaptive", people([(window, 1.0)], [500], bins)), source)
    machine = dynamic_mechanism("adaptive", Setting(bins, horizon))
    asked = asked_units([[window, 1.0, window, 1.0]])
    stream = DynamicStream(machine, asked, np.array([500]), source)
    state = fixed.start()
    for slot in range(12):
        state, _ = fixed.release(state, slot, np.full((1, bins), 50))
    begun = migrated(fixed, state, stream)
    assert (begun.mechanism.factor is None) == (horizon == 1)
    data = machine.encode(begun.mechanism)
    assert machine.encode(machine.decode(data)) == data
