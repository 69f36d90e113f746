"""`streamveil release`: events from files or a stream, private results to files or a stream."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from streamveil.engine.plan_kinds import PlanKind
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import opt
from streamveil.pipelines.console.logs import tell
from streamveil.pipelines.jobs.discovery import discovered
from streamveil.pipelines.jobs.job import Job
from streamveil.pipelines.jobs.run import in_time, run_and_tell
from streamveil.pipelines.options.execution import Execution
from streamveil.pipelines.options.parsers import check_going_on
from streamveil.pipelines.plans.user_plans import plan_of
from streamveil.pipelines.reports.plan_texts import about_plan

if TYPE_CHECKING:
    from streamveil.pipelines.state_runs.settings import Following


def main(given: Namespace, execution: Execution) -> int:
    """Run the command, or tell what it would do; returns the exit code."""
    return run_command("release", given, execution)


# What only some runs need is imported by them: a run begins sooner.
def run_command(command: str, given: Namespace, execution: Execution) -> int:
    """The same of a command that releases what protects users: `release` or `collect`."""
    following = _following_of(given, execution)
    plan = plan_of(command, given, execution)
    for text, level in about_plan(plan):  # what follows from public facts
        tell(text, level)
    ahead = following is None and execution.here  # else a pass or a runner discovers keys
    if plan.plan_kind is PlanKind.QUERIES and plan.discovers and (ahead or given.dry_run):
        plan = discovered(_job_of(command, given, plan, execution), dry_run=given.dry_run)
    if given.dry_run:
        from streamveil.pipelines.jobs.dry_run import preview

        if following is not None:
            _check_state(given, plan, following)
        preview(_job_of(command, given, plan, execution), given.state)
    elif following is not None:
        from streamveil.pipelines.state_runs.follow import follow

        follow(command, given, plan, following)
    else:
        job = _job_of(command, given, plan, execution)
        run_and_tell(job, execution, f"streamveil {command}")
    return 0


def _check_state(given: Namespace, plan: Any, following: Following) -> None:
    """Refuse a state, or its absence, as the run would. Nothing is changed.

    Raises ConfigurationError.
    """
    from streamveil.io import StateFolder
    from streamveil.pipelines.outputs.of_plan import outputs_of
    from streamveil.pipelines.state_runs.state_checks import StateChecks

    folder = StateFolder(os.path.abspath(following.state))
    StateChecks(plan, following, folder, outputs_of(plan, given.layout)).begin()


def job_of(command: str, given: Namespace, execution: Execution) -> Job[Any]:
    """Read and check all that the options name: places and public files; nothing is run yet.

    Raises ConfigurationError for anything missing or wrong.
    """
    return _job_of(command, given, plan_of(command, given, execution), execution)


def _job_of(command: str, given: Namespace, plan: Any, execution: Execution) -> Job[Any]:
    return in_time(Job.checked(given, plan, command), execution)


def _following_of(given: Any, execution: Execution) -> Following | None:
    """When slots are released, and where the state is; None without a state.

    Raises ConfigurationError.
    """
    check_going_on(given)
    if not given.state:
        return None
    if not execution.here:
        raise ConfigurationError(
            f"{opt.state}={given.state} is for passes in this process, and "
            f"{execution.of_runner[0]} is for a runner, which keeps a state of its own: leave one "
            f"of them out"
        )
    from streamveil.pipelines.state_runs.settings import Following  # half of a command's modules

    return Following.of(given)
