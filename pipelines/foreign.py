"""Options of `streamveil release` that have no meaning for another command, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.pipelines.options import (
    CHANGE_OPTIONS,
    FOLLOW_OPTIONS,
    LIMIT_OPTIONS,
    QUESTION_OPTIONS,
    REVISE_OPTIONS,
)

_SILENT = "bad records leave no trace: telling of one would cost it all of its protection"
_OF_RECORD = "a record's budget is --budget of the record"

LOCAL_SAYING = "is for streamveil release: in the local setting"
NOT_LOCAL: Mapping[str, str] = {
    "max_contributions": "a device reports one value in a slot",
    "adjacency": "one guarantee covers events added, removed and replaced",
    "default_requirement": "the server must know whom it can ask: list every user",
}
"""Of the options of `add_job_options`."""
NOT_LOCAL_RELEASE: Mapping[str, str] = {
    "requirement_changes": "requirements change with the table, from one run with --state to the "
    "next",
    **dict.fromkeys(("guarantee", "epsilon"), "every user has a requirement over windows"),
    "restart_budget": "budgets come back by themselves",
    **dict.fromkeys(QUESTION_OPTIONS, "a device answers one question"),
    **dict.fromkeys(
        LIMIT_OPTIONS,
        "devices count by themselves: where users are rarely there, say "
        "--mechanism=rotation:turns=20",
    ),
}
"""Of the options of `add_release_options`."""

PER_RECORD_SAYING = "is not for per-record:"
NOT_PER_RECORD: Mapping[str, str] = {
    "rejected": _SILENT,
    "ledger": "every record pays its budget at most once, and what it is is secret",
    "user_column": "the unit is the record; say --max_records_per_user",
    "requirements": _OF_RECORD,
    "requirement_columns": _OF_RECORD,
    "layout": "a row is of one key and window already",
    "default_requirement": _OF_RECORD,
    "domain": "there are no bins; public groups are --key_column and --keys",
    "max_contributions": "say --max_records_per_user",
    "adjacency": "neighbouring inputs differ in one record",
    "shards": "records need not be gathered by user",
    **dict.fromkeys(("summary", "max_rejected"), _SILENT),
    "keep": "say --max_records_per_user",
    **dict.fromkeys(("other", "null"), "there are no bins"),
}
"""Of the options of `add_job_options`."""
NOT_PER_RECORD_RELEASE: Mapping[str, str] = {
    **dict.fromkeys(CHANGE_OPTIONS, "there are no requirements"),
    **dict.fromkeys(REVISE_OPTIONS, "no mechanism revises"),
    **dict.fromkeys(("guarantee", "epsilon"), _OF_RECORD),
    **dict.fromkeys(LIMIT_OPTIONS, "the unit is the record; say --max_records_per_user"),
    **dict.fromkeys(QUESTION_OPTIONS, "a run has one --statistic"),
    **dict.fromkeys(FOLLOW_OPTIONS, "a run keeps no state for a later one"),
}
"""Of the options of `add_release_options`."""

QUESTIONS_SAYING = "is not for --questions:"
_OF_QUESTION = "each question of the file has its own"
NOT_QUESTIONS: Mapping[str, str] = {
    **dict.fromkeys(("value_column", "domain", "other", "null", "mechanism"), _OF_QUESTION),
    **dict.fromkeys(("max_contributions", "keep"), _OF_QUESTION),
    "slot": "the file has a base_slot, and each question of it a slot",
    "slot_zone": "their days have 24 hours, and weeks seven of these",
    "layout": "answers are tidy, a row for each slot, bin and figure",
    **dict.fromkeys(REVISE_OPTIONS, "answers are not revised"),
    **dict.fromkeys(LIMIT_OPTIONS, "their users count in every slot"),
    **dict.fromkeys(CHANGE_OPTIONS, "requirements stay as they are"),
    **dict.fromkeys(("guarantee", "epsilon"), "every user has a requirement over windows"),
    "restart_budget": "budgets come back by themselves",
}
"""Of all options of `streamveil release`."""


NOT_QUESTIONS_COMPARED: Mapping[str, str] = {
    name: NOT_QUESTIONS[name]
    for name in (
        *(
            "value_column",
            "domain",
            "other",
            "null",
            "slot",
            "slot_zone",
            "max_contributions",
            "keep",
        ),
        *("revise", "max_slots", "guarantee", "epsilon"),
    )
} | {
    **dict.fromkeys(("streams", "users", "slots", "events"), "they are asked about --input"),
    "mechanisms": _OF_QUESTION,
    **dict.fromkeys(("epsilons", "windows"), "change the table of requirements"),
    "format": "name the columns",
    **dict.fromkeys(
        ("per_record", "statistics", "runs", "records", "budget", "value_max", "epsilon_max"),
        "it is for statistics of records",
    ),
}
"""Of all options of `streamveil evaluate`."""


def refuse_foreign(given: Any, usual: Any, reasons: Mapping[str, str], saying: str) -> None:
    """Raise ConfigurationError where an option is given that has no meaning here.

    Args:
        given: the options as they were given.
        usual: as they are when none is given.
        reasons: why each is refused.
        saying: what stands between the option and the reason.
    """
    for name, why in reasons.items():
        value = getattr(given, name)
        if value != getattr(usual, name):
            raise ConfigurationError(f"--{name}={value} {saying} {why}")
