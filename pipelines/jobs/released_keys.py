"""Keys that a runner discovered, as its results name them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from streamveil.engine.plan_kinds import PlanKind
from streamveil.io import is_stream, read_table
from streamveil.mechanisms.queries.discovered import Listed, undiscovered
from streamveil.pipelines.cards.claims import ANSWERS
from streamveil.pipelines.jobs.job import Job

if TYPE_CHECKING:
    from streamveil.engine.stream.query_plan import QueryPlan
    from streamveil.mechanisms.queries.queries import Query


def with_released_keys(job: Job[QueryPlan]) -> Job[QueryPlan]:
    """A job that a runner has run to its end, with the keys that it discovered.

    These are the keys in the files of its results. The job stays as it is if its keys are known,
    or if the results went to a stream or a table.
    """
    if job.plan.plan_kind is not PlanKind.QUERIES or is_stream(job.output):
        return job
    unknown = undiscovered(job.plan.query_set)
    if not unknown:
        return job
    found = {one.name: _released(one, job.public_places[ANSWERS + one.name]) for one in unknown}
    return replace(job, plan=job.plan.with_keys(found))


def _released(query: Query, path: str) -> Listed:
    """The keys of a query in the file of its results, in the order of its bins."""
    table = read_table(path, ("key", "level"))
    rows = zip(table["key"].to_pylist(), table["level"].to_pylist(), strict=True)
    bins = dict.fromkeys(key for key, level in rows if level == 0)
    return Listed(tuple(key for key in bins if key not in query.domain.labels))
