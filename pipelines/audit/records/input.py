"""Which records are audited, from options: the statistic, canaries, and perhaps the user's own."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.per_record.budget_functions import (
    BudgetFunction,
    Divided,
    Lookup,
    divided,
    divided_bounds,
)
from streamveil.pipelines.audit.records.auditing import Records
from streamveil.pipelines.audit.records.canaries import Canary, of_budgets, of_records, of_values
from streamveil.pipelines.options.audit_options import RECORDS, mechanism_of
from streamveil.pipelines.options.budget_functions import budget_of, lookup_of
from streamveil.pipelines.options.declarations import TABLE
from streamveil.pipelines.options.parsers import dialect_of
from streamveil.pipelines.options.record_statistics import RUNNING, WITHOUT_VALUE

# Budgets of a function that is not of the values, for canaries.
_TRIED = 9


@dataclass(frozen=True)
class Asked:
    """What to audit."""

    records: Records
    canaries: list[Canary]
    own: tuple[Floats, Floats] | None
    """Values and budgets of the user's own records."""


def asked_of(given: argparse.Namespace) -> Asked:
    """As the options say, which were checked. Raises ConfigurationError."""
    function, lookup = _budget(given)
    budget: BudgetFunction | Lookup = lookup if function is None else function
    by = given.max_records_per_user
    valued = given.statistic not in WITHOUT_VALUE
    # Of a count, whose value is presence, the budget is a function of what takes its place.
    own_column = given.budget_column in (None, given.value_column) or not valued
    of_value = function is not None and own_column
    bounds = divided_bounds(budget.bounds, by)
    if valued or of_value:
        bounds = replace(bounds, value_max=given.value_max)
    shared = Divided(function, by) if of_value and function is not None else None
    records = Records(
        given.statistic.removeprefix(RUNNING),
        bounds,
        shared,
        mechanism_of(given, RECORDS),
        given.statistic.startswith(RUNNING),
        given.devices,
    )
    if given.input:
        values, budgets = _read(given, function, lookup)
        own = values, divided(budgets, by)
        return Asked(records, of_records(*own, bounds), own)
    if shared is not None:
        return Asked(records, of_values(shared, bounds), None)
    if lookup is not None:
        known = np.array([e for e in (*lookup.table.values(), lookup.default) if e is not None])
    else:
        known = np.geomspace(budget.bounds.epsilon_min, budget.bounds.epsilon_max, _TRIED)
    return Asked(records, of_budgets(divided(known, by), bounds), None)


def _budget(given: argparse.Namespace) -> tuple[BudgetFunction | None, Any]:
    """The function of numbers, or the table of categories."""
    if given.budget.startswith(TABLE):
        path = given.budget.removeprefix(TABLE)
        return None, lookup_of(path, given.epsilon_min, given.epsilon_max)
    return budget_of(given.budget, given.value_max, given.epsilon_max), None


def _read(
    given: argparse.Namespace, function: BudgetFunction | None, lookup: Lookup | None
) -> tuple[Floats, Floats]:
    """Values and budgets of the records of files, shape (n,) each."""
    from streamveil.io import check_events, read_events
    from streamveil.pipelines.evaluation.data import numbers_of
    from streamveil.transforms.per_record import CategoryBudget, ValueBudget

    column = given.budget_column or given.value_column
    budget = CategoryBudget(column, lookup) if function is None else ValueBudget(column, function)  # type: ignore[arg-type]
    # A count whose budgets are not of a number has none.
    number = given.value_column or (column if function is not None else None)
    columns = list(dict.fromkeys([column, *([number] if number else [])]))
    dialect = dialect_of(given)
    check_events(given.input, columns, dialect=dialect)
    values, budgets = [np.zeros(0)], [np.zeros(0)]
    for batch, _ in read_events(given.input, columns, dialect=dialect):
        budgets.append(budget.budgets(batch))
        values.append(np.zeros(batch.num_rows) if number is None else numbers_of(batch, number))
    return np.concatenate(values), np.concatenate(budgets)
