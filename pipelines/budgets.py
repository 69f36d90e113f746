"""Budget functions as text on a command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

from streamveil.mechanisms.per_record.functions import Inverse, Logarithmic, SquareRoot
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
