"""The pass of a command over its input that discovers keys, before the pass that releases."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from streamveil.mechanisms.core.domains import parts_of
from streamveil.pipelines.console.logs import tell
from streamveil.pipelines.console.progress import progress
from streamveil.pipelines.jobs.job import Job
from streamveil.pipelines.jobs.run import events_of
from streamveil.pipelines.reports.plan_texts import about_discoverer
from streamveil.pipelines.runners.local_run import with_keys_discovered

if TYPE_CHECKING:
    from streamveil.engine.stream.query_plan import QueryPlan


def discovered(job: Job[QueryPlan], *, dry_run: bool) -> QueryPlan:
    """The plan of a job, which was checked, with the keys that are to be discovered.

    In a dry run, these are only the keys that are always listed, because a discovery spends budget.

    Raises:
        ConfigurationError: for what cannot be discovered.
    """
    if dry_run:
        from streamveil.engine.run.discover import with_allowed_keys  # only dry runs need it

        for one in job.plan.discoverers():
            _, other, _ = parts_of(one.query.domain)
            tell(
                f"{about_discoverer(one, job.plan.slots)}. A dry run discovers no keys: it counts "
                f"all keys that are not on the list allow as {other}",
                logging.INFO,
            )
        return with_allowed_keys(job.plan)
    with progress("streamveil release: discovering keys"):
        return with_keys_discovered(job.plan, events_of(job))
