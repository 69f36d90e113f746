"""The options of `streamveil audit`, declared without Beam, and those of others that it refuses."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial

from streamveil.mechanisms.core.parameter_checks import whole
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.presence.choice import Auto
from streamveil.mechanisms.presence.limits import BLOCKS
from streamveil.mechanisms.registry import (
    DEFAULT,
    DEFAULTS,
    DYNAMIC_MECHANISMS,
    INFINITE_DEFAULT,
    INFINITE_MECHANISMS,
    LOCAL_DEFAULT,
    LOCAL_MECHANISMS,
    MECHANISMS,
    PER_RECORD_MECHANISMS,
    Specs,
    only_dynamic,
    parse,
)
from streamveil.pipelines.options.declarations import (
    REQUIRED,
    STATISTICS,
    TABLE,
    reasons,
    saying,
    shown_by,
)
from streamveil.pipelines.options.guarantees import INFINITE, USER, WINDOWS, promise_of
from streamveil.pipelines.options.option import (
    AUDIT,
    BINS,
    COLLECT,
    EVENTS,
    PER_RECORD,
    PRIVACY,
    RESULTS,
    STATISTIC,
    TIME,
    WORK,
    Option,
    defaults_of,
    refuse,
)
from streamveil.pipelines.options.option import QUERIES as OF_QUERIES
from streamveil.pipelines.options.parsers import (
    budget_for_ever,
    check_required,
    default_requirement_of,
    life_limit_of,
    limit_of,
    requirement_columns_of,
)
from streamveil.pipelines.options.record_statistics import (
    RUNNING,
    WITHOUT_VALUE,
    check_function,
    statistic_of,
)

DRAWN = "drawn"
"""In place of a file of changes: users change to what other classes ask for."""

DEFAULT_SECONDS, DEFAULT_RUNS = 60.0, 24
DEFAULT_CONFIDENCE = 0.95
DEFAULT_BINS, DEFAULT_BINS_OF_QUERIES = 64, 256
DEFAULT_BINS_OF_DEVICES = 3
"""With the symbol for no event, few enough for reports that name one."""


_NAMES = {name for known in PER_RECORD_MECHANISMS.values() for name in known}
_KNOWN = dict.fromkeys((*MECHANISMS, *DYNAMIC_MECHANISMS, *LOCAL_MECHANISMS))
_ALIKE = " and ".join(name for name in LOCAL_MECHANISMS if name in MECHANISMS)
_protect = partial(Option, section=PRIVACY, commands=(AUDIT,))
_work = partial(_protect, section=WORK)

AUDIT_OPTIONS = (
    _protect(
        "mechanism",
        "NAME",
        f"mechanism to audit, one of: {', '.join(_KNOWN)} (default {DEFAULT}). With "
        f"--guarantee={INFINITE}, one of: {', '.join(INFINITE_MECHANISMS)} (default "
        f"{INFINITE_DEFAULT}). You may add options of the mechanism, as in "
        "NAME:OPTION=VALUE:OPTION=VALUE",
    ),
    _protect(
        "devices",
        "true|false",
        "audit local differential privacy, with the simulated devices of streamveil collect "
        f"(default mechanism {LOCAL_DEFAULT}). You need this option only for the mechanisms "
        f"{_ALIKE}, because these names exist in the central model and in the local model",
        kind=bool,
    ),
    _protect(
        "max_slots",
        "M[,BLOCKS]",
        f"participation limit. Each window is divided into BLOCKS parts (default {BLOCKS}). In "
        "each part, a user contributes only to the first M slots in which this user has events. "
        f"With --guarantee={USER}, M limits the slots of the whole stream (default: the limits in "
        "the column max_slots of the requirements table, or no limit if there is no such column)",
    ),
    _protect(
        "requirement_changes",
        f"FILE|{DRAWN}",
        "audit a run in which users' requirements change. FILE is a file of changes, as for "
        f"streamveil release. With {DRAWN}, users change at random to other requirements in the "
        "table",
    ),
    _protect(
        "longest_window",
        "N",
        "longest window, in slots, that a user may have after a change of requirements (default: "
        "the longest window in the requirements table and in the changes)",
        kind=int,
    ),
    _protect(
        "queries",
        "FILE",
        "YAML file of queries that share one budget, as for streamveil release. The audit covers "
        "all queries together, and each query alone. Use this option instead of --mechanism",
        section=BINS,
    ),
    _protect(
        "bins",
        "N",
        "number of bins of the worst-case inputs that the audit uses if you give no --input "
        f"(default {DEFAULT_BINS}; for devices {DEFAULT_BINS_OF_DEVICES}; for each query "
        f"{DEFAULT_BINS_OF_QUERIES})",
        section=BINS,
        kind=int,
    ),
    _protect(
        "statistic",
        "NAME",
        f"statistic of streamveil per-record to audit, one of: {', '.join(STATISTICS)}. Its "
        f"mechanisms are {', '.join(sorted(_NAMES))}. With --devices, the audit covers a count or "
        "a sum of records that devices report with noise",
        section=STATISTIC,
    ),
    _work(
        "seconds",
        "S",
        f"approximate duration of the audit in seconds (default {DEFAULT_SECONDS:g}). A longer "
        "audit can detect smaller violations",
        kind=float,
    ),
    _work(
        "runs",
        "N",
        "number of runs on each of the two inputs that the audit compares. The audit makes this "
        "number of runs for each group of users with the same requirement. Use this option "
        "instead of --seconds",
        kind=int,
    ),
    _work(
        "confidence",
        "SHARE",
        "confidence level with which all reported lower bounds are correct at the same time "
        f"(default {DEFAULT_CONFIDENCE:g}). The verdict uses a level of at least .999",
        kind=float,
        default=DEFAULT_CONFIDENCE,
    ),
    _work(
        "seed",
        "N",
        "seed from which the audit draws all random choices and noise (default 0)",
        kind=int,
        default=0,
    ),
    _protect(
        "page",
        "FILE",
        "where to write an HTML page (.html) with the promised guarantees and the lower bounds of "
        "the privacy loss",
        section=RESULTS,
        aliases=("report",),
    ),
    _protect(
        "json",
        "FILE",
        "where to write a JSON file (.json) with the promised guarantees and the lower bounds of "
        "the privacy loss",
        section=RESULTS,
    ),
)


LIVES, LIMITED_LIVES, CHANGES = "lives", "limited lives", "changes"
QUERIES, DEVICES, RECORDS = "queries", "devices", "records"
"""What is audited, beside requirements over windows (`guarantees.WINDOWS`)."""

_ONCE = (
    "each record spends its budget once, whatever its slot, so the audit covers one release of "
    "all records"
)
_CHANGES = ("requirement_changes", "longest_window")
_REFUSED: Mapping[str, tuple[str, Mapping[str, str]]] = {
    RECORDS: (
        PER_RECORD,
        {
            **reasons(
                PER_RECORD,
                (
                    *("user_column", "requirements", "requirement_columns", "default_requirement"),
                    *("domain", "other", "null", "max_contributions", "adjacency", "keep"),
                    *("rejected", "guarantee", "epsilon", "max_slots", *_CHANGES),
                ),
            ),
            "bins": "statistics of records have no bins",
            **dict.fromkeys(("time_column", "slot", "slot_zone", "origin", "start", "end"), _ONCE),
        },
    ),
    DEVICES: (
        COLLECT,
        {
            **reasons(
                COLLECT,
                (
                    *("max_contributions", "adjacency", "queries", "guarantee", "epsilon"),
                    *("max_slots", "requirement_changes"),
                ),
            ),
            "longest_window": reasons(COLLECT)["requirement_changes"],
        },
    ),
    QUERIES: (
        OF_QUERIES,
        {
            **reasons(
                OF_QUERIES,
                (
                    *("mechanism", "value_column", "domain", "other", "null", "max_contributions"),
                    *("keep", "slot"),
                ),
            ),
            **dict.fromkeys(
                ("guarantee", "epsilon"), "query sets are audited with budgets over windows"
            ),
            "max_slots": "in an audit of queries, users contribute to every slot",
            **dict.fromkeys(_CHANGES, "in an audit of queries, requirements never change"),
            "slot_zone": "an audit of queries uses numbered slots and no calendar",
        },
    ),
}
"""By what is audited: as what its options are refused, and why."""
_RECORDS_ALONE = dict.fromkeys(
    (
        *("statistic", "budget", "value_max", "epsilon_max", "epsilon_min", "budget_column"),
        *("beta", "max_records_per_user"),
    ),
    "give --statistic",
)
_INPUTS_ALONE = (
    *(one.name for one in shown_by(AUDIT).values() if one.section in (EVENTS, TIME, BINS)),
    *("keep", "rejected"),
)
_DEFAULTS = defaults_of((*shown_by(AUDIT).values(), *AUDIT_OPTIONS))

_MECHANISMS: Mapping[str, tuple[Specs, str]] = {
    DEVICES: (LOCAL_MECHANISMS, LOCAL_DEFAULT),
    LIVES: (INFINITE_MECHANISMS, INFINITE_DEFAULT),
    CHANGES: (DYNAMIC_MECHANISMS, DEFAULT),
}
"""By what is audited, beside `MECHANISMS`, and the default."""


def kind_of(given: argparse.Namespace) -> str:
    """What is audited. Raises ConfigurationError for a switch, or a budget, that is wrong."""
    name = (given.mechanism or "").partition(":")[0]
    if given.statistic or name in _NAMES:
        return RECORDS
    if given.devices or (name in LOCAL_MECHANISMS and name not in MECHANISMS):
        return DEVICES
    if given.queries:
        return QUERIES
    promise = promise_of(given)
    if promise != WINDOWS:
        return LIVES if promise == INFINITE else LIMITED_LIVES
    return WINDOWS if given.requirement_changes is None else CHANGES


def mechanism_of(given: argparse.Namespace, kind: str) -> str:
    """The mechanism of a kind of audit, or the default one. Raises ConfigurationError.

    Of records, `beta` is among its options.
    """
    if kind != RECORDS:
        name: str = given.mechanism or _MECHANISMS.get(kind, (MECHANISMS, DEFAULT))[1]
        return name
    name = given.mechanism or DEFAULTS[given.statistic.removeprefix(RUNNING)]
    if given.beta is None:
        return name
    if "beta=" in name:
        raise ConfigurationError(
            f"beta is given twice (--beta, and in --mechanism={name}): leave one out"
        )
    return f"{name}:beta={given.beta!r}"


def check_audit(given: argparse.Namespace) -> None:
    """Refuse options that are wrong before anything runs; raises ConfigurationError."""
    if given.seed < 0:
        raise ConfigurationError(f"--seed={given.seed} is below 0: give a whole number from 0 on")
    kind = kind_of(given)
    if kind == RECORDS and given.queries:
        raise ConfigurationError(
            f"--statistic={given.statistic} {saying(OF_QUERIES)} each is of users, and a record "
            "has a budget of its own"
        )
    if kind != RECORDS:
        refuse(given, _DEFAULTS, _RECORDS_ALONE, "is for statistics of records:")
    if kind in _REFUSED:
        case, why = _REFUSED[kind]
        refuse(given, _DEFAULTS, why, saying(case))
    if kind == RECORDS:
        _check_records(given)
        return
    _check_promise(given, kind)
    if kind != QUERIES and not (kind == WINDOWS and only_dynamic(given.mechanism or DEFAULT)):
        parse(mechanism_of(given, kind), _MECHANISMS.get(kind, (MECHANISMS, DEFAULT))[0])
    _check_input(given, kind)
    known = given.requirements or given.default_requirement or kind in (LIVES, LIMITED_LIVES)
    if not known:
        raise ConfigurationError(
            "no requirements are given: use --requirements=FILE, or "
            "--default_requirement=WINDOW,EPSILON"
        )
    default_requirement_of(given.default_requirement)
    requirement_columns_of(given.requirement_columns)
    whole("max_contributions", given.max_contributions)


def _check_promise(given: argparse.Namespace, kind: str) -> None:
    """Refuse budgets, limits and changes that cannot be, or cannot be audited."""
    limit, changes = f"--max_slots={given.max_slots}", given.requirement_changes
    if kind in (LIVES, LIMITED_LIVES):
        budget_for_ever(given)
    if kind == LIMITED_LIVES:
        life_limit_of(given.max_slots)
    elif given.max_slots is not None and kind == LIVES:
        raise ConfigurationError(
            f"{limit} applies to windows: leave it out with --guarantee={INFINITE}, or choose "
            f"--guarantee={USER}"
        )
    elif given.max_slots is not None and isinstance(limit_of(given.max_slots), Auto):
        raise ConfigurationError(
            f"{limit} {saying(AUDIT)} it is estimated from the whole input; a run reports the "
            "limit that it chose: audit that limit, as --max_slots=M"
        )
    if changes is None and given.longest_window is not None:
        raise ConfigurationError(
            f"--longest_window={given.longest_window} applies to changing requirements only: "
            "give --requirement_changes as well, or leave it out"
        )
    if changes is not None and given.max_slots is not None:
        raise ConfigurationError(
            f"{limit} {saying(AUDIT)} not with --requirement_changes={changes}: audit each alone"
        )
    if changes is not None and given.input:
        raise ConfigurationError(
            f"--input={given.input} {saying(AUDIT)} not with --requirement_changes={changes}, "
            "which use worst-case users: leave it out"
        )


def _check_input(given: argparse.Namespace, kind: str) -> None:
    """Refuse an input without its columns, and options of one where there is none."""
    of_events = ("user_column", "time_column") if kind == QUERIES else REQUIRED
    check_required("audit", given, ("input", *of_events) if given.input else ())
    if not given.input:
        refuse(given, _DEFAULTS, dict.fromkeys(_INPUTS_ALONE, "give --input"), "is for events:")
    elif given.bins is not None:
        raise ConfigurationError(
            f"--bins={given.bins} is for worst cases: "
            f"{'the file of queries' if kind == QUERIES else '--domain'} says the bins of --input"
        )


def _check_records(given: argparse.Namespace) -> None:
    """Refuse what is wrong of a statistic; raises ConfigurationError."""
    kind = statistic_of("audit", given)
    parse(mechanism_of(given, RECORDS), PER_RECORD_MECHANISMS[kind.removeprefix(RUNNING)])
    if given.devices and kind not in ("count", "sum"):
        raise ConfigurationError(f"--devices supports the statistics count and sum, and not {kind}")
    whole("max_records_per_user", given.max_records_per_user)
    table, valued = given.budget.startswith(TABLE), kind not in WITHOUT_VALUE
    if table and valued and given.value_max is None:
        check_required("audit", given, ("value_max",))
    if not table:
        check_function(given)
    if given.input:
        if valued or (not table and not given.budget_column):
            check_required("audit", given, ("value_column",))
        if table:
            check_required("audit", given, ("budget_column",))
