"""`streamveil collect`: the local setting played through, events in, releases out."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, replace

from streamveil.engine.stream.local_plan import LocalPlan
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.pipelines.execution import Execution
from streamveil.pipelines.flags import is_true
from streamveil.pipelines.jobs import Job, following_of, in_time, kind_of, run_and_tell
from streamveil.pipelines.plans import local_plan_of
from streamveil.pipelines.values import check_required, check_revisions


@dataclass(frozen=True)
class CollectJob(Job[LocalPlan]):
    """One run: what to read, how devices report, where to write."""

    command = "collect"

    @classmethod
    def of(cls, given: Namespace, execution: Execution) -> CollectJob:
        """Read and check all options and the public tables; nothing is run yet.

        Raises ConfigurationError for anything missing or wrong.
        """
        _check(given)
        plan = local_plan_of(
            given, kind_of(LocalPlan, execution, allowed_lateness=given.allowed_lateness)
        )
        check_revisions(given, plan.mechanism, local=True)
        return in_time(cls.checked(given, plan), execution)


def _check(given: Namespace) -> None:
    if given.longest_window is not None and not given.state:
        raise ConfigurationError(
            f"--longest_window={given.longest_window} is about users whose requirements change: "
            "give --state as well, or leave it out"
        )
    check_required("collect", given)


def main(given: Namespace, execution: Execution) -> int:
    """Run the command, or tell what it would do; returns the exit code."""
    following = following_of(given, execution)
    if is_true("dry_run", given.dry_run):
        from streamveil.pipelines.dry_run import preview

        job = CollectJob.of(given, execution)
        card = job.card.plan if given.state is None else ()
        preview(job.input, job.plan, job.places, job.dialect, given.state, card)
        return 0
    if following is not None:
        from streamveil.pipelines.follow import follow

        _check(given)
        plan = local_plan_of(given, LocalPlan)
        plan = replace(plan, longest_window=given.longest_window)
        follow("collect", given, plan, following, revisions=given.revisions)
        return 0
    run_and_tell(CollectJob.of(given, execution), execution, "streamveil collect")
    return 0
