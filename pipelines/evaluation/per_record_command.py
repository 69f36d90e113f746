"""`streamveil evaluate --per_record=DATA`: statistics under per-record privacy compared."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from streamveil.io import check_events, read_events, write_text
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.per_record.protocol import Floats
from streamveil.mechanisms.registry import PER_RECORD_MECHANISMS, parse, statistic
from streamveil.pipelines.budgets import budget_of
from streamveil.pipelines.evaluation.options import DEFAULT_RUNS, DEFAULT_STATISTICS, INPUT
from streamveil.pipelines.evaluation.per_record import (
    Data,
    PerRecordRun,
    mechanisms_of,
    results_of,
    run_data,
)
from streamveil.pipelines.evaluation.per_record_tables import SCHEMA, markdown
from streamveil.pipelines.evaluation.records import EPSILON_MAX, PER_RECORD_DATA, RECORDS, VALUE_MAX
from streamveil.pipelines.evaluation.tables import write_rows
from streamveil.pipelines.progress import steps
from streamveil.pipelines.values import dialect_of
from streamveil.transforms.columns.numbers import as_numbers

OPTIONS = ("statistics", "runs", "records", "budget", "value_max", "epsilon_max")
"""Those that have no meaning without --per_record."""


def compare(
    given: argparse.Namespace, names: Sequence[str], mechanisms: Sequence[str], command: str
) -> list[str]:
    """Compare, print and write; gives what was written.

    Args:
        given: the options as parsed.
        names: the data.
        mechanisms: which to run, of those that compute each statistic; all without any.
        command: what to run to get the same again.

    Raises:
        ConfigurationError: for anything wrong.
    """
    kinds = [kind.strip() for kind in (given.statistics or ",".join(DEFAULT_STATISTICS)).split(",")]
    for kind in kinds:
        if kind not in PER_RECORD_MECHANISMS:
            known = ", ".join(PER_RECORD_MECHANISMS)
            raise ConfigurationError(f"--statistics: {kind!r} is unknown: choose of {known}")
    everything = {k: v for kind in kinds for k, v in PER_RECORD_MECHANISMS[kind].items()}
    for name in mechanisms:
        parse(name, everything)
    runs = DEFAULT_RUNS if given.runs is None else given.runs
    if runs < 5:
        raise ConfigurationError(f"--runs={runs}: a trimmed mean needs 5 or more")
    sources = [_data(name, given) for name in names]
    for source, kind in itertools.product(sources, kinds):  # wrong options show before any run
        for mechanism in mechanisms_of(kind, mechanisms):
            statistic(kind, mechanism, source.budget.bounds, budget=source.budget)
    found: list[PerRecordRun] = []
    total = sum(len(mechanisms_of(kind, mechanisms)) for kind in kinds) * len(sources)
    with steps("streamveil evaluate", total * given.seeds, "runs") as done:
        for source, seed in itertools.product(sources, range(given.seeds)):
            for run in run_data(source, kinds, mechanisms, seed, runs):
                found.append(run)
                done(1)
    results = results_of(found)
    print(markdown(results))
    if given.output:
        write_rows(given.output, results, SCHEMA, markdown(results))
    if given.page:
        from streamveil.pipelines.evaluation.per_record_page import page_of

        write_text(given.page, page_of(results, {s.name: s.about for s in sources}, command))
    return [path for path in (given.output, given.page) if path]


def _data(name: str, given: argparse.Namespace) -> Data:
    epsilon_max = EPSILON_MAX if given.epsilon_max is None else given.epsilon_max
    if name == INPUT:
        draw, scale, about = _input(given)
        name = given.name or Path(given.input).name.split(".")[0]
    elif name in PER_RECORD_DATA:
        named = PER_RECORD_DATA[name]
        number = RECORDS if given.records is None else given.records
        if number < 1:
            raise ConfigurationError(f"--records={number}: give 1 or more")

        def draw(seed: int) -> Floats:
            return named.draw(np.random.default_rng(seed), number)

        scale, about = named.scale, named.about
    else:
        known = ", ".join([*PER_RECORD_DATA, INPUT])
        raise ConfigurationError(f"--per_record: {name!r} is unknown: choose of {known}")
    value_max = VALUE_MAX if given.value_max is None else given.value_max
    text = given.budget or f"inverse:{scale:g}"
    return Data(name, draw, budget_of(text, value_max, epsilon_max), f"{about}; {text}")


def _input(given: argparse.Namespace) -> tuple[Callable[[int], Floats], float, str]:
    for option in ("input", "value_column", "budget"):
        if not getattr(given, option):
            raise ConfigurationError(
                f"--{option} is missing: --per_record={INPUT} needs it; see streamveil evaluate "
                "--help"
            )
    column = given.value_column
    dialect = dialect_of(given)
    check_events(given.input, [column], dialect=dialect)
    values = []
    for batch, _ in read_events(given.input, [column], dialect=dialect):
        numbers = as_numbers(batch.column(0))
        if numbers is None:
            raise ConfigurationError(
                f"--value_column={column} holds {batch.column(0).type}: name a column of numbers"
            )
        values.append(numbers)
    whole = np.concatenate([np.zeros(0), *values])
    return (lambda _: whole), 1.0, f"{column} of {Path(given.input).name}"
