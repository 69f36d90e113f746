"""Times written in a form: against Python's own strptime."""

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms.core.records import EPOCH, ConfigurationError
from streamveil.transforms.columns.event_mapper import Columns
from streamveil.transforms.columns.times import (
    AMBIGUOUS_TIME,
    NULL_TIME,
    UNPARSABLE_TIME,
    to_micros,
)

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
