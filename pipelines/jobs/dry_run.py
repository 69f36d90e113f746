"""`--dry_run`: what a run would read, count and write, from a sample; nothing is released or spent.

What it shows is raw: it is for the operator, who may see the events, never for publication.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from streamveil.engine.count.loss_limit import LossLimit
from streamveil.engine.encode.dead_letters import column_of, losses_of
from streamveil.engine.encode.event_mapper import Columns, EventMapper
from streamveil.engine.encode.times import to_micros
from streamveil.engine.plan_kinds import PlanKind
from streamveil.engine.stream.release_slots import refuse_gap
from streamveil.io import CsvDialect, is_endless, read_events
from streamveil.io.events import file_outputs
from streamveil.mechanisms.core.event_tallies import EventTally
from streamveil.mechanisms.core.local_days import time_text
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import (
    ConfigurationError,
    InputLost,
    Lifetime,
    Slots,
    format_time,
)
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.presence.limits import LOOK
from streamveil.pipelines.console.errors import in_one_line
from streamveil.pipelines.console.logs import tell
from streamveil.pipelines.jobs.expected_errors import count_error, query_error

if TYPE_CHECKING:
    from streamveil.engine.encode.event_mapper import Events
    from streamveil.engine.encode.query_mapper import QueryEvents
    from streamveil.engine.plans import UserPlan
    from streamveil.engine.stream.histogram_plan import HistogramPlan
    from streamveil.engine.stream.local_plan import LocalPlan
    from streamveil.engine.stream.query_plan import QueryPlan
    from streamveil.mechanisms.queries.queries import Query
    from streamveil.pipelines.jobs.job import Job

SAMPLE = 10_000
_SHOWN = 3
_EXPECTED = " (expected)"
_CLASSES_SHOWN = 10
RAW = "dry run: nothing is released or spent; what follows is not private, so never publish it"


@dataclass(frozen=True)
class _Sample:
    """The first records of an input."""

    batches: list[pa.RecordBatch]
    unparsed: EventTally
    """Dead letters of the reader."""
    whole: bool
    """Whether there are no more."""

    @property
    def records(self) -> int:
        """How many there are."""
        return sum(batch.num_rows for batch in self.batches) + self.unparsed.read

    def refusal(
        self,
        plan: UserPlan,
        mapped: EventTally,
        slots: Sequence[int],
        state: str | None,
    ) -> ConfigurationError | None:
        """Why a run would be refused, as far as the sample shows it; None if it would not.

        Args:
            plan: of the releases.
            mapped: what became of the records that could be read.
            slots: those with events that count, in order.
            state: the folder that a run would go on from; a pass of it may find no more events.
        """
        tally = EventTally.total([self.unparsed, mapped])
        first, last = plan.first_slot, plan.last_slot
        limit = LossLimit.of(plan)
        most = limit.max_rejected if state is None else 1.0
        lost = tally.read > 0 and (
            tally.all_lost == tally.read or tally.all_lost > most * tally.read
        )
        try:
            if lost or (self.whole and state is None):
                if state is not None and last is None:
                    limit = replace(limit, last_slot=first)
                limit.check(tally.to_bytes(), "")
            if self.whole and state is None and (first is None or last is None):
                ends = [one for one in (first, *slots, last) if one is not None]
                for before, after in itertools.pairwise(ends):
                    refuse_gap(plan.slots, before + 1, after)
        except InputLost as error:
            if self.whole:
                return error
            return InputLost(
                f"if the other records are like the sample, which is the first {self.records:,}, "
                f"a run would end like this: {error}"
            )
        except ConfigurationError as error:
            return error
        return None


def preview(job: Job[Any], state: str | None = None) -> None:
    """Tell what a run that protects users would do.

    Args:
        job: the run.
        state: the folder that it would go on from, which the caller checks.

    Raises:
        ConfigurationError: for an input that cannot be read, and where a run would be refused.
    """
    place, plan = job.input, job.plan
    trial = _QueryTrial(plan) if plan.plan_kind is PlanKind.QUERIES else _HistogramTrial(plan)
    if state is None and plan.plan_kind is not PlanKind.LOCAL:
        # Refuses what cannot be done with such an input; a pass over a state has a range.
        plan.steps(bounded=not is_endless(place), changes=job.requirement_changes is not None)
    lines, refusal, whole = [RAW], None, False
    if is_endless(place):
        lines.append(f"sample:   {place} is unbounded: it is not read in a dry run")
    else:
        sample = _read(place, plan.columns.names, job.dialect)
        whole = sample.whole
        for batch in sample.batches:
            trial.add(batch)
        lines += [
            *_columns(sample),
            *_first_and_last([_times(batch, plan.columns) for batch in sample.batches]),
            *trial.of_events(),
            _rejected(sample, trial.tally),
            *trial.of_bound(),
        ]
        refusal = sample.refusal(plan, trial.tally, sorted(trial.slots), state)
    lines += [
        *_range(
            plan.slots,
            plan.first_slot,
            plan.last_slot,
            endless=is_endless(place) or state is not None,
        ),
        *_classes(
            plan.registry if plan.plan_kind is PlanKind.LOCAL else plan.known, trial.limits()
        ),
        *trial.of_plan(whole),
        *(f"would write {what}" for what in job.places),
    ]
    if state is None:
        lines += job.card.plan
    else:
        lines.append(
            f"state:    a run resumes from where {state} stands, and adds the number of the pass "
            "to names of files; the card is written anew with every pass"
        )
    if is_endless(place):
        lines.append(
            f"ledger:   none: it is a file, written when the input has ended, and {place} does not "
            "end; what is released says what it cost"
        )
    _tell(lines, refusal)


def _tell(lines: Sequence[str], refusal: ConfigurationError | None = None) -> None:
    """Tell what was found, and raise what a run would."""
    tell("\n".join(map(in_one_line, lines)))
    if refusal is not None:
        raise refusal


def _slots_and_users(events: Events) -> np.ndarray:
    """The slot and the user of each event, who is a number or a digest, shape (3, n)."""
    users = np.stack([events.members, np.full_like(events.members, -1)])
    users[:, events.members < 0] = events.strangers.view(np.int64).T
    return np.vstack([events.slots, users])


def _of_bound(query: str, keys: Sequence[np.ndarray], most: int, name: str) -> list[str]:
    """How many events contribution bounding drops, where there are any.

    Args:
        query: what the line begins with.
        keys: of the events, as :func:`_slots_and_users` returns them.
        most: how many events of a user are kept in a slot.
        name: how `most` is called.
    """
    accepted = sum(key.shape[1] for key in keys)
    if not accepted:
        return []
    _, each = np.unique(np.concatenate(keys, axis=1), axis=1, return_counts=True)
    beyond = int(np.maximum(each - most, 0).sum())
    return [
        f"bound:    {query}{beyond:,} of {number_of(accepted, 'event')} would be dropped by "
        f"contribution bounding ({most:,} per user and slot, {name})"
    ]


class _HistogramTrial:
    """What becomes of a sample in histograms."""

    def __init__(self, plan: HistogramPlan | LocalPlan) -> None:
        self._plan, self._mapper = plan, plan.event_mapper()
        self.tally = EventTally()
        """What became of the records that could be read."""
        self.slots: set[int] = set()
        """Those with events that count."""
        self._shown: list[str] = []
        self._keys: list[np.ndarray] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Map a batch of the sample."""
        events, letters = self._mapper.map(batch)
        mapped = EventTally(batch.num_rows, losses_of(letters))
        self.tally = EventTally.total([self.tally, mapped])
        self.slots.update(np.unique(events.slots).tolist())
        self._keys.append(_slots_and_users(events))
        if len(self._shown) < _SHOWN:
            missing = _SHOWN - len(self._shown)
            self._shown += itertools.islice(_examples(self._mapper, batch), missing)

    def of_events(self) -> list[str]:
        """Some events, as they count."""
        return self._shown

    def of_bound(self) -> list[str]:
        """How many are dropped by contribution bounding."""
        most = getattr(self._plan, "max_contributions", 1)
        return _of_bound("", self._keys, most, opt.max_contributions)

    def limits(self) -> list[str]:
        """Limits of each class."""
        return _limits(self._plan)

    def of_plan(self, whole: bool) -> list[str]:
        """Bins and error.

        Args:
            whole: whether the sample has all events, so that it shows how many there are in a slot.
        """
        domain, plan = self._plan.domain, self._plan
        events = sum(key.shape[1] for key in self._keys)
        rate = events / len(self.slots) if whole and events else None
        return [
            f"bins:     {domain.bins:,}, the first: {', '.join(domain.labels[:_SHOWN])}",
            f"error:    {count_error(plan, rate)}; streamveil evaluate tells more",
        ]


class _QueryTrial:
    """The same of a query set."""

    def __init__(self, plan: QueryPlan) -> None:
        self._plan, self._mapper = plan, plan.trial_mapper()
        self._query_set = plan.query_set
        self.tally = EventTally()
        self.slots: set[int] = set()
        self._read = Counter[str]()
        self._slots_of = defaultdict[str, set[int]](set)
        self._shown: list[str] = []
        self._keys = defaultdict[str, list[np.ndarray]](list)

    def add(self, batch: pa.RecordBatch) -> None:
        """Map a batch of the sample."""
        events, letters = self._mapper.map(batch)
        events_of = dict(zip(self._query_set, events, strict=True))
        mapped = EventTally(
            batch.num_rows,
            losses_of(letters),
            read_by={query.name: len(some.slots) for query, some in events_of.items()},
            unread_by={query.name: some.unread for query, some in events_of.items()},
        )
        self.tally = EventTally.total([self.tally, mapped])
        for query, some in events_of.items():
            self._read[query.name] += len(some.slots)
            self._keys[query.name].append(_slots_and_users(some))
            own = np.unique(some.slots)
            self._slots_of[query.name].update(own.tolist())
            self.slots.update((query.cut.firsts(own + 1) - 1).tolist())
        if len(self._shown) < _SHOWN:
            missing = _SHOWN - len(self._shown)
            self._shown += itertools.islice(self._examples(batch), missing)

    def _examples(self, batch: pa.RecordBatch) -> Iterator[str]:
        """Events that count, one by one, with the queries in which they do."""
        for row in range(min(batch.num_rows, 100)):
            one = batch.slice(row, 1)
            by_query, _ = self._mapper.map(one)
            counted = [
                self._place(query, events)
                for query, events in zip(self._query_set, by_query, strict=True)
                if len(events.slots)
            ]
            if counted:
                record = _record(one, self._plan.columns)
                yield f"event:    {record} counts in {'; '.join(counted)}"

    def _place(self, query: Query, events: QueryEvents) -> str:
        """The query, slot and bin in which a single event counts."""
        slots = self._query_set.slots_of(query)
        start = time_text(slots.start(int(events.slots[0])), slots)
        fine = int(events.bins[0])
        label = query.domain.labels[fine // len(query.statistic.weights)]
        return f"query {query.name}, slot {events.slots[0]} ({start}), bin {label}"

    def of_events(self) -> list[str]:
        """Some events, as they count."""
        return self._shown

    def of_bound(self) -> list[str]:
        """How many are dropped in each query; further events of a user may not matter to it."""
        return [
            line
            for query in self._query_set
            if not query.statistic.once
            for line in _of_bound(
                f"query {query.name}: ",
                self._keys[query.name],
                query.max_contributions,
                "max_contributions",
            )
        ]

    def limits(self) -> list[str]:
        """None are shown: those of each query differ."""
        return []

    def of_plan(self, whole: bool) -> list[str]:
        """Each query, with its error; see :meth:`_HistogramTrial.of_plan`."""
        lines = []
        for number, query in enumerate(self._query_set):
            events = self._read[query.name]
            slots = len(self._slots_of[query.name]) * query.cut.mean
            rate = events / slots if whole and events else None
            lines += [
                f"query: {query.name}: {query.statistic.name} of "
                f"{self._query_set.slots_of(query).text} in "
                f"{number_of(query.domain.bins, 'bin')} by {query.mechanism}, of "
                f"{number_of(events, 'event')} of the sample",
                f"error: {query.name}: {query_error(self._plan, number, rate)}",
            ]
        return lines


def preview_per_record(
    place: str,
    columns: Sequence[str],
    plan: Any,
    output: str,
    dialect: CsvDialect | None = None,
    card: Sequence[str] = (),
) -> None:
    """The same of a statistic that protects each record; bad records are not mentioned here either.

    Raises ConfigurationError.
    """
    lines = [RAW]
    if is_endless(place):
        lines.append(f"sample:   {place} is unbounded: it is not read in a dry run")
    else:
        sample = _read(place, columns, dialect, silent=True)
        lines += _columns(sample)
        if plan.time:
            how = Columns(  # of which the times alone are read
                plan.time,
                (plan.time,),
                plan.time,
                plan.time_zone,
                plan.time_unit,
                plan.time_format,
            )
            lines += _first_and_last([_times(batch, how) for batch in sample.batches])
    if plan.slots is not None:
        lines += _range(plan.slots, plan.first_slot, plan.last_slot, endless=is_endless(place))
    if plan.keys:
        lines.append(f"keys:     {len(plan.keys):,}")
    plan.plan().statistic()  # refuses what does not fit
    lines.append("error:    depends on the budgets of the records; a run tells it as stderr")
    _tell([*lines, f"would write rows to {output}", *card])


def _read(
    place: str, columns: Sequence[str], dialect: CsvDialect | None, silent: bool = False
) -> _Sample:
    batches: list[pa.RecordBatch] = []
    unparsed, rows = EventTally(), 0
    found = _silently if silent else read_events
    for batch, letters in found(place, columns, dialect=dialect):
        if rows + unparsed.read >= SAMPLE and (batch.num_rows or letters is not None):
            return _Sample(batches, unparsed, whole=False)
        if letters is not None:
            more = EventTally(letters.num_rows, losses_of(letters))
            unparsed = EventTally.total([unparsed, more])
        if batch.num_rows:
            batches.append(batch.slice(0, SAMPLE - rows))
            rows += batch.num_rows
        if rows > SAMPLE:
            return _Sample(batches, unparsed, whole=False)
    return _Sample(batches, unparsed, whole=True)


def _silently(
    place: str, columns: Sequence[str], dialect: CsvDialect | None
) -> Iterator[tuple[pa.RecordBatch, None]]:
    for output in file_outputs(place, columns, silent=True, dialect=dialect):
        yield output.value, None


def _columns(sample: _Sample) -> list[str]:
    """How many there are, and the columns with their types and first values."""
    lines = [f"sample:   the first {number_of(sample.records, 'record')}"]
    if not sample.batches:
        return lines
    first = sample.batches[0]
    for field in first.schema:
        if not field.name.startswith("__"):
            values = _values(first.column(field.name).slice(0, _SHOWN))
            lines.append(f"column:   {field.name} ({field.type}): {', '.join(map(str, values))}")
    return lines


def _values(cells: pa.Array) -> list[Any]:
    """Cells as Python has them; of times beyond Python's, all as text."""
    try:
        values: list[Any] = cells.to_pylist()
    except (OverflowError, ValueError):
        values = cells.cast(pa.string()).to_pylist()
    return values


def _rejected(sample: _Sample, mapped: EventTally) -> str:
    reasons = EventTally.total([sample.unparsed, mapped]).rejected
    listed = ", ".join(f"{reason} {n:,}" for reason, n in reasons.items())
    return f"rejected: {sum(reasons.values()):,} of the sample{f': {listed}' if listed else ''}"


def _examples(mapper: EventMapper, batch: pa.RecordBatch) -> Iterator[str]:
    """Events that count, one by one."""
    columns, labels = mapper.columns, mapper.domain.labels
    for row in range(min(batch.num_rows, 100)):
        one = batch.slice(row, 1)
        events, _ = mapper.map(one)
        if len(events.slots):
            record = _record(one, columns)
            start = time_text(mapper.slots.start(int(events.slots[0])), mapper.slots)
            label = labels[int(events.bins[0])]
            yield f"event:    {record} counts in slot {events.slots[0]} ({start}), bin {label}"


def _record(batch: pa.RecordBatch, columns: Columns) -> str:
    """The columns of the only row of a batch that are read."""
    return ", ".join(str(batch.column(name)[0].as_py()) for name in columns.names)


def _times(batch: pa.RecordBatch, columns: Columns) -> np.ndarray:
    """The times that can be read."""
    micros, bad = to_micros(
        column_of(batch, columns.time),
        zone=columns.time_zone,
        unit=columns.time_unit,
        form=columns.time_format,
        name=columns.time,
    )
    return np.delete(micros, list(bad))


def _first_and_last(times: Sequence[np.ndarray]) -> list[str]:
    found = np.concatenate([np.zeros(0, np.int64), *times])
    if not len(found):
        return ["times:    none of the sample can be read"]
    return [f"times:    {format_time(int(found.min()))} to {format_time(int(found.max()))}"]


def _range(slots: Slots, first: int | None, last: int | None, endless: bool) -> list[str]:
    if last is None and endless:
        start = "where the stream stands" if first is None else time_text(slots.start(first), slots)
        return [f"slots:    from {start} on, as the time of each is over"]
    if first is None or last is None:
        return [
            f"slots:    from the events, so their range is public: give {opt.start} and {opt.end}"
        ]
    number = number_of(last - first + 1, "slot")
    return [
        f"slots:    {number}, from {time_text(slots.start(first), slots)} to "
        f"{time_text(slots.end(last), slots)}"
    ]


def _limits(plan: HistogramPlan | LocalPlan) -> list[str]:
    """Of each class, in how many slots its users count and what one costs, if there are limits."""
    if plan.plan_kind is PlanKind.LOCAL or plan.limits is None:
        return []
    parts = []
    for one, limit in zip(plan.known.classes, plan.limits, strict=True):
        if limit.chosen:
            parts.append(f", at whom a run looks, for 1/{LOOK} of the budget, to choose a limit")
        elif isinstance(one, Lifetime):
            price = limit.priced(one, plan.adjacency).epsilon
            lives = number_of(limit.slots(one, plan.adjacency), "slot")
            parts.append(f", who count in the first {lives} of their lives: one costs {price:.3g}")
        elif not limit.applies(one, plan.adjacency):
            parts.append(", who count in every slot")
        else:
            length, most, _ = limit.rule(one, plan.adjacency)
            slots = limit.slots(one, plan.adjacency)
            price = limit.priced(one, plan.adjacency).epsilon
            parts.append(
                f", who count in the first {most:,} of {length:,} slots: one costs {price:.3g}, "
                f"for {slots:,} can differ, {price * one.window / one.epsilon:.1f} times what it "
                "would without a limit"
            )
    return parts


def _classes(registry: Registry, limits: Sequence[str] = ()) -> list[str]:
    lines = []
    pairs = list(zip(registry.classes, registry.sizes.tolist(), strict=True))
    for k, (requirement, users) in enumerate(pairs[:_CLASSES_SHOWN]):
        if isinstance(requirement, Lifetime):
            limited = limits[k] if limits else ""
            lines.append(f"class:    epsilon {requirement.epsilon:g} forever: all users{limited}")
        else:
            window = number_of(requirement.window, "slot")
            lines.append(
                f"class:    epsilon {requirement.epsilon:g} over {window}: "
                f"{number_of(users, 'user')}{_EXPECTED if k == registry.guessed else ''}"
                f"{limits[k] if limits else ''}"
            )
    if len(pairs) > _CLASSES_SHOWN:
        lines.append(f"class:    and {len(pairs) - _CLASSES_SHOWN:,} more")
    return lines
