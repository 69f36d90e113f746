"""How long an audit goes on."""

import time

import numpy as np
import pytest

from streamveil.mechanisms import ConfigurationError, Requirement
from streamveil.pipelines.audit.findings import CHARGE
from streamveil.pipelines.audit.guesses import Guesses, check
from streamveil.pipelines.audit.rounds import LEAST_RUNS, USUAL, Extent, found_by


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"runs": LEAST_RUNS - 1}, "runs is 3: an audit needs 4 or more"),
        ({"runs": None}, "must end"),
        ({"seconds": 0.0}, "seconds is 0: give a number above 0"),
        ({"seconds": float("nan")}, "seconds is nan"),
        ({"seconds": float("inf")}, "seconds is inf"),
        ({"confidence": 0.0}, "confidence is 0: give a share"),
        ({"confidence": 1.0}, "confidence is 1"),
    ],
)
def test_what_would_not_end_or_too_soon_is_refused(wrong, message):
    with pytest.raises(ConfigurationError, match=message):
        Extent(**wrong)


class Counted:
    """Rounds that find nothing."""

    runs, slots, overspent = 0, 0, 0.0

    def round(self, number, done):
        self.runs += 1

    def __init__(self):
        self.flakiness = []

    def checks(self, flakiness):
        self.flakiness.append(flakiness)
        return iter(())


@pytest.mark.parametrize(
    ("extent", "rounds"),
    [
        (USUAL, 24),
        (Extent(runs=5), 5),
        (Extent(runs=None, seconds=1.0), LEAST_RUNS),  # each takes longer, and so many are made
        (Extent(runs=9, seconds=1.0), LEAST_RUNS),
        (Extent(runs=9, seconds=1e9), 9),
    ],
)
def test_an_audit_ends_by_rounds_or_by_seconds(extent, rounds, monkeypatch):
    clock = iter(range(0, 1000, 2))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    audit = Counted()
    found = found_by(audit, "nothing", extent, own=False, notes=["a note"])
    assert found.runs == rounds
    assert found.notes == ("a note",)
    assert audit.flakiness == pytest.approx([1 - extent.confidence, 0.001])


def test_rounds_are_told_as_they_are_done():
    told = []
    found_by(Counted(), "nothing", Extent(runs=4, done=told.append), own=False, notes=())
    assert told == [1, 2, 3, 4]


# At a confidence of .95 one honest configuration in twenty has a bound above its claim.
@pytest.mark.parametrize(("right", "shown", "convicted"), [(35, True, False), (40, True, True)])
def test_a_verdict_takes_more_confidence_than_a_bound_and_both_are_told(right, shown, convicted):
    class Guessed(Counted):
        def checks(self, flakiness):
            guesses = [Guesses.of_single(np.ones(20), np.ones(20, bool), np.ones(20))] * 2
            guesses.append(Guesses.of_single(np.ones(40), np.arange(40) < right, np.ones(40)))
            yield check("bins", CHARGE, Requirement(1, 1.0), guesses, flakiness)

    found = found_by(Guessed(), "it", Extent(runs=4), own=False, notes=())
    (one,) = found.checks
    assert 0 < one.surely < one.times
    assert (one.times > 1) == shown
    assert found.convicted == convicted
    assert found.verdict_confidence == 0.999
    if convicted:
        assert "at 0.999 confidence" in found.sentence
    else:
        assert "at 0.95 confidence, which is too little confidence for a verdict" in found.sentence
