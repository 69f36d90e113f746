"""Silent sources: what comes out is as if what cannot be parsed had never been there."""

import logging

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from streamveil.io import ReadEvents, check_events
from streamveil.io.messages import ParseMessages
from streamveil.mechanisms.core.records import METRICS_NAMESPACE, ConfigurationError

COLUMNS = ("value", "time")
GOOD = {
    "csv": ["value,time", "1.5,3", "7,4"],
    "jsonl": ['{"value":1.5,"time":3}', '{"value":7.0,"time":4}'],
}
BAD = {
    "csv": ["1,2,3", "1"],
    "jsonl": ['{"value":[1],"time":1}', "none", "[]"],
}


def run(source, caplog, keep):
    """Batches by their columns, what is rejected, all counters and all that is logged."""
    pipeline = beam.Pipeline(runner=FnApiRunner())
    events = source(pipeline)
    batches, rejected = keep(events.batches, "batches"), keep(events.rejected, "rejected")
    caplog.clear()
    with caplog.at_level(logging.INFO, "streamveil"):
        result = pipeline.run()
    counters = result.metrics().query(MetricsFilter().with_namespace(METRICS_NAMESPACE))
    seen = [(batch.schema.names, batch.schema.types, batch.columns[:-1]) for batch, _ in batches]
    logged = [r.getMessage() for r in caplog.records if r.name.startswith("streamveil")]
    return seen, rejected, counters, logged


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_lines_that_cannot_be_parsed_leave_no_trace(kind, tmp_path, caplog, keep):
    outcomes = []
    for name, bad in (("with", BAD[kind]), ("without", [])):
        path = tmp_path / f"{name}.{kind}"
        path.write_text("\n".join([*GOOD[kind], *bad]) + "\n")
        check_events(str(path), COLUMNS, silent=True)
        source = ReadEvents(str(path), columns=COLUMNS, silent=True)
        outcomes.append(run(lambda p, s=source: p | s, caplog, keep))
    assert outcomes[0] == outcomes[1]
    ((_, types, (values, times)),), rejected, counters, logged = outcomes[0]
    assert types == [pa.string(), pa.string(), pa.int64()]
    assert [float(v) for v in values.to_pylist()] == [1.5, 7.0]
    assert times.to_pylist() == ["3", "4"]
    assert rejected == logged == []
    assert not any(counters.values())


def test_messages_that_cannot_be_parsed_leave_no_trace(caplog, keep):
    outcomes = []
    for bad in (BAD["jsonl"], []):
        messages = [line.encode() for line in (*GOOD["jsonl"], *bad)]
        outcomes.append(
            run(
                lambda p, m=messages: p | beam.Create(m) | ParseMessages("queue", COLUMNS, True),
                caplog,
                keep,
            )
        )
    rows = [sorted(v for _, _, (c, _) in seen for v in c.to_pylist()) for seen, *_ in outcomes]
    assert rows == [["1.5", "7"]] * 2
    assert outcomes[0][1:] == outcomes[1][1:] == ([], outcomes[0][2], [])
    assert not any(outcomes[0][2].values())


def test_rows_of_json_lines_cannot_make_a_check_fail(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text("none\n")
    check_events(str(path), COLUMNS, silent=True)
    with pytest.raises(ConfigurationError, match="no JSON object"):
        check_events(str(path), COLUMNS)
