"""Budget schedules: golden cases, and no window overspent whatever is decided."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import SCHEDULES, ConfigurationError, Requirement, mechanism, schedule
from streamveil.mechanisms.protocol import population_of
from streamveil.mechanisms.wevent.pba import PBA
from streamveil.mechanisms.wevent.pbd import PBD

PROPERTY = settings(max_examples=80)
SLOTS = 60
UNIT = 2.0**-40

NAMES = pytest.mark.parametrize("name", list(SCHEDULES))
REQUIREMENTS = st.lists(
    st.builds(
        Requirement,
        st.integers(1, 12),
        st.one_of(
            st.builds(lambda exponent: 10**exponent, st.floats(-6, 1)),
            # So few units that most divisions have a remainder.
            st.builds(lambda units: math.ldexp(units, -40), st.integers(1, 100)),
        ),
    ),
    min_size=1,
    max_size=5,
)
DECISIONS = st.lists(st.booleans(), min_size=SLOTS, max_size=SLOTS)


def cap(requirement: Requirement) -> int:
    """Units in a requirement, from exact fractions."""
    return math.floor(Fraction(requirement.epsilon) * 2**40)


def units(epsilons: np.ndarray) -> list[int]:
    return [round(e * 2**40) for e in epsilons.tolist()]


def drive(run, decisions):
    """Units spent by slot and class, and the statuses; a nullified slot never publishes."""
    spent, statuses = [], []
    for wanted in decisions:
        offer = run.offer()
        publishes = wanted and offer.status_if_asked == "open"
        dissimilarity, publication = units(offer.dissimilarity), units(offer.publication)
        spent.append([d + publishes * p for d, p in zip(dissimilarity, publication, strict=True)])
        statuses.append("pub" if publishes else {"open": "skip"}.get(offer.status_if_asked, "null"))
        run.commit(publishes)
    return spent, statuses


# Every reference case, slot by slot: who may publish, and with how much. BD and BA have one entry
# there; here they say the same for every requirement given.
@NAMES
def test_golden(golden, name):
    for case in golden("fixed_bd_ba_pbd_pba")["cases"]:
        reference = case["spec"][name.upper()]
        requirements = [(user["w"], user["E"]) for user in case["users"]]
        # Every share is rounded down by less than a unit, and a publication takes up to w.
        tolerance = (1 + max(user["w"] for user in case["users"])) * UNIT
        per_slot = case["eps1_per_slot"]
        if name in ("bd", "ba"):
            per_slot = case["BD_BA_params"]["eps1_per_slot"]
        run = schedule(name, requirements)
        for slot, status in enumerate(reference["status"]):
            offer = run.offer()
            assert offer.status_if_asked == ("nullified" if status == "null" else "open")
            assert offer.dissimilarity.shape == offer.publication.shape == (len(requirements),)
            np.testing.assert_allclose(offer.dissimilarity, per_slot, rtol=0, atol=tolerance)
            candidate = reference["eps2_candidate"][slot]
            np.testing.assert_allclose(
                offer.publication,
                candidate if len(candidate) > 1 else candidate * len(requirements),
                rtol=0,
                atol=tolerance,
            )
            run.commit(status == "pub")


# The paper's example 4 (PBA), as exact fractions of E.
def test_example_4(golden):
    example = golden("examples")["example4"]
    run = schedule("pba", [(w, 1.0) for w in example["w"]])
    spent, statuses = drive(run, example["decisions"])
    assert statuses == example["status"]
    share = [2**40 // (2 * w) for w in example["w"]]
    for row, fractions in zip(spent, example["eps2_spent_as_fraction_of_E"], strict=True):
        for k, fraction in enumerate(fractions):
            exact = Fraction(fraction) * 2**40
            assert 0 <= exact - (row[k] - share[k]) < example["w"][k]


# No window of any requirement overspends, in exact integers, whatever is decided; and no slot is
# ever paid for with a negative amount.
@NAMES
@PROPERTY
@given(REQUIREMENTS, DECISIONS)
def test_no_window_overspends(name, requirements, decisions):
    spent, _ = drive(schedule(name, requirements), decisions)
    for k, requirement in enumerate(requirements):
        column = [row[k] for row in spent]
        assert min(column) >= 0
        for end in range(1, SLOTS + 1):
            window = column[max(0, end - requirement.window) : end]
            assert sum(window) <= cap(requirement)


# Asking for an offer again changes nothing.
@pytest.mark.many
@NAMES
@PROPERTY
@given(REQUIREMENTS, DECISIONS)
def test_offers_are_idempotent(name, requirements, decisions):
    asked_once, asked_thrice = schedule(name, requirements), schedule(name, requirements)
    for wanted in decisions:
        first = asked_thrice.offer()
        asked_thrice.offer()
        again = asked_thrice.offer()
        other = asked_once.offer()
        for offer in (again, other):
            assert offer.status_if_asked == first.status_if_asked
            np.testing.assert_array_equal(offer.dissimilarity, first.dissimilarity)
            np.testing.assert_array_equal(offer.publication, first.publication)
        publishes = wanted and first.status_if_asked == "open"
        asked_once.commit(publishes)
        asked_thrice.commit(publishes)


# A state that was written and read at some slot has the same future as one that never was.
@NAMES
@PROPERTY
@given(REQUIREMENTS, DECISIONS, st.integers(0, SLOTS - 1))
def test_state_bytes_keep_the_future(name, requirements, decisions, reread):
    schedule_ = SCHEDULES[name].budgets(requirements)
    kept, read = schedule_.start(), schedule_.start()
    for slot, wanted in enumerate(decisions):
        if slot == reread:
            data = schedule_.encode(read)
            read = SCHEDULES[name].budgets(requirements).decode(data)
            assert schedule_.encode(read) == data
        offers = [schedule_.offer(kept), schedule_.offer(read)]
        assert offers[0].nullified == offers[1].nullified
        np.testing.assert_array_equal(offers[0].publication, offers[1].publication)
        publishes = wanted and not offers[0].nullified
        kept = schedule_.commit(kept, offers[0], publishes)
        read = schedule_.commit(read, offers[1], publishes)


# A state of an unknown version is refused.
@NAMES
def test_unknown_version_is_refused(name):
    schedule_ = SCHEDULES[name].budgets([Requirement(3, 1.0)])
    with pytest.raises(ValueError, match="version 99"):
        schedule_.decode(b"\x63" + schedule_.encode(schedule_.start())[1:])


# A nullified slot cannot publish; said to have done so, the run refuses and stays where it was.
@pytest.mark.parametrize("name", ["ba", "pba"])
def test_nullified_slot_cannot_publish(name):
    run = schedule(name, [(4, 1.0), (2, 3.0)])
    run.commit(False)
    run.commit(True)  # absorbs two shares: the next slot is nullified
    before = run.offer()
    assert before.status_if_asked == "nullified"
    assert (before.publication == 0).all()
    assert (before.dissimilarity > 0).all()
    with pytest.raises(ValueError, match="nullified"):
        run.commit(True)
    assert run.offer().status_if_asked == "nullified"
    run.commit(False)
    assert run.offer().status_if_asked == "open"


# BD and BA are PBD and PBA in which everybody asks for the smallest budget and longest window.
@pytest.mark.parametrize(("name", "personalized"), [("bd", PBD), ("ba", PBA)])
@PROPERTY
@given(REQUIREMENTS, DECISIONS)
def test_baselines_take_the_strictest_requirement(name, personalized, requirements, decisions):
    strictest = Requirement(
        max(r.window for r in requirements), min(r.epsilon for r in requirements)
    )
    spent, statuses = drive(schedule(name, requirements), decisions)
    alone = personalized([strictest])
    state = alone.start()
    for row, status in zip(spent, statuses, strict=True):
        offer = alone.offer(state)
        assert offer.nullified == (status == "null")
        total = offer.dissimilarity[0] + (status == "pub") * offer.publication[0]
        assert row == [total] * len(requirements)
        state = alone.commit(state, offer, status == "pub")


# A budget schedule does not waste: a stream that publishes once in a long while has the whole
# publication budget, but for what is rounded down.
@NAMES
def test_rested_schedule_offers_all_it_may(name):
    run = schedule(name, [(5, 1.0)])
    for _ in range(20):
        run.commit(False)
    offered = run.offer().publication[0]
    assert offered == pytest.approx(0.5 if name in ("ba", "pba") else 0.25, abs=6 * UNIT)


def test_unknown_name_and_no_requirements():
    with pytest.raises(ConfigurationError, match=r"'pbx' is unknown.*pba, pbd, ba, bd"):
        schedule("pbx", [(1, 1.0)])
    with pytest.raises(ConfigurationError, match="at least one"):
        schedule("pba", [])
    with pytest.raises(ConfigurationError, match="neither"):
        schedule("pba", [3])


def test_options_of_a_mechanism():
    people = population_of([Requirement(3, 1.0)], [5], 2)
    with pytest.raises(ConfigurationError, match="pba has no option 'speed'; its options: none"):
        mechanism("pba:speed=2", people)
