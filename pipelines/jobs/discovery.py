"""The pass of a command over its input that discovers keys, before the pass that releases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamveil.engine.capabilities import OF_DISCOVERED
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.queries.discovered import undiscovered
from streamveil.pipelines.console.progress import progress
from streamveil.pipelines.jobs.job import Job
from streamveil.pipelines.jobs.run import events_of
from streamveil.pipelines.runners.local_run import with_keys_discovered

if TYPE_CHECKING:
    from streamveil.engine.stream.query_plan import QueryPlan


def discovered(job: Job[QueryPlan], *, dry_run: bool) -> QueryPlan:
    """The plan of a job, which was checked, with the keys that are to be discovered.

    Raises:
        ConfigurationError: for a dry run, and for what cannot be discovered.
    """
    if dry_run:
        query = undiscovered(job.plan.query_set)[0].name
        raise ConfigurationError(f"query {query!r}: {OF_DISCOVERED['dry_run']}")
    with progress("streamveil release: discovering keys"):
        return with_keys_discovered(job.plan, events_of(job))
