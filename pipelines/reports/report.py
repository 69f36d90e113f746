"""What a query set released, ready to be drawn: figures by slot, and budgets by base slot.

A single count is a query set of one. For demonstrations on public data, figures can have the TRUE
values beside those released. Never make such a report of data that must stay private.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.io.tidy import quoted_label
from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.core.budgets import Requirements, to_epsilon
from streamveil.mechanisms.core.records import (
    ADD_REMOVE,
    ConfigurationError,
    Lifetime,
    Requirement,
    Slots,
)
from streamveil.mechanisms.queries.bounds import set_aside
from streamveil.mechanisms.queries.discovered import discovered_keys
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.windows import sensitivity_of
from streamveil.pipelines.reports.accuracy import Accuracy
from streamveil.pipelines.reports.labels import Wording, plain_wording

if TYPE_CHECKING:
    from streamveil.engine.stream.query_plan import QueryPlan


@dataclass(frozen=True, eq=False)
class QueryFigures:
    """The results of a query: arrays of shape (slots, bins, figures), NaN where nothing is known.

    Raises ConfigurationError for arrays of other shapes.
    """

    query: Query
    slots: Slots
    """How time is cut for it."""
    edges: npt.NDArray[np.datetime64]
    """Start of every slot and the end of the last one, shape (slots + 1,).

    Slots of whole days start at the nearest midnight in UTC: the dates on the page are then those
    of the time zone that the origin of the slots was chosen for.
    """
    values: Floats
    low: Floats
    """Lower ends of the intervals of 90 %."""
    high: Floats
    """Upper ends."""
    stderr: Floats
    statuses: Sequence[str]
    """Of the slots."""
    true: Floats | None = None
    """The true figures, of all events: for demonstrations on public data only."""
    kept: Floats | None = None
    """The same of the events that contribution bounding keeps."""
    revised: Floats | None = None
    """Values as they were revised; NaN of slots that are not, yet."""
    lag: int = 0
    """How many slots later they were revised."""
    believed: float = 1.0
    """Fraction of its estimates that the mechanism released, on average; 1 if it does not say."""
    alarms: int = 0
    """Slots in which the mechanism found that the counts had changed."""

    def __post_init__(self) -> None:
        """Check the shapes."""
        for name in ("true", "kept", "revised"):
            given = getattr(self, name)
            if given is not None and given.shape != self.values.shape:
                raise ConfigurationError(
                    f"{name} figures of query {self.query.name!r} have shape {given.shape}, and "
                    f"those released {self.values.shape}"
                )

    @classmethod
    def of(
        cls,
        query: Query,
        slots: Slots,
        table: pa.Table,
        revisions: pa.Table | None = None,
        lag: int = 0,
    ) -> QueryFigures:
        """Of a tidy table of the query: its rows of this length, in order of slots.

        Args:
            query: which one.
            slots: of that length.
            table: its results.
            revisions: tidy, of this query and perhaps others; None where nothing is revised.
            lag: how many slots later.
        """
        if "length" in table.column_names:
            table = table.filter(pc.equal(table["length"], slots.text))
        table = _with_all_keys(query, table)
        shape = (-1, len(query.tree.labels(query.domain)), len(query.statistic.outputs))
        step = shape[1] * shape[2]
        starts, ends = (
            table[name].to_numpy()[::step].astype("datetime64[us]") for name in ("start", "end")
        )
        edges = _day_edges(np.append(starts, ends[-1:]), slots)
        values, low, high, stderr = (
            table[name].to_numpy().astype(np.float64).reshape(shape)
            for name in ("value", "low", "high", "stderr")
        )
        statuses = table["status"].to_pylist()[::step]
        revised = None
        if revisions is not None and revisions.num_rows:
            own = revisions.filter(pc.equal(revisions["query"], query.name))
            revised = _by_slot(table["slot"].to_pylist()[::step], own, values.shape)
        return cls(
            *(query, slots, edges, values, low, high, stderr, statuses), revised=revised, lag=lag
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """Of the bins, then of the groups above them."""
        return self.query.tree.labels(self.query.domain)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the figures, such as p50 and p90."""
        return self.query.statistic.outputs

    @property
    def are_counts(self) -> bool:
        """Whether events or users are counted."""
        return self.query.statistic.column is None

    @property
    def from_zero(self) -> bool:
        """Whether charts of it begin at 0: counts, and how far numbers spread."""
        return self.are_counts or self.query.statistic.name in ("sum", "variance", "stddev")

    @cached_property
    def best(self) -> list[int]:
        """Bins, the largest counts first; of other figures those with the narrowest intervals."""
        if not len(self.values):
            return list(range(self.values.shape[1]))
        with np.errstate(invalid="ignore"):
            if self.are_counts:
                key = -np.nansum(self.values[..., 0], axis=0)
            else:
                key = np.nan_to_num(self.high - self.low, nan=np.inf)[..., 0].mean(axis=0)
        return [int(j) for j in np.argsort(key, kind="stable")]

    @property
    def covered(self) -> float:
        """Share of all intervals that hold what is true; NaN where it is not known."""
        if self.true is None:
            return math.nan
        known = np.isfinite(self.low) & np.isfinite(self.high) & np.isfinite(self.true)
        held = (self.low <= self.true) & (self.true <= self.high)
        return float(held[known].mean()) if known.any() else math.nan

    @property
    def error(self) -> Floats:
        """Median distance from what is true, by figure; NaN where it is not known."""
        if self.true is None:
            return np.full(len(self.outputs), np.nan)
        away = np.abs(self.values - self.true).reshape(-1, len(self.outputs))
        return np.array([np.median(one[np.isfinite(one)]) for one in away.T])

    @cached_property
    def accuracy(self) -> Accuracy | None:
        """Of counts of events, where the true and the kept ones are known; else None."""
        if self.query.statistic.name != "count" or not len(self.values):
            return None
        if self.true is None or self.kept is None:
            return None
        bins = self.query.domain.bins  # groups above them would count events twice
        true, kept, released, stderr = (
            one[:, :bins, 0] for one in (self.true, self.kept, self.values, self.stderr)
        )
        revised = None if self.revised is None else self.revised[:, :bins, 0]
        return Accuracy(self.slots, self.edges, true, kept, released, stderr, revised)


class BudgetUse(NamedTuple):
    """What a class of users spent, in the window that ends with every base slot."""

    requirement: Requirement
    users: int
    by_query: Floats
    """Share of the budget, shape (queries, base slots)."""
    aside: float = 0.0
    """Share that a look at bounds cost, in every window."""

    @property
    def together(self) -> Floats:
        """Of all queries, and of what they looked for, shape (base slots,)."""
        total: Floats = self.by_query.sum(axis=0) + self.aside
        return total


@dataclass(frozen=True, eq=False)
class Report:
    """What a page shows of a run. Losses and true figures are raw, all else is public."""

    query_set: QuerySet
    figures: Mapping[str, QueryFigures]
    """By the name of the query."""
    shares: Mapping[str, float]
    """Of everybody's budget."""
    ledger: pa.Table
    """As `WriteLedger` writes it; no columns where none was kept."""
    lost: Mapping[str, Any]
    """`figures` of the run's `Summary`."""
    longer: Mapping[str, Sequence[QueryFigures]] = field(default_factory=dict)
    """By the name of the query, one for each of its longer times."""
    aside: Mapping[Requirement, float] = field(default_factory=dict)
    """Share of its budget that each class paid for looks at bounds, which are no answers."""
    mechanism: str = ""
    """Of a single count, which may have one that query sets have not."""
    ended: bool = False
    """Whether the ledger is of a single count: what a window had spent is that of the one which
    ends with the slot."""
    forever: bool = False
    """Whether every user has one budget for the whole stream."""
    delta: float = 0.0
    """Probability with which the guarantee may fail in a window."""
    unshown: str = ""
    """Why no use of budgets is shown, although there is a ledger."""
    words: Mapping[str, Wording] = field(default_factory=dict)
    """How to speak of some of the queries; plainly of others."""
    title: str = ""
    """Headline; empty for one that is made of the queries."""
    about: str = ""
    """What is below the headline; empty for a plain sentence."""
    user: str = "user"
    """What one protected user is called, in the singular."""
    repeat: str = ""
    """A shell command that makes the page again, or nothing."""

    @classmethod
    def of(
        cls,
        query_set: QuerySet,
        tables: Mapping[str, pa.Table],
        shares: Mapping[str, float],
        ledger: pa.Table,
        lost: Mapping[str, Any],
        revisions: pa.Table | None = None,
        lag: int = 0,
    ) -> Report:
        """Of the tables of a run, by the name of the query.

        Args:
            query_set: the queries.
            tables: their results.
            shares: as the fields, as are `ledger` and `lost`.
            ledger: see there.
            lost: see there.
            revisions: tidy, of all queries; None where nothing is revised.
            lag: how many slots later.
        """
        figures = {
            query.name: QueryFigures.of(
                query, query_set.slots_of(query), tables[query.name], revisions, lag
            )
            for query in query_set
        }
        longer = {
            query.name: [
                QueryFigures.of(query, query_set.of_length(one), tables[query.name])
                for one in query.times
            ]
            for query in query_set
        }
        return cls(query_set, figures, shares, ledger, lost, longer)

    @property
    def is_demonstration(self) -> bool:
        """Whether it has true figures."""
        return any(one.true is not None for one in self.figures.values())

    @property
    def is_test(self) -> bool:
        """Whether it is of test mode, in which nothing is private."""
        return bool(self.lost.get("test_mode"))

    def wording(self, query: Query) -> Wording:
        """How to speak of a query."""
        bounds = self.lost.get("queries", {}).get(query.name, {}).get("bounds")
        return self.words.get(query.name) or plain_wording(query, bounds)

    @cached_property
    def base_edges(self) -> npt.NDArray[np.datetime64]:
        """Start of every base slot that a result is of, and the end of the last."""
        base = self.query_set.base
        first, last = self._range
        starts = np.array([base.start(slot) for slot in range(first, last + 2)], np.int64)
        return _day_edges(starts.astype("datetime64[us]"), base)

    @cached_property
    def _range(self) -> tuple[int, int]:
        first, last = (self._column(f"{end}_base_slot") for end in ("first", "last"))
        return int(first.min()), int(last.max())

    def _column(self, name: str) -> npt.NDArray[Any]:
        column: npt.NDArray[Any] = self.ledger[name].to_numpy()
        return column

    @cached_property
    def largest_use(self) -> dict[Requirement, float]:
        """Largest share of its budget that each class spent in a window, the largest first."""
        if not self.ledger.num_rows or self.unshown:
            return {}
        classes = self.ledger.group_by(["window", "epsilon"], use_threads=False)
        most = classes.aggregate([("spent_in_window", "max")])
        found = {
            _requirement(row): row["spent_in_window_max"] / row["epsilon"]
            for row in most.to_pylist()
        }
        return dict(sorted(found.items(), key=lambda one: (-one[1], one[0])))

    def use_of(self, requirement: Requirement) -> BudgetUse:
        """What the class spent. What base slots s to e cost counts in all windows that meet them.

        Raises KeyError for a class that the ledger has not.
        """
        window, epsilon = requirement.window, requirement.epsilon
        own = self._is_of(requirement) & (self._column("epsilon") == epsilon)
        if not own.any():
            raise KeyError(requirement)
        first, last = self._range
        users = int(self._column("users")[own][0])
        if self.ended:
            by_query = np.zeros((1, last - first + 1))
            at = self._column("last_base_slot")[own] - first
            by_query[0, at] = self._column("spent_in_window")[own] / epsilon
            return BudgetUse(requirement, users, by_query)
        number = {query.name: q for q, query in enumerate(self.query_set)}
        asked = [number[name] for name in self.ledger["query"].filter(pa.array(own)).to_pylist()]
        changes = np.zeros((len(number), last - first + 2))
        begins = self._column("first_base_slot")[own] - first
        over = np.minimum(self._column("last_base_slot")[own] - first + window, last - first + 1)
        spent = self._column("spent")[own] / epsilon
        np.add.at(changes, (asked, begins), spent)
        np.subtract.at(changes, (asked, over), spent)
        aside = self.aside.get(requirement, 0.0)
        return BudgetUse(requirement, users, np.cumsum(changes, axis=1)[:, :-1], aside)

    def _is_of(self, requirement: Requirement) -> npt.NDArray[np.bool_]:
        """The rows of the ledger with its window."""
        window = self.ledger["window"]
        if isinstance(requirement, Lifetime):
            return np.asarray(pc.is_null(window), bool)
        return np.asarray(pc.fill_null(pc.equal(window, requirement.window), False), bool)

    @cached_property
    def _classes(self) -> list[dict[str, Any]]:
        names = ["window", "epsilon", "users"]
        if not self.ledger.num_rows or self.unshown:
            return []
        classes = self.ledger.select(names).group_by(names, use_threads=False)
        rows: list[dict[str, Any]] = classes.aggregate([]).to_pylist()
        return rows

    @property
    def users(self) -> int:
        """Public number of users, over all classes; 0 if not known, or without a ledger."""
        users = [row["users"] for row in self._classes]
        return sum(users) if all(users) else 0


def _by_slot(
    slots: Sequence[int], table: pa.Table, shape: tuple[int, ...]
) -> npt.NDArray[np.float64]:
    """Values of a tidy table at the places of these slots; NaN of slots that it does not have."""
    placed = np.full(shape, np.nan)
    values = table["value"].to_numpy().astype(np.float64).reshape(-1, *shape[1:])
    place = {slot: i for i, slot in enumerate(slots)}
    for slot, revised in zip(table["slot"].to_pylist()[:: placed[0].size], values, strict=True):
        if slot in place:
            placed[place[slot]] = revised
    return placed


def _requirement(row: Mapping[str, Any]) -> Requirement:
    """That of a row of the ledger; without a window it is of the whole stream."""
    epsilon = float(row["epsilon"])
    return Lifetime(epsilon) if row["window"] is None else Requirement(int(row["window"]), epsilon)


def _with_all_keys(query: Query, table: pa.Table) -> pa.Table:
    """Rows of the keys that are listed now, in all slots: empty where a key was not listed.

    Keys that left and did not return have no rows.
    """
    listed = discovered_keys(query)
    if listed is None or not (listed.since or listed.ended):
        return table
    labels, outputs = query.tree.labels(query.domain), len(query.statistic.outputs)
    bin_of = {quoted_label(label): at for at, label in enumerate(labels)}
    bin_of.update({label: at for at, label in enumerate(labels)})
    keys = table["key"].cast(pa.string()).to_pylist()
    bins = np.array([bin_of.get(key, -1) for key in keys], np.int64)
    _, firsts, numbers = np.unique(table["slot"].to_numpy(), return_index=True, return_inverse=True)
    rows = np.arange(len(bins))
    own = (numbers * len(labels) + bins) * outputs + rows % outputs
    places = np.full(len(firsts) * len(labels) * outputs, -1)
    places[own[bins >= 0]] = rows[bins >= 0]
    made = table.take(pa.array(places, mask=places < 0))
    of_slot = table.take(pa.array(np.repeat(firsts, len(labels) * outputs)))
    for name in ("start", "end", "slot", "status"):
        place = table.column_names.index(name)
        made = made.set_column(place, table.schema.field(name), of_slot[name])
    return made


def _day_edges(edges: npt.NDArray[np.datetime64], slots: Slots) -> npt.NDArray[np.datetime64]:
    """Edges of slots; of slots of whole days the nearest midnights in UTC."""
    if not slots.of_days:
        return edges
    return (edges + np.timedelta64(12, "h")).astype("datetime64[D]").astype(edges.dtype)


def shares_of(plan: QueryPlan) -> dict[str, float]:
    """Share of each user's budget, by query."""
    parts = (plan.units / plan.known.classes.budgets).min(axis=1)
    names = (query.name for query in plan.query_set)
    return dict(zip(names, parts.tolist(), strict=True))


def aside_of(
    query_set: QuerySet, requirements: Requirements, sizes: npt.NDArray[np.int64]
) -> dict[Requirement, float]:
    """Share of its budget that each class pays for looks at bounds, given the sizes of classes."""
    paid = to_epsilon(set_aside(query_set, requirements, sizes))
    return {one: float(cost / one.epsilon) for one, cost in zip(requirements, paid, strict=True)}


def meets_parts(query: Query) -> bool:
    """Whether a window may hold a part of a slot, which takes noise for twice as many events."""
    return sensitivity_of(query, ADD_REMOVE) > query.sensitivity
