"""The results of a plan, of whichever kind it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamveil.engine.plan_kinds import PlanKind
from streamveil.io.tidy import TIDY

if TYPE_CHECKING:
    from streamveil.engine.plans import UserPlan
    from streamveil.pipelines.outputs.outputs import Outputs


def outputs_of(plan: UserPlan, layout: str | None = None, *, changes: bool = False) -> Outputs:
    """The results of a plan.

    Args:
        plan: what is released.
        layout: of releases and revisions; None is tidy. Answers to queries always are tidy.
        changes: whether requirements may change.
    """
    # Each kind imports what only that kind needs.
    if plan.plan_kind is PlanKind.QUERIES:
        from streamveil.pipelines.outputs.query_outputs import QueryOutputs

        return QueryOutputs(plan)
    from streamveil.pipelines.outputs.histogram_outputs import HistogramOutputs

    return HistogramOutputs(plan, layout or TIDY, changes)
