"""Beam transforms that turn events into private results."""

from typing import TYPE_CHECKING

from streamveil.mechanisms.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from streamveil.engine.encode.event_mapper import Columns
    from streamveil.engine.stream.noise_keys import RotatedKey
    from streamveil.mechanisms.core.records import ADD_REMOVE, REPLACE
    from streamveil.transforms.local.collect_histograms import CollectHistograms
    from streamveil.transforms.local.collect_reports import CollectedReports, CollectReports
    from streamveil.transforms.per_record import (
        CategoryBudget,
        CollectPerRecordCount,
        CollectPerRecordSum,
        ColumnsBudget,
        PerRecordCount,
        PerRecordDistinctCount,
        PerRecordMax,
        PerRecordRunningTotal,
        PerRecordSum,
        ValueBudget,
    )
    from streamveil.transforms.private_queries import PrivateQueries
    from streamveil.transforms.release_plan import QueryOutputs
    from streamveil.transforms.result_rows import ResultRows
    from streamveil.transforms.slots.heartbeat import Heartbeat

__all__ = [
    "ADD_REMOVE",
    "REPLACE",
    "CategoryBudget",
    "CollectHistograms",
    "CollectPerRecordCount",
    "CollectPerRecordSum",
    "CollectReports",
    "CollectedReports",
    "Columns",
    "ColumnsBudget",
    "Heartbeat",
    "PerRecordCount",
    "PerRecordDistinctCount",
    "PerRecordMax",
    "PerRecordRunningTotal",
    "PerRecordSum",
    "PrivateQueries",
    "QueryOutputs",
    "ResultRows",
    "RotatedKey",
    "ValueBudget",
]

__getattr__, __dir__ = lazy_names(__name__)
