"""Audits of records convict what tells more of one than its budget, and nothing else."""

import numpy as np
import pytest

from streamveil.mechanisms import ConfigurationError
from streamveil.mechanisms.per_record import Bounds, Inverse, framework, node_noise
from streamveil.mechanisms.per_record.domains import partition
from streamveil.mechanisms.randomness.noise import NoiseSource
from streamveil.mechanisms.registry import PER_RECORD_MECHANISMS, statistic
from streamveil.pipelines.audit.records import auditing as records
from streamveil.pipelines.audit.records.auditing import Records, audited_records
from streamveil.pipelines.audit.records.canaries import of_budgets, of_records, of_values
from streamveil.pipelines.audit.records.record_odds import RecordOdds, Shown
from streamveil.pipelines.audit.records.statistics import dearest, in_doubt
from streamveil.pipelines.audit.rounds import Extent
from tests.audits.mutants import MUTANTS
from tests.audits.scenes import BRIEF

FALLING = Inverse(10.0, 25.0, 3.0)
BOUNDS = FALLING.bounds
EVERY = [
    (kind, name, running)
    for kind, known in PER_RECORD_MECHANISMS.items()
    for name in known
    for running in ([False, True] if kind in ("count", "sum") and name != "framework" else [False])
]


@pytest.fixture
def small(monkeypatch):
    """Fewer releases of each record."""
    monkeypatch.setattr(records, "DRAWN", 2000)
    monkeypatch.setattr(records, "DRAWN_OF_RUNNING", 500)
    monkeypatch.setattr(records, "DRAWN_OF_MAX", 40)
    monkeypatch.setattr(records, "RELEASED", 20)
    monkeypatch.setattr(records, "RELEASED_SLOWLY", 5)


@pytest.fixture
def enough(monkeypatch):
    """As many as convict, and few that are made one at a time."""
    monkeypatch.setattr(records, "DRAWN", 4000)
    monkeypatch.setattr(records, "RELEASED", 60)
    monkeypatch.setattr(records, "RELEASED_SLOWLY", 5)


@pytest.fixture
def less_noise(monkeypatch):
    """Let nodes and bases of the framework draw noise for so many times the budget."""

    def less_noise(times):
        exact = node_noise.fine_laplace

        def small(rates, words, size):
            return exact(np.asarray(np.round(np.asarray(rates) * times), np.int64), words, size)

        for module in (node_noise, framework):
            monkeypatch.setattr(module, "fine_laplace", small)

    return less_noise


def audit(kind="count", mechanism=None, **options):
    made = Records(kind, BOUNDS, FALLING, mechanism, **options)
    return audited_records(made, of_values(FALLING, BOUNDS), extent=BRIEF)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("kind", "name", "running"), EVERY)
def test_honest_statistics_are_not_convicted(kind, name, running):
    found = audit(kind, name, running=running)
    assert not found.violated
    assert 0.9 < found.overspent <= 1.0
    assert {one.part for one in found.checks} == {"noise", "releases"}
    assert {one.claimed for one in found.checks if one.guesses} <= {
        one.budget for one in of_values(FALLING, BOUNDS)
    }
    assert found.worst.times > 0.1 or kind == "max"  # which takes long


@pytest.mark.usefixtures("enough")
def test_nearly_all_of_a_budget_is_proven():
    found = audit()
    noise = [one for one in found.checks if one.part == "noise"]
    assert all(one.times > 0.5 for one in noise)
    assert min(one.visible for one in noise) < 1.2


@pytest.mark.usefixtures("enough")
@pytest.mark.parametrize("devices", [False, True])
def test_noise_a_sixth_too_small_is_convicted(less_noise, monkeypatch, devices):
    if devices:
        from streamveil.mechanisms.per_record import randomizer

        exact = randomizer.fine_laplace
        monkeypatch.setattr(
            randomizer,
            "fine_laplace",
            lambda rates, words, size: exact(
                np.asarray(np.round(rates * 1.2), np.int64), words, size
            ),
        )
    less_noise(1.2)
    found = audit(devices=devices)
    assert found.violated
    assert found.overspent <= 1.0
    assert "times the budget of a record of" in found.sentence


# What shows each: charges, or guesses of a part.
MISTAKES = {
    "noise_of_the_next_node": ({"mechanism": "hat"}, "noise"),
    "parts_rounded_up": ({"mechanism": "hat"}, None),
    "nodes_chosen_by_true_totals": ({"mechanism": "hat"}, "releases"),
    "domains_unchecked": ({"mechanism": "prdp"}, "noise"),
    "budgets_undivided_in_a_tree": ({"running": True}, "noise"),
}


@pytest.mark.usefixtures("enough")
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_convicted_where_they_show(name):
    options, part = MISTAKES[name]
    with MUTANTS[name].patched():
        found = audit(**options)
    assert found.violated
    if part is None:
        assert 1 < found.overspent < 1 + 1e-3
        assert "charged more than the budget of a record" in found.sentence
    else:
        assert any(one.violated for one in found.checks if one.part == part)


@pytest.mark.usefixtures("small")
def test_the_same_seed_gives_the_same_audit():
    made = Records("count", BOUNDS, FALLING)
    once, again, other = (
        audited_records(made, of_values(FALLING, BOUNDS)[:2], extent=Extent(runs=4, seed=seed))
        for seed in (1, 1, 2)
    )
    assert once.checks == again.checks
    assert once.checks != other.checks


@pytest.mark.usefixtures("small")
def test_canaries_stand_beside_records_of_ones_own():
    values = np.array([3.0, 4.0, 20.0, -1.0, np.nan, 30.0])
    own = values, FALLING(values)
    canaries = of_records(*own, BOUNDS)
    assert [one.value for one in canaries] == [20.0, 4.0, 3.0]  # bad ones are none
    found = audited_records(Records("sum", BOUNDS, FALLING), canaries, own=own, extent=BRIEF)
    assert found.own
    assert not found.violated


def test_what_cannot_be_audited_is_refused():
    made = Records("max", BOUNDS, FALLING, devices=True)
    with pytest.raises(ConfigurationError, match="devices report a count or a sum"):
        audited_records(made, of_values(FALLING, BOUNDS), extent=BRIEF)
    with pytest.raises(ConfigurationError, match="there is no record to audit"):
        audited_records(Records("sum", BOUNDS, FALLING), [], extent=BRIEF)


# As of `test_auditing.py`.
@pytest.mark.slow
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("kind", "name"), [("count", "hat"), ("distinct", "framework")])
def test_honest_statistics_are_acquitted_with_every_seed(kind, name):
    made, canaries = Records(kind, BOUNDS, FALLING, name), of_values(FALLING, BOUNDS)
    convicted = [
        audited_records(made, canaries, extent=Extent(runs=4, seed=seed)).violated
        for seed in range(2)
    ]
    assert not any(convicted)


def test_others_are_as_many_as_leave_a_choice_in_doubt():
    made, canary = statistic("count", "hat", BOUNDS), of_values(FALLING, BOUNDS)[0]

    def others(number):
        return np.full(number, canary.value), np.full(number, canary.budget)

    values, _ = in_doubt(made, canary, others)
    assert 2 < values.size < 100

    def often(number):
        """How often each node is chosen by totals with noise."""
        (part,) = made.tally(*others(number), np.zeros(number, np.int64), 1)
        words = NoiseSource(bytes(32)).slot(number, b"").words("doubt")
        return np.mean(made.select(made.nodes.noisy(part, words, runs=2000)) == 0)

    # The choice of the lowest node, at which the record is, is about even there.
    assert 0.3 < often(values.size) < 0.7
    assert often(0) < 0.05
    assert often(4 * values.size) > 0.95


# ---- parts ------------------------------------------------------------------------------------


def test_canaries_are_at_the_ends_and_at_edges_of_domains():
    found = of_values(FALLING, BOUNDS)
    assert (found[0].value, found[0].budget) == (25.0, BOUNDS.epsilon_min)
    assert found[-1].budget == 3.0
    assert found[-1].value == pytest.approx(10 / 3)
    edges = partition(BOUNDS.epsilon_min, BOUNDS.epsilon_max)[1:]
    above = [one.budget for one in found if np.isclose(one.budget, edges, rtol=1e-6).any()]
    assert above
    assert all((one > edges[np.argmin(abs(edges - one))]) for one in above)
    for one in found:
        assert FALLING(np.array([one.value]))[0] == one.budget
    some = of_budgets(np.array([0.5, 2.0, 9.0]), Bounds(0.5, 4.0))
    assert [one.budget for one in some] == [0.5, 2.0, 4.0]


@pytest.mark.parametrize("kind", ["sum", "count"])
def test_charges_are_those_of_the_nodes(kind):
    """Of one record: what it adds, times what a step costs."""
    made = statistic(kind, "hat", BOUNDS)
    value, budget = np.array([7.0]), np.array([1.1])
    (part,) = made.tally(value, budget, np.zeros(1, np.int64), 1)
    low, high = part.reshape(2, -1)
    steps = (high << 24) + low
    wanted = sum(
        int(-(-int(n) >> int(k))) * int(s)
        for n, k, s in zip(steps, made.nodes.shifts, made.nodes.rates, strict=True)
    ) / (1.1 * 2**56)
    assert dearest(made, value, budget) == pytest.approx(wanted, rel=1e-12)
    assert dearest(made, np.array([-1.0]), budget) == 0.0


def test_charges_of_the_framework_are_of_a_domain():
    made = statistic("sum", "framework", Bounds(0.5, 4.0))
    assert dearest(made, np.array([0.5]), np.array([0.5])) == pytest.approx(1.0, abs=1e-9)
    inside = dearest(made, np.array([0.5]), np.array([0.75]))
    assert inside == pytest.approx(0.5 / 0.75, abs=1e-9)


def test_odds_are_learnt_of_figures_of_choices_and_of_figures_by_choice():
    random = np.random.default_rng(3)

    def shown(moved, number=20_000):
        choice = random.integers(0, 2, number)
        figures = np.stack([random.laplace(moved, 1, number), random.normal(size=number)], axis=1)
        chosen = random.laplace(moved * np.where(choice, 1, -1), 1, number)[:, None]
        return Shown(figures, choice, chosen)

    odds = RecordOdds()
    odds.learn(shown(1.0), shown(0.0))
    figures = np.array([[9.0, 0.0], [-9.0, 0.0], [9.0, 0.0], [-9.0, 2.0]])
    releases = Shown(figures, np.array([1, 1, 0, 0]), np.array([[9.0], [9.0], [9.0], [9.0]]))
    # Laplace noise of scale 1, moved by 1: at most 1 in favour, and 1 against.
    assert odds.scores(releases) == pytest.approx([2, 0, 0, -2], abs=0.35)


def test_worlds_that_are_alike_tell_nothing():
    random = np.random.default_rng(4)
    both = [
        Shown(
            random.normal(size=(5000, 3)), np.zeros(5000, np.int64), random.normal(size=(5000, 1))
        )
        for _ in range(2)
    ]
    odds = RecordOdds()
    odds.learn(*both)
    assert (odds.scores(both[0]) == 0).all()
