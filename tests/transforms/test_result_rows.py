"""Releases as rows: the columns of a tidy file, of types that SQL, data frames and sinks know."""

import apache_beam as beam
import numpy as np
import pandas as pd
import pytest
from apache_beam.coders import RowCoder, registry
from apache_beam.dataframe.convert import to_dataframe, to_pcollection
from apache_beam.io.gcp.bigquery_tools import get_beam_typehints_from_tableschema
from apache_beam.portability.api import schema_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.typehints.schemas import schema_from_element_type
from apache_beam.utils.timestamp import Timestamp

from streamveil.io.tidy import RESULT_SCHEMA, tidy_batch
from streamveil.mechanisms import Registry
from streamveil.mechanisms.core.records import Release
from streamveil.transforms.release_plan import PrivateHistograms
from streamveil.transforms.result_rows import ResultRows, result_rows

HOUR = 3_600_000_000
LABELS = ("a", "b")


def release(slot, counts, stderr, status):
    return Release(
        slot=slot,
        start=slot * HOUR,
        end=(slot + 1) * HOUR,
        counts=np.array(counts),
        status=status,
        published_slot=None,
        epsilon=1.0,
        stderr=np.array(stderr),
        mechanism="pba",
    )


RELEASES = [
    release(0, [3, -1], [1.0, 2.0], "published"),
    release(1, [0, 0], [np.nan, np.nan], "nullified"),
]


@pytest.fixture
def rows():
    """Rows of releases that no pipeline has run yet."""
    pipeline = beam.Pipeline(runner=FnApiRunner())
    releases = pipeline | beam.Create(RELEASES).with_output_types(Release)
    return releases | ResultRows(LABELS)


def test_rows_are_those_of_a_tidy_file():
    found = [row.as_dict() for release in RELEASES for row in result_rows(release, LABELS, "count")]
    expected = tidy_batch(RELEASES, LABELS).to_pylist()
    for row in expected:
        for name in ("start", "end"):
            row[name] = Timestamp(row[name].timestamp())
    assert found == expected


def test_a_row_survives_its_coder(rows):
    coder = registry.get_coder(rows.element_type)
    assert isinstance(coder, RowCoder)
    for row in result_rows(RELEASES[0], LABELS, "count"):
        assert coder.decode(coder.encode(row))._asdict() == row.as_dict()
    unknown = next(result_rows(RELEASES[1], LABELS, "count"))
    assert coder.decode(coder.encode(unknown)).low is None


def test_the_schema_has_types_that_sql_and_iceberg_take(rows):
    """Of Beam's Java, which reads the schema for both: no logical type but the old one of times."""
    fields = schema_from_element_type(rows.element_type).fields
    assert [field.name for field in fields] == RESULT_SCHEMA.names
    kinds = {field.name: field.type for field in fields}
    for name in ("start", "end"):
        assert kinds.pop(name).logical_type.urn == "beam:logical_type:millis_instant:v1"
    atoms = {name: schema_pb2.AtomicType.Name(kind.atomic_type) for name, kind in kinds.items()}
    assert atoms == {
        "slot": "INT64",
        **dict.fromkeys(("query", "key", "statistic", "status"), "STRING"),
        **dict.fromkeys(("value", "low", "high", "stderr"), "DOUBLE"),
    }
    assert [name for name, kind in kinds.items() if kind.nullable] == [
        *("value", "low", "high", "stderr")
    ]


def test_the_schema_is_that_of_a_table_of_bigquery(rows):
    types = {"int64": "INTEGER", "string": "STRING", "double": "FLOAT"}
    table = {
        "fields": [
            {
                "name": field.name,
                "type": types.get(str(field.type), "TIMESTAMP"),
                "mode": "NULLABLE" if field.nullable else "REQUIRED",
            }
            for field in RESULT_SCHEMA
        ]
    }
    theirs = schema_from_element_type(
        beam.typehints.row_type.RowTypeConstraint.from_fields(
            get_beam_typehints_from_tableschema(table)
        )
    )
    for mine, field in zip(
        schema_from_element_type(rows.element_type).fields, theirs.fields, strict=True
    ):
        assert (mine.name, mine.type.nullable) == (field.name, field.type.nullable)
        if field.name not in ("start", "end"):  # which their schema has in microseconds
            assert mine.type.atomic_type == field.type.atomic_type


def test_rows_are_there_for_who_asks_and_fit_a_data_frame(tmp_path, kit):
    """Two transforms in one pipeline, and of what nobody asked for there is no step."""
    registry = Registry.of({"ann": (1, 4000.0)})
    columns = {"user": "user", "value": "value", "time": "time"}
    options = {"first_slot": 0, "last_slot": 1, "noise_key": bytes(32)}
    made = PrivateHistograms(registry, LABELS, "1h", columns, **options)
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        events = pipeline | beam.Create([{"user": "ann", "value": "b", "time": "1970-01-01"}])
        unasked = events | "Unasked" >> made
        assert "Rows" not in "".join(step.full_label for step in steps(pipeline))
        outputs = events | "Asked" >> made
        assert outputs.rows is outputs.rows
        assert unasked.rows is not outputs.rows
        frame = to_dataframe(outputs.rows)
        assert frame.dtypes["low"] == np.float64
        assert frame.dtypes["value"] == np.float64
        total = frame.groupby("key")[["value"]].sum()
        to_pcollection(total, include_indexes=True) | kit.collect(tmp_path / "total")
    found = pd.DataFrame(kit.collected(tmp_path / "total"))
    assert dict(found.itertuples(index=False)) == pytest.approx({"a": 0, "b": 1}, abs=0.05)


def steps(pipeline):
    """All steps of a pipeline so far."""
    found = []

    class Visitor(beam.pipeline.PipelineVisitor):
        def visit_transform(self, step):
            found.append(step)

    pipeline.visit(Visitor())
    return found
