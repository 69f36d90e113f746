"""Many queries over one stream of events, answered from one budget."""

from typing import TYPE_CHECKING

from streamveil.mechanisms.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from streamveil.mechanisms.queries.conditions import Condition
    from streamveil.mechanisms.queries.definitions import QueryDefinition
    from streamveil.mechanisms.queries.queries import Query, QuerySet
    from streamveil.mechanisms.queries.reading import query_set
    from streamveil.mechanisms.queries.shares import plan_shares
    from streamveil.mechanisms.queries.statistics import (
        Count,
        DistinctUsers,
        Mean,
        Quantiles,
        StandardDeviation,
        Sum,
        TopK,
        Variance,
        log_edges,
    )
    from streamveil.mechanisms.queries.trees import Tree

__all__ = [
    "Condition",
    "Count",
    "DistinctUsers",
    "Mean",
    "Quantiles",
    "Query",
    "QueryDefinition",
    "QuerySet",
    "StandardDeviation",
    "Sum",
    "TopK",
    "Tree",
    "Variance",
    "log_edges",
    "plan_shares",
    "query_set",
]

__getattr__, __dir__ = lazy_names(__name__)
