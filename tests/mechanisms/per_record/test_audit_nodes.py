"""What releases of counts and sums tell of one record, next to its budget.

Neighbouring inputs, with and without one record, are released many times. The attacker knows
everything else, and scores each outcome by how much likelier it is with the record; see
`tests.mechanisms.test_audit` for what is then proven. All that is published is a function of the
noisy totals, so they are what is looked at.
"""

from dataclasses import replace

import numpy as np
import pytest

from streamveil.mechanisms import NoiseSource
from streamveil.mechanisms.per_record import Bounds, RunningTotal
from streamveil.mechanisms.registry import statistic
from tests.mechanisms.test_audit import audit

RUNS = 20_000
SOURCE = NoiseSource(bytes(range(32)), "audit")
BOUNDS = Bounds(0.2, 3.0, 10.0)
MECHANISMS = [("count", "hat"), ("sum", "hat"), ("count", "prdp"), ("sum", "prdp")]

# A value and a budget: small, between two nodes, and large.
RECORDS = [(10.0, 0.2), (7.0, 1.1), (2.0, 3.0)]


def parts(made, value, budget):
    """Parts of some records without and with one more."""
    values = np.array([1.0, 8.0, 9.9, 3.0, value])
    budgets = np.array([2.5, 0.3, 0.9, 0.7, budget])
    cells = np.array([0, 0, 0, 0, 1])
    rest, one = made.tally(values, budgets, cells, 2)
    return rest, made.add([rest, one])


def exact(made, part):
    """Totals without noise."""
    low, high = part.reshape(2, -1)
    return (low + high * 2.0**24) * 2.0**made.grid.exponent


def scores(made, outcomes, without, with_one):
    """How much likelier some noisy totals are with the record: shape (runs,)."""
    scale = np.sqrt(outcomes.variances / 2)
    gaps = [abs(outcomes.totals - exact(made, part)) / scale for part in (without, with_one)]
    return (gaps[0] - gaps[1]).sum(axis=1)


def proven(without, with_one):
    """Epsilon that scores of both worlds prove."""
    edges = np.quantile(np.append(without, with_one), np.linspace(0, 1, 41)[1:-1])
    return audit(*(np.digitize(world, edges)[:, None] for world in (without, with_one)))


def looked_at(made, value, budget, label, nodes=None):
    """Epsilon proven of a single release, with the noise of other nodes if there are any."""
    worlds = parts(made, value, budget)
    found = []
    for i, part in enumerate(worlds):
        noise = SOURCE.slot(i, repr(label).encode()).words("audit")
        found.append(scores(made, (nodes or made.nodes).noisy(part, noise, runs=RUNS), *worlds))
    return proven(*found)


@pytest.mark.many
@pytest.mark.parametrize(("value", "budget"), RECORDS)
@pytest.mark.parametrize(("kind", "name"), MECHANISMS)
def test_a_release_keeps_within_the_budget(kind, name, value, budget):
    made = statistic(kind, name, BOUNDS)
    found = looked_at(made, value, budget, (kind, name, value))
    print(f"audit of {kind} by {name}: at least {found:.2f} of {budget}")
    assert found <= budget
    if name == "hat" and budget > 1:  # of less, so many runs prove little
        assert found > 0.6 * budget


# Noise for twice the budgets that records were split by.
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), MECHANISMS)
def test_half_of_the_noise_is_noticed(kind, name):
    made = statistic(kind, name, BOUNDS)
    faster = replace(made.nodes, rates=np.minimum(2 * made.nodes.rates, 1 << 52))
    found = looked_at(made, *RECORDS[1], ("half", kind, name), faster)
    print(f"audit of {kind} by {name} with half of its noise: at least {found:.2f}")
    # The sum extension's noise is for a larger value in the domain than this one.
    assert found > RECORDS[1][1] * (0.7 if (kind, name) == ("sum", "prdp") else 1)


# Noise that does not fit a record takes no harm: a record of a domain that it cannot afford is not
# counted, whatever put it there.
def test_a_domain_too_high_does_not_count():
    made = statistic("count", "prdp", Bounds(0.8, 6.4))
    object.__setattr__(made, "low", made.low / 2)
    rest, more = parts(made, 1.0, 1.0)
    assert rest.tolist() == more.tolist()


# ---- panes and running totals ---------------------------------------------------------------


class ManyRuns:
    """A statistic released many times at once, which remembers what it published of what."""

    def __init__(self, made, shares=None):
        self.made, self.shares, self.seen = made, shares, []
        self.name, self.bounds, self.add = made.name, made.bounds, made.add
        self.identity = made.identity

    def noisy(self, part, noise, shares):
        words = noise.words("audit")
        noisy = self.made.nodes.noisy(part, words, self.shares or shares, RUNS)
        self.seen.append((part, noisy))
        return noisy

    def estimate(self, noisy):
        return noisy


def continual(made, value, budget, tick, ticks, shares=None):
    """Epsilon proven of all running totals, with a record at one tick."""
    rest, more = parts(made, value, budget)
    seen = []
    for i, part in enumerate((rest, more)):
        many = ManyRuns(made, shares)
        total = RunningTotal(many, context=bytes([i]))
        state = total.start()
        for t in range(1, ticks + 1):
            state, _ = total.tick(state, part if t == tick else rest, SOURCE)
        seen.append(many.seen)
    summed = [np.zeros(RUNS), np.zeros(RUNS)]
    for without, with_one in zip(*seen, strict=True):
        worlds = without[0], with_one[0]
        for i, (_, outcomes) in enumerate((without, with_one)):
            summed[i] += scores(made, outcomes, *worlds)
    return proven(*summed)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "record"), [("count", 1), ("count", 2), ("sum", 1)])
def test_running_totals_keep_within_the_budget(kind, record):
    value, budget = RECORDS[record]
    made = statistic(kind, None, BOUNDS)
    found = continual(made, value, budget, 2, 5)  # in a left child and in the root
    print(f"audit of running {kind}: at least {found:.2f} of {budget}")
    assert 0.3 * budget < found <= budget


# A tree whose nodes all get the whole budget is no such mechanism.
def test_undivided_budgets_of_a_tree_are_noticed():
    made = statistic("count", None, BOUNDS)
    assert continual(made, *RECORDS[1], 2, 5, shares=1) > RECORDS[1][1]


# A record is in two sliding windows of two panes: the noise of its pane is the same in both.
@pytest.mark.parametrize("again", [False, True])
def test_sliding_windows(again):
    made = statistic("count", None, BOUNDS)
    value, budget = RECORDS[1]
    worlds = parts(made, value, budget)
    found = []
    for i, part in enumerate(worlds):
        panes = [
            made.nodes.noisy(p, SOURCE.slot(t, bytes([i])).words("pane"), runs=RUNS)
            for t, p in enumerate((worlds[0], part, worlds[0]))
        ]
        # What an attacker who knows the outer panes has of the inner one from each window.
        inner = [panes[1]]
        if again:  # broken: new noise for each window
            words = SOURCE.slot(9, bytes([i])).words("again")
            inner.append(made.nodes.noisy(part, words, runs=RUNS))
        summed = np.zeros(RUNS)
        for noisy in inner:
            summed += scores(made, noisy, *worlds)
        found.append(summed)
    assert (proven(*found) > budget) == again
