"""The T-Drive taxis of Beijing, February 2008, as Microsoft Research published them.

One text file for each taxi, without a header; a line is

    taxi id,YYYY-MM-DD HH:MM:SS,longitude,latitude

with clock times of Beijing (`Asia/Shanghai`) and degrees. Some taxis have an empty file.

Source: Yuan et al., "T-Drive: driving directions based on taxi trajectories" (2010).
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from streamveil.io.fields import read_fields
from streamveil.io.files import Columns
from streamveil.io.lines import Reject

TDRIVE_COLUMNS = ("taxi", "time", "longitude", "latitude")


def read_tdrive(path: str, columns: Columns, reject: Reject) -> Iterator[pa.RecordBatch]:
    """Read some of `TDRIVE_COLUMNS` as strings, a batch for every block of lines.

    Lines without four fields, or that are not UTF-8, go to `reject`. Raises ConfigurationError
    for another column or a file that cannot be read.
    """
    return read_fields(path, TDRIVE_COLUMNS, columns, reject, separator=",")
