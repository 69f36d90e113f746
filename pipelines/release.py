"""`streamveil release`: events from files or a stream, private releases to a file or a stream."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass

from streamveil.engine.stream.histogram_plan import HistogramPlan
from streamveil.pipelines.execution import Execution
from streamveil.pipelines.flags import is_true
from streamveil.pipelines.jobs import Job, following_of, in_time, kind_of, run_and_tell
from streamveil.pipelines.logs import tell
from streamveil.pipelines.plan_texts import about_least_total, about_limits
from streamveil.pipelines.plans import histogram_plan_of
from streamveil.pipelines.values import check_required, check_revisions


@dataclass(frozen=True)
class ReleaseJob(Job[HistogramPlan]):
    """One run of the main job: what to read, how to count, where to write."""

    @classmethod
    def of(cls, given: Namespace, execution: Execution) -> ReleaseJob:
        """Read and check all options and the public tables; nothing is run yet.

        Raises ConfigurationError for anything missing or wrong.
        """
        check_required("release", given)
        plan = histogram_plan_of(
            given, kind_of(HistogramPlan, execution, allowed_lateness=given.allowed_lateness)
        )
        check_revisions(given, plan.mechanism)
        job = cls.checked(given, plan)
        if not is_true("resume", given.resume):  # which goes on with what was chosen
            plan.check_look()
        return in_time(job, execution)


def tell_before(plan: HistogramPlan) -> None:
    """Say what follows from public facts, before anything is read."""
    told = about_least_total(plan)
    if told is not None:
        tell(*told)
    tell_limits(plan)


def tell_limits(plan: HistogramPlan) -> None:
    """Say how presence is limited, where that is not what was asked for."""
    told = about_limits(plan)
    if told is not None:
        tell(told)


# What only some runs need is imported by them: a run begins sooner.
def main(given: Namespace, execution: Execution) -> int:
    """Run the command, or tell what it would do; returns the exit code."""
    following, dry = following_of(given, execution), is_true("dry_run", given.dry_run)
    if given.questions:
        from streamveil.pipelines import questions

        return questions.main(given, execution, following)
    if dry:
        from streamveil.pipelines.dry_run import preview

        job = ReleaseJob.of(given, execution)
        tell_limits(job.plan)
        card = job.card.plan if given.state is None else ()
        preview(job.input, job.plan, job.places, job.dialect, given.state, card)
        return 0
    if following is not None:
        from streamveil.pipelines.follow import follow

        check_required("release", given)
        plan = histogram_plan_of(given, HistogramPlan)
        if not following.resume:
            plan.check_look(following.most_slots)
        tell_before(plan)
        follow("release", given, plan, following, given.requirement_changes, given.revisions)
        return 0
    job = ReleaseJob.of(given, execution)
    tell_before(job.plan)
    run_and_tell(job, execution, "streamveil release")
    return 0
