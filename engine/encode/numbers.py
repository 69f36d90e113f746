"""Columns as numbers, row by row valid or not."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.mechanisms.core.boolean_text import FALSE, TRUE

NULL_NUMBER = "null number"
"""Why an event is rejected whose number is missing."""
NOT_FINITE = "not a finite number"
"""Why one is whose number is none, or endless."""

_NUMERIC = r"^\s*[+-]?(\d+([.]\d*)?|[.]\d+)([eE][+-]?\d+)?\s*$"


def as_numbers(array: pa.Array, booleans: bool = True) -> npt.NDArray[np.float64] | None:
    """Numbers of a column, shape (n,), NaN for what is none; None for a type that holds none.

    If `booleans`, one of these, also as text, is 1 or 0.
    """
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_string_view(array.type):
        array = array.cast(pa.large_string())
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        text = array
        good = pc.match_substring_regex(text, _NUMERIC)
        array = pc.utf8_trim_whitespace(pc.if_else(good, text, None))
        if booleans and array.null_count > text.null_count:
            words = pc.ascii_lower(pc.utf8_trim_whitespace(text))
            for word, digit in ((TRUE, "1"), (FALSE, "0")):
                array = pc.if_else(pc.fill_null(pc.equal(words, word), False), digit, array)
    elif not (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_null(kind)
        or (booleans and pa.types.is_boolean(kind))
    ):
        return None
    numbers: npt.NDArray[np.float64] = array.cast(pa.float64(), safe=False).to_numpy(
        zero_copy_only=False
    )
    return numbers
