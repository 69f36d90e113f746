"""Running totals: what is added up at every tick, with what noise, and state as bytes."""

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import ConfigurationError, NoiseSource
from streamveil.mechanisms.per_record import Bounds, Inverse, RunningTotal
from streamveil.mechanisms.registry import statistic

PROPERTY = settings(max_examples=15)
SOURCE = NoiseSource(bytes(range(32)), "running")
BOUNDS = Bounds(0.01, 10.0, 100.0)


def part_of(made, tick, number=20):
    rng = np.random.default_rng(tick)
    values = rng.uniform(0, 100, number)
    budgets = Inverse(50.0, 100.0, 10.0)(values)
    return made.tally(values, budgets, np.zeros(number, np.int64), 1)[0], values


def run(total, ticks, state=None):
    state = state or total.start()
    releases = []
    for tick in range(state.ticks + 1, ticks + 1):
        part, _ = part_of(total.statistic, tick)
        state, release = total.tick(state, part, SOURCE)
        releases.append(release)
    return state, releases


class Recorded:
    """Remembers how much noise a statistic was asked for, of what."""

    def __init__(self, made):
        self.made, self.asked = made, []
        self.identity = made.identity
        self.add, self.estimate = made.add, lambda noisy: noisy

    def noisy(self, part, noise, shares):
        found = self.made.noisy(part, noise, shares)
        self.asked.append((part, shares, found))
        return found


# Every tick is about all records so far: its noisy totals are sums of nodes that contain each part
# once. Each tick gives noise to one node, and no part is in more nodes than its budget is divided
# into. Epoch m has as many ticks as there are ways to place m zeros among 4 m bits.
def test_each_total_contains_every_record_once():
    made = Recorded(statistic("count", None, BOUNDS))
    total, state = RunningTotal(made), RunningTotal(made).start()
    ticks = 1 + 4 + 28 + 220 + 300
    shares_of = np.repeat(np.arange(5), [1, 4, 28, 220, 300]) + 1
    uses, starts = np.zeros(ticks + 1, int), {}
    for tick in range(1, ticks + 1):
        part = np.zeros_like(made.add([]))
        part[:2] = 1, tick
        state, summed = total.tick(state, part, SOURCE)
        node, shares, _ = made.asked[-1]
        assert len(made.asked) == tick
        # The ticks of the node: so many in a row, up to this one.
        start = starts[tick] = tick - node[0] + 1
        assert node[1] == sum(range(start, tick + 1))
        assert shares == shares_of[tick - 1] == shares_of[start - 1]
        uses[start : tick + 1] += 1
        covering, last = [], tick
        while last:
            covering.append(made.asked[last - 1][2])
            last = starts[last] - 1
        assert summed.totals == pytest.approx(sum(n.totals for n in covering), rel=1e-9)
        assert summed.variances == pytest.approx(sum(n.variances for n in covering))
    assert (uses[1:] <= shares_of).all()
    assert uses[[1, 2, 6, 34]].tolist() == [1, 2, 3, 4]


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
        state, release = total.tick(state, part, SOURCE)
        if tick > 8:
            assert abs(release.estimate - truth) < 20 * release.stderr + 0.05 * truth
            assert release.stderr < 0.5 * truth


@cache
def leaves(bits, zeros):
    """All integers of so many bits with so many zeros, rising."""
    if zeros in (0, bits):
        return np.array([0 if zeros else (1 << bits) - 1])
    return np.concatenate(
        [leaves(bits - 1, zeros - 1), leaves(bits - 1, zeros) + (1 << (bits - 1))]
    )


def variances_of(ticks):
    """Of a count whose records all have a budget of 1, at every tick."""
    found, roots, epoch = [], 0.0, 0
    while sum(map(len, found)) < ticks:
        each, after = 2.0 * (epoch + 1) ** 2, leaves(4 * epoch, epoch)[1:]
        # Left siblings of the way to the next leaf: one for each 1, but where all that follows is
        # ones there is no leaf to the left.
        ending = np.frexp(~after & (after + 1))[1] - 1
        found += [roots + each * (3 * epoch - ending), [roots + each]]
        roots, epoch = roots + each, epoch + 1
    return np.concatenate(found)[:ticks]


# Standard errors of all ticks together, over a million of them, and at ticks spread evenly over
# orders of magnitude, from 80 on; next to those of trees of all 2**m leaves in epoch m, of a tree
# that knows the horizon, and of noise at every tick.
@pytest.mark.slow
def test_error_over_a_million_ticks():
    variances, ticks = variances_of(10**6), np.arange(1, 10**6 + 1)
    # The formula is what is released.
    total = RunningTotal(Recorded(statistic("count", None, Bounds(1.0, 1.0))))
    state, found = total.start(), []
    for _ in range(200):
        state, summed = total.tick(state, total.statistic.add([]), SOURCE)
        found.append(summed.variances[0])
    assert variances[:200] == pytest.approx(found, rel=1e-6)
    epoch = np.frexp(ticks)[1] - 1
    roots = np.append(0, np.cumsum(2.0 * np.arange(1, 21) ** 2))[epoch]
    full = roots + ones(ticks - 2**epoch + 1) * 2.0 * (epoch + 1) ** 2
    compared = (variances, full, ones(ticks) * 2.0 * 21**2, 2.0 * ticks)
    for weights, expected in [
        (ticks >= 1, [49.5, 103.6, 93.4, 1000]),
        ((ticks >= 80) / ticks, [35.5, 69.2, 79.3, 461]),
    ]:
        errors = [math.sqrt(np.average(each, weights=weights)) for each in compared]
        assert errors == pytest.approx(expected, rel=0.005)
    assert (variances < 2 * full).all()
    assert (variances[300:] < full[300:]).all()


def ones(numbers):
    """How many bits are set in each."""
    return sum((numbers >> i) & 1 for i in range(20))


# A run goes on from bytes as if it had not stopped, and a replay is the same.
@PROPERTY
@given(st.integers(1, 40), st.integers(1, 30), st.sampled_from(["count", "sum"]))
def test_state_as_bytes(before, after, kind):
    total = RunningTotal(statistic(kind, None, BOUNDS))
    halfway, _ = run(total, before)
    decoded = total.decode(total.encode(halfway))
    assert total.encode(decoded) == total.encode(halfway)
    releases = run(total, before + after, decoded)[1]
    assert releases == run(total, before + after)[1][before:]
    assert len(halfway.nodes) <= 3 * halfway.epoch


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
