"""A run from events to releases, whichever plan is in between: places, sinks, refusals."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import pyarrow as pa

from streamveil.io import (
    SINK_FORMS,
    CsvDialect,
    change_columns,
    check_events,
    check_outputs,
    check_place,
    is_endless,
    is_stream,
    read_table,
)
from streamveil.io.filesystems import require_filesystem
from streamveil.io.formats import output_format_of
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import opt
from streamveil.pipelines.cards.run_card import Statement
from streamveil.pipelines.jobs.checks import check_card_apart, check_streams, refuse_streams
from streamveil.pipelines.options.parsers import check_summary, dialect_of
from streamveil.pipelines.outputs.of_plan import outputs_of
from streamveil.pipelines.outputs.outputs import Outputs, Written
from streamveil.pipelines.plans.overlaps import refuse_in_input

if TYPE_CHECKING:
    from streamveil.engine.stream.histogram_plan import HistogramPlan
    from streamveil.engine.stream.local_plan import LocalPlan
    from streamveil.engine.stream.query_plan import QueryPlan

_PLACES = ("input", "output", "revisions", "ledger", "rejected")
# What may be Pub/Sub where a run keeps its state.
_PUBSUB_IN_PASSES = ("input", "output", "revisions")

P = TypeVar("P", "HistogramPlan", "LocalPlan", "QueryPlan")


@dataclass(frozen=True)
class Job(Generic[P]):
    """What to read, how to count, where to write."""

    can_keep_state: ClassVar[bool] = True
    """Whether such a run can keep its state in a folder."""

    input: str
    output: str
    plan: P
    ledger: str | None = None
    rejected: str | None = None
    summary: str | None = None
    dialect: CsvDialect | None = None
    """How CSV files of the input are written, where that is said."""
    layout: str | None = None
    """Of releases and revisions; None is tidy."""
    revisions: str | None = None
    card_place: str | None = None
    """Where the user wants the card."""
    in_passes: bool = False
    """Whether a run keeps its state and makes passes: then this is only looked at."""
    requirement_changes: str | None = None
    """Where changes of requirements come from."""

    page: str | None = None
    """Where a page of the results goes."""
    command: str = "release"
    """What the run is called."""

    @classmethod
    def checked(cls, given: Any, plan: P, command: str = "release") -> Job[P]:
        """The job that the options of a command ask for; its places are looked at.

        Args:
            given: the options, as parsed.
            plan: what is released.
            command: its name.

        Raises:
            ConfigurationError: for a place that cannot be.
        """
        job = cls(
            given.input,
            given.output,
            plan,
            given.ledger,
            given.rejected,
            given.summary,
            dialect_of(given),
            given.layout,
            given.revisions,
            given.card,
            bool(given.state),
            given.requirement_changes,
            given.page,
            command,
        )
        job.check()
        return job

    @cached_property
    def outputs(self) -> Outputs:
        """What the results are."""
        changes = self.requirement_changes is not None
        return outputs_of(self.plan, self.layout, changes=changes)

    @property
    def results(self) -> dict[str | None, Written]:
        """What is released and may be published, by the tag that the engine gives it."""
        return self.outputs.written(self.output, self.revisions, self.ledger)

    @property
    def public_places(self) -> dict[str, str]:
        """Where all goes that the card is about, by what it is."""
        places = {
            **self.outputs.places(self.output),
            "revisions": self.revisions,
            "ledger": self.ledger,
        }
        return {kind: place for kind, place in places.items() if place}

    @property
    def files(self) -> list[str]:
        """All files that the run writes."""
        places = *self.public_places.values(), self.rejected
        return [place for place in places if place and not is_stream(place)]

    @property
    def card(self) -> Statement:
        """What is promised, and where the card of it goes."""
        return Statement(
            self.command,
            self.plan,
            self.output,
            self.public_places,
            is_endless(self.input),
            self.card_place,
            self.outputs.card_beside(self.output),
            self.requirement_changes is not None,
        )

    @property
    def written(self) -> list[str]:
        """Lines that are printed at the end, in addition to the summary."""
        places = *self.public_places.values(), self.rejected, self.card.path, self.page
        return list(dict.fromkeys(place for place in places if place))

    @property
    def places(self) -> list[str]:
        """What the run writes, and where."""
        named: dict[str, str | None] = {
            "revisions": self.revisions,
            "the ledger": self.ledger,
            "dead letters": self.rejected,
            "the summary": self.summary,
            "the card": self.card.path,
            "the page": self.page,
        }
        return [
            self.outputs.described(self.output),
            *(f"{what} to {place}" for what, place in named.items() if place),
        ]

    def check(self) -> None:
        """Look at the places before anything runs; raises ConfigurationError."""
        if self.requirement_changes:
            self._check_changes(self.requirement_changes)
        if is_endless(self.input):
            self._check_source()
        sinks = [one.check() for one in self.results.values()]
        if self.rejected:
            output_format_of(self.rejected)
        if is_endless(self.input) and not self.in_passes:
            self._refuse_files()
        self.outputs.prepare(self.output, in_passes=self.in_passes)
        if self.in_passes:
            refuse_streams(dict(zip(_PLACES, self._places, strict=True)), _PUBSUB_IN_PASSES)
        check_outputs(self.files)
        check_summary(self.summary)
        require_filesystem(self.summary or "")
        check_card_apart(self.card.path, [*self.files, self.summary])
        self.card.check()
        written = [self.output, *self.files, self.summary, self.card.path, self.page]
        refuse_in_input(self._inputs, written)
        if not is_endless(self.input):
            check_events(self.input, self.plan.columns.names, dialect=self.dialect)
        check_streams(sinks)
        self._check_page()

    def _check_page(self) -> None:
        if not self.page:
            return
        if is_stream(self.output):
            raise ConfigurationError(
                f"{opt.page}={self.page} shows files of results, and {opt.output}="
                f"{self.output} is a stream: write to files, or leave the page out"
            )
        for name, place in (("revisions", self.revisions), ("ledger", self.ledger)):
            if place and is_stream(place):
                raise ConfigurationError(
                    f"{opt.page}={self.page} shows files, and {opt[name]}={place} is not a file: "
                    f"name a file, or leave the page out"
                )
        self.outputs.check_page()
        check_place(self.page)

    def _check_source(self) -> None:
        from streamveil.io import source_of  # Beam comes with it, as with what follows

        source_of(self.input, self.plan.columns.names, dialect=self.dialect)

    def _check_changes(self, location: str) -> None:
        if not is_endless(location):
            change_columns(location)
            return
        from streamveil.io import requirement_changes_of

        requirement_changes_of(location)
        if not is_endless(self.input):
            raise ConfigurationError(
                f"{opt.requirement_changes}={location} is unbounded, but "
                f"{opt.input}={self.input} is bounded: give both from files or both from streams"
            )

    @property
    def _inputs(self) -> list[str | None]:
        """Patterns of all files that are read as they are there."""
        return [self.input, self.requirement_changes]

    @property
    def _places(self) -> list[str | None]:
        """What `_PLACES` names."""
        return [self.input, self.output, self.revisions, self.ledger, self.rejected]

    def _refuse_files(self) -> None:
        for name, path in zip(_PLACES[1:], self._places[1:], strict=True):
            if path and not is_stream(path):
                streams = name in ("output", "revisions")
                remedy = f"write to {SINK_FORMS}" if streams else "leave it out"
                raise ConfigurationError(
                    f"{opt[name]}={path}: a file is written at the end of the input, and "
                    f"{opt.input}={self.input} is unbounded: {remedy}"
                )

    def tables(self) -> dict[str, pa.Table]:
        """What was released and may be published, read back from files, by what it is."""
        return {kind: read_table(path) for kind, path in self.public_places.items()}
