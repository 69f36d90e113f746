"""Messages of Pub/Sub that were kept as files."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamveil.engine import metrics
from streamveil.engine.messages import REJECTED
from streamveil.io import ReadPubSubEvents, inbox_outputs
from streamveil.mechanisms import ConfigurationError

pytest.importorskip("google.cloud.pubsub", reason="the extra gcp is not installed")

NAMES = ("user", "value")


@pytest.fixture
def source():
    name = "projects/project/subscriptions/name"
    return ReadPubSubEvents(columns=NAMES, subscription=name, max_field_bytes=10)


def kept(path, *messages):
    """A file of an inbox."""
    keys = [f"{number}@0" for number in range(len(messages))]
    pq.write_table(pa.table({"key": keys, "data": pa.array(messages, pa.binary())}), path)
    return str(path)


def collected(outputs):
    """(file, user) of all events, (file, reason) of all dead letters, and what was counted."""
    events, letters = [], []
    with metrics.counting() as counts:
        for value, tag, _ in outputs:
            if tag == REJECTED:
                letters += [(row["source"], row["reason"]) for row in value.to_pylist()]
            else:
                file = value.schema.metadata[b"streamveil.source"].decode()
                events += [(file, row["user"]) for row in value.to_pylist()]
    return events, letters, counts.counters


def test_files_are_read_as_the_source_says_and_named_in_dead_letters(tmp_path, source):
    first = kept(tmp_path / "1.parquet", b'{"user":"a"}', b"no", b'[{"user":"b"},{"user":"c"}]')
    second = kept(tmp_path / "2.parquet", b'{"user":"12345678901"}', b'{"user":"d"}')
    events = [(first, "a"), (first, "b"), (first, "c"), (second, "d")]
    letters = [(first, "unparsable"), (second, "field too long")]
    # Whoever takes the dead letters counts them.
    assert collected(inbox_outputs([first, second], source)) == (events, letters, {})
    assert collected(inbox_outputs([first, second], source, again=True)) == (events, [], {})


def test_a_file_that_is_broken_is_refused(tmp_path, source):
    (tmp_path / "1.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigurationError, match=r"1\.parquet: the file cannot be read"):
        collected(inbox_outputs([str(tmp_path / "1.parquet")], source))
