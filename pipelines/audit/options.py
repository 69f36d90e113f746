"""The options of `streamveil audit`, declared without Beam, and those of others that it refuses."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from streamveil.mechanisms.core.parameter_checks import whole
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.presence.choice import Auto
from streamveil.mechanisms.presence.limits import BLOCKS
from streamveil.mechanisms.registry import (
    DEFAULT,
    DYNAMIC_MECHANISMS,
    INFINITE_DEFAULT,
    INFINITE_MECHANISMS,
    LOCAL_MECHANISMS,
    MECHANISMS,
    only_dynamic,
    parse,
)
from streamveil.pipelines.audit.devices.options import (
    DEFAULT_BINS_OF_DEVICES,
    add_device_options,
    check_devices,
    of_devices,
)
from streamveil.pipelines.audit.records.options import (
    add_record_options,
    check_records,
    of_records,
    refuse_record_options,
)
from streamveil.pipelines.foreign import NOT_QUESTIONS, QUESTIONS_SAYING, refuse_foreign
from streamveil.pipelines.guarantees import (
    INFINITE,
    USER,
    WINDOWS,
    add_guarantee_options,
    promise_of,
)
from streamveil.pipelines.options import (
    CHANGE_OPTIONS,
    FOLLOW_OPTIONS,
    REQUIRED,
    REVISE_OPTIONS,
    add_event_options,
    add_histogram_options,
)
from streamveil.pipelines.sections import BINS, PRIVACY, RESULTS, WORK, section
from streamveil.pipelines.values import (
    budget_for_ever,
    check_required,
    default_requirement_of,
    life_limit_of,
    limit_of,
    requirement_columns_of,
)

DRAWN = "drawn"
"""In place of a file of changes: users change to what other classes ask for."""

DEFAULT_SECONDS, DEFAULT_RUNS = 60.0, 24
DEFAULT_CONFIDENCE = 0.95
DEFAULT_BINS, DEFAULT_BINS_OF_QUESTIONS = 64, 256


def add_audit_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `streamveil audit`."""
    add = section(parser, PRIVACY)
    known = dict.fromkeys((*MECHANISMS, *DYNAMIC_MECHANISMS, *LOCAL_MECHANISMS))
    add(
        "--mechanism",
        metavar="NAME",
        help=f"{', '.join(known)} (default {DEFAULT}), with one budget forever "
        f"{', '.join(INFINITE_MECHANISMS)} (default {INFINITE_DEFAULT}); with options as "
        "NAME:OPTION=VALUE:OPTION=VALUE",
    )
    add_device_options(add)
    add_guarantee_options(parser)
    section(parser, PRIVACY)(
        "--max_slots",
        metavar="M[,BLOCKS]",
        help="users count in the first M slots of each of BLOCKS parts of the window (default "
        f"{BLOCKS}), and where the table says max_slots in so many; with --guarantee={USER} in the "
        "first M slots of their lives",
    )
    section(parser, PRIVACY)(
        "--requirement_changes",
        metavar=f"FILE|{DRAWN}",
        help="users ask for something else in the run: for what a file asks for, as of streamveil "
        f"release, or for what other classes do ({DRAWN})",
    )
    section(parser, PRIVACY)(
        "--longest_window",
        type=int,
        metavar="N",
        help="longest window, in slots, that a change may ask for (default: the longest that is)",
    )
    add = section(parser, BINS)
    add(
        "--questions",
        metavar="FILE",
        help="audit many questions with one budget, together and each: a YAML file as of "
        "streamveil release, in place of --mechanism",
    )
    add(
        "--bins",
        type=int,
        metavar="N",
        help=f"bins of the worst cases, without --input (default {DEFAULT_BINS}), or of those of "
        f"devices (default {DEFAULT_BINS_OF_DEVICES}), or of every question in them (default "
        f"{DEFAULT_BINS_OF_QUESTIONS})",
    )
    add = section(parser, WORK)
    add(
        "--seconds",
        type=float,
        metavar="S",
        help=f"how long to go on, about (default {DEFAULT_SECONDS:g}): the longer, the smaller a "
        "violation that is seen",
    )
    add(
        "--runs",
        type=int,
        metavar="N",
        help="runs of each kind for each class, instead of --seconds",
    )
    add(
        "--confidence",
        type=float,
        default=DEFAULT_CONFIDENCE,
        metavar="SHARE",
        help="probability, at least, that no lower bound is above the truth "
        f"(default {DEFAULT_CONFIDENCE:g}); a verdict takes .999, or this where it is larger",
    )
    add(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="other numbers give other coins and other noise (default 0)",
    )
    add = section(parser, RESULTS)
    # `--report` is the name that it had first.
    add("--page", "--report", metavar="FILE", help="a page with claims and bounds: .html")
    add("--json", metavar="FILE", help="the same for programs: .json")
    add_record_options(parser)
    add_event_options(parser)
    add_histogram_options(parser)


AUDIT_SAYING = "is not audited:"
_SAME = "noise and charges are the same with it"
NOT_AUDITED: Mapping[str, str] = {
    **dict.fromkeys(REVISE_OPTIONS, f"revisions are made of releases, and {_SAME}"),
    "noise_key": "an audit draws keys of its own, and never the one of a release",
    "restart_budget": "a budget that is granted again is spent again",
    **dict.fromkeys(
        [name for name in FOLLOW_OPTIONS if name != "restart_budget"],
        f"how a run goes on: {_SAME}",
    ),
}
"""Of the options of `streamveil release`, and why."""


_OF_QUESTIONS = (
    *("mechanism", "value_column", "domain", "other", "null", "max_contributions", "keep"),
    *("slot", "slot_zone", "guarantee", "epsilon", "max_slots"),
    *CHANGE_OPTIONS,
)


def check_audit(given: argparse.Namespace) -> None:
    """Refuse options that are wrong before anything runs; raises ConfigurationError."""
    if given.seed < 0:
        raise ConfigurationError(f"--seed={given.seed} is below 0: give a whole number from 0 on")
    if of_records(given):
        check_records(given, argparse.Namespace(**_usual(add_audit_options)))
        return
    refuse_record_options(given, argparse.Namespace(**_usual(add_audit_options)))
    if of_devices(given):
        check_devices(given, argparse.Namespace(**_usual(add_audit_options)))
    elif given.questions:
        usual = argparse.Namespace(**_usual(add_audit_options))
        reasons = {name: NOT_QUESTIONS[name] for name in _OF_QUESTIONS}
        refuse_foreign(given, usual, reasons, QUESTIONS_SAYING)
    promise = WINDOWS if given.questions else promise_of(given)
    if promise != WINDOWS:
        budget_for_ever(given)
    if promise == USER:
        life_limit_of(given.max_slots)
    elif given.max_slots is not None and not given.questions:
        _check_limit(given, promise)
    changing = given.requirement_changes is not None
    if changing:
        _check_changes(given)
    elif given.longest_window is not None:
        raise ConfigurationError(
            f"--longest_window={given.longest_window} is about changes: give --requirement_changes "
            "as well, or leave it out"
        )
    if promise == INFINITE:
        parse(given.mechanism or INFINITE_DEFAULT, INFINITE_MECHANISMS)
    elif (
        not given.questions
        and not changing
        and not of_devices(given)
        and not (given.mechanism and only_dynamic(given.mechanism))
    ):
        parse(given.mechanism or DEFAULT)
    of_events = ("user_column", "time_column") if given.questions else REQUIRED
    check_required("audit", given, ("input", *of_events) if given.input else ())
    if not given.input:
        names = (
            *_usual(add_event_options),
            "user_column",
            "domain",
            "other",
            "null",
            "keep",
            "rejected",
        )
        reasons = dict.fromkeys(names, "give --input")
        usual = argparse.Namespace(**_usual(add_audit_options))
        refuse_foreign(given, usual, reasons, "is for events:")
    if given.input and given.bins is not None:
        raise ConfigurationError(
            f"--bins={given.bins} is for worst cases: "
            f"{'the file of questions' if given.questions else '--domain'} says the bins of --input"
        )
    if promise == WINDOWS and not (given.requirements or given.default_requirement):
        raise ConfigurationError(
            "nobody's requirements are known: give --requirements=FILE, or "
            "--default_requirement=WINDOW,EPSILON"
        )
    default_requirement_of(given.default_requirement)
    requirement_columns_of(given.requirement_columns)
    whole("max_contributions", given.max_contributions)


def _check_limit(given: argparse.Namespace, promise: str) -> None:
    """Refuse a limit on the slots of windows that is none, or that cannot be audited."""
    if promise == INFINITE:
        raise ConfigurationError(
            f"--max_slots={given.max_slots} is about windows: leave it out with "
            f"--guarantee={INFINITE}, or choose --guarantee={USER}"
        )
    if isinstance(limit_of(given.max_slots), Auto):
        raise ConfigurationError(
            f"--max_slots={given.max_slots} {AUDIT_SAYING} it chooses by one look at the whole "
            "input; a run tells what it chose: audit that, as --max_slots=M"
        )


def _check_changes(given: argparse.Namespace) -> None:
    """Refuse what is not audited where requirements change."""
    parse(given.mechanism or DEFAULT, DYNAMIC_MECHANISMS)
    changes = f"--requirement_changes={given.requirement_changes}"
    if given.max_slots is not None:
        raise ConfigurationError(
            f"--max_slots={given.max_slots} {AUDIT_SAYING} not with {changes}: audit each alone"
        )
    if given.input:
        raise ConfigurationError(
            f"--input={given.input} {AUDIT_SAYING} not with {changes}, whose users are those of "
            "worst cases: leave it out"
        )


def _usual(add: Callable[[argparse.ArgumentParser], None]) -> dict[str, Any]:
    """Options and what they are when none is given."""
    parser = argparse.ArgumentParser()
    add(parser)
    return vars(parser.parse_args([]))
