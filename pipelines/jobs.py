"""A run from events to releases, whichever transform is in between: places, sinks, refusals."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    DebugOptions,
    GoogleCloudOptions,
    PipelineOptions,
    StandardOptions,
)

from streamveil.engine.count.loss_limit import tally_in
from streamveil.io import (
    LAYOUTS,
    SINK_FORMS,
    CsvDialect,
    WriteRejected,
    check_events,
    check_outputs,
    check_sinks,
    is_endless,
    is_stream,
    ledger_sink_of,
    revision_sink_of,
    sink_of,
    source_of,
)
from streamveil.io.files import is_there
from streamveil.io.filesystems import require_filesystem
from streamveil.io.places import is_bigquery
from streamveil.io.tables import remove_unfinished
from streamveil.mechanisms.accounting.window_filter import BudgetExceeded
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import ConfigurationError, InputLost, MachineFault
from streamveil.pipelines.cards.files import card_beside
from streamveil.pipelines.cards.statement import Statement
from streamveil.pipelines.claims import claimed, drop_claims
from streamveil.pipelines.errors import PartlyWritten, reason_of
from streamveil.pipelines.foreign import refuse_foreign
from streamveil.pipelines.job_servers import BATCH_ONLY
from streamveil.pipelines.launch import FlinkOptions, run
from streamveil.pipelines.logs import tell
from streamveil.pipelines.options import add_job_options, add_shared_options
from streamveil.pipelines.overlaps import refuse_in_input
from streamveil.pipelines.signals import ending
from streamveil.pipelines.summary import Summary, write_summary
from streamveil.pipelines.values import check_going_on, check_summary, take_query

if TYPE_CHECKING:
    from streamveil.pipelines.follow import Following
    from streamveil.transforms import CollectHistograms, PrivateHistograms

_PLACES = ("input", "output", "revisions", "ledger", "rejected")
PUBSUB_IN_PASSES = ("input", "output", "revisions")
"""What may be Pub/Sub where a run keeps its state."""

# What Dataflow calls the mode, as an experiment or as an option of the service.
AT_LEAST_ONCE = "streaming_mode_at_least_once"
HANDED_OVER = "handed over: the job runs when it is submitted to Dataflow"


class Told(Protocol):
    """What a run counted, to be said."""

    def figures(self) -> dict[str, Any]:
        """For tools."""

    def text(self, dead_letters: str | None = None) -> str:
        """For people, given where dead letters are."""


J = TypeVar("J", bound=Any)
Transform = TypeVar("Transform", "PrivateHistograms", "CollectHistograms")


class EventOptions(PipelineOptions):
    """What all commands share that make releases of events; no option may be in two classes."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        add_shared_options(parser)


class JobOptions(PipelineOptions):
    """From events to one private histogram a slot; Beam's own options pass through beside these."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        add_job_options(parser)


def given_by(options: PipelineOptions, *kinds: type[PipelineOptions]) -> argparse.Namespace:
    """The options of several classes, as parsed, in one place."""
    views = (options.view_as(kind).get_all_options(current_only=True) for kind in kinds)
    given = argparse.Namespace(**{name: value for view in views for name, value in view.items()})
    take_query(given)
    return given


def refuse_options(
    options: PipelineOptions,
    refused: Mapping[type[PipelineOptions], Mapping[str, str]],
    saying: str,
) -> None:
    """Raise ConfigurationError where an option is given that has no meaning here.

    Args:
        options: as they were given.
        refused: by class of options, why each is refused.
        saying: what stands between the option and the reason.
    """
    for kind, reasons in refused.items():
        usual = PipelineOptions([]).view_as(kind)
        refuse_foreign(options.view_as(kind), usual, reasons, saying)


def following_of(given: Any, own: Any) -> Following | None:
    """When slots are released, and where the state is; None without a state.

    Raises ConfigurationError.
    """
    check_going_on(own)
    if not own.state:
        return None
    from streamveil.pipelines.follow import Following  # half of a command's modules

    return Following.of(given, own)


def refuse_streams(places: Mapping[str, str | None], pubsub: Collection[str] = ()) -> None:
    """Refuse streams where a run keeps its state, but for Pub/Sub under these names of places.

    Raises ConfigurationError.
    """
    for name, place in places.items():
        if not place or not is_stream(place) or (name in pubsub and place.startswith("pubsub:")):
            continue
        raise ConfigurationError(
            f"{name} {place} is not files, and --state makes passes over files: give a glob or a "
            "file, pubsub: for --input and for releases and revisions, or leave --state to a "
            "runner that keeps checkpoints"
        )


@dataclass(frozen=True)
class Job(Generic[Transform]):
    """What to read, how to count, where to write."""

    input: str
    output: str
    transform: Transform
    ledger: str | None = None
    rejected: str | None = None
    summary: str | None = None
    dialect: CsvDialect | None = None
    """How CSV files of the input are written, where that is said."""
    layout: str = LAYOUTS[0]
    """Of a file of releases, and of one of revisions."""
    revisions: str | None = None
    card_place: str | None = None
    """Where the user wants the card."""
    in_passes: bool = False
    """Whether a run keeps its state and makes passes: then this is only looked at."""

    command: ClassVar[str] = "release"
    """What the run is called."""

    @property
    def files(self) -> list[str]:
        """All files that the run writes."""
        places = (self.output, self.revisions, self.ledger, self.rejected)
        return [place for place in places if place and not is_stream(place)]

    @property
    def card(self) -> Statement:
        """What is promised, and where the card of it goes."""
        return Statement(
            self.command,
            self.transform,
            self.output,
            self._public_places,
            is_endless(self.input),
            self.card_place,
            self._card_beside,
            self._changes_requirements,
        )

    @property
    def _card_beside(self) -> str:
        """Where the card goes beside files, if the user does not say it."""
        return card_beside(self.output)

    @property
    def written(self) -> list[str]:
        """What is told at the end, beside the summary."""
        named = (self.output, self.revisions, self.ledger)
        places = [place for place in named if place] + self.files
        return places + ([self.card.path] if self.card.path else [])

    @property
    def places(self) -> list[str]:
        """What the run writes, and where."""
        named = {
            "releases": self.output,
            "revisions": self.revisions,
            "the ledger": self.ledger,
            "dead letters": self.rejected,
            "the summary": self.summary,
            "the card": self.card.path,
        }
        return [f"{what} to {place}" for what, place in named.items() if place]

    def check(self) -> None:
        """Look at the places before anything runs; raises ConfigurationError."""
        self._source()
        sinks = [self._sink()]
        if self.revisions:
            sinks.append(self._revision_sink(self.revisions))
        if self.ledger and is_stream(self.ledger):
            sinks.append(self._ledger_sink(self.ledger))
        if self.in_passes:
            refuse_streams(dict(zip(_PLACES, self._places, strict=True)), PUBSUB_IN_PASSES)
        elif is_endless(self.input):
            self._refuse_files()
        check_outputs(self.files)
        check_summary(self.summary)
        require_filesystem(self.summary or "")
        check_card_apart(self.card.path, [*self.files, self.summary])
        self.card.check()
        refuse_in_input(self._inputs, [self.output, *self.files, self.summary, self.card.path])
        if not is_endless(self.input):
            check_events(self.input, self.transform.columns.names, dialect=self.dialect)
        check_sinks(sinks)

    @property
    def _inputs(self) -> list[str | None]:
        """Patterns of all files that are read as they are there."""
        return [self.input]

    @property
    def _places(self) -> list[str | None]:
        """What `_PLACES` names."""
        return [self.input, self.output, self.revisions, self.ledger, self.rejected]

    def _source(self) -> beam.PTransform:
        return source_of(self.input, self.transform.columns.names, dialect=self.dialect)

    def _sink(self) -> beam.PTransform:
        return sink_of(
            self.output, self.transform.domain.labels, shares=self._shares, layout=self.layout
        )

    def _revision_sink(self, place: str) -> beam.PTransform:
        return revision_sink_of(place, self.transform.domain.labels, layout=self.layout)

    def _ledger_sink(self, place: str) -> beam.PTransform:
        return ledger_sink_of(place, dynamic=self._dynamic)

    def _refuse_files(self) -> None:
        for name, path in zip(_PLACES[1:], self._places[1:], strict=True):
            if path in self.files:
                streams = name in ("output", "revisions")
                remedy = f"write to {SINK_FORMS}" if streams else "leave it out"
                raise ConfigurationError(
                    f"--{name}={path}: a file is written when the input has ended, and --input="
                    f"{self.input} does not end: {remedy}"
                )

    def build(self, pipeline: beam.Pipeline) -> None:
        """Compose source, transform and sinks."""
        events = pipeline | "ReadEvents" >> self._source()
        outputs = events.batches | type(self.transform).__name__ >> self.transform
        self._write(outputs, [events.rejected])

    @property
    def _dynamic(self) -> bool:
        """Whether rows of the ledger are about requirements that change."""
        return False

    @property
    def _shares(self) -> bool:
        """Whether releases have shares."""
        return False

    def _write(self, outputs: Any, rejected: list[beam.PCollection]) -> None:
        """Compose the sinks; `rejected` are the dead letters of sources."""
        whole = outputs.releases if is_stream(self.output) else (outputs.releases, outputs.done)
        whole | "WriteReleases" >> self._sink()
        if self.revisions:
            revised = outputs.revisions
            if not is_stream(self.revisions):
                revised = outputs.revisions, outputs.revised
            revised | "WriteRevisions" >> self._revision_sink(self.revisions)
        self._write_ledger(outputs.ledger, outputs.done)
        self._write_rejected([*rejected, outputs.rejected])

    def _write_ledger(self, entries: Any, number: Any) -> None:
        if self.ledger:
            whole = entries if is_stream(self.ledger) else (entries, number)
            whole | "WriteLedger" >> self._ledger_sink(self.ledger)

    def _write_rejected(self, letters: list[beam.PCollection]) -> None:
        if self.rejected:
            every = letters | "Rejected" >> beam.Flatten()
            every | "WriteRejected" >> WriteRejected(self.rejected)

    def told(self, summary: Summary) -> Told:
        """What is said of a run."""
        return summary

    def run(self, options: PipelineOptions, title: str) -> Summary:
        """Run the job to its end, and write the card of it.

        Raises as :func:`run_with_card` and :func:`telling_of_tables`.
        """
        with telling_of_tables(self.output, self.revisions, self.ledger):
            return run_with_card(self.build, options, title, self.files, self.card)

    @property
    def _public_places(self) -> dict[str, str]:
        """Where all goes that the card is about, by what it is."""
        places = {"releases": self.output, "revisions": self.revisions, "ledger": self.ledger}
        return {kind: place for kind, place in places.items() if place}

    @property
    def _changes_requirements(self) -> bool:
        """Whether users may ask for something else while the job runs."""
        return False


@contextmanager
def telling_what_is_whole(path: str, files: Sequence[str]) -> Iterator[None]:
    """Let an error by which a file beside results is not written tell that these are whole."""
    try:
        yield
    except (OSError, MachineFault) as error:
        whole = f": {', '.join(files)}" if files else ""
        why = reason_of(error)
        if not isinstance(error, MachineFault):  # which says so itself
            why = f"{path} could not be written: {why}"
        raise PartlyWritten(f"{why}. The results are whole{whole}") from error


@contextmanager
def telling_of_tables(*places: str | None) -> Iterator[None]:
    """Let an error of a run that appends to tables say what the next run would do to them.

    Raises PartlyWritten in place of an error of the run.
    """
    try:
        yield
    except (BudgetExceeded, ConfigurationError, InputLost):
        raise
    except Exception as error:
        tables = [place.partition("?")[0] for place in places if is_bigquery(place)]
        if not tables:
            raise
        raise PartlyWritten(
            f"{reason_of(error)}. If rows of this run are in {', '.join(tables)} already, take "
            "them out before the next run, which spends the budget again unless it has the same "
            "noise key"
        ) from error


def check_card_apart(card: str | None, places: Sequence[str | None]) -> None:
    """Refuse another output where the card goes. Raises ConfigurationError."""
    if card in places and card is not None:
        raise ConfigurationError(f"{card} is where the card of the releases goes: name it apart")


def run_with_card(
    build: Callable[[beam.Pipeline], None],
    options: PipelineOptions,
    title: str,
    files: Sequence[str],
    card: Statement,
) -> Summary:
    """The same as :func:`run_whole`, with the card of the run at its launch and at its end.

    Raises what that does, ConfigurationError for a card that cannot be written at the launch, and
    PartlyWritten for one that cannot be afterwards.
    """
    if card.missing:
        tell(card.missing)
    begun = [*files, card.path] if card.path else files
    with claimed(files), ending(partial(_removed, files, begun)):
        try:
            card.launch()
        except (OSError, MachineFault) as error:
            raise ConfigurationError(
                f"the card {card.path} cannot be written ({reason_of(error)}), so nothing was "
                "launched: choose another place (--card)"
            ) from error
        if card.path and card.endless:  # whoever waits for the end is not told before
            tell(f"wrote {card.path}")
        summary = run_whole(build, options, title, files)
        with telling_what_is_whole(card.path or "", files):
            if not summary.handed_over:
                card.end(summary.counters)
                return summary
            card.hand_over()
    if card.path and not card.endless:
        tell(f"wrote {card.path}")
    return summary


def run_whole(
    build: Callable[[beam.Pipeline], None],
    options: PipelineOptions,
    title: str,
    files: Sequence[str],
) -> Summary:
    """Run a pipeline to its end; an error tells which of the files that it writes were whole."""
    try:
        summary = run(build, options, title)
        for path in files:
            if not summary.handed_over and not is_there(path):
                raise RuntimeError(f"the runner is done, but {path} was not written")
        return summary
    except Exception as error:
        whole, unknown = _whole_and_unknown(files)
        if not (whole or unknown) or isinstance(error, InputLost):
            raise
        kept = f"These were whole before that and are kept: {', '.join(whole)}. " if whole else ""
        if unknown:
            kept += f"Whether these were is not known, for their service does not say: \
{', '.join(unknown)}. "
        ours = isinstance(error, ConfigurationError)
        raise (ConfigurationError if ours else PartlyWritten)(
            f"{error if ours else reason_of(error)}. {kept}Move what is whole away before the next "
            "run, which spends the budget again unless it has the same noise key"
        ) from error


def _whole_and_unknown(files: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those files that are there, and those of which their filesystem does not say it."""
    whole, unknown = [], []
    for path in files:
        try:
            if is_there(path):
                whole.append(path)
        except MachineFault:
            unknown.append(path)
    return whole, unknown


def _removed(files: Sequence[str], begun: Sequence[str]) -> str:
    """Remove what is half written of some files; says what that was, and which of a run are whole.

    Args:
        files: those of the run, whose claims go as well.
        begun: all that it may have begun to write.
    """
    removed = sum(remove_unfinished(path) for path in begun if "://" not in path)
    drop_claims(files)
    whole, _ = _whole_and_unknown(files)
    kept = f"; whole, and kept: {', '.join(whole)}" if whole else "; no result was whole"
    return f"removed {number_of(removed, 'unfinished file')}{kept}"


def run_and_tell(job: Job[Any], options: PipelineOptions, title: str) -> None:
    """Run the job of a command and tell the operator what came of it."""
    try:
        summary = job.run(options, title)
    except InputLost as error:
        write_summary(job.summary, Summary.of_tally(tally_in(str(error))).figures())
        letters = job.rejected and is_there(job.rejected)
        raise InputLost(f"{error}. Dead letters: {job.rejected}" if letters else error) from error
    if summary.handed_over:
        tell(HANDED_OVER)
        return
    told = job.told(summary)
    written = write_summary(job.summary, told.figures())
    tell(told.text(dead_letters=job.rejected))
    places = *job.written, job.summary if written else None
    for path in dict.fromkeys(filter(None, places)):
        tell(f"wrote {path}")


def _ways_to_stream(job: Any) -> str:
    """What to give for an input that does not end."""
    if not job.input.startswith("pubsub:"):
        return (
            "give --runner, such as FlinkRunner or DataflowRunner, or to try it on this machine "
            "PrismRunner for Kafka, which forgets what was spent when it ends"
        )
    kept = "give --state=FOLDER and --follow=10s, or " if isinstance(job, Job) else ""
    return (
        f"{kept}give --runner=DataflowRunner, or to try it on this machine "
        "BundleBasedDirectRunner, which forgets what was spent when it ends"
    )


def in_time(job: J, options: PipelineOptions) -> J:
    """The job as it runs: where its input does not end, it streams, and slots settle.

    Raises ConfigurationError where the runner would not stream, or might release a slot twice.
    """
    if not is_endless(job.input) or getattr(job, "in_passes", False):
        return job
    standard, flink = options.view_as(StandardOptions), options.view_as(FlinkOptions)
    if standard.runner in (None, "FnApiRunner"):
        raise ConfigurationError(
            f"--input={job.input} does not end, and without --runner the pipeline runs in this "
            f"process, which waits for the end: {_ways_to_stream(job)}"
        )
    if standard.runner == "SparkRunner":
        raise ConfigurationError(
            f"--input={job.input} does not end, and {BATCH_ONLY}: {_ways_to_stream(job)}"
        )
    asked = list(options.view_as(DebugOptions).experiments or [])
    asked += options.view_as(GoogleCloudOptions).dataflow_service_options or []
    if AT_LEAST_ONCE in asked:
        raise ConfigurationError(
            f"{AT_LEAST_ONCE} would let Dataflow release a slot more than once: leave it out"
        )
    if flink.checkpointing_mode not in (None, "EXACTLY_ONCE"):
        raise ConfigurationError(
            f"--checkpointing_mode={flink.checkpointing_mode} would let Flink count events twice: "
            "leave it out, or write EXACTLY_ONCE"
        )
    concurrent = flink.num_concurrent_checkpoints
    if concurrent is not None and concurrent > 1:
        raise ConfigurationError(
            f"--num_concurrent_checkpoints={concurrent} would let Flink release a slot twice and "
            "differently, since it does not say which of several checkpoints it has ended: leave "
            "it out, or write 1"
        )
    if flink.allow_non_restored_state:
        raise ConfigurationError(
            "--allow_non_restored_state would let Flink drop the users' ledgers, and the stream "
            "spend their budgets again: leave it out, and go on with the streamveil that wrote "
            "the savepoint"
        )
    standard.streaming = True
    interval = flink.checkpointing_interval or 0
    if interval <= 0:
        if standard.runner == "FlinkRunner":
            raise ConfigurationError(
                "--checkpointing_interval is missing: without checkpoints a failure would begin "
                "the stream anew, and spend its budgets again; give milliseconds, such as "
                "--checkpointing_interval=10000"
            )
        return job
    if flink.finish_bundle_before_checkpointing is None:
        flink.finish_bundle_before_checkpointing = True
    return replace(job, transform=replace(job.transform, settle=1000 * interval))
