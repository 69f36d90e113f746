import pyarrow as pa
from apache_beam import coders

from streamveil.io import RecordBatchCoder


def batch_of(rows):
    return pa.record_batch(
        {
            "id": pa.array([f"user-{i}" for i in range(rows)]),
            "kind": pa.array([f"kind-{i}" for i in range(rows)]).dictionary_encode(),
            "n": pa.array(range(rows)),
        }
    ).replace_schema_metadata({"streamveil.source": "here"})


def test_batches_keep_values_types_and_metadata():
    coder = coders.registry.get_coder(pa.RecordBatch)
    assert isinstance(coder, RecordBatchCoder)
    batch = batch_of(100)
    for part in (batch, batch.slice(40, 7), batch.slice(0, 0)):
        back = coder.decode(coder.encode(part))
        assert back.to_pylist() == part.to_pylist()
        assert back.schema.equals(part.schema, check_metadata=True)


def test_a_slice_does_not_carry_the_buffers_or_dictionary_of_its_parent():
    batch = batch_of(100_000)
    encoded = RecordBatchCoder().encode(batch.slice(500, 10))
    assert len(encoded) < 4_000
    assert RecordBatchCoder().decode(encoded)["kind"].to_pylist() == [
        f"kind-{i}" for i in range(500, 510)
    ]
