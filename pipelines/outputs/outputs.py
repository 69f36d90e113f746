"""What the results of a plan are and where they go, of any kind of plan, in runs and in passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from streamveil.engine.messages import LEDGER
from streamveil.io import is_stream
from streamveil.io.ledgers import ledger_form
from streamveil.io.result_files import Files, ResultFile

if TYPE_CHECKING:
    import apache_beam as beam
    import pyarrow as pa

    from streamveil.pipelines.reports.history import History
    from streamveil.pipelines.reports.report import Report
    from streamveil.pipelines.reports.summary import Summary


class Written(NamedTuple):
    """Results of a kind, and where they go: a file, or a stream."""

    name: str
    """What the step of a pipeline that writes them is called."""
    place: str
    file: Callable[[], Files]
    """Makes what writes them where the place is one of files. Raises ConfigurationError."""
    sink: Callable[[], beam.PTransform]
    """Makes what writes them on a runner, and to a stream. Raises ConfigurationError."""

    def check(self) -> beam.PTransform | None:
        """The sink of a stream; None for files. Raises ConfigurationError where it cannot be."""
        if is_stream(self.place):
            return self.sink()
        self.file()
        return None


class Outputs(ABC):
    """The results of a plan, by kind: `releases` or `answers-NAME`, `revisions` and `ledger`."""

    @property
    @abstractmethod
    def slot(self) -> str:
        """How long slots are, as the user says it."""

    @property
    def chooses_bounds(self) -> bool:
        """Whether a run spends a part of the budget to choose bounds of numbers."""
        return False

    @property
    def dynamic_ledger(self) -> bool:
        """Whether rows of the ledger are about requirements that change."""
        return False

    def prepare(self, output: str, *, in_passes: bool) -> None:  # noqa: B027 - most need nothing
        """Make the place ready for the results. Raises ConfigurationError where it cannot be."""

    @abstractmethod
    def places(self, output: str) -> dict[str, str]:
        """Where results go, by kind, but for revisions and ledger: files, or the stream of all."""

    @abstractmethod
    def described(self, output: str) -> str:
        """The same in words, as in "would write ..."."""

    @abstractmethod
    def beside(self, output: str) -> str:
        """The path beside which a stream has its witness: that of files, which `output` names."""

    @abstractmethod
    def card_beside(self, output: str) -> str:
        """Where the card of these files goes, if the user does not say it."""

    def written(
        self, output: str, revisions: str | None, ledger: str | None
    ) -> dict[str | None, Written]:
        """What writes results to these places, by the tag that the engine gives them."""
        results = self._results(output, revisions)
        if ledger:
            file = partial(ResultFile, ledger, ledger_form(self.dynamic_ledger))
            sink = partial(_ledger_sink, ledger, self.dynamic_ledger)
            results[LEDGER] = Written("WriteLedger", ledger, file, sink)
        return results

    @abstractmethod
    def _results(self, output: str, revisions: str | None) -> dict[str | None, Written]:
        """The same without the ledger."""

    def pass_files(
        self, folder: Path, names: Mapping[str, str], topics: Collection[str]
    ) -> dict[str | None, Files]:
        """What writes the results of a pass, by tag, to files of these names in a folder.

        Kinds among `topics` are for a topic, a message for each line.
        """
        files = self._pass_results(folder, names, topics)
        if "ledger" in names:
            form = ledger_form(self.dynamic_ledger)
            files[LEDGER] = ResultFile(str(folder / names["ledger"]), form)
        return files

    @abstractmethod
    def _pass_results(
        self, folder: Path, names: Mapping[str, str], topics: Collection[str]
    ) -> dict[str | None, Files]:
        """The same without the ledger."""

    def topics(self, places: Mapping[str, str]) -> dict[str, str]:
        """The topics of Pub/Sub among the places, by kind. Raises ConfigurationError."""
        return {}

    @abstractmethod
    def released(self, slots: int, summary: Summary) -> str:
        """What a pass over so many slots has released, and what became of its events."""

    def check_page(self) -> None:  # noqa: B027 - most have all that it needs
        """Refuse a page that could not be made. Raises ConfigurationError."""

    @abstractmethod
    def report(self, tables: Mapping[str, pa.Table], summary: Summary) -> Report:
        """What a page shows of these results, by kind, and of what the run counted."""

    @abstractmethod
    def histories(self, kinds: Collection[str]) -> Sequence[History]:
        """What a page for operators shows of released slots, given the kinds that are written."""


def _ledger_sink(place: str, dynamic: bool) -> beam.PTransform:
    from streamveil.io import ledger_sink_of  # Beam comes with it

    return ledger_sink_of(place, dynamic=dynamic)
