"""How Arrow record batches travel between Beam's workers."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from apache_beam import coders


class RecordBatchCoder(coders.Coder):
    """Encode an Arrow record batch as an IPC stream, including the metadata of its schema.

    The encoding contains only the rows of the batch, even if the batch is a slice of a larger
    table. For such a slice, Beam's default coder (pickle) would encode the whole table.
    """

    def encode(self, value: pa.RecordBatch) -> bytes:
        """Encode one batch."""
        # A slice has the whole dictionary of its parent, which may be far larger than its rows.
        for index, column in enumerate(value.columns):
            if pa.types.is_dictionary(column.type) and len(column.dictionary) > len(column):
                small = pc.dictionary_encode(column.dictionary_decode()).cast(column.type)
                value = value.set_column(index, value.schema.field(index), small)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, value.schema) as writer:
            writer.write_batch(value)
        return sink.getvalue().to_pybytes()

    def decode(self, encoded: bytes) -> pa.RecordBatch:
        """Decode a batch. The arrays of the batch use the memory of `encoded` without a copy."""
        with pa.ipc.open_stream(pa.py_buffer(encoded)) as reader:
            return reader.read_next_batch()

    def estimate_size(self, value: pa.RecordBatch) -> int:
        """Return the size of the rows in bytes, without encoding the batch."""
        return value.nbytes

    def is_deterministic(self) -> bool:
        """Return False, because two equal batches may be encoded as different bytes."""
        return False

    def to_type_hint(self) -> type:
        """The type of the values."""
        return pa.RecordBatch

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


coders.registry.register_coder(pa.RecordBatch, RecordBatchCoder)
