"""Audits of devices convict what tells too much, and nothing else."""

import math

import numpy as np
import pytest

from streamveil.mechanisms import ConfigurationError, Requirement
from streamveil.mechanisms.core.budgets import to_units
from streamveil.mechanisms.local import oracles
from streamveil.mechanisms.local.oracles import Oracle
from streamveil.mechanisms.local.protocol import GRR, OUE, OUE0, Ask
from streamveil.mechanisms.registry import LOCAL_MECHANISMS
from streamveil.pipelines.audit.devices import auditing as devices
from streamveil.pipelines.audit.devices.auditing import audited_devices
from streamveil.pipelines.audit.devices.canaries import Spans
from streamveil.pipelines.audit.devices.odds import odds
from streamveil.pipelines.audit.findings import REPORT, WINDOW
from streamveil.pipelines.audit.rounds import Extent
from streamveil.pipelines.evaluation.window_use import DeviceCharges
from tests.audits.mutants import MUTANTS
from tests.audits.scenes import BRIEF, no_filters
from tests.mechanisms.local.populations import population

TWO = [Requirement(2, 4.0), Requirement(3, 3.0)]


@pytest.fixture
def small(monkeypatch):
    """Runs of fewer devices, and few clients."""
    monkeypatch.setattr(devices, "CELLS", 50_000)
    monkeypatch.setattr(devices, "CLIENT_REPORTS", 100)


@pytest.fixture
def cheaper(monkeypatch):
    """Let devices perturb for so many times what they are charged."""

    def cheaper(times):
        right = Oracle.of.__func__
        monkeypatch.setattr(
            Oracle,
            "of",
            classmethod(lambda cls, kind, units, d: right(cls, kind, round(times * units), d)),
        )

    return cheaper


def check_of(found, part, claim, requirement):
    return next(
        one
        for one in found.checks
        if (one.part, one.claim, one.requirement) == (part, claim, requirement)
    )


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", [*LOCAL_MECHANISMS, "rotation:turns=2", "rotation:oracle=oue"])
def test_honest_devices_are_not_convicted_and_most_of_a_charge_is_proven(name):
    found = audited_devices(TWO, mechanism=name, extent=Extent(runs=4, seed=2))
    assert not found.violated
    assert 0.9 < found.overspent <= 1.0
    assert found.worst.times > 0.8
    parts = {(one.part, one.claim) for one in found.checks}
    turns = "turns" in name  # an event is charged there, and not a report
    assert parts == {
        *(("reports", REPORT), ("asked again", REPORT), ("windows", WINDOW)),
        *([] if turns else [("windows", REPORT)]),
    }


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("name", "bins"), [("rotation", 2), ("rotation:oracle=oue", 20), ("rotation:turns=2", 3)]
)
def test_reports_that_tell_a_fifth_more_are_convicted(cheaper, monkeypatch, name, bins):
    """Of four short runs: the least violation that these audits must see."""
    monkeypatch.setattr(devices, "CELLS", 200_000)
    cheaper(1.2)
    found = audited_devices([Requirement(3, 2.0)], mechanism=name, bins=bins, extent=BRIEF)
    assert found.violated
    assert check_of(found, "reports", REPORT, Requirement(3, 2.0)).times > 1.05
    assert "times what its reports were charged of a user" in found.sentence


# Of each: part and claim that show it.
MISTAKES = {
    "the_truth_too_often": ("lbu", 1, "reports", REPORT),
    "one_symbol_too_few": ("rotation", 4, "reports", REPORT),
    "true_bits_kept_as_others": ("rotation", 80, "reports", REPORT),
    "every_event_reported": ("rotation:turns=4", 2, "windows", WINDOW),
    "an_answer_drawn_anew": ("rotation", 3, "asked again", REPORT),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_convicted_where_they_show(name, monkeypatch):
    monkeypatch.setattr(devices, "CELLS", 200_000)
    mechanism, bins, part, claim = MISTAKES[name]
    if part != "asked again":
        monkeypatch.setattr(devices, "CLIENT_REPORTS", 100)
    asked = Requirement(4, 3.0)
    with MUTANTS[name].patched():
        found = audited_devices([asked], mechanism=mechanism, bins=bins, extent=BRIEF)
    assert check_of(found, part, claim, asked).violated
    if name == "every_event_reported":  # each report alone reveals no more than its price
        assert not check_of(found, "reports", REPORT, asked).violated


@pytest.mark.usefixtures("small")
def test_charges_beyond_a_budget_are_convicted_exactly():
    with no_filters(), MUTANTS["reports_for_a_shorter_window"].patched():
        found = audited_devices([Requirement(4, 3.0)], mechanism="plbu", extent=BRIEF)
    assert found.overspent == pytest.approx(4 / 3)
    assert found.violated
    assert "charged 1.33 times the budget of a window" in found.sentence


@pytest.mark.usefixtures("small")
def test_the_same_seed_gives_the_same_audit():
    once, again, other = (
        audited_devices(TWO, extent=Extent(runs=4, seed=seed)) for seed in (1, 1, 2)
    )
    assert once.checks == again.checks
    assert once.checks != other.checks


@pytest.mark.usefixtures("small")
def test_values_are_those_of_a_stream_of_ones_own():
    counts = np.zeros((90, 2, 3), np.int64)
    counts[:, :, 1] = 30
    found = audited_devices(TWO, mechanism="lbd", sizes=[40, 70], counts=counts, extent=BRIEF)
    assert found.own
    assert not found.violated
    assert {one.requirement for one in found.checks} == set(TWO)
    assert found.worst.times > 0.5


@pytest.mark.usefixtures("small")
def test_tiny_and_huge_budgets_have_bounds():
    found = audited_devices(
        [Requirement(40, 1.0), Requirement(1, 30.0)], mechanism="plbu", extent=BRIEF
    )
    tiny = check_of(found, "reports", REPORT, Requirement(40, 1.0))
    huge = check_of(found, "reports", REPORT, Requirement(1, 30.0))
    assert tiny.claimed == pytest.approx(1 / 40)
    assert tiny.guesses > 1000
    assert 5 < huge.epsilon < 30


def test_a_population_too_small_for_a_mechanism_is_refused_as_it_is():
    with pytest.raises(ConfigurationError, match="longer than half of the 5 users"):
        audited_devices([Requirement(3, 1.0)], mechanism="plpa", sizes=[5], extent=BRIEF)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mechanism": "pba"}, "'pba' is for requirements over windows"),
        ({"bins": 0}, "1 symbols tell nothing"),
    ],
)
def test_what_cannot_be_audited_is_refused(wrong, message):
    with pytest.raises(ConfigurationError, match=message):
        audited_devices([Requirement(3, 3.0)], **{"extent": BRIEF, **wrong})


# As of `test_auditing.py`.
@pytest.mark.slow
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["lbu", "rotation:turns=3", "plpd+"])
def test_honest_devices_are_acquitted_with_every_seed(name):
    convicted = [
        audited_devices(TWO, mechanism=name, extent=Extent(runs=4, seed=seed)).violated
        for seed in range(2)
    ]
    assert not any(convicted)


# ---- parts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [GRR, OUE, OUE0])
@pytest.mark.parametrize("epsilon", [0.05, 1.5, 9.0])
def test_odds_are_those_of_the_probabilities(kind, epsilon):
    symbols = 11
    oracle = Oracle.of(kind, to_units(epsilon), symbols)
    for one, other in ((0, 9), (7, 8), (3, 10)):
        for named in ((one,), (other,), (one, other), (5,)):
            if kind == GRR and len(named) > 1:
                continue
            reports = np.array(named)
            if kind != GRR:
                bits = np.zeros(symbols, np.uint8)
                bits[list(named)] = 1
                reports = np.packbits(bits[None], axis=1)
            values, others = np.array([one]), np.array([other])
            found = odds(kind, epsilon, symbols, reports, values, others)[0]
            wanted = math.log(
                _likely(oracle, named, symbols, one) / _likely(oracle, named, symbols, other)
            )
            if kind == OUE0 and symbols - 1 in named:
                continue  # no device sends it
            assert found == pytest.approx(wanted, abs=1e-9)


def _likely(oracle, named, symbols, true):
    """Probability of a report of a true symbol."""
    if oracle.kind == GRR:
        return oracle.p if true in named else oracle.q
    bits = range(symbols - (oracle.kind == OUE0))
    rates = [oracle.p if bit == true else oracle.q for bit in bits]
    return math.prod(p if bit in named else 1 - p for bit, p in zip(bits, rates, strict=True))


def test_charges_are_those_added_up_naively():
    users = population([(2, 1.0), (2, 1.0), (3, 0.5), (5, 2.0)])
    charges, random = DeviceCharges(users), np.random.default_rng(5)
    spent = np.zeros((30, 4), np.int64)
    for slot in range(30):
        charges.begin()
        for _ in range(random.integers(3)):
            some = np.flatnonzero(random.random(4) < 0.4).astype(np.int32)
            prices = random.integers(0, 1 << 39, len(users.classes))
            charges.add(Ask(slot, 1, some, prices, (GRR,) * len(users.classes)))
            spent[slot, some] += prices[users.class_of[some]]
    wanted = 0.0
    for user, k in enumerate(users.class_of.tolist()):
        window, budget = users.classes[k].window, to_units(users.classes[k].epsilon)
        sums = [spent[max(0, t - window + 1) : t + 1, user].sum() for t in range(30)]
        wanted = max(wanted, max(sums) / budget)
    assert charges.fullest == pytest.approx(wanted, rel=1e-12)


def test_spans_meet_whole_windows_and_forget_who_was_not_asked():
    spans = Spans(np.array([3, 5, 8], np.int32), 2, 5, np.random.default_rng(1))
    seen = []
    for slot in range(40):
        spans.open(slot, np.array([[0, 0, 0], [1, 1, 1]]))
        seen.append(spans.values.copy())
        rows, here = spans.asked(np.array([1, 3, 5], np.int32))
        assert (spans.values[here] >= 0).all()
        assert (rows == here + 1).all()
        spans.note(here, np.where(spans.values[here] == 0, 1.0, -1.0), 0.5)
        spans.close()
    lengths = [len(run) for row in np.array(seen).T for run in _runs(row)]
    assert set(lengths[1:-1]) == {2}
    found = spans.guesses(100)
    assert 14 <= found.scores.size <= 16  # 8 of each of the two who are asked, but for the ends
    assert (found.losses == 1.0).all()
    assert (found.scores == np.where(found.there, 2.0, -2.0)).all()
    assert spans.guesses(4).scores.size == 4


def _runs(row):
    """Stretches of a row that are in a span."""
    return [part for part in "".join(".x"[int(v >= 0)] for v in row).split(".") if part]


@pytest.mark.usefixtures("small")
def test_half_of_the_runs_make_reports_up_that_leap(monkeypatch):
    """So publications, skipped slots and prices of all kinds are met."""
    made = []
    right = devices.DeviceRun.__init__

    def noted(self, mechanism, users, key, made_up):
        made.append(made_up)
        right(self, mechanism, users, key, made_up)

    monkeypatch.setattr(devices.DeviceRun, "__init__", noted)
    found = audited_devices([Requirement(3, 3.0)], mechanism="lbd", extent=BRIEF)
    assert [one is None for one in made] == [True, False, True, False]
    assert found.overspent > 0.8


@pytest.mark.usefixtures("small")
def test_perturbation_is_the_packages(monkeypatch):
    """What is audited is what devices run, not a model of it."""
    monkeypatch.setattr(oracles, "_randomised_response", lambda oracle, values, words: values)
    found = audited_devices([Requirement(3, 1.0)], bins=1, extent=BRIEF)
    assert found.worst.times > 5
