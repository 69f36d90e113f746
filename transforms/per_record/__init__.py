"""Beam transforms of per-record privacy: records in, private statistics of windows and keys out."""

from streamveil.engine.per_record.budgets import Budget, CategoryBudget, ColumnsBudget, ValueBudget
from streamveil.transforms.per_record.local import CollectPerRecordCount, CollectPerRecordSum
from streamveil.transforms.per_record.statistics import (
    PerRecordCount,
    PerRecordDistinctCount,
    PerRecordMax,
    PerRecordRunningTotal,
    PerRecordSum,
)

__all__ = [
    "Budget",
    "CategoryBudget",
    "CollectPerRecordCount",
    "CollectPerRecordSum",
    "ColumnsBudget",
    "PerRecordCount",
    "PerRecordDistinctCount",
    "PerRecordMax",
    "PerRecordRunningTotal",
    "PerRecordSum",
    "ValueBudget",
]
