"""The common factor: what is learnt of it, what it costs, and that it is used only on evidence."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest

from streamveil.mechanisms import (
    NoiseSource,
    Population,
    ReleaseStream,
    Requirement,
    mechanism,
    simulate,
)
from streamveil.mechanisms.adaptive import factor as factor_module
from streamveil.mechanisms.adaptive.factor import SHARES, Factor, Past
from streamveil.mechanisms.adaptive.fixed import Adaptive
from streamveil.mechanisms.adaptive.loadings import Lesson, Loadings
from streamveil.mechanisms.adaptive.own_slot import of_the_slot
from streamveil.mechanisms.adaptive.pooling import FEWEST_BINS
from streamveil.mechanisms.adaptive.total_filter import Ratio, TotalModel
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.protocol import SlotInput
from tests.mechanisms.streams import KEY, assert_within_budget

REQUIREMENTS = (Requirement(7, 1.0), Requirement(14, 1.0), Requirement(21, 1.0))
SIZES = np.array([8000, 8000, 8000])
DAY = 86_400_000_000
# The total of each day of a week, relative to its mean.
WEEK = np.array([1.15, 1.15, 1.1, 1.1, 1.2, 0.75, 0.55])


def people(bins=20, slot_length=DAY, requirements=REQUIREMENTS, **more) -> Population:
    return Population(requirements, SIZES, bins, slot_length=slot_length, **more)


def counts_of(ratios, bins=20, loadings=1.0, seed=1) -> np.ndarray:
    """Counts of three classes whose bins follow ratios, as far as they load on them: (T, 3, d)."""
    levels = 3000 / np.arange(1, bins + 1)
    each = levels * (1 + loadings * (np.asarray(ratios)[:, None] - 1))
    random = np.random.default_rng(seed)
    return random.poisson(np.repeat(each[:, None] / 3, 3, axis=1))


def weeks(number) -> np.ndarray:
    return np.tile(WEEK, number)


def error(name, counts) -> float:
    """Mean squared error of the released counts, after four weeks."""
    simulated = simulate(name, counts, REQUIREMENTS, SIZES, KEY)
    return float(((simulated.estimates - counts.sum(axis=1))[28:] ** 2).mean())


def run(counts, revise=0, requirements=REQUIREMENTS):
    """The mechanism, its state after a stream, and the releases."""
    machine = Adaptive("adaptive", people(counts.shape[2], requirements=requirements))
    machine.revise = revise
    stream = ReleaseStream(machine, NoiseSource(KEY))
    state, releases = stream.start(), []
    for slot, table in enumerate(counts):
        state, release = stream.release(state, slot, table)
        releases.append(release)
    return machine, state.mechanism, releases


def run_through_bytes(counts, revise):
    """The state after a stream, which is the same if it is saved and read in every slot."""
    machine, end, releases = run(counts, revise)
    stream = ReleaseStream(machine, NoiseSource(KEY))
    data = stream.encode(stream.start())
    for slot, table in enumerate(counts):
        state = stream.decode(data)
        assert stream.encode(state) == data
        state, release = stream.release(state, slot, table)
        assert release.estimates.tobytes() == releases[slot].estimates.tobytes()
        assert release.stderr.tobytes() == releases[slot].stderr.tobytes()
        revised = [(one.slot, one.counts.tobytes()) for one in release.revisions]
        assert revised == [(one.slot, one.counts.tobytes()) for one in releases[slot].revisions]
        data = stream.encode(state)
    assert machine.encode(stream.decode(data).mechanism) == machine.encode(end)
    return end


# ---- the filter of the total ----------------------------------------------------------------


def textbook(drift, deviation, season, phases, seen):
    """A Kalman filter of one member, written out: the ratio of every slot, with its variance."""
    size = 2 + phases
    mean, covariance = np.zeros(size), np.diag([1.0, 0.0, *[season**2] * phases])
    mean[0] = 1.0
    filtered = []
    for slot, ratio in enumerate(seen):
        move = np.eye(size)
        move[1, 1] = 0.0
        step = np.zeros(size)
        step[[0, 1, 2 + slot % phases]] = drift, deviation**2, 1e-4 * season**2
        mean, covariance = move @ mean, move @ covariance @ move + np.diag(step)
        row = np.zeros((1, size))
        row[0, [0, 1, 2 + slot % phases]] = 1.0
        gain = covariance @ row.T / (row @ covariance @ row.T + ratio.variance)
        mean = mean + gain[:, 0] * (ratio.mean - row[0] @ mean)
        covariance = (np.eye(size) - gain @ row) @ covariance
        filtered.append((row[0] @ mean, (row @ covariance @ row.T).item()))
    return np.array(filtered)


# Each member is the Kalman filter of the textbook.
def test_members_are_kalman_filters():
    random = np.random.default_rng(3)
    seen = [Ratio(one, 0.01) for one in weeks(4) + random.normal(0, 0.1, 28)]
    model = TotalModel(7)
    state, filtered = model.start(), []
    for slot, ratio in enumerate(seen):
        model.advance(state, slot)
        model.observe(state, slot, ratio)
        sums = model._sums(slot)
        filtered.append(np.stack([state.mean @ sums, state.covariance @ sums @ sums]))
    for member in range(len(model.drift)):
        kind = model.drift[member], model.deviation[member] ** 0.5, model.season[member] ** 0.5
        expected = textbook(*kind, 7, seen)
        np.testing.assert_allclose(np.stack(filtered)[:, :, member], expected, rtol=1e-6, atol=1e-9)


# The weight of an observation says how much the ratio moved; an exact one is followed.
def test_how_much_a_ratio_follows_what_is_seen():
    model = TotalModel(0)
    for variance, least, most in ((0.0, 0.99, 1.0), (1e4, 0.0, 0.01)):
        state = model.start()
        model.advance(state, 0)
        before = model.ratio(state, 0)
        follows = model.observe(state, 0, Ratio(2.0, variance))
        after = model.ratio(state, 0)
        assert least <= follows <= most
        assert after.mean - before.mean == pytest.approx(follows, abs=0.01)
        assert after.variance <= before.variance


# A week that is seen through noise is known after some of them, slot by slot.
def test_a_season_is_found():
    random, model = np.random.default_rng(4), TotalModel(7)
    state, errors = model.start(), []
    for slot, truth in enumerate(weeks(12)):
        model.advance(state, slot)
        foreseen = model.ratio(state, slot)
        model.observe(state, slot, Ratio(truth + random.normal(0, 0.1), 0.01))
        errors.append(((foreseen.mean - truth) ** 2, foreseen.variance))
    squared, stated = np.array(errors)[-28:].mean(axis=0)
    assert squared < 0.05**2 < WEEK.var() / 10
    assert stated > squared / 2
    assert model.swing(state) == pytest.approx(WEEK.var(), rel=0.25)


# ---- loadings -------------------------------------------------------------------------------


# Bins that have nothing in common show no evidence of a factor, though the total is their sum.
@pytest.mark.slow
def test_independent_bins_show_no_evidence():
    evidence, used = [], 0
    for seed in range(12):
        random = np.random.default_rng(seed)
        walks = np.exp(np.cumsum(random.normal(0, 0.03, (90, 20)), axis=0))
        counts = counts_of(np.ones(90), loadings=0.0, seed=seed)
        counts = random.poisson(counts.mean(axis=0) * walks[:, None])
        _, state, _ = run(counts)
        evidence.append(state.factor.loadings.evidence)
        used += state.factor.used
    assert used <= 3  # walks go the same way by chance now and then
    assert abs(np.mean(evidence)) < 4 * np.std(evidence) / len(evidence) ** 0.5 + 0.5


# Bins that follow the total are found to, and those that do not are not; the factor is used.
def test_loadings_are_found():
    loadings = np.repeat([1.0, 0.0], [12, 8])[np.argsort(np.tile(np.arange(5), 4), kind="stable")]
    counts = counts_of(weeks(20), loadings=loadings)
    _, state, _ = run(counts)
    assert state.factor.used
    learnt, _ = state.factor.loadings.estimates()
    # Relative to the total, which changes less than the bins that follow it.
    assert learnt[loadings == 1].mean() > 0.8
    assert learnt[loadings == 0].mean() < 0.4
    assert state.factor.loadings.evidence > 5


# Least squares: with an exact lever and no level that follows, the loading is what was put in.
def test_loadings_are_least_squares():
    random, loadings = np.random.default_rng(5), Loadings.start(3)
    truth, level = np.array([0.2, 1.0, 1.6]), np.full(3, 1000.0)
    for _ in range(600):
        away = level * random.normal(0, 0.02)
        missed = (truth - 1) * away + random.normal(0, 2.0, 3)
        lesson = Lesson(
            away, np.ones(3), missed, np.full(3, 900.0), np.zeros(3), np.zeros(3), np.ones(3, bool)
        )
        loadings.learn(lesson, np.ones(3))
    np.testing.assert_allclose(loadings.estimates()[0], truth, atol=0.05)


# Errors that forecast and release have in common are not averaged out.
def test_a_slots_own_estimate_knows_of_shared_errors():
    random = np.random.default_rng(6)
    shared, alone, blur = (random.normal(0, 1, 200_000) for _ in range(3))
    forecast, release = shared + alone, shared + blur  # of a count of 0
    machine = Adaptive("adaptive", people(5))
    state = machine.start()
    seen = machine.bank.observe(state.bank, np.zeros(5), 1.0, np.zeros(5))
    seen = replace(
        seen, observed=release, expected=forecast, foreseen=2.0, noise=2.0, error=0.0 * release
    )
    estimate = of_the_slot(seen, 0.0, np.full_like(release, 0.99))
    assert float((estimate.mean**2).mean()) == pytest.approx(
        float(estimate.variance.mean()), rel=0.02
    )


# ---- what it is good for --------------------------------------------------------------------


def test_errors_fall_where_bins_rise_and_fall_together(monkeypatch):
    counts = counts_of(weeks(25))
    with_factor = error("adaptive", counts)
    monkeypatch.setattr(Adaptive, "look_for_factor", lambda *_: None)
    assert with_factor < 0.7 * error("adaptive", counts)


# Independent bins lose nothing, and nearly nothing is paid.
@pytest.mark.slow
def test_errors_stay_where_bins_are_independent(monkeypatch):
    ratios = []
    for seed in range(6):
        counts = counts_of(np.ones(175), seed=seed)
        with_factor = error("adaptive", counts)
        with monkeypatch.context() as patch:
            patch.setattr(Adaptive, "look_for_factor", lambda *_: None)
            ratios.append(with_factor / error("adaptive", counts))
    assert np.mean(ratios) < 1.02


# 90 % intervals hold 90 % of the counts, whether the factor is used or not.
@pytest.mark.slow
@pytest.mark.parametrize("depth", [0.0, 1.0])
def test_intervals_hold(depth):
    counts = counts_of(1 + depth * (weeks(40) - 1))
    simulated = simulate("adaptive", counts, REQUIREMENTS, SIZES, KEY)
    missed = np.abs(simulated.estimates - counts.sum(axis=1)) / simulated.stderr
    held = (missed <= 1.645)[28:]
    assert 0.87 < held.mean() < 0.96
    assert held.mean(axis=0).min() > 0.8


# Releases are the same whether slots are revised or not. Revisions follow the factor too, and err
# no more than releases.
@pytest.mark.slow
@pytest.mark.parametrize("most", [40, 4000])
def test_revisions_follow_the_factor(most):
    counts = counts_of(weeks(30)) * most // 4000
    once, revised = (
        simulate("adaptive", counts, REQUIREMENTS, SIZES, KEY, revise=revise) for revise in (0, 7)
    )
    assert once.estimates.tobytes() == revised.estimates.tobytes()
    truth = counts.sum(axis=1)[28:]
    errors = [
        ((estimates[28:] - truth) ** 2).mean()
        for estimates in (once.estimates, revised.revised_estimates)
    ]
    assert errors[1] < 1.05 * errors[0]
    held = np.abs(revised.revised_estimates[28:] - truth) <= 1.645 * revised.revised_stderr[28:]
    assert held.mean() > 0.85


# ---- what it costs --------------------------------------------------------------------------


# With a total in every slot no window of a class costs more than its budget.
@pytest.mark.parametrize("share", [0.005, 0.25])
def test_totals_keep_the_budget(monkeypatch, share):
    measured = []
    measure = Factor.measure

    def always(self, state, slot, counts, noise, terms, size):
        state.share = share
        spent = measure(self, state, slot, counts, noise, terms, size)
        measured.append(spent)
        assert (spent <= terms.rates.main * share).all()
        return spent

    monkeypatch.setattr(Factor, "measure", always)
    _, state, releases = run(counts_of(weeks(9)))
    assert state.factor.used
    assert sum(spent.any() for spent in measured) > 40
    assert_within_budget(releases, REQUIREMENTS)


# Without evidence nothing is measured where every slot is released, for releases tell the total.
def test_nothing_is_measured_without_need(monkeypatch):
    asked = []
    release = factor_module.Weighting.release

    def noted(self, counts, noise, purpose):
        asked.append(purpose)
        return release(self, counts, noise, purpose)

    monkeypatch.setattr(factor_module.Weighting, "release", noted)
    _, state, _ = run(counts_of(np.ones(60)))
    assert not state.factor.used
    assert state.gap == 1
    assert asked.count("total") <= 5
    assert state.factor.usual


# The share is the best of those there are: none for a total that never moves.
def test_the_share_is_planned():
    machine, state, _ = run(counts_of(weeks(20)))
    terms, known = machine.terms(state, None), state.factor
    level = machine.bank.forecast(state.bank)
    chosen = {}
    for gap in (1, 4, 16):
        machine.factor.plan(known, terms, level, gap, False, False)
        chosen[gap] = known.share
    assert set(chosen.values()) <= set(SHARES.tolist())
    assert max(chosen.values()) > 0
    machine.factor.plan(known, terms, level._replace(mean=0 * level.mean), 16, False, False)
    assert known.share == 0


# Where no share tells enough of the factor, every slot is released, unless a gap has begun.
def test_every_slot_is_released_where_totals_tell_too_little():
    machine, state, _ = run(counts_of(weeks(20)))
    terms, known = machine.terms(state, None), state.factor
    level = machine.bank.forecast(state.bank)
    large = level._replace(mean=50 * level.mean)
    for gap, begins, of, better in (
        (16, True, large, True),
        (16, False, large, False),
        (1, True, large, False),
        (16, True, level._replace(mean=0 * level.mean), False),
    ):
        assert machine.factor.plan(known, terms, of, gap, False, begins) == better


# No bin follows the total exactly: a total that swings far leaves more to release of each slot.
def test_swings_of_the_total_cost_bins_that_are_not_released(monkeypatch):
    machine, state, _ = run(counts_of(weeks(20)))
    known, factor = state.factor, machine.factor
    level = machine.bank.forecast(state.bank)
    costs = [factor._costs(known, 1000.0, level, gap, True).min() for gap in (1, 4)]
    monkeypatch.setattr(TotalModel, "swing", lambda *_: 0.0)
    without = [factor._costs(known, 1000.0, level, gap, True).min() for gap in (1, 4)]
    assert costs[1] - without[1] > 2 * (costs[0] - without[0]) > 0
    swing = (factor_module.MISFIT**2 * WEEK.var() * level.mean**2).mean()
    assert costs[1] - without[1] > 0.6 * swing


# ---- where there is none, and states --------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "population"),
    [
        ({}, people(FEWEST_BINS - 1)),
        ({"cycle": "7"}, people()),
        ({}, people(requirements=(Requirement(1, 1.0),) * 3)),
        ({}, people(ratio=2, graded=(True, False))),
        ({}, people(FEWEST_BINS, totals=1)),
        ({}, people(totals=2)),
    ],
)
def test_who_has_no_factor(options, population):
    machine = Adaptive("adaptive", population, **options)
    assert machine.factor is None
    assert machine.start().factor is None


def test_who_has_a_week():
    for length, phases in ((DAY, 7), (None, 7), (DAY // 24, 0)):
        assert Adaptive("adaptive", people(slot_length=length)).factor.model.phases == phases


# A stream that goes through bytes in every slot goes on as one that never did.
@pytest.mark.parametrize(("revise", "growth"), [(0, 1.0), (3, 1.0), (5, 1.05)])
def test_bytes_in_every_slot_keep_the_future(revise, growth):
    assert run_through_bytes(counts_of(weeks(6) * growth ** np.arange(42)), revise).factor.used


# ---- totals that grow and shrink ------------------------------------------------------------


# The usual size follows a total that becomes 30 times as large, or as small, so that the factor is
# still of use, and intervals keep their coverage.
@pytest.mark.parametrize("times", [30.0, 1 / 30])
def test_totals_that_grow_and_shrink(monkeypatch, times):
    growth = times ** (np.arange(210) / 210)
    counts = counts_of(growth * weeks(30) * max(1 / times, 1) / 5)
    _, state, releases = run(counts)
    assert state.factor.used
    assert 0.7 < state.factor.usual / counts[-14:].sum() * 14 < 1.5
    estimates = np.array([one.estimates for one in releases])
    missed = np.abs(estimates - counts.sum(axis=1))[28:]
    assert 0.87 < (missed < 1.645 * np.array([one.stderr for one in releases])[28:]).mean() < 0.95
    monkeypatch.setattr(Adaptive, "look_for_factor", lambda *_: None)
    assert (missed**2).mean() < 0.8 * error("adaptive", counts)


# A new usual size changes no forecast of a bin, nor what revisions say of earlier slots, where
# loadings are 1.
def test_a_new_usual_size_changes_nothing_else():
    counts = counts_of(weeks(9))
    machine, state, _ = run(counts, revise=5)
    known, ring = state.factor, state.ring
    known.total.mean[:, 0], known.total.mean[:, 2:] = 1.6, 0.0
    loadings = known.loadings
    loadings.product = loadings.information = np.full(20, 1e6, np.float32)
    loadings.known = None
    known.ratios, known.variance = [1.6], 0.0
    bank = machine.factor.over(known, machine.bank, len(counts))
    weights, scale = machine.bank.mixture(state.bank).weights, state.bank.scale

    def seen(beliefs, of, ratio):
        known.ratios = [ratio]
        slot, level = deepcopy(of).revise(weights, beliefs.scale)
        past = known.past[slot - of.last_slot - 1]
        revised = past.counts(level)
        return bank.forecast(beliefs).mean, revised.mean, known.usual * ratio

    before = seen(state.bank, ring, 1.6)
    renewed = bank.renewed(state.bank, ring)
    assert renewed is not state.bank
    for one, other in zip(before, seen(renewed, ring, 1.0), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)
    assert bank.renewed(renewed, ring) is renewed
    assert renewed.scale == pytest.approx(1.6 * scale, rel=1e-4)


# A season that took a step of the total for its own gives it back: the new size has all of it.
def test_the_size_is_that_of_all_phases():
    model, size = TotalModel(7), 2.5
    state = model.start()
    state.mean[:, 0], state.mean[:, 2:] = (
        1.1,
        1.4 + np.array([0.1, 0.2, 0.3, 0.0, -0.1, -0.2, -0.3]),
    )
    assert model.size(state).mean == pytest.approx(size)
    shapes = state.mean[0, 2:] - 1.4
    before = model.size(state).variance
    model.renew(state, size)
    assert state.mean[:, 0] == pytest.approx(1.0)
    np.testing.assert_allclose(state.mean[0, 2:], shapes, atol=1e-12)
    renewed = model.size(state)
    assert renewed.mean == pytest.approx(1.0)
    assert renewed.variance == pytest.approx(before / size**2)
    assert (state.covariance == state.covariance.transpose(0, 2, 1)).all()


# The usual size stays where the level of the total is hardly above 0, so it never comes down to it.
def test_no_new_usual_size_without_events():
    counts = counts_of(weeks(12))
    counts[42:] = 0
    _, state, releases = run(counts)
    assert state.factor.usual > 10
    assert np.isfinite([one.stderr for one in releases[1:]]).all()


# One result in 10**300 may be 10**20 times too large: what is kept of it is a number all the same.
@pytest.mark.parametrize("size", [1e17, 1e25, 1e35])
def test_figures_beyond_all_counts_stay_finite(size):
    known = Loadings.start(3)
    huge, able = np.full(3, size), np.ones(3, bool)
    with np.errstate(over="raise", invalid="raise"):
        for _ in range(9):
            lesson = Lesson(huge, np.ones(3), huge, np.ones(3), huge, np.full(3, 0.5), able)
            known.learn(lesson, np.ones(3))
            known.move(huge, np.full(3, 10.0))
            assert np.isfinite([*known.estimates(), known.lever(huge, np.ones(3))]).all()
            assert np.isfinite(known.evidence)
        past = Past.of(huge, np.ones(3), huge**2).divided(np.full(3, 0.1))
        assert np.isfinite(past).all()


# Covariances are saved once for each pair: both of a pair are the same to the last bit.
def test_covariances_are_symmetric():
    model = TotalModel(7)
    state = model.start()
    for slot, ratio in enumerate(np.random.default_rng(4).normal(1, 0.3, 300)):
        model.advance(state, slot)
        model.observe(state, slot, Ratio(float(ratio), 0.01))
        assert (state.covariance == state.covariance.transpose(0, 2, 1)).all()
        state.round()


# Streams whose results are added up say how long errors last, also after a release with a factor.
def test_results_that_are_added_up():
    counts = counts_of(weeks(6))
    stream = ReleaseStream(Adaptive("adaptive", people(summed=True)), NoiseSource(KEY))
    state, used = stream.start(), 0
    for slot, table in enumerate(counts):
        state, release = stream.release(state, slot, table)
        used += state.mechanism.factor.used
        assert release.lasting is not None
        assert ((release.lasting.kept >= 0) & (release.lasting.kept <= 1)).all()
    assert used > 20


# However long nothing is released, no more is remembered than a sum can need.
def test_no_more_ratios_are_kept_than_needed():
    follower = Factor(20, DAY)
    state = follower.start()
    for slot in range(1000):
        follower.begin(state, slot, slot + 1)
    assert len(state.ratios) == 672
    follower.begin(state, 1000, 1)
    assert state.ratios == [1.0]


# Whoever no longer revises keeps nothing for revisions.
def test_nothing_is_kept_for_revisions_that_are_not_made():
    counts = counts_of(weeks(6))
    machine, end, _ = run(counts, revise=5)
    assert len(end.factor.past) == 6
    machine.revise = 0
    state, _ = ReleaseStream(machine, NoiseSource(KEY)).mechanism.step(
        end, SlotInput(len(counts), counts[0]), NoiseSource(KEY).slot(len(counts), b"")
    )
    assert state.factor.past == []


# A state from before there was a factor is read in the middle of a sum, and goes on without one
# until enough totals are known.
def test_former_states_go_on():
    counts = counts_of(weeks(8))
    machine = mechanism("adaptive", people())
    stream = ReleaseStream(machine, NoiseSource(KEY))
    driven = stream.start()
    for slot, table in enumerate(counts[:30]):
        driven, _ = stream.release(driven, slot, table)
    record = state_codec.unpack(machine.SCHEMAS, machine.encode(driven.mechanism))[1]
    former = {2: machine.SCHEMAS[2]}
    read = machine.decode(state_codec.pack(former, record))
    assert not read.factor.usual
    driven.mechanism, read.bank.elapsed = read, 12
    for slot, table in enumerate(counts[30:], 30):
        driven, release = stream.release(driven, slot, table)
        assert np.isfinite(release.stderr).all()
    assert driven.mechanism.factor.usual
