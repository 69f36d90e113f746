"""The counts that a release hides: for comparing with it, never for publishing."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamveil.transforms.counting import BlockCounts, Layout, count, pack, slot_tables
from streamveil.transforms.histograms import PrivateHistograms


def exact_counts(
    transform: PrivateHistograms, batches: Iterable[pa.RecordBatch], slots: Iterable[int]
) -> npt.NDArray[np.int64]:
    """Bounded events of each slot in each bin, without any protection: int64, shape (T, d).

    What PrivateHistograms would count of the same batches, all in memory and without Beam.
    """
    layout = Layout.choose(transform.registry, transform.domain.bins, 1, timely=False)
    mapper = transform.event_mapper()
    parts: dict[tuple[int, int], list[npt.NDArray[np.unsignedinteger]]] = {}
    for batch in batches:
        events, _ = mapper.map(batch)
        for block, (kind, _), codes, _ in pack(events, layout, transform.max_contributions):
            parts.setdefault((block, kind), []).append(codes)
    class_of = transform.registry.classes_with_other()
    tables: dict[int, npt.NDArray[np.int64]] = {}
    for (block, kind), arrays in parts.items():
        counted: BlockCounts = count(
            kind, block, arrays, layout, class_of, transform.max_contributions
        )
        for slot, table in slot_tables(block, [counted], layout):
            bins = table.sum(axis=0)
            tables[slot] = tables[slot] + bins if slot in tables else bins
    quiet = np.zeros(transform.domain.bins, dtype=np.int64)
    return np.stack([tables.get(slot, quiet) for slot in slots])
