"""How the results of a plan become rows of files, for runs and for passes alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from streamveil.engine.messages import LEDGER, REVISIONS
from streamveil.engine.plan_kinds import PlanKind
from streamveil.io.releases import ledger_form, release_form
from streamveil.io.revisions import revision_form
from streamveil.io.tables import TableForm
from streamveil.mechanisms.registry import only_dynamic

if TYPE_CHECKING:
    from streamveil.engine.stream.histogram_plan import HistogramPlan
    from streamveil.engine.stream.local_plan import LocalPlan


FormOf = Callable[[str], TableForm]
"""The form for a path. Raises ConfigurationError for one that cannot be."""


def forms_of(
    plan: HistogramPlan | LocalPlan, layout: str, *, changes: bool
) -> Mapping[str | None, FormOf]:
    """The form of each kind of results, by the tag that the engine gives it.

    Args:
        plan: what is released.
        layout: of releases and revisions.
        changes: whether requirements may change.
    """
    labels, dynamic = plan.domain.labels, has_dynamic_ledger(plan, changes=changes)
    return {
        None: partial(release_form, labels=labels, shares=has_shares(plan), layout=layout),
        REVISIONS: partial(revision_form, labels=labels, layout=layout),
        LEDGER: lambda _: ledger_form(dynamic),
    }


def has_shares(plan: HistogramPlan | LocalPlan) -> bool:
    """Whether releases have shares: those of one budget forever."""
    return plan.plan_kind is PlanKind.HISTOGRAMS and plan.population.requirements.forever


def has_dynamic_ledger(plan: HistogramPlan | LocalPlan, *, changes: bool) -> bool:
    """Whether rows of the ledger are about requirements that change."""
    by_ledger = changes and plan.plan_kind is PlanKind.HISTOGRAMS and plan.limits is None
    return by_ledger or only_dynamic(plan.mechanism)
