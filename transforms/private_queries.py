"""From events to private results: the one transform that a user puts between source and sink."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import apache_beam as beam

from streamveil.engine.encode.event_mapper import Columns
from streamveil.engine.stream.noise_keys import NoiseKey
from streamveil.engine.stream.query_plan import columns_for
from streamveil.mechanisms.core.arguments import refuse, registry_of
from streamveil.mechanisms.core.budget_text import requirement_of_budget
from streamveil.mechanisms.core.parameter_checks import MAX_REJECTED
from streamveil.mechanisms.core.records import (
    ADD_REMOVE,
    ConfigurationError,
    Slots,
    parse_time,
)
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.choice import Auto
from streamveil.mechanisms.queries.definitions import QueryDefinition
from streamveil.mechanisms.queries.discovered import discovering
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.reading import query_set
from streamveil.mechanisms.registry import DEFAULT, INFINITE_DEFAULT
from streamveil.transforms.release_plan import PrivateAnswers, PrivateHistograms, QueryOutputs


class PrivateQueries(beam.PTransform):
    """Release private statistics of every slot (time window), within each user's privacy budget.

    **Input.** A PCollection of events in the global window, bounded or unbounded. Events are Arrow
    record batches, rows with a schema, or dictionaries. If `changing` is true, the input may also
    be a tuple of two PCollections. The first contains the events, and the second contains changes
    of users' requirements, with the columns that docs/reference/requirement-changes.md lists.

    **Output.** :class:`QueryOutputs`, with the results, the ledger (the budget that each slot
    spent) and the dead letters (rejected events).

    **Guarantee.** All results together satisfy personalised w-event differential privacy. Take a
    user with budget epsilon over a window of w slots. If the user's events in any w consecutive
    slots are added or removed (or replaced, if `adjacency` is `replace`), then the joint
    distribution of all results of these slots changes by a factor of at most exp(epsilon). With a
    lifetime budget, the same bound holds for a change of all events of the user (user-level
    privacy). If requirements change, each `DynamicRequirement` sets budgets for two windows, and
    both budgets hold.

    **Limits of the guarantee.** The guarantee holds for one run together with the runs that resume
    from it. If you release results about the same users in separate runs, the privacy losses of
    these runs add up. The requirements and their changes, the queries and the range of slots are
    public, even if the range is taken from the events. Dead letters, counters and logs are not
    protected.

    **Time.** A slot of an unbounded input is released when the watermark reaches the end of the
    slot plus `allowed_lateness`. Events of this slot that arrive later are rejected as late.

    Args:
        *queries: the statistics to release, as definitions such as `sv.count(...)`, or a
            `QuerySet`.
        user: name of the column that contains the user ids.
        time: name of the column that contains the event times.
        slot: length of a slot, such as `1mo`, `1d`, `1h`, a timedelta or a `Slots` object. If you
            give a `QuerySet`, leave out this argument, because the set has its own slots. Days,
            weeks and months begin at midnight in UTC.
        requirements: the public requirements table, which gives each user's privacy budget. Give a
            `Registry`, a mapping user -> (window in slots, epsilon), or a table.
        budget: the same privacy budget for each user, instead of a requirements table. For example,
            `1/7d` is epsilon 1 over any 7 consecutive days.
        start: a time in the first slot to release, as ISO 8601 text or a datetime. Events in
            earlier slots are rejected. Slots are counted from 1970-01-01, and weeks begin on
            Mondays.
        end: the end of the release. Only slots that end at or before this time are released.
        time_zone: time zone of event times that have no UTC offset.
        time_unit: unit of event times that are numbers: `s`, `ms`, `us`, `ns`, or `excel` for
            serial dates.
        time_format: format of event times that are not in ISO 8601, written as strptime codes.
        adjacency: which change of the input the guarantee hides. With `add_remove` (the default),
            all of one user's events in a window are added or removed. With `replace`, any of these
            events are replaced by other events (replace-one adjacency).
        limit: participation limit, which reduces the noise if users have events in few slots. With
            a number such as 2, each window is divided into halves, and in each half a user
            contributes only to the first 2 slots in which this user has events. For other limits,
            give a `Limit` or `Auto` of `streamveil.mechanisms.presence`. For a single count, you
            may also give a list with a `Limit` for each requirement class. In a query set, the
            limit applies to each query separately, and counts the slots of that query.
        revise: number of slots after which a smoothed estimate (revision) of every slot is also
            released. If a query has longer slots than the base slot, the number counts the longer
            slots. With 0, there are no revisions. Revisions spend no extra budget. Rollups are not
            revised.
        changing: whether users' requirements may change, in this run or in a later run that resumes
            from this run.
        longest_window: the longest window, in slots, that users may have after a change of
            requirements.
        noise_key: the noise key, from which the noise is derived. Give 32 secret bytes, or a
            picklable function that returns these bytes. The function is called in this process and
            on every worker. If None, a fresh random key is used. With the same key, this transform,
            `sv.release` and `streamveil release` use the same noise.
        max_rejected: the largest fraction of the events in a bounded input that may be rejected.
        may_be_empty: whether a bounded input may be empty. If false, an empty input is an error.
        shards: number of groups into which users are divided, so that several workers can share the
            counting of a slot with many events.
        resume: the saved state of an earlier run, from which this run resumes. `start` must be the
            beginning of the slot after the last slot of that run, and `noise_key` the key of that
            run.
        final: whether the stream ends with the last slot of this run. If true, the run also
            releases unfinished rollups and the revisions of the last slots. If false, a later run
            may continue the stream.
        test_mode: if true, release exact results with the status `test`, for testing a pipeline.
            The results are NOT private, and the run saves no state.
        delta: the probability with which the discovery of keys may fail to protect a user, over any
            window, for example `1e-9`. You must give it if a query has `keys="discover"`. A user
            may have another one, in the requirements. The keys of a bounded input are discovered
            before its events are counted. In an unbounded input, one worker counts all events of a
            slot.
        allowed_lateness: how long a slot of an unbounded input stays open for late events after the
            slot has ended, in microseconds or as text such as `10m`.
        heartbeat: a transform that emits the number of each slot when the slot begins, such as
            :class:`streamveil.transforms.Heartbeat`. These numbers open the slots of an unbounded
            input, so that slots without events are also released.
        settle: for runners that restart from checkpoints, such as Flink, the interval between
            checkpoints, in microseconds or as text such as `10s`. See docs/reference/runners.md.

    Raises:
        ConfigurationError: when you make the transform, if an argument is not valid; when the
            pipeline is built or runs, if a column is missing or has a wrong type.
        InputLost: when the pipeline runs, if too many events of a bounded input are rejected or
            lost.
        ValueError: when you apply the transform to a PCollection that has windows or triggers.

    Example:
        >>> transform = PrivateQueries(
        ...     sv.count("visits", by="place", keys=["cafe", "park"]),
        ...     user="user", time="time", slot="1h", budget="1/7d",
        ... )
        >>> transform.plan.domain.labels
        ('cafe', 'park')
    """

    def __init__(
        self,
        *queries: QueryDefinition | Iterable[QueryDefinition] | QuerySet,
        user: str,
        time: str,
        slot: str | dt.timedelta | Slots | None = None,
        requirements: Any = None,
        budget: str | None = None,
        start: str | dt.datetime | None = None,
        end: str | dt.datetime | None = None,
        time_zone: str = "UTC",
        time_unit: str | None = None,
        time_format: str | None = None,
        adjacency: str = ADD_REMOVE,
        limit: int | Limit | Auto | list[Limit] | None = None,
        revise: int = 0,
        changing: bool = False,
        longest_window: int | None = None,
        noise_key: NoiseKey | None = None,
        max_rejected: float = MAX_REJECTED,
        may_be_empty: bool = False,
        shards: int = 1,
        resume: bytes | None = None,
        final: bool = True,
        test_mode: bool = False,
        delta: float | None = None,
        allowed_lateness: int | str = 0,
        heartbeat: beam.PTransform | None = None,
        settle: int | str | beam.PTransform | None = None,
    ) -> None:
        """Check all of it, and plan the release."""
        super().__init__()
        self._set, count = _set_of(queries, slot)
        base = self._set.base
        first, end_of_range = _time("start", start), _time("end", end)
        reading: dict[str, Any] = {
            "time_zone": time_zone,
            "time_unit": time_unit,
            "time_format": time_format,
        }
        common: dict[str, Any] = {
            "registry": _requirements(requirements, budget, base),
            "adjacency": adjacency,
            "noise_key": noise_key,
            "first_slot": None if first is None else base.index(first),
            "last_slot": None if end_of_range is None else base.index(end_of_range - 1),
            "max_rejected": max_rejected,
            "may_be_empty": may_be_empty,
            "shards": shards,
            "resume": resume,
            "ends": final,
            "limit": Limit(limit) if isinstance(limit, int) else limit,
            "test_mode": test_mode,
            "allowed_lateness": allowed_lateness,
            "heartbeat": heartbeat,
            "settle": settle,
            "revise": revise,
            "changing": changing,
            "longest_window": longest_window,
        }
        if longest_window is not None and not changing:
            raise ConfigurationError(
                f"longest_window={longest_window} applies to changing requirements only: add "
                "changing=True, or leave it out"
            )
        # Only a stream resumes. Otherwise, the input says whether keys are listed later.
        in_stream = bool(discovering(self._set)) and (resume is not None or not final)
        found: dict[str, Any] = {"delta": delta, "growing": in_stream}
        self._count = count
        self.plan: PrivateHistograms | PrivateAnswers
        if count is not None and delta is None:
            forever = common["registry"].classes.forever and limit is None
            by_default = forever and count.mechanism == DEFAULT
            self.plan = PrivateHistograms(
                domain=count.domain,
                slots=base,
                columns=Columns(user, count.value, time, **reading),
                mechanism=INFINITE_DEFAULT if by_default else count.mechanism,
                max_contributions=count.max_contributions,
                keep=count.keep,
                **common,
            )
            return
        self.plan = PrivateAnswers(
            self._set, columns=columns_for(self._set, user, time, **reading), **common, **found
        )

    def expand(self, inputs: Any) -> QueryOutputs:
        """Build the Beam steps that encode the events, count them and release the results."""
        made: QueryOutputs = inputs | self.plan
        if self._count is None:
            return made
        return made.of_counts(self._count.domain.labels, self._count.name)


def _set_of(queries: Sequence[Any], slot: Any) -> tuple[QuerySet, Query | None]:
    """The query set of what is given; and of definitions the count by key, if it is one alone."""
    if len(queries) == 1 and isinstance(queries[0], QuerySet):
        if slot is not None:
            raise ConfigurationError("slot is that of the QuerySet: leave it out")
        return queries[0], None
    if len(queries) == 1 and isinstance(queries[0], (list, tuple)):
        queries = queries[0]
    for query in queries:
        if isinstance(query, (str, Mapping)):
            raise ConfigurationError(
                f"a query is {query!r}: give definitions such as sv.count('visits'), or what "
                "streamveil.io.read_queries makes of a file"
            )
    if slot is None:
        raise ConfigurationError("slot is missing: give the length of a slot, such as slot='1h'")
    made = query_set(slot, queries, _no_file)
    return made, made.single_count


def _no_file(keys: str, column: str | None) -> NoReturn:
    raise ConfigurationError(
        f"keys are {keys!r}, the name of a file, which is not read here: list them, or give what "
        f"streamveil.io.read_domain({keys!r}) reads"
    )


def _time(name: str, value: Any) -> int | None:
    """Microseconds of a time; None if there is none. Raises ConfigurationError."""
    if value is None:
        return None
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        value = value.isoformat()
    if not isinstance(value, (str, dt.datetime)):
        refuse(name, value, "write ISO 8601, such as 2024-05-01, or give a datetime")
    return parse_time(value)


def _requirements(requirements: Any, budget: str | None, slots: Slots) -> Registry:
    if budget is None and requirements is None:
        raise ConfigurationError(
            "requirements are missing: give them, or the same budget for everyone, such as "
            "budget='1/7d'"
        )
    if budget is None:
        return registry_of(requirements, "requirements")
    if requirements is not None:
        raise ConfigurationError(
            f"budget={budget} is the requirement of every user: leave out either requirements or "
            "budget"
        )
    return Registry.of(default=(requirement_of_budget(budget, slots), None))
