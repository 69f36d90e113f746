"""Beam transforms: events in, private releases out."""

from typing import TYPE_CHECKING

from streamveil.mechanisms.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from streamveil.engine.encode.event_mapper import Columns
    from streamveil.engine.stream.noise_keys import RotatedKey
    from streamveil.engine.stream.query_plan import columns_for
    from streamveil.mechanisms.core.records import ADD_REMOVE, REPLACE
    from streamveil.transforms.histograms import Outputs, PrivateHistograms
    from streamveil.transforms.local.collect_histograms import Collected, CollectHistograms
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
    from streamveil.transforms.portfolio.answers import Answers, PrivateAnswers
    from streamveil.transforms.release_rows import ReleaseRows
    from streamveil.transforms.slots.heartbeat import Heartbeat

__all__ = [
    "ADD_REMOVE",
    "REPLACE",
    "Answers",
    "CategoryBudget",
    "CollectHistograms",
    "CollectPerRecordCount",
    "CollectPerRecordSum",
    "CollectReports",
    "Collected",
    "CollectedReports",
    "Columns",
    "ColumnsBudget",
    "Heartbeat",
    "Outputs",
    "PerRecordCount",
    "PerRecordDistinctCount",
    "PerRecordMax",
    "PerRecordRunningTotal",
    "PerRecordSum",
    "PrivateAnswers",
    "PrivateHistograms",
    "ReleaseRows",
    "RotatedKey",
    "ValueBudget",
    "columns_for",
]

__getattr__, __dir__ = lazy_names(__name__)
