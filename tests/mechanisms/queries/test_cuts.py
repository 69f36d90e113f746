"""How slots of queries cut base slots, and how many of them a window meets: by enumeration."""

import datetime as dt
import itertools

import numpy as np
import pytest

from streamveil.mechanisms import ConfigurationError, Slots
from streamveil.mechanisms.core.identity import encoded
from streamveil.mechanisms.core.local_days import CalendarMonths, CalendarSlots
from streamveil.mechanisms.core.records import MAX_WINDOW, MICROSECONDS, MONDAY
from streamveil.mechanisms.queries.cuts import Even, Months, cut_of, length_in, slots_of
from streamveil.mechanisms.queries.queries import Query, QuerySet

DAY = MICROSECONDS["d"]
EPOCH = dt.date(1970, 1, 1).toordinal()
CYCLE = 146_097  # days of 400 years


def most_met(numbers: np.ndarray, window: int) -> int:
    """The most slots that windows of base slots with these numbers meet."""
    return int((numbers[window - 1 :] - numbers[: len(numbers) - window + 1]).max()) + 1


# No window meets more, and some window as many.
def test_no_window_meets_more_slots_of_one_length():
    for window, slots in itertools.product(range(1, 60), range(1, 31)):
        assert most_met(np.arange(window + slots) // slots, window) == Even(slots).most_in(window)


# All windows of 400 years, after which the calendar repeats itself, and a window more.
@pytest.mark.parametrize("months", [1, 2, 3, 5, 6, 12, 18, 24, 120])
def test_no_window_meets_more_months(months):
    # Slots of months that do not divide the cycle begin with other months in the next one.
    cycles = 3 if 4800 % months else 1
    days = np.arange(-CYCLE, (cycles - 1) * CYCLE + 4000)
    numbers = Months(months).numbers(days)
    windows = [*range(1, 140), 180, 181, 182, 183, 364, 365, 366, 367, 368, 730, 731, 732, 1461]
    for window in [*windows, 1462, 1463, 3652, 3653, 3654, 3655]:
        assert most_met(numbers, window) == Months(months).most_in(window), window


@pytest.mark.parametrize("per_day", [2, 24])
def test_no_window_of_parts_of_days_meets_more_months(per_day):
    numbers = Months(1, per_day, 5).numbers(np.arange(-3 * 366 * per_day, 6 * 366 * per_day))
    for window in range(1, 130 * per_day, 1 if per_day == 2 else 7):
        assert most_met(numbers, window) == Months(1, per_day, 5).most_in(window), window


# February and a day on each side are a window of 30 days.
def test_a_short_month_lies_within_a_window():
    assert [Months(1).most_in(days) for days in (1, 2, 29, 30, 60, 61)] == [1, 2, 2, 3, 3, 4]
    assert [Months(12).most_in(days) for days in (366, 367, 731, 732)] == [2, 3, 3, 4]
    assert [Months(1, 24).most_in(hours) for hours in (673, 674)] == [2, 3]


def test_the_longest_window():
    numbers = Months(1).numbers(np.arange(CYCLE + MAX_WINDOW))
    assert most_met(numbers, MAX_WINDOW) == Months(1).most_in(MAX_WINDOW) == 34_452


def test_months_are_those_of_the_calendar():
    days = np.arange(-130_000, 200_000)
    dates = [dt.date.fromordinal(EPOCH + day) for day in days.tolist()]
    months = np.array([(one.year - 1970) * 12 + one.month - 1 for one in dates])
    for number in (1, 3, 12):
        cut = Months(number, 4, -7)
        base_slots = days * 4 - 7
        for more in (0, 3):
            assert (cut.numbers(base_slots + more) == months // number).all()
            some = slice(None, None, 400)  # few are looked up one by one
            assert (cut.numbers(base_slots[some] + more) == (months // number)[some]).all()
        slots = np.unique(months // number)[1:]
        first = np.searchsorted(months // number, slots)
        assert (cut.firsts(slots) == base_slots[first]).all()
        assert cut.longest == 4 * np.diff(first).max()


@pytest.mark.parametrize("cut", [Even(1), Even(3), Months(1), Months(3, 24, -96), Months(12, 2)])
def test_slots_begin_and_end(cut):
    base_slots = range(-2 * cut.longest, 3 * cut.longest)
    for before, base_slot in itertools.pairwise(base_slots):
        begins = cut.of(before) != cut.of(base_slot)
        assert cut.begins(base_slot) is begins
        assert cut.due(before) is begins
        slot = cut.of(base_slot)
        assert cut.first(slot) <= base_slot <= cut.last(slot) == cut.end(base_slot)
        assert cut.size(slot) == cut.last(slot) - cut.first(slot) + 1 <= cut.longest


def test_slots_end():
    assert [base for base in range(-4, 9) if Even(3).due(base)] == [-4, -1, 2, 5, 8]
    assert all(Even(1).due(base) for base in range(-3, 3))
    assert [base for base in range(-32, 60) if Months(1).due(base)] == [-32, -1, 30, 58]


# Slot by slot: the longer slot of a slot is that of its first base slot, and of its last one.
@pytest.mark.parametrize(
    ("cut", "longer", "relative"),
    [
        (Even(2), Even(6), Even(3)),
        (Even(24), Months(1, 24, -96), Months(1, 1, -4)),
        (Even(6), Months(3, 24, -96), Months(3, 4, -16)),
        (Months(1, 24, 48), Months(12, 24, 48), Even(12)),
    ],
)
def test_longer_slots_are_made_of_whole_ones(cut, longer, relative):
    assert cut.longer(longer) == relative
    for slot in range(-50, 100):
        assert relative.of(slot) == longer.of(cut.first(slot)) == longer.of(cut.last(slot))


@pytest.mark.parametrize(
    ("cut", "longer"),
    [
        *((Even(2), Even(3)), (Even(2), Even(2)), (Even(7), Months(1)), (Even(24), Months(1))),
        *((Months(1), Even(30)), (Months(2), Months(3)), (Months(1), Months(1))),
        *((Even(24), Months(1, 24, 5)), (Months(1, 24), Months(2, 24, 24))),
    ],
)
def test_slots_that_are_divided_are_not_made_of_whole_ones(cut, longer):
    assert cut.longer(longer) is None


@pytest.mark.parametrize(
    ("base", "placed"),
    [
        (Slots.of("1d"), Months(1)),
        (Slots.of("15m"), Months(1, 96)),
        (Slots(DAY, MONDAY), Months(1, 1, -4)),
        (Slots(3_600_000_000, 5 * 3_600_000_000), Months(1, 24, -5)),
        (CalendarSlots(DAY, -2 * DAY, "Asia/Tokyo"), Months(1, 1, 2)),
    ],
)
def test_a_query_set_fits_months_to_its_base_slots(base, placed):
    (query,) = QuerySet(base, (Query("q", Months(1)),)).queries
    assert query.slots == placed
    months = slots_of(query.slots, base)
    for slot in (-3, 0, 649, 650):
        assert base.start(query.cut.first(slot)) == months.start(slot)


@pytest.mark.parametrize(
    ("base", "words"),
    [
        (Slots.of("1w"), "base slots of 1w are not parts of a day: choose base slots of 1d"),
        (Slots.of("7h"), "base slots of 7h are not parts of a day"),
        (CalendarSlots(2 * DAY, 0, "Asia/Tokyo"), "base slots of 2d are not parts of a day"),
        (
            Slots.of("1d", "2024-01-01T05:00"),
            "slots of 1mo begin at midnight, which is within a base slot: those of 1d are counted "
            "from 2024-01-01T05:00:00Z on",
        ),
    ],
)
def test_base_slots_that_divide_no_month_are_refused(base, words):
    with pytest.raises(ConfigurationError, match="query 'q': slots of 1mo") as refused:
        QuerySet(base, (Query("q", Months(1)),))
    assert words in str(refused.value)


# Base slots of months: a query's number of months is one of base slots.
def test_base_slots_of_months_make_longer_months():
    base = CalendarMonths(months=3, zone="Asia/Tokyo")
    years = Query("q", Months(12), times=(Months(24),))
    (query,) = QuerySet(base, (years,)).queries
    assert (query.slots, query.times) == (4, (8,))
    assert slots_of(query.slots, base) == CalendarMonths(months=12, zone="Asia/Tokyo")
    assert slots_of(8, base).start(27) == base.start(216)
    with pytest.raises(ConfigurationError, match=r"'q': slots of 4mo are not .*write 3mo or 6mo"):
        QuerySet(base, (Query("q", Months(4)),))


@pytest.mark.parametrize("months", [0, -1, 1.5, True])
def test_months_are_whole(months):
    with pytest.raises(ConfigurationError, match="months is"):
        Months(months)


def test_lengths_in_base_slots():
    base = Slots.of("1h")
    assert length_in(Slots.of("1d"), base) == 24
    assert length_in(Slots.of("90m"), base) is length_in(Slots.of("30m"), base) is None
    assert length_in(CalendarMonths(months=3), base) == Months(3, 24)
    assert cut_of(24) == Even(24)
    assert slots_of(24, base) == Slots.of("1d")
    zone = CalendarSlots(DAY, zone="Asia/Tokyo")
    assert slots_of(Months(12), zone) == CalendarMonths(months=12, zone="Asia/Tokyo")


# Noise and states are bound to it: a number of base slots is what it was before there were months.
def test_a_length_in_base_slots_is_encoded_as_a_number():
    asked = Query("q", 24)
    assert encoded(24) in asked.identity()
    assert asked.identity() != Query("q", Months(1)).identity()
    assert Query("q", Months(1)).identity() != Query("q", Months(2)).identity()


def test_a_length_of_months_is_no_number_of_base_slots():
    with pytest.raises(ConfigurationError, match="query 'q' has slots of calendar months"):
        _ = Query("q", Months(1)).fixed_slots
    assert Query("q", 24).fixed_slots == 24
