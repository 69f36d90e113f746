"""How long an audit goes on."""

import json
import time

import numpy as np
import pytest

from streamveil.mechanisms import ConfigurationError, Requirement
from streamveil.pipelines.audit.audits import Audit
from streamveil.pipelines.audit.clock import check_clock
from streamveil.pipelines.audit.findings import CHARGE
from streamveil.pipelines.audit.guesses import Doubt, Guesses, check
from streamveil.pipelines.audit.page import json_of, page_of
from streamveil.pipelines.audit.replay import Neighbour, Stage
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


class Counted(Audit):
    """Rounds that find nothing."""

    notes = ("a note",)

    def __init__(self, stages=None):
        super().__init__("it", 0, {})
        self.doubts, self._stages = [], stages

    def stages(self):
        return self._stages

    def round(self, number, done):
        self.runs += 1

    def checks(self, doubt):
        self.doubts.append(doubt)
        return iter(())


@pytest.mark.parametrize(
    ("extent", "rounds"),
    [
        (USUAL, 24),
        (Extent(runs=5), 5),
        (Extent(runs=9, seconds=1e9), 9),
    ],
)
def test_an_audit_ends_by_rounds(extent, rounds):
    audit = Counted()
    found = found_by(audit, extent)
    assert found.runs == found.rounds == rounds
    assert found.notes == ("a note",)
    assert audit.doubts[-1] == Doubt(pytest.approx(1 - extent.confidence), pytest.approx(0.001))


class Clock:
    """Time that goes by where something is done, and not otherwise."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


class Slow(Counted):
    """Rounds of ten pieces, each of which looks at the clock; bounds take time as well."""

    notes = ()

    def __init__(self, clock, piece, bounds, stages=None):
        super().__init__(stages)
        self.clock, self.piece, self.bounds = clock, piece, bounds

    def round(self, number, done):
        for _ in range(10):
            check_clock()
            self.clock.now += self.piece
        self.runs += 1

    def checks(self, doubt):
        self.clock.now += self.bounds * self.runs
        return super().checks(doubt)


@pytest.mark.parametrize("piece", [0.01, 0.1, 0.5, 1.4, 3.0])
@pytest.mark.parametrize("bounds", [0.0, 0.05, 0.4])
@pytest.mark.parametrize("began", [None, 980.0])
def test_seconds_hold_however_slow_the_machine(piece, bounds, began, monkeypatch):
    clock = Clock(monkeypatch)
    audit = Slow(clock, piece, bounds)
    extent = Extent(runs=None, seconds=60.0, began=began)
    found = found_by(audit, extent)
    begun = 1000.0 if began is None else began
    # A piece that had begun, and bounds of the fewest rounds, which nobody knew.
    assert clock.now - begun <= 60.0 + piece + LEAST_RUNS * bounds
    assert found.seconds == clock.now - begun
    assert found.rounds == audit.runs
    enough = LEAST_RUNS * 10 * piece < 54 - (1000 - begun)
    assert (found.rounds >= LEAST_RUNS) == enough
    if enough:
        assert clock.now - begun > 60 - 20 * piece - 4 * bounds * (found.rounds + 2)
        assert found.notes == ()
    else:
        note = found.notes[-1]
        assert note.startswith(f"no guesses: {found.rounds} of 4 rounds were made when")
        proposed = float(note.partition("give --seconds=")[2].partition(" or more")[0])
        assert note.endswith("since not even one run ended") == (found.runs == 0)
        again = Slow(clock, piece, bounds)
        assert found.runs == 0 or found_by(again, Extent(None, proposed)).rounds >= LEAST_RUNS


def test_an_input_that_takes_long_to_read_leaves_half_of_the_seconds(monkeypatch):
    clock = Clock(monkeypatch)
    found_by(Slow(clock, 0.1, 0.0), Extent(None, 60.0, began=900.0))
    assert 1025 < clock.now <= 1030.1


def slow_stage(clock, seconds):
    """A stage of worlds of ten slots, each of which takes so long."""

    def play():
        for slot in range(10):
            clock.now += seconds
            yield slot, {"slot": slot}

    return Stage(play, (Neighbour("everybody", play), Neighbour("a user", play)))


@pytest.mark.parametrize(
    ("seconds", "worlds", "slots", "complete", "rounds"),
    [
        (0.01, 8, 80, True, True),  # all stages
        (0.4, 4, 40, False, True),  # those that are always held, which take more than their part
        (2.0, 4, 14, False, True),  # no world comes to its end, and each kind is looked at
    ],
)
def test_replays_come_first_and_say_how_far_they_came(
    seconds, worlds, slots, complete, rounds, monkeypatch
):
    clock = Clock(monkeypatch)
    stages = [slow_stage(clock, seconds) for _ in range(4)]
    extent = Extent(runs=None, seconds=60.0)
    found = found_by(Slow(clock, 0.01, 0.0, stages), extent)
    replayed = found.replayed
    assert (replayed.worlds, replayed.slots, replayed.complete) == (worlds, slots, complete)
    assert ("as many as there was time for" in replayed.sentence) != complete
    assert (found.rounds >= LEAST_RUNS) == rounds
    assert clock.now - 1000 <= 60 + seconds


def test_nothing_that_was_looked_at_is_no_acquittal(monkeypatch):
    clock = Clock(monkeypatch)
    audit, extent = Slow(clock, 100.0, 0.0), Extent(runs=None, seconds=60.0)
    found = found_by(audit, extent)
    assert not found.covered
    assert found.sentence == "nothing was tested in it: give it more time"
    clock.now = 1000.0
    stages = [slow_stage(clock, 1e-3)]
    found = found_by(Slow(clock, 100.0, 0.0, stages), extent)
    assert found.replayed.slots
    assert not found.covered  # replays take the noise on trust
    assert found.sentence == (
        "nothing was tested in it, though replay found no violation: give it more time"
    )
    assert json.loads(json_of(found, "it"))["verdict"] == "nothing tested"
    assert "Nothing was tested" in page_of(found, "it")


def test_rounds_are_reported_as_they_are_done():
    rounds = []
    found_by(Counted(), Extent(runs=4, done=rounds.append))
    assert rounds == [1, 2, 3, 4]


# At a confidence of .95 one honest configuration in twenty has a bound above its claim.
@pytest.mark.parametrize(("right", "shown", "convicted"), [(35, True, False), (40, True, True)])
def test_a_verdict_needs_more_confidence_than_a_bound_and_both_are_shown(right, shown, convicted):
    class Guessed(Counted):
        def checks(self, doubt):
            guesses = [Guesses.of(np.ones(20), np.ones(20, bool), np.ones(20))] * 2
            guesses.append(Guesses.of(np.ones(40), np.arange(40) < right, np.ones(40)))
            yield check("bins", CHARGE, Requirement(1, 1.0), guesses, doubt)

    found = found_by(Guessed(), Extent(runs=4))
    (one,) = found.checks
    assert 0 < one.surely < one.times
    assert (one.times > 1) == shown
    assert found.violated == convicted
    assert found.verdict_confidence == 0.999
    if convicted:
        assert "at 0.999 confidence" in found.sentence
    else:
        assert "at 0.95 confidence, which is too little confidence for a verdict" in found.sentence
