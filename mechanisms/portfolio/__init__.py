"""Many questions over one stream of events, answered from one budget."""

from typing import TYPE_CHECKING

from streamveil.mechanisms.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from streamveil.mechanisms.portfolio.conditions import Condition
    from streamveil.mechanisms.portfolio.questions import Portfolio, Question
    from streamveil.mechanisms.portfolio.shares import plan_shares
    from streamveil.mechanisms.portfolio.statistics import (
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
    from streamveil.mechanisms.portfolio.trees import Tree

__all__ = [
    "Condition",
    "Count",
    "DistinctUsers",
    "Mean",
    "Portfolio",
    "Quantiles",
    "Question",
    "StandardDeviation",
    "Sum",
    "TopK",
    "Tree",
    "Variance",
    "log_edges",
    "plan_shares",
]

__getattr__, __dir__ = lazy_names(__name__)
