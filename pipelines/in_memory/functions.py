"""The commands as functions of Python, whose data and results may be in memory."""

from __future__ import annotations

import argparse
import datetime as dt
import glob
import logging
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeAlias

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
from streamveil.io.ledgers import ledger_table
from streamveil.io.memory import rereadable, rows_of_events, table_outputs
from streamveil.mechanisms.core.arguments import domain_of, refuse, user_column
from streamveil.mechanisms.core.local_days import zone_of
from streamveil.mechanisms.core.records import (
    ADD_REMOVE,
    CHANGE_COLUMNS,
    ConfigurationError,
)
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.queries.discovered import undiscovered
from streamveil.pipelines.cards.card_writer import Cards
from streamveil.pipelines.cards.claims import ANSWERS
from streamveil.pipelines.in_memory.keyword_arguments import options_of, words_of
from streamveil.pipelines.in_memory.results import Counts, Estimates, Results, Statistics
from streamveil.pipelines.in_memory.run_options import USUAL_RUN, RunOptions, options_of_run
from streamveil.pipelines.options.command_table import COMMANDS
from streamveil.pipelines.options.declarations import KEY_PLACES, reasons, saying
from streamveil.pipelines.options.option import COLLECT, QUERIES, RELEASE
from streamveil.pipelines.options.option import refuse as refuse_options
from streamveil.pipelines.options.parsers import dialect_of
from streamveil.pipelines.outputs.of_plan import outputs_of
from streamveil.pipelines.plans.user_plans import histogram_plan_of, local_plan_of, query_plan_of
from streamveil.pipelines.reports.plan_texts import about_discovered, about_plan, about_records
from streamveil.pipelines.runners.local_run import (
    Source,
    count_letters,
    run_plan,
    with_keys_discovered,
)

if TYPE_CHECKING:
    from streamveil.engine.encode.event_mapper import Columns
    from streamveil.engine.plans import Plan
    from streamveil.engine.stream.local_plan import LocalPlan
    from streamveil.mechanisms.core.domains import Domain
    from streamveil.mechanisms.core.records import Slots
    from streamveil.mechanisms.core.user_table import Registry
    from streamveil.mechanisms.queries.definitions import QueryDefinition
    from streamveil.mechanisms.queries.queries import QuerySet
    from streamveil.mechanisms.queries.slot_answers import SlotAnswer
    from streamveil.pipelines.evaluation.comparison import Comparison
    from streamveil.pipelines.reports.summary import Summary

Path = str | os.PathLike[str]
"""A path, a glob, or a location such as `bigquery:PROJECT.DATASET.TABLE`."""
Table: TypeAlias = Any
"""A pandas, Polars, Arrow or DuckDB table. These packages are not imported for their types."""
Time = str | dt.date | None
"""Text in ISO 8601, a date or a datetime."""
Queries: TypeAlias = (
    "QueryDefinition | Sequence[QueryDefinition] | QuerySet | Mapping[str, Any] | Path"
)
"""Queries, a query set, a mapping as in a YAML file of queries, or the path of such a file."""

_LOGGER = logging.getLogger("streamveil")

_DATA = "a path, a glob, a table of pandas, Polars, Arrow or DuckDB, or a list of record batches"
_SHORT_FORM = "count"
"""Name of the query that `value` and `domain` describe."""
_OF_QUERIES = ("mechanism", "max_contributions", "keep", "other", "null")
"""Arguments of the short form that each query has for itself."""
# Arguments that need not be text.
_KEPT = ("domain", "requirements", "requirement_changes", "noise_key")


def release(
    data: Table | Path,
    *queries: Queries,
    user: str,
    time: str,
    slot: str | dt.timedelta | Slots | None = None,
    requirements: Table | Path | Mapping[str, tuple[int, float]] | Registry | None = None,
    budget: str | None = None,
    value: str | tuple[str, str] | None = None,
    domain: Domain | Sequence[str] | Table | str | None = None,
    start: Time = None,
    end: Time = None,
    mechanism: str | None = None,
    max_contributions: int = 1,
    max_slots: int | tuple[int, int] | str | None = None,
    adjacency: str = ADD_REMOVE,
    guarantee: str | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    requirement_changes: Table | Path | None = None,
    noise_key: str | bytes | None = None,
    run: RunOptions = USUAL_RUN,
) -> Results:
    """Release private statistics of every slot, within each user's privacy budget.

    This function does the same as the command `streamveil release`, in this process. With the same
    events, options and noise key, the function and the command give identical results. Each call
    spends the users' budgets again, so release all statistics in one call. The documentation of
    :class:`streamveil.transforms.PrivateQueries` states the guarantee and its limits.

        >>> import streamveil as sv
        >>> rows = {"user": ["ann", "bob"], "place": ["cafe", "park"], "day": ["2024-05-01"] * 2}
        >>> result = sv.release(
        ...     pa.table(rows),
        ...     sv.count("visits", by="place", keys=["cafe", "park"]),
        ...     user="user", time="day", slot="1d", budget="1/7d",
        ... )
        >>> result["visits"].to_arrow().num_rows
        2

    Args:
        data: the events. Give a path or glob, a BigQuery table as `bigquery:PROJECT.DATASET.TABLE`,
            a BigQuery query as `bigquery:SELECT ...`, a pandas, Polars, Arrow or DuckDB table, or a
            list of Arrow record batches.
        *queries: the statistics to release, such as `sv.count(...)` and `sv.mean(...)`, or the path
            of a YAML file with queries. If you give no queries, `value` and `domain` describe a
            single count.
        user: name of the column that contains the user ids.
        time: name of the column that contains the event times.
        slot: length of a slot (a fixed time window), such as `1mo`, `1d`, `1h`, `5m` or a
            timedelta. With queries, slots are counted from 1970-01-01, weeks begin on Mondays, and
            `slot` may also be a `Slots` object. Without queries, slots are counted so that one slot
            begins at `start`, unless slots are calendar months. With a file of queries, leave this
            argument out, because the file sets the slot.
        requirements: the public requirements table, with each user's window (in slots) and epsilon.
            Give a path, a table, a mapping user -> (window, epsilon), or a `Registry`.
        budget: the same privacy budget for each user, instead of a requirements table. For example,
            `1/7d` is epsilon 1 over any 7 consecutive days. The period (7 days in this example)
            must be a whole number of slots.
        value: if you give no queries, the name of the column to count by. To count by map cells,
            give the names of two columns, the first with longitudes and the second with latitudes.
            streamveil then releases `sv.count("count", by=value, keys=domain)`.
        domain: if you give no queries, the public values of the column `value` for which counts are
            released. Give a list, `Categories`, `Edges`, `Grid`, or text as for the option
            `--domain`.
        start: a time in the first slot to release, as ISO 8601 text or a datetime. If None, the
            release begins with the first slot that has an event, so the time of this slot becomes
            public.
        end: the end of the release. Only slots that end at or before this time are released. If
            None, the release ends with the last slot that has an event.
        mechanism: if you give no queries, the name of the mechanism. If None, the default mechanism
            is used. If you give queries, each query names its own mechanism.
        max_contributions: if you give no queries, the largest number of events that are kept per
            user and slot. Further events are dropped.
        max_slots: participation limit, as a number M. In each half of a window, a user contributes
            only to the first M slots in which the user has events. With a pair (M, n), the window
            is divided into n parts instead of two halves. With `auto`, a private estimate chooses
            M. With `auto:0.05`, M is chosen under the public assumption that users have events in 5
            % of the slots. If None, there is no limit, unless the requirements table has a column
            `max_slots` with the limit of each user. For a query with longer slots than the base
            slot, the limit counts slots of that query.
        adjacency: which change of the input the guarantee hides. With `add_remove` (the default),
            all of one user's events in a window are added or removed. With `replace`, any of these
            events are replaced by other events (replace-one adjacency).
        guarantee: the kind of privacy budget. `w-event` (the default) limits the privacy loss in
            any window. `user` gives each user a lifetime budget. Each user then contributes to a
            query only in the first `max_slots` slots in which the user has events. `infinite` gives
            each user a lifetime budget too, but users contribute to all slots, and all slots share
            the budget. `infinite` works for a single count only.
        epsilon: the lifetime budget of each user, which you must give if `guarantee` is `user` or
            `infinite`.
        delta: the probability with which the discovery of keys may fail to protect a user, over any
            window, for example `1e-9`. Give it if a query has `keys="discover"`. A user may have
            another one, in a column `delta` of the requirements. If None, no keys are discovered,
            and the guarantee is pure differential privacy.
        requirement_changes: a path or a table with changes of requirements, which
            docs/reference/requirement-changes.md describes.
        noise_key: the secret from which the noise is derived. Give the place of the secret, as for
            the option `--noise_key`, or the key itself, with at least 32 bytes. If None, the key is
            read from the environment variable STREAMVEIL_NOISE_KEY. If this variable is not set
            either, a fresh random key is used.
        run: less common options, for example the time zone of the events. :class:`RunOptions` lists
            them.

    Returns:
        A mapping from the name of each query to its results. If you give no queries, the name is
        `count`. The mapping also has attributes for the ledger (the budget that each slot spent),
        the dead letters (rejected events) and the event accounting.

    Raises:
        ConfigurationError: if an argument is not valid. Nothing is released, and no budget is
            spent.
        InputLost: if too many events are rejected or late. Nothing is released, and no budget is
            spent.
        BudgetExceeded: if a release would exceed a user's budget. This release is not made.
        MachineFault: if the input cannot be read to its end, or if the machine or a service fails.
            After such an error, you may call the function again.
        TypeError: if `data` has an unsupported type.
    """
    given = {**_without(locals(), ["data", "queries", "run"]), **options_of_run(run)}
    with words_of(release):
        if isinstance(max_slots, Mapping):
            refuse(
                "max_slots",
                max_slots,
                "give a number of slots, such as 3, or 'auto'; limits of some users are a column "
                "max_slots of the requirements",
            )
        if not queries:
            if value is None and domain is None:
                raise ConfigurationError(
                    "queries are missing: give them, such as sv.count('visits'), or value and "
                    "domain"
                )
            return _counts(data, _SHORT_FORM, given)
        from streamveil.pipelines.in_memory.queries import (
            arguments_of,
            arguments_of_slots,
            queries_of_call,
        )

        query_set, count = queries_of_call(queries, given)
        if count is None:
            return _estimates(data, query_set, given)
        own = reasons(QUERIES, _OF_QUERIES)
        _refuse(_options(RELEASE, {**given, "slot": None}), QUERIES, own)
        arguments = {**given, **arguments_of(count), **arguments_of_slots(query_set.base, given)}
        return _counts(data, count.name, arguments, count.title, count.unit)


def _counts(
    data: Any, name: str, given: Mapping[str, Any], title: str = "", unit: str = ""
) -> Results:
    """Release one count."""
    options = _options("release", given)
    plan = histogram_plan_of(options, HistogramPlan)
    for text, level in about_plan(plan):
        _LOGGER.log(level, text)
    sources, changes = _sources(data, plan.columns, options, given)
    return _results(release, plan, sources, name, title, unit, changes=changes)


def _sources(
    data: Any, columns: Columns, options: Any, given: Mapping[str, Any]
) -> tuple[list[Source], bool]:
    """What reads the events, and the changes of requirements if any are given: whether they are."""
    sources = [_events(data, "data", columns.names, dialect_of(options))]
    changes = given["requirement_changes"] is not None
    if changes:
        sources.append(_changes(given["requirement_changes"]))
    return sources, changes


def _estimates(data: Any, query_set: QuerySet, given: Mapping[str, Any]) -> Results:
    """Release a query set."""
    from streamveil.engine.stream.query_plan import QueryPlan

    options = _options(RELEASE, {**given, "slot": None})
    _refuse(options, QUERIES, reasons(QUERIES))
    options.queries = query_set
    plan = query_plan_of(options, QueryPlan)
    twice = bool(undiscovered(plan.query_set))
    data = rereadable(data, "data") if twice else data
    sources, changes = _sources(data, plan.columns, options, given)
    if twice:
        plan = with_keys_discovered(plan, sources[0])
        sources, changes = _sources(data, plan.columns, options, given)
    kept, summary = _kept(plan, sources)
    for text, level in about_discovered(plan):  # only when there are results
        _LOGGER.log(level, text)
    _warn_of(summary)
    ledger = ledger_table(kept[LEDGER])
    tables = {"ledger": ledger, **_slots_of(plan.query_set, kept[None])}
    answers, revisions = _by_query(plan.query_set, kept[None], kept[REVISIONS])
    zone = zone_of(plan.slots)
    return Results(
        {
            query.name: Estimates(query, answers[query.name], zone, revisions[query.name])
            for query in plan.query_set
        },
        ledger,
        pa.Table.from_batches(kept[REJECTED], REJECTED_SCHEMA),
        summary.figures(),
        summary.text(dead_letters=".rejected"),
        Cards("release", plan, changes).of_memory(tables, summary.counters),
    )


def _by_query(
    query_set: QuerySet, *several: Iterable[Any]
) -> Iterator[Mapping[str, tuple[Any, ...]]]:
    """Of each of several sequences of answers those to each query, by its name."""
    for answers in several:
        found: dict[str, list[Any]] = {query.name: [] for query in query_set}
        for answer in answers:
            found[answer.query].append(answer)
        yield {name: tuple(some) for name, some in found.items()}


def collect(
    data: Table | Path,
    *,
    user: str,
    value: str | tuple[str, str],
    time: str,
    slot: str | dt.timedelta,
    domain: Domain | Sequence[str] | Table | str,
    requirements: Table | Path | Mapping[str, tuple[int, float]] | Registry,
    mechanism: str | None = None,
    start: Time = None,
    end: Time = None,
    noise_key: str | bytes | None = None,
    run: RunOptions = USUAL_RUN,
) -> Results:
    """Simulate a release of one count in the local model of differential privacy.

    This function does the same as the command `streamveil collect`, in this process. Each user has
    a simulated device, which adds noise to its reports. The releases are computed only from these
    reports.

    Args:
        data: the events, in any form that :func:`release` accepts.
        user: name of the column that contains the user ids.
        value: name of the column to count by. To count by map cells, give the names of two columns,
            the first with longitudes and the second with latitudes.
        time: name of the column that contains the event times.
        slot: length of a slot, such as `1mo`, `1d`, `1h`, `5m` or a timedelta.
        domain: the public keys to report, in any form that :func:`release` accepts.
        requirements: the public requirements table, in any form that :func:`release` accepts. The
            table must list every user.
        mechanism: name of a local mechanism. You may add options, written NAME:OPTION=VALUE. If
            None, the default local mechanism is used.
        start: a time in the first slot to release, as ISO 8601 text or a datetime. If None, the
            release begins with the first slot that has an event.
        end: the end of the release. Only slots that end at or before this time are released.
        noise_key: the noise key, in any form that :func:`release` accepts.
        run: less common options, such as the time zone of the events. :class:`RunOptions` lists
            them.

    Returns:
        The results, as :func:`release` returns them. The name of the count is `count`.

    Raises:
        ConfigurationError: if :func:`release` would raise this error.
        InputLost: if :func:`release` would raise this error.
        TypeError: if :func:`release` would raise this error.

    Example:
        >>> import streamveil as sv
        >>> rows = {"user": ["ann", "bob"], "place": ["cafe", "park"], "day": ["2024-05-01"] * 2}
        >>> result = sv.collect(
        ...     pa.table(rows), user="user", value="place", time="day", slot="1d",
        ...     domain=["cafe", "park"], requirements={"ann": (7, 1.0), "bob": (7, 1.0)},
        ... )
        >>> result["count"].keys
        ('cafe', 'park')
    """
    given = {**_without(locals(), ["data", "run"]), **options_of_run(run)}
    from streamveil.engine.stream.local_plan import LocalPlan

    with words_of(collect):
        options = _options(COLLECT, given)
        same = {"longest_window": "requirements stay as they are during a call"}
        _refuse(options, COLLECT, reasons(COLLECT) | same)
        plan = local_plan_of(options, LocalPlan)
        source = _events(data, "data", plan.columns.names, dialect_of(options))
        return _results(collect, plan, [source], _SHORT_FORM)


def per_record(
    data: Table | Path,
    *,
    statistic: str,
    budget: str,
    value: str | None = None,
    value_max: float | None = None,
    epsilon_max: float | None = None,
    epsilon_min: float | None = None,
    budget_column: str | None = None,
    key: str | None = None,
    keys: Sequence[str] | str | None = None,
    time: str | None = None,
    slot: str | dt.timedelta | None = None,
    start: Time = None,
    end: Time = None,
    window: int = 1,
    mechanism: str | None = None,
    beta: float | None = None,
    max_records_per_user: int = 1,
    noise_key: str | bytes | None = None,
    slot_zone: str | None = None,
    origin: Time = None,
    time_zone: str | None = None,
    time_unit: str | None = None,
    time_format: str | None = None,
    delimiter: str | None = None,
    columns: Sequence[str] | str | None = None,
) -> Statistics:
    """Release statistics that protect each record with the record's own privacy budget.

    This function does the same as the command `streamveil per-record`, in this process. A public
    function computes the budget of each record from the record. The budgets themselves stay secret,
    because they depend on the records. A record that cannot be read or used is dropped without a
    report, because a report would reveal something about the record.

    Args:
        data: the records, in any form in which :func:`release` accepts events.
        statistic: the statistic to release, which is `count`, `sum`, `max`, `distinct`,
            `running-count` or `running-sum`.
        budget: the public function that computes the budget (epsilon) of each record. For example,
            with `inverse:1000`, a record with the number v has the budget 1000 / v.
        value: name of the column that contains the numbers. Records with numbers outside the range
            from 0 to `value_max` are dropped.
        value_max: the largest number that a record may have, which is public.
        epsilon_max: the largest budget that a record may have, which is public. If the function
            gives a larger budget, the record gets `epsilon_max`.
        epsilon_min: the smallest budget that a record may have, which is public. Records with a
            smaller budget are dropped. Use this argument only if `budget` is a table.
        budget_column: name of the column from which the budget is computed. The default is the
            column that you give as `value`.
        key: name of the column to group by.
        keys: all values of the column `key` for which results are released. The list of values is
            public. Records with other values are dropped.
        time: name of the column that contains the times of the records.
        slot: length of a slot (a fixed time window), such as `1d`. If None, a single result is
            computed from all records.
        start: time in the first slot to release, as ISO 8601 text or a datetime.
        end: the end of the release. Only slots that end at or before this time are released.
        window: number of slots that each result covers. With 7 and daily slots, for example, each
            day has a result over the last 7 days.
        mechanism: name of the mechanism. If None, the default mechanism of the statistic is used.
        beta: the largest probability with which the bound `dropped_bound` in a result may be wrong.
            If None, the default of the mechanism is used.
        max_records_per_user: the largest number of records that belong to one person. You must make
            sure that no person has more records, because streamveil does not check the number. The
            budget of each record is divided by this number.
        noise_key: the noise key, in any form that :func:`release` accepts.
        slot_zone: time zone of the calendar, if slots are calendar days, weeks, months or years.
        origin: the time at which slot 0 begins, in ISO 8601 or as a datetime. Slots are counted
            from this time.
        time_zone: time zone of record times that have no UTC offset. If None, these times are in
            UTC.
        time_unit: unit of record times that are numbers: `s`, `ms`, `us`, `ns`, or `excel` for
            serial dates.
        time_format: format of record times that are not in ISO 8601, written as strptime codes.
        delimiter: the character that separates the fields of CSV files.
        columns: names of all columns of CSV files that have no header.

    Returns:
        For each window and key, an estimate and its standard error.

    Raises:
        ConfigurationError: if :func:`release` would raise this error.
        MachineFault: if :func:`release` would raise this error.
        TypeError: if :func:`release` would raise this error.

    Example:
        >>> import streamveil as sv
        >>> payments = pa.table({"amount": [120.0, 80.0]})
        >>> total = sv.per_record(
        ...     payments, statistic="sum", value="amount", value_max=1000,
        ...     budget="inverse:1000", epsilon_max=5,
        ... )
        >>> total.to_arrow().num_rows
        1
    """
    given = _without(locals(), ["data"])
    from streamveil.pipelines.plans.record_plans import RECORD_PLANS, columns_of, records_plan_of

    with words_of(per_record):
        options = _options("per-record", given)
        options.input = "data"  # it has an end
        plan = records_plan_of(options, RECORD_PLANS)
        names = columns_of(options)
        source = _events(data, "data", names, dialect_of(options), silent=True)

        kept, _ = _kept(plan, [source])
        card = Cards("per-record", plan).of_memory({}, {})
        return Statistics(tuple(kept[None]), about_records(plan), card)


def evaluate(data: Table | Path | None = None, **options: Any) -> Comparison:
    """Compare mechanisms on the same streams, and recommend a mechanism.

    This function does the same as the command `streamveil evaluate`, in this process. The results
    are computed from true counts, so the results are not private. Use the function only with
    synthetic data, or with data that you are allowed to see.

    Args:
        data: your own events, in any form that :func:`release` accepts. If None, only synthetic
            streams are used.
        **options: the options of the command `streamveil evaluate` by name, such as `streams`,
            `mechanisms`, `epsilons`, `windows`, `users`, `slots` and `seeds`. The options
            `--user_column`, `--value_column` and `--time_column` are called `user`, `value` and
            `time` here. If an option takes several values, give them as a list. The default of
            `processes` is 1.

    Returns:
        A table with the error of each mechanism for each stream and requirement, and a
        recommendation.

    Raises:
        ConfigurationError: if an option is unknown, or if the value of an option is not valid.

    Example:
        >>> import streamveil as sv
        >>> table = sv.evaluate(streams=["sin"], mechanisms=["uniform"], users=60, slots=9, seeds=1)
        >>> table.to_arrow()["mechanism"].to_pylist()
        ['uniform']
    """
    from streamveil.pipelines.evaluation.from_options import (
        compared,  # half of the modules of all functions
    )

    with tempfile.TemporaryDirectory(prefix="streamveil-") as folder, words_of(evaluate):
        given = options_of("evaluate", options)
        for name, instead in {"output": "write", "page": "write_page"}.items():
            if getattr(given, name) is not None:
                raise ConfigurationError(f"{opt[name]}: leave it out, {instead}(path) writes it")
        if given.processes is None and not given.per_record:
            given.processes = 1
        if data is not None:
            if given.sql is not None:
                raise ConfigurationError("data and sql exclude each other: leave one out")
            given.input = _file_of(data, folder)
            given.name = given.name or "data"
        return compared(given, "")


def _refuse(options: argparse.Namespace, case: str, why: Mapping[str, str]) -> None:
    """Refuse arguments that have no meaning here. Raises ConfigurationError."""
    command = COLLECT if case == COLLECT else RELEASE
    refuse_options(options, COMMANDS[command].defaults, why, saying(case))


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
    if "user" in given:
        user_column(given["user"])
    if not isinstance(kept["noise_key"], (str, bytes, NoneType)):  # which is not shown
        kind = type(kept["noise_key"]).__name__
        raise TypeError(f"noise_key is of type {kind}: give {KEY_PLACES}, or its bytes")
    return options_of(command, _without(given, _KEPT), **kept)


def _results(
    function: Callable[..., Results],
    plan: HistogramPlan | LocalPlan,
    sources: list[Source],
    query: str,
    title: str = "",
    unit: str = "",
    *,
    changes: bool = False,
) -> Results:
    """Take events, and perhaps changes, through a plan of one count."""
    kept, summary = _kept(plan, sources)
    text = summary.text(dead_letters=".rejected")
    _warn_of(summary)
    dynamic = outputs_of(plan, changes=changes).dynamic_ledger
    entries = kept[LEDGER] if dynamic else [replace(one, query=query) for one in kept[LEDGER]]
    ledger = ledger_table(entries, dynamic=dynamic)
    released = {"slot": [release.slot for release in kept[None]]}
    tables = {"releases": pa.table(released), "ledger": ledger}
    card = Cards(function.__name__, plan, changes).of_memory(tables, summary.counters)
    counts = Counts(
        query,
        plan.domain.labels,
        tuple(kept[None]),
        tuple(kept[REVISIONS]),
        zone_of(plan.slots),
        title,
        unit,
    )
    return Results(
        {query: counts},
        ledger,
        pa.Table.from_batches(kept[REJECTED], REJECTED_SCHEMA),
        summary.figures(),
        text,
        card,
    )


def _slots_of(query_set: QuerySet, answers: Iterable[SlotAnswer]) -> dict[str, pa.Table]:
    """Which slots of each query were answered, as files of answers have it."""
    results = list(answers)
    return {
        f"{ANSWERS}{query.name}": pa.table(
            {
                name: [getattr(one, name) for one in results if one.query == query.name]
                for name in ("slot", "length")
            }
        )
        for query in query_set
    }


def _kept(plan: Plan, sources: Sequence[Source]) -> tuple[dict[str | None, list[Any]], Summary]:
    """All outputs by tag, and what was counted."""
    kept: dict[str | None, list[Any]] = defaultdict(list)
    summary = run_plan(plan, sources, lambda output: kept[output.tag].append(output.value))
    return kept, summary.for_plan(plan)


def _warn_of(summary: Summary) -> None:
    """Say which events are in no count, and what else may need a remedy."""
    if summary.rejected:
        _LOGGER.warning("%s: .rejected says why", summary.events_text())
    for warning in (*summary.warnings(), summary.users_text()):
        if warning:
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
                f"{opt.delimiter} and {opt.columns} are about CSV files, and {name} is a table: "
                f"leave them out"
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
            f"{name}={path} is unbounded: give {_DATA}, or run streamveil release, which streams"
        )
    return path


def _file_of(data: Any, folder: str) -> str:
    """A file of the data, for what reads files alone: as a pattern that matches it."""
    if not is_table(data):
        return _path(data, "data")
    path = os.path.join(folder, "data.parquet")
    pq.write_table(table_of(data, "data"), path)
    return glob.escape(path)
