"""Running totals: what is added up at every tick, with what noise, and state as bytes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import ConfigurationError, NoiseSource
from streamveil.mechanisms.per_record import Bounds, Inverse, RunningTotal, statistic

PROPERTY = settings(max_examples=15, deadline=None, derandomize=True)
SOURCE = NoiseSource(bytes(range(32)), "running")
BOUNDS = Bounds(0.01, 10.0, 100.0)


def part_of(made, tick, number=20):
    rng = np.random.default_rng(tick)
    values = rng.uniform(0, 100, number)
    budgets = Inverse(50.0, 100.0, 10.0)(values)
    return made.tally(values, budgets, np.zeros(number, np.int64), 1)[0], values


def run(total, ticks, state=None):
    state = state or total.start()
    told = []
    for tick in range(state.ticks + 1, ticks + 1):
        part, _ = part_of(total.statistic, tick)
        state, release = total.tick(state, part, SOURCE)
        told.append(release)
    return state, told


class Recorded:
    """Remembers how much noise a statistic was asked for, of what."""

    def __init__(self, made):
        self.made, self.asked = made, []
        self.name, self.bounds = made.name, made.bounds
        self.add, self.estimate = made.add, lambda noisy: noisy

    def noisy(self, part, noise, shares):
        found = self.made.noisy(part, noise, shares)
        self.asked.append((part, shares, found))
        return found


# Every tick is about all records so far: its noisy totals are sums of tree nodes that contain each
# part once, of which there are as many as bits are set; and each part is in at most as many nodes
# as the budget is divided into.
def test_each_total_contains_every_record_once():
    made = Recorded(statistic("count", None, BOUNDS))
    total, state = RunningTotal(made), RunningTotal(made).start()
    uses, epochs, members = {}, 0, []
    for tick in range(1, 300):
        part = np.zeros_like(made.add([]))
        part[0] = 1 << (tick % 40)
        epoch = tick.bit_length() - 1
        state, summed = total.tick(state, part, SOURCE)
        node, shares, _ = made.asked[-1]
        position = tick - 2**epoch + 1
        size = position & -position
        expected = [1 << (t % 40) for t in range(tick - size + 1, tick + 1)]
        assert node[0] == sum(expected)
        assert shares == epoch + 1
        members.append(range(tick - size + 1, tick + 1))
        for t in members[-1]:
            uses[t] = uses.get(t, 0) + 1
        # The tree nodes that cover this epoch so far, and the roots of those before.
        covering, last = [], tick
        while last:
            covering.append(made.asked[last - 1][2])
            last = members[last - 1][0] - 1
        assert len(covering) == position.bit_count() + epoch
        assert summed.totals == pytest.approx(sum(n.totals for n in covering), rel=1e-9)
        assert summed.variances == pytest.approx(sum(n.variances for n in covering))
        epochs = epoch
    assert len(made.asked) == 299  # each tree node got noise once, at the tick that completed it
    assert all(uses[t] <= t.bit_length() for t in uses)
    assert all(uses[t] == epochs for t in [2 ** (epochs - 1)])


# With so many records at every tick, the total is near the truth all the time.
@pytest.mark.parametrize("kind", ["count", "sum"])
@pytest.mark.parametrize("name", ["hat", "prdp"])
def test_totals_are_near_the_truth(kind, name):
    made = statistic(kind, name, BOUNDS, budget=Inverse(50.0, 100.0, 10.0))
    total = RunningTotal(made)
    state, truth = total.start(), 0.0
    for tick in range(1, 70):
        part, values = part_of(made, tick, 400)
        truth += len(values) if kind == "count" else values.sum()
        state, told = total.tick(state, part, SOURCE)
        if tick > 8:
            assert abs(told.estimate - truth) < 20 * told.stderr + 0.05 * truth
            assert told.stderr < 0.5 * truth


# Of a count whose records all have a budget of 1, over a million ticks: standard errors of all
# ticks together, from the variances of the nodes that are added up.
def test_error_over_a_million_ticks():
    ticks = np.arange(1, 10**6 + 1)
    epoch = np.frexp(ticks)[1] - 1
    offset = ticks - 2**epoch + 1
    bits = sum((offset >> i) & 1 for i in range(20))
    roots = np.append(0, np.cumsum(2.0 * np.arange(1, 21) ** 2))[epoch]
    variances = roots + bits * 2.0 * (epoch + 1) ** 2
    # The formula is what is released.
    total = RunningTotal(Recorded(statistic("count", None, Bounds(1.0, 1.0))))
    state, found = total.start(), []
    for _ in range(200):
        state, summed = total.tick(state, total.statistic.add([]), SOURCE)
        found.append(summed.variances[0])
    assert variances[:200] == pytest.approx(found, rel=1e-6)
    assert np.sqrt(variances.mean()) == pytest.approx(103.6, abs=0.1)
    # At ticks spread evenly over orders of magnitude, from 80 on.
    weights = (ticks >= 80) / ticks
    known = sum((ticks >> i) & 1 for i in range(20)) * 2.0 * 21**2
    each = 2.0 * ticks
    rms = [np.sqrt(np.average(v, weights=weights)) for v in (variances, known, each)]
    assert rms == pytest.approx([69.2, 79.3, 460.7], abs=0.5)


# A run goes on from bytes as if it had not stopped, and a replay is the same.
@PROPERTY
@given(st.integers(1, 40), st.integers(1, 30), st.sampled_from(["count", "sum"]))
def test_state_as_bytes(before, after, kind):
    total = RunningTotal(statistic(kind, None, BOUNDS))
    halfway, _ = run(total, before)
    decoded = total.decode(total.encode(halfway))
    assert total.encode(decoded) == total.encode(halfway)
    told = run(total, before + after, decoded)[1]
    assert told == run(total, before + after)[1][before:]
    assert len(halfway.nodes) <= before.bit_length()


# Other data before, and all noise from then on is other noise.
def test_noise_depends_on_all_of_the_past():
    total = RunningTotal(statistic("count", None, BOUNDS))
    part, _ = part_of(total.statistic, 1)
    states = [total.tick(total.start(), p, SOURCE)[0] for p in (part, total.statistic.add([]))]
    empty = total.statistic.add([])
    after = [total.tick(state, empty, SOURCE)[0].nodes[-1].noisy.totals for state in states]
    assert not (after[0] == after[1]).any()


def test_state_of_another_configuration_is_refused():
    total = RunningTotal(statistic("count", None, BOUNDS))
    data = total.encode(run(total, 5)[0])
    for other in (
        RunningTotal(statistic("count", "prdp", BOUNDS)),
        RunningTotal(statistic("sum", None, BOUNDS)),
        RunningTotal(statistic("count", None, Bounds(0.01, 9.0, 100.0))),
        RunningTotal(statistic("count", None, BOUNDS), context=b"another key"),
    ):
        with pytest.raises(ConfigurationError, match="another configuration"):
            other.decode(data)
    with pytest.raises(ValueError, match="state version 9 is not among"):
        total.decode(bytes([9]) + data[1:])
