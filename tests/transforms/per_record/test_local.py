"""The local setting: one row of all reports, and nothing but reports in between."""

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.transforms.window import FixedWindows

from streamveil.engine.stream.noise_keys import GivenKey
from streamveil.mechanisms import ConfigurationError
from streamveil.mechanisms.per_record import Randomizer
from streamveil.mechanisms.per_record.protocol import Bounds
from streamveil.mechanisms.registry import statistic
from streamveil.transforms import CollectPerRecordCount, CollectPerRecordSum
from streamveil.transforms.per_record.local import Randomize

KEY = bytes(range(32))


def devices(amounts, start=0):
    ids = [f"d{start + i}" for i in range(len(amounts))]
    return pa.RecordBatch.from_pydict({"device": ids, "amount": pa.array(amounts, pa.float64())})


@pytest.mark.parametrize("thresholds", [None, "chernoff"])
def test_a_count_and_a_sum(release, records, thresholds):
    amounts = np.random.default_rng(0).integers(1, 200, 3000).astype(float)
    batches = [devices(amounts[:1000]), devices(amounts[1000:], 1000)]
    options = {"device": "device", "noise_key": KEY, "thresholds": thresholds}
    made = {
        "count": CollectPerRecordCount(records.exact, **options),
        "sum": CollectPerRecordSum(records.exact, "amount", value_max=200.0, **options),
    }
    for kind, true in (("count", 3000), ("sum", amounts.sum())):
        (row,) = release(made[kind], batches).rows
        assert (row.key, row.start, row.end, row.statistic) == (None, None, None, kind)
        assert row.stderr < 0.01 * true
        assert abs(row.estimate - true) < 6 * row.stderr
    (nobody,) = release(made["count"], []).rows
    assert (nobody.estimate, nobody.stderr, nobody.dropped_bound) == (0.0, 0.0, 0.0)


def reports(records, tmp_path, kit, new_pipeline, batches):
    """What crosses: reports of each batch."""
    made = statistic("count", None, Bounds(0.1, 100.0))
    edge = Randomize(Randomizer(made), records.noisy, None, "device", GivenKey(KEY))
    path = tmp_path / "reports"
    path.unlink(missing_ok=True)
    with new_pipeline() as pipeline:
        pipeline | beam.Create(batches, reshuffle=False) | edge | kit.collect(path)
    return kit.collected(path)


def test_only_noisy_vectors_cross_and_again_the_same(records, tmp_path, kit, new_pipeline):
    bad = [np.nan, 201.0, -1.0, 1e9]
    batches = [devices([1.0, *bad, 2.0]), devices([1.0, *bad, 2.0], 6)]
    first, second = reports(records, tmp_path, kit, new_pipeline, batches)
    assert first.schema.names == ["report"]
    assert first.num_rows == second.num_rows == 6  # bad records report as the dummy does
    vectors = np.array(first.column("report").to_pylist() + second.column("report").to_pylist())
    assert len(np.unique(vectors)) > 0.9 * vectors.size  # every number has noise of its own
    again = reports(records, tmp_path, kit, new_pipeline, batches)
    assert [first, second] == again


def test_what_cannot_be(records, release):
    with pytest.raises(ConfigurationError, match="needs a column of values"):
        CollectPerRecordSum(records.noisy, device="d")
    with pytest.raises(ConfigurationError, match="needs all records in one place"):
        CollectPerRecordSum(records.noisy, "amount", device="d", mechanism="framework")
    with pytest.raises(Exception, match="no column 'd'"):
        release(CollectPerRecordCount(records.noisy, device="d"), [devices([1.0])])
    batches = beam.Pipeline() | beam.Create([]).with_output_types(pa.RecordBatch)
    with pytest.raises(ValueError, match="in windows"):
        (
            batches
            | beam.WindowInto(FixedWindows(9))
            | CollectPerRecordCount(records.noisy, device="d")
        )
