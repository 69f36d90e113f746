"""`streamveil card`: what was promised, in words, or checked against ledger and releases."""

from __future__ import annotations

import argparse
import logging

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.pipelines.cards.check import faults_of
from streamveil.pipelines.cards.check_input import Places
from streamveil.pipelines.cards.files import EDITED, read_card, signature_faults
from streamveil.pipelines.cards.words import checked, in_words
from streamveil.pipelines.console.errors import in_one_line
from streamveil.pipelines.console.logs import tell, tell_aside
from streamveil.pipelines.options.execution import Execution

_MOST_FAULTS = 50


def main(given: argparse.Namespace, execution: Execution) -> int:
    """Run the command; returns the exit code: 1 where the check found something wrong."""
    card = read_card(given.card)
    if given.check:
        return _check(given, card)
    try:
        text = in_words(card)
    except EDITED as error:
        raise ConfigurationError(
            f"{given.card} was edited and is not a card any more ({type(error).__name__}: "
            f"{error}): restore the one that the run wrote"
        ) from None
    tell(text)
    return 0


def _check(given: argparse.Namespace, card: dict[str, object]) -> int:
    places = Places(given.card, given.releases, given.ledger, given.revisions)
    faults, notices, found = faults_of(card, places)
    faults = [*signature_faults(given.card), *faults]
    for line in notices:
        tell_aside(f"streamveil card: {in_one_line(line)}", logging.WARNING)
    more = len(faults) - _MOST_FAULTS
    for line in [*faults[:_MOST_FAULTS], *([f"and {more:,} more faults"] if more > 0 else [])]:
        tell_aside(f"streamveil card: {in_one_line(line)}", logging.ERROR)
    if faults:
        return 1
    tell(f"{given.card}: {checked(found)}")
    return 0
