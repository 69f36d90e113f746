import json
import math
from dataclasses import replace

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest

from streamveil.io import (
    LEDGER_SCHEMA,
    REJECTED_SCHEMA,
    WriteLedger,
    WriteRejected,
    WriteReleases,
    read_releases,
    read_table,
    release_schema,
    write_table,
)
from streamveil.io.releases import releases_to_batch
from streamveil.mechanisms.core.records import (
    PUBLISHED,
    SKIPPED,
    LedgerEntry,
    Release,
    Requirement,
    Slots,
)

FORMATS = ("parquet", "avro", "csv", "jsonl")
LABELS = ["a", "é"]
DAY = Slots.of("1d", "2024-01-01")
CLASSES = (Requirement(3, 0.5), Requirement(3, 1.0), Requirement(10, 0.25))


def release(slot):
    first = slot == 0
    return Release(
        slot=slot,
        start=DAY.start(slot),
        end=DAY.end(slot),
        counts=np.array([slot, -slot]),
        status=SKIPPED if first else PUBLISHED,
        published_slot=None if first else slot,
        epsilon=0.25,
        stderr=np.array([1.5, 2.0]),
        mechanism="pbd",
        alarm=slot == 7,
        diagnostics={} if first else {"gap": slot / 4, "é": -1.0},
    )


def entry(slot):
    spent = np.array([0.125, 0.25, 0.5]) * slot
    return LedgerEntry(slot, CLASSES, np.array([10, 20, 30]), spent, spent * 2)


REJECTED = pa.RecordBatch.from_pylist(
    [
        {"source": "x.csv", "row": 3, "reason": "unparsable", "detail": "d", "record": '{"a":1}'},
        {"source": "x.csv", "row": 4, "reason": "unparsable", "detail": "", "record": None},
    ],
    schema=REJECTED_SCHEMA,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, new_pipeline):
    path = tmp_path_factory.mktemp("out")
    slots = [3, 0, 250, *range(4, 250), 1, 2]
    with new_pipeline() as pipeline:
        releases = pipeline | "Releases" >> beam.Create([release(slot) for slot in slots])
        ledger = pipeline | "Ledger" >> beam.Create([entry(slot) for slot in slots])
        rejected = pipeline | "Rejected" >> beam.Create([REJECTED])
        for kind in FORMATS:
            write = WriteReleases(f"{path}/releases.{kind}", labels=LABELS, layout="rows")
            _ = releases | f"Write releases {kind}" >> write
            _ = ledger | f"Write ledger {kind}" >> WriteLedger(f"{path}/ledger.{kind}")
            _ = rejected | f"Write rejected {kind}" >> WriteRejected(f"{path}/rejected.{kind}")
    return path


@pytest.mark.parametrize("kind", FORMATS)
def test_releases_are_written_in_slot_order(folder, kind):
    table = read_table(f"{folder}/releases.{kind}")
    assert table.schema.names == release_schema().names
    assert table["slot"].to_pylist() == list(range(251))
    assert table["start"].cast(pa.int64()).to_pylist() == [DAY.start(s) for s in range(251)]
    row = table.slice(7, 1).drop_columns(["start", "end"]).to_pylist()[0]
    assert row == {
        "slot": 7,
        "counts": [7, -7],
        "status": "published",
        "published_slot": 7,
        "epsilon": 0.25,
        "stderr": [1.5, 2.0],
        "mechanism": "pbd",
        "alarm": True,
        "diagnostics": '{"gap":1.75,"é":-1.0}' if kind == "csv" else [("gap", 1.75), ("é", -1.0)],
    }
    assert table["alarm"].to_pylist().count(True) == 1
    assert table["diagnostics"][0].as_py() == ("{}" if kind == "csv" else [])
    assert table["published_slot"][0].as_py() is None
    if kind in ("parquet", "avro"):
        assert table.schema.types == release_schema().types
        assert json.loads(table.schema.metadata[b"streamveil.bins"]) == LABELS


# Reading gives back the very records, also a diagnostic that JSON has no number for.
@pytest.mark.parametrize("kind", FORMATS)
def test_releases_read_back(tmp_path, kind):
    path = str(tmp_path / f"releases.{kind}")
    rows = [release(0), release(7), replace(release(8), diagnostics={"x": math.nan})]
    schema = release_schema(LABELS)
    write_table(path, schema, [releases_to_batch(rows, schema)])
    for row, back in zip(rows, read_releases(path), strict=True):
        assert repr(back) == repr(row)
    text = (tmp_path / f"releases.{kind}").read_bytes().decode(errors="ignore")
    if kind == "jsonl":
        assert '"alarm":true,"diagnostics":{"gap":1.75,"é":-1.0}}' in text
    if kind == "csv":
        assert 'true,"{""gap"":1.75,""é"":-1.0}"' in text


@pytest.mark.parametrize("kind", FORMATS)
def test_the_ledger_has_a_row_per_slot_and_class(folder, kind):
    table = read_table(f"{folder}/ledger.{kind}")
    assert table.schema.names == LEDGER_SCHEMA.names
    assert table.num_rows == 251 * 3
    assert table.slice(9, 3).to_pylist() == [
        {
            "query": "count",
            **dict.fromkeys(("slot", "first_base_slot", "last_base_slot"), 3),
            "window": requirement.window,
            "epsilon": requirement.epsilon,
            "users": users,
            "spent": spent,
            "spent_in_window": 2 * spent,
        }
        for requirement, users, spent in zip(CLASSES, (10, 20, 30), (0.375, 0.75, 1.5), strict=True)
    ]


@pytest.mark.parametrize("kind", FORMATS)
def test_rejected_events_are_written_as_they_are(folder, kind):
    assert read_table(f"{folder}/rejected.{kind}").to_pylist() == REJECTED.to_pylist()
