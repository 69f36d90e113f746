"""Budget functions as text on a command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

from streamveil.io import read_table
from streamveil.mechanisms.per_record.functions import Inverse, Logarithmic, Lookup, SquareRoot
from streamveil.mechanisms.records import ConfigurationError

# By name: the function, and how many figures it may take.
_FUNCTIONS: Mapping[str, tuple[Callable[..., Inverse | SquareRoot | Logarithmic], int]] = {
    "inverse": (Inverse, 1),
    "sqrt": (SquareRoot, 1),
    "log": (Logarithmic, 2),
}
TABLE = "table:"
FORMS = "inverse:SCALE (SCALE / v), sqrt:SCALE (SCALE / sqrt v), log:SCALE or log:SCALE:POWER \
(SCALE / ln(v)**POWER, POWER 4)"


def add_budget_options(parser: argparse.ArgumentParser, table: str = "") -> None:
    """Add the options that say what protection a record gets."""
    add = parser.add_argument
    add(
        "--budget",
        metavar="FUNCTION",
        help=f"epsilon of a record of value v: {FORMS}{table}; public",
    )
    add(
        "--value_max",
        type=float,
        metavar="V",
        help="largest value of any record, public; values start at 0",
    )
    add(
        "--epsilon_max",
        type=float,
        metavar="E",
        help="largest budget that is used, public; a larger one is taken as this",
    )


def budget_of(
    text: str, value_max: float, epsilon_max: float
) -> Inverse | SquareRoot | Logarithmic:
    """A budget function of one value, as `FORMS` says. Raises ConfigurationError."""
    name, *figures = text.split(":")
    if name not in _FUNCTIONS:
        raise ConfigurationError(f"--budget={text} is no budget function: write {FORMS}")
    function, most = _FUNCTIONS[name]
    try:
        scale, *more = (float(figure) for figure in figures)
        if len(more) >= most:
            raise ValueError
    except ValueError:
        raise ConfigurationError(f"--budget={text} is not written as {FORMS}") from None
    if not scale > 0:
        raise ConfigurationError(f"--budget={text}: the scale must be above 0")
    try:
        return function(scale, value_max, epsilon_max, *more)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"--budget={text} --value_max={value_max:g} --epsilon_max={epsilon_max:g}: {error}"
        ) from None


def lookup_of(path: str, epsilon_min: float | None, epsilon_max: float | None) -> Lookup:
    """The budgets of a table with the columns category and epsilon.

    Categories below `epsilon_min` have none, budgets above `epsilon_max` are taken as this. Raises
    ConfigurationError.
    """
    flag = f"--budget={TABLE}{path}"
    try:
        found = read_table(path)
    except Exception as error:
        raise ConfigurationError(f"{flag} cannot be read: {error}") from error
    if missing := {"category", "epsilon"} - set(found.column_names):
        raise ConfigurationError(
            f"{flag} has no column {min(missing)!r}; there are: {', '.join(found.column_names)}"
        )
    table: dict[str, float] = {}
    for category, epsilon in zip(
        *(found[n].to_pylist() for n in ("category", "epsilon")), strict=True
    ):
        if category is None or isinstance(epsilon, str) or epsilon is None:
            raise ConfigurationError(
                f"{flag}: category {category!r} has the epsilon {epsilon!r}: write a number"
            )
        if str(category) in table:
            raise ConfigurationError(f"{flag}: category {category!r} is listed twice: keep one")
        if epsilon_min is None or epsilon >= epsilon_min:
            table[str(category)] = float(min(epsilon, epsilon_max or epsilon))
    try:
        return Lookup(table)
    except ConfigurationError as error:
        raise ConfigurationError(f"{flag}: {error}") from None
