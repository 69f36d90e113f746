"""Devices that tell one event of a window only: what they could spend, by enumeration.

A device is asked in every slot and answers each time, so its silence tells nothing; that it has no
event is a vector without a 1. Everything is exact: prices are powers of two, ratios are fractions.
See `mechanisms/local/accounting/one_event.py`; what devices do is held against the rule below.
"""

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamveil.mechanisms import BudgetExceeded, ConfigurationError, Requirement, simulate_local
from streamveil.mechanisms.core.budgets import to_units
from streamveil.mechanisms.local.accounting.one_event import OneEvent, telling_one_event
from streamveil.mechanisms.local.algorithms.rotation import Rotation
from streamveil.mechanisms.local.client.device import AssignmentRefused, Device
from streamveil.mechanisms.local.client.population import Devices
from streamveil.mechanisms.local.messages import Assignment, decode_report, encode_assignment
from streamveil.mechanisms.local.oracles import Oracle
from streamveil.mechanisms.local.protocol import GRR, OUE, OUE0, Ask
from streamveil.mechanisms.local.server.reported_share import ReportedShare, shares
from streamveil.mechanisms.simulation import run_slot
from tests.mechanisms.local.populations import SERVER, population

KEY = bytes(range(32))
UNIT = 2**40
NONE = 0
GAIN = 2  # exp(price) of a report


def first_of_blocks(events, length, most, phase):
    """What is reported: in each block the first few events."""
    reported, used = [], 0
    for slot, event in enumerate(events):
        if (slot + phase) % length == 0:
            used = 0
        reported.append(event if event and used < most else NONE)
        used += event != NONE
    return reported


def first_of_window(events, window, most):
    """Reports of a device with a sliding window of its reports: not private."""
    reported = []
    for slot, event in enumerate(events):
        before = sum(one != NONE for one in reported[max(slot - window + 1, 0) :])
        reported.append(event if event and before < most else NONE)
    return reported


def unary(bins, true, answer):
    """Probability of an answer, a bit for each bin; without an event all bits are like others."""
    low = Fraction(1, GAIN + 1)
    chance = Fraction(1)
    for bin_, bit in enumerate(answer, start=1):
        one = Fraction(1, 2) if bin_ == true else low
        chance *= one if bit else 1 - one
    return chance


def randomised(bins, true, answer):
    """The same of randomised response, where no event is a symbol like others."""
    return Fraction(GAIN if true == answer else 1, GAIN + bins)


@cache
def worst(oracle, bins, true, other):
    """The largest ratio of an answer's probabilities."""
    answers = range(bins + 1)
    if oracle is unary:
        answers = itertools.product((0, 1), repeat=bins)
    return max(oracle(bins, true, one) / oracle(bins, other, one) for one in answers)


def largest_ratio(rule, oracle, bins, slots, window, begin):
    """Of all that a server receives, over all pairs of inputs that differ in one window.

    Reports are drawn independently, so the largest ratio is a product of those of each slot.
    """
    largest = Fraction(1)
    for events in itertools.product(range(bins + 1), repeat=slots):
        reported = rule(events)
        for others in itertools.product(range(bins + 1), repeat=window):
            changed = (*events[:begin], *others, *events[begin + window :])
            ratio = Fraction(1)
            for one, other in zip(reported, rule(changed), strict=True):
                ratio *= worst(oracle, bins, one, other)
            largest = max(largest, ratio)
    return largest


def in_blocks(oracle, window, bins, blocks, most):
    """The largest over all phases of a calendar."""
    length = -(-window // blocks)
    return max(
        largest_ratio(
            lambda events, phase=phase: first_of_blocks(events, length, most, phase),
            *(oracle, bins, window + 2 * (length - 1), window, length - 1),
        )
        for phase in range(length)
    )


@pytest.mark.parametrize(
    ("window", "bins", "blocks", "most", "tight"),
    [
        *((2, 1, 1, 1, False), (2, 2, 1, 1, True), (3, 1, 1, 1, True)),
        *((3, 1, 1, 2, False), (3, 1, 2, 1, False)),
        pytest.param(4, 2, 2, 1, True, marks=pytest.mark.slow),
    ],
)
def test_a_window_costs_what_its_blocks_tell(window, bins, blocks, most, tight):
    found = in_blocks(unary, window, bins, blocks, most)
    bound = Fraction(GAIN) ** ((blocks + 1) * most)
    assert (found == bound) if tight else (1 < found < bound)


def test_to_tell_of_no_event_by_a_symbol_costs_twice_as_much():
    assert in_blocks(randomised, 3, 1, 1, 1) == Fraction(GAIN) ** 4


def test_a_counter_that_slides_is_not_private():
    found = [
        largest_ratio(
            lambda events: first_of_window(events, 3, 1), unary, 1, slots, window=3, begin=0
        )
        for slots in (4, 7, 10)
    ]
    assert found == sorted(set(found))
    assert found[-1] > Fraction(GAIN) ** 2  # what a block would cost, whatever comes after it


def test_one_report_in_a_window_costs_its_price():
    """Rotation: a turn in every window, event or not."""
    found = largest_ratio(
        lambda events: [event if slot % 3 == 1 else NONE for slot, event in enumerate(events)],
        *(randomised, 2, 6, 3, 1),
    )
    assert found == GAIN


# ---- what devices tell --------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [2.0**-40, 0.01, 1.0, 2.5, 40.0])
def test_two_reports_that_differ_cost_no_more_than_their_prices(epsilon):
    low = Fraction(Oracle.of(OUE0, int(to_units(epsilon)), 4).threshold, 2**64)
    rounded = 1 + Fraction(2, 10**15)  # of math.exp
    assert (1 - low) / low <= Fraction(math.exp(epsilon)) * rounded


def test_no_event_has_no_bit():
    users = population([(3, 80.0)] * 500, symbols=3)
    devices = Devices(telling_one_event(users, 3), KEY)
    reports = devices.report(everybody(0, 500, price=40 * UNIT), np.full(500, 2))
    assert reports.reports.tolist() == [500]
    assert reports.supports.tolist() == [[0, 0, 0]]
    oracle = Oracle.of(OUE0, 40 * UNIT, 3)
    assert oracle.frequencies(np.array([125, 0, 0]), 500) == pytest.approx([0.5, 0, 0.5])


def everybody(slot, users, price=UNIT // 2, kind=OUE0, round_=1):
    return Ask(slot, round_, np.arange(users, dtype=np.int32), np.array([price]), (kind,))


stories = st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 2)), max_size=40)


def tell(device, slot, value):
    (reported,) = device.reported(slot, np.array([0]), np.array([value]))
    return int(reported)


@given(window=st.integers(1, 6), story=stories, start=st.integers(0, 30))
def test_neighbours_tell_at_most_two_events_that_differ(window, story, start):
    """Whenever they are asked."""
    users = telling_one_event(population([(window, 1.0)], symbols=3), 2)
    one, another, pairs = OneEvent(users, KEY), OneEvent(users, KEY), []
    for slot, (asked, value, other) in enumerate(story):
        if asked:
            changed = other if start <= slot < start + window else value
            pairs.append((tell(one, slot, value), tell(another, slot, changed)))
    differ = [(one, other) for one, other in pairs if one != other]
    assert sum(one != 2 for one, _ in differ) <= 2
    assert sum(other != 2 for _, other in differ) <= 2


def test_many_devices_follow_the_rule():
    slots, window = 60, 7
    users = telling_one_event(population([(window, 1.0)] * 30, symbols=2), window)
    devices, everyone = OneEvent(users, KEY), np.arange(30)
    values = np.random.default_rng(1).integers(0, 2, (slots, 30))
    reported = np.array([devices.reported(slot, everyone, row) for slot, row in enumerate(values)])
    phases = set()
    for events, found in zip(1 - values.T, 1 - reported.T, strict=True):
        fits = [
            phase
            for phase in range(window)
            if first_of_blocks(events.tolist(), window, 1, phase) == found.tolist()
        ]
        assert len(fits) == 1
        phases.update(fits)
    assert len(phases) == window


def asked(slot, price=UNIT // 2, **changes):
    one = Assignment("rides", slot, 1, b"token %d" % slot, price, OUE0, 4)
    return encode_assignment(replace(one, **changes))


def test_a_device_tells_one_event_of_a_block_also_after_a_restart():
    device = Device(KEY, Requirement(5, 80.0), 4, "rides", one_event=True)
    bits = []
    for slot in range(200):
        report = decode_report(device.report(asked(slot, 40 * UNIT), slot, slot % 3))
        device = Device.decode(device.encode(), KEY)
        bits.append(report.answer != b"\0")
    events = np.flatnonzero(bits)
    assert (
        10 < len(events) <= 41
    )  # an event is reported in each of 40 blocks, and shown in half of them
    assert (np.diff(events) >= 5).all()  # the first slot of a block has an event, as all have
    assert len(set(events % 5)) == 1


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        (asked(3, oracle=GRR), "names the oracle 'grr', this device has oue0"),
        (asked(3, oracle=OUE), "names the oracle 'oue', this device has oue0"),
        (asked(3, round=2), "is a second one for the slot"),
    ],
)
def test_a_device_that_tells_one_event_refuses_what_would_tell_more(assignment, words):
    device = Device(KEY, Requirement(5, 1.0), 4, "rides", one_event=True)
    with pytest.raises(AssignmentRefused, match=words):
        device.report(assignment, 3, 0)
    with pytest.raises(BudgetExceeded):
        device.report(asked(3, UNIT // 2 + 1), 3, 0)
    device.report(asked(3), 3, 0)
    assert device.remaining(3) == 0
    assert device.remaining(4) == UNIT // 2
    with pytest.raises(ConfigurationError, match="keeps its requirement"):
        device.change(9, Requirement(2, 1.0))


def test_any_other_device_refuses_to_leave_out_that_there_is_no_event():
    with pytest.raises(AssignmentRefused, match="names the oracle 'oue0'"):
        Device(KEY, Requirement(5, 1.0), 4, "rides").report(asked(3), 3, 0)


def test_many_devices_refuse_what_would_tell_more():
    users = telling_one_event(population([(4, 1.0)] * 3, symbols=2), 4)
    devices, values = Devices(users, KEY), np.zeros(3, np.int64)
    for ask in (everybody(0, 3, kind=OUE), everybody(0, 3, round_=2)):
        with pytest.raises(ValueError, match="answer once per slot, by oue0"):
            devices.report(ask, values)
    with pytest.raises(BudgetExceeded):
        devices.report(everybody(0, 3, UNIT // 2 + 1), values)
    devices.report(everybody(0, 3), values)


# ---- what the server makes of it ----------------------------------------------------------


@pytest.mark.parametrize("turns", [1, -1])
def test_too_few_turns_are_refused(turns):
    with pytest.raises(ConfigurationError, match=f"turns is {turns}: give 2 or more"):
        Rotation("rotation", population([(4, 1.0)] * 3), turns=turns)


def test_turns_are_for_users_who_stay():
    users = replace(population([(4, 1.0)] * 3), begun=2)
    with pytest.raises(ConfigurationError, match="never change"):
        Rotation("rotation", users, turns=2)
    with pytest.raises(ConfigurationError, match="does not follow requirements"):
        simulate_local(
            *("rotation", [[0, 1], [0, 0]], 2, [(4, 1.0), None], KEY),
            changes={1: {1: (4, 1.0)}},
            turns=2,
        )


def test_shares_are_those_of_users_who_come_at_random():
    turns, events, users = 100, 1.5, 10_000
    random = np.random.default_rng(3)
    near = int(np.argmin(abs(np.geomspace(0.01, 30, 96) - events)))
    for row, often in enumerate((np.full(users, events), random.exponential(events, users))):
        used, reported, there = np.zeros(users, bool), [], []
        phase = random.integers(0, turns, users)
        for slot in range(2 * turns):
            used[(slot + phase) % turns == 0] = False
            event = random.random(users) < often / turns
            reported.append((event & ~used).sum())
            there.append(event.sum())
            used |= event
        for slot in (0, 40, 150):
            found = sum(reported[slot : slot + 20]) / sum(there[slot : slot + 20])
            assert found == pytest.approx(shares((slot + 10) / turns)[row, near], abs=0.04)


def test_the_share_is_learnt_and_doubted():
    known = ReportedShare(turns=20.0, block=100.0)
    guess, doubt = known.estimate(200)
    assert 0.75 < guess < 0.95
    for slot in range(400):
        known.learn(0.95 / 20, 1e-6, slot)  # 3 events of which 0.95 are reported, or many more
    share, _ = known.estimate(400)
    assert share < 0.5
    known = ReportedShare(turns=20.0, block=100.0)
    for slot in range(400):
        known.learn(0.1 / 20, 1e-8, slot)
    share, less = known.estimate(400)
    assert share == pytest.approx(0.92, abs=0.04)
    assert less < doubt


@pytest.mark.slow
def test_what_is_rare_errs_less_and_is_not_biased():
    users, slots = 20_000, 60
    random = np.random.default_rng(12)
    values = np.where(
        random.random((slots, users)) < 0.02, random.integers(0, 2, (slots, users)), 2
    )
    truth = np.stack([np.bincount(row, minlength=3) for row in values])[20:, :2] / users
    errors = {}
    for turns in (0, 10):
        done = simulate_local("rotation", values, 3, [(20, 2.0)] * users, KEY, turns=turns)
        off = done.released[20:, :2] - truth
        errors[turns] = (off**2).mean()
        assert (abs(off) <= 3 * done.stderr[20:, :2]).mean() > 0.9
    assert errors[10] < 0.7 * errors[0]


@pytest.mark.parametrize("options", [{}, {"robust": True}, {"filtered": False, "project": False}])
def test_a_state_goes_on_as_it_was(options):
    users = population([(6, 2.0)] * 200 + [(9, 1.0)] * 100, symbols=3)
    mechanism = Rotation("rotation", users, turns=3, **options)
    mechanism.revise = 2
    assert mechanism.users.promised == users.classes
    values = np.random.default_rng(2).integers(0, 3, (15, 300))
    released = []
    for again in (False, True):
        state, devices = mechanism.start(), Devices(mechanism.users, KEY)
        for slot, row in enumerate(values):
            if again:
                state = mechanism.decode(mechanism.encode(state))
                devices = Devices.decode(devices.encode(), mechanism.users, KEY)
            random = SERVER.slot(slot, b"")
            state, release, _ = run_slot(mechanism, state, slot, row, devices, random)
            assert 0 < release.diagnostics["reported_share"] <= 1
            released.append((release.frequencies.tolist(), release.stderr.tolist()))
        released.append([one.frequencies.tolist() for one in mechanism.rest(state)])
    assert released[:16] == released[16:]


def test_no_rounding_tells_of_a_share_above_1():
    """In the first slots, where all events are reported."""
    for seed in range(200):
        random, known = np.random.default_rng(seed), ReportedShare(2.0, 3.0)
        for elapsed in range(3):
            known.learn(random.random(), random.random(), elapsed)
            assert 0 < known.estimate(elapsed)[0] <= 1
