"""A bounded input here and now gives the rows that a pipeline gives."""

import pytest

from streamveil.engine.run.records import release_records
from streamveil.transforms import (
    PerRecordCount,
    PerRecordDistinctCount,
    PerRecordMax,
    PerRecordRunningTotal,
    PerRecordSum,
)
from tests.transforms.per_record.conftest import Ran

STATISTICS = [
    PerRecordCount,
    PerRecordSum,
    PerRecordMax,
    PerRecordDistinctCount,
    PerRecordRunningTotal,
]


@pytest.mark.many
@pytest.mark.parametrize("made", STATISTICS, ids=lambda made: made.__name__)
@pytest.mark.parametrize("panes", [1, 3, None])
def test_it_gives_what_a_pipeline_gives(release_on, records, usual_runner, made, panes):
    options = {"key": "key", "keys": ("a", "b"), "noise_key": bytes(range(32))}
    if made is not PerRecordCount:
        options["value"] = "amount"
    if panes is None and made is PerRecordRunningTotal:
        pytest.skip("a running total has panes")
    if panes == 3 and made in (PerRecordRunningTotal, PerRecordDistinctCount):
        pytest.skip("its panes do not add up")
    if panes is not None:
        options |= records.windows(sliding=panes)
    transform = made(records.noisy, **options)
    rows = records.some()
    batches = [records.batch(rows[i::3]) for i in range(3)]
    mine = Ran([one.value for one in release_records(transform.plan(), batches)], None)
    assert mine.figures == release_on(usual_runner, transform, batches).figures
    assert len(mine.rows) == transform.number_of_rows
