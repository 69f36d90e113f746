"""Which events of a file are due in a pass: each row is judged in one pass, and only there."""

import datetime as dt
import itertools

import numpy as np
import pyarrow as pa
import pytest

from streamveil.engine import metrics
from streamveil.engine.encode.event_mapper import Columns
from streamveil.engine.encode.passes import WAITING_SCHEMA, Pass, PassSplit
from streamveil.engine.messages import REJECTED, WAITING
from streamveil.mechanisms import ConfigurationError, Slots
from streamveil.mechanisms.core.records import LOST_METADATA, ROW_COLUMN, SOURCE_METADATA

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
HOUR = dt.timedelta(hours=1)
COLUMNS = Columns("user", ("value",), "time")
SLOTS = Slots.of("1h")


def file(name, slots):
    """A batch of a file with an event in each of these slots; None has no time."""
    times = [None if slot is None else EPOCH + slot * HOUR for slot in slots]
    schema = pa.schema(
        [
            ("user", pa.string()),
            ("value", pa.string()),
            ("time", pa.timestamp("us", "UTC")),
            (ROW_COLUMN, pa.int64()),
        ],
        metadata={SOURCE_METADATA: name.encode()},
    )
    columns = [["u"] * len(slots), ["a"] * len(slots), times, range(len(slots))]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def take(batch, due, again=False):
    """Rows that are taken, rows that are late, and the first slot that waits."""
    taken, late, waiting = [], [], None
    for value, tag, _ in PassSplit(due, COLUMNS, SLOTS, again).split(batch):
        if tag == WAITING:
            assert value.schema == WAITING_SCHEMA
            ((source, waiting),) = zip(*value.to_pydict().values(), strict=True)
            assert source == batch.schema.metadata[SOURCE_METADATA].decode()
        elif tag == REJECTED:
            late += [(letter["row"], letter["reason"]) for letter in value.to_pylist()]
        else:
            metadata = {**value.schema.metadata}
            assert (metadata.pop(LOST_METADATA, None) is None) == (not late)
            assert value.schema.with_metadata(metadata).equals(batch.schema, check_metadata=True)
            taken += value.column(ROW_COLUMN).to_pylist()
    return taken, late, waiting


def test_what_a_pass_makes_of_new_files_and_of_old_ones():
    batch = file("f", [None, 4, 5, 9, 10, 11, 12, 14])
    due = Pass(5, 10, 11)
    assert take(batch, due) == ([0, 1, 4, 5], [(2, "late"), (3, "late")], 12)
    assert take(batch, due, again=True) == ([4, 5], [], 12)
    assert take(batch, Pass(5, 10, 14)) == ([0, 1, 4, 5, 6, 7], [(2, "late"), (3, "late")], None)
    assert take(file("f", [20]), due) == ([], [], 20)


def test_late_and_waiting_events_are_counted():
    batch = file("f", [None, 4, 5, 9, 10, 11, 12, 14])
    with metrics.counting() as counts:
        take(batch, Pass(5, 10, 11))
    counted = {metrics.EVENTS_READ: 2, metrics.EVENTS_LATE: 2, metrics.EVENTS_WAITING: 2}
    assert counts.counters == counted
    with metrics.counting() as counts:
        take(batch, Pass(5, 10, 11), again=True)
    assert counts.counters == {metrics.EVENTS_WAITING: 2}


def test_a_batch_without_rows_stays_as_it_is():
    empty = pa.RecordBatch.from_pylist([], pa.schema([]))  # it has no column of times
    (output,) = PassSplit(Pass(0, 0, 0), COLUMNS, SLOTS).split(empty)
    assert output.value is empty
    assert output.tag is None


# Passes at random over files that come at random: whatever waits is taken when its time comes.
@pytest.mark.parametrize("seed", range(20))
def test_every_row_is_judged_once(seed):
    draw = np.random.default_rng(seed)
    files = {
        f"f{i}": (int(draw.integers(4)), [None, *draw.integers(-3, 20, size=12).tolist()])
        for i in range(5)
    }
    borders = [0, *sorted(draw.choice(np.arange(1, 16), 3, replace=False).tolist()), 16]
    judged = {(name, row): [] for name, (_, slots) in files.items() for row in range(len(slots))}
    known = {}
    for number, (first, end) in enumerate(itertools.pairwise(borders)):
        due = Pass(0, first, end - 1)
        for name, (comes, slots) in files.items():
            new = name not in known
            if comes > number or (not new and (known[name] is None or known[name] >= end)):
                continue
            taken, late, known[name] = take(file(name, slots), due, again=not new)
            for row in taken:
                judged[name, row].append((number, "taken"))
            for row, _ in late:
                judged[name, row].append((number, "late"))
    for (name, row), verdicts in judged.items():
        comes, slots = files[name]
        slot = slots[row]
        if slot is None or slot < 0:
            assert verdicts == [(comes, "taken")]  # and rejected there
        elif slot >= 16:
            assert verdicts == []
        elif slot < borders[comes]:
            assert verdicts == [(comes, "late")]
        else:
            (number,) = (n for n in range(4) if borders[n] <= slot < borders[n + 1])
            assert verdicts == [(number, "taken")]


def test_a_column_that_is_no_time_is_refused_with_its_file():
    batch = file("events.csv", [1]).drop_columns("time")
    with pytest.raises(ConfigurationError, match=r"events\.csv: .* no column 'time'"):
        take(batch, Pass(0, 0, 0))
