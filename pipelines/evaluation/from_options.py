"""The comparison that the options of `streamveil evaluate` ask for: streams, settings, refusals.

Synthetic streams need no Beam. It is imported where events are read, or a table is written.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streamveil.io.places import name_of
from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.core.records import ConfigurationError, Requirement
from streamveil.mechanisms.core.wording import help_of, opt
from streamveil.mechanisms.queries.discovered import discovering
from streamveil.mechanisms.registry import PER_RECORD_MECHANISMS, can_revise, check_revise, parse
from streamveil.pipelines.console.progress import progress, steps
from streamveil.pipelines.evaluation import per_record
from streamveil.pipelines.evaluation.bounds import bound_advice
from streamveil.pipelines.evaluation.comparison import Comparison, compare, tasks
from streamveil.pipelines.evaluation.comparison_table import Family, Task
from streamveil.pipelines.evaluation.infinite import Infinite
from streamveil.pipelines.evaluation.per_record import PerRecord
from streamveil.pipelines.evaluation.presence import Candidates, limit_advice
from streamveil.pipelines.evaluation.sources import Counted, Drawn, Synthetic
from streamveil.pipelines.evaluation.w_event import RevisedWEvent, WEvent
from streamveil.pipelines.options.budget_functions import budget_of
from streamveil.pipelines.options.command_table import COMMANDS
from streamveil.pipelines.options.declarations import REQUIRED, TABLE_OPTIONS, saying, shown_by
from streamveil.pipelines.options.evaluate_options import (
    DEFAULT_EPSILON,
    DEFAULT_INFINITE_SLOTS,
    DEFAULT_MECHANISMS,
    DEFAULT_RUNS,
    DEFAULT_SLOTS,
    DEFAULT_STATISTICS,
    DEFAULT_USERS,
    DEFAULT_WINDOW,
    INFINITE_DEFAULTS,
    INPUT,
    not_of_queries,
    preset,
)
from streamveil.pipelines.options.flags import numbers
from streamveil.pipelines.options.guarantees import INFINITE, USER, epsilons_of, promise_of
from streamveil.pipelines.options.option import EVALUATE, PER_RECORD, QUERIES, refuse
from streamveil.pipelines.options.parsers import check_required, dialect_of
from streamveil.pipelines.sample_data.records import (
    EPSILON_MAX,
    PER_RECORD_DATA,
    RECORDS,
    VALUE_MAX,
)
from streamveil.pipelines.sample_data.streams import INFINITE_STREAMS, REAL, STREAMS

if TYPE_CHECKING:
    from streamveil.pipelines.evaluation.data import Data
    from streamveil.pipelines.evaluation.query_data import AskedData

_TITLE = "streamveil evaluate"
# Options that have no meaning but with one form of the command, and those that have none with it.
_INFINITE_OPTIONS = ("events",)
_PER_RECORD_OPTIONS = ("statistics", "runs", "records", "budget", "value_max", "epsilon_max")
_NOT_INFINITE = ("epsilons", "windows", "users", "revise", "max_slots", *TABLE_OPTIONS)
_NOT_PER_RECORD = (
    *("streams", "epsilons", "windows", "users", "slots", "revise", "max_slots", "processes"),
    "format",
    *("guarantee", "epsilon", *_INFINITE_OPTIONS, "time_column", "slot", "start", "end"),
)

Setting = tuple[Any, ...]


def compared(given: argparse.Namespace, command: str) -> Comparison:
    """Compare as the options say; `command` does the same again.

    Raises ConfigurationError for anything wrong.
    """
    if given.queries:
        return _compare_shares(given, command)
    if given.per_record:
        return _compare_records(given, command)
    _refuse(given, _PER_RECORD_OPTIONS, "is for statistics of records:", f"give {opt.per_record}")
    _refuse(
        given, ["delta"], "is for keys that are discovered:", f"give {opt.queries} with such keys"
    )
    promise = promise_of(given)
    if promise == USER:
        raise ConfigurationError(
            f"{opt.guarantee}={USER} is not compared here: its error depends on when users come "
            f"and go. If few users stay, its error is that of {opt.mechanisms}=adaptive with "
            f"{opt.windows}=1 and {opt.epsilons} of the budget / {opt.max_slots}"
        )
    if promise == INFINITE:
        return _compare_infinite(given, command)
    wanted = f"give {opt.guarantee}={INFINITE}"
    _refuse(given, _INFINITE_OPTIONS, "is for lifetime budgets:", wanted)
    return _compare_w_event(given, command)


def _compare_w_event(given: argparse.Namespace, command: str) -> Comparison:
    _check_sizes(given, ("users", "slots"))
    users = DEFAULT_USERS if given.users is None else given.users
    slots = DEFAULT_SLOTS if given.slots is None else given.slots
    lag = _revise_of(given)
    return _compare_streams(
        RevisedWEvent(lag) if lag else WEvent(),
        given,
        command,
        DEFAULT_MECHANISMS,
        STREAMS,
        lambda name: Synthetic(name, users, slots),
        lambda counted: _requirements(given, counted),
    )


def _revise_of(given: argparse.Namespace) -> int:
    """How many slots later slots are revised, by at least one of the mechanisms; 0 for never."""
    if given.revise is None:
        return 0
    names = _names("mechanisms", given.mechanisms or ",".join(DEFAULT_MECHANISMS))
    lag = _at_least_one("revise", given.revise)
    check_revise(next(filter(can_revise, names), names[0]), lag)
    return lag


def _compare_infinite(given: argparse.Namespace, command: str) -> Comparison:
    meant = (
        f"leave it out with {opt.guarantee}={INFINITE}, where all have one budget, {opt.epsilon}"
    )
    _refuse(given, _NOT_INFINITE, "is about windows:", meant)
    epsilons = [(epsilon,) for epsilon in epsilons_of(given.epsilon)]
    _check_sizes(given, ("slots", "events"))
    slots = DEFAULT_INFINITE_SLOTS if given.slots is None else given.slots
    return _compare_streams(
        Infinite(),
        given,
        command,
        INFINITE_DEFAULTS,
        INFINITE_STREAMS,
        lambda name: Drawn(name, slots, given.events),
        lambda counted: epsilons,
    )


def _compare_streams(
    family: Family,
    given: argparse.Namespace,
    command: str,
    defaults: Sequence[str],
    known: Mapping[str, object],
    draw: Callable[[str], Synthetic | Drawn],
    settings: Callable[[Counted | None], Sequence[Setting]],
) -> Comparison:
    """Compare on synthetic and real streams and on the events that the options name.

    Args:
        family: of the mechanisms.
        given: the options.
        command: what to run to get the same again.
        defaults: mechanisms unless others are given.
        known: names of synthetic streams.
        draw: makes one of them.
        settings: to run a source in, by the table of requirements that it was counted with, if any.
    """
    mechanisms = _names("mechanisms", given.mechanisms or ",".join(defaults))
    seeds = _at_least_one("seeds", given.seeds)
    processes = _at_least_one("processes", given.processes or os.cpu_count() or 1)
    choice = ", ".join([*known, *REAL])
    names = [] if given.streams is None else _names("streams", given.streams)
    for name in names:
        if name not in {**known, **REAL}:
            form = f" with {opt.guarantee}={INFINITE}" if given.guarantee == INFINITE else ""
            raise ConfigurationError(
                f"{opt.streams}: {name!r} is unknown{form}: choose of {choice}"
            )
    candidates = Candidates.of(given.max_slots)
    data = _data(given)
    if candidates and not given.input and not set(names) & set(REAL):
        raise ConfigurationError(
            f"{opt.max_slots}={given.max_slots} is for events of users: give {opt.input}, or a "
            f"stream of {', '.join(REAL)}"
        )
    if not names and data is None:
        raise ConfigurationError(
            f"{opt.streams} is missing: name some, of {choice}, or give events of your own as "
            f"{opt.input}"
        )
    _check_outputs(given)
    # Wrong names show before anything is counted.
    examples = [name for name in names if name not in REAL] or list(known)[:1]
    tasks(family, [(draw(name), settings(None)) for name in examples], mechanisms, seeds)
    with tempfile.TemporaryDirectory(prefix="streamveil-") as folder:
        sources: list[tuple[Any, Sequence[Setting]]] = []
        notes: list[str] = []
        for name in names:
            if name in REAL:
                with progress(f"{_TITLE}, counting {name}"):
                    from streamveil.pipelines.evaluation.data import real_stream

                    real = real_stream(name, Path(folder))
                sources.append((real, settings(real)))
            else:
                sources.append((draw(name), settings(None)))
        if data is not None:
            from streamveil.pipelines.evaluation.data import counted_with_notes

            counted, notes = counted_with_notes(partial(data.count, Path(folder)), given)
            sources.append((counted, settings(counted if data.registry else None)))
        todo = tasks(family, sources, mechanisms, seeds)
        found = _run(family, todo, len(todo) * len(mechanisms), processes, command)
        if candidates:
            with progress(f"{_TITLE}, comparing participation limits"):
                notes += limit_advice(candidates, [source for source, _ in sources], found)
    if isinstance(family, WEvent):
        notes += bound_advice([source for source, _ in sources], found)
    return dataclasses.replace(found, notes=notes)


def _compare_shares(given: argparse.Namespace, command: str) -> Comparison:
    """Score the answers to queries about events."""
    refuse(given, COMMANDS[EVALUATE].defaults, not_of_queries(), saying(QUERIES))
    check_required("evaluate", given, ("input", "user_column", "time_column"))
    seeds = _at_least_one("seeds", given.seeds)
    processes = _at_least_one("processes", given.processes or os.cpu_count() or 1)
    _check_outputs(given)
    from streamveil.pipelines.evaluation.data import counted_with_notes
    from streamveil.pipelines.evaluation.queries import EVEN, PLANNED, Asked
    from streamveil.pipelines.evaluation.query_data import AskedData

    data, family = AskedData.of(given, given.name or ""), Asked()
    query_set = data.transform.query_set
    if discovering(query_set):
        return _compare_discovered(given, data, processes, command)
    kinds = (PLANNED, EVEN) if len(query_set.queries) > 1 else (PLANNED,)
    with tempfile.TemporaryDirectory(prefix="streamveil-") as folder:
        with progress(f"{_TITLE}, counting"):
            source, notes = counted_with_notes(partial(data.count, Path(folder)), given)
        todo = tasks(family, [(source, [()])], kinds, seeds)
        # One for each figure, and one for all queries together.
        rows = 1 + sum(len(query.statistic.outputs) for query in query_set)
        found = _run(family, todo, len(todo) * len(kinds) * rows, processes, command)
    return dataclasses.replace(found, notes=notes)


def _compare_discovered(
    given: argparse.Namespace, data: AskedData, processes: int, command: str
) -> Comparison:
    """Score the discovery of keys, and the answers to queries about them."""
    from streamveil.pipelines.evaluation.data import counted_with_notes
    from streamveil.pipelines.evaluation.discovered import AskedDiscovered, DiscoveringEvents
    from streamveil.pipelines.evaluation.queries import PLANNED

    with progress(f"{_TITLE}, counting"):
        true_keys, notes = counted_with_notes(data.true_keys, given)
    source = DiscoveringEvents(data.name, data, true_keys)
    family = AskedDiscovered()
    todo = tasks(family, [(source, [()])], (PLANNED,), given.seeds)
    with steps(_TITLE, len(todo), "seeds") as done:
        found = compare(family, todo, processes, lambda _: done(1), command)
    return dataclasses.replace(found, notes=notes)


def _compare_records(given: argparse.Namespace, command: str) -> Comparison:
    of_users = [one.name for one in shown_by(EVALUATE).values() if PER_RECORD in one.refused]
    meant = f"leave it out with {opt.per_record}={given.per_record}"
    _refuse(given, (*_NOT_PER_RECORD, *of_users), "is about streams of histograms:", meant)
    _at_least_one("seeds", given.seeds)
    _check_outputs(given)
    mechanisms = _names("mechanisms", given.mechanisms) if given.mechanisms else []
    kinds = _names("statistics", given.statistics or ",".join(DEFAULT_STATISTICS))
    for kind in kinds:
        if kind not in PER_RECORD_MECHANISMS:
            known = ", ".join(PER_RECORD_MECHANISMS)
            raise ConfigurationError(f"{opt.statistics}: {kind!r} is unknown: choose of {known}")
    everything = {k: v for kind in kinds for k, v in PER_RECORD_MECHANISMS[kind].items()}
    for name in mechanisms:
        parse(name, everything)
    runs = DEFAULT_RUNS if given.runs is None else given.runs
    if runs < 5:
        raise ConfigurationError(f"{opt.runs}={runs}: a trimmed mean needs 5 or more")
    sources = [_records(name, given, runs) for name in _names("per_record", given.per_record)]
    family = PerRecord()
    todo = tasks(family, [(one, [(k,) for k in kinds]) for one in sources], mechanisms, given.seeds)
    total = sum(len(per_record.mechanisms_of(task.setting[0], mechanisms)) for task in todo)
    return _run(family, todo, total, 1, command)


def _run(
    family: Family, todo: Sequence[Task], total: int, processes: int, command: str
) -> Comparison:
    with steps(_TITLE, total, "runs") as done:
        return compare(family, todo, processes, done, command)


def _records(name: str, given: argparse.Namespace, runs: int) -> per_record.Data:
    """Data of --per_record by name. Raises ConfigurationError."""
    epsilon_max = EPSILON_MAX if given.epsilon_max is None else given.epsilon_max
    if name == INPUT:
        draw, scale, about = _input(given)
        name = given.name or name_of(given.input)
    elif name in PER_RECORD_DATA:
        named = PER_RECORD_DATA[name]
        number = RECORDS if given.records is None else given.records
        _at_least_one("records", number)

        def draw(seed: int) -> Floats:
            return named.draw(np.random.default_rng(seed), number)

        scale, about = named.scale, named.about
    else:
        known = ", ".join([*PER_RECORD_DATA, INPUT])
        raise ConfigurationError(f"{opt.per_record}: {name!r} is unknown: choose of {known}")
    value_max = VALUE_MAX if given.value_max is None else given.value_max
    text = given.budget or f"inverse:{scale:g}"
    budget = budget_of(text, value_max, epsilon_max)
    return per_record.Data(name, draw, budget, f"{about}; {text}", runs)


def _input(given: argparse.Namespace) -> tuple[Callable[[int], Floats], float, str]:
    for option in ("input", "value_column", "budget"):
        if not getattr(given, option):
            raise ConfigurationError(
                f"{opt[option]} is missing: {opt.per_record}={INPUT} needs it; "
                f"{help_of('evaluate')}"
            )
    from streamveil.io import check_events, read_events
    from streamveil.pipelines.evaluation.data import numbers_of

    column = given.value_column
    dialect = dialect_of(given)
    check_events(given.input, [column], dialect=dialect)
    batches = read_events(given.input, [column], dialect=dialect)
    whole = np.concatenate([np.zeros(0), *(numbers_of(batch, column) for batch, _ in batches)])
    return (lambda _: whole), 1.0, f"{column} of {name_of(given.input)}"


def _refuse(given: argparse.Namespace, options: Iterable[str], why: str, remedy: str) -> None:
    """Refuse those of the options that are given."""
    refuse(given, COMMANDS[EVALUATE].defaults, dict.fromkeys(options, remedy), why)


def _check_sizes(given: argparse.Namespace, sizes: Iterable[str]) -> None:
    """Refuse sizes below 1, and such without a synthetic stream."""
    names = set(_names("streams", given.streams)) if given.streams else set()
    for option in sizes:
        number = getattr(given, option)
        if number is not None and names <= set(REAL):
            raise ConfigurationError(
                f"{opt[option]} is for synthetic streams: give {opt.streams}, or leave it out"
            )
        if number is not None:
            _at_least_one(option, number)


def _data(given: argparse.Namespace) -> Data | None:
    """The events that the options name, checked as far as can be before they are read."""
    if not given.input:
        shared = [name for name in shown_by(EVALUATE) if name not in ("guarantee", "epsilon")]
        meant = f"give {opt.input}"
        _refuse(given, ["slot"], "is for events:", f"{meant} (or did you mean {opt.slots}?)")
        _refuse(given, ("format", "name", *shared), "is for events:", meant)
        return None
    known = preset(given.format, given.input).options if given.format else {}
    for name, value in known.items():
        if getattr(given, name) is None:
            setattr(given, name, value)
    check_required("evaluate", given, REQUIRED)
    from streamveil.io import check_events
    from streamveil.pipelines.evaluation.data import Data
    from streamveil.pipelines.plans.inputs import Inputs, registry_of

    inputs = Inputs.of(given)
    if not given.format:
        check_events(given.input, inputs.columns.names, dialect=dialect_of(given))
    name = given.name or given.format or name_of(given.input)
    return Data(name, given.input, given.format, inputs, registry_of(given), dialect_of(given))


def _requirements(given: argparse.Namespace, table: Counted | None) -> list[Setting]:
    """All pairs (E, w) asked for; what is not given comes from the table, if there is one."""
    epsilons: list[float] = []
    windows: list[int] = []
    if given.epsilons is not None:
        epsilons = numbers("epsilons", given.epsilons, float, lambda e: Requirement(1, e))
    if given.windows is not None:
        windows = numbers("windows", given.windows, int, lambda w: Requirement(w, 1.0))
    longest = preset(given.format, given.input).window if given.format else DEFAULT_WINDOW
    epsilons = epsilons or [table.epsilon if table else DEFAULT_EPSILON]
    windows = windows or [table.window if table else longest]
    return list(itertools.product(epsilons, windows))


def _check_outputs(given: argparse.Namespace) -> None:
    """Refuse, before anything runs, what could not be written."""
    from streamveil.pipelines.plans.overlaps import check_reports

    check_reports(given, {"output": (".csv", ".md"), "page": (".html",)}, "demo")
    if given.rejected:
        from streamveil.io import check_output

        check_output(given.rejected)
        if given.rejected == given.output:
            raise ConfigurationError(
                f"two outputs are named {given.output}: give them different names"
            )


def _names(option: str, text: str) -> list[str]:
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise ConfigurationError(f"{opt[option]}={text} has an empty name: write A,B,C")
    return list(dict.fromkeys(names))


def _at_least_one(option: str, number: int) -> int:
    if number < 1:
        raise ConfigurationError(f"{opt[option]}={number}: give 1 or more")
    return number
