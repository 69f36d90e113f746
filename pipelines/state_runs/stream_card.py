"""The card of a stream in passes: in the folder of each pass, and where readers look for it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from streamveil.engine.plan_kinds import PlanKind
from streamveil.io import Snapshot, StateFolder
from streamveil.io.tables import remove_unfinished
from streamveil.pipelines.cards.card_writer import Cards
from streamveil.pipelines.cards.claims import CLOCK
from streamveil.pipelines.cards.files import IN_FOLDER, Record, read_card, write_card
from streamveil.pipelines.console.errors import reason_of
from streamveil.pipelines.console.logs import tell
from streamveil.pipelines.state_runs.pass_results import PassResults
from streamveil.pipelines.state_runs.passes import PassJob, state_after

if TYPE_CHECKING:
    from streamveil.engine.plans import UserPlan


@dataclass(frozen=True)
class StreamCard:
    """What is promised of a stream, and what was released."""

    command: str
    """What the run is called."""
    path: str
    """Where readers look for it."""
    plan: UserPlan
    """For the whole stream."""
    folder: StateFolder
    results: PassResults
    changes: bool
    """Whether requirements may change."""

    def write_of_pass(self, job: PassJob, snapshot: Snapshot, number: int) -> None:
        """Write the card of the stream to the folder of a pass: it is committed with the pass."""
        state = state_after(job.folder)[1]
        plan: Any = self.plan
        chosen = any(getattr(plan, "looks", ())) or getattr(plan, "discovers", False)
        if chosen:  # by the passes so far, as the state knows
            plan = replace(plan, first_slot=job.due.last_slot + 1, last_slot=None, resume=state)
        before = self.folder.of_pass(snapshot.passes) / IN_FOLDER
        card = self._cards(plan).of_pass(
            read_card(str(before)) if before.exists() else None,
            (job.due.first_slot, job.due.last_slot),
            number,
            {
                kind: (self.results.place(kind, self.results.places[kind]), job.folder / name)
                for kind, name in job.results.items()
            },
            begun=snapshot.first_slot,
            grants=self._grants(state),
        )
        write_card(str(job.folder / IN_FOLDER), card)

    def _cards(self, plan: UserPlan) -> Cards:
        return Cards(self.command, plan, self.changes, CLOCK, self.folder.has_key)

    def _grants(self, state: bytes) -> int:
        """How often the budget of a stream was granted again, up to a state."""
        whole = self.plan
        if whole.plan_kind is not PlanKind.HISTOGRAMS:
            return 0
        return whole.restarts(state) if "granted_again" in whole.describe().promise else 0

    def show(self, snapshot: Snapshot) -> None:
        """Give readers the card that the last pass left. That it cannot be is said."""
        kept = self.folder.of_pass(snapshot.passes) / IN_FOLDER
        if kept.exists():
            self._put(read_card(str(kept)))

    def show_promise(self) -> None:
        """Give readers the card of a stream of which nothing is released."""
        self._put(self._cards(self.plan).at_launch({}))

    def _put(self, card: Record) -> None:
        """Write it to where readers look. That it cannot be is said."""
        remove_unfinished(self.path)  # this run alone has the stream: a killed one left it
        try:
            write_card(self.path, card)
        except OSError as error:
            tell(
                f"warning: the card {self.path} cannot be written ({reason_of(error)}): the run "
                "continues without it, and the next one tries again",
                logging.WARNING,
            )
