"""Rarer options of a run in this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streamveil.mechanisms.core.parameter_checks import MAX_REJECTED
from streamveil.mechanisms.core.records import UNIFORM


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Less common options of a release, for example how event times are parsed.

    Each field has the same name and the same meaning as an option of the command `streamveil
    release`. The fields are checked when the release begins. If a value is not valid, the release
    raises ConfigurationError.

    Example:
        >>> RunOptions(time_zone="Europe/Paris", max_rejected=0.01).time_zone
        'Europe/Paris'
    """

    time_zone: str | None = None
    """Time zone of times that have no UTC offset. If None, they are in UTC."""
    time_unit: str | None = None
    """Unit of times that are numbers: `s`, `ms`, `us`, `ns`, or `excel` for serial dates."""
    time_format: str | list[str] | None = None
    """Format of times that are not in ISO 8601, as strptime codes, or a list of such formats."""
    delimiter: str | None = None
    """The character that separates the fields of CSV files."""
    columns: Any = None
    """Names of all columns of CSV files that have no header."""
    slot_zone: str | None = None
    """Time zone whose calendar days, weeks, months or years are used as slots."""
    origin: Any = None
    """Start of slot 0, in ISO 8601 or as a datetime."""
    other: str | None = None
    """Name of an extra last key for values that are not in `domain`."""
    null: str | None = None
    """Name of an extra last key for missing values and empty text."""
    keep: str = UNIFORM
    """Which events are kept if a user has more than `max_contributions`. `uniform` keeps a random
    sample, and `distinct` prefers events with different keys."""
    requirement_columns: Any = None
    """Names of the columns with users, windows and epsilons in the requirements table, and
    optionally of the column with participation limits."""
    default_requirement: Any = None
    """Window and epsilon of unregistered users, who are not in the requirements table. An optional
    third value is the assumed number of these users. It is public and limits no count."""
    longest_window: int | None = None
    """The longest window, in slots, that a change of requirements may set."""
    max_rejected: float = MAX_REJECTED
    """The largest fraction of events that may be rejected, from 0 to 1."""
    revise: int | None = None
    """Number of slots after which a smoothed estimate of every slot is also released. The last
    slots are revised when the release ends. Revisions spend no extra budget. For a query with
    longer slots, the number counts the slots of that query."""
    test_mode: bool = False
    """Release exact results with the status `test`, which are NOT private. Use this with synthetic
    data while you develop a pipeline."""


USUAL_RUN = RunOptions()


def options_of_run(run: Any) -> dict[str, Any]:
    """The options of a run by name. Raises TypeError for anything else."""
    if not isinstance(run, RunOptions):
        raise TypeError(
            f"run is of type {type(run).__name__}: give sv.RunOptions(...) with options by name"
        )
    return vars(run)
