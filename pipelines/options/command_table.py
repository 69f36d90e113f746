"""The commands by name: their help, and the checks of their options before a run reads anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from streamveil.mechanisms.core.arguments import user_column
from streamveil.mechanisms.core.parameter_checks import check_range, lateness, share, whole
from streamveil.mechanisms.core.records import ConfigurationError, check_zone
from streamveil.mechanisms.core.wording import install_line, opt
from streamveil.mechanisms.registry import (
    DEFAULT,
    INFINITE_DEFAULT,
    INFINITE_MECHANISMS,
    LOCAL_DEFAULT,
    LOCAL_MECHANISMS,
    only_dynamic,
    parse,
)
from streamveil.pipelines.options.command import Command
from streamveil.pipelines.options.declarations import REQUIRED, reasons, saying
from streamveil.pipelines.options.guarantees import (
    INFINITE,
    USER,
    WINDOWS,
    check_promise_to_queries,
    promise_of,
)
from streamveil.pipelines.options.option import (
    AUDIT,
    CARD,
    COLLECT,
    DEMO,
    EVALUATE,
    PER_RECORD,
    PLAN,
    QUERIES,
    RELEASE,
    Option,
    refuse,
)
from streamveil.pipelines.options.parsers import (
    budget_for_ever,
    check_apart,
    check_bins,
    check_files,
    check_folder,
    check_formats,
    check_going_on,
    check_page,
    check_required,
    check_requirements,
    check_revisions,
    check_revisions_apart,
    check_summary,
    dialect_of,
    key_places,
    life_limit_of,
    missing_of,
    needs_table,
    of_option,
    range_of,
)
from streamveil.pipelines.options.record_statistics import check_statistic, needed_of

_READ = ("input", "requirements")
_WRITTEN = ("output", "ledger", "rejected", "revisions")


def _evaluate_options() -> Sequence[Option]:
    """Import them when they are needed: other commands need no streams."""
    from streamveil.pipelines.options.evaluate_options import EVALUATE_OPTIONS

    return EVALUATE_OPTIONS


def _audit_options() -> Sequence[Option]:
    """Import them when they are needed."""
    from streamveil.pipelines.options.audit_options import AUDIT_OPTIONS

    return AUDIT_OPTIONS


def _check_release(given: Any) -> None:
    if given.queries:
        _check_queries(given)
        return
    needed = ["input", "output", *REQUIRED]
    if given.guarantee in (None, WINDOWS) and given.epsilon is None:
        check_required("release", given, (*needed, *needs_table(given)))
    elif missing_of(given, needed):  # alone they have messages of their own
        needed += ["epsilon"] if given.guarantee == INFINITE else ["epsilon", "max_slots"]
        check_required("release", given, needed)
    infinite = _check_promise(given) == INFINITE
    if infinite:
        parse(given.mechanism or INFINITE_DEFAULT, INFINITE_MECHANISMS)
    elif not (given.mechanism and only_dynamic(given.mechanism)):
        parse(given.mechanism or DEFAULT)
    check_revisions(given, given.mechanism or (INFINITE_DEFAULT if infinite else DEFAULT))
    _check_histograms(given)
    _check_run(given)


def _check_queries(given: Any) -> None:
    refuse(given, COMMANDS[RELEASE].defaults, reasons(QUERIES), saying(QUERIES))
    needed = ["input", "output", "user_column", "time_column"]
    check_promise_to_queries(given)
    if promise_of(given) == WINDOWS:
        needed += needs_table(given)
    check_required("release", given, needed)
    _check_promise(given)
    _check_users(given)
    _check_times(given)
    check_folder(given.output)
    check_revisions(given, None)
    _check_run(given, (*_READ, "queries"), ("ledger", "rejected", "revisions"))


def _check_promise(given: Any) -> str:
    """Refuse an invalid lifetime budget. Returns the kind of guarantee."""
    promise = promise_of(given)
    if promise != WINDOWS:
        budget_for_ever(given)
    if promise == USER:
        life_limit_of(given.max_slots)
    return promise


def _check_collect(given: Any) -> None:
    check_required("collect", given, ("input", "output", *REQUIRED, "requirements"))
    mechanism = given.mechanism or LOCAL_DEFAULT
    parse(mechanism, LOCAL_MECHANISMS)
    check_revisions(given, mechanism, local=True)
    _check_histograms(given)
    _check_run(given)


def _check_run(given: Any, read: Sequence[str] = _READ, written: Sequence[str] = _WRITTEN) -> None:
    check_going_on(given)
    check_summary(given.summary)
    check_files(given, read, new=() if given.state else (*written, "page"))
    check_formats(given, written)
    check_revisions_apart(given.output, given.revisions)
    check_apart(given)
    check_page(given.page)


def _check_histograms(given: Any) -> None:
    whole("max_contributions", given.max_contributions)
    _check_users(given)
    check_bins(given)
    _check_times(given)


def _check_users(given: Any) -> None:
    whole("shards", given.shards)
    share("max_rejected", given.max_rejected)
    check_requirements(given)


def _check_times(given: Any) -> None:
    if given.user_column and "," in given.user_column:
        with of_option("user_column"):
            user_column(given.user_column.split(","), "user_column")
    lateness(given.allowed_lateness)
    dialect_of(given)
    if given.time_format is not None:
        from streamveil.engine.encode.time_formats import forms_of

        forms_of(given.time_format)
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
    parse(given.mechanism or DEFAULT)


def _check_evaluate(given: Any) -> None:
    """What else is wrong shows when it runs, which needs no pipeline."""
    if not given.per_record and not given.queries:
        promise_of(given)


def _check_card(given: Any) -> None:
    check_required("card", given, ("card",))
    for name in ("ledger", "releases", "revisions"):
        if getattr(given, name) and not given.check:
            raise ConfigurationError(
                f"{opt[name]}={getattr(given, name)} is only used to check a card: add "
                f"{opt.check}, or leave it out"
            )


def _check_audit(given: Any) -> None:
    from streamveil.pipelines.options.audit_options import check_audit

    check_audit(given)
    if not find_spec("scipy"):
        raise ConfigurationError(f"an audit needs scipy: {install_line('audit')}")


def _check_plan(given: Any) -> None:
    if not given.queries:
        check_required("plan", given, ("queries", *needs_table(given)))
    if not (given.requirements or given.default_requirement or given.budget):
        raise ConfigurationError(
            f"no requirements are given: use {opt.requirements}=FILE, {opt.budget}=EPSILON/PERIOD "
            f"or {opt.default_requirement}=WINDOW,EPSILON"
        )
    check_requirements(given)


_FROM_FILES = r"""
streamveil release --input=events.csv --output=releases.csv \
    --user_column=user --value_column=place --time_column=time \
    --slot=1d --start=2024-05-01 --end=2024-05-08 --domain=cafe,park \
    --requirements=requirements.csv --rejected=rejected.jsonl
"""
_FROM_A_STREAM = r"""
streamveil release --input=kafka:HOST:9092/in --output=kafka:HOST:9092/out \
    --user_column=user --value_column=place --time_column=time --slot=1h \
    --domain=cafe,park --budget=1/7d --noise_key=file:key --runner=FlinkRunner
"""
_GOING_ON = r"""
streamveil release --input='drops/*.csv' --output=visits \
    --queries=visits.yaml --user_column=user --time_column=time \
    --budget=1/7d --start=2024-05-01 --state=kept --resume
"""

_ALL = (
    Command(
        RELEASE,
        "Read events and release differentially private counts, sums, means or quantiles for every "
        "time slot, within the privacy budget of each user.",
        ("input", "output", *REQUIRED, "requirements"),
        (_FROM_FILES, _FROM_A_STREAM, _GOING_ON),
        _check_release,
        unnamed="input",
        most_used=(
            *("input", "output", "user_column", "time_column", "value_column", "domain", "slot"),
            *("queries", "requirements", "budget", "start", "end", "noise_key", "state", "resume"),
        ),
    ),
    Command(
        COLLECT,
        "Simulate local differential privacy. A simulated device for each user adds noise to its "
        "reports, and the server that releases counts sees only these reports.",
        ("input", "output", *REQUIRED, "requirements"),
        (
            r"""
streamveil collect --input=events.csv --output=releases.csv \
    --user_column=user --value_column=place --time_column=time \
    --slot=1d --start=2024-05-01 --end=2024-05-08 --domain=cafe,park \
    --requirements=requirements.csv
""",
        ),
        _check_collect,
        unnamed="input",
    ),
    Command(
        PER_RECORD,
        "Release statistics under per-record privacy, where a public function computes a budget "
        "for each record. No record ever spends more than its budget. There is no --rejected "
        "option, because a list of the records that cannot be used would reveal these records. "
        "There is no --ledger option, because the amount that a record spends is secret.",
        ("input", "output", "statistic", "budget"),
        (
            r"""
streamveil per-record --input=payments.csv --output=sums.csv \
    --statistic=sum --value_column=amount --value_max=1000 \
    --budget=inverse:1000 --epsilon_max=5
""",
        ),
        _check_per_record,
        unnamed="input",
    ),
    Command(
        EVALUATE,
        "Compare mechanisms on synthetic streams or on your own events. The command reports the "
        "error of each mechanism and the budget that it spends, and recommends a mechanism. The "
        "results are computed from true counts and are not private, so use data that you are "
        "allowed to see.",
        (),
        (
            r"""
streamveil evaluate --streams=sin,step --users=900 --slots=60 --seeds=3 \
    --output=comparison.csv --page=comparison.html
""",
        ),
        _check_evaluate,
        _evaluate_options,
        beam=False,
        unnamed="input",
    ),
    Command(
        PLAN,
        "Predict the errors of queries before you have data, or the epsilon that queries need for "
        "a given error. The command reads no events. It simulates the mechanisms on random "
        "streams, which follow your assumptions about the events.",
        ("queries",),
        (
            r"""
streamveil plan --queries=queries.yaml --default_requirement=168,1,5000 \
    --rate=400 --drift=0.05 --wanted=places:10
""",
        ),
        _check_plan,
        beam=False,
    ),
    Command(
        CARD,
        "Explain the card of a run, a JSON file that states the guarantee of the run. With "
        "--check, also compare the card with the ledger and the releases.",
        ("card",),
        ("streamveil card --check --card=releases.csv.card.json --ledger=ledger.csv",),
        _check_card,
        beam=False,
        unnamed="card",
    ),
    Command(
        AUDIT,
        "Attack a configuration to test its guarantee. The audit makes thousands of releases in "
        "memory. From each release alone, it guesses whether a certain user is in the input. From "
        "the number of correct guesses, it computes a lower bound of the privacy loss. If this "
        "bound is larger than the guarantee allows, the exit code is 4.",
        (),
        (
            r"""
streamveil audit --mechanism=pba --default_requirement=10,1,1000 \
    --seconds=20 --page=audit.html --json=audit.json
""",
        ),
        _check_audit,
        _audit_options,
        beam=False,
        unnamed="input",
    ),
    Command(
        DEMO,
        "Release statistics of all flights that left New York in 2013, and write an HTML page "
        "with the results. Each aircraft is treated as a user, because some owners do not want "
        "their aircraft to be tracked.",
        (),
        ("streamveil demo --hourly --output=flights",),
        _check_demo,
    ),
)
COMMANDS: Mapping[str, Command] = {command.name: command for command in _ALL}
