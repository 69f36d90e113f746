"""The total of all bins as a cell of its own: what it tells, and that it costs what it is said."""

from dataclasses import replace

import numpy as np
import pytest

from streamveil.mechanisms import NoiseSource, Population, ReleaseStream, Requirement
from streamveil.mechanisms.adaptive.algorithm import AdaptiveRelease
from streamveil.mechanisms.adaptive.factor import UNKNOWN_SIZE, WITH_TOTAL
from streamveil.mechanisms.adaptive.fixed import Adaptive
from streamveil.mechanisms.adaptive.slot_total import UNKNOWN, by_first
from streamveil.mechanisms.adaptive.total_filter import Ratio, TotalModel
from streamveil.mechanisms.core.tidy import NINETY_PERCENT
from streamveil.mechanisms.protocol import SlotInput
from tests.mechanisms.adaptive.test_factor import (
    DAY,
    REQUIREMENTS,
    SIZES,
    counts_of,
    people,
    weeks,
)
from tests.mechanisms.streams import KEY, assert_within_budget

BINS = 20


def with_sums(counts) -> np.ndarray:
    """Counts (T, K, d), and the sum of all bins as the last cell."""
    return np.concatenate([counts, counts.sum(axis=2, keepdims=True)], axis=2)


def machine(revise=0, **more) -> Adaptive:
    made = Adaptive("adaptive", people(BINS + 1, sensitivity=2, totals=1, **more))
    made.revise = revise
    return made


def released(counts, made=None) -> list:
    stream = ReleaseStream(made or machine(), NoiseSource(KEY))
    state, releases = stream.start(), []
    for slot, table in enumerate(counts):
        state, release = stream.release(state, slot, table)
        releases.append(release)
    return releases


# ---- who has one ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "separate"),
    [
        ({"totals": 1}, True),
        ({"totals": 1, "slot_length": DAY}, True),
        ({"totals": 1, "slot_length": DAY // 24}, False),
        ({"totals": 2}, False),
        ({"totals": 0}, False),
        ({"totals": 1, "bins": 5}, False),
        ({"totals": 2, "graded": (True, False)}, False),
    ],
)
def test_who_tells_a_total(more, separate):
    public = Population(**{"requirements": REQUIREMENTS, "sizes": SIZES, "bins": 22, **more})
    made = Adaptive("adaptive", public)
    assert bool(made.factor and made.factor.tells_total) is separate
    assert made.population is public
    assert made.start().bank.scale.shape == (public.bins - separate,)


# ---- what it costs --------------------------------------------------------------------------


# Of the sensitivity, half is that of the bins: the cell of the total has no part in any result.
def test_the_cell_of_the_total_is_not_read():
    counts = with_sums(counts_of(weeks(3)))
    for wrong in (0, 10**9):
        made, states, seen = machine(), [], []
        states = [made.start(), made.start()]
        for slot, table in enumerate(counts):
            other = table.copy()
            other[:, -1] = wrong
            for n, one in enumerate((table, other)):
                noise = NoiseSource(KEY).slot(slot, b"the same")
                states[n], release = made.step(states[n], SlotInput(slot, one), noise)
                seen.append((release.counts.tobytes(), release.spent.tobytes()))
        assert seen[::2] == seen[1::2]


# What a release costs is what the bins alone cost: twice as large a weight as for both.
def test_the_noise_is_that_of_bins_alone():
    without = Adaptive("adaptive", people(BINS, sensitivity=1))
    for made, sensitivity in ((machine(), 1), (without, 1)):
        terms = made.terms(made.start(), None)
        assert terms.crowd.sensitivity == sensitivity
        assert terms.crowd.bins == BINS
    both = [made.terms(made.start(), None) for made in (machine(), without)]
    assert both[0].rates.main.tolist() == both[1].rates.main.tolist()
    assert both[0].fair(both[0].rates.main).tolist() == both[1].fair(both[1].rates.main).tolist()


@pytest.mark.parametrize("share", [0.005, 0.5])
def test_totals_keep_the_budget(monkeypatch, share):
    made = machine()
    plan = made.factor.plan

    def planned(state, *given):
        better = plan(state, *given)
        state.share = share
        return better

    monkeypatch.setattr(made.factor, "plan", planned)
    assert_within_budget(released(with_sums(counts_of(weeks(9))), made), REQUIREMENTS)


# The share is one of those that there are, and the larger the more the total is worth.
def test_the_share_is_planned():
    made = machine()
    stream = ReleaseStream(made, NoiseSource(KEY))
    state = stream.start()
    assert state.mechanism.factor.share == UNKNOWN_SIZE
    for slot, table in enumerate(with_sums(counts_of(weeks(4)))):
        state, _ = stream.release(state, slot, table)
    assert state.mechanism.factor.share in WITH_TOTAL.tolist()
    assert state.mechanism.factor.share > 0


# ---- what it tells --------------------------------------------------------------------------


# As accurate as if it was released with the bins, which are then far noisier, and more so of days.
@pytest.mark.slow
def test_bins_are_more_accurate_than_beside_a_released_total(monkeypatch):
    counts = with_sums(counts_of(weeks(26)))
    truth = counts.sum(axis=1)[28:]

    def errors() -> np.ndarray:
        values = np.array([one.values for one in released(counts)])[28:]
        squared = (values - truth) ** 2
        return np.array([squared[:, :-1].mean(), squared[:, -1].mean()])

    new = errors()
    monkeypatch.setattr(AdaptiveRelease, "look_for_factor", lambda *_: None)
    former = errors()
    assert new[0] < 0.7 * former[0]
    assert new[1] < 1.5 * former[1]


@pytest.mark.slow
@pytest.mark.parametrize("ratios", [weeks(26), np.ones(182)])
def test_intervals_of_the_total_hold_the_truth(ratios):
    held, missed = [], []
    for seed in range(4):
        counts = with_sums(counts_of(ratios, seed=seed))
        releases = released(counts)
        error = np.array([one.values[-1] for one in releases]) - counts.sum(axis=1)[:, -1]
        stderr = np.array([one.stderr[-1] for one in releases])
        held.append(np.abs(error) <= NINETY_PERCENT * stderr)
        missed.append(error)
    assert 0.84 < np.mean(held) < 0.97
    assert np.mean(held, axis=0)[:14].mean() > 0.8
    # On average neither too high nor too low.
    every = np.concatenate(missed)
    assert abs(every.mean()) < 4 * every.std() / len(every) ** 0.5


# Slots without events, such as nights: no bound on the ratio of levels holds the total.
def test_totals_of_nothing_are_not_biased():
    ratios = np.ones(120)
    ratios[3::4] = 0
    counts = with_sums(counts_of(ratios))
    totals = np.array([one.values[-1] for one in released(counts, machine(slot_length=DAY // 4))])
    assert totals[7::4].mean() < 0.05 * counts.sum(axis=1)[:, -1].max()


# A total that is far from its forecast is followed at once: a single one, and one that stays.
@pytest.mark.parametrize("lasts", [1, 30])
def test_a_jump_of_the_total_is_followed(lasts):
    shares = np.full((90, 1, 1), 0.1)
    shares[60 : 60 + lasts] = 0.3
    errors = []
    for seed in range(3):
        random = np.random.default_rng(seed)
        counts = with_sums(random.binomial(counts_of(np.ones(90), seed=seed), shares))
        totals = np.array([one.values[-1] for one in released(counts)])
        errors.append((totals - counts.sum(axis=1)[:, -1])[60:70])
    # The noise of a measured total is about 50.
    assert np.mean(np.square(errors)) ** 0.5 < 100


# Users with more budget have more events: the bias that audits leave in releases is the same in all
# bins, and the total allows for it.
def test_the_total_allows_for_the_bias_of_releases():
    asking = tuple(Requirement(7, epsilon) for epsilon in (0.5, 1.0, 4.0))
    sizes, means = np.full(3, 2000), np.array([200.0, 400.0, 1200.0])[:, None] / BINS
    public = people(BINS + 1, requirements=asking, sensitivity=2, totals=1)
    public = replace(public, sizes=sizes)
    held, errors = [], []
    for seed in range(3):
        random = np.random.default_rng(seed)
        counts = with_sums(random.poisson(means, (60, 3, BINS)))
        releases = released(counts, Adaptive("adaptive", public))
        error = np.array([one.values[-1] for one in releases]) - counts.sum(axis=1)[:, -1]
        stderr = np.array([one.stderr[-1] for one in releases])
        held.append(np.abs(error) <= NINETY_PERCENT * stderr)
        errors.append(error)
    assert np.mean(held) > 0.85
    assert abs(np.mean(errors)) < 30


# Where noise hides how much slots deviate, members that are less likely count for more.
def test_stated_errors_are_wider_where_members_are_alike():
    random, model, ratios = np.random.default_rng(5), TotalModel(0), []
    for noise in (1e-6, 0.3):
        state = model.start()
        for slot in range(60):
            model.advance(state, slot)
            model.observe(state, slot, Ratio(1 + random.normal(0, 0.02), noise**2))
        model.advance(state, 60)
        ratios.append(model.stated(state, 60).variance / model.ratio(state, 60).variance)
    assert ratios[0] == pytest.approx(1, rel=0.02)
    assert ratios[1] > 1.2


# Before the usual size is known, the first totals tell it.
def test_the_first_totals_tell_the_total():
    assert by_first([], 3) is UNKNOWN
    assert np.isnan(UNKNOWN.variance)
    own = by_first([(3, 100.0, 25.0)], 3)
    assert (own.mean, own.variance, own.follows) == pytest.approx((100, 25, 1))
    twice = by_first([(3, 100.0, 25.0), (3, 110.0, 25.0)], 3)
    assert (twice.mean, twice.variance, twice.follows) == pytest.approx((105, 12.5, 1))
    # Another slot deviates by usual waves, of 30 % of the mean, from a level that both have.
    other = by_first([(2, 100.0, 25.0)], 3)
    assert (other.mean, other.variance, other.follows) == pytest.approx((100, 25 + 2 * 900, 0))
    both = by_first([(2, 100.0, 25.0), (3, 100.0, 25.0)], 3)
    assert both.mean == pytest.approx(100)
    assert both.variance == pytest.approx(1 / (1 / 25 + 1 / 1825))
    # Where nothing stands out from noise, slots are alike: the mean of all.
    quiet = by_first([(slot, -1.0, 100.0) for slot in range(4)], 3)
    assert (quiet.mean, quiet.variance) == pytest.approx((-1, 25))


# The cell is the last one of all that a release tells, and bins are as they are without it.
def test_a_release_has_one_more_cell():
    counts = with_sums(counts_of(weeks(3)))
    for release in released(counts, machine(summed=True)):
        cells = BINS + 1
        for figures in (release.counts, release.values, release.stderr):
            assert figures.shape == (cells,)
        assert release.lasting.kept.shape == release.lasting.part.shape == (cells,)
        assert 0 <= release.lasting.kept[-1] <= 1
        for one in release.observed:
            assert one.counts[-1] == pytest.approx(one.counts[:-1].sum())
        assert release.counts[-1] == round(release.values[-1])
        assert np.isfinite(release.stderr[-1])


# Of hardly any events noise makes totals negative: the cell is released as 0, and kept below it.
def test_negative_totals_are_released_as_0():
    counts = with_sums(np.zeros((40, 3, BINS), np.int64))
    releases = released(counts)
    below = [one for one in releases if one.unshrunk and one.unshrunk.counts[-1] < 0]
    assert below
    for one in below:
        assert one.values[-1] == 0
        assert one.unshrunk.counts.shape == one.unshrunk.variances.shape == (BINS + 1,)


def test_no_users_have_no_total():
    public = replace(people(BINS + 1, sensitivity=2, totals=1), sizes=np.zeros(3, np.int64))
    (release,) = released(np.zeros((1, 3, BINS + 1), np.int64), Adaptive("adaptive", public))
    assert release.values[-1] == 0


# ---- states and revisions -------------------------------------------------------------------


# A revision has the cell of its release, and so it has when the stream ends.
def test_revisions_keep_the_total():
    made = machine(revise=5)
    stream = ReleaseStream(made, NoiseSource(KEY))
    state, first, revised = stream.start(), {}, {}
    for slot, table in enumerate(with_sums(counts_of(weeks(4)))):
        state, release = stream.release(state, slot, table)
        first[slot] = release.values[-1], release.stderr[-1]
        revised |= {one.slot: one for one in release.revisions}
    revised |= {one.slot: one for one in stream.rest(state)}
    assert sorted(revised) == sorted(first)
    for slot, one in revised.items():
        assert (one.values[-1], one.stderr[-1]) == pytest.approx(first[slot])


# A run that begins to revise knows no totals of the slots before.
def test_totals_from_before_revisions_are_unknown():
    counts = with_sums(counts_of(weeks(3)))
    stream = ReleaseStream(machine(), NoiseSource(KEY))
    state = stream.start()
    for slot, table in enumerate(counts[:10]):
        state, _ = stream.release(state, slot, table)
    later = ReleaseStream(machine(revise=3), NoiseSource(KEY))
    state, revised = later.decode(stream.encode(state)), []
    for slot, table in enumerate(counts[10:], 10):
        state, release = later.release(state, slot, table)
        revised += release.revisions
    assert all(np.isfinite(one.stderr[-1]) for one in revised)


@pytest.mark.parametrize("revise", [0, 3])
def test_bytes_in_every_slot_keep_the_future(revise):
    counts = with_sums(counts_of(weeks(5)))
    expected = released(counts, machine(revise))
    stream = ReleaseStream(machine(revise), NoiseSource(KEY))
    data = stream.encode(stream.start())
    for table, known in zip(counts, expected, strict=True):
        state = stream.decode(data)
        assert stream.encode(state) == data
        state, release = stream.release(state, state.next_slot or 0, table)
        assert release.values.tobytes() == known.values.tobytes()
        assert release.stderr.tobytes() == known.stderr.tobytes()
        assert [one.values.tobytes() for one in release.revisions] == [
            one.values.tobytes() for one in known.revisions
        ]
        data = stream.encode(state)


# Other budgets leave the cells as they are.
def test_another_budget_keeps_the_cells():
    made = machine(requirements=(Requirement(7, 1.0),) * 3, slot_length=DAY)
    budgets = made.population.requirements.budgets
    other = made.resized(budgets // 2, budgets // 4)
    assert other.population.bins == BINS + 1
    assert other.terms(other.start(), None).crowd.bins == BINS
