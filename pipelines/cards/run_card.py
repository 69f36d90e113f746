"""The card of one run of a job: where it goes, and when it is written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamveil.io import is_stream
from streamveil.io.files import is_there
from streamveil.io.places import may_hold_files
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import opt
from streamveil.pipelines.cards.card_writer import Cards
from streamveil.pipelines.cards.claims import STREAM
from streamveil.pipelines.cards.files import EDITED, Record, card_beside, read_card, write_card
from streamveil.pipelines.cards.resumed import resumed

if TYPE_CHECKING:
    from streamveil.engine.plans import Plan


@dataclass(frozen=True)
class Statement:
    """What a run promises, and later what it released, in one file.

    Where releases go to files, there is a card once these are whole, or when the job is handed
    over. Where they go to a stream, there is one from the launch on.
    """

    command: str
    promised: Plan
    output: str
    """Where releases go: a file, a folder of answers, or a stream."""
    places: Mapping[str, str]
    """Where all goes that may be published, by what it is; of answers a place for each query."""
    endless: bool
    """Whether the input is unbounded."""
    given: str | None = None
    """Where the user wants the card."""
    beside: str | None = None
    """Where it is otherwise; beside the ledger if releases go to a stream, or nowhere."""
    changes: bool = False
    """Whether requirements may change."""

    @property
    def path(self) -> str | None:
        """Where the card goes; None where no place is known, and in test mode."""
        return None if self.promised.test_mode else self._place

    @property
    def _place(self) -> str | None:
        if self.given:
            return self.given
        if not is_stream(self.output):
            return self.beside
        ledger = self.places.get("ledger")
        return card_beside(ledger) if ledger and not is_stream(ledger) else None

    @property
    def missing(self) -> str | None:
        """Words for that there is not a card, and how to get one; None where there is one."""
        if self.path is not None:
            return None
        if self.promised.test_mode:
            return "no card is written: in test mode nothing is promised"
        return (
            f"no card says what is promised, for releases go to {self.output}, which has no place "
            f"for one: give {opt.card}=FILE"
        )

    @property
    def plan(self) -> list[str]:
        """Lines of a dry run: when the card is written, or that there is none."""
        if self.path is None:
            return [f"card:     {self.missing}"]
        if not is_stream(self.output):
            return ["card:     written at the end, once what was released is whole"]
        end = "if the stream comes to an end" if self.endless else "at the end of the input"
        return [
            f"card:     written at the launch, and open: only {end} does it say what was released"
        ]

    def check(self) -> None:
        """Look at the place before anything runs.

        Raises:
            ConfigurationError: for a place that cannot be written to, that holds something else
                than a card, or of a stream the card of another one; in test mode for any card.
        """
        if self.promised.test_mode:
            self._refuse_card()
        if self.path is None:
            return
        if self.given:
            check_card_place(self.given)
        if is_stream(self.output):
            self._resumed(self._cards.at_launch(self.places))

    def _refuse_card(self) -> None:
        """Refuse to write results of test mode where a card says that they are private."""
        if self.given:
            raise ConfigurationError(
                f"{opt.card}={self.given} states what is guaranteed, and {opt.test_mode} "
                "guarantees nothing: leave one of them out"
            )
        if self._place is not None and is_there(self._place):
            raise ConfigurationError(
                f"{self._place} is the card of private results, and those of {opt.test_mode} are "
                f"not: write them elsewhere ({opt.output})"
            )

    def launch(self) -> None:
        """Write the card of a run that begins to release to a stream. Raises OSError."""
        if self.path is not None and is_stream(self.output):
            write_card(self.path, self._resumed(self._cards.at_launch(self.places)))

    def hand_over(self) -> None:
        """Write the card of a job that runs elsewhere, and later. Raises OSError."""
        if self.path is not None and not is_stream(self.output):
            write_card(self.path, self._cards.at_launch(self.places))

    def end(self, counters: Mapping[str, int]) -> None:
        """Write the card of a run that has ended well, given its counters. Raises OSError."""
        if self.path is None:
            return
        card = self._cards.of_run(self.places, counters)
        write_card(self.path, self._resumed(card) if is_stream(self.output) else card)

    @property
    def _cards(self) -> Cards:
        return Cards(self.command, self.promised, self.changes, STREAM if self.endless else None)

    def _resumed(self, card: Record) -> Record:
        """The same after what was launched there before. Raises ConfigurationError."""
        assert self.path is not None
        if not is_there(self.path):
            return card
        from streamveil.pipelines.cards.check import faults_within  # most runs need it not

        before = read_card(self.path)
        try:
            for fault in faults_within(before):
                raise ConfigurationError(f"{self.path}: {fault}, or name another file ({opt.card})")
            return resumed(self.path, before, card)
        except ConfigurationError:
            raise
        except EDITED as error:
            raise ConfigurationError(
                f"{self.path} was edited and is not a card any more ({type(error).__name__}: "
                f"{error}): restore the one that the last launch wrote, or name another file "
                f"({opt.card})"
            ) from None


def check_card_place(path: str) -> None:
    """Refuse, before anything runs, a place where no card can be written, or that holds none.

    Raises ConfigurationError.
    """
    if is_stream(path):
        raise ConfigurationError(
            f"{opt.card}={path}: a card is one file of JSON: name a file, such as "
            f"releases.card.json"
        )
    folder = os.path.dirname(os.path.abspath(path))
    if "://" not in path and not may_hold_files(folder):
        raise ConfigurationError(
            f"{opt.card}={path}: {folder} is not a folder where a file may be written: create it, "
            f"or choose another path"
        )
    if is_there(path):
        _refuse_other_file(path)


def _refuse_other_file(path: str) -> None:
    """Refuse to replace what is not a card."""
    try:
        read_card(path)
    except ConfigurationError:
        raise ConfigurationError(
            f"{opt.card}={path} exists already and is not a card, and would be overwritten: "
            "choose another name"
        ) from None
