"""Gated: exact prices, sensitivities and noise; never beyond epsilon, however long it runs."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import (
    INFINITE_MECHANISMS,
    ConfigurationError,
    NoiseSource,
    ReleaseStream,
    infinite_mechanism,
    simulate_infinite,
)
from streamveil.mechanisms.core.budgets import to_units
from streamveil.mechanisms.infinite import gated
from streamveil.mechanisms.infinite.distance import (
    GRID,
    SHARE_BITS,
    Reference,
    distance,
    largest_distance,
    on_grid,
)
from streamveil.mechanisms.infinite.held_distribution import Held, simplex
from streamveil.mechanisms.randomness import noise

KEY = bytes(range(32))
NAMES = tuple(INFINITE_MECHANISMS)


def jumping(slots=60, bins=8, users=3000, every=20):
    rng = np.random.default_rng(5)
    shares = np.repeat(rng.dirichlet(np.full(bins, 0.5), slots // every), every, axis=0)
    return np.stack([rng.multinomial(users, share) for share in shares])


# ---- arithmetic -----------------------------------------------------------------------------


# Spec: N^ costs 0.02 eps, epoch c 0.98 eps c^-p / zeta(p), of which f_s / 3 and 2 f_s / 3 arm the
# gate.
def test_prices_are_those_of_the_series():
    machine = infinite_mechanism("gated:p=1.5:f_s=0.5", 10, 2.0)
    units = to_units(2.0)
    assert machine.total_price == math.floor(0.02 * units)
    zeta = 2.612375348685488
    for epoch in (1, 2, 7, 100):
        whole = (units - machine.total_price) * epoch**-1.5 / zeta
        prices = machine.prices(epoch, 0)
        assert prices.threshold + prices.query + prices.release == pytest.approx(whole, rel=1e-6)
        assert prices.gate == pytest.approx(whole / 2, rel=1e-6)
        assert prices.query == 2 * prices.threshold
    assert machine.prices(10**9, 0) is None


# All of the budget would let the gate see, after 100 slots, 2 s / e1 + 1.1 * 4 s / e2 * ln(102)
# and 1 s / eps_rel for each of 10 bins. n epochs that share half of the budget see n times that,
# which is an n-th of 2 totals; k epochs get the part k / (k + n): without end, no more than all.
@pytest.mark.parametrize(
    ("total", "options", "sensitivity", "half"),
    [
        *((0, "", 1, 1), (60, "", 1, 1), (10_000, "", 1, None), (10_000, "", 4, None)),
        *((10**6, "", 1, None), (10, ":epochs=7", 1, 7)),
    ],
)
def test_epochs_that_share_half_of_the_budget(total, options, sensitivity, half):
    if half is None:
        sees = sensitivity * (20 + 22 * math.log(102) + 10 / 0.7) / (0.98 * 2)
        half = math.floor(math.sqrt(2 * total / sees))
        assert half > 5
    machine = infinite_mechanism(f"gated{options}", 10, 2.0, sensitivity=sensitivity)
    units = to_units(2.0) - machine.total_price
    spent, least = 0, 0
    for epoch in range(1, 2000):
        prices = machine.prices(epoch, total)
        spent += prices.gate + prices.release
        least += units * half // ((epoch + half - 1) * (epoch + half))
        assert spent == least
        assert spent <= units * epoch / (epoch + half)
        if epoch == half:
            assert spent == pytest.approx(units / 2, rel=1e-9)
    assert machine.prices(10**9, total) is None


# guard = 2 / e1 + gl * 4 / e2 * ln(tau + 2), times the contributions in a slot.
@pytest.mark.parametrize("sensitivity", [1, 2, 5])
def test_the_guard_is_that_of_the_spec(sensitivity):
    machine = infinite_mechanism("gated:gl=1.5", 10, 2.0, sensitivity=sensitivity)
    prices = machine.prices(3, 1000)
    e1, e2 = (part / 2**40 for part in (prices.threshold, prices.query))
    for tau in (0, 1, 10**6):
        wanted = sensitivity * (2 / e1 + 1.5 * 4 / e2 * math.log(tau + 2))
        assert machine.guard(prices, tau) == pytest.approx(wanted, rel=1e-12)


# What noise is asked for must be no less than scales of 2 s / e1, 4 s / e2 and s m / eps_rel.
@pytest.mark.parametrize(("sensitivity", "latest"), [(1, 1), (3, 8)])
def test_noise_has_the_scales_of_the_proof(sensitivity, latest, monkeypatch):
    asked = []

    def spy(rate, size, words):
        asked.append((rate, size))
        return noise.discrete_laplace(rate, size, words)

    monkeypatch.setattr(gated, "discrete_laplace", spy)
    machine = infinite_mechanism(
        f"gated:latest={latest}:shrink=none", 8, 20.0, sensitivity=sensitivity
    )
    stream = ReleaseStream(machine, NoiseSource(KEY))
    state, total = stream.start(), 0
    for slot, row in enumerate(jumping()):
        epoch, since = state.mechanism.epoch, state.mechanism.since
        seen = len(state.mechanism.recent) + 1
        asked.clear()
        state, release = stream.release(state, slot, row[None])
        prices = machine.prices(epoch, state.mechanism.total)
        wanted = []
        if slot == 0:
            wanted.append((Fraction(machine.total_price, sensitivity), 1))
        if since == 0:
            wanted.append((Fraction(prices.threshold, 2 * sensitivity * GRID), 1))
        wanted.append((Fraction(prices.query, 4 * sensitivity * GRID), 1))
        if release.status == "published":
            total += 1
            wanted.append((Fraction(prices.release, sensitivity * min(seen, latest)), 8))
        assert [size for _, size in asked] == [size for _, size in wanted]
        for (rate, _), (limit, _) in zip(asked, wanted, strict=True):
            assert limit - 1 < rate <= limit
    assert total >= 2


# One user, once in each slot in any bin, added or removed: the change is at most 2 * GRID.
@given(st.data())
@settings(max_examples=80)
def test_no_user_changes_a_distance_by_more_than_its_sensitivity(data):
    bins, slots = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 8))
    cell = st.integers(0, data.draw(st.sampled_from([2, 100, 1 << 30])))
    counts = np.array(
        data.draw(
            st.lists(st.lists(cell, min_size=bins, max_size=bins), min_size=slots, max_size=slots)
        ),
        dtype=np.int64,
    )
    weights = data.draw(st.lists(st.floats(0, 1), min_size=bins, max_size=bins))
    shares = simplex(np.array(weights) / max(sum(weights), 1e-9))
    with_user = counts.copy()
    for slot in range(slots):
        present = data.draw(st.integers(-1, bins - 1))
        if present >= 0:
            with_user[slot, present] += 1
    grid = on_grid(shares)
    far, near = (distance(c.sum(axis=0), slots, grid) for c in (with_user, counts))
    assert abs(far - near) <= 2 * GRID
    reference = Reference.of(Held.of(shares, 100), 100, 1)
    one, other = (
        largest_distance(list(c), gated.SPANS, reference, 1.0) for c in (with_user, counts)
    )
    assert abs(one - other) <= 2 * GRID


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
@settings(max_examples=100)
def test_shares_on_the_grid_never_sum_to_more_than_one(weights):
    shares = simplex(np.array(weights) / max(sum(weights), 1e-9))
    grid = on_grid(shares)
    assert (grid >= 0).all()
    assert grid.sum() <= 1 << SHARE_BITS
    assert np.abs(grid / 2**SHARE_BITS - shares).max() <= 2**-23


def test_the_distance_is_the_one_of_fractions():
    rng = np.random.default_rng(3)
    for _ in range(20):
        sums, slots = rng.integers(0, 1000, 5), int(rng.integers(1, 9))
        grid = on_grid(rng.dirichlet(np.ones(5)))
        total = int(sums.sum())
        exact = sum(
            abs(
                Fraction(int(h), slots) - Fraction(total, slots) * Fraction(int(r), 1 << SHARE_BITS)
            )
            for h, r in zip(sums, grid, strict=True)
        )
        assert distance(sums, slots, grid) == math.floor(exact * GRID)


# ---- streams --------------------------------------------------------------------------------


@given(
    name=st.sampled_from(NAMES),
    epsilon=st.sampled_from([1e-12, 1e-9, 1e-3, 0.5, 10.0, 4096.0]),
    sensitivity=st.integers(1, 3),
    rows=st.lists(st.lists(st.integers(0, 10**6), min_size=3, max_size=3), min_size=1, max_size=25),
)
@settings(max_examples=40)
def test_whatever_happens_no_more_than_epsilon_is_spent(name, epsilon, sensitivity, rows):
    done = simulate_infinite(name, rows, epsilon, KEY, sensitivity=sensitivity)
    assert sum(Fraction(one) for one in done.spent) <= Fraction(epsilon)
    assert (done.released >= 0).all()
    assert done.released.sum(axis=1) == pytest.approx(1.0)
    assert (done.age >= 0).all()
    assert ((done.age == 0) == (done.status == "published")).all()


# The worst path: the gate opens in every slot, and epochs go by as fast as they can.
@pytest.mark.parametrize("options", ["p=1.5", "epochs=200"])
def test_a_million_slots_on_the_worst_path_stay_within_epsilon(options):
    machine = infinite_mechanism(f"gated:{options}", 2, 1.0)
    units, epochs = to_units(1.0) - machine.total_price, np.arange(1, 10**6 + 1)
    if options == "p=1.5":
        terms = np.floor(units / 2.612375348685488 * epochs**-1.5 * (1 + 1e-12)).astype(np.int64)
    else:
        terms = units * 200 // ((epochs + 199) * (epochs + 200))
    for epoch in (1, 2, 3, 10, 999, 5432):
        prices = machine.prices(epoch, 0)
        exact = prices.gate + prices.release
        assert exact <= terms[epoch - 1] <= exact + 1 + exact * 1e-6
    books = ReleaseStream(machine, NoiseSource(KEY)).start().filter
    books.charge(np.array([machine.total_price]))
    for some in terms.reshape(-1, 1000).sum(axis=1):
        books.charge(np.array([some]))
    assert 0.99 < books.use() <= 1.0


def test_a_gate_that_opens_all_the_time_spends_no_more():
    table = np.zeros((1500, 2), dtype=np.int64)
    table[np.arange(1500), np.arange(1500) % 2] = 1 << 30
    done = simulate_infinite("gated", table, 64.0, KEY, epochs=100)
    assert (done.status == "published").all()
    assert 50 < sum(Fraction(one) for one in done.spent) <= 64


@pytest.mark.parametrize("name", NAMES)
def test_a_replay_and_a_stop_in_between_change_nothing(name):
    table = jumping()
    whole = simulate_infinite(name, table, 5.0, KEY)
    stream = ReleaseStream(infinite_mechanism(name, 8, 5.0), NoiseSource(KEY))
    data = stream.encode(stream.start())
    for slot, row in enumerate(table):
        state, release = stream.release(stream.decode(data), slot, row[None])
        data = stream.encode(state)
        assert release.shares.tolist() == whole.released[slot].tolist()
        assert release.counts.tolist() == whole.counts[slot].tolist()
        assert release.diagnostics["age"] == whole.age[slot]
    assert stream.encode(stream.decode(data)) == data


@pytest.mark.parametrize("name", NAMES)
def test_state_of_other_bins_or_budgets_is_refused(name):
    def stream(bins, epsilon):
        return ReleaseStream(infinite_mechanism(name, bins, epsilon), NoiseSource(KEY))

    data = stream(4, 1.0).encode(stream(4, 1.0).start())
    for bins, epsilon in ((5, 1.0), (4, 2.0)):
        with pytest.raises(ConfigurationError, match="another configuration"):
            stream(bins, epsilon).decode(data)


def test_jumps_are_followed_and_calm_costs_nothing():
    table = jumping()
    done = simulate_infinite("gated", table, 20.0, KEY)
    truth = table / table.sum(axis=1, keepdims=True)
    errors = np.abs(done.released - truth).sum(axis=1)
    assert (errors[[10, 30, 50]] < 0.1).all()
    assert (done.status == "published").sum() <= 10
    skipped = done.spent[1:][done.status[1:] == "skipped"]
    assert (skipped > 0).sum() <= (done.status == "published").sum()
    calm = simulate_infinite("gated", np.full((300, 8), 100), 20.0, KEY)
    assert (calm.status == "unmeasured").all()  # what was there before does, and no shares were
    assert calm.age.tolist() == list(range(1, 301))
    assert np.count_nonzero(calm.spent) == 1


def test_counts_follow_a_total_that_is_public_or_measured():
    table = np.full((3, 4), 250)
    public = simulate_infinite("gated", table, 1.0, KEY, total=2000)
    assert public.counts[0].tolist() == [500] * 4
    measured = simulate_infinite("gated", table, 1000.0, KEY)
    assert measured.counts[0].sum() == pytest.approx(1000, abs=8)
    assert simulate_infinite("constant", table, 1.0, KEY).counts.sum() == 0


@pytest.mark.parametrize(
    "text",
    [
        *("gated:gl=1", "gated:f_s=0", "gated:f_s=1", "gated:worth=-1", "gated:latest=9"),
        *("gated:shrink=more", "gated:total=-1", "gated:p=1", "gated:chance=nan", "gated:p=nan"),
        *("gated:epochs=-1", "gated:epochs=3:p=1.5"),
        *("doubling:p=1", "constant:total=-1", "horizon:slots=0", "nothing", "gated:x=1"),
    ],
)
def test_what_does_not_fit_is_refused(text):
    with pytest.raises(ConfigurationError):
        infinite_mechanism(text, 3, 1.0)


def test_other_requirements_are_refused():
    from streamveil.mechanisms import Population, Requirement
    from streamveil.mechanisms.infinite.gated import Gated

    people = Population((Requirement(3, 1.0),), np.array([5]), 2)
    with pytest.raises(ConfigurationError, match="give one Lifetime"):
        Gated("gated", people)


def test_private_state_is_not_shown():
    stream = ReleaseStream(infinite_mechanism("gated", 8, 5.0), NoiseSource(KEY))
    state, _ = stream.release(stream.start(), 0, jumping()[:1])
    shown = repr(replace(state.mechanism, threshold=123456789))
    assert "123456789" not in shown
    assert "recent" not in shown


# What is paid for may say nothing: then the release is as old as before, whatever was spent.
@pytest.mark.parametrize(
    ("name", "options"),
    [("gated", {"f_s": 0.9, "worth": 0.0, "chance": 0.0}), ("horizon", {"slots": 20})],
)
def test_a_measurement_that_showed_nothing_makes_no_release_younger(name, options):
    counts = np.random.default_rng(2).multinomial(30, np.full(50, 0.02), 20)
    done = simulate_infinite(name, counts, 0.05, KEY, **options)
    changed = np.any(np.diff(done.released, axis=0, prepend=0.02) != 0, axis=1)
    assert done.spent.sum() > 0
    assert not changed.all()
    np.testing.assert_array_equal(done.age == 0, changed)
