"""The results of a plan that answers a query set: answers to each query, and a ledger."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from streamveil.engine.messages import REVISIONS
from streamveil.engine.stream.query_plan import QueryPlan
from streamveil.io import answer_files, is_stream, make_folder
from streamveil.io.filesystems import join
from streamveil.io.result_files import AnswerFiles, Files, ResultFile
from streamveil.io.tidy import is_quoted, revised_answers_form
from streamveil.mechanisms.core.local_days import zone_of
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.queries.bounds import are_known
from streamveil.mechanisms.queries.queries import Query
from streamveil.pipelines.cards.claims import ANSWERS
from streamveil.pipelines.cards.files import card_in
from streamveil.pipelines.outputs.outputs import Outputs, Written
from streamveil.pipelines.reports.labels import plain_wording
from streamveil.pipelines.reports.report import Report, aside_of, shares_of
from streamveil.pipelines.reports.summary import Summary

if TYPE_CHECKING:
    import apache_beam as beam

    from streamveil.pipelines.reports.history import History


_LIMITED = (
    "Users count in a few slots of each query (--max_slots), so what slots cost does not add up to "
    "what a user spent: the ledger says the most that a window, or a life, can have cost "
    "(spent_in_window)."
)
_MOVING = (
    "Requirements change (--requirement_changes), so a user may pay by one row of the ledger in "
    "some slots and by another in others: it says the most that a window can have cost "
    "(spent_in_window)."
)


@dataclass(frozen=True, eq=False)
class QueryOutputs(Outputs):
    """Answers in a folder, or in one stream, and a ledger: see :class:`Outputs`."""

    plan: QueryPlan

    @property
    def slot(self) -> str:
        """A line of the file of queries."""
        return f"slot: {self.plan.slots.text}"

    @property
    def chooses_bounds(self) -> bool:
        """Where a query has `bounds: auto`."""
        return not are_known(self.plan.query_set)

    def prepare(self, output: str, *, in_passes: bool) -> None:
        """Make the folder."""
        if not is_stream(output):
            make_folder(output)
        elif in_passes:
            raise ConfigurationError(
                f"{opt.output}={output} is not a folder of files, and {opt.state} makes passes "
                f"over files: name a folder, or leave {opt.state} to a runner that keeps "
                f"checkpoints"
            )

    def places(self, output: str) -> dict[str, str]:
        """A place for each query."""
        files = answer_files(output, self.plan.query_set)
        return {ANSWERS + q: output if is_stream(output) else f for q, f in files.items()}

    def described(self, output: str) -> str:
        """The stream, or the folder."""
        return f"answers to {output if is_stream(output) else f'files of {output}'}"

    def beside(self, output: str) -> str:
        """All answers in the folder."""
        return join(output, "answers")

    def card_beside(self, output: str) -> str:
        """In the folder."""
        return card_in(output)

    def _results(self, output: str, revisions: str | None) -> dict[str | None, Written]:
        file = partial(AnswerFiles, output, self.plan.query_set)
        sink = partial(self._answer_sink, output)
        results: dict[str | None, Written] = {None: Written("WriteAnswers", output, file, sink)}
        if revisions:
            revised = partial(self._revision_file, revisions)
            to_place = partial(self._revision_sink, revisions)
            results[REVISIONS] = Written("WriteRevisions", revisions, revised, to_place)
        return results

    def _pass_results(
        self, folder: Path, names: Mapping[str, str], topics: Collection[str]
    ) -> dict[str | None, Files]:
        files: dict[str | None, Files] = {
            None: AnswerFiles(str(folder), self.plan.query_set, ANSWERS)
        }
        if "revisions" in names:
            files[REVISIONS] = self._revision_file(str(folder / names["revisions"]))
        return files

    def _revision_file(self, path: str) -> ResultFile:
        form = revised_answers_form(zone_of(self.plan.slots), quoted=is_quoted(path))
        return ResultFile(path, form)

    def _revision_sink(self, place: str) -> beam.PTransform:
        from streamveil.io import revised_answer_sink_of

        return revised_answer_sink_of(place, zone=zone_of(self.plan.slots))

    def _answer_sink(self, place: str) -> beam.PTransform:
        from streamveil.io import answer_sink_of  # Beam comes with it

        return answer_sink_of(place, self.plan.query_set)

    def released(self, slots: int, summary: Summary) -> str:
        """Slots of each query, events, and bounds that were chosen."""
        of_plan = summary.for_plan(self.plan)
        each = {name: sum(one.statuses.values()) for name, one in of_plan.queries.items()}
        answered = ", ".join(f"{name} {number:,}" for name, number in each.items() if number)
        chosen = ", ".join(
            "{} {:g} to {:g}".format(name, *one.bounds)
            for name, one in of_plan.queries.items()
            if one.bounds
        )
        return (
            f"{number_of(slots, 'base slot')} over, slots released: {answered or 'none'}; "
            f"{of_plan.events_text()}{f'; bounds chosen: {chosen}' if chosen else ''}"
        )

    def report(self, tables: Mapping[str, pa.Table], summary: Summary) -> Report:
        """Of each query."""
        plan = self.plan
        made = Report.of(
            plan.query_set,
            {query.name: tables[ANSWERS + query.name] for query in plan.query_set},
            shares_of(plan),
            tables.get("ledger", pa.table({})),
            summary.for_plan(plan).figures(),
            tables.get("revisions"),
            plan.revise,
        )
        moves = plan.limit is None and not any(plan.registry.max_slots)
        unshown = "" if plan.presences is None else _MOVING if moves else _LIMITED
        aside = aside_of(plan.query_set, plan.known.classes, plan.known.sizes)
        forever = plan.known.classes.forever
        return replace(
            made, aside=aside, forever=forever, unshown=unshown, delta=plan.largest_delta
        )

    def histories(self, kinds: Collection[str]) -> Sequence[History]:
        """One of each query, as it is revised."""
        revisions = "revisions" if "revisions" in kinds else None
        return [self._history(query, revisions) for query in self.plan.query_set]

    def _history(self, query: Query, revisions: str | None) -> History:
        from streamveil.pipelines.reports.history import History, of_answers

        query_set, words = self.plan.query_set, plain_wording(query)
        lengths = query_set.slots_of(query), *map(query_set.of_length, query.times)
        return History(
            words.title,
            words.about,
            words.unit,
            query.statistic.column is None,
            [of_answers(query, slots) for slots in lengths],
            ANSWERS + query.name,
            revisions,
        )
