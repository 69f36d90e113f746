"""The results of a plan that makes a histogram of every slot: releases, revisions and a ledger."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from streamveil.engine.messages import REVISIONS
from streamveil.engine.plan_kinds import PlanKind
from streamveil.io.releases import release_form
from streamveil.io.result_files import Files, ResultFile
from streamveil.io.result_messages import ResultMessages, release_messages, revision_messages
from streamveil.io.revisions import revision_form, tidy_table
from streamveil.io.tables import TableForm
from streamveil.io.tidy import is_quoted
from streamveil.mechanisms.core.local_days import zone_of
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import COUNT
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.registry import only_dynamic
from streamveil.pipelines.cards.files import card_beside
from streamveil.pipelines.outputs.outputs import Outputs, Written
from streamveil.pipelines.reports.summary import Summary

if TYPE_CHECKING:
    import apache_beam as beam

    from streamveil.engine.stream.histogram_plan import HistogramPlan
    from streamveil.engine.stream.local_plan import LocalPlan
    from streamveil.pipelines.reports.history import History
    from streamveil.pipelines.reports.report import Report


_UNSHOWN = (
    "Requirements may change, so the ledger has a row for each group of users with the same "
    "history: it says what each group has spent."
)


def count_of(plan: HistogramPlan | LocalPlan) -> Query:
    """The query of a single count, as a query set has it, but for its mechanism.

    Mechanisms of one budget forever and of devices are not for query sets. Raises
    ConfigurationError for more bins than a query may have.
    """
    most = 1 if plan.plan_kind is PlanKind.LOCAL else plan.max_contributions
    return Query(
        COUNT,
        value=plan.columns.value,
        domain=plan.domain,
        max_contributions=most,
        keep=plan.keep,
    )


@dataclass(frozen=True, eq=False)
class HistogramOutputs(Outputs):
    """Releases, revisions and ledger: see :class:`Outputs`."""

    plan: HistogramPlan | LocalPlan
    layout: str
    """Of releases and revisions."""
    changes: bool
    """Whether requirements may change."""

    @property
    def slot(self) -> str:
        """An option."""
        return f"{opt.slot}={self.plan.slots.text}"

    @property
    def dynamic_ledger(self) -> bool:
        """Whether users move from ledger to ledger."""
        plan = self.plan
        moves = self.changes and plan.plan_kind is PlanKind.HISTOGRAMS and plan.limits is None
        return moves or only_dynamic(plan.mechanism)

    def places(self, output: str) -> dict[str, str]:
        """One place."""
        return {"releases": output}

    def described(self, output: str) -> str:
        """The place."""
        return f"releases to {output}"

    def beside(self, output: str) -> str:
        """The file of releases."""
        return output

    def card_beside(self, output: str) -> str:
        """Beside the file of releases."""
        return card_beside(output)

    def _results(self, output: str, revisions: str | None) -> dict[str | None, Written]:
        wanted = (
            (None, "WriteReleases", output, self._release_sink),
            (REVISIONS, "WriteRevisions", revisions, self._revision_sink),
        )
        return {
            tag: Written(name, place, partial(self._file, tag, place), partial(sink, place))
            for tag, name, place, sink in wanted
            if place
        }

    def _pass_results(
        self, folder: Path, names: Mapping[str, str], topics: Collection[str]
    ) -> dict[str | None, Files]:
        files: dict[str | None, Files] = {}
        for kind, tag in (("releases", None), ("revisions", REVISIONS)):
            if kind in topics:
                files[tag] = ResultFile(str(folder / names[kind]), self._messages(tag).form)
            elif kind in names:
                files[tag] = self._file(tag, str(folder / names[kind]))
        return files

    def _file(self, tag: str | None, path: str) -> ResultFile:
        given = {**self._given, "quoted": is_quoted(path)}
        form: TableForm
        if tag == REVISIONS:
            form = revision_form(**given)
        else:
            form = release_form(**given, shares=self._has_shares)
        return ResultFile(path, form)

    def _messages(self, tag: str | None) -> ResultMessages:
        if tag == REVISIONS:
            return revision_messages(**self._given)
        return release_messages(**self._given, shares=self._has_shares)

    @property
    def _given(self) -> dict[str, Any]:
        """What all forms of results take."""
        labels, zone = self.plan.domain.labels, zone_of(self.plan.slots)
        return {"labels": labels, "layout": self.layout, "zone": zone}

    @property
    def _has_shares(self) -> bool:
        """Whether releases have shares: those of one budget forever."""
        plan = self.plan
        return plan.plan_kind is PlanKind.HISTOGRAMS and plan.population.requirements.forever

    def _release_sink(self, place: str) -> beam.PTransform:
        from streamveil.io import sink_of  # Beam comes with it

        return sink_of(place, **self._given, shares=self._has_shares)

    def _revision_sink(self, place: str) -> beam.PTransform:
        from streamveil.io import revision_sink_of

        return revision_sink_of(place, **self._given)

    def topics(self, places: Mapping[str, str]) -> dict[str, str]:
        """Those of releases and revisions."""
        sinks: dict[str, Any] = {
            "releases": self._release_sink,
            "revisions": self._revision_sink,
        }
        return {
            kind: sink(places[kind]).topic
            for kind, sink in sinks.items()
            if places.get(kind, "").startswith("pubsub:")
        }

    def released(self, slots: int, summary: Summary) -> str:
        """Slots and events."""
        return f"{number_of(slots, 'slot')} released, {summary.events_text()}"

    def check_page(self) -> None:
        """Refuse a count with too many bins."""
        count_of(self.plan)

    def report(self, tables: Mapping[str, pa.Table], summary: Summary) -> Report:
        """Of the count, as a query set of one."""
        from streamveil.pipelines.reports.labels import plain_wording
        from streamveil.pipelines.reports.report import Report

        query, revisions = count_of(self.plan), tables.get("revisions")
        if revisions is not None and revisions.num_rows:
            revisions = tidy_table(revisions, self.plan.domain.labels)
        made = Report.of(
            QuerySet(self.plan.slots, (query,)),
            {query.name: tidy_table(tables["releases"], self.plan.domain.labels)},
            {query.name: 1.0},
            tables.get("ledger", pa.table({})),
            summary.for_plan(self.plan).figures(),
            revisions,
            self.plan.revise,
        )
        words = plain_wording(query)
        return replace(
            made,
            words={query.name: replace(words, title=f"Events, by {', '.join(query.value)}")},
            mechanism=self.plan.mechanism,
            ended=True,
            forever=self.plan.registry.classes.forever,
            unshown=_UNSHOWN if self.dynamic_ledger else "",
        )

    def histories(self, kinds: Collection[str]) -> Sequence[History]:
        """That of the releases, as they are revised."""
        from streamveil.pipelines.reports.history import History, of_releases

        series = of_releases(self.plan.slots, self.plan.domain.labels)
        revisions = "revisions" if "revisions" in kinds else None
        return [
            History(
                "counts", "Events in each bin.", "events", True, [series], "releases", revisions
            )
        ]
