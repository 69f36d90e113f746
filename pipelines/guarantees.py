"""The two flags that say which promise is made, the same for every command that has them."""

from __future__ import annotations

import argparse

from streamveil.mechanisms.core.records import ConfigurationError, Lifetime
from streamveil.pipelines.flags import numbers
from streamveil.pipelines.sections import PRIVACY, section

WINDOWS, INFINITE, USER = "w-event", "infinite", "user"
GUARANTEES = (WINDOWS, INFINITE, USER)


def add_guarantee_options(parser: argparse.ArgumentParser) -> None:
    """Add --guarantee and --epsilon."""
    add = section(parser, PRIVACY)
    add(
        "--guarantee",
        choices=GUARANTEES,
        help=f"{WINDOWS}: a budget for any window of slots, by the requirements (the default); "
        f"{INFINITE}: one budget for all that a user ever contributes, --epsilon, shared by all "
        f"slots; {USER}: the same promise, and users count in the first --max_slots slots of their "
        "lives",
    )
    add(
        "--epsilon",
        metavar="E",
        help=f"with --guarantee={INFINITE} or {USER}: what all releases together may cost anybody",
    )


def promise_of(given: argparse.Namespace) -> str:
    """Which promise is made: one of `GUARANTEES`.

    Raises ConfigurationError where it and the budget do not fit.
    """
    promise = given.guarantee or WINDOWS
    if promise != WINDOWS and given.epsilon is None:
        raise ConfigurationError(
            f"--epsilon is missing: --guarantee={promise} needs what all releases may cost"
        )
    if promise == WINDOWS and given.epsilon is not None:
        instead = "for budgets over windows write --epsilons"
        raise ConfigurationError(
            f"--epsilon={given.epsilon} is one budget forever: give --guarantee={INFINITE} or "
            f"{USER} as well, or {instead if hasattr(given, 'epsilons') else 'leave it out'}"
        )
    return str(promise)


def epsilons_of(text: str) -> list[float]:
    """Read the budgets of --epsilon, each once, in order. Raises ConfigurationError."""
    return numbers("epsilon", text, float, Lifetime)
