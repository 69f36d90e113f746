"""A run from events to releases, whichever transform is in between: places, sinks, refusals."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from streamveil.engine.count.loss_limit import tally_in
from streamveil.engine.messages import LEDGER, REJECTED, REVISIONS
from streamveil.engine.plan_kinds import PlanKind
from streamveil.io import (
    LAYOUTS,
    SINK_FORMS,
    CsvDialect,
    change_columns,
    check_events,
    check_outputs,
    is_endless,
    is_stream,
)
from streamveil.io.events import REJECTED_FORM, file_outputs
from streamveil.io.files import is_there
from streamveil.io.filesystems import require_filesystem
from streamveil.io.formats import output_format_of
from streamveil.io.places import is_bigquery
from streamveil.io.result_files import Files, ResultFile
from streamveil.io.tables import remove_unfinished
from streamveil.mechanisms.accounting.window_filter import BudgetExceeded
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import ConfigurationError, InputLost, MachineFault
from streamveil.pipelines.cards.files import card_beside
from streamveil.pipelines.cards.statement import Statement
from streamveil.pipelines.claims import claimed, drop_claims
from streamveil.pipelines.errors import PartlyWritten, reason_of
from streamveil.pipelines.execution import Execution
from streamveil.pipelines.local_run import Source, count_letters, run_here
from streamveil.pipelines.logs import tell
from streamveil.pipelines.overlaps import refuse_in_input
from streamveil.pipelines.progress import progress
from streamveil.pipelines.result_forms import FormOf, forms_of, has_dynamic_ledger, has_shares
from streamveil.pipelines.signals import ending
from streamveil.pipelines.summary import Summary, write_summary
from streamveil.pipelines.values import check_going_on, check_summary, dialect_of

if TYPE_CHECKING:
    import apache_beam as beam

    from streamveil.engine.stream.histogram_plan import HistogramPlan
    from streamveil.engine.stream.local_plan import LocalPlan
    from streamveil.engine.stream.query_plan import QueryPlan
    from streamveil.pipelines.follow import Following
    from streamveil.pipelines.publishing import Published

_PLACES = ("input", "output", "revisions", "ledger", "rejected")
PUBSUB_IN_PASSES = ("input", "output", "revisions")
"""What may be Pub/Sub where a run keeps its state."""

HANDED_OVER = "handed over: the job runs when it is submitted to Dataflow"


class Told(Protocol):
    """What a run counted, to be said."""

    def figures(self) -> dict[str, Any]:
        """For tools."""

    def text(self, dead_letters: str | None = None) -> str:
        """For people, given where dead letters are."""


J = TypeVar("J", bound=Any)
P = TypeVar("P", "HistogramPlan", "LocalPlan", "QueryPlan")
K = TypeVar("K")


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


def written_here(
    results: Mapping[str | None, Written], execution: Execution, title: str
) -> tuple[dict[str | None, Files], dict[str | None, Published]]:
    """What takes results in this process, by tag: files, and streams."""
    files = {tag: one.file() for tag, one in results.items() if not is_stream(one.place)}
    to_streams = {tag: one for tag, one in results.items() if is_stream(one.place)}
    if not to_streams:
        return files, {}
    from streamveil.pipelines.publishing import Published  # Beam comes with it

    return files, {
        tag: Published(one.sink(), one.place, execution, title) for tag, one in to_streams.items()
    }


def following_of(given: Any, execution: Execution) -> Following | None:
    """When slots are released, and where the state is; None without a state.

    Raises ConfigurationError.
    """
    check_going_on(given)
    if not given.state:
        return None
    if not execution.here:
        raise ConfigurationError(
            f"--state={given.state} is for passes in this process, and {execution.of_runner[0]} is "
            "for a runner, which keeps a state of its own: leave one of them out"
        )
    from streamveil.pipelines.follow import Following  # half of a command's modules

    return Following.of(given)


def kind_of(plan: type[K], execution: Execution, **of_stream: Any) -> Callable[..., K]:
    """What a command makes of its options: a plan, or on a runner the transform that is one.

    `of_stream` are arguments of the transform alone.
    """
    if execution.here:
        return plan
    from streamveil.pipelines.graphs import TRANSFORMS

    return partial(TRANSFORMS[plan], **of_stream)


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
class Job(Generic[P]):
    """What to read, how to count, where to write."""

    input: str
    output: str
    plan: P
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
    requirement_changes: str | None = None
    """Where changes of requirements come from."""

    command: ClassVar[str] = "release"
    """What the run is called."""

    @classmethod
    def checked(cls: type[J], given: Any, plan: Any, **more: Any) -> J:
        """The job that the options of a command ask for; its places are looked at.

        Args:
            given: the options, as parsed.
            plan: what is released.
            **more: fields that only this kind of job has.

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
            **more,
        )
        job.check()
        return job

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
            self.plan,
            self.output,
            self._public_places,
            is_endless(self.input),
            self.card_place,
            self._card_beside,
            self.requirement_changes is not None,
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
        if self.requirement_changes:
            self._check_changes(self.requirement_changes)
        if is_endless(self.input):
            self._check_source()
        sinks = [one.check() for one in self.results.values()]
        if self.rejected:
            output_format_of(self.rejected)
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
            check_events(self.input, self.plan.columns.names, dialect=self.dialect)
        check_streams(sinks)

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
                f"--requirement_changes={location} does not end, but --input={self.input} does: "
                "give both from files or both from streams"
            )

    @property
    def _inputs(self) -> list[str | None]:
        """Patterns of all files that are read as they are there."""
        return [self.input, self.requirement_changes]

    @property
    def _places(self) -> list[str | None]:
        """What `_PLACES` names."""
        return [self.input, self.output, self.revisions, self.ledger, self.rejected]

    @property
    def results(self) -> dict[str | None, Written]:
        """What is released and may be published, by the tag that the engine gives it."""
        assert self.plan.plan_kind is not PlanKind.QUERIES
        forms = forms_of(self.plan, self.layout, changes=self.requirement_changes is not None)
        places = {
            None: ("WriteReleases", self.output, self._release_sink),
            REVISIONS: ("WriteRevisions", self.revisions, self._revision_sink),
            LEDGER: ("WriteLedger", self.ledger, self._ledger_sink),
        }
        return {
            tag: Written(name, place, partial(_file, place, forms[tag]), sink)
            for tag, (name, place, sink) in places.items()
            if place
        }

    def _release_sink(self) -> beam.PTransform:
        from streamveil.io import sink_of

        assert self.plan.plan_kind is not PlanKind.QUERIES
        labels = self.plan.domain.labels
        return sink_of(self.output, labels, shares=has_shares(self.plan), layout=self.layout)

    def _revision_sink(self) -> beam.PTransform:
        from streamveil.io import revision_sink_of

        assert self.revisions is not None
        assert self.plan.plan_kind is not PlanKind.QUERIES
        return revision_sink_of(self.revisions, self.plan.domain.labels, layout=self.layout)

    def _ledger_sink(self) -> beam.PTransform:
        from streamveil.io import ledger_sink_of

        assert self.ledger is not None
        assert self.plan.plan_kind is not PlanKind.QUERIES
        changes = self.requirement_changes is not None
        return ledger_sink_of(self.ledger, dynamic=has_dynamic_ledger(self.plan, changes=changes))

    def _refuse_files(self) -> None:
        for name, path in zip(_PLACES[1:], self._places[1:], strict=True):
            if path in self.files:
                streams = name in ("output", "revisions")
                remedy = f"write to {SINK_FORMS}" if streams else "leave it out"
                raise ConfigurationError(
                    f"--{name}={path}: a file is written when the input has ended, and --input="
                    f"{self.input} does not end: {remedy}"
                )

    def told(self, summary: Summary) -> Told:
        """What is said of a run."""
        return summary

    def run(self, execution: Execution, title: str) -> Summary:
        """Run the job to its end, and write the card of it.

        Raises as :func:`run_with_card` and :func:`telling_of_tables`.
        """
        run = self._run_here if execution.here else self._run_on_runner
        with telling_of_tables(self.output, self.revisions, self.ledger):
            return run_with_card(partial(run, execution, title), self.files, self.card)

    def _run_on_runner(self, execution: Execution, title: str) -> Summary:
        from streamveil.pipelines import graphs
        from streamveil.pipelines.launch import run

        return run(partial(graphs.build, self), execution.options, title)

    def _run_here(self, execution: Execution, title: str) -> Summary:
        files, streams = written_here(self.results, execution, title)
        letters = None
        if self.rejected:
            letters = ResultFile(self.rejected, REJECTED_FORM, private=True)
            files[REJECTED] = letters
        try:
            with progress(title):
                return run_here(self.plan, self._sources(), files, streams)
        except InputLost:
            if letters is not None:
                _write_letters(letters)
            raise

    def _sources(self) -> list[Source]:
        """What is read: events, and perhaps changes of requirements."""
        sources = [file_outputs(self.input, self.plan.columns.names, dialect=self.dialect)]
        if self.requirement_changes:
            names = change_columns(self.requirement_changes)
            sources.append(file_outputs(self.requirement_changes, names))
        return [count_letters(source) for source in sources]

    @property
    def _public_places(self) -> dict[str, str]:
        """Where all goes that the card is about, by what it is."""
        places = {"releases": self.output, "revisions": self.revisions, "ledger": self.ledger}
        return {kind: place for kind, place in places.items() if place}


def _write_letters(letters: ResultFile) -> None:
    """Write the dead letters of an input that is lost, if there are any. That it fails is said."""
    if letters.empty:
        return
    try:
        with ExitStack() as block:
            letters.write(block)
    except (OSError, MachineFault) as error:
        tell(f"warning: the dead letters are not written: {reason_of(error)}", logging.WARNING)


def _file(place: str, form_of: FormOf) -> ResultFile:
    return ResultFile(place, form_of(place))


def check_streams(sinks: Sequence[beam.PTransform | None]) -> None:
    """Ask the services of sinks whether they take what they are for, before anything runs.

    Raises ConfigurationError.
    """
    streams = [sink for sink in sinks if sink is not None]
    if streams:
        from streamveil.io import check_sinks

        check_sinks(streams)


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


def run_with_card(run: Callable[[], Summary], files: Sequence[str], card: Statement) -> Summary:
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
        summary = run_whole(run, files)
        with telling_what_is_whole(card.path or "", files):
            if not summary.handed_over:
                card.end(summary.counters)
                return summary
            card.hand_over()
    if card.path and not card.endless:
        tell(f"wrote {card.path}")
    return summary


def run_whole(run: Callable[[], Summary], files: Sequence[str]) -> Summary:
    """Run a job to its end; an error tells which of the files that it writes were whole."""
    try:
        summary = run()
        for path in files:
            if not summary.handed_over and not is_there(path):
                raise RuntimeError(f"the run is done, but {path} was not written")
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


def run_and_tell(job: Job[Any], execution: Execution, title: str) -> None:
    """Run the job of a command and tell the operator what came of it."""
    try:
        summary = job.run(execution, title)
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


def ways_to_stream(job: Any) -> str:
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


def never_ends(job: Any) -> ConfigurationError:
    """Says of a job whose input does not end that it cannot run in this process."""
    return ConfigurationError(
        f"--input={job.input} does not end, and without --runner the pipeline runs in this "
        f"process, which waits for the end: {ways_to_stream(job)}"
    )


def in_time(job: J, execution: Execution) -> J:
    """The job as it runs: where its input does not end, it streams, and slots settle.

    Raises ConfigurationError where nothing would stream, or might release a slot twice.
    """
    if not is_endless(job.input) or getattr(job, "in_passes", False):
        return job
    if execution.here:
        raise never_ends(job)
    from streamveil.pipelines.graphs import streaming

    return streaming(job, execution.options)
