"""The commands by name: their options, help, and what is checked before anything is read.

Beam takes a second to import, and that is done only for flags that are not a command's own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamveil.io.places import SINK_FORMS
from streamveil.mechanisms.core.parameter_checks import check_range, lateness, share, whole
from streamveil.mechanisms.core.records import ConfigurationError, check_zone
from streamveil.mechanisms.registry import (
    DEFAULT,
    DYNAMIC_MECHANISMS,
    INFINITE_DEFAULT,
    INFINITE_MECHANISMS,
    LOCAL_DEFAULT,
    LOCAL_MECHANISMS,
    MECHANISMS,
    only_dynamic,
    parse,
)
from streamveil.pipelines.audit.options import AUDIT_SAYING, NOT_AUDITED
from streamveil.pipelines.flags import (
    StrictParser,
    is_of_filesystem,
    is_true,
    names_of,
    refuse_unknown,
)
from streamveil.pipelines.foreign import (
    LOCAL_SAYING,
    NOT_LOCAL,
    NOT_LOCAL_RELEASE,
    NOT_PER_RECORD,
    NOT_PER_RECORD_RELEASE,
    NOT_QUESTIONS,
    PER_RECORD_SAYING,
    QUESTIONS_SAYING,
    refuse_foreign,
)
from streamveil.pipelines.guarantees import INFINITE, USER, WINDOWS, promise_of
from streamveil.pipelines.options import (
    EVENT_FILES,
    OLD_NAMES,
    PER_RECORD_NAMES,
    REQUIRED,
    add_card_options,
    add_demo_options,
    add_dry_run,
    add_job_options,
    add_log_options,
    add_per_record_options,
    add_plan_options,
    add_release_options,
    add_shared_options,
)
from streamveil.pipelines.sections import CommandHelp
from streamveil.pipelines.statistics import check_statistic, needed_of
from streamveil.pipelines.values import (
    budget_for_ever,
    check_apart,
    check_bins,
    check_files,
    check_folder,
    check_formats,
    check_going_on,
    check_page,
    check_required,
    check_revisions,
    check_revisions_apart,
    check_summary,
    default_requirement_of,
    dialect_of,
    key_places,
    life_limit_of,
    missing_of,
    needs_table,
    range_of,
    requirement_columns_of,
    take_query,
)

_READ = ("input", "requirements")
_WRITTEN = ("output", "ledger", "rejected", "revisions")

AddOptions = Callable[[argparse.ArgumentParser], None]

HOW: Sequence[AddOptions] = (add_dry_run, add_log_options)
"""Options that say how a command runs; no service shows them."""


@dataclass(frozen=True)
class Command:
    """What a command takes."""

    name: str
    about: str
    add: Sequence[AddOptions]
    """Declare its options."""
    required: Sequence[str]
    """Those without a default, for the help."""
    example: str
    check: Callable[[Any], None]
    """Refuses values that are wrong; raises ConfigurationError."""
    foreign: Sequence[AddOptions] = ()
    """Options of other commands, some of which the command refuses."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Those, and why."""
    saying: str = ""
    """What stands between such an option and the reason."""
    meanings: Mapping[str, str] = field(default_factory=dict)
    """Of options that mean something narrower here than in `options`."""
    beam: bool = True
    """Whether Beam's own options pass through; if not, only those of its filesystems do."""

    def help(self) -> CommandHelp:
        """A parser of its own options but for those that it refuses, for the help and for hints."""
        parser = CommandHelp(self.name, self.about, self.required, self.example, self.beam)
        for add in self.add:
            add(parser)
        for action in parser._actions:
            if action.dest in self.refused:
                action.help = argparse.SUPPRESS
            action.help = self.meanings.get(action.dest, action.help)
        return parser

    def strict(self) -> StrictParser:
        """A parser of its own options and of those that it refuses."""
        parser = StrictParser(add_help=False, allow_abbrev=False, conflict_handler="resolve")
        for add in (*self.add, *self.foreign):
            add(parser)
        known = parser._option_string_actions
        known.update((old, known[new]) for old, new in OLD_NAMES.get(self.name, {}).items())
        return parser


def _refuse_unknown(command: Command, flags: Sequence[str]) -> None:
    """Raise ConfigurationError where a flag is neither the command's nor one of Beam's for it."""
    own = names_of(command.help())
    if not command.beam and not any(map(is_of_filesystem, flags)):
        refuse_unknown(command.name, flags, own)
    from streamveil.pipelines.beam_flags import check_flags

    check_flags(command.name, flags, own, runs_on_beam=command.beam)


def read(name: str, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Read and check the options of a command, as far as can be before a file is read.

    Exits with help for --help. Gives the options of the command, and the flags that might be
    Beam's. Raises ConfigurationError.
    """
    command = COMMANDS[name]
    if "-h" in argv or "--help" in argv:
        command.help().print_help()
        raise SystemExit(0)
    strict = command.strict()
    given, others = strict.parse_known_args(list(argv))
    if others:
        _refuse_unknown(command, others)
    refuse_foreign(given, strict.parse_args([]), command.refused, command.saying)
    take_query(given)
    command.check(given)
    return given, others


def without_how(argv: Sequence[str]) -> list[str]:
    """The arguments of a command but for those that say how it runs."""
    parser = StrictParser(add_help=False, allow_abbrev=False)
    for add in HOW:
        add(parser)
    return parser.parse_known_args(list(argv))[1]


def _add_evaluate_options(parser: argparse.ArgumentParser) -> None:
    """Import them when they are needed: other commands need no streams."""
    from streamveil.pipelines.evaluation.options import add_evaluate_options

    add_evaluate_options(parser)


def _add_audit_options(parser: argparse.ArgumentParser) -> None:
    """Import them when they are needed."""
    from streamveil.pipelines.audit.options import add_audit_options

    add_audit_options(parser)


def _check_release(given: Any) -> None:
    if given.questions:
        _check_questions(given)
        return
    if given.page:
        raise ConfigurationError(
            f"--page={given.page} is of the answers to --questions: give these, or leave it out"
        )
    needed = ["input", "output", *REQUIRED]
    if given.guarantee in (None, WINDOWS) and given.epsilon is None:
        check_required("release", given, (*needed, *needs_table(given)))
    elif missing_of(given, needed):  # alone they have messages of their own
        needed += ["epsilon"] if given.guarantee == INFINITE else ["epsilon", "max_slots"]
        check_required("release", given, needed)
    promise = promise_of(given)
    infinite = promise == INFINITE
    if promise != WINDOWS:
        budget_for_ever(given)
    if promise == USER:
        life_limit_of(given.max_slots)
    if infinite:
        parse(given.mechanism or INFINITE_DEFAULT, INFINITE_MECHANISMS)
    elif not (given.mechanism and only_dynamic(given.mechanism)):
        parse(given.mechanism or DEFAULT)
    check_revisions(given, given.mechanism or (INFINITE_DEFAULT if infinite else DEFAULT))
    _check_histograms(given)
    _check_run(given)


def _check_questions(given: Any) -> None:
    usual = COMMANDS["release"].strict().parse_args([])
    refuse_foreign(given, usual, NOT_QUESTIONS, QUESTIONS_SAYING)
    needed = ("input", "output", "user_column", "time_column", *needs_table(given))
    check_required("release", given, needed)
    whole("shards", given.shards)
    share("max_rejected", given.max_rejected)
    default_requirement_of(given.default_requirement)
    requirement_columns_of(given.requirement_columns)
    _check_times(given)
    check_folder(given.output)
    check_summary(given.summary)
    check_going_on(given)
    files = () if given.state else ("ledger", "rejected", "page")
    check_files(given, (*_READ, "questions"), files)
    check_formats(given, ("ledger", "rejected"))
    check_apart(given)
    check_page(given.page)


def _check_collect(given: Any) -> None:
    check_required("collect", given, ("input", "output", *REQUIRED, "requirements"))
    mechanism = given.mechanism or LOCAL_DEFAULT
    parse(mechanism, LOCAL_MECHANISMS)
    check_revisions(given, mechanism, local=True)
    _check_histograms(given)
    _check_run(given)


def _check_run(given: Any) -> None:
    check_going_on(given)
    check_summary(given.summary)
    check_files(given, _READ, new=() if given.state else _WRITTEN)
    check_formats(given, _WRITTEN)
    check_revisions_apart(given.output, given.revisions)
    check_apart(given)


def _check_histograms(given: Any) -> None:
    whole("max_contributions", given.max_contributions)
    whole("shards", given.shards)
    share("max_rejected", given.max_rejected)
    default_requirement_of(given.default_requirement)
    requirement_columns_of(given.requirement_columns)
    check_bins(given)
    _check_times(given)


def _check_times(given: Any) -> None:
    lateness(given.allowed_lateness)
    dialect_of(given)
    if given.time_format is not None:
        from streamveil.engine.encode.time_formats import forms_of

        forms_of(given.time_format)
    is_true("dry_run", given.dry_run)
    if given.time_zone is not None:
        check_zone(given.time_zone)
    slots = None
    if given.slot:
        slots, *ends = range_of(given)
        check_range(slots, *ends)
    if given.noise_key:
        key_places(given.noise_key, slots)


def _check_per_record(given: Any) -> None:
    needed = ("input", "output", "statistic", "budget")
    if missing_of(given, needed):
        check_required("per-record", given, (*needed, *needed_of(given)))
    check_statistic(given)
    _check_times(given)
    check_files(given, ("input",), ("output",))
    check_formats(given, ("output",))
    check_apart(given)


def _check_demo(given: Any) -> None:
    is_true("hourly", given.hourly)
    parse(given.mechanism or DEFAULT)


def _check_evaluate(given: Any) -> None:
    """What else is wrong shows when it runs, which needs no pipeline."""
    if not given.per_record and not given.questions:
        promise_of(given)


def _check_card(given: Any) -> None:
    if given.file and given.card and given.file != given.card:
        raise ConfigurationError(f"two cards are named, {given.file} and {given.card}: name one")
    given.card = given.card or given.file
    check_required("card", given, ("card",))
    for name in ("ledger", "releases", "revisions"):
        if getattr(given, name) and not given.check:
            raise ConfigurationError(
                f"--{name}={getattr(given, name)} is what a card is checked against: give --check "
                "as well, or leave it out"
            )


def _check_audit(given: Any) -> None:
    from streamveil.pipelines.audit.options import check_audit

    check_audit(given)


def _check_plan(given: Any) -> None:
    if not given.questions:
        check_required("plan", given, ("questions", *needs_table(given)))
    if not (given.requirements or given.default_requirement):
        raise ConfigurationError(
            "nobody's requirements are known: give --requirements=FILE, or "
            "--default_requirement=WINDOW,EPSILON"
        )
    default_requirement_of(given.default_requirement)
    requirement_columns_of(given.requirement_columns)


_ALL = (
    Command(
        "release",
        "From events to one private histogram a slot, keeping every user's own requirement.",
        (add_shared_options, add_job_options, add_release_options, *HOW),
        ("input", "output", *REQUIRED, "requirements"),
        r"""
streamveil release --input=events.csv --output=releases.csv \
    --user_column=user --value_column=place --time_column=time \
    --slot=1d --start=2024-05-01 --end=2024-05-08 --domain=cafe,park \
    --requirements=requirements.csv --rejected=rejected.jsonl
""",
        _check_release,
        meanings={
            "mechanism": f"{', '.join(MECHANISMS)} (default {DEFAULT}); where requirements change "
            f"{', '.join(DYNAMIC_MECHANISMS)}; with --guarantee={INFINITE} "
            f"{', '.join(INFINITE_MECHANISMS)} (default {INFINITE_DEFAULT})",
            "requirements": "table with the columns user, window, epsilon; or else give "
            f"--default_requirement, or --guarantee={INFINITE} or {USER} with --epsilon",
        },
    ),
    Command(
        "collect",
        "The same in the local setting, played through: users' devices perturb what they report, "
        "and the server sees no raw value.",
        (add_shared_options, add_job_options, add_release_options, *HOW),
        ("input", "output", *REQUIRED, "requirements"),
        r"""
streamveil collect --input=events.csv --output=releases.csv \
    --user_column=user --value_column=place --time_column=time \
    --slot=1d --start=2024-05-01 --end=2024-05-08 --domain=cafe,park \
    --requirements=requirements.csv
""",
        _check_collect,
        refused={**NOT_LOCAL, **NOT_LOCAL_RELEASE},
        saying=LOCAL_SAYING,
        meanings={
            "mechanism": f"{', '.join(LOCAL_MECHANISMS)} (default {LOCAL_DEFAULT})",
            "requirements": "table of all users with the columns user, window, epsilon",
            "longest_window": "with --state: longest window, in slots, that anybody may ask for "
            "later; public (default: the longest in the run with the first change)",
        },
    ),
    Command(
        "per-record",
        "Statistics that protect each record by a budget of its own, a public function of the "
        "record. There is no --rejected: a record that cannot be read or used counts nowhere and "
        "is told of nowhere, for whatever told of it would cost it all of its protection. There "
        "is no --ledger: what a record pays is secret, and at most its budget.",
        (add_per_record_options, add_shared_options, *HOW),
        ("input", "output", "statistic", "budget"),
        r"""
streamveil per-record --input=payments.csv --output=sums.csv \
    --statistic=sum --value_column=amount --value_max=1000 \
    --budget=inverse:1000 --epsilon_max=5
""",
        _check_per_record,
        foreign=(add_job_options, add_release_options),
        refused={**NOT_PER_RECORD, **NOT_PER_RECORD_RELEASE},
        saying=PER_RECORD_SAYING,
        meanings={
            "output": "a row for each window and key: a file, .parquet, .avro, .jsonl or .csv; or "
            f"{SINK_FORMS}",
            "value_column": "column of numbers: what is none from 0 to --value_max does not count",
            "slot": "length of a slot: 1w, 1d, 1h, 5m, 60s (default: one window of all times)",
            "start": "from the slot that holds this time on; an input with an end needs --slot, "
            "--start and --end, or none of them",
            "end": "up to the slot before this time",
            "mechanism": PER_RECORD_NAMES,
        },
    ),
    Command(
        "evaluate",
        "Run mechanisms over the same streams, named synthetic ones or your own events, and "
        "report the error, the budget used and which mechanism to choose. What comes out is "
        "computed from true counts: it is for data that you may see, and not protected.",
        (_add_evaluate_options,),
        (),
        r"""
streamveil evaluate --streams=sin,step --users=900 --slots=60 --seeds=3 \
    --output=comparison.csv --page=comparison.html
""",
        _check_evaluate,
        beam=False,
        meanings={"input": EVENT_FILES},
    ),
    Command(
        "plan",
        "Which error questions will have, and which epsilon they need: from requirements and what "
        "is assumed of events, without any. Mechanisms are simulated on streams that are drawn.",
        (add_plan_options, add_log_options),
        ("questions",),
        r"""
streamveil plan --questions=questions.yaml --default_requirement=168,1,5000 \
    --rate=400 --drift=0.05 --wanted=places:10
""",
        _check_plan,
        beam=False,
    ),
    Command(
        "card",
        "What was promised: the card that every run writes beside its files, told in words; or "
        "checked against the ledger and the releases.",
        (add_card_options, add_log_options),
        ("card",),
        "streamveil card --check --card=releases.csv.card.json --ledger=ledger.csv",
        _check_card,
        beam=False,
    ),
    Command(
        "audit",
        "What an attacker can prove that a configuration tells of its users, beside what it "
        "promises them: thousands of guesses about users who are in the input or not, from runs in "
        "memory. The exit code is 4 where more is proven than was promised.",
        (_add_audit_options,),
        (),
        r"""
streamveil audit --mechanism=pba --default_requirement=10,1,1000 \
    --seconds=20 --page=audit.html --json=audit.json
""",
        _check_audit,
        foreign=(add_shared_options, add_job_options, add_release_options),
        refused=NOT_AUDITED,
        saying=AUDIT_SAYING,
        beam=False,
        meanings={"input": EVENT_FILES},
    ),
    Command(
        "demo",
        "Release every flight that left New York in 2013, and show the result on a page. The "
        "aircraft is the user, its destination the value: owners do ask that their aircraft "
        "cannot be followed.",
        (add_demo_options,),
        (),
        "streamveil demo --hourly --output=flights",
        _check_demo,
    ),
)
COMMANDS: Mapping[str, Command] = {command.name: command for command in _ALL}
