"""`streamveil release --questions --state`: answers in passes, as of `follow.py`.

A pass goes on in base slots, and answers every question whose slot ends in it. Events of slots that
are not over wait in the state.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa

from streamveil.engine.encode.passes import Pass
from streamveil.engine.plan_kinds import PlanKind
from streamveil.engine.stream.query_plan import QueryPlan
from streamveil.io import Snapshot, answer_files, read_table, witness_of
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import (
    ConfigurationError,
    MachineFault,
    format_duration,
    format_time,
)
from streamveil.mechanisms.portfolio.bounds import are_known
from streamveil.mechanisms.portfolio.questions import Question
from streamveil.pipelines.answers_report import AnswersReport, shares_of
from streamveil.pipelines.cards.files import card_in
from streamveil.pipelines.errors import reason_of
from streamveil.pipelines.follow import Follow, Following, held, inbox_of
from streamveil.pipelines.live.history import History, of_answers
from streamveil.pipelines.logs import tell
from streamveil.pipelines.overlaps import refuse_in_input
from streamveil.pipelines.passes import AnswersPass, PassJob, answers_kind
from streamveil.pipelines.questions_summary import QuestionsSummary
from streamveil.pipelines.summary import Summary
from streamveil.pipelines.values import dialect_of
from streamveil.pipelines.wording import plain_wording


@dataclass(frozen=True)
class FollowQuestions(Follow):
    """Answers to the questions of a portfolio, made in passes over base slots."""

    page: str | None = None
    """File that shows all answers which are there, after every pass."""

    make_pass: ClassVar[type[PassJob]] = AnswersPass

    @property
    def _asked(self) -> QueryPlan:
        assert self.plan.plan_kind is PlanKind.QUERIES
        return self.plan

    @property
    def _witness(self) -> str:
        folder = os.path.dirname(self.outputs[answers_kind(next(iter(self._asked.portfolio)).name)])
        return witness_of(os.path.join(folder, "answers"))

    @property
    def _card_beside(self) -> str:
        first = self.outputs[answers_kind(next(iter(self._asked.portfolio)).name)]
        return card_in(os.path.dirname(first))

    @property
    def _slots_as_given(self) -> str:
        return f"base_slot: {format_duration(self.plan.slots.length)}"

    def _refuse_in_input(self) -> None:
        super()._refuse_in_input()
        refuse_in_input([self.input], [self.page])

    def _resumed(self) -> Snapshot | None:
        """The same, unless a look was paid in vain: whoever starts it again must not pay again."""
        snapshot = self.folder.read()
        if snapshot is not None and snapshot.looked and not are_known(self._asked.portfolio):
            raise ConfigurationError(
                f"the stream of --state={self.following.state} has looked at numbers for bounds: "
                "auto, and chose none: that has cost its part of everybody's budget, and is not "
                "done again. Give lower and upper, or begin when more events are there, with "
                "another folder, whose look costs that part once more"
            )
        return super()._resumed()

    def _released(self, due: Pass, summary: Summary) -> str:
        told = self._told(summary)
        slots = {one.name: told.figures_of(one)["slots"] for one in self._asked.portfolio}
        answered = ", ".join(f"{name} {number:,}" for name, number in slots.items() if number)
        bounds = {one.name: told.bounds(one) for one in self._asked.portfolio}
        chosen = ", ".join(
            "{} {:g} to {:g}".format(name, *both) for name, both in bounds.items() if both
        )
        return (
            f"{number_of(due.last_slot - due.first_slot + 1, 'base slot')} over, slots answered: "
            f"{answered or 'none'}; {told.events_text()}"
            f"{f'; bounds chosen: {chosen}' if chosen else ''}"
        )

    def _warnings(self, summary: Summary) -> Sequence[str | None]:
        """Of a quiet pass there is nothing to warn of."""
        return self._told(summary).warnings() if summary.read else []

    def _told(self, summary: Summary) -> QuestionsSummary:
        return QuestionsSummary(summary, self._asked.portfolio)

    def _histories(self) -> Sequence[History]:
        return [self._history(question) for question in self._asked.portfolio]

    def _history(self, question: Question) -> History:
        portfolio, words = self._asked.portfolio, plain_wording(question)
        lengths = portfolio.slots_of(question), *map(portfolio.of_length, question.times)
        return History(
            question.name,
            words.about,
            words.unit,
            question.statistic.column is None,
            [of_answers(question, slots) for slots in lengths],
            answers_kind(question.name),
        )

    def _show(self, snapshot: Snapshot) -> None:
        """Write the page anew. That it cannot be is said, and the stream goes on."""
        if not self.page:
            return
        from streamveil.pipelines.answers_page import write_answers_page

        asked = replace(
            self._asked,
            first_slot=snapshot.next_slot,
            last_slot=None,
            resume=self._state(snapshot),
        )
        part = f"{self.page}.part"
        try:
            report = AnswersReport.of(
                asked.portfolio,
                {one.name: self._written(answers_kind(one.name)) for one in asked.portfolio},
                shares_of(asked),
                self._written("ledger"),
                self._told(self.passes.total).figures(),
            )
            write_answers_page(report, part)
            os.replace(part, self.page)
        except (
            OSError,
            ConfigurationError,
            MachineFault,
        ) as error:  # such as of answers that were moved away
            tell(
                f"warning: --page={self.page} cannot be written ({reason_of(error)}): the run "
                "goes on without it",
                logging.WARNING,
            )

    def _written(self, kind: str) -> pa.Table:
        """What all passes have written of a kind and is still there; no columns if nothing is."""
        if kind not in self.outputs:
            return pa.table({})
        tables = [read_table(path) for path in self._numbered(kind)]
        if not tables:
            raise FileNotFoundError(errno.ENOENT, "no pass has left it", self.outputs[kind])
        some = [table for table in tables if table.num_rows] or tables[:1]
        return pa.concat_tables(some, promote_options="permissive")


def follow_questions(
    given: Any,
    plan: QueryPlan,
    following: Following,
) -> None:
    """Answer the questions of `streamveil release` in passes.

    Raises ConfigurationError, and what a pass raises.
    """
    outputs = {
        **{answers_kind(q): f for q, f in answer_files(given.output, plan.portfolio).items()},
        "ledger": given.ledger,
        "rejected": given.rejected,
    }
    wanted = {kind: path for kind, path in outputs.items() if path}
    _tell_of_end(plan)
    with held(given, following) as (folder, monitor):
        if given.page:
            folder.refuse_inside(given.page)
        inbox = inbox_of(given, plan, folder)
        stream = FollowQuestions(
            given.input if inbox is None else inbox.pattern,
            wanted,
            plan,
            following,
            folder,
            monitor,
            summary=given.summary,
            dialect=dialect_of(given),
            card_place=given.card,
            page=given.page,
            inbox=inbox,
        )
        stream.run()


def _tell_of_end(plan: QueryPlan) -> None:
    """Say which questions' last slots are not over at the end of the stream."""
    if plan.last_slot is None:
        return
    last = plan.last_slot + 1
    names = plan.within(last)
    if names:
        tell(
            f"--end is within a slot of {', '.join(names)}, at "
            f"{format_time(plan.slots.start(last))}: that slot of each is answered when a "
            "later run, with a later --end, comes to where it ends"
        )
