"""One client's device against servers that lie, and an audit of what its reports tell."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import BudgetExceeded, ConfigurationError, Requirement
from streamveil.mechanisms.local.client import device as device_module
from streamveil.mechanisms.local.client.device import AssignmentRefused, Device
from streamveil.mechanisms.local.messages import (
    Assignment,
    Report,
    decode_assignment,
    decode_report,
    encode_assignment,
    encode_report,
    read_answer,
)
from streamveil.mechanisms.local.oracles import Oracle, supports
from streamveil.mechanisms.local.protocol import GRR, OUE
from tests.mechanisms.local.recount import Recount
from tests.mechanisms.test_audit import audit

KEY = bytes(range(32))
UNIT = 2**40
SINGLE = 2.0**-40
ASKED = Assignment("rides", 7, 1, b"token of round 1", UNIT, GRR, 5)


def device(window=3, epsilon=1.0, **options) -> Device:
    return Device(KEY, Requirement(window, epsilon), 5, "rides", **options)


def asked(**changes) -> bytes:
    return encode_assignment(replace(ASKED, **changes))


# ---- reports --------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "size"), [(GRR, 1), (OUE, 5)])
def test_a_report_answers_its_assignment(kind, size):
    report = decode_report(device(epsilon=40.0).report(asked(oracle=kind, price=40 * UNIT), 7, 3))
    assert (report.token, report.slot, report.round) == (ASKED.token, 7, 1)
    counted = supports(kind, 5, read_answer(kind, 5, report.answer))
    assert counted.shape == (5,)
    if kind == GRR:
        assert counted.tolist() == [0, 0, 0, 1, 0]  # at 40 epsilon a lie is a wonder
    else:
        assert not counted[[0, 1, 2, 4]].any()


# The same assignment gets the same report, whatever the value is by then, and costs nothing more;
# also after a restart.
def test_asking_again_costs_nothing():
    one = device()
    report = one.report(asked(), 7, 3)
    assert one.remaining(7) == 0
    again = Device.decode(one.encode(), KEY)
    for value in range(5):
        assert one.report(asked(), 7, value) == report
        assert again.report(asked(), 7, value) == report
    assert again.encode() == one.encode()
    assert again.remaining(9) == 0
    assert again.remaining(10) == UNIT


# The noise is that of the assignment and the value: a device that crashed before it wrote its state
# says the same again.
def test_noise_is_keyed():
    def reports(key=KEY, value=3, slot=7, kind=OUE, **changes):
        one = Device(key, Requirement(1, 1.0), 500, "rides")
        data = asked(symbols=500, slot=slot, oracle=kind, **changes)
        return decode_report(one.report(data, slot, value)).answer

    assert reports() == reports()
    others = [{"key": bytes(32)}, {"value": 4}, {"slot": 8}, {"token": b"x"}, {"price": UNIT - 1}]
    assert all(reports() != reports(**other) for other in others)


# ---- lies -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        ({"stream": "other"}, "is for stream 'other', this device reports to 'rides'"),
        ({"slot": 8}, "slot 8 is not for slot 7, of which the value is by the device's own clock"),
        ({"slot": 6}, "slot 6 is not for slot 7, of which"),
        ({"round": 3}, "round 3 of slot 7 has a round that is neither 1 nor 2"),
        ({"round": 0}, "round 0 of slot 7 has a round that is neither 1 nor 2"),
        ({"oracle": "plain"}, "names the oracle 'plain', this device has grr and oue"),
        ({"symbols": 2}, "has 2 symbols, this device reports one of 5"),
        ({"symbols": 6}, "has 6 symbols"),
        ({"price": 0}, "pays 0 units: a report costs 1 or more"),
        ({"price": -UNIT}, f"pays -{UNIT} units"),
    ],
)
def test_lies_are_refused_and_cost_nothing(lie, message):
    one = device()
    before = one.encode()
    with pytest.raises(AssignmentRefused, match=message):
        one.report(asked(**lie), 7, 0)
    assert one.encode() == before


def test_a_price_too_high():
    one = device()
    with pytest.raises(
        BudgetExceeded,
        match=r"slot 7 by a device with Requirement\(window=3, epsilon=1.0\): requested 1.25 "
        "epsilon, remaining 1 in their window, difference 0.25",
    ):
        one.report(asked(price=UNIT * 5 // 4), 7, 0)
    assert one.remaining(7) == UNIT


# A round is answered once, a token serves one round, rounds and slots do not go back, whatever else
# is asked.
def test_rounds_are_answered_once_and_in_order():
    one = device(epsilon=9.0)
    first = one.report(asked(), 7, 0)
    for lie in ({"price": UNIT + 1}, {"token": b"new"}, {"oracle": OUE}):
        with pytest.raises(AssignmentRefused, match="for that round or a later one, which was"):
            one.report(asked(**lie), 7, 0)
    with pytest.raises(AssignmentRefused, match="has the token of another round"):
        one.report(asked(round=2), 7, 0)
    second = one.report(asked(round=2, token=b"2"), 7, 0)
    assert one.report(asked(), 7, 1) == first
    assert one.report(asked(round=2, token=b"2"), 7, 1) == second
    one.report(asked(slot=8, round=2, token=b"3"), 8, 0)
    with pytest.raises(AssignmentRefused, match="for that round or a later one"):
        one.report(asked(slot=8, round=1, token=b"4"), 8, 0)
    with pytest.raises(AssignmentRefused, match="slot 7 is not for slot 8, of which"):
        one.report(asked(), 8, 0)  # an old assignment
    with pytest.raises(AssignmentRefused, match="goes back: the device was in slot 8 already"):
        one.report(asked(), 7, 0)
    assert one.remaining(8) == 6 * UNIT


def test_values_that_are_no_symbols():
    one = device()
    with pytest.raises(ValueError, match="value 5 is none of the 5 symbols from 0 to 4"):
        one.report(asked(), 7, 5)
    assert one.remaining(7) == UNIT


requirements = st.builds(
    Requirement, st.integers(1, 5), st.integers(1, 6).map(lambda units: units * SINGLE)
)
events = st.lists(
    st.one_of(
        *[st.tuples(st.just("ask"), st.integers(0, 2), st.integers(1, 4))] * 3,
        st.tuples(st.just("change"), st.integers(1, 3), requirements),
        st.tuples(st.just("restart")),
    ),
    min_size=5,
    max_size=30,
)


# Whatever a server asks and a user changes, and wherever the device restarts, it refuses exactly
# what a naive recount finds too much.
@settings(max_examples=200)
@given(requirements, events)
def test_a_device_refuses_exactly_what_overspends(requirement, events):
    one, naive = Device(KEY, requirement, 5, longest_window=5), Recount(requirement)
    slot, round_ = -3, 0
    for kind, *event in events:
        if kind == "restart":
            one = Device.decode(one.encode(), KEY)
            continue
        gap, what = event
        slot, round_ = slot + gap, 0 if gap else round_
        if kind == "change":
            one.change(slot, what)
            naive.change(slot, what)
        elif round_ < 2:
            query = asked(stream="", slot=slot, round=round_ + 1, price=what, token=b"%d" % round_)
            if naive.allows(slot, what):
                one.report(query, slot, 0)
                naive.spend(slot, what)
                round_ += 1
            else:
                with pytest.raises(BudgetExceeded):
                    one.report(query, slot, 0)


def test_changes_that_cannot_be():
    with pytest.raises(ConfigurationError, match="longer window than the 3 slots that this"):
        device().change(1, Requirement(4, 1.0))
    with pytest.raises(ConfigurationError, match="longer window than the 2 slots that this"):
        device(longest_window=2)
    one = device()
    one.report(asked(), 7, 0)
    for slot in (6, 7):
        with pytest.raises(ValueError, match=f"from slot {slot} on, but slot 7 has begun"):
            one.change(slot, Requirement(1, 1.0))


def test_refusals_tell_what_was_promised():
    one = device()
    one.change(7, Requirement(1, 9.0))
    with pytest.raises(BudgetExceeded, match="before which it was 1 over 3 slots: req"):
        one.report(asked(price=2 * UNIT), 7, 0)
    assert [one.remaining(slot) for slot in (7, 8, 9)] == [UNIT, UNIT, 9 * UNIT]


# A requirement promises nothing about slots before it was in force.
def test_a_promise_begins_with_its_requirement():
    one = Device(KEY, Requirement(1, 6.0), 5, "rides", longest_window=5)
    one.report(asked(slot=0, price=6 * UNIT), 0, 0)
    one.change(1, Requirement(5, 1.0))
    one.change(2, Requirement(1, 6.0))
    assert one.remaining(2) == UNIT
    one.report(asked(slot=2), 2, 0)
    assert [one.remaining(slot) for slot in (3, 5, 6)] == [0, 0, 6 * UNIT]


# ---- the wire -------------------------------------------------------------------------------


# The formats that clients in the field speak.
def test_the_bytes_of_messages():
    assert encode_assignment(Assignment("s", 5, 2, b"to", 3, "oue", 6)).hex() == (
        "01" "0273" "0a" "04" "04746f" "06" "066f7565" "0c"
    )  # fmt: skip
    assert encode_report(Report(b"to", 5, 2, 4)).hex() == "0104746f0a040008"
    assert encode_report(Report(b"to", 5, 2, b"\x84")).hex() == "0104746f0a04020284"


@settings(max_examples=100)
@given(st.binary(max_size=40))
def test_anything_else_is_no_message(data):
    for decode, encode in (
        (decode_assignment, encode_assignment),
        (decode_report, encode_report),
    ):
        for message in (data, b"\x01" + data):
            try:
                assert encode(decode(message)) == message
            except ValueError as error:
                assert f"a message of {len(message)} bytes is no" in str(error)  # noqa: PT017


def test_messages_cut_short_or_too_long():
    for decode, message in (
        (decode_assignment, asked()),
        (decode_report, encode_report(Report(b"to", 5, 2, b"\x84"))),
    ):
        for wrong in (message[:-1], message + b"\0", b"\x02" + message[1:], b""):
            with pytest.raises(ValueError, match="bytes is no"):
                decode(wrong)


@pytest.mark.parametrize(
    ("kind", "answer"),
    [(GRR, 5), (GRR, -1), (GRR, b"\x80"), (OUE, 0), (OUE, b""), (OUE, b"\x84"), (OUE, b"\x80\0")],
)
def test_forged_answers_are_refused(kind, answer):
    with pytest.raises(ValueError, match=f"is not a report by {kind} of 5 symbols"):
        read_answer(kind, 5, answer)


def test_answers_are_read():
    assert read_answer(GRR, 5, 4).tolist() == [4]
    assert supports(OUE, 5, read_answer(OUE, 5, b"\x88")).tolist() == [1, 0, 0, 0, 1]
    assert supports(OUE, 8, read_answer(OUE, 8, b"\x01")).tolist() == [0] * 7 + [1]


# ---- an audit -------------------------------------------------------------------------------

RUNS = 800
CLAIM = Requirement(3, 1.5)


def world(prices, value, changed=None) -> np.ndarray:
    """What devices report in each slot of a window, shape (RUNS, slots); -1 for a refusal.

    Two symbols; the requirement changes in the second slot, if it does.
    """
    seen = np.full((RUNS, len(prices)), -1)
    for run in range(RUNS):
        one = Device(b"%16d%16d" % (run, value), CLAIM, 2)
        for slot, price in enumerate(prices):
            if slot == 1 and changed:
                one.change(slot, changed)
            query = Assignment("", slot, 1, b"", int(price * UNIT), GRR, 2)
            try:
                report = one.report(encode_assignment(query), slot, value)
            except BudgetExceeded:
                continue
            seen[run, slot] = decode_report(report).answer
    return seen


def audited(prices, changed=None) -> float:
    return audit(*[world(prices, value, changed) for value in (0, 1)])


def spendthrift(patch) -> None:
    """Break the filter."""
    patch.setattr(Device, "_charge", lambda self, slot, price: None)


def forgetful(patch) -> None:
    """Break the promises of a former requirement."""

    def change(self, slot, requirement):
        self.requirement = requirement

    patch.setattr(Device, "change", change)


def indiscreet(patch) -> None:
    """Break the oracle."""
    honest = Oracle.of
    patch.setattr(
        device_module.Oracle, "of", lambda kind, units, symbols: honest(kind, 3 * units, symbols)
    )


# All reports of a window together tell no more than the claim, and an honest device is not silent;
# broken ones are convicted by the same audit.
@pytest.mark.parametrize(
    ("prices", "changed", "breakage"),
    [
        ((1.5, 1.5, 1.5), None, spendthrift),
        ((1.5, 3, 3), Requirement(1, 4.5), forgetful),
        ((1, 0.25, 0.25), None, indiscreet),
    ],
)
@pytest.mark.slow
def test_the_audit_grants_a_device_its_claim_and_convicts_broken_ones(
    monkeypatch, prices, changed, breakage
):
    proven = audited(prices, changed)
    print(f"audit of a whole device: at least {proven:.2f} of {CLAIM.epsilon}")
    assert 0.2 * CLAIM.epsilon < proven <= CLAIM.epsilon
    breakage(monkeypatch)
    proven = audited(prices, changed)
    print(f"audit of a {breakage.__name__} device: at least {proven:.2f} of {CLAIM.epsilon}")
    assert proven > CLAIM.epsilon
