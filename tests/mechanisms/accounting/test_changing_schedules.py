"""Budget schedules over requirements that change: golden cases, and the relation to fixed ones."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import (
    DYNAMIC_SCHEDULES,
    ConfigurationError,
    DynamicRequirement,
    Requirement,
    schedule,
)
from streamveil.mechanisms.accounting.schedule import Offer
from streamveil.mechanisms.core.budgets import asked_units, to_epsilon

GOLDEN = Path(__file__).parents[2] / "golden"
CASES = json.loads((GOLDEN / "dynamic_dpbd_dpba.json").read_text())["cases"]
EXAMPLES = json.loads((GOLDEN / "examples.json").read_text())
PROPERTY = settings(max_examples=60)
NAMES = pytest.mark.parametrize("name", list(DYNAMIC_SCHEDULES))


def drive(run, requirements, decisions):
    """Statuses, offers and spending slot by slot."""
    found = {"status": [], "eps1": [], "eps2_candidate": [], "eps2_spent": [], "infeasible": []}
    for asked, wanted in zip(requirements, decisions, strict=True):
        offer = run.offer(asked)
        publishes = bool(wanted) and offer.status_if_asked == "open"
        shown = "null" if offer.status_if_asked == "nullified" else "skip"
        found["status"].append("pub" if publishes else shown)
        found["eps1"].append(offer.dissimilarity.tolist())
        found["eps2_candidate"].append(offer.publication.tolist())
        found["eps2_spent"].append((offer.publication * publishes).tolist())
        found["infeasible"].append(offer.infeasible.tolist())
        run.commit(publishes)
    return found


# Every reference case, slot by slot.
@NAMES
@pytest.mark.parametrize("number", range(len(CASES)))
def test_golden_cases(name, number):
    case = CASES[number]
    expected = case["spec"][name.upper()]
    found = drive(schedule(name, 7), case["req_wB_EB_wF_EF"], case["decisions"])
    assert found["status"] == expected["status"]
    assert found["infeasible"] == expected["infeasible"]
    for ours, theirs in (
        ("eps1", "eps1_spent"),
        ("eps2_candidate", "eps2_candidate"),
        ("eps2_spent", "eps2_spent"),
    ):
        np.testing.assert_allclose(found[ours], expected[theirs], rtol=0, atol=1e-10)


@pytest.mark.parametrize("number", [6, 7])
def test_corrected_examples_of_the_paper(number):
    example = EXAMPLES[f"example{number}"]
    run = schedule(example["mechanism"].lower())
    found = drive(run, example["req_wB_EB_wF_EF"], example["decisions"])
    assert found["status"] == example["status"]
    for name in ("eps1", "eps2_candidate", "eps2_spent"):
        np.testing.assert_allclose(found[name], example[name], rtol=0, atol=1e-10)


# As printed, each half of a budget looking back is kept by itself: when one is broken already, both
# together may exceed a budget that could be kept. What the mechanisms spend never does.
@NAMES
def test_halves_that_together_break_what_could_be_kept(name):
    broken = 0
    for case in CASES:
        run, spent = schedule(name), []
        for t, (asked, wanted) in enumerate(
            zip(case["req_wB_EB_wF_EF"], case["decisions"], strict=True)
        ):
            offer = run.offer(asked)
            publishes = bool(wanted) and offer.status_if_asked == "open"
            now = offer.dissimilarity + publishes * offer.publication
            back, cap = (np.array(asked)[:, i] for i in (0, 1))
            past = np.array(
                [sum(s[i] for s in spent[max(0, t - int(w) + 1) : t]) for i, w in enumerate(back)]
            )
            over = (past + now > cap + 1e-9) & (now > 0)
            assert (offer.infeasible | ~over).all()  # only where it is flagged
            broken += int(over.sum())
            spent.append(now)
            run.commit(publishes)
    assert broken > 50


def test_an_offer_within_its_limit():
    limit = np.array([9, 4, 2, 0])
    offer = Offer(np.array([3, 3, 3, 0]), np.array([5, 5, 5, 0]), False, limit, limit < 3)
    kept = offer.within_limit()
    assert kept.dissimilarity.tolist() == [3, 3, 2, 0]
    assert kept.publication.tolist() == [5, 1, 0, 0]
    assert Offer(limit, limit, False).within_limit().publication is limit


REQUIREMENTS = st.lists(
    st.builds(Requirement, st.integers(1, 12), st.floats(0.001, 10)), min_size=1, max_size=4
)
DECISIONS = st.lists(st.booleans(), min_size=40, max_size=40)


# (w, E) is (w, E, w, E): under requirements that never change DPBD is PBD, unit by unit.
@PROPERTY
@given(requirements=REQUIREMENTS, decisions=DECISIONS)
def test_constant_requirements_make_dpbd_pbd(requirements, decisions):
    fixed, dynamic = schedule("pbd", requirements), schedule("dpbd", requirements)
    for published in decisions:
        one, other = fixed.offer(), dynamic.offer()
        assert one.dissimilarity.tolist() == other.dissimilarity.tolist()
        assert one.publication.tolist() == other.publication.tolist()
        assert not other.infeasible.any()
        fixed.commit(published)
        dynamic.commit(published)


# DPBA is not PBA then: what a window saved before it opened does not count for it.
def test_constant_requirements_do_not_make_dpba_pba():
    decisions = [False] * 4 + [True] + [False] * 4
    offers = []
    for name in ("pba", "dpba"):
        run, seen = schedule(name, [(4, 2.0)]), []
        for published in decisions:
            offer = run.offer()
            seen.append((offer.status_if_asked, offer.publication[0]))
            run.commit(published and offer.status_if_asked == "open")
        offers.append(seen)
    pba, dpba = offers
    assert pba[:5] == dpba[:5]
    assert pba[5:] != dpba[5:]
    assert {status for status, _ in dpba[5:]} >= {"open"}


@NAMES
def test_a_window_may_come_that_is_longer_than_all_before(name):
    known, found = DYNAMIC_SCHEDULES[name].budgets(9), schedule(name)
    state = known.start(1)
    for t, window in enumerate([2, 3, 2, 4, 9, 2]):
        asked = [[window, 1.0, window, 1.0]]
        expected, offer = known.offer(state, asked_units(asked)), found.offer(asked)
        assert offer.publication.tolist() == to_epsilon(expected.publication).tolist()
        published = t % 2 == 0 and not expected.nullified
        state = known.commit(state, expected, published)
        found.commit(published)
    run = schedule(name)
    for _ in range(9):
        run.offer([[3, 1.0, 3, 1.0]])
        run.commit(False)
    with pytest.raises(ConfigurationError, match="window of 50 slots is longer than all before"):
        run.offer([[50, 1.0, 50, 1.0]])


@NAMES
def test_what_is_offered_and_committed_must_fit(name):
    run = schedule(name, 2)
    with pytest.raises(ValueError, match="requirements are missing"):
        run.offer()
    asked = [[2, 1.0, 2, 1.0], [3, 1.0, 3, 2.0]]
    first = run.offer(asked)
    assert run.offer(asked).publication.tolist() == first.publication.tolist()
    with pytest.raises(ValueError, match="begun with other requirements"):
        run.offer([[2, 1.0, 2, 1.0], [3, 1.0, 3, 3.0]])
    run.commit(True)
    with pytest.raises(ValueError, match=r"shape \(2,\); give \(n, 4\)"):
        run.offer([1.0, 2.0])
    with pytest.raises(ValueError, match="1 requirements for 2 users"):
        run.offer(asked[:1])
    usual = schedule(name, [(4, 1.0), DynamicRequirement(1, 2.0, 3, 4.0), (1, 9.0, 2, 2.0)])
    assert usual.offer().publication.shape == (3,)
    usual.commit(False)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([0, 1.0, 2, 1.0], "looking backward: window 0"),
        ([1, 1.0, 2.5, 1.0], "looking forward: window 2.5"),
        ([1, -1.0, 2, 1.0], "looking backward: epsilon -1.0"),
        ([1, 1.0, 2, float("nan")], "looking forward: epsilon nan"),
        ([1, 1.0, 2, 0.0], "looking forward: epsilon 0.0"),
    ],
)
def test_requirements_out_of_range(row, message):
    with pytest.raises(ConfigurationError, match=message):
        asked_units([[1, 1.0, 1, 1.0], row])
    with pytest.raises(ConfigurationError, match=message):
        DynamicRequirement(*row)


def test_requirements_in_units():
    units = asked_units([[2, 0.3, 3, 1.0], [0, 0, 0, 0]])
    assert units.tolist() == [[2, int(0.3 * 2**40), 3, 2**40], [0] * 4]
    assert to_epsilon(units[0, 3]) == 1.0
    assert DynamicRequirement.constant(Requirement(4, 2.0)) == DynamicRequirement(4, 2.0, 4, 2.0)
