"""Nothing that can be observed depends on bad records: no output, metric, log or warning."""

import json
import logging
import re

import numpy as np
import pyarrow as pa
import pytest

from streamveil.io.event_sources import sent_by_tag
from streamveil.io.events import drop_silently, part_outputs
from streamveil.io.json_objects import read_objects
from streamveil.io.parquet import Part
from streamveil.mechanisms.per_record import Inverse
from streamveil.transforms import (
    ColumnsBudget,
    PerRecordCount,
    PerRecordDistinctCount,
    PerRecordMax,
    PerRecordRunningTotal,
    PerRecordSum,
    ValueBudget,
)

FAILS, STRICT, HUGE = 13.0, 77.0, 55.0
OPTIONS = {"value": "amount", "value_max": 100.0}


def budget_of(amount, kind):
    amounts = amount.to_numpy(zero_copy_only=False)
    if (amounts == FAILS).any():
        raise ValueError(f"no budget for {amounts}")
    budgets = 20.0 / np.abs(amounts) + 0.1
    budgets[amounts == STRICT] = 0.01
    budgets[amounts == -STRICT] = -1.0
    budgets[amounts == HUGE] = 1e9  # not bad: taken as the largest
    return pa.array(budgets, mask=np.isnan(budgets))


FUNCTION = ColumnsBudget(
    ("amount", "kind"), budget_of, 0.1, 50.0, {"amount": [1.0, 9.0], "kind": ["x", None]}
)
FUNCTION_OF_AMOUNT = ValueBudget("amount", Inverse(20.0, value_max=100.0, epsilon_max=50.0))
GOOD = [
    (float(1 + i % 40), "ab"[i % 2], f"1970-01-01T0{i % 5}:30:00", "xy"[i % 2]) for i in range(60)
] + [(HUGE, "a", "1970-01-01T02:00:00Z", "x")]
BAD = [
    (float("nan"), "a", "1970-01-01T01:00:00", "x"),
    (None, "a", "1970-01-01T01:00:00", "x"),
    (-1.0, "b", "1970-01-01T01:00:00", "x"),
    (-STRICT, "b", "1970-01-01T01:00:00", "x"),
    (100.5, "b", "1970-01-01T01:00:00", "x"),
    (float("inf"), "b", "1970-01-01T01:00:00", "x"),
    (2.0, None, "1970-01-01T01:00:00", "x"),
    (2.0, "another", "1970-01-01T01:00:00", "x"),
    (2.0, "a", None, "x"),
    (2.0, "a", "yesterday", "x"),
    (2.0, "a", "2026-02-30T00:00:00", "x"),
    (2.0, "a", "1969-12-31T23:59:59", "x"),
    (2.0, "a", "9999-12-31T00:00:00", "x"),
]
BY_FUNCTION = [(amount, "a", "1970-01-01T05:30:00", "x") for amount in (FAILS, STRICT)]


def batch(rows):
    amounts, keys, times, kinds = zip(*rows, strict=True)
    return pa.RecordBatch.from_pydict(
        {
            "amount": pa.array(amounts, pa.float64()),
            "key": pa.array(keys, pa.string()).dictionary_encode(),
            "time": pa.array(times, pa.string()),
            "kind": pa.array(kinds, pa.string()),
        }
    )


def with_bad(rows, bad):
    """The rows, and the bad ones among them."""
    mixed = list(rows)
    for i, row in enumerate(bad):
        mixed.insert(3 * i % len(mixed), row)
    return mixed


@pytest.fixture
def observe(release_on, caplog, capfd, recwarn):
    """All that a run gives to see: rows, metrics, logs, what is printed and what is warned of.

    Of a runner that logs and counts nothing of its own, as Prism does with jobs, ports and bytes.
    """

    def observe(transform, batches, whole=False):
        caplog.clear()
        recwarn.clear()
        with caplog.at_level(logging.DEBUG):
            batches = batches if whole else [batch(rows) for rows in batches]
            ran = release_on("fn_api", transform, batches)
        # The runner's own debugging shows all data, and addresses are new in every run.
        logs = sorted(
            re.sub(r"0x[0-9a-f]+", "#", log.getMessage())
            for log in caplog.records
            if log.levelno >= logging.INFO or not log.name.startswith("apache_beam")
        )
        metrics = ran.metrics.query()
        assert not metrics["distributions"]
        counters = sorted(str(metric) for metric in metrics["counters"])
        return ran.figures, counters, logs, capfd.readouterr(), [str(w.message) for w in recwarn]

    return observe


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda budget, **o: PerRecordCount(budget, **o),
        lambda budget, **o: PerRecordSum(budget, sliding=2, **OPTIONS, **o),
        lambda budget, **o: PerRecordMax(budget, **OPTIONS, **o),
        lambda budget, **o: PerRecordDistinctCount(budget, **OPTIONS, **o),
        lambda budget, **o: PerRecordRunningTotal(budget, **OPTIONS, **o),
    ],
    ids=["count", "sum", "max", "distinct", "running"],
)
def test_bad_records_leave_no_trace(observe, records, make):
    options = {
        "key": "key",
        "keys": ("a", "b"),
        "noise_key": bytes(32),
        **records.windows(last=6),
    }
    halves = [GOOD[:30], GOOD[30:]]
    bad = [*BAD, *BY_FUNCTION]
    transform = make(FUNCTION, **options)
    if isinstance(transform, PerRecordCount):  # which takes any amount with a budget
        bad = [row for row in bad if row[0] not in (-1.0, 100.5, np.inf)]
    calm = observe(transform, halves)
    assert len(calm[0]) == 14 - 2 * (transform.sliding - 1)
    assert observe(make(FUNCTION, **options), [with_bad(rows, bad) for rows in halves]) == calm
    if transform.kind == "count":  # one good record more is no secret to the key's holder
        assert observe(make(FUNCTION, **options), [[*halves[0], GOOD[30]], halves[1]]) != calm


LINES = [
    {"amount": 1 + i % 40, "key": "ab"[i % 2], "time": f"1970-01-01T0{i % 5}:30:00"}
    for i in range(60)
]
BAD_LINES = [
    *(b"null", b"true", b"5", b"[]", b'"text"', b"NaN", b"", b"no", b"\xff", b"[" * 5000, b"{}"),
    *(b'{"amount":"yes","key":"a","time":"1970-01-01T01:00:00"}', b'{"amount":1,"key":"a"} null'),
    *(b'{"amount":NaN,"key":"a","time":"1970-01-01T01:00:00"}', b'{"amount":"1","key":1,"time":2}'),
    *(b'{"amount":1e400,"key":"a","time":"1970-01-01T01:00:00"}', b'{"amount":1.5,"key":"a"}'),
    *(b'{"amount":1,"key":"a","time":5}', b'{"amount":1,"key":"a","time":"5.5"}'),
]


@pytest.mark.slow
@pytest.mark.parametrize("source", ["file", "messages"])
def test_bad_lines_of_json_leave_no_trace(observe, records, tmp_path, source):
    """At the front, where Arrow's reader died of some, and among the others."""
    path = tmp_path / "records.jsonl"
    good = [json.dumps(line).encode() for line in LINES]
    names = ("amount", "key", "time")
    options = {"key": "key", "keys": ("a", "b"), "noise_key": bytes(32), **records.windows(last=6)}

    def batches(lines):
        if source == "messages":
            arrays = read_objects(lines, names, drop_silently)[0]
            return [pa.RecordBatch.from_arrays(arrays, list(names))]
        path.write_bytes(b"\n".join(lines))
        return list(sent_by_tag(part_outputs(Part(str(path)), names, silent=True)))

    def figures(lines):
        transform = PerRecordSum(FUNCTION_OF_AMOUNT, **OPTIONS, **options)
        return observe(transform, batches(lines), whole=True)

    calm = figures(good)
    assert len(calm[0]) == 14
    assert figures([*BAD_LINES, *good]) == figures([*good, *BAD_LINES]) == calm
    assert figures(with_bad(good, BAD_LINES)) == calm
