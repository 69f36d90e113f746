"""Counts and sums by node: what records lose, exactly; totals; their releases.

Every test of a distribution accepts correct code with probability 1 - 1e-6 (FLAKINESS).
"""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from streamveil.mechanisms import ConfigurationError, NoiseSource
from streamveil.mechanisms.per_record import (
    Bounds,
    Inverse,
    Noisy,
    PerRecordRelease,
    domain_index,
    partition,
)
from streamveil.mechanisms.registry import statistic

FLAKINESS = 1e-6
PROPERTY = settings(max_examples=60)
SOURCE = NoiseSource(bytes(range(32)))

MECHANISMS = [("count", "hat"), ("sum", "hat"), ("count", "prdp"), ("sum", "prdp")]
EACH = pytest.mark.parametrize(("kind", "name"), MECHANISMS)

# Of the paper's data, whose kappa-hats need coarse nodes; of little, where no node is coarse; with
# the smallest budget that there can be, where counts have coarse nodes as well.
BOUNDS = {
    "paper": Bounds(1e-8, 100.0, 1e12),
    "narrow": Bounds(0.1, 1.0, 3.7),
    "one": Bounds(0.3, 0.3, 1.0),
    "extreme": Bounds(2.0**-38, 4096.0, 1e100),
}


def words(label):
    return SOURCE.slot(0, repr(label).encode()).words("test")


def around(numbers):
    """Numbers and the floats next to them."""
    numbers = np.asarray(numbers, np.float64)
    return np.concatenate([np.nextafter(numbers, 0), numbers, np.nextafter(numbers, np.inf)])


def records(made, size):
    """Values and budgets: random ones of every magnitude, and those next to every boundary."""
    rng = np.random.default_rng(3)
    low, high, most = made.bounds.epsilon_min, made.bounds.epsilon_max, made.bounds.value_max
    values = most * 2.0 ** -rng.uniform(0, 60, size)
    budgets = np.clip(low * (high / low) ** rng.uniform(0, 1.01, size), low, high * 1.1)
    step = 2.0**made.grid.exponent
    edges = np.unique(around([0.0, step, 3 * step, most / 3, most * 0.7, most]))
    edges = edges[edges <= most]
    # A record of such a value and a budget next to what it costs at a node, or to a domain's.
    costs = np.outer(edges, made.nodes.budgets / step).ravel()
    costs = around(np.concatenate([costs, partition(low, high).repeat(len(edges))]))
    at = np.resize(edges.repeat(len(made.nodes.rates)), len(costs))
    values, budgets = np.append(values, at), np.append(budgets, costs)
    usable = made.bounds.usable(values, budgets)
    return values[usable], budgets[usable]


def contributions(made, values, budgets):
    clamped = np.minimum(budgets, made.bounds.epsilon_max)
    return made.split(made.grid.steps(values), clamped)


def losses(made, values, budgets):
    """What records lose, in units of 2**-56 epsilon: exact integers."""
    return sum(made.nodes.loss(*each) for each in contributions(made, values, budgets))


# A million random budgets, and each representable neighbour of each boundary, are never in a
# domain above their own.
@pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)
def test_no_budget_is_in_a_domain_above_its_own(bounds):
    low = partition(bounds.epsilon_min, bounds.epsilon_max)
    rng = np.random.default_rng(1)
    logs = rng.uniform(math.log(low[0]) - 1, math.log(2 * low[-1]) + 1, 250_000)
    budgets = np.append(np.exp(logs), around([*low, 2 * low[-1], bounds.epsilon_max]))
    index = domain_index(budgets, low)
    assert ((index == 0) == (budgets < low[0])).all()
    inside, index = budgets[index > 0], index[index > 0]
    assert (low[index - 1] <= inside).all()
    assert ((low[index - 1] < inside) | (index == 1)).all()
    assert ((inside <= 2 * low[index - 1]) | (index == len(low))).all()


# No record loses more than its budget, in exact integers.
@EACH
@pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)
def test_no_record_loses_more_than_its_budget(kind, name, bounds):
    made = statistic(kind, name, bounds)
    values, budgets = records(made, 250_000 if bounds is BOUNDS["paper"] else 10_000)
    lost = losses(made, values, budgets)
    allowed = [int(units) for units in np.ldexp(np.minimum(budgets, 4096.0), 56).tolist()]
    assert (lost <= np.array(allowed, dtype=object)).all()
    assert max(lost) > 0


# The hats spend nearly all of a budget between the first and the last node.
@pytest.mark.parametrize("kind", ["count", "sum"])
def test_hats_spend_the_whole_budget(kind):
    made = statistic(kind, "hat", BOUNDS["paper"])
    values, budgets = records(made, 10_000)
    steps = made.grid.steps(values)
    large = (steps > 1 << 15) & (budgets < steps * made.nodes.budgets[-1])
    values, budgets = values[large], np.minimum(budgets[large], 100.0)
    assert len(values) > 3000
    spent = np.ldexp(losses(made, values, budgets).astype(np.float64), -56)
    # A coarse node's reserve, and one step of 2**15 from one node to the next.
    assert (spent > budgets * (1 - 2.0**-8) - 1e-15).all()


# The loss of a few records by its definition, in fractions.
@EACH
def test_loss_by_its_definition(kind, name):
    made = statistic(kind, name, BOUNDS["paper"])
    values, budgets = np.array([1e12, 5e4, 3.0, 7e9]), np.array([1e-8, 0.2, 100.0, 1e-6])
    for i in range(len(values)):
        expected = Fraction(0)
        for node, steps in contributions(made, values[i : i + 1], budgets[i : i + 1]):
            unit = 2 ** int(made.nodes.shifts[node[0]])
            rate = Fraction(int(made.nodes.rates[node[0]]), 2**56)
            expected += math.ceil(Fraction(int(steps[0]), unit)) * rate
        found = losses(made, values[i : i + 1], budgets[i : i + 1])[0]
        assert Fraction(found, 2**56) == expected <= Fraction(budgets[i])


# A coarse node's total moves by at most what its loss is reckoned for, wherever it was before.
def test_shifted_totals_move_by_what_is_paid():
    made = statistic("sum", "hat", BOUNDS["paper"])
    shifts = made.nodes.shifts.astype(object)
    assert made.nodes.shifts[0] > 20
    rng = np.random.default_rng(4)
    before = rng.integers(0, 2**60, (500, len(shifts))).astype(object)
    added = rng.integers(0, 2**48, before.shape).astype(object)
    moved = ((before + added) >> shifts) - (before >> shifts)
    node = np.broadcast_to(np.arange(len(shifts)), before.shape)
    paid = made.nodes.loss(node, added)
    assert (moved * made.nodes.rates.astype(object) <= paid).all()


# ---- totals ---------------------------------------------------------------------------------


def exact(made, part):
    """Total of each node in steps."""
    low, high = part.astype(object).reshape(2, -1)
    return low + (high << 24)


# Parts of cells are those of their records, parts of batches add up, and bad records add nothing.
@EACH
def test_parts_add_up_and_bad_records_add_nothing(kind, name):
    made = statistic(kind, name, BOUNDS["paper"])
    values, budgets = records(made, 3000)
    cells = np.arange(len(values)) % 3
    one = np.zeros_like(cells)
    (everything,) = made.tally(values, budgets, one, 1)
    parts = made.tally(values, budgets, cells, 4)
    assert len(parts) == 4
    assert not parts[3].any()
    assert made.add(parts).tolist() == everything.tolist()
    for cell in range(3):
        of_cell = cells == cell
        (alone,) = made.tally(values[of_cell], budgets[of_cell], one[of_cell], 1)
        assert alone.tolist() == parts[cell].tolist()
    assert made.add([]).tolist() == np.zeros_like(everything).tolist()
    assert sum(exact(made, everything)) == sum(
        int(steps) for _, added in contributions(made, values, budgets) for steps in added
    )
    bad_values = np.array([np.nan, -1.0, 1.1e12, np.inf, 5.0, 5.0, 5.0, 5.0, 5.0, -np.inf])
    bad_budgets = np.array([1.0, 1.0, 1.0, 1.0, np.nan, 0.0, -1.0, 0.99e-8, -np.inf, 1.0])
    mixed = made.tally(
        np.append(values, bad_values),
        np.append(budgets, bad_budgets),
        np.zeros(len(values) + 10, np.int64),
        1,
    )
    assert mixed[0].tolist() == everything.tolist()


# Totals stay exact far beyond what a float or one int64 holds.
@PROPERTY
@given(st.integers(1, 2**13), st.integers(0, 2**38))
def test_totals_are_exact_of_any_size(times, more):
    made = statistic("sum", "hat", BOUNDS["paper"])
    (part,) = made.tally(np.array([1e12]), np.array([1e-8]), np.zeros(1, np.int64), 1)
    total = made.add([part] * 3 + [part * times] + [part * more])
    assert exact(made, total).tolist() == [(3 + times + more) * c for c in exact(made, part)]


# ---- noise and estimates --------------------------------------------------------------------


# Noise has the stated variance, of shares as well, and the totals are in the middle of it.
@EACH
@pytest.mark.parametrize("shares", [1, 16])
def test_noise_has_its_variance(kind, name, shares):
    made = statistic(kind, name, BOUNDS["paper"])
    values, budgets = np.full(1000, 3e5), np.full(1000, 0.04)
    (part,) = made.tally(values, budgets, np.zeros(1000, np.int64), 1)
    runs = 4000
    noisy = made.nodes.noisy(part, words((kind, name, shares)), shares, runs)
    unit = 2.0**made.grid.exponent
    scores = (noisy.totals - exact(made, part).astype(float) * unit) / np.sqrt(noisy.variances)
    # A Laplace variable's square has a variance of 5 times its mean squared.
    sigmas = stats.norm.isf(FLAKINESS / 2 / scores.size * runs)
    assert (abs(scores.mean(axis=0)) * math.sqrt(runs) < sigmas).all()
    assert (abs((scores**2).mean(axis=0) - 1) * math.sqrt(runs / 5) < 1.5 * sigmas).all()
    budgets_of_nodes = np.sqrt(2 / noisy.variances) * unit
    assert budgets_of_nodes * shares == pytest.approx(made.nodes.budgets, rel=0.07)
    assert (budgets_of_nodes * shares <= made.nodes.budgets * (1 + 1e-3)).all()


def spread(size=100_000):
    """Deposits, as in the paper's evaluation."""
    values = np.abs(np.random.default_rng(5).normal(50e3, 50e3, size)).round()
    return values, Inverse(1e4, 1e12, 100.0)(values)


# The estimate is within a few standard errors of the truth, however the budget function looks; it
# is the same on a replay, and another on other data.
@EACH
def test_estimates(kind, name):
    made = statistic(kind, name, BOUNDS["paper"], budget=Inverse(1e4, 1e12, 100.0))
    values, budgets = spread()
    cells = np.zeros(len(values), np.int64)
    (part,) = made.tally(values, budgets, cells, 1)
    (fewer,) = made.tally(values[1:], budgets[1:], cells[1:], 1)
    releases = [made.release(p, SOURCE.slot(7, p.tobytes())) for p in (part, part, fewer)]
    assert releases[0] == releases[1] != releases[2]
    truth = len(values) if kind == "count" else values.sum()
    assert abs(releases[0].estimate - truth) < 20 * releases[0].stderr + 0.02 * truth
    assert releases[0].stderr < 0.01 * truth
    if kind == "count":
        # The strictest of these records have a budget of 1e4 / 2.7e5.
        assert 0.005 < releases[0].epsilon_tau < 0.2
    assert releases[0].dropped_bound > 0


# The gap selection is more exact than the paper's selection, and never fails as badly.
@pytest.mark.parametrize("kind", ["count", "sum"])
def test_hats_beat_domains(kind):
    values, budgets = spread()
    truth = len(values) if kind == "count" else values.sum()
    errors = {}
    for name in ("hat", "prdp"):
        made = statistic(kind, name, BOUNDS["paper"], budget=Inverse(1e4, 1e12, 100.0))
        (part,) = made.tally(values, budgets, np.zeros(len(values), np.int64), 1)
        noisy = made.nodes.noisy(part, words((kind, name)), runs=1000)
        chosen = np.arange(len(made.nodes.rates)) >= made.select(noisy)[:, None]
        errors[name] = abs((noisy.totals * chosen).sum(axis=1) - truth) / truth
    assert np.sort(errors["hat"])[200:-200].mean() < np.sort(errors["prdp"])[200:-200].mean()
    assert errors["hat"].max() < 1
    assert errors["prdp"].max() > 1


# What is left out is at most the bound, but for one time in ten.
def test_dropped_bound_holds():
    made = statistic("count", "hat", Bounds(0.01, 10.0))
    budgets = np.array([0.011] * 60 + [9.0] * 500)
    (part,) = made.tally(np.zeros(560), budgets, np.zeros(560, np.int64), 1)
    noisy = made.nodes.noisy(part, words("dropped"), runs=2000)
    kept = exact(made, part).astype(float) / 2**16
    failed, tight = 0, 0
    for totals in noisy.totals:
        estimate = made.estimate(Noisy(totals, noisy.variances))
        node = int(made.select(Noisy(totals, noisy.variances)))
        failed += estimate.dropped_bound < kept[:node].sum()
        tight += estimate.dropped_bound < 4000
    assert stats.binomtest(failed, 2000, 0.1, "greater").pvalue > FLAKINESS
    assert tight > 1800


# Nobody at all is released like anything else.
@EACH
@pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)
def test_no_record_at_all(kind, name, bounds):
    made = statistic(kind, name, bounds)
    release = made.release(made.add([]), SOURCE.slot(1, b""))
    assert isinstance(release, PerRecordRelease)
    assert all(math.isfinite(figure) for figure in vars(release).values())
    assert release.stderr > 0


# Panes that got noise once add up to windows, with the variance of all of them.
def test_panes_add_up():
    made = statistic("count", "hat", Bounds(0.1, 1.0))
    (part,) = made.tally(np.zeros(500), np.full(500, 0.5), np.zeros(500, np.int64), 1)
    panes = [made.noisy(part, SOURCE.slot(t, b"pane")) for t in range(4)]
    window = Noisy(sum(p.totals for p in panes), sum(p.variances for p in panes))
    estimate = made.estimate(window)
    assert estimate.stderr == pytest.approx(2 * made.estimate(panes[0]).stderr)
    assert estimate.estimate == pytest.approx(2000, abs=10 * estimate.stderr)


# ---- public configuration -------------------------------------------------------------------


# The sum extension makes its noise for the budget function that it gets, or for given scales.
def test_scales_of_the_sum_extension(golden):
    for case in golden("per_record")["cases"]:
        if case["kind"] != "sum_extension":
            continue
        budget = Inverse(case["alpha"], case["U"], case["eps_hat"])
        given = case["input"]["scales"]
        of_function = statistic("sum", "prdp", budget.bounds, budget=budget)
        assert of_function.largest_ratios == pytest.approx(given, rel=1e-9)
        of_scales = statistic("sum", "prdp", budget.bounds, scales=given)
        assert of_scales.largest_ratios.tolist() == given


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tree", "'tree' is unknown"),
        ("hat:width=3", "no option 'width'"),
        ("hat:bounds=3", "no option 'bounds'"),
        ("hat:base=1", "base is 1, give 2 or more"),
        ("hat:base=x", "base is 'x', give a value of type int"),
        ("hat:beta=0", "beta is 0.0, not between 0 and 1"),
        ("prdp:beta=1", "beta is 1.0, not between 0 and 1"),
        ("hat:beta0=0.6", "beta0 is 0.6, give a probability"),
        ("hat:beta_far=nan", "beta_far is nan, give a probability"),
        ("hat:slope=-1", "slope is -1.0, give 0 or more"),
    ],
)
def test_wrong_options_are_refused(text, message):
    with pytest.raises(ConfigurationError, match=message):
        statistic("sum", text, BOUNDS["narrow"])


def test_other_wrong_facts_are_refused():
    with pytest.raises(ConfigurationError, match="'median' is unknown: choose one of count"):
        statistic("median", None, BOUNDS["narrow"])
    with pytest.raises(ConfigurationError, match=r"1e-12 is too small .* at least 3.6\d*e-12"):
        statistic("count", None, Bounds(1e-12, 1.0))
    with pytest.raises(ConfigurationError, match="scales must be 4 numbers above 0"):
        statistic("sum", "prdp", BOUNDS["narrow"], scales=[1.0, 2.0])
    with pytest.raises(ConfigurationError, match=r"largest value 1e\+101 is not from"):
        statistic("sum", None, Bounds(0.1, 1.0, 1e101))
    assert statistic("sum", None, BOUNDS["narrow"]).name == "hat"
