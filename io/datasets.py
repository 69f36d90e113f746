"""Published data sets: text lines of separated fields, without a header or quotes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.io.files import Columns, event_batch, require_columns
from streamveil.io.lines import Lines, Reject, is_utf8, read_lines
from streamveil.mechanisms.core.number_text import number_of

TDRIVE_COLUMNS = ("taxi", "time", "longitude", "latitude")
FOURSQUARE_COLUMNS = (
    *("user", "venue", "category_id", "category"),
    *("latitude", "longitude", "offset_minutes", "time"),
)
_TIME = r"^[A-Z][a-z]{2} ([A-Z][a-z]{2}) (\d\d) (\d\d:\d\d:\d\d) ([+-]\d\d):?(\d\d) (\d{4})$"
# Spelt out: Python's own names of months follow the locale.
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec"

_REPLACED = "\N{REPLACEMENT CHARACTER}"


def read_fields(
    path: str,
    names: Sequence[str],
    columns: Columns,
    reject: Reject,
    *,
    separator: str,
    latin1: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Read the named columns as strings, a batch for every block of lines.

    Args:
        path: a text file, also `.gz`.
        names: name of every field of a line, in order.
        columns: the fields to read.
        reject: called for each line that has another number of fields or is not UTF-8.
        separator: the text between two fields.
        latin1: whether text that is not UTF-8 is read as Latin-1, in which every byte is a
            character.

    Raises:
        ConfigurationError: for a column that is not one of `names`, or an unreadable file.
    """
    require_columns(path, columns, names)
    for lines in read_lines(path):
        texts, numbers = _texts(lines, latin1)
        fields = pc.split_pattern(texts, separator)
        good = pc.equal(pc.list_value_length(fields), len(names))
        if not latin1:
            good = pc.and_(good, pc.invert(pc.match_substring(texts, _REPLACED)))
        for row in np.flatnonzero(~good.to_numpy(zero_copy_only=False)).tolist():
            text = texts[row].as_py()
            found = len(fields[row])
            counted = f"{number_of(found, 'field')} where a line has {len(names)}"
            fault = "not UTF-8" if found == len(names) else counted
            reject(int(numbers[row]), fault, text.encode())
        kept = fields.filter(good)
        arrays = [pc.list_element(kept, names.index(name)).cast(pa.string()) for name in columns]
        yield event_batch(path, columns, arrays, numbers[good.to_numpy(zero_copy_only=False)])


def _texts(lines: Lines, latin1: bool) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Text of each line that is not blank, without the line end, and the number of the line."""
    block = lines.block
    if is_utf8(block):
        text = block.decode()
    else:
        text = block.decode("latin-1") if latin1 else block.decode(errors="replace")
    whole = pa.array([text], pa.large_string())
    every = pc.utf8_rtrim(pc.split_pattern(whole, "\n").flatten(), "\r")
    kept = pc.not_equal(every, "")
    numbers = np.flatnonzero(kept.to_numpy(zero_copy_only=False)) + lines.first
    return every.filter(kept), numbers


def _read_tdrive(path: str, columns: Columns, reject: Reject) -> Iterator[pa.RecordBatch]:
    """Read some of `TDRIVE_COLUMNS` as strings: taxis of Beijing, February 2008.

    There is one text file for each taxi. Some files are empty. A line has the form

        taxi id,YYYY-MM-DD HH:MM:SS,longitude,latitude

    with local times of Beijing (`Asia/Shanghai`), and coordinates in degrees.

    Source: Yuan et al., "T-Drive: driving directions based on taxi trajectories" (2010).
    """
    return read_fields(path, TDRIVE_COLUMNS, columns, reject, separator=",")


def _read_foursquare(path: str, columns: Columns, reject: Reject) -> Iterator[pa.RecordBatch]:
    """Read some of `FOURSQUARE_COLUMNS` as strings: check-ins of New York and Tokyo, 2012 and 2013.

    The files are dataset_TSMC2014_NYC.txt and dataset_TSMC2014_TKY.txt, and their fields are
    separated by tabs. The name of the venue category is Latin-1. The offset of local time is in
    minutes. The time is in UTC, for example `Tue Apr 03 18:00:09 +0000 2012`, and is converted to
    ISO 8601 with this offset. A time in another form is returned unchanged.

    Source: Yang et al., "Modeling user activity preference by leveraging user spatial temporal
    characteristics in LBSNs" (2015).
    """
    batches = read_fields(path, FOURSQUARE_COLUMNS, columns, reject, separator="\t", latin1=True)
    for batch in batches:
        at = batch.schema.get_field_index("time")
        yield batch if at < 0 else batch.set_column(at, "time", _iso(batch.column(at)))


def _iso(times: pa.Array) -> pa.Array:
    texts = pc.replace_substring_regex(times, _TIME, r"\6-\1-\2T\3\4:\5")
    for number, month in enumerate(_MONTHS.split(), 1):
        texts = pc.replace_substring_regex(texts, rf"^(\d{{4}})-{month}-", rf"\1-{number:02d}-")
    return texts


DATASETS: Mapping[str, Callable[[str, Columns, Reject], Iterator[pa.RecordBatch]]] = {
    "tdrive": _read_tdrive,
    "foursquare": _read_foursquare,
}
"""Readers of published data sets whose file names do not show their format, by name."""
