"""The commands as functions: data in memory or in files in, results in memory out."""

from __future__ import annotations

import argparse
import glob
import logging
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from streamveil.engine.messages import LEDGER, REJECTED, REVISIONS
from streamveil.engine.stream.histogram_plan import HistogramPlan
from streamveil.io import (
    REJECTED_SCHEMA,
    CsvDialect,
    change_columns,
    check_events,
    event_table,
    is_endless,
    is_table,
    table_of,
)
from streamveil.io.events import file_outputs
from streamveil.io.memory import rows_of_events, table_outputs
from streamveil.io.releases import ledger_table
from streamveil.mechanisms.core.arguments import domain_of
from streamveil.mechanisms.core.parameter_checks import MAX_REJECTED
from streamveil.mechanisms.core.records import (
    ADD_REMOVE,
    CHANGE_COLUMNS,
    UNIFORM,
    ConfigurationError,
)
from streamveil.pipelines.cards.writing import ANSWERS, card_in_memory
from streamveil.pipelines.in_memory.options import in_words_of, options_of, words_of
from streamveil.pipelines.in_memory.results import Answers, Releases, Statistics
from streamveil.pipelines.local_run import Source, count_letters, run_plan
from streamveil.pipelines.options import KEY_PLACES
from streamveil.pipelines.plan_texts import about_least_total, about_limits, about_records
from streamveil.pipelines.plans import histogram_plan_of, local_plan_of
from streamveil.pipelines.result_forms import has_dynamic_ledger
from streamveil.pipelines.values import dialect_of

if TYPE_CHECKING:
    from streamveil.engine.plans import Plan
    from streamveil.engine.stream.local_plan import LocalPlan
    from streamveil.mechanisms.portfolio.questions import Portfolio
    from streamveil.mechanisms.portfolio.slot_answers import SlotAnswer
    from streamveil.pipelines.evaluation.comparison import Comparison
    from streamveil.pipelines.summary import Summary

_LOGGER = logging.getLogger("streamveil")

_DATA = "a path, a glob, a table of pandas, Polars, Arrow or DuckDB, or a list of record batches"
# Arguments that need not be text.
_KEPT = ("questions", "domain", "requirements", "requirement_changes", "noise_key")


def release(
    data: Any,
    *,
    user: str,
    value: str | tuple[str, str],
    time: str,
    slot: Any,
    domain: Any,
    requirements: Any = None,
    mechanism: str | None = None,
    start: Any = None,
    end: Any = None,
    noise_key: str | bytes | None = None,
    max_contributions: int = 1,
    keep: str = UNIFORM,
    adjacency: str = ADD_REMOVE,
    max_slots: Any = None,
    requirement_columns: Any = None,
    default_requirement: Any = None,
    requirement_changes: Any = None,
    longest_window: int | None = None,
    guarantee: str | None = None,
    epsilon: float | None = None,
    other: str | None = None,
    null: str | None = None,
    slot_zone: str | None = None,
    origin: Any = None,
    time_zone: str | None = None,
    time_unit: str | None = None,
    time_format: str | None = None,
    delimiter: str | None = None,
    columns: Any = None,
    max_rejected: float = MAX_REJECTED,
    revise: int | None = None,
) -> Releases:
    """Release a private histogram for each slot of time, keeping every user's own requirement.

    It is what `streamveil release` does, in this process: with the same events, arguments and
    noise key the releases and the ledger are identical. Each call spends the budgets of
    the users, as each run of the command does. The guarantee and its bounds are those of
    :class:`streamveil.transforms.PrivateHistograms`.

    Args:
        data: events: a path or glob; `bigquery:PROJECT.DATASET.TABLE` or a query there;
            a pandas, Polars or Arrow table or a DuckDB relation;
            or a list of Arrow record batches.
        user: column of the user id.
        value: column of the value, or of longitude and latitude for a grid.
        time: column of the event time.
        slot: length of a slot: `1d`, `1h`, `5m`, or a timedelta.
        domain: the public bins: a list of values, `Categories`, `Edges` or `Grid`; or text, as for
            `--domain`.
        requirements: the public table of users, windows and epsilons: a path, a table, a mapping
            user -> (window, epsilon), or a `Registry`.
        mechanism: its name; None is the default of the command.
        start: release from the slot that holds this time: ISO 8601, or a datetime; None takes the
            first slot with an event.
        end: release up to the slot before this time; None takes the last slot with an event.
        noise_key: a place as for `--noise_key`, or 32 or more secret bytes; None takes the variable
            STREAMVEIL_NOISE_KEY, or else fresh randomness.
        max_contributions: events of a user that count in a slot.
        keep: which of more: `uniform` or `distinct`.
        adjacency: `add_remove`, or `replace`.
        max_slots: the slots of each half of the window in which a user counts, or those of each
            part and the number of parts; `auto` to choose them; None for all. A column `max_slots`
            of the requirements says the former user by user.
        requirement_columns: names of the columns of users, windows and epsilons, if they
            differ, and perhaps of that of limits.
        default_requirement: window and epsilon of users outside the table, and perhaps a public
            guess of how many they are, which bounds no count.
        requirement_changes: changes of requirements: a path or a table.
        longest_window: the longest window, in slots, that a change may ask for.
        guarantee: `w-event`; for one budget forever `infinite`, which all slots share, or `user`,
            where each user counts in the first `max_slots` slots of their life.
        epsilon: that budget.
        other: name of a last bin for values outside the domain.
        null: name of a last bin for null values, which are missing or empty text.
        slot_zone: zone whose calendar days and weeks are slots.
        origin: start of slot 0.
        time_zone: zone of times without an offset; None is UTC.
        time_unit: unit of times given as numbers: `s`, `ms`, `us` or `ns`.
        time_format: how times are written as text, if not as ISO 8601: codes of strptime.
        delimiter: what parts the fields of CSV files.
        columns: names of all columns of CSV files without a header.
        max_rejected: share of the events that may be rejected, from 0 to 1.
        revise: revise every slot once, so many slots later and at the end with what there is, by
            what was learnt since: `.revisions` of the result. It costs no budget.

    Returns:
        The releases, the revisions, the ledger, the dead letters and what became of the events.

    Raises:
        ConfigurationError: a ValueError, for what cannot be done; nothing is spent.
        InputLost: if most of the events cannot be counted; nothing is spent.
        BudgetExceeded: rather than spend more than anybody's budget.
        MachineFault: a RuntimeError, where data or a table breaks off while it is read, or the
            machine or a service fails; run it again.
        TypeError: for data that is none of these.
    """
    given = _without(locals(), ["data"])
    with words_of(release):
        options = _options("release", given)
        plan = histogram_plan_of(options, HistogramPlan)
        told = about_least_total(plan)
        if told is not None:
            _LOGGER.log(told[1], in_words_of(release, told[0]))
        limits = about_limits(plan)
        if limits is not None:
            _LOGGER.info(limits)
        sources = [_events(data, "data", plan.columns.names, dialect_of(options))]
        if requirement_changes is not None:
            sources.append(_changes(requirement_changes))
        changes = requirement_changes is not None
        dynamic = has_dynamic_ledger(plan, changes=changes)
        return _releases(release, plan, sources, dynamic=dynamic, changes=changes)


def answers(
    data: Any,
    *,
    questions: Any,
    user: str,
    time: str,
    requirements: Any = None,
    start: Any = None,
    end: Any = None,
    noise_key: str | bytes | None = None,
    adjacency: str = ADD_REMOVE,
    requirement_columns: Any = None,
    default_requirement: Any = None,
    origin: Any = None,
    time_zone: str | None = None,
    time_unit: str | None = None,
    time_format: str | None = None,
    delimiter: str | None = None,
    columns: Any = None,
    max_rejected: float = MAX_REJECTED,
) -> Answers:
    """Answer many questions about the same events from one budget.

    It is what `streamveil release --questions` does, in this process: with the same events,
    questions and noise key the answers are identical. The guarantee and its bounds are those of
    :class:`streamveil.transforms.PrivateAnswers`.

    Args:
        data: events, as of :func:`release`.
        questions: what is asked: the path of a YAML file, a mapping as such a file has it, or a
            `Portfolio`.
        user: column of the user id.
        time: column of the event time.
        requirements: as of :func:`release`; windows are in base slots.
        start: from the base slot that holds this time on; None takes the first one with an event.
        end: up to the base slot before this time; None takes the last one with an event.
        origin: start of base slot 0; None is 1970-01-01, or where a slot is of weeks the Monday
            after it.
        noise_key: as of :func:`release`, like all that follows.
        adjacency: `add_remove`, or `replace`.
        requirement_columns: names of the columns of users, windows and epsilons.
        default_requirement: window and epsilon of users outside the table, and perhaps a public
            guess of how many they are, which bounds no count.
        time_zone: zone of times without an offset; None is UTC.
        time_unit: unit of times given as numbers.
        time_format: how times are written as text, if not as ISO 8601.
        delimiter: what parts the fields of CSV files.
        columns: names of all columns of CSV files without a header.
        max_rejected: share of the events that may count in no question, from 0 to 1.

    Returns:
        The answers by the name of the question, the ledger, the dead letters and what became of the
        events.

    Raises:
        ConfigurationError, InputLost, BudgetExceeded, MachineFault, TypeError: as :func:`release`.
    """
    given = _without(locals(), ["data"])
    from streamveil.engine.stream.query_plan import QueryPlan
    from streamveil.io.answers import portfolio_ledger_table
    from streamveil.pipelines.query_plans import query_plan_of
    from streamveil.pipelines.questions_summary import QuestionsSummary

    with words_of(answers):
        options = _options("release", given)
        plan = query_plan_of(options, QueryPlan)
        source = _events(data, "data", plan.columns.names, dialect_of(options))
        kept, counted = _kept(plan, [source])
        summary = QuestionsSummary(counted, plan.portfolio)
        for line in (*summary.warnings(), counted.users_text()):
            if line:
                _LOGGER.warning("%s", in_words_of(answers, line))
        ledger = portfolio_ledger_table(kept[LEDGER])
        tables = {"ledger": ledger, **_slots_of(plan.portfolio, kept[None])}
        return Answers(
            plan.portfolio,
            tuple(kept[None]),
            ledger,
            pa.Table.from_batches(kept[REJECTED], REJECTED_SCHEMA),
            summary.figures(),
            in_words_of(answers, summary.text(dead_letters=".rejected")),
            card_in_memory("release", plan, tables, counted.counters),
        )


def collect(
    data: Any,
    *,
    user: str,
    value: str | tuple[str, str],
    time: str,
    slot: Any,
    domain: Any,
    requirements: Any,
    mechanism: str | None = None,
    start: Any = None,
    end: Any = None,
    noise_key: str | bytes | None = None,
    keep: str = UNIFORM,
    requirement_columns: Any = None,
    other: str | None = None,
    null: str | None = None,
    slot_zone: str | None = None,
    origin: Any = None,
    time_zone: str | None = None,
    time_unit: str | None = None,
    time_format: str | None = None,
    delimiter: str | None = None,
    columns: Any = None,
    max_rejected: float = MAX_REJECTED,
    revise: int | None = None,
) -> Releases:
    """The same in the local setting, played through: what `streamveil collect` does.

    Users' devices perturb what they report, and the releases are made of their reports alone.
    Arguments, result and errors are as those of :func:`release`.
    """
    given = _without(locals(), ["data"])
    from streamveil.engine.stream.local_plan import LocalPlan

    with words_of(collect):
        options = _options("collect", given)
        plan = local_plan_of(options, LocalPlan)
        source = _events(data, "data", plan.columns.names, dialect_of(options))
        return _releases(collect, plan, [source])


def per_record(
    data: Any,
    *,
    statistic: str,
    budget: str,
    value: str | None = None,
    value_max: float | None = None,
    epsilon_max: float | None = None,
    epsilon_min: float | None = None,
    budget_column: str | None = None,
    key: str | None = None,
    keys: Any = None,
    time: str | None = None,
    slot: Any = None,
    start: Any = None,
    end: Any = None,
    window: int = 1,
    mechanism: str | None = None,
    beta: float | None = None,
    max_records_per_user: int = 1,
    noise_key: str | bytes | None = None,
    slot_zone: str | None = None,
    origin: Any = None,
    time_zone: str | None = None,
    time_unit: str | None = None,
    time_format: str | None = None,
    delimiter: str | None = None,
    columns: Any = None,
) -> Statistics:
    """Statistics that protect each record by a budget of its own: `streamveil per-record`.

    A record that cannot be read or used counts nowhere and is told of nowhere. Arguments are the
    options of the command, `value`, `key` and `time` without `_column`; `data` and errors are as of
    :func:`release`.
    """
    given = _without(locals(), ["data"])
    from streamveil.pipelines.record_plans import RECORD_PLANS, columns_of, records_plan_of

    with words_of(per_record):
        options = _options("per-record", given)
        options.input = "data"  # it has an end
        plan = records_plan_of(options, RECORD_PLANS)
        names = columns_of(options)
        source = _events(data, "data", names, dialect_of(options), silent=True)

        kept, _ = _kept(plan, [source])
        card = card_in_memory("per-record", plan, {}, {})
        return Statistics(tuple(kept[None]), about_records(plan), card)


def evaluate(data: Any = None, **options: Any) -> Comparison:
    """Run mechanisms over the same streams and say which to choose: `streamveil evaluate`.

    What comes out is computed from true counts: it is for data that you may see, and not protected.

    Args:
        data: events of your own, as of :func:`release`; None for synthetic streams alone.
        **options: those of the command, by name (`stream`, `mechanisms`, `epsilons`, `windows`,
            `users`, `slots`, `seeds`, ...), and `user`, `value` and `time` without `_column`; lists
            are taken. `processes` is 1 unless it is given.

    Raises:
        ConfigurationError: a ValueError, for what cannot be done or is no option.
    """
    from streamveil.pipelines.evaluate import compared  # half of the modules of all functions

    with tempfile.TemporaryDirectory(prefix="streamveil-") as folder, words_of(evaluate):
        given = options_of("evaluate", options)
        for name, instead in {"output": "write", "page": "write_page"}.items():
            if getattr(given, name) is not None:
                raise ConfigurationError(f"--{name}: leave it out, {instead}(path) writes it")
        if given.processes is None and not given.per_record:
            given.processes = 1
        if data is not None:
            if given.sql is not None:
                raise ConfigurationError("data and sql exclude each other: leave one out")
            given.input = _file_of(data, folder)
            given.name = given.name or "data"
        return compared(given, "")


def _without(given: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in set(names)}


def _options(command: str, given: Mapping[str, Any]) -> argparse.Namespace:
    """The options of a command that arguments ask for."""
    kept = {name: value for name, value in given.items() if name in _KEPT}
    for name, value in kept.items():
        if isinstance(value, os.PathLike):
            kept[name] = os.fspath(value)
        elif name == "domain" and not isinstance(value, (str, NoneType)):
            column = given["value"] if isinstance(given["value"], str) else None
            kept[name] = domain_of(value, name, column)
        elif name == "requirements" and is_table(value):
            kept[name] = table_of(value, name)
    if not isinstance(kept["noise_key"], (str, bytes, NoneType)):  # which is not shown
        kind = type(kept["noise_key"]).__name__
        raise TypeError(f"noise_key is of type {kind}: give {KEY_PLACES}, or its bytes")
    return options_of(command, _without(given, _KEPT), **kept)


def _releases(
    function: Callable[..., Releases],
    plan: HistogramPlan | LocalPlan,
    sources: list[Source],
    *,
    dynamic: bool = False,
    changes: bool = False,
) -> Releases:
    """Take events, and perhaps changes, through a plan."""
    kept, summary = _kept(plan, sources)
    text = in_words_of(function, summary.text(dead_letters=".rejected"))
    told = (summary.warning(), summary.users_text())
    _warn_of(summary, [in_words_of(function, one) for one in told if one])
    ledger = ledger_table(kept[LEDGER], dynamic=dynamic)
    released = {"slot": [release.slot for release in kept[None]]}
    tables = {"releases": pa.table(released), "ledger": ledger}
    name = function.__name__
    card = card_in_memory(name, plan, tables, summary.counters, changes=changes)
    return Releases(
        tuple(kept[None]),
        plan.domain.labels,
        ledger,
        pa.Table.from_batches(kept[REJECTED], REJECTED_SCHEMA),
        summary.figures(),
        text,
        tuple(kept[REVISIONS]),
        card,
    )


def _slots_of(portfolio: Portfolio, answers: Iterable[SlotAnswer]) -> dict[str, pa.Table]:
    """Which slots of each question were answered, as files of answers have it."""
    told = list(answers)
    return {
        f"{ANSWERS}{question.name}": pa.table(
            {
                name: [getattr(one, name) for one in told if one.question == question.name]
                for name in ("slot", "length")
            }
        )
        for question in portfolio
    }


def _kept(plan: Plan, sources: Sequence[Source]) -> tuple[dict[str | None, list[Any]], Summary]:
    """All outputs by tag, and what was counted."""
    kept: dict[str | None, list[Any]] = defaultdict(list)
    summary = run_plan(plan, sources, lambda output: kept[output.tag].append(output.value))
    return kept, summary


def _warn_of(summary: Summary, warnings: Iterable[str]) -> None:
    """Tell of events that are not in the counts, and the rest."""
    if summary.rejected:
        _LOGGER.warning("%s: .rejected says why", summary.events_text())
    for warning in warnings:
        _LOGGER.warning("%s", warning)


def _events(
    data: Any,
    name: str,
    columns: Iterable[str],
    dialect: CsvDialect | None = None,
    *,
    silent: bool = False,
) -> Source:
    """What reads the data, wherever it is. Raises ConfigurationError and TypeError."""
    names = tuple(columns)
    if is_table(data):
        if dialect is not None and dialect.any_name:
            raise ConfigurationError(
                f"--delimiter and --columns are about CSV files, and {name} is a table: leave them "
                "out"
            )
        table, faults = event_table(data, name, names)
        rows = rows_of_events(table, name, names, faults)
        return count_letters(table_outputs(rows, name, silent))
    path = _path(data, name)
    check_events(path, names, silent=silent, dialect=dialect)
    return count_letters(file_outputs(path, names, silent, dialect))


def _changes(data: Any) -> Source:
    name = "requirement_changes"
    if not is_table(data):
        path = _path(data, name)
        return count_letters(file_outputs(path, change_columns(path)))
    table = table_of(data, name)
    when = [one for one in ("slot", "time") if one in table.column_names] or ["slot"]
    columns = [one for one in CHANGE_COLUMNS if one not in ("slot", "time") or one in when]
    return count_letters(table_outputs(rows_of_events(table, name, columns), name))


def _path(data: Any, name: str) -> str:
    if not isinstance(data, (str, os.PathLike)):
        given = type(data).__name__
        if hasattr(data, "collect"):  # a plan of Polars or Spark, not its rows
            raise TypeError(f"{name} is of type {given}: collect it first (.collect())")
        raise TypeError(f"{name} is of type {given}: give {_DATA}")
    path = os.fspath(data)
    if is_endless(path):
        raise ConfigurationError(
            f"{name}={path} does not end: give {_DATA}, or run streamveil release, which streams"
        )
    return path


def _file_of(data: Any, folder: str) -> str:
    """A file of the data, for what reads files alone: as a pattern that matches it."""
    if not is_table(data):
        return _path(data, "data")
    path = os.path.join(folder, "data.parquet")
    pq.write_table(table_of(data, "data"), path)
    return glob.escape(path)
