"""Times written in a form: against Python's own strptime."""

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.engine.encode.event_mapper import Columns
from streamveil.engine.encode.time_formats import guesses
from streamveil.engine.encode.times import AMBIGUOUS_TIME, NULL_TIME, UNPARSABLE_TIME, to_micros
from streamveil.mechanisms.core.records import EPOCH, ConfigurationError

FORMS = (
    *("%d.%m.%Y %H:%M", "%d.%m.%y", "%m/%d/%Y %I:%M:%S %p", "%Y%m%d", "%d %b %Y", "%B %d, %Y"),
    *("%Y-%m-%dT%H:%M:%S.%f", "%d/%m/%Y %H:%M %z", "100%% %d.%m.%Y", "%d-%b-%y %H", "%F %T"),
)
MICROSECOND = dt.timedelta(microseconds=1)


def python(text, form):
    """Microseconds, or None."""
    full = form.replace("%F", "%Y-%m-%d").replace("%T", "%H:%M:%S")
    try:
        time = dt.datetime.strptime(text.strip(), full)
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=dt.timezone.utc)) - EPOCH


@settings(max_examples=200)
@given(st.sampled_from(FORMS), st.lists(st.datetimes(dt.datetime(1970, 1, 1)), max_size=8))
def test_what_python_writes_is_read(form, times):
    full = form.replace("%F", "%Y-%m-%d").replace("%T", "%H:%M:%S")
    texts = [time.replace(tzinfo=dt.timezone.utc).strftime(full) for time in times]
    micros, reasons = to_micros(pa.array(texts, pa.string()), form=form)
    assert reasons == {}
    assert [m * MICROSECOND for m in micros.tolist()] == [python(text, form) for text in texts]


@pytest.mark.slow
@settings(max_examples=300)
@given(
    st.sampled_from(FORMS),
    st.lists(
        st.from_regex(r"[0-3]?[0-9][./-][01]?[0-9][./-][0-9]{2,4}( [0-9:]{1,8})?", fullmatch=True)
    ),
)
def test_each_row_is_read_as_python_does_or_rejected(form, texts):
    """31 February is no date, whatever the C library says; a bad row leaves the others alone."""
    micros, reasons = to_micros(pa.array(texts, pa.string()), form=form)
    expected = [python(text, form) for text in texts]
    assert [row for row, time in enumerate(expected) if time is None] == sorted(reasons)
    assert set(reasons.values()) <= {UNPARSABLE_TIME}
    good = [(m * MICROSECOND, e) for m, e in zip(micros.tolist(), expected, strict=True) if e]
    assert [a for a, _ in good] == [b for _, b in good]


def test_kinds_of_columns():
    form = "%Y%m%d"
    day = [1_709_164_800_000_000]
    assert to_micros(pa.array([20240229]), form=form)[0].tolist() == day
    text = pa.array(["20240229", None, "20240230", "2024-02-29"])
    for column in (text, text.dictionary_encode(), text.cast(pa.large_string())):
        micros, reasons = to_micros(column, form=form)
        assert micros[:1].tolist() == day
        assert reasons == {1: NULL_TIME, 2: UNPARSABLE_TIME, 3: UNPARSABLE_TIME}


def test_the_zone_is_that_of_the_clock_times():
    texts = pa.array(["01.06.2024 02:00", "27.10.2024 02:30"])
    micros, reasons = to_micros(texts, form="%d.%m.%Y %H:%M", zone="Europe/Berlin")
    assert micros[0] == 1_717_200_000_000_000
    assert reasons == {1: AMBIGUOUS_TIME}


@pytest.mark.parametrize(
    ("form", "word"),
    [
        ("%d.%m.%Q", "'%Q'"),
        ("%d.%m.%Y %", "'%'"),
        ("%d.%m.%Y %d", "%d twice"),
        ("%H:%M", "a year"),
        ("%d.%m.%Y %I:%M", "%p"),
        ("%d.%m.%Y :%M", "%M without %H"),
        ("", "a year"),
    ],
)
def test_what_is_no_form_is_refused(form, word):
    with pytest.raises(ConfigurationError, match=word):
        Columns("user", ("value",), "time", time_format=form)


# ---- logs, optional fractions, several forms ----------------------------------------------------

LOGS = {
    "%d/%b/%Y:%H:%M:%S %z": "29/Feb/2024:12:34:56 +0200",
    "%a, %d %b %Y %H:%M:%S %Z": "Thu, 29 Feb 2024 10:34:56 GMT",
    "%A %d %B %Y, %I:%M:%S %p": "Thursday 29 February 2024, 10:34:56 AM",
    "%a %b %e %H:%M:%S %Y": "Thu Feb 29 10:34:56 2024",
    "%Y%m%d %H%M%S": "20240229 103456",
}


@pytest.mark.parametrize("form", LOGS)
def test_forms_of_logs(form):
    micros, reasons = to_micros(pa.array([LOGS[form], LOGS[form] + "x"]), form=form)
    assert micros[0] == 1_709_202_896_000_000
    assert reasons == {1: UNPARSABLE_TIME}


def test_a_day_of_one_digit_may_have_a_blank_before_it():
    texts = pa.array(["Fri Mar  1 2024", "Fri Mar 1 2024", "Thu Feb 29 2024"])
    micros, reasons = to_micros(texts, form="%a %b %e %Y")
    assert not reasons
    assert micros.tolist() == [1_709_251_200_000_000] * 2 + [1_709_164_800_000_000]


@pytest.mark.parametrize("form", ["%a %d.%m.%Y", "%A %d.%m.%Y"])
def test_the_day_of_the_week_is_that_of_the_date(form):
    days = ["Thu", "Fri", None] if form[1] == "a" else ["thursday", "FRIDAY", None]
    texts = pa.array([day and f"{day} 29.02.2024" for day in days])
    assert to_micros(texts, form=form)[1] == {1: UNPARSABLE_TIME, 2: NULL_TIME}


@pytest.mark.parametrize("point", [".", ","])
def test_a_fraction_is_optional(point):
    clocks = ["10:34:56", f"10:34:56{point}5", f"10:34:56{point}123456789", f"10:34:56{point}"]
    texts = pa.array([f"29.02.2024 {clock}" for clock in clocks])
    micros, reasons = to_micros(texts, form=f"%d.%m.%Y %H:%M:%S{point}%f")
    assert (micros[:3] - 1_709_202_896_000_000).tolist() == [0, 500_000, 123_456]
    assert reasons == {3: UNPARSABLE_TIME}


SEVERAL = ["%d.%m.%Y", "%d %b %Y, %H:%M", "iso"]


def test_several_forms():
    texts = ["29.02.2024", "29 Feb 2024, 10:00", "2024-02-29T10:00Z", None, "29/02/2024"]
    expected = [dt.datetime(2024, 2, 29, hour, tzinfo=dt.timezone.utc) for hour in (0, 10, 10)]
    for forms in (SEVERAL, SEVERAL[::-1], [*SEVERAL, *SEVERAL]):
        text = Columns("user", "value", "time", time_format=forms).time_format
        micros, reasons = to_micros(pa.array(texts), form=text)
        assert micros[:3].tolist() == [(time - EPOCH) // MICROSECOND for time in expected]
        assert reasons == {3: NULL_TIME, 4: UNPARSABLE_TIME}


def test_what_two_forms_read_differently_is_ambiguous():
    texts = pa.array(["01/02/2024", "13/02/2024", "02/13/2024", "05/05/2024", "13/13/2024"])
    for forms in ("%d/%m/%Y\n%m/%d/%Y", "%m/%d/%Y\n%d/%m/%Y"):
        micros, reasons = to_micros(texts, form=forms)
        assert reasons == {0: AMBIGUOUS_TIME, 4: UNPARSABLE_TIME}
        assert micros[1] == micros[2] == 1_707_782_400_000_000
        assert micros[3] == 1_714_867_200_000_000


def test_one_form_is_itself_alone_or_in_a_list():
    one = Columns("user", "value", "time", time_format="%d.%m.%Y")
    assert Columns("user", "value", "time", time_format=["%d.%m.%Y"]) == one
    for wrong in ([], [1], 1, ["iso", "%Q"]):
        with pytest.raises(ConfigurationError, match="time format"):
            Columns("user", "value", "time", time_format=wrong)


# ---- guesses ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "forms"),
    [
        ("31/01/2024", ["%d/%m/%Y"]),
        ("01/31/2024", ["%m/%d/%Y"]),
        ("01/02/2024", ["%d/%m/%Y", "%m/%d/%Y"]),
        ("1.2.24 9:05", ["%d.%m.%y %H:%M", "%m.%d.%y %H:%M"]),
        ("2/28/2024 9:05:07 PM", ["%m/%d/%Y %I:%M:%S %p"]),
        ("28-Feb-2024 09:05:07.123", ["%d-%b-%Y %H:%M:%S.%f"]),
        ("28/Feb/2024:09:05:07 +0000", ["%d/%b/%Y:%H:%M:%S %z"]),
        ("Wed Feb 28 09:05:07 2024", ["%a %b %e %H:%M:%S %Y"]),
        ("February 28, 2024", ["%B %d, %Y"]),
        ("Wed, 28 Feb 2024 09:05:07", ["%a, %d %b %Y %H:%M:%S"]),
        ("20240228", ["%Y%m%d"]),
        ("20240228090507", ["%Y%m%d%H%M%S"]),
        ("2024-2-8", ["%Y-%m-%d"]),
        ("[28/Feb/2024:09:05:07", ["[%d/%b/%Y:%H:%M:%S"]),
        ('"28.02.2024 09:05"', ['"%d.%m.%Y %H:%M"']),
        ("[]", []),
        ("31/13/2024", []),
        ("2024-02-28 09:05 CET", []),
        ("yesterday", []),
        ("", []),
    ],
)
def test_a_form_is_guessed_from_a_text(text, forms):
    assert guesses(text) == forms
    for form in forms:
        assert to_micros(pa.array([text]), form=form)[1] == {}
