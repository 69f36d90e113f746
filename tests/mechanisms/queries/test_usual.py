"""Ratios are pulled towards what is usual: hardly worse than a constant, and with honest errors."""

import numpy as np
import pytest

from streamveil.mechanisms.protocol import Observed
from streamveil.mechanisms.queries import usual as usual_module
from streamveil.mechanisms.queries.answers import FEW, UNKNOWN
from streamveil.mechanisms.queries.statistics import Mean, Quantiles, StandardDeviation, Variance
from streamveil.mechanisms.queries.usual import TOGETHER, Ratios, RatioSums, Usual

SEED = 10
DELAY = Mean("delay", -30, 180)
SLOTS, KNOWN = 200, 60
SHARES = Ratios(lambda counts, variances, _: RatioSums.shares(counts, variances), 1.0)


def simulated(statistic, slots, noise, seed=SEED):
    """Figures of slots in a row, each numbers by node; with the truth, shapes (slots, nodes)."""
    random, whole = np.random.default_rng(seed), statistic.bounds.whole
    usual, found, truth = None, [], []
    for nodes in slots:
        steps = [statistic.steps(numbers) for numbers in nodes]
        parts = np.array([statistic.weights[one].sum(axis=0) for one in steps], np.float64)
        parts += noise * whole * random.standard_normal(parts.shape)
        variances = np.full(parts.shape, (noise * whole) ** 2)
        usual = (usual or Usual.start(*parts.shape, statistic.ratios)).after(
            [Observed(parts, variances)]
        )
        found.append(statistic.answer(parts, variances, usual))
        figure = {"mean": np.mean, "variance": np.var, "stddev": np.std}[statistic.name]
        truth.append([figure(numbers) for numbers in nodes])
    return found, np.array(truth)


def delays(events, slots=SLOTS, seed=SEED):
    """Delays of a stream whose mean wanders by some minutes."""
    random = np.random.default_rng(seed)
    for slot in range(slots):
        middle = 12 + 8 * np.sin(slot / 20)
        yield [np.clip(random.normal(middle, 30, size), -30, 180) for size in events]


@pytest.mark.slow
@pytest.mark.parametrize("events", [[20], [20, 5, 200, 2]])
def test_a_mean_is_hardly_worse_than_a_constant(events):
    found, truth = simulated(DELAY, delays(events), noise=4)
    values = np.array([one.values[:, 0] for one in found])[KNOWN:]
    there, truth = np.isfinite(values), truth[KNOWN:]
    error = np.sqrt(np.mean((values - truth)[there] ** 2))
    constant = np.sqrt(np.mean((truth - truth.mean(axis=0))[there] ** 2))
    assert error < 1.5 * constant
    low, high = (
        np.array([getattr(one, end)[:, 0] for one in found])[KNOWN:] for end in ("low", "high")
    )
    held = (low <= truth) & (truth <= high)
    assert held[there].mean() >= 0.85


def test_where_a_slot_tells_enough_it_stays_what_it_is():
    found, truth = simulated(DELAY, delays([5000]), noise=20)
    values = np.array([one.values[0, 0] for one in found])
    assert np.abs(values - truth[:, 0]).max() < 3


def test_nodes_of_which_little_is_known_are_like_the_others():
    found, _ = simulated(DELAY, delays([5000, 4000, 1, 3000]), noise=20)
    assert found[-1].notes[2, 0] == FEW or np.isnan(found[-1].values[2, 0])
    some = [one for one in found[KNOWN:] if np.isfinite(one.values[2, 0])]
    assert some
    for one in some:
        assert abs(one.values[2, 0] - 12) < 25
        assert one.low[2, 0] < 12 < one.high[2, 0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Variance, StandardDeviation])
def test_variances_are_pulled_as_well(kind):
    found, truth = simulated(kind("delay", -30, 180), delays([20]), noise=3)
    values = np.array([one.values[0, 0] for one in found])[KNOWN:]
    there = np.isfinite(values)
    assert np.abs(np.median(values[there]) / np.median(truth) - 1) < 1
    assert values[there].std() < truth.mean()


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "part"), [(3, 0.15), (10, 0.75)])
def test_variances_are_those_around_the_mean_of_their_own_slot(noise, part):
    """Means move further than numbers of one slot do: around one of all, variances are 1160."""
    random = np.random.default_rng(SEED)
    slots = [[random.normal(75 + 45 * np.sin(slot), 12, 400)] for slot in range(SLOTS)]
    found, truth = simulated(Variance("delay", -30, 180), slots, noise)
    values = np.array([one.values[0, 0] for one in found])[KNOWN:]
    assert values.mean() == pytest.approx(truth[KNOWN:].mean(), rel=part)


def test_slots_of_which_nothing_is_known_change_nothing():
    before = Usual.start(2, 4, DELAY.ratios).after(
        [Observed(np.full((2, 4), 50.0), np.ones((2, 4)))]
    )
    after = before.after([])
    sides = np.array([0.0, 1.0, 0.0, 1.0])[:, None]
    known = np.full((2, 4), 5.0), np.ones((2, 4)), sides, np.array([0.2])
    assert after.pulled(*known)[0] == pytest.approx(before.settled().pulled(*known)[0], rel=1e-3)
    nothing = DELAY.answer(np.zeros((2, 4)), np.full((2, 4), np.nan), after)
    assert set(nothing.notes.ravel()) == {UNKNOWN}


def test_sums_are_bytes_and_back():
    usual = Usual.start(2, 4, DELAY.ratios).after(
        [Observed(np.arange(8.0).reshape(2, 4), np.ones((2, 4)), 24)]
    )
    again = Usual.start(2, 4, DELAY.ratios).decode(usual.encode())
    assert again.encode() == usual.encode()
    assert (again.parts.shape, again.own) == ((3, 2, 4), 1 / 24)
    # A state from before there was a newest average has none.
    size = len(usual.precision)
    numbers, sums = np.split(np.frombuffer(usual.encode()), [2 * size + 1])
    sums = np.delete(sums.reshape(-1, 2, 4), [2, 5], axis=0)
    former = Usual.start(2, 4, DELAY.ratios).decode(
        np.concatenate([numbers, sums.ravel()]).tobytes(), averages=2
    )
    assert not former.parts[2].any()
    assert np.array_equal(former.parts[:2], usual.parts[:2])
    assert former.own == usual.own


# Half of the nodes change for good. Recent averages alone would still be half as far from the new
# ratio as from the old one after 24 slots.
def test_ratios_that_changed_for_good_are_followed(monkeypatch):
    def priors():
        random, usual, rows = np.random.default_rng(SEED), Usual.start(2, 2, SHARES), []
        for slot in range(140):
            shares = np.array([[0.3, 0.7], [0.3 if slot < 100 else 0.5, 0.0]])
            shares[:, 1] = 1 - shares[:, 0]
            counts = 200 * shares + random.normal(0, 15, (2, 2))
            usual = usual.after([Observed(counts, np.full((2, 2), 225.0))])
            rows.append(usual.expected(np.array([[1.0], [0.0]]), np.array([0.5]))[0][:, 0])
        return np.array(rows)

    found = priors()
    assert np.abs(found[108:, 1] - 0.5).mean() < 0.03
    assert np.abs(found[50:, 0] - 0.3).mean() < 0.01
    monkeypatch.setattr(usual_module, "CHANGED", 1e9)
    without = priors()
    assert np.abs(without[108:, 1] - 0.5).mean() > 0.08
    assert np.array_equal(without[:, 0], found[:, 0])


def test_shares_below_edges_are_ratios_as_any():
    random = np.random.default_rng(SEED)
    counts, variances = random.normal(10, 5, (3, 5)), random.uniform(1, 9, (3, 5))
    each = np.triu(np.ones((5, 5)))[:, :-1]
    below, same = RatioSums.below(counts, variances), RatioSums.of(counts, variances, each)
    ratio = np.linspace(0.2, 0.9, 4)[None]
    assert below.away(ratio) == pytest.approx(same.away(ratio))
    assert below.error(ratio) == pytest.approx(same.error(ratio))
    assert (RatioSums.below(counts, variances, TOGETHER).error(ratio) > same.error(ratio)).all()


def test_a_forecast_after_a_mean_of_many_slots_tells_nothing_of_a_slot():
    parts, sure = np.array([[30.0, 10.0, 0, 0]]), np.full((1, 4), 4.0)
    sides = np.array([0.0, 1.0, 0.0, 1.0])[:, None], np.array([0.2])
    single, many = (
        Usual.start(1, 4, DELAY.ratios)
        .after([Observed(parts, sure, slots)])
        .pulled(parts, sure, *sides)
        for slots in (1, 24)
    )
    assert many[1] > single[1]


def test_of_a_slot_in_which_nothing_was_observed_no_more_is_known_than_how_much_slots_differ():
    parts, sure = np.array([[300.0, 100.0, 0, 0]]), np.full((1, 4), 4.0)
    sides = np.array([0.0, 1.0, 0.0, 1.0])[:, None], np.array([0.2])
    seen = Usual.start(1, 4, DELAY.ratios).after([Observed(parts, sure)])
    observed, forecast = (one.pulled(parts, sure, *sides)[1] for one in (seen, seen.after([])))
    assert observed < forecast / 10


def test_a_forecast_tells_how_far_shares_below_edges_moved_but_not_their_chance():
    """The variance was only that of slots around the prior, however sure the forecast."""
    parts, sure, unsure = (np.full((1, 4), each) for each in (100.0, 1.0, 1e6))
    usual = Usual.start(1, 4, Quantiles("delay", (0, 10, 20)).ratios)
    usual = usual.after([Observed(parts, sure)]).after([])
    moved = parts + np.array([[40.0, 40.0, -40.0, -40.0]])
    before = np.array([0.25, 0.5, 0.75])
    below, variance = usual.below(moved, sure, before)
    _, nothing = usual.below(moved, unsure, before)
    assert (variance < 0.6 * nothing).all()
    assert (variance > below * (1 - below) / 400).all()
    _, many = usual.below(moved * 1e6, sure, before)
    chance = np.array([0.25, 0.5, 0.75]) * np.array([0.75, 0.5, 0.25]) / 400
    assert (variance - many)[0] == pytest.approx(chance, rel=0.15)


def test_shares_that_move_err_as_is_stated_where_every_third_slot_is_observed():
    """Forecasts follow this stream well: standard errors were twice as large as errors."""
    random, statistic = np.random.default_rng(SEED), Quantiles("delay", (0, 10, 20, 30))
    usual, edges, scores = Usual.start(1, 5, statistic.ratios), np.array([0, 10, 20, 30]), []
    for slot in range(600):
        numbers = random.normal(15 + 8 * np.sin(slot / 8), 12, 800)
        parts = statistic.weights[statistic.steps(numbers)].sum(axis=0)[None] + 0.0
        parts, errors = parts + random.normal(0, 15, parts.shape), np.full(parts.shape, 15.0**2)
        if slot % 3 == 0:
            usual, forecast = usual.after([Observed(parts, errors)]), parts
            continue
        usual = usual.after([])
        below, variance = usual.below(forecast, errors, np.full(4, 0.5))
        truth = (numbers[:, None] < edges).mean(axis=0)
        scores.append((below - truth) / np.sqrt(variance))
    assert 0.55 < np.sqrt(np.mean(np.square(scores[KNOWN:]))) < 1.1


@pytest.mark.slow
@pytest.mark.parametrize("differ", [0.005, 0.04, 0.1])
@pytest.mark.parametrize("noise", [2.0, 20.0])
def test_how_much_slots_differ_is_learnt(differ, noise):
    """Shares of a Dirichlet distribution, whose variances are so much of the most there can be."""
    random, usual = np.random.default_rng(SEED), Usual.start(3, 4, SHARES)
    alike = 1 / differ - 1
    for _ in range(600):
        shares = random.dirichlet(alike * np.array([0.5, 0.3, 0.1, 0.1]), 3)
        counts = 200 * shares + noise * random.standard_normal((3, 4))
        usual = usual.after([Observed(counts, np.full((3, 4), noise**2))])
    first = Usual.start(3, 4, SHARES).differ()
    assert (first > 0.1).all()
    # Of this, so much is because slots have 200 events.
    found = usual.differ() + 1 / 200
    assert (differ / 1.5 < found).all()
    assert (found < differ * 1.5 + 0.1 * first).all()


def test_slots_that_are_alike_are_believed_to_be():
    """The least that was believed was 0.003: standard errors of shares were a third too large."""
    random, usual = np.random.default_rng(SEED), Usual.start(1, 4, SHARES)
    for _ in range(400):
        counts = random.multinomial(2000, [0.5, 0.3, 0.1, 0.1])[None] + random.normal(0, 5, (1, 4))
        usual = usual.after([Observed(counts, np.full((1, 4), 25.0))])
    assert (usual.differ() < 0.001).all()


def test_a_quantile_is_hardly_worse_than_a_constant():
    statistic = Quantiles("delay", (-30, -5, 5, 15, 30, 60, 120, 180), 0.9)
    random, usual, found, truth = (
        np.random.default_rng(SEED),
        Usual.start(1, 9, statistic.ratios),
        [],
        [],
    )
    for (numbers,) in delays([30]):
        parts = statistic.weights[statistic.steps(numbers)].sum(axis=0)[None] + 0.0
        errors = np.full(parts.shape, 9.0)
        parts += 3 * random.standard_normal(parts.shape)
        usual = usual.after([Observed(parts, errors)])
        one = statistic.answer(parts, errors, usual)
        found.append([one.low[0, 0], one.values[0, 0], one.high[0, 0]])
        truth.append(np.quantile(numbers, 0.9))
    low, values, high = np.array(found)[KNOWN:].T
    truth = np.array(truth)[KNOWN:]
    assert np.sqrt(np.mean((values - truth) ** 2)) < 1.5 * truth.std()
    assert ((low <= truth) & (truth <= high)).mean() >= 0.85


def test_nodes_that_come_know_nothing_and_the_others_keep_what_is_known():
    parts, variances = np.array([[40.0, 10.0], [5.0, 20.0]]), np.full((2, 2), 4.0)
    known = Usual.start(2, 2, SHARES).after([Observed(parts, variances)])
    more = known.grown(np.array([0, -1, 1]))
    settled = known.settled()
    assert (more.parts[:, [0, 2]] == settled.parts).all()
    assert (more.noise[:, [0, 2]] == settled.noise).all()
    assert not more.parts[:, 1].any()
    later = [Observed(parts, variances)]
    three = [Observed(np.insert(parts, 1, 7.0, axis=0), np.full((3, 2), 4.0))]
    after, grown = known.after(later), more.after(three)
    assert np.allclose(grown.settled().parts[:, [0, 2]], after.settled().parts)
