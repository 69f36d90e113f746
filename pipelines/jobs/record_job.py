"""A run from records to statistics that protect each by a budget of its own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from streamveil.io import (
    CsvDialect,
    check_events,
    check_outputs,
    is_endless,
    is_stream,
)
from streamveil.io.per_record import PER_RECORD_FORM
from streamveil.io.result_files import ResultFile
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import opt
from streamveil.pipelines.cards.files import card_beside
from streamveil.pipelines.cards.run_card import Statement
from streamveil.pipelines.jobs.checks import check_card_apart, check_streams
from streamveil.pipelines.outputs.outputs import Written
from streamveil.pipelines.plans.overlaps import refuse_in_input

if TYPE_CHECKING:
    import apache_beam as beam


@dataclass(frozen=True)
class PerRecordJob:
    """What to read, what to compute of it, where to write."""

    can_keep_state: ClassVar[bool] = False
    """Whether such a run can keep its state in a folder."""

    input: str
    output: str
    columns: tuple[str, ...]
    plan: Any
    """A `RecordsPlan`, or on a runner the transform that is one."""
    dialect: CsvDialect | None = None
    """How CSV files of the input are written, where that is said."""
    card_place: str | None = None
    """Where the user wants the card."""

    def check(self) -> None:
        """Look at the places before anything runs; raises ConfigurationError."""
        sink = self.written.check()
        if not is_endless(self.input):
            check_outputs(self.files)
            check_events(self.input, self.columns, silent=True, dialect=self.dialect)
        else:
            self._check_source()
        if is_endless(self.input) and self.files:
            raise ConfigurationError(
                f"{opt.output}={self.output}: a file is written at the end of the input, and "
                f"{opt.input}={self.input} is unbounded: write to a stream"
            )
        check_card_apart(self.card.path, self.files)
        self.card.check()
        refuse_in_input([self.input], [self.output, self.card.path])
        check_streams([sink])

    def _check_source(self) -> None:
        from streamveil.io import source_of  # Beam comes with it

        source_of(self.input, self.columns, silent=True, dialect=self.dialect)

    @property
    def files(self) -> list[str]:
        """All files that the run writes."""
        return [] if is_stream(self.output) else [self.output]

    @property
    def card(self) -> Statement:
        """What is promised, and where the card of it goes."""
        return Statement(
            "per-record",
            self.plan,
            self.output,
            {"releases": self.output},
            is_endless(self.input),
            self.card_place,
            card_beside(self.output),
        )

    @property
    def written(self) -> Written:
        """The rows that are released, and where they go."""
        return Written(
            "WriteRows",
            self.output,
            partial(ResultFile, self.output, PER_RECORD_FORM),
            self._sink,
        )

    def _sink(self) -> beam.PTransform:
        from streamveil.io import per_record_sink_of

        return per_record_sink_of(self.output)
