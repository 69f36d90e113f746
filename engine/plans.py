"""Plans of several kinds, for type checkers: at run time this imports none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from streamveil.engine.per_record.records_plan import RecordsPlan
    from streamveil.engine.stream.histogram_plan import HistogramPlan
    from streamveil.engine.stream.local_plan import LocalPlan
    from streamveil.engine.stream.query_plan import QueryPlan

    UserPlan: TypeAlias = HistogramPlan | LocalPlan | QueryPlan
    """A plan that protects users."""
    Plan: TypeAlias = UserPlan | RecordsPlan
