"""The cycle of a stream: what is looked for, what it costs, what it tells, and when there is none.

Found and not found are matters of chance: keys are fixed, and streams are well on their side.
"""

import numpy as np
import pytest

from streamveil.mechanisms import (
    ConfigurationError,
    NoiseSource,
    Population,
    ReleaseStream,
    Requirement,
    mechanism,
    simulate,
)
from streamveil.mechanisms.adaptive import running_sum
from streamveil.mechanisms.adaptive.budget_plan import part
from streamveil.mechanisms.adaptive.cycle import (
    LEAST,
    LOOKED_FOR,
    MOST,
    USUAL,
    Candidate,
    Cycle,
    CycleSlot,
    CyclicBank,
    Depths,
    lengths_of,
)
from streamveil.mechanisms.adaptive.filter_bank import Bank
from streamveil.mechanisms.adaptive.fixed import Adaptive
from streamveil.mechanisms.adaptive.running_sum import RunningSum
from streamveil.mechanisms.adaptive.weighting import Weighting
from streamveil.mechanisms.protocol import Setting
from streamveil.mechanisms.registry import dynamic_mechanism
from streamveil.mechanisms.simulation import simulate_dynamic

KEY = bytes(range(32))
HOUR = 3_600_000_000
REQUIREMENTS = (Requirement(48, 4.0), Requirement(72, 8.0), Requirement(60, 24.0))
SIZES = np.array([400, 300, 100])


def people(slot_length=None, sensitivity=1, bins=3) -> Population:
    return Population(REQUIREMENTS, SIZES, bins, sensitivity, slot_length)


def waves(length, slots, depth=0.8, seed=1) -> np.ndarray:
    """Counts that rise and fall together in a cycle; none at depth 0. Shape (slots, 3, 3)."""
    rng = np.random.default_rng(seed)
    ratio = 1 + depth * np.sin(2 * np.pi * np.arange(slots) / length)
    levels = np.array([60, 30, 10]) / 100
    chances = np.minimum(ratio[:, None, None] * levels / 2.2, 1.0)
    return rng.binomial(SIZES[:, None], np.broadcast_to(chances, (slots, 3, 3)))


def levels_of(bank: Bank, counts):
    """What filters believe once they know the mean counts well."""
    state = bank.start()
    bank.observe(state, counts.sum(axis=1).mean(axis=0), 1.0, np.zeros(bank.bins))
    return state


def followed(cycle: Cycle, counts, population=None, key=KEY):
    """A cycle's state after counts, what each slot cost, and its budget."""
    population = population or people()
    adaptive = Adaptive("adaptive", population)
    source, state = NoiseSource(key), cycle.start(population.bins)
    usual = adaptive.terms(adaptive.start(), None)
    beliefs = levels_of(usual.bank, counts)
    costs, shares = [], []
    for slot, table in enumerate(counts):
        terms = usual.less(cycle.share(state, usual.bank, beliefs))
        shares.append([(one.length, one.share) for one in state.looked_at])
        here = CycleSlot(slot, table, source.slot(slot, b""), usual.rates.main, terms)
        costs.append(cycle.step(state, here, terms.main))
    return state, np.array(costs), shares, usual


# ---- options --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cycle", "slot_length", "lengths"),
    [
        ("none", None, ()),
        ("24", None, (24,)),
        ("2", HOUR, (2,)),
        ("672", None, (672,)),
        ("auto", None, USUAL),
        ("auto", HOUR, (24,)),
        ("auto", 24 * HOUR, (7,)),
        ("auto", 6 * HOUR, (28,)),
        ("auto", HOUR // 4, (96,)),
    ],
)
def test_lengths_that_options_ask_for(cycle, slot_length, lengths):
    assert lengths_of("adaptive", cycle, slot_length) == lengths


@pytest.mark.parametrize("cycle", ["1", "0", "-3", "abc", "673", "", "7.0", "²", "Auto"])
def test_other_cycles_are_refused_in_one_line(cycle):
    with pytest.raises(ConfigurationError) as refused:
        mechanism(f"adaptive:cycle={cycle}", people())
    line = str(refused.value)
    assert repr(cycle) in line
    assert "from 2 to 672, auto or none" in line
    assert "\n" not in line
    with pytest.raises(ConfigurationError, match="from 2 to 672, auto or none"):
        dynamic_mechanism(f"adaptive:cycle={cycle}", Setting(3, 72))


@pytest.mark.parametrize("slot_length", [60_000_000, 7 * 24 * HOUR, 5 * HOUR])
def test_slots_without_days_and_weeks_have_nothing_to_look_for(slot_length):
    with pytest.raises(ConfigurationError, match="give a number of slots, or none"):
        mechanism("adaptive:cycle=auto", people(slot_length))


# ---- what it costs --------------------------------------------------------------------------


# A slot costs its share of the rate, rounded down to whole weights: every slot of a span, from the
# first one on, and nothing else.
@pytest.mark.parametrize("sensitivity", [1, 2, 3])
def test_every_slot_of_a_span_pays_its_share(sensitivity):
    counts = waves(24, 150)
    _, costs, shares, usual = followed(Cycle((24,)), counts, people(None, sensitivity))
    offers = np.array([[part(usual.rates.main, share) for _, share in slot] for slot in shares])
    assert (costs <= offers.sum(axis=1)).all()
    assert (costs > 0.99 * offers.sum(axis=1)).all()
    assert (costs % sensitivity == 0).all()


# What a span releases is the exact sum of weights and counts by phase, plus noise at its unit.
def test_phases_are_summed_with_the_weights_that_were_paid(monkeypatch):
    released = []
    plain = RunningSum.release

    def seen(self, noise, purpose="sum"):
        released.append((self.partial.copy(), self.unit, self.first, len(self.totals)))
        return plain(self, noise, purpose)

    monkeypatch.setattr(RunningSum, "release", seen)
    counts = waves(7, 60)
    _, costs, _, _ = followed(Cycle((7,)), counts)
    assert [(first, slots) for _, _, first, slots in released] == [(0, 7), (7, 14), (21, 28)]
    for partial, unit, first, slots in released:
        exact = np.zeros(7, dtype=np.int64)
        for slot in range(first, first + slots):
            exact[slot % 7] += costs[slot] // unit @ counts[slot].sum(axis=1)
        assert partial.tolist() == exact.tolist()


# Nothing is spent beyond the room that is left.
def test_a_slot_without_room_costs_nothing():
    cycle, usual = Cycle((7,)), followed(Cycle((7,)), waves(7, 1))[3]
    state, source = cycle.start(3), NoiseSource(KEY)
    cycle.share(state, usual.bank, levels_of(usual.bank, waves(7, 9)))
    room = usual.main
    for slot, left in enumerate([room, room // 10**9, 0 * room, room]):
        here = CycleSlot(slot, waves(7, 1)[0], source.slot(slot, b""), usual.rates.main, usual)
        spent = cycle.step(state, here, left)
        assert (spent <= left).all()
        assert spent.any() == (slot in (0, 3))


# Sums of the cycle and of a gap with the same slots and weights have independent noise.
def test_the_purpose_is_in_the_words():
    slot = NoiseSource(KEY).slot(0, b"")
    crowd = people()
    sums = [RunningSum.begin(0, 1 << 30, 8, crowd) for _ in range(2)]
    for one in sums:
        one.add(one.weighting(np.array([1 << 30] * 3), crowd), waves(7, 1)[0])
    first, other = sums[0].release(slot), sums[1].release(slot, "cycle")
    assert (first.mean != other.mean).any()


# ---- what it tells --------------------------------------------------------------------------


# Totals are known to the slot's phase, the profile has mean 1, and its errors are what it says.
@pytest.mark.parametrize("length", [7, 24, 30])
def test_the_profile_is_that_of_the_stream(length):
    state, _, _, _ = followed(Cycle((length,)), waves(length, 64 * length))
    assert state.chosen is not None
    profile = state.chosen.profile()
    true = 1 + 0.8 * np.sin(2 * np.pi * np.arange(length) / length)
    assert profile.ratios.mean() == pytest.approx(1)
    assert len(profile.ratios) == length
    assert np.abs(profile.ratios - true).max() < 5 * np.sqrt(profile.variance.max()) + 0.02
    assert np.abs(profile.ratios - true).max() < 0.15
    assert state.chosen.share < LOOKED_FOR


# Shrinking: where noise may have made all differences, nothing is left of them.
def test_a_profile_is_shrunk_as_noise_demands():
    mean = np.array([8.0, 9, 10, 11, 12, 10, 10])
    between = mean.var(ddof=1)
    for noise, kept in [(0.0, 1.0), (0.5 * between, 0.5), (between, 0.0), (9 * between, 0.0)]:
        candidate = Candidate(7, mean, np.full(7, noise))
        assert candidate.certainty == pytest.approx(kept)
        ratios = candidate.profile().ratios
        assert ratios[4] - 1 == pytest.approx(kept * 0.2)
        assert ratios.mean() == pytest.approx(1)


# Phases of four slots come first where the cycle is long, each slot in exactly one of them.
@pytest.mark.parametrize("length", [2, 7, 12, 13, 24, 168, 672])
def test_phases_of_a_cycle(length):
    candidate = Candidate.of(length)
    phases = candidate.phase(np.arange(length))
    assert candidate.coarse == (length >= 12)
    assert sorted(set(phases.tolist())) == list(range(len(candidate.mean)))
    assert (np.diff(phases) >= 0).all()
    assert (candidate.phase(np.arange(length) + 5 * length) == phases).all()


@pytest.mark.many
@pytest.mark.parametrize("length", [7, 24])
@pytest.mark.parametrize("seed", [1, 2])
def test_auto_finds_the_cycle(length, seed):
    counts = waves(length, 1600, seed=seed)
    state, _, shares, _ = followed(Cycle(USUAL), counts)
    assert state.chosen is not None
    assert state.chosen.length == length
    assert [length_ for length_, _ in shares[-1]] == [length]
    assert all(one.running is None for one in state.candidates if one is not state.chosen)


# None in noise, nor in a curve that wanders, jumps or climbs; and then little is paid.
@pytest.mark.many
@pytest.mark.parametrize("kind", ["still", "walk", "steps", "trend"])
def test_auto_finds_none_where_there_is_none(kind):
    rng = np.random.default_rng(3)
    slots = 1500
    levels = {
        "still": np.full(slots, 0.3),
        "walk": 0.3 * np.exp(np.cumsum(rng.normal(0, 0.02, slots))),
        "steps": np.repeat(rng.uniform(0.1, 0.5, 10), 150),
        "trend": np.linspace(0.05, 0.6, slots),
    }[kind]
    counts = rng.binomial(SIZES[:, None], np.clip(levels, 0, 1)[:, None, None], (slots, 3, 1))
    state, costs, shares, usual = followed(Cycle(USUAL), counts, people(bins=1))
    assert state.chosen is None
    paid = np.array([sum(share for _, share in slot) for slot in shares])
    assert paid.mean() < 1.5 * LOOKED_FOR
    assert (costs.mean(axis=0) < 1.5 * LOOKED_FOR * usual.rates.main).all()


# A cycle that ends is lost again, and looked for anew.
def test_a_cycle_that_ends_is_lost():
    counts = np.concatenate([waves(7, 7 * 63), waves(7, 7 * 640, depth=0.0)])
    cycle = Cycle(USUAL)
    known, _, _, _ = followed(cycle, counts[: 7 * 63])
    assert known.chosen is not None
    lost, _, shares, _ = followed(cycle, counts)
    assert lost.chosen is None or np.ptp(lost.chosen.profile().ratios) < 0.1
    assert {len(slot) for slot in shares} == {1, 2}


# A share is what there is to gain by it: less when the profile is known, when levels are less known
# than the profile, and when the cycle is shallow.
def test_shares_follow_what_is_known():
    bank = Bank(1000.0, 3)
    known = levels_of(bank, waves(7, 9))

    def share(cycle, state=None, beliefs=known):
        return cycle.share(state or cycle.start(3), bank, beliefs)

    assert share(Cycle((7,))) == pytest.approx(LOOKED_FOR)
    assert share(Cycle(USUAL)) == pytest.approx(LOOKED_FOR)
    # Before the first release, of many bins each may be far from what it is taken for.
    many = Bank(1000.0, 100)
    assert Cycle(USUAL).share(Cycle(USUAL).start(100), many, many.start()) < 0.5 * LOOKED_FOR
    cycle = Cycle((7,))
    state = cycle.start(3)
    state.found, shares = 0, []
    for noise in (0.0, 0.2, 1.0, 3.0, 4.6):
        state.candidates = [Candidate(7, np.arange(7.0) + 1, np.full(7, noise))]
        shares.append(share(cycle, state))
    assert shares[0] == LEAST
    assert shares[2] > shares[1] > shares[0]
    assert shares[-1] <= MOST
    state.candidates = [Candidate(7, 100 + np.arange(7.0), np.full(7, 0.2))]
    assert share(cycle, state) < shares[1]


def alike(bins) -> Depths:
    """All bins follow the total."""
    return Depths(np.ones(bins, np.float32), np.zeros(bins, np.float32))


# Filters see levels: what they forecast is multiplied by the ratio, what they see divided by it.
def test_filters_follow_the_level_of_a_cycle():
    ratios = np.array([0.2, 1.8, 1.0])
    bank = Bank(1000.0, 2)
    state = bank.start()
    for slot in range(60):
        seen = CyclicBank(bank, ratios[[slot % 3]], 0.0, alike(2))
        counts = np.array([50.0, 20.0]) * ratios[slot % 3]
        seen.observe(state, counts, 1.0, np.zeros(2))
        state.elapsed += 1
    forecast = bank.forecast(state)
    assert forecast.mean == pytest.approx([50, 20], rel=0.05)
    for ratio in ratios:
        scaled = CyclicBank(bank, np.array([ratio]), 0.0, alike(2)).forecast(state)
        assert scaled.mean == pytest.approx(forecast.mean * ratio)
        assert scaled.variance == pytest.approx(forecast.variance * ratio**2)


# What is released of a night without anybody says nothing of the level, whatever the noise.
def test_faint_slots_tell_nothing_of_the_level():
    bank = Bank(1000.0, 2)
    state = bank.start()
    for _ in range(20):
        bank.observe(state, np.array([50.0, 20.0]), 1.0, np.zeros(2))
        state.elapsed += 1
    before = bank.forecast(state).mean
    night = CyclicBank(bank, np.array([0.01]), 0.0, alike(2))
    seen = night.observe(state, np.array([9.0, -9.0]), 4.0, np.zeros(2), alarmed=True)
    assert bank.forecast(state).mean == pytest.approx(before)
    assert seen.mean == pytest.approx(0.01 * before, rel=1e-3)
    assert not seen.jumped.any()


# What is not known of the cycle is no error of a release: a precise one is followed, in quiet slots
# that say nothing about the level as in busy ones, and also where the forecast was wrong.
@pytest.mark.parametrize("ratio", [0.1, 0.6, 1.4])
@pytest.mark.parametrize("off", [0.7, 1.0, 1.8])
def test_a_precise_release_is_followed(ratio, off):
    bank = Bank(1e5, 2)
    state = bank.start()
    for _ in range(20):
        bank.observe(state, np.array([5000.0, 2000.0]), 1.0, np.zeros(2))
        state.elapsed += 1
    counts = np.array([5000.0, 2000.0]) * ratio * off
    cyclic = CyclicBank(bank, np.array([ratio]), 0.02, Depths.start(2))
    before = cyclic.forecast(state)
    seen = cyclic.observe(state, counts, 25.0, np.full(2, 4.0))
    assert seen.mean == pytest.approx(counts, abs=6)
    assert (seen.variance < 32).all()
    assert (seen.variance > 10).all()
    assert seen.before == pytest.approx(before.variance + before.white)


# A noisy release of a well-known slot still says little: the forecast is kept.
def test_a_noisy_release_of_a_known_slot_is_not_followed():
    bank = Bank(1000.0, 2)
    state = bank.start()
    for _ in range(40):
        bank.observe(state, np.array([50.0, 20.0]), 1.0, np.zeros(2))
        state.elapsed += 1
    cyclic = CyclicBank(bank, np.array([0.5]), 0.0, alike(2))
    seen = cyclic.observe(state, np.array([45.0, 30.0]), 1e4, np.zeros(2))
    assert seen.mean == pytest.approx([25, 10], abs=1)


# A sum over part of a cycle tells of the level what its slots have of it.
def test_a_sum_of_busy_slots_is_no_rise():
    ratios = np.array([0.5, 0.5, 1.5, 1.5])
    bank, shares = Bank(1000.0, 1), np.array([0.5, 0.5])
    for slots, mean in [([2, 3], 60.0), ([0, 1], 20.0), ([1, 2], 40.0)]:
        state = bank.start()
        state.elapsed = 2
        seen = CyclicBank(bank, ratios[slots], 0.0, alike(1))
        seen.observe(state, np.array([mean]), 0.01, np.zeros(1), shares)
        assert bank.forecast(state).mean == pytest.approx(40, abs=1)


# A bin that goes deeper than the total, and one that does not follow it at all, are learnt from
# releases alone; sums of complete cycles do not show them.
def test_each_bin_has_a_depth_of_its_own():
    rng = np.random.default_rng(7)
    ratios, true = np.array([0.6, 1.4, 1.0, 0.8, 1.2]), np.array([0.0, 1.0, 1.6])
    bank, depths = Bank(1000.0, 3), Depths.start(3)
    state = bank.start()
    for slot in range(200):
        counts = 80 * (1 + true * (ratios[slot % 5] - 1)) + rng.normal(0, 3, 3)
        CyclicBank(bank, ratios[[slot % 5]], 0.0, depths).observe(state, counts, 9.0, np.zeros(3))
        state.elapsed += 1
    assert depths.mean == pytest.approx(true, abs=0.15)
    assert (depths.variance < 0.05).all()
    assert depths.ratios(1.0) == pytest.approx(1)
    before = depths.mean.copy()
    state.elapsed = 5
    whole = CyclicBank(bank, ratios, 0.0, depths)
    whole.observe(state, np.array([50.0, 90.0, 120.0]), 9.0, np.zeros(3), np.full(5, 0.2))
    assert depths.mean == pytest.approx(before)


# ---- streams --------------------------------------------------------------------------------


# It pays: counts of a deep cycle are released with much less error, and no window overspends.
@pytest.mark.slow
@pytest.mark.parametrize("cycle", ["24", "auto"])
def test_a_cycle_lowers_the_error(cycle):
    counts = waves(24, 600 if cycle == "24" else 1200)
    plain = simulate("adaptive", counts, REQUIREMENTS, SIZES, KEY)
    cyclic = simulate(f"adaptive:cycle={cycle}", counts, REQUIREMENTS, SIZES, KEY)
    half = slice(len(counts) // 2, None)
    true = counts.sum(axis=1)[half]
    errors = [((one.released[half] - true) ** 2).mean() for one in (plain, cyclic)]
    assert errors[1] < 0.8 * errors[0]
    for k, asked in enumerate(REQUIREMENTS):
        spent = np.convolve(cyclic.spent[:, k], np.ones(asked.window))
        assert spent.max() <= asked.epsilon * (1 + 1e-12)


# Where releases are precise a cycle must not do harm: bins of thousands, which share a week that
# goes deeper in some than in others, and holidays that no profile foresees.
@pytest.mark.slow
def test_precise_releases_are_no_worse_with_a_cycle():
    assert errors_of_weeks("adaptive:cycle=7") < 1.1 * errors_of_weeks("adaptive")


def errors_of_weeks(name: str) -> float:
    """Mean squared error over a few streams."""
    errors = []
    for seed in range(3, 6):
        rng = np.random.default_rng(seed)
        week = np.array([1.15, 1.2, 1.2, 1.2, 1.15, 0.55, 0.35])
        ratios = week[np.arange(140) % 7]
        ratios[rng.random(140) < 0.04] = 0.35
        bins = 8
        depths = np.maximum(1 + rng.normal(1, 0.35, bins) * (ratios[:, None] - 1), 0.02)
        daily = np.exp(rng.normal(0, 0.05, (140, 1)))
        counts = rng.poisson(rng.lognormal(np.log(3000), 0.6, bins) * depths * daily)
        run = simulate(name, counts[:, None], [(21, 1.0)], [50_000], KEY)
        errors.append(((run.released - counts)[28:] ** 2).mean())
    return float(np.mean(errors))


def fields(release) -> tuple:
    return tuple(
        part_.tobytes() if isinstance(part_, np.ndarray) else str(part_)
        for part_ in vars(release).values()
    )


# A stream that is written and read in every slot goes on as one that never was, in the middle of
# spans and when a cycle is found.
@pytest.mark.slow
def test_restarts_keep_the_future():
    counts = waves(7, 200)

    def made():
        return ReleaseStream(mechanism("adaptive:cycle=auto", people()), NoiseSource(KEY))

    stream = made()
    state, undisturbed = stream.start(), []
    for slot, table in enumerate(counts):
        state, release = stream.release(state, slot, table)
        undisturbed.append(fields(release))
    assert state.mechanism.cycle.chosen is not None
    data = made().encode(made().start())
    for slot, table in enumerate(counts):
        fresh = made()
        again = fresh.decode(data)
        assert fresh.encode(again) == data
        again, release = fresh.release(again, slot, table)
        assert fields(release) == undisturbed[slot]
        data = fresh.encode(again)


# No slot costs more than its price, which is known before its counts.
def test_the_price_is_known_before():
    made = mechanism("adaptive:cycle=7", people())
    stream = ReleaseStream(made, NoiseSource(KEY))
    state = stream.start()
    for slot, table in enumerate(waves(7, 90)):
        price = made.price(state.mechanism)
        state, release = stream.release(state, slot, table)
        assert (release.spent <= price).all()


# With the noisy results given, streams that have nothing in common get the same releases, at the
# same prices: spans, shares, profiles and depths read no counts.
def test_nothing_but_noisy_results_steers():
    def outputs_of(counts):
        random = np.random.default_rng(5)

        def noisy(*given):
            statistic = next(one for one in given if isinstance(one, np.ndarray))
            return random.integers(0, 2**22, statistic.shape)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(running_sum, "add_noise", noisy)
            patch.setattr(Weighting, "add_noise", noisy)
            patch.setattr(Candidate, "sure", property(lambda self: 9.0 if self.spans > 2 else 0.0))
            patch.setattr(Candidate, "positive", property(lambda self: self.mean.mean() > 0))
            stream = ReleaseStream(mechanism("adaptive:cycle=auto", people()), NoiseSource(KEY))
            state, releases = stream.start(), []
            for slot, table in enumerate(counts):
                state, release = stream.release(state, slot, table)
                releases.append(fields(release))
        assert state.mechanism.cycle.chosen is not None
        return releases

    quiet = np.zeros((90, 3, 3), np.int64)
    assert outputs_of(quiet) == outputs_of(waves(7, 90)) == outputs_of(1000 * waves(24, 90))


def test_a_state_with_other_cycles_is_refused():
    stream = ReleaseStream(mechanism("adaptive:cycle=7", people()), NoiseSource(KEY))
    state, _ = stream.release(stream.start(), 0, waves(7, 1)[0])
    other = mechanism("adaptive:cycle=24", people())
    with pytest.raises(ConfigurationError, match=r"cycles of \[7\] slots, not \[24\]"):
        other.decode(stream.mechanism.encode(state.mechanism))


# Requirements that change: spans go on over them, and every window keeps its requirement.
@pytest.mark.slow
def test_changing_requirements():
    counts = waves(7, 260)
    asked = np.tile([60.0, 12.0, 60.0, 12.0], (260, 3, 1))
    asked[100:150, 0] = [20, 2, 20, 2]
    asked[120:, 1] = [30, 9, 30, 9]
    run = simulate_dynamic("adaptive:cycle=7", counts, asked, SIZES, KEY)
    for slot in range(260):
        for k in range(3):
            window, epsilon = int(asked[slot, k, 2]), asked[slot, k, 3]
            assert run.spent[slot : slot + window, k].sum() <= epsilon * (1 + 1e-12)
    true = counts.sum(axis=1)
    plain = simulate_dynamic("adaptive", counts, asked, SIZES, KEY)
    errors = [((one.released[130:] - true[130:]) ** 2).mean() for one in (plain, run)]
    assert errors[1] < 0.9 * errors[0]


# Whoever reads releases sees whether there is a cycle, and since when.
def test_releases_say_which_cycle_is_found():
    people = Population((Requirement(10, 2.0),), np.array([20_000]), 2)
    counts = np.array([4000, 2000]) * (1 + 0.6 * np.sin(2 * np.pi * np.arange(80)[:, None] / 5))
    for cycle, seen in (("5", {0.0, 5.0}), ("auto", {0.0}), ("none", set())):
        stream = ReleaseStream(Adaptive("adaptive", people, cycle=cycle), NoiseSource(KEY))
        state, cycles = stream.start(), []
        for slot, row in enumerate(np.rint(counts).astype(np.int64)):
            state, release = stream.release(state, slot, row[None])
            cycles += [release.diagnostics["cycle"]] if "cycle" in release.diagnostics else []
        assert set(cycles) == seen
        assert cycles == sorted(cycles)
