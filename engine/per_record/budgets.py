"""Budget functions over columns: the budget of every row of a batch, NaN where there is none.

What they make of a row depends on that row alone, and they are silent: a row on which a function
fails has no budget, and nothing reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from streamveil.engine.encode.dead_letters import column_of
from streamveil.engine.per_record.record_columns import (
    by_pieces,
    nulls_of,
    numbers_of,
    plain,
    positions_of,
)
from streamveil.mechanisms.core.arguments import column_name, column_names, refuse
from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.core.identity import Form, Identified, name_of
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.per_record.budget_functions import (
    BudgetFunction,
    Lookup,
    check_budgets,
    check_on_values,
)
from streamveil.mechanisms.per_record.protocol import Bounds


class Budget(Protocol):
    """The budget of each record, as a public function of its columns."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it looks at."""

    @property
    def bounds(self) -> Bounds:
        """Stated bounds of the budgets."""

    def budgets(self, batch: pa.RecordBatch) -> Floats:
        """Budgets of the rows of a batch, float64, shape (n,)."""


def budget_of(value: Any) -> Budget:
    """A budget as it is. Raises ConfigurationError for what is none."""
    if isinstance(value, type) or not all(
        hasattr(value, name) for name in ("columns", "bounds", "budgets")
    ):
        refuse(
            "budget",
            value,
            "give ValueBudget(column, function), CategoryBudget(column, Lookup(table)) or "
            "ColumnsBudget, for the budget of each record",
        )
    return value


@dataclass(frozen=True)
class ValueBudget(Identified):
    """A function that computes the budget of each record from a number in the record.

    Raises:
        ConfigurationError: if the function returns a budget outside the smallest and largest budget
            that the function declares.
    """

    IDENTITY = Form("budget of a value", ("column", "function"))

    column: str
    """Column of the number."""
    function: BudgetFunction
    """The function, such as `Inverse` of `streamveil.mechanisms.per_record`."""

    def __post_init__(self) -> None:
        """Try the function on values up to the largest."""
        column_name(self.column, "column")
        check_on_values(self.function)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns on which the budget depends."""
        return (self.column,)

    @property
    def bounds(self) -> Bounds:
        """The smallest and the largest budget that the function can return."""
        return self.function.bounds

    @property
    def stated(self) -> dict[str, Any]:
        """The function's name and parameters, for the card (a public file about the run)."""
        own = {name: one for name, one in vars(self.function).items() if name != "bounds"}
        figures = {name: one for name, one in own.items() if isinstance(one, (int, float))}
        return {"function": type(self.function).__name__.lower(), **figures}

    def budgets(self, batch: pa.RecordBatch) -> Floats:
        """The budget (epsilon) of each record in a batch of records."""
        return self.function(numbers_of(batch, self.column))


@dataclass(frozen=True)
class CategoryBudget(Identified):
    """A function that looks up each record's budget in a public table of budgets by category.

    If the category of a record is missing (null), the record has no budget and is dropped.
    """

    IDENTITY = Form("budget of a category", ("column", "lookup"))

    column: str
    """Column of the category."""
    lookup: Lookup
    """The table of budgets. You may give a mapping category -> epsilon."""

    def __post_init__(self) -> None:
        """Check the names, and the figures of a mapping."""
        column_name(self.column, "column")
        if isinstance(self.lookup, Mapping):
            object.__setattr__(self, "lookup", Lookup(self.lookup))
        if not isinstance(self.lookup, Lookup):
            refuse("lookup", self.lookup, "give Lookup(table), or a mapping category -> epsilon")

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns on which the budget depends."""
        return (self.column,)

    @property
    def bounds(self) -> Bounds:
        """The smallest and the largest budget in the table."""
        return self.lookup.bounds

    @property
    def stated(self) -> dict[str, Any]:
        """The whole table of budgets, for the card (a public file about the run)."""
        return {"function": "table", "table": dict(self.lookup.table)}

    def budgets(self, batch: pa.RecordBatch) -> Floats:
        """The budget (epsilon) of each record in a batch of records."""
        budgets = self.lookup(positions_of(batch, self.column, tuple(self.lookup.table)))
        budgets[nulls_of(batch, self.column)] = np.nan
        return budgets


@dataclass(frozen=True)
class ColumnsBudget(Identified):
    """A function of your own that computes the budgets of records from some of their columns.

    Your function is publicly known. The arguments of the function are Arrow arrays, one for each
    column in `columns`, in the order of `columns`. The arrays are never dictionary-encoded. The
    function returns an Arrow or numpy array with the budget of each row. This budget must depend
    only on the values in the row, and equal rows must always get the same budget. The function sees
    secret data, so the function must not write logs or update counters. If the function raises an
    error or returns null for a row, the row is dropped.

    Raises:
        ConfigurationError: if a test call of your function with the example rows in `grid` fails.
            For example, your function may return a budget outside the bounds. Or your function may
            return one budget for a row among other rows, and a different budget for the same row
            alone.
    """

    IDENTITY = Form(
        "budget of columns", ("columns", "function", "epsilon_min", "epsilon_max"), apart=("grid",)
    )

    columns: tuple[str, ...]
    """Names of the columns."""
    function: Callable[..., Any]
    """The function of the columns."""
    epsilon_min: float
    """The smallest budget of a record, which is public. A record with a smaller budget is
    dropped."""
    epsilon_max: float
    """The largest budget of a record, which is public. Larger budgets are clamped to it."""
    grid: Mapping[str, Sequence[Any] | pa.Array] = field(repr=False)
    """Example rows by column, which show the public range of the columns."""

    def __post_init__(self) -> None:
        """Try the function on the grid."""
        object.__setattr__(self, "columns", column_names(self.columns, "columns"))
        rows = self._grid
        try:
            whole = self._evaluate(rows)
            alone = [self._evaluate(rows.slice(i, 1)) for i in range(rows.num_rows)]
        except Exception as error:
            raise ConfigurationError(
                f"the budget function {name_of(self.function)} fails on the grid: {error!r}; it "
                f"gets an Arrow array of each of {', '.join(self.columns)} and gives as many "
                "budgets"
            ) from error

        def named(i: int) -> str:
            return f"the row {rows.slice(i, 1).to_pylist()[0]} of the grid"

        check_budgets(whole, self.bounds, named)
        # Other widths of vectors may round otherwise; nothing more may differ.
        unlike = ~np.isclose(np.concatenate(alone), whole, rtol=2.0**-40, atol=0.0)
        if unlike.any():
            raise ConfigurationError(
                f"the budget function {name_of(self.function)} gives another budget for "
                f"{named(int(np.flatnonzero(unlike)[0]))} if that is alone: it must look at "
                "every row by itself"
            )

    @property
    def _grid(self) -> pa.RecordBatch:
        if missing := [name for name in self.columns if name not in self.grid]:
            raise ConfigurationError(
                f"the grid of the budget function has no column {missing[0]!r}: give example "
                f"rows of {', '.join(self.columns)}"
            )
        rows = plain(pa.RecordBatch.from_pydict({name: self.grid[name] for name in self.columns}))
        if not rows.num_rows:
            raise ConfigurationError("the grid of the budget function is empty: give example rows")
        return rows

    @property
    def types(self) -> dict[str, pa.DataType]:
        """The types of the columns in the example rows.

        Records without declared types, such as dictionaries, are converted to these types.

        Whole numbers become floats.
        """
        return {
            field.name: pa.float64() if pa.types.is_integer(field.type) else field.type
            for field in self._grid.schema
        }

    @cached_property
    def bounds(self) -> Bounds:
        """The smallest and the largest budget."""
        return Bounds(self.epsilon_min, self.epsilon_max)

    def budgets(self, batch: pa.RecordBatch) -> Floats:
        """The budget (epsilon) of each record in a batch of records."""
        arrays = [column_of(batch, name, "records") for name in self.columns]
        rows = pa.RecordBatch.from_arrays(arrays, list(self.columns))
        return by_pieces(self._evaluate, plain(rows), np.nan)

    def _evaluate(self, rows: pa.RecordBatch) -> Floats:
        with np.errstate(all="ignore"):
            found = self.function(*rows.columns)
            if isinstance(found, (pa.Array, pa.ChunkedArray)):
                found = found.cast(pa.float64()).to_numpy(zero_copy_only=False)
            budgets = np.asarray(found, np.float64)
        if budgets.shape != (rows.num_rows,):
            raise ValueError(f"{rows.num_rows} rows, but budgets of shape {budgets.shape}")
        return budgets

    def __repr__(self) -> str:
        """Without addresses or example rows."""
        return (
            f"ColumnsBudget({self.columns!r}, {name_of(self.function)}, {self.epsilon_min!r}, "
            f"{self.epsilon_max!r})"
        )


def types_of(budget: Budget) -> dict[str, pa.DataType]:
    """Types to read columns of a budget as where none is declared; text where it is not here."""
    return budget.types if isinstance(budget, ColumnsBudget) else {}
