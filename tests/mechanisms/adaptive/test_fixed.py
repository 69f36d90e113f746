"""The adaptive mechanism: no window overspends on any path, and nothing but noisy results steers.

Every noisy result is where privacy is lost, so tests take their place: they note what each costs,
and answer what they like.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import (
    BudgetExceeded,
    ConfigurationError,
    NoiseSource,
    ReleaseStream,
    Requirement,
    mechanism,
)
from streamveil.mechanisms.adaptive import running_sum
from streamveil.mechanisms.adaptive.budget_plan import AtOnce, Plan, Planned, Shares
from streamveil.mechanisms.adaptive.fixed import Adaptive
from streamveil.mechanisms.adaptive.gap_errors import POINT, SUM
from streamveil.mechanisms.adaptive.jumps import ALERTS, WATCHES
from streamveil.mechanisms.adaptive.running_sum import RunningSum
from streamveil.mechanisms.adaptive.weighting import Weighting
from streamveil.mechanisms.core.budgets import to_units
from streamveil.mechanisms.protocol import SlotInput
from streamveil.mechanisms.simulation import simulate
from tests.mechanisms.streams import KEY, people

PROPERTY = settings(max_examples=70)
SLOTS = 90

OPTIONS = [
    {},
    {"assume_independent": False},
    {"gate": 0.0},
    {"audit": 0.0},
    {"reserve": 0.0},
    {"gate": 0.0, "audit": 0.0, "reserve": 0.0},
    {"assume_independent": False, "gate": 0.0, "reserve": 0.0},
    {"gate": 0.5, "audit": 0.4, "reserve": 0.9},
    {"gate": 0.0, "audit": 0.999, "reserve": 0.999},
]

REQUIREMENTS = st.lists(
    st.builds(
        Requirement,
        st.integers(1, 40),
        st.one_of(
            st.builds(lambda x: 10**x, st.floats(-11, 1.3)),
            st.builds(lambda units: units * 2.0**-40, st.integers(1, 200)),
            st.floats(0.05, 20),
        ),
    ),
    min_size=1,
    max_size=5,
)


# ---- adversaries ----------------------------------------------------------------------------


class Adversary:
    """Answers in the place of noise, plans in the place of plans; notes what answers cost.

    Answers are arbitrary: quiet, far off, or the truth; so looks alarm and releases jump at will.
    """

    def __init__(self, patch, seed):
        self.random = np.random.default_rng(seed)
        self.kind = self.random.choice(["quiet", "wild", "true", "mixed"])
        self.asked = []
        self.kinds = self.random.choice(["own", "points", "sums", "any"])
        adversary = self

        def add_noise(weighting, statistic, noise, purpose, *shaping):
            charge = weighting.weights * weighting.unit * weighting.population.sensitivity
            assert (weighting.weights >= 0).all()
            assert weighting.unit >= 1
            adversary.asked.append((purpose, charge))
            return adversary.answer(statistic, purpose)

        patch.setattr(Weighting, "add_noise", add_noise)

        def add_to_sum(partial, unit, noise, purpose):
            adversary.asked.append((purpose, 0))
            return adversary.answer(partial, purpose)

        patch.setattr(running_sum, "add_noise", add_to_sum)
        add = RunningSum.add

        def add_slot(running, weighting, counts):
            assert (weighting.weights >= 0).all()
            assert weighting.unit == running.unit >= 1
            charge = weighting.weights * running.unit * weighting.population.sensitivity
            adversary.asked.append(("slot of a sum", charge))
            add(running, weighting, counts)

        patch.setattr(RunningSum, "add", add_slot)
        best = Plan.best_gap
        planned = self.random.choice(["own", "short", "long", "any"])

        def best_gap(plan, *beliefs):
            if (found := best(plan, *beliefs)) is None:
                return None
            own, kind, patience, *_ = found
            gap = {
                "own": own,
                "short": int(adversary.random.integers(0, 4)),
                "long": int(adversary.random.integers(30, 10**6)),
                "any": int(10 ** (6 * adversary.random.random())),
            }[planned]
            kind = {
                "own": kind,
                "points": POINT,
                "sums": SUM,
                "any": int(adversary.random.choice([POINT, SUM])),
            }[adversary.kinds]
            patience = float(adversary.random.choice([patience, 0.0, 1e-12, 1e12]))
            alert = float(adversary.random.choice(ALERTS))
            return Planned(gap, kind, patience, alert, int(adversary.random.choice(WATCHES)))

        patch.setattr(Plan, "best_gap", best_gap)

    def answer(self, statistic, purpose):
        kind = self.kind if self.kind != "mixed" else self.random.choice(["quiet", "wild", "true"])
        if kind == "true":
            return statistic.copy()
        if kind == "quiet":
            return np.zeros_like(statistic)
        size = 10.0 ** self.random.integers(0, 13)
        return (self.random.normal(0, size, statistic.shape)).astype(np.int64)


def counts_for(seed, slots, classes, bins) -> np.ndarray:
    """Counts that jump between nothing and a million."""
    rng = np.random.default_rng(seed)
    scale = rng.choice([0, 3, 1000, 10**6], (slots, 1, 1))
    return (rng.random((slots, classes, bins)) * scale).astype(np.int64)


def drive(machine, seed, slots=SLOTS):
    """Release all slots among adversaries; spending of every slot by part, Python's integers.

    Checks that each slot is charged what its noisy results cost, no more and no less.
    """
    counts = counts_for(seed, slots, len(machine.windows), machine.population.bins)
    state, parts = machine.start(), {"all": [], "main": [], "reserve": [], "audit": []}
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        adversary = Adversary(patch, seed)
        noise = NoiseSource(KEY)
        for slot in range(slots):
            adversary.asked.clear()
            price = machine.price(state)
            state, release = machine.step(
                state, SlotInput(slot, counts[slot]), noise.slot(slot, b"")
            )
            assert (release.spent >= 0).all()
            assert (release.spent <= price).all()
            charges = [charge for _, charge in adversary.asked]
            purposes = [purpose for purpose, _ in adversary.asked]
            assert len(set(purposes)) == len(purposes)
            cost = sum(charges, np.zeros_like(release.spent))
            # An audit is charged all units, though the rest of a unit buys nothing.
            if "audit" not in purposes:
                np.testing.assert_array_equal(cost, release.spent)
            assert (cost <= release.spent).all()
            purposes = [purpose.split()[0] for purpose in purposes]
            assert (release.status == "published") == bool(
                {"release", "audit", "sum"} & set(purposes)
            )
            main = state.accounts.main.ring[(state.accounts.main.slots - 1) % machine.longest]
            reserve = state.accounts.reserve.ring[
                (state.accounts.reserve.slots - 1) % machine.longest
            ]
            rows = {
                "all": release.spent,
                "main": main,
                "reserve": reserve,
                "audit": release.spent - main - reserve,
            }
            for name, row in rows.items():
                assert (row >= 0).all()
                parts[name].append(row.tolist())
            asked.append(set(purposes))
    return parts, asked


def most_in_a_window(rows, k, window) -> int:
    column = [row[k] for row in rows]
    return max(sum(column[i : i + window]) for i in range(len(column)))


def assert_within(machine, parts) -> None:
    """Add up every window of every class and part, in exact integers."""
    for k, requirement in enumerate(machine.population.requirements):
        main, reserve = int(machine.main_cap[k]), int(machine.reserve_cap[k])
        budget, window = to_units(requirement.epsilon), requirement.window
        assert min(main, reserve, int(machine.audit_cap[k])) >= 0
        assert main + reserve + int(machine.audit_cap[k]) <= budget
        assert int(machine.gate[k]) * window <= main
        assert most_in_a_window(parts["all"], k, window) <= budget
        assert most_in_a_window(parts["main"], k, window) <= main
        assert most_in_a_window(parts["reserve"], k, window) <= reserve
        assert most_in_a_window(parts["audit"], k, machine.longest) <= int(machine.audit_cap[k])


# ---- budgets --------------------------------------------------------------------------------


# No window of any class overspends on any path, whatever the noise answers and the plan says; and
# no part overspends its own share: gate and releases, the reserve, audits.
@PROPERTY
@given(
    requirements=REQUIREMENTS,
    bins=st.integers(1, 12),
    sensitivity=st.integers(1, 3),
    options=st.sampled_from([OPTIONS[0], OPTIONS[0], *OPTIONS]),
    seed=st.integers(0, 2**32),
)
def test_no_window_overspends(requirements, bins, sensitivity, options, seed):
    rng = np.random.default_rng(seed)
    sizes = rng.choice([0, 1, 50, 10**4, 10**6], len(requirements))
    machine = Adaptive("adaptive", people(requirements, sizes, bins, sensitivity), **options)
    parts, _ = drive(machine, seed)
    assert_within(machine, parts)


MIXED = [(5, 1.0), (12, 0.3), (30, 8.0), (12, 0.5)]
SIZES = [100, 4000, 30, 0]
LONG = [(30, 1.0), (40, 0.3), (35, 8.0)]


def largest_use(requirements, sizes, paths=12):
    """Largest share of each part's cap spent in a window, and the prices of slots."""
    machine = Adaptive("adaptive", people(requirements, sizes))
    largest, seen = {"main": 0.0, "reserve": 0.0, "audit": 0.0}, []
    caps = {"main": machine.main_cap, "reserve": machine.reserve_cap}
    caps["audit"] = machine.audit_cap
    for seed in range(paths):
        parts, asked = drive(machine, seed)
        assert_within(machine, parts)
        seen.extend(asked)
        for part, cap in caps.items():
            for k, window in enumerate(machine.windows.tolist()):
                length = machine.longest if part == "audit" else window
                use = most_in_a_window(parts[part], k, length) / int(cap[k])
                largest[part] = max(largest[part], use)
    return largest, seen


# The paths above are what they are said to be: every part is spent, the first two to the full.
@pytest.mark.slow
def test_adversaries_reach_every_part():
    largest, seen = largest_use(LONG, [100, 4000, 30])
    assert largest["audit"] == 1
    assert 0.99 < largest["main"] <= 1
    assert 0.5 < largest["reserve"] <= 1
    for purposes in (
        {"gate"},
        {"release"},
        {"gate", "release"},
        {"release", "audit"},
        {"gate", "slot"},
        {"gate", "slot", "sum"},
        {"slot", "sum", "audit"},
        {"gate", "sum", "release"},
        set(),
    ):
        assert purposes in seen


# A class whose half reserve is less than one slot's worth, even an empty one, does not lock it up.
@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[100, 4000, 30, 50], [100, 4000, 30, 0]])
def test_the_reserve_is_of_use_with_a_short_window(sizes):
    largest, _ = largest_use([*LONG, (11, 1.0)], sizes, 4)
    assert largest["reserve"] > 0


# Through the filter, which never refuses; what a slot costs at most is known before its counts.
@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_filter_never_refuses(options):
    for seed in range(3):
        machine = Adaptive("adaptive", people(MIXED, SIZES, 3, 1 + seed), **options)
        stream = ReleaseStream(machine, NoiseSource(KEY))
        state, counts = stream.start(), counts_for(seed, SLOTS, 4, 3)
        statuses = set()
        with pytest.MonkeyPatch.context() as patch:
            Adversary(patch, seed)
            for slot in range(SLOTS):
                price = stream.price(state)
                state, release = stream.release(state, slot, counts[slot])
                assert (release.spent <= price).all()
                statuses.add(release.status)
        assert state.filter.use() <= 1
        assert "published" in statuses


def twice_the_reserve(machine) -> None:
    """Break the caps: what is reserved may be spent on releases as well."""
    machine.main_cap = machine.main_cap + machine.reserve_cap


def forgotten_audits(machine) -> None:
    """Break the caps: audits come on top."""
    machine.main_cap = machine.main_cap + machine.audit_cap


def shorter_windows(machine) -> None:
    """Break the sums: a window ends two slots early."""
    windows = np.maximum(machine.windows - 2, 1)
    machine._sums = type(machine._sums)(np.append(windows[:-1], machine.longest))


# The same paths convict a mechanism whose sums are wrong: the filter refuses.
@pytest.mark.parametrize(
    ("breakage", "reserve"),
    [(twice_the_reserve, 0.3), (forgotten_audits, 0.0), (shorter_windows, 0.15)],
)
def test_adversaries_convict_wrong_sums(breakage, reserve):
    def overspend():
        for seed in range(12):
            machine = Adaptive("adaptive", people(LONG, SIZES[:3]), reserve=reserve)
            breakage(machine)
            stream = ReleaseStream(machine, NoiseSource(KEY))
            state, counts = stream.start(), counts_for(seed, SLOTS, 3, 2)
            with pytest.MonkeyPatch.context() as patch:
                Adversary(patch, seed)
                for slot in range(SLOTS):
                    state, _ = stream.release(state, slot, counts[slot])

    with pytest.raises(BudgetExceeded):
        overspend()


# Audits come with the longest window, in its first slot; they are of all users alike, and there
# are none where all weights are equal anyway.
def test_audits_come_once_in_the_longest_window():
    machine = Adaptive("adaptive", people(MIXED, SIZES))
    assert machine.audit_cap.all()
    _, asked = drive(machine, 1, 100)
    assert [slot for slot, purposes in enumerate(asked) if "audit" in purposes] == [0, 30, 60, 90]
    even = people([(5, 1.0), (10, 2.0)], [10, 10])
    for machine in (
        Adaptive("adaptive", even),
        Adaptive("adaptive", people(MIXED, SIZES), assume_independent=False),
        Adaptive("adaptive", people(MIXED, SIZES), audit=0.0),
    ):
        assert not machine.audit_cap.any()


# Without the assumption of independence all users have equal weights in every result.
def tilted():
    """Two classes that differ in where they are, and what they ask for in every slot."""
    counts = np.zeros((600, 2, 3), np.int64)
    counts[:, 0], counts[:, 1] = [3000, 1500, 500], [500, 1500, 3000]
    return counts, [Requirement(1, 0.002), Requirement(1, 0.01)], [5000, 5000]


@pytest.mark.slow
def test_what_a_window_of_one_slot_has_goes_to_sums():
    """Nothing that is not spent in its slot is ever of use."""
    counts, asked, sizes = tilted()
    simulation = simulate("adaptive:audit=0", counts, asked, sizes, KEY)
    most = np.array([one.epsilon for one in asked])
    assert (simulation.spent <= most).all()
    # All but what the rounding of weights takes.
    assert (simulation.spent[2:, 0] > (1 - 2**-14) * most[0]).all()
    assert np.median(simulation.spent[:, 1]) > (1 - 2**-14) * most[1]


@pytest.mark.slow
def test_audits_of_sums_show_what_weights_hide():
    """Over windows of one slot an audit is a sum in which all weigh alike."""
    counts, asked, sizes = tilted()
    missed = {}
    for spec in ("adaptive", "adaptive:audit=0"):
        simulation = simulate(spec, counts, asked, sizes, KEY)
        missed[spec] = np.abs((simulation.released - counts.sum(axis=1))[300:].mean(axis=0)).max()
    assert missed["adaptive"] < 500 < 1000 < missed["adaptive:audit=0"]


@pytest.mark.parametrize(("share", "audits"), [(0.0, 0), (0.1, 3), (0.5, 15), (0.9, 30)])
def test_the_share_of_audits_is_that_of_sums(share, audits):
    at_once, shares = AtOnce.of(Shares(0.2, share, 0.1))
    assert sum(at_once.audits(releases) for releases in range(30)) == audits
    assert shares == Shares(0.0, 0.0, 0.0)


def test_audits_have_equal_weights_while_a_cycle_is_measured():
    counts, _, sizes = tilted()
    asked = [Requirement(1, 0.02), Requirement(1, 0.1)]
    simulation = simulate("adaptive:audit=0.3:cycle=7", counts[:300], asked, sizes, KEY)
    missed = (simulation.released - counts[:300].sum(axis=1))[150:].mean(axis=0)
    assert np.abs(missed).max() < 40


def test_audits_of_all_sums_show_no_bias():
    sizes = np.array([5000, 500, 2700])
    week = np.array([1.15, 1.15, 1.1, 1.1, 1.2, 0.75, 0.4])[np.arange(60) % 7]
    means = week[:, None] * 2000 / np.arange(1, 11)
    shares = means[:, None] * sizes[:, None] / sizes.sum()
    counts = np.random.default_rng(1).poisson(shares)
    asked = [Requirement(1, 1.0), Requirement(1, 2.0), Requirement(1, 2.0)]
    simulation = simulate("adaptive:audit=0.7:cycle=12", counts, asked, sizes, KEY)
    missed = (simulation.released - counts.sum(axis=1))[20:]
    assert (missed**2).mean() ** 0.5 < 10


def test_all_weigh_alike_without_the_assumption():
    machine = Adaptive("adaptive", people(MIXED, SIZES), assume_independent=False)
    parts, _ = drive(machine, 3)
    for row in parts["all"]:
        assert row[0] == row[1] == row[2]  # the fourth class is empty
    assert max(row[0] for row in parts["all"]) > 0


# An audit of fewer units than a user may contribute is none: with weights of 0, estimates would be
# infinite.
def test_an_audit_of_less_than_a_unit_is_none():
    machine = Adaptive("adaptive", people([(3, 2.0**-20), (3, 1.0)], [9, 9], 2, 2), audit=1e-6)
    stream = ReleaseStream(machine, NoiseSource(KEY))
    state, release = stream.release(stream.start(), 0, np.ones((2, 2), np.int64))
    stream.release(state, 1, np.ones((2, 2), np.int64))
    assert np.isfinite(release.stderr).all()


# ---- options --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("adaptive:gate=1", "gate is 1, give a share from 0 to below 1"),
        ("adaptive:gate=-0.5", "gate is -0.5"),
        ("adaptive:audit=-1", "audit is -1"),
        ("adaptive:audit=1.5", "audit is 1.5"),
        ("adaptive:reserve=1", "reserve is 1"),
        ("adaptive:reserve=nan", "reserve is nan"),
        ("adaptive:gate=inf", "gate is inf"),
        ("adaptive:gate=0.6:audit=0.5", "gate 0.6 and audit 0.5 leave no budget"),
        ("adaptive:gate=much", "gate is 'much', give a value of type float"),
        ("adaptive:assume_independent=perhaps", "'perhaps', give true or false"),
        ("adaptive:speed=2", "no option 'speed'; its options: assume_independent, gate, audit"),
    ],
)
def test_wrong_options_are_refused(text, message):
    with pytest.raises(ConfigurationError, match=message) as refused:
        mechanism(text, people(MIXED, SIZES))
    assert text in str(refused.value)


def test_options_by_name():
    machine = mechanism("adaptive:gate=0.25:audit=0:reserve=0.5", people([(4, 1.0)], [10]))
    assert (machine.gate * 4 == 2**38).all()
    assert not machine.audit_cap.any()
    assert machine.reserve_cap[0] == pytest.approx(0.75 * 0.5 * 2**40, rel=1e-5)
    assert (mechanism("adaptive", people([(4, 1.0)], [10], 9)).gate * 4 / 2**40 > 0.199).all()
    assert (mechanism("adaptive", people([(4, 1.0)], [10], 10)).gate * 4 / 2**40 < 0.101).all()
