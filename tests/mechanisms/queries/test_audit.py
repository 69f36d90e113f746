"""The audit of all queries together: what their releases tell about a user, as a lower bound.

A user was at the café in three base slots, and in the park before and after. One query is asked
by base slot, one by three of them, of which the window has a part: without the user's events in the
window, those outside count in their place. All noise is independent by bin, so that as many pairs
of bins as there are runs stand side by side.
"""

import numpy as np
import pytest

from streamveil.mechanisms import Categories, NoiseSource, Requirement, Slots, WindowFilter
from streamveil.mechanisms.core.budgets import Requirements
from streamveil.mechanisms.queries import query_stream
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.query_filter import QueryFilter
from streamveil.mechanisms.queries.query_stream import QueryStream
from tests.mechanisms.test_audit import audit

CLAIM = 3.0
RUNS = 300_000
HOUR, SHIFT = 0, 1
WINDOW = range(1, 4)


def query_set(runs) -> QuerySet:
    pairs = Categories(tuple(f"{place}{run}" for run in range(runs) for place in ("cafe", "park")))
    asked = {"value": ("place",), "domain": pairs, "mechanism": "uniform"}
    return QuerySet(Slots.of("1h"), (Query("hour", **asked), Query("shift", slots=3, **asked)))


def world(there: bool, runs: int, overspent: float = 1.0) -> np.ndarray:
    """What each run shows with the user's events in the window, or without: shape (runs, parts)."""
    asked = Requirements((Requirement(len(WINDOW), CLAIM),))
    shares = np.full((2, 1), int(asked.budgets[0] // 2 * overspent))
    noise = NoiseSource(bytes(range(32)), str(there))
    stream = QueryStream(query_set(runs), asked, np.array([1]), shares, noise)
    cafe, park, nowhere = ([[1, 0]], [[0, 1]], [[0, 0]])
    state, shown = stream.start(), []
    for base_slot in range(6):
        here = (cafe if there else nowhere) if base_slot in WINDOW else park
        pairs = {HOUR: here}
        if SHIFT in stream.due(base_slot):
            pairs[SHIFT] = cafe if there else park
        counts = {q: np.tile(np.array(pair, np.int64), runs) for q, pair in pairs.items()}
        state, releases = stream.release(state, base_slot, counts)
        for q, release in releases.items():
            if q == SHIFT or base_slot in WINDOW:
                shown.append((release.counts > 0).astype(np.int64).reshape(runs, 2))
    return np.concatenate(shown, axis=1)


def proven(runs=RUNS, overspent=1.0) -> float:
    found = audit(world(True, runs, overspent), world(False, runs, overspent))
    print(f"audit of a query set: at least {found:.2f} of {CLAIM}")
    return found


# Nearly all of the claim is proven, and no more.
@pytest.mark.slow
def test_a_query_set_keeps_its_claim():
    assert 0.75 * CLAIM < proven() <= CLAIM


# Without filters, a fifth more than there is convicts.
@pytest.mark.slow
def test_the_audit_convicts_overspending(monkeypatch):
    monkeypatch.setattr(WindowFilter, "charge", lambda *_: None)
    monkeypatch.setattr(QueryFilter, "charge", lambda *_: None)
    monkeypatch.setattr(query_stream, "_check_units", lambda *_: None)
    assert proven(overspent=1.2) > CLAIM


# So does a query that takes a slot of which the window has a part for one that it has whole.
@pytest.mark.slow
def test_the_audit_convicts_slots_in_part_that_count_as_whole(monkeypatch):
    monkeypatch.setattr(query_stream, "sensitivity_of", lambda query, *_, **__: query.sensitivity)
    assert proven() > CLAIM
