"""Foursquare check-ins of New York and Tokyo, 2012 and 2013: dataset_TSMC2014_NYC.txt, _TKY.txt.

Text without a header, its fields separated by tabs: user id, venue id, venue category id, venue
category name (Latin-1), latitude, longitude, offset of local time in minutes, and the time in
UTC as `Tue Apr 03 18:00:09 +0000 2012`.

Source: Yang et al., "Modeling user activity preference by leveraging user spatial temporal
characteristics in LBSNs" (2015).
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from streamveil.io.fields import read_fields
from streamveil.io.files import Columns
from streamveil.io.lines import Reject

FOURSQUARE_COLUMNS = (
    *("user", "venue", "category_id", "category"),
    *("latitude", "longitude", "offset_minutes", "time"),
)
_TIME = r"^[A-Z][a-z]{2} ([A-Z][a-z]{2}) (\d\d) (\d\d:\d\d:\d\d) ([+-]\d\d):?(\d\d) (\d{4})$"
# Spelt out: Python's own names of months follow the locale.
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec"


def read_foursquare(path: str, columns: Columns, reject: Reject) -> Iterator[pa.RecordBatch]:
    """Read some of `FOURSQUARE_COLUMNS` as strings, a batch for every block of lines.

    Times become ISO 8601 with their offset; one that is not as described stays as it is. Lines
    without eight fields go to `reject`. Raises ConfigurationError for another column or a file
    that cannot be read.
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
