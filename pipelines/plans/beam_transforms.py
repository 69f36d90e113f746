"""The transforms of Beam that are plans: a command makes one of them in place of its plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from streamveil.engine.per_record.records_plan import (
    CountPlan,
    DistinctPlan,
    MaxPlan,
    RunningTotalPlan,
    SumPlan,
)
from streamveil.engine.stream.histogram_plan import HistogramPlan
from streamveil.engine.stream.local_plan import LocalPlan
from streamveil.engine.stream.query_plan import QueryPlan
from streamveil.pipelines.plans.record_plans import RECORD_PLANS
from streamveil.transforms import CollectHistograms
from streamveil.transforms.per_record import (
    PerRecordCount,
    PerRecordDistinctCount,
    PerRecordMax,
    PerRecordRunningTotal,
    PerRecordSum,
)
from streamveil.transforms.release_plan import PrivateAnswers, PrivateHistograms

TRANSFORMS: Mapping[type[Any], Callable[..., Any]] = {
    HistogramPlan: PrivateHistograms,
    LocalPlan: CollectHistograms,
    QueryPlan: PrivateAnswers,
    CountPlan: PerRecordCount,
    SumPlan: PerRecordSum,
    MaxPlan: PerRecordMax,
    DistinctPlan: PerRecordDistinctCount,
    RunningTotalPlan: PerRecordRunningTotal,
}
"""The transform that extends a plan."""
STATISTICS = {name: TRANSFORMS[kind] for name, kind in RECORD_PLANS.items()}
"""The same of statistics that protect each record, by name."""
