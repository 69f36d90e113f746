"""`streamveil release --questions`: many questions from one pass over the events and one budget."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from streamveil.engine.messages import LEDGER
from streamveil.engine.stream.query_plan import QueryPlan
from streamveil.io import (
    answer_files,
    check_place,
    is_endless,
    is_stream,
    make_folder,
    read_table,
)
from streamveil.io.answers import PORTFOLIO_LEDGER_FORM
from streamveil.io.result_files import AnswerFiles, ResultFile
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.portfolio.questions import Portfolio
from streamveil.pipelines.answers_report import AnswersReport, Floats, shares_of
from streamveil.pipelines.cards.files import card_in
from streamveil.pipelines.dry_run import preview_questions
from streamveil.pipelines.execution import Execution
from streamveil.pipelines.flags import is_true
from streamveil.pipelines.follow import Following
from streamveil.pipelines.jobs import (
    Job,
    Written,
    in_time,
    kind_of,
    run_and_tell,
    telling_what_is_whole,
)
from streamveil.pipelines.logs import tell
from streamveil.pipelines.overlaps import refuse_in_input
from streamveil.pipelines.passes import answers_kind
from streamveil.pipelines.plan_texts import about_shares
from streamveil.pipelines.query_plans import query_plan_of
from streamveil.pipelines.questions_follow import follow_questions
from streamveil.pipelines.questions_summary import QuestionsSummary
from streamveil.pipelines.summary import Summary

if TYPE_CHECKING:
    import apache_beam as beam


@dataclass(frozen=True)
class QuestionsJob(Job[QueryPlan]):
    """One run: what to read, what is asked, and the folder of the answers."""

    page: str | None = None

    @classmethod
    def of(cls, given: Namespace, execution: Execution) -> QuestionsJob:
        """Read and check all options and the public files; nothing is run yet.

        Raises ConfigurationError for anything missing or wrong.
        """
        kind = kind_of(QueryPlan, execution, allowed_lateness=given.allowed_lateness)
        job = cls.checked(given, query_plan_of(given, kind), page=given.page)
        return in_time(job, execution)

    @property
    def files(self) -> list[str]:
        """All files that the run writes."""
        answers = answer_files(self.output, self.plan.portfolio).values()
        named = (self.ledger, self.rejected)
        others = [place for place in named if place and not is_stream(place)]
        return others if is_stream(self.output) else [*answers, *others]

    @property
    def _card_beside(self) -> str:
        return card_in(self.output)

    @property
    def _public_places(self) -> dict[str, str]:
        ledger = {"ledger": self.ledger} if self.ledger else {}
        return {**answer_places(self.output, self.plan.portfolio), **ledger}

    @property
    def places(self) -> list[str]:
        """What the run writes, and where."""
        where = self.output if is_stream(self.output) else f"files of {self.output}"
        page = [f"the page to {self.page}"] if self.page else []
        return [f"answers to {where}", *super().places[1:], *page]

    @property
    def written(self) -> list[str]:
        """What is told at the end."""
        streams = [place for place in (self.output, self.ledger) if place and is_stream(place)]
        more = [place for place in (self.card.path, self.page) if place]
        return [*streams, *self.files, *more]

    def check(self) -> None:
        """Look at the places before anything runs; raises ConfigurationError."""
        if not is_stream(self.output):
            if is_endless(self.input) and not self.in_passes:
                raise ConfigurationError(
                    f"--output={self.output}: files are written when the input has ended, and "
                    f"--input={self.input} does not end: write to pubsub:, kafka: or folder:"
                )
            make_folder(self.output)
        super().check()
        if self.page:
            if is_stream(self.output):
                raise ConfigurationError(
                    f"--page={self.page} is made of the files of answers, and --output="
                    f"{self.output} is a stream: name a folder, or leave the page out"
                )
            if self.ledger and is_stream(self.ledger):
                raise ConfigurationError(
                    f"--page={self.page} is made of a file of the ledger, and --ledger="
                    f"{self.ledger} is a table: name a file, or leave the page out"
                )
            check_place(self.page)
            refuse_in_input(self._inputs, [self.page])

    def told(self, summary: Summary) -> QuestionsSummary:
        """What is said of a run."""
        return QuestionsSummary(summary, self.plan.portfolio)

    def run(self, execution: Execution, title: str) -> Summary:
        """Run the job to its end, and make the page."""
        summary = super().run(execution, title)
        if self.page and not summary.handed_over:
            from streamveil.pipelines.answers_page import write_answers_page

            with telling_what_is_whole(self.page, self.files):
                write_answers_page(self.report(summary), self.page)
        return summary

    def report(self, summary: Summary, true: Mapping[str, Floats] | None = None) -> AnswersReport:
        """What the page shows of a run that is over, read back from its files.

        Args:
            summary: of the run.
            true: what is true, as of :class:`QuestionFigures`, by question; for demonstrations.
        """
        portfolio = self.plan.portfolio
        return AnswersReport.of(
            portfolio,
            {name: read_table(path) for name, path in answer_files(self.output, portfolio).items()},
            shares_of(self.plan),
            read_table(self.ledger) if self.ledger else pa.table({}),
            self.told(summary).figures(),
            true,
        )

    @property
    def results(self) -> dict[str | None, Written]:
        """What is answered and may be published, by the tag that the engine gives it."""
        portfolio, ledger = self.plan.portfolio, self.ledger
        answers = Written(
            "WriteAnswers",
            self.output,
            partial(AnswerFiles, self.output, portfolio),
            self._answer_sink,
        )
        if not ledger:
            return {None: answers}
        entries = Written(
            "WriteLedger",
            ledger,
            partial(ResultFile, ledger, PORTFOLIO_LEDGER_FORM),
            self._ledger_sink,
        )
        return {None: answers, LEDGER: entries}

    def _answer_sink(self) -> beam.PTransform:
        from streamveil.io import answer_sink_of  # Beam comes with it

        return answer_sink_of(self.output, self.plan.portfolio)

    def _ledger_sink(self) -> beam.PTransform:
        from streamveil.io import portfolio_ledger_sink_of

        assert self.ledger is not None
        return portfolio_ledger_sink_of(self.ledger)


def answer_places(output: str, portfolio: Portfolio) -> dict[str, str]:
    """Where the answers to each question go: a file of the folder, or the stream of all."""
    files = answer_files(output, portfolio)
    return {answers_kind(q): output if is_stream(output) else f for q, f in files.items()}


def _refuse_stream(output: str) -> None:
    """Refuse to write elsewhere than to a folder of files. Raises ConfigurationError."""
    if is_stream(output):
        raise ConfigurationError(
            f"--output={output} is not a folder of files, and --state makes passes over files: "
            "name a folder, or leave --state to a runner that keeps checkpoints"
        )


def main(given: Namespace, execution: Execution, following: Following | None) -> int:
    """Run the command, or tell what it would do; returns the exit code."""
    dry = is_true("dry_run", given.dry_run)
    if following is not None:
        _refuse_stream(given.output)
    if following is not None and not dry:
        make_folder(given.output)
        plan = replace(query_plan_of(given, QueryPlan), ends=False)
        tell(about_shares(plan))
        follow_questions(given, plan, following)
        return 0
    job = QuestionsJob.of(given, execution)
    tell(about_shares(job.plan))
    if dry:
        card = job.card.plan if given.state is None else ()
        preview_questions(job.input, job.plan, job.places, job.dialect, given.state, card)
        return 0
    run_and_tell(job, execution, "streamveil release")
    return 0
