"""Budget functions as text on a command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from streamveil.mechanisms.core.records import MAX_EPSILON, ConfigurationError, valid_epsilons
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.per_record.budget_functions import (
    Inverse,
    Logarithmic,
    Lookup,
    SquareRoot,
)
from streamveil.pipelines.options.declarations import BUDGET_FORMS, TABLE

_COLUMNS = ("category", "epsilon")

# By name: the function, and how many figures it may take.
_FUNCTIONS: Mapping[str, tuple[Callable[..., Inverse | SquareRoot | Logarithmic], int]] = {
    "inverse": (Inverse, 1),
    "sqrt": (SquareRoot, 1),
    "log": (Logarithmic, 2),
}


def budget_of(
    text: str, value_max: float, epsilon_max: float
) -> Inverse | SquareRoot | Logarithmic:
    """A budget function of one value, as `BUDGET_FORMS` says. Raises ConfigurationError."""
    name, *figures = text.split(":")
    if name not in _FUNCTIONS:
        raise ConfigurationError(
            f"{opt.budget}={text} is not a budget function: write {BUDGET_FORMS}"
        )
    function, most = _FUNCTIONS[name]
    try:
        scale, *more = (float(figure) for figure in figures)
        if len(more) >= most:
            raise ValueError
    except ValueError:
        raise ConfigurationError(f"{opt.budget}={text} is not written as {BUDGET_FORMS}") from None
    if not scale > 0:
        raise ConfigurationError(f"{opt.budget}={text}: the scale must be above 0")
    try:
        return function(scale, value_max, epsilon_max, *more)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{opt.budget}={text} {opt.value_max}={value_max:g} {opt.epsilon_max}={epsilon_max:g}: "
            f"{error}"
        ) from None


def lookup_of(path: str, epsilon_min: float | None, epsilon_max: float | None) -> Lookup:
    """The budgets of a table with the columns category and epsilon.

    Categories below `epsilon_min` have none, budgets above `epsilon_max` are taken as this. Raises
    ConfigurationError.
    """
    from streamveil.io import check_events, match_files, read_public

    flag = f"{opt.budget}={TABLE}{path}"
    table: dict[str, float] = {}
    try:
        check_events(path, _COLUMNS)
        for read in (
            rows for file in match_files(path) for rows in read_public(file.path, _COLUMNS)
        ):
            names, budgets = read.columns
            epsilons = read.numbers("epsilon", budgets)
            used = np.minimum(epsilons, np.inf if epsilon_max is None else epsilon_max)
            counted = epsilons >= (-np.inf if epsilon_min is None else epsilon_min)
            remedy = f"is not a number above 0 and at most {MAX_EPSILON:g}: write one"
            read.refuse(
                ~(np.isfinite(epsilons) & (valid_epsilons(used) | ~counted)),
                "epsilon",
                budgets,
                remedy,
            )
            categories = read.names("category", names, "name the category").to_pylist()
            for category, epsilon in zip(categories, epsilons.tolist(), strict=True):
                if category in table:
                    raise ConfigurationError(f"category {category!r} is listed twice: keep one")
                table[category] = epsilon
        return Lookup(
            {
                category: min(epsilon, epsilon_max or epsilon)
                for category, epsilon in table.items()
                if epsilon_min is None or epsilon >= epsilon_min
            }
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"{flag}: {error}") from None
