"""What options of `streamveil per-record` need, and which do not fit each other: without Beam."""

from __future__ import annotations

from typing import Any

from streamveil.io.places import is_endless
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.registry import PER_RECORD_MECHANISMS, parse
from streamveil.pipelines.options.budget_functions import budget_of
from streamveil.pipelines.options.declarations import COUNT, RUNNING_COUNT, STATISTICS, TABLE
from streamveil.pipelines.options.parsers import check_required

RUNNING = "running-"
WITHOUT_VALUE = (COUNT, RUNNING_COUNT)
WITHOUT_WINDOW = {
    "distinct": "distinct counts of panes do not add up to one of several",
    **dict.fromkeys((RUNNING_COUNT, "running-sum"), "a running total is from the first slot on"),
}

# Options that say something only where there are slots.
_ABOUT_TIME = (
    *("time_column", "time_zone", "time_unit", "time_format"),
    *("slot_zone", "origin", "start", "end"),
)


def check_statistic(given: Any) -> None:
    """Refuse what cannot be computed, or lacks an option. Raises ConfigurationError."""
    kind = statistic_of("per-record", given)
    if given.mechanism:
        parse(given.mechanism, PER_RECORD_MECHANISMS[kind.removeprefix(RUNNING)])
    _check_times(given)
    _check_keys(given)
    if kind not in WITHOUT_VALUE and not given.value_column:
        raise ConfigurationError(f"{opt.value_column} is missing: {opt.statistic}={kind} is of one")
    if kind in WITHOUT_WINDOW and given.window != 1:
        raise ConfigurationError(f"{opt.window}={given.window}: {WITHOUT_WINDOW[kind]}")
    _check_budget(given)


def statistic_of(command: str, given: Any) -> str:
    """The statistic. Raises ConfigurationError if it is missing or unknown."""
    check_required(command, given, ("statistic", "budget"))
    kind: str = given.statistic
    if kind not in STATISTICS:
        raise ConfigurationError(
            f"{opt.statistic}={kind} is unknown: choose of {', '.join(STATISTICS)}"
        )
    return kind


def needed_of(given: Any) -> list[str]:
    """Options that the given ones need, which :func:`check_statistic` refuses one by one."""
    needed = []
    if given.statistic in STATISTICS and given.statistic not in WITHOUT_VALUE:
        needed.append("value_column")
    if given.budget and not given.budget.startswith(TABLE):
        needed += ["value_max", "epsilon_max"]
        needed += [] if given.value_column or needed[0] == "value_column" else ["budget_column"]
    if given.slot:
        needed.append("time_column")
        needed += [] if given.input and is_endless(given.input) else ["start", "end"]
    return needed


def _check_budget(given: Any) -> None:
    if given.budget.startswith(TABLE):
        if not given.budget_column:
            raise ConfigurationError(
                f"{opt.budget_column} is missing: name the column to look up in {given.budget}"
            )
        return
    if not (given.budget_column or given.value_column):
        raise ConfigurationError(
            f"{opt.budget_column} is missing: name the column that {opt.budget}={given.budget} is "
            f"of"
        )
    check_function(given)


def check_function(given: Any) -> None:
    """Refuse a budget function that is invalid or has no bound. Raises ConfigurationError."""
    if given.epsilon_min is not None:
        raise ConfigurationError(
            f"{opt.epsilon_min}={given.epsilon_min:g} is for {opt.budget}={TABLE}FILE: of "
            f"{opt.budget}={given.budget} it is the budget of {opt.value_max}"
        )
    for name in ("value_max", "epsilon_max"):
        if getattr(given, name) is None:
            raise ConfigurationError(
                f"{opt[name]} is missing: {opt.budget}={given.budget} needs it"
            )
    budget_of(given.budget, given.value_max, given.epsilon_max)


def _check_times(given: Any) -> None:
    # Without an input, only the transform will see whether it has an end.
    endless = given.input is not None and is_endless(given.input)
    if not given.slot:
        for name in _ABOUT_TIME:
            if getattr(given, name) is not None:
                raise ConfigurationError(
                    f"{opt[name]}={getattr(given, name)} is about slots of time: give {opt.slot} "
                    f"as well"
                )
        if given.window != 1 or given.statistic.startswith("running") or endless:
            raise ConfigurationError(
                f"{opt.slot} is missing: sliding windows, running totals and unbounded inputs "
                "need slots"
            )
        return
    if not given.time_column:
        raise ConfigurationError(f"{opt.time_column} is missing: {opt.slot}={given.slot} needs it")
    if given.input is not None and not endless and None in (given.start, given.end):
        raise ConfigurationError(
            f"{opt.start} and {opt.end} are missing: which slots there are is public, so it must "
            f"not come from the records"
        )


def _check_keys(given: Any) -> None:
    if bool(given.key_column) != bool(given.keys):
        lacking, other = ("key_column", "keys") if given.keys else ("keys", "key_column")
        raise ConfigurationError(
            f"{opt[lacking]} is missing: {opt[other]}={getattr(given, other)} needs it; keys are "
            f"public, so they must not come from the records"
        )
