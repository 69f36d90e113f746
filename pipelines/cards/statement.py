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
from streamveil.pipelines.cards.facts import STREAM
from streamveil.pipelines.cards.files import EDITED, card_beside, read_card, write_card
from streamveil.pipelines.cards.launched import card_at_launch, files_of, gone_on, streams_of
from streamveil.pipelines.cards.promises import Record
from streamveil.pipelines.cards.writing import card_of_run

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
    """Where all goes that may be published, by what it is; of answers a place for each question."""
    endless: bool
    """Whether the input has no end."""
    given: str | None = None
    """Where the user wants the card."""
    beside: str | None = None
    """Where it is otherwise; beside the ledger if releases go to a stream, or nowhere."""
    changes: bool = False
    """Whether requirements may change."""

    @property
    def path(self) -> str | None:
        """Where the card goes; None where no place is known."""
        if self.given:
            return self.given
        if not is_stream(self.output):
            return self.beside
        ledger = self.places.get("ledger")
        return card_beside(ledger) if ledger and not is_stream(ledger) else None

    @property
    def missing(self) -> str | None:
        """Words for that there is no card, and how to get one; None where there is one."""
        if self.path is not None:
            return None
        return (
            f"no card says what is promised, for releases go to {self.output}, which has no place "
            "for one: give --card=FILE"
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
                than a card, or of a stream the card of another one.
        """
        if self.path is None:
            return
        if self.given:
            check_card_place(self.given)
        if is_stream(self.output):
            self._gone_on(self._at_launch())

    def launch(self) -> None:
        """Write the card of a run that begins to release to a stream. Raises OSError."""
        if self.path is not None and is_stream(self.output):
            write_card(self.path, self._gone_on(self._at_launch()))

    def hand_over(self) -> None:
        """Write the card of a job that runs elsewhere, and later. Raises OSError."""
        if self.path is not None and not is_stream(self.output):
            write_card(self.path, self._at_launch())

    def end(self, counters: Mapping[str, int]) -> None:
        """Write the card of a run that has ended well, given its counters. Raises OSError."""
        if self.path is None:
            return
        card = card_of_run(
            self.command,
            self.promised,
            files_of(self.places),
            counters,
            streams=streams_of(self.places),
            decided_by=self._decided_by,
            changes=self.changes,
        )
        write_card(self.path, self._gone_on(card) if is_stream(self.output) else card)

    @property
    def _decided_by(self) -> str | None:
        return STREAM if self.endless else None

    def _at_launch(self) -> Record:
        return card_at_launch(
            self.command,
            self.promised,
            self.places,
            decided_by=self._decided_by,
            changes=self.changes,
        )

    def _gone_on(self, card: Record) -> Record:
        """The same after what was launched there before. Raises ConfigurationError."""
        assert self.path is not None
        if not is_there(self.path):
            return card
        from streamveil.pipelines.cards.check import faults_within  # most runs need it not

        before = read_card(self.path)
        try:
            for fault in faults_within(before):
                raise ConfigurationError(f"{self.path}: {fault}, or name another file (--card)")
            return gone_on(self.path, before, card)
        except ConfigurationError:
            raise
        except EDITED as error:
            raise ConfigurationError(
                f"{self.path} was edited and is no card any more ({type(error).__name__}: {error})"
                ": bring back the one that the last launch wrote, or name another file (--card)"
            ) from None


def check_card_place(path: str) -> None:
    """Refuse, before anything runs, a place where no card can be written, or that holds none.

    Raises ConfigurationError.
    """
    if is_stream(path):
        raise ConfigurationError(
            f"--card={path}: a card is one file of JSON: name a file, such as releases.card.json"
        )
    folder = os.path.dirname(os.path.abspath(path))
    if "://" not in path and not may_hold_files(folder):
        raise ConfigurationError(
            f"--card={path}: {folder} is not a folder where a file may be written: create it, or "
            "choose another path"
        )
    if is_there(path):
        _refuse_other_file(path)


def _refuse_other_file(path: str) -> None:
    """Refuse to replace what is no card."""
    try:
        read_card(path)
    except ConfigurationError:
        raise ConfigurationError(
            f"--card={path} is there already and is no card, which would be replaced: choose "
            "another name"
        ) from None
