"""From events to private results: the steps of a plan on Beam."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa

from streamveil.engine.capabilities import OF_GROWING
from streamveil.engine.count.loss_limit import LossLimit
from streamveil.engine.encode.query_mapper import slices_of
from streamveil.engine.messages import BOOKED, DONE, LEDGER, REVISED, REVISIONS, STATE
from streamveil.engine.run.key_choice import steps_of_discovered
from streamveil.engine.run.one_by_one import steps_one_by_one
from streamveil.engine.stream.histogram_plan import HistogramPlan
from streamveil.engine.stream.query_plan import QueryPlan
from streamveil.engine.stream.release_in_time import ReleaseInTime
from streamveil.engine.stream.release_slots import release_at_end
from streamveil.engine.stream.steps import Steps
from streamveil.mechanisms.core.records import (
    CHANGE_COLUMNS,
    COUNT,
    ConfigurationError,
    DynamicLedgerEntry,
    LedgerEntry,
    Release,
    Revision,
)
from streamveil.mechanisms.queries.discovered import discovering
from streamveil.mechanisms.queries.query_stream import QueryEntry
from streamveil.mechanisms.queries.slot_answers import RevisedAnswer, SlotAnswer
from streamveil.transforms.at_end import AtEnd
from streamveil.transforms.counting.bounds_choice import ChooseBounds
from streamveil.transforms.counting.count_events import Counted, count_events
from streamveil.transforms.counting.count_shards import CountShards
from streamveil.transforms.counting.key_choice import DiscoverKeys
from streamveil.transforms.counting.limit_choice import ChooseLimits
from streamveil.transforms.counting.loss_limit import refuse_loss
from streamveil.transforms.in_time import InTime
from streamveil.transforms.result_rows import rows_of
from streamveil.transforms.row_batches import as_batches
from streamveil.transforms.slots.checkpoint_hold import settled
from streamveil.transforms.stream_options import StreamOptions


class _Outputs(NamedTuple):
    results: beam.PCollection[Release] | beam.PCollection[SlotAnswer]
    """The results, one for each slot of each query, which are safe to publish. They are a `Release`
    if the queries are a single count, and a `SlotAnswer` otherwise."""
    ledger: (
        beam.PCollection[LedgerEntry]
        | beam.PCollection[DynamicLedgerEntry]
        | beam.PCollection[QueryEntry]
    )
    """The privacy budget that each result spent, by class of requirements, or by ledger if
    requirements change. It is public."""
    rejected: beam.PCollection[pa.RecordBatch]
    """Dead letters, with the columns of `io.REJECTED_SCHEMA`. They are not private and for the
    operator only. An event that several queries reject is here once."""
    state: beam.PCollection[tuple[int, bytes]]
    """For a bounded input, the next slot and the state from which a later run resumes. If there are
    several elements, use that with the largest slot. The state is secret, because it has a
    digest of the true counts."""
    revisions: beam.PCollection[Revision] | beam.PCollection[RevisedAnswer]
    """With `revise`, a smoothed estimate of each slot of each query, which is safe to publish.
    Rollups have none."""
    done: beam.PCollection[int] | None
    """For a bounded input, one element with the number of results, once all are released; None for
    an unbounded input. If a step fails, the element never comes, even if the runner continues."""
    booked: beam.PCollection[int] | None
    """Like `done`, the number of entries of the ledger. Rollups have none."""
    revised: beam.PCollection[int] | None
    """Like `done`, the number of revisions."""


class QueryOutputs(_Outputs):
    """The outputs of :class:`PrivateQueries`, which are PCollections.

    The property `rows` has the results as Beam rows.
    """

    _of_counts: tuple[Sequence[str], str] | tuple[()] = ()

    def of_counts(self, labels: Sequence[str], query: str = COUNT) -> QueryOutputs:
        """Set the key names that the property `rows` uses, and return this object.

        Call this method only for a single count. The argument `query` is the name of the count in
        the rows.
        """
        self._of_counts = labels, query
        return self

    @cached_property
    def rows(self) -> beam.PCollection[beam.Row]:
        """A PCollection with a row for each slot, key and statistic. See `io.RESULT_SCHEMA`.

        The step of the pipeline that makes these rows is added when you first use this property.
        """
        return rows_of(self.results, *self._of_counts)


def _for_workers(plan: Any) -> Any:
    """A copy of a plan without the state that it goes on from, and without its heartbeat.

    The heartbeat may hold parts of a pipeline.
    """
    made = copy(plan)
    made.resume, made.heartbeat, made._kept = None, None, []
    return made


class _ReleasePlan(StreamOptions):
    """A plan as a transform: it comes before the plan among the bases of a class."""

    def expand(
        self,
        inputs: beam.PCollection[Any] | tuple[beam.PCollection[Any], beam.PCollection[Any]],
    ) -> QueryOutputs:
        """Build the pipeline: events -> batches -> codes -> counts -> results."""
        plan: Any = self
        events, changes = inputs if isinstance(inputs, tuple) else (inputs, None)
        batches = as_batches(events, plan.columns.names, plan.event_mapper)
        bounded = batches.is_bounded and (changes is None or changes.is_bounded)
        given = changes is not None
        steps = plan.steps(
            bounded=bounded,
            changes=given,
            lateness=int(self.allowed_lateness),
            on_workers=_for_workers(plan),
        )
        if steps.in_slices:
            batches = batches | "SliceBatches" >> beam.FlatMap(slices_of)
            batches.element_type = pa.RecordBatch
        keys = None
        if steps.key_choice is not None:
            keys = batches | "DiscoverKeys" >> DiscoverKeys(steps.key_choice, LossLimit.of(plan))
        counted = self._count(batches, self._changes(changes, batches, steps), steps, keys)
        ticks = counted.ticks
        counts = counted.counts
        releasing: beam.DoFn
        if bounded:
            word = refuse_loss(counted.tallies, LossLimit.of(plan), steps.stream)
            counts = (counts, *ticks, word) | "AddTicks" >> beam.Flatten()
            counts |= "GatherCounts" >> beam.GroupByKey()
            at_end = steps.key_choice and steps.key_choice.release
            releasing = AtEnd(at_end or partial(release_at_end, steps.config))
        else:
            counts = settled(counts, [steps.stream], self.settle)
            counts = (counts, *ticks) | "AddTicks" >> beam.Flatten()
            releasing = InTime(ReleaseInTime(steps.config))
        side = () if keys is None else (beam.pvalue.AsSingleton(keys),)
        released = counts | "ReleaseSlots" >> beam.ParDo(releasing, *side).with_outputs(
            LEDGER, STATE, REVISIONS, DONE, BOOKED, REVISED, main="results"
        )
        for tag, kind in zip(("results", LEDGER, REVISIONS), plan.RECORDS, strict=True):
            released[tag].element_type = kind
        released[STATE].element_type = tuple[int, bytes]
        numbers = DONE, BOOKED, REVISED
        for tag in numbers:
            released[tag].element_type = int
        rejected = counted.rejected | "AllRejected" >> beam.Flatten()
        return QueryOutputs(
            *(released["results"], released[LEDGER], rejected, released[STATE]),
            released[REVISIONS],
            *(released[tag] if bounded else None for tag in numbers),
        )

    def _changes(
        self, given: beam.PCollection[Any] | None, batches: Any, steps: Steps
    ) -> beam.PCollection[pa.RecordBatch] | None:
        """Batches of changes of requirements, perhaps none; None where nothing may change."""
        if given is None and steps.takes_changes:
            nothing = batches.pipeline | "NoChanges" >> beam.Create([], reshuffle=False)
            nothing.element_type = pa.RecordBatch
            given = nothing
        if given is None:
            return None
        plan: Any = self
        return as_batches(
            given,
            CHANGE_COLUMNS,
            plan.change_mapper,
            what="changes",
            optional=("slot", "time"),
        )

    def _count(
        self,
        batches: beam.PCollection[pa.RecordBatch],
        changes: beam.PCollection[pa.RecordBatch] | None,
        steps: Steps,
        keys: beam.PCollection[bytes] | None = None,
    ) -> Counted:
        """Batches -> codes -> counts, through the shards where slots depend on those before."""
        limit, chosen = LossLimit.of(self), None  # type: ignore[arg-type]  # of the plan
        if steps.bounds_choice is not None:
            chosen = batches | "LookAtNumbers" >> ChooseBounds(steps.bounds_choice, limit)
        known = keys if chosen is None else chosen.bounds
        counted = count_events(batches, steps, self.heartbeat, known)
        choice = None
        if steps.limit_choice is not None:
            choice = ChooseLimits(steps.limit_choice, counted.tallies, limit)
        if chosen is not None:
            counted = counted._replace(
                ticks=(*counted.ticks, chosen.messages), tallies=(*counted.tallies, chosen.tallies)
            )
        if steps.shard_logic is None:
            return counted
        starts = None if steps.bounded else counted.ticks[0]
        shards = counted.counts | "CountShards" >> CountShards(
            steps.shard_logic, starts, steps.kept, choice, changes
        )
        return counted._replace(
            counts=shards.counts,
            rejected=(*counted.rejected, *shards.rejected),
            tallies=(*counted.tallies, *shards.tallies) if steps.bounded else (),
        )


@dataclass(eq=False)
class PrivateHistograms(_ReleasePlan, HistogramPlan, beam.PTransform):
    """Release a private histogram per slot, keeping every user's requirement.

    Input: a PCollection of events with at least the columns named in `columns`, bounded or not, in
    the global window: Arrow record batches (pyarrow.RecordBatch), rows with a schema (beam.Row or
    a NamedTuple) or dictionaries (see :mod:`streamveil.transforms.row_batches`); or a tuple of
    such events and changes of requirements, with the columns of `io.requirement_changes`. Output:
    :class:`QueryOutputs`.

    Guarantee: (w, E)-event personalised differential privacy. For every user with requirement
    (w, E), the joint distribution of all releases of any w consecutive slots changes by at most a
    factor exp(E) when all of that user's events in them are added or removed
    (`adjacency="add_remove"`) or any of them replaced by others (`"replace"`). This holds for one
    run: each run starts a ledger of its own, so runs over adjacent slots add up in the windows
    that span them, and runs over the same slots add up entirely. The registry, the domain, the
    slots and the range of slots are taken as public. Rejected events, counters and logs are raw
    and not covered. With `resume` the ledgers of an earlier run go on.

    If the registry is of one `Lifetime(epsilon)`, the guarantee is epsilon-differential privacy for
    all that a user ever contributes, in however many slots. With a `limit` for a life neighbours
    differ in all of it, the mechanism is one of `MECHANISMS`, and the users outside the table need
    not be numbered: 0. Without one it is one of `INFINITE_MECHANISMS`; releases then have `shares`,
    the released distribution, and say among their diagnostics how old it is and what is left of the
    budget.

    Where requirements change, from the slot on from which a change applies: for every slot t with
    the requirement (w_B, E_B, w_F, E_F) in force, the factor is exp(E_F) over the w_F slots from t
    on, whatever is asked for later, and exp(E_B) over the w_B slots up to t, unless earlier slots
    had spent more before it was asked for; then slot t reveals nothing about that user. Changes
    are taken as public. With a `limit`, what applies from a slot on is in force from the user's
    next block on, and looking back a longest window later: see `mechanisms/presence/changing.py`.

    Without `first_slot` and `last_slot` the range of a bounded input runs from the first to the
    last slot with an accepted event, which then counts as public too.

    The range of an unbounded input runs from `first_slot`, or else from the first slot that the
    heartbeat emits, to the last one that it emits. Every slot in it, busy or quiet, is released
    once, when the watermark of events and heartbeat has passed its end by `allowed_lateness`. That
    moment is the event time of the release. Events that come after it are rejected as late.

    Raises:
        ConfigurationError: at construction for options that do not fit; when applied, for fields
            of rows that are missing or of a wrong type; when the pipeline runs, for such columns
            of record batches. A bounded input fails before anything
            is released; in an unbounded one, slots that were released before the fault stay
            released.
        InputLost: when the pipeline runs, for a bounded input of which no event is counted, or more
            is lost than `max_rejected`.
        ValueError: when applied to a windowed or triggered input, which cannot be accounted for.
    """

    def expand(self, inputs: Any) -> QueryOutputs:
        """Build the pipeline; its rows have the names of the bins."""
        return super().expand(inputs).of_counts(self.domain.labels)


@dataclass(eq=False)
class PrivateAnswers(_ReleasePlan, QueryPlan, beam.PTransform):
    """Answer all queries of a query set from one pass over the events.

    Input: as of :class:`PrivateHistograms`, with the columns that :func:`columns_for` names.
    Output: :class:`QueryOutputs`.

    Guarantee: (w, E)-event personalised differential privacy of all answers together. For every
    user with requirement (w, E), the joint distribution of all answers to all queries whose slots
    meet any w consecutive base slots changes by at most a factor exp(E) when all of that user's
    events in these base slots are added or removed (`adjacency="add_remove"`) or any of them
    replaced by others (`"replace"`). What is public, what is raw and what a run is are as in
    :class:`PrivateHistograms`; the queries are public.

    With `first_slot` and `last_slot` events in these base slots count. Base slots run on to the end
    of all queries' slots that hold one of them: these, and the first ones, may be in part.
    Without them the range is that of the events. A longer time of a query (`times`) is answered
    with the slot that ends it, and at the end of the stream as far as it goes.

    With `revise` every slot of a query is answered once more, so many of its slots later, by what
    was learnt since: a function of releases alone, which costs no budget. At the end of the stream
    the slots that are left are revised with what there is.

    A slot of a query in an unbounded input is answered when the watermark has passed its end by
    `allowed_lateness`. An event may so come too late for one query and not for another.

    Raises:
        ConfigurationError: at construction for options that do not fit, with the name of the
            query; else as :class:`PrivateHistograms`.
        InputLost, ValueError: as there.
    """

    def steps(self, *, bounded: bool, **given: Any) -> Steps:
        """The steps from events to answers: see :meth:`QueryPlan.steps`.

        Keys of a bounded input are all discovered before it is counted, and those of an unbounded
        one are listed while it runs.

        Raises ConfigurationError for what cannot be combined with the discovery of keys.
        """
        if not self.discovers or given.get("changes"):  # which are refused
            return super().steps(bounded=bounded, **given)
        names = [one.name for one in fields(QueryPlan) if one.init]
        own = {name: getattr(self, name) for name in names}
        plan = QueryPlan(**{**own, "noise_key": self._key, "growing": not bounded})
        if bounded:
            return steps_of_discovered(plan)
        if self.shards > 1:
            query = discovering(self.query_set)[0].name
            raise ConfigurationError(f"query {query!r}: {OF_GROWING['shards']}")
        return steps_one_by_one(plan, lateness=given.get("lateness", 0))
