"""The two flags that say which promise is made, the same for every command that has them."""

from __future__ import annotations

import argparse

from streamveil.mechanisms.core.records import ConfigurationError, Lifetime
from streamveil.pipelines.flags import numbers
from streamveil.pipelines.sections import PRIVACY, section

WINDOWS, INFINITE = "w-event", "infinite"
GUARANTEES = (WINDOWS, INFINITE)


def add_guarantee_options(parser: argparse.ArgumentParser) -> None:
    """Add --guarantee and --epsilon."""
    add = section(parser, PRIVACY)
    add(
        "--guarantee",
        choices=GUARANTEES,
        help=f"{WINDOWS}: a budget for any window of slots, by the requirements (the default); "
        f"{INFINITE}: one budget for all that a user ever contributes, --epsilon",
    )
    add(
        "--epsilon",
        metavar="E",
        help=f"with --guarantee={INFINITE}: what all releases together may cost anybody",
    )


def is_infinite(given: argparse.Namespace) -> bool:
    """Whether the promise is forever. Raises ConfigurationError where the two do not fit."""
    infinite = bool(given.guarantee == INFINITE)
    if infinite and given.epsilon is None:
        raise ConfigurationError(
            f"--epsilon is missing: --guarantee={INFINITE} needs what all releases may cost"
        )
    if not infinite and given.epsilon is not None:
        instead = "for budgets over windows write --epsilons"
        raise ConfigurationError(
            f"--epsilon={given.epsilon} is one budget forever: give --guarantee={INFINITE} as "
            f"well, or {instead if hasattr(given, 'epsilons') else 'leave it out'}"
        )
    return infinite


def epsilons_of(text: str) -> list[float]:
    """Read the budgets of --epsilon, each once, in order. Raises ConfigurationError."""
    return numbers("epsilon", text, float, Lifetime)
