"""How Arrow record batches travel between Beam's workers."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from apache_beam import coders


class RecordBatchCoder(coders.Coder):
    """Codes a pa.RecordBatch as an Arrow IPC stream: its schema with metadata, and its own rows.

    Pickle, Beam's default, would carry the whole parent of a slice along.
    """

    def encode(self, value: pa.RecordBatch) -> bytes:
        """Write one batch as a stream."""
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
        """Read the batch; its arrays share the memory of `encoded`."""
        with pa.ipc.open_stream(pa.py_buffer(encoded)) as reader:
            return reader.read_next_batch()

    def estimate_size(self, value: pa.RecordBatch) -> int:
        """Bytes of the rows; Beam's default would encode the batch to find out."""
        return value.nbytes

    def is_deterministic(self) -> bool:
        """Equal batches may differ in their chunks of memory: no key of a group."""
        return False

    def to_type_hint(self) -> type:
        """The type that is coded."""
        return pa.RecordBatch

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


coders.registry.register_coder(pa.RecordBatch, RecordBatchCoder)
