"""What `streamveil audit` takes of `streamveil per-record`, declared without Beam."""

from __future__ import annotations

import argparse

from streamveil.mechanisms.core.parameter_checks import whole
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.registry import DEFAULTS, PER_RECORD_MECHANISMS, parse
from streamveil.pipelines.budgets import budget_of
from streamveil.pipelines.flags import is_true
from streamveil.pipelines.foreign import (
    NOT_PER_RECORD,
    NOT_PER_RECORD_RELEASE,
    PER_RECORD_SAYING,
    QUESTIONS_SAYING,
    refuse_foreign,
)
from streamveil.pipelines.options import STATISTICS, TABLE, add_budget_options
from streamveil.pipelines.sections import STATISTIC, section
from streamveil.pipelines.statistics import WITHOUT_VALUE
from streamveil.pipelines.values import check_required

RUNNING = "running-"
RECORD_OPTIONS = (
    *("statistic", "budget", "value_max", "epsilon_max", "epsilon_min", "budget_column"),
    *("beta", "max_records_per_user"),
)
_NAMES = {name for known in PER_RECORD_MECHANISMS.values() for name in known}
_ONCE = "a record pays once, whatever its slot: audited is one release of all records"
_REFUSED = {
    **{
        name: NOT_PER_RECORD[name]
        for name in (
            *("user_column", "requirements", "requirement_columns", "default_requirement"),
            *("domain", "other", "null", "max_contributions", "adjacency", "keep", "rejected"),
        )
    },
    **{
        name: NOT_PER_RECORD_RELEASE[name]
        for name in ("guarantee", "epsilon", "max_slots", "requirement_changes", "longest_window")
    },
    "bins": "there are none",
    **dict.fromkeys(("time_column", "slot", "slot_zone", "origin", "start", "end"), _ONCE),
}
_OF_BUDGETS = "a function of values has the budget of --value_max as its smallest"


def add_record_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `streamveil per-record` that say what is promised, as they are there."""
    add = section(parser, STATISTIC)
    add(
        "--statistic",
        metavar="NAME",
        help=f"audit a statistic of records: {', '.join(STATISTICS)}, as of streamveil per-record "
        f"(mechanisms {', '.join(sorted(_NAMES))}); with --devices, of a count or a sum, what a "
        "device reports of its record",
    )
    add_budget_options(parser, f"; or {TABLE}FILE, a table with the columns category and epsilon")
    add("--budget_column", metavar="NAME", help="as of streamveil per-record, with --input")
    for name, letter in (("epsilon_min", "E"), ("beta", "P")):
        add(f"--{name}", type=float, metavar=letter, help="as of streamveil per-record")
    add(
        "--max_records_per_user",
        type=int,
        default=1,
        metavar="N",
        help="as of streamveil per-record (default 1)",
    )


def of_records(given: argparse.Namespace) -> bool:
    """Whether a statistic of records is to be audited."""
    return bool(given.statistic) or (given.mechanism or "").partition(":")[0] in _NAMES


def check_records(given: argparse.Namespace, usual: argparse.Namespace) -> None:
    """Refuse what is wrong of a statistic, or means nothing for one; raises ConfigurationError.

    Args:
        given: the options.
        usual: as they are when none is given.
    """
    if given.questions:
        raise ConfigurationError(
            f"--statistic={given.statistic} {QUESTIONS_SAYING} each is of users, and a record has "
            "a budget of its own"
        )
    refuse_foreign(given, usual, _REFUSED, PER_RECORD_SAYING)
    check_required("audit", given, ("statistic", "budget"))
    kind = given.statistic
    if kind not in STATISTICS:
        raise ConfigurationError(
            f"--statistic={kind} is unknown: choose of {', '.join(STATISTICS)}"
        )
    parse(mechanism_of(given), PER_RECORD_MECHANISMS[kind.removeprefix(RUNNING)])
    if is_true("devices", given.devices) and kind not in ("count", "sum"):
        raise ConfigurationError(
            f"--devices is for records that devices report of: a count or a sum, and not {kind}"
        )
    whole("max_records_per_user", given.max_records_per_user)
    _check_budget(given)


def refuse_record_options(given: argparse.Namespace, usual: argparse.Namespace) -> None:
    """Refuse what is about records where none are audited; raises ConfigurationError."""
    reasons = dict.fromkeys(RECORD_OPTIONS, "give --statistic")
    refuse_foreign(given, usual, reasons, "is for statistics of records:")


def mechanism_of(given: argparse.Namespace) -> str:
    """The mechanism, with `beta` among its options; raises ConfigurationError."""
    name: str = given.mechanism or DEFAULTS[given.statistic.removeprefix(RUNNING)]
    if given.beta is None:
        return name
    if "beta=" in name:
        raise ConfigurationError(
            f"beta is given twice (--beta, and in --mechanism={name}): leave one out"
        )
    return f"{name}:beta={given.beta!r}"


def _check_budget(given: argparse.Namespace) -> None:
    table = given.budget.startswith(TABLE)
    valued = given.statistic not in WITHOUT_VALUE
    if table and valued and given.value_max is None:
        check_required("audit", given, ("value_max",))
    if not table:
        check_required("audit", given, ("value_max", "epsilon_max"))
        if given.epsilon_min is not None:
            raise ConfigurationError(
                f"--epsilon_min={given.epsilon_min:g} is for --budget={TABLE}FILE: {_OF_BUDGETS}"
            )
        budget_of(given.budget, given.value_max, given.epsilon_max)
    if given.input:
        if valued or (not table and not given.budget_column):
            check_required("audit", given, ("value_column",))
        if table:
            check_required("audit", given, ("budget_column",))
