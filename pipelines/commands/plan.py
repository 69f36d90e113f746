"""`streamveil plan`: which error queries will have, and which epsilon they need, without data."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from streamveil.engine.capabilities import OF_DISCOVERED
from streamveil.engine.stream.plan_checks import ignoring_deltas
from streamveil.io import read_queries
from streamveil.mechanisms.core.budgets import Requirements, Units
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import ConfigurationError, Requirement
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.queries.bounds import is_known
from streamveil.mechanisms.queries.discovered import (
    Discoverer,
    adjacency_of_one_key,
    discovering,
    with_one_key,
)
from streamveil.mechanisms.queries.expected import (
    DRIFT,
    RATE,
    Assumed,
    Expected,
    dropped_share,
    epsilon_factor,
    expected_error,
    expected_shares,
    mean_count,
)
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.shares import plan_shares
from streamveil.pipelines.options.execution import Execution
from streamveil.pipelines.options.parsers import default_requirement_of
from streamveil.pipelines.plans.inputs import required_registry
from streamveil.pipelines.reports.plan_texts import about_discoverer

_Usual = TypeVar("_Usual", float, None)

_MOST_CLASSES = 5
# Other shares are advised if they reduce the weighted error by this part.
_WORTH = 0.1
# Shares that are proposed for wanted errors are multiples of 1 / this.
_SHARE_STEPS = 1000
# From this part of the events on, events dropped by contribution bounding are mentioned.
_MENTIONED = 0.01
_OTHER_SHARES = " at half the share | at twice the share |"
_MEANING = (
    "error: root mean squared error of a result in a single slot; about two of three results have "
    "a smaller error"
)


@dataclass(frozen=True)
class _Plan:
    """What is asked, of whom, and what is assumed; of discovered keys, one."""

    query_set: QuerySet
    requirements: Requirements
    registry: Registry
    shares: Sequence[float]
    units: Units
    assumed: Sequence[Assumed]
    adjacency: str
    adjacencies: Sequence[str]
    """Of each query, with which its error is predicted."""
    discoverers: Sequence[Discoverer]
    about_users: str
    """Origin of the number of users, in brackets. Empty if all users are in the table."""

    @classmethod
    def of(cls, given: argparse.Namespace) -> _Plan:
        query_set = read_queries(given.queries)
        unknown = next((one.name for one in query_set if not is_known(one)), None)
        if unknown is not None:
            raise ConfigurationError(
                f"query {unknown!r} has bounds: auto, and without bounds its error cannot be "
                "predicted: plan with bounds: [LOW, HIGH] as you expect them"
            )
        registry = required_registry("plan", given, lambda: query_set.base, ("queries",))
        if not discovering(query_set):
            registry = ignoring_deltas(registry)
        requirements, adjacency = Requirements.of(registry.classes), given.adjacency
        discoverers = _discoverers(given, query_set, registry)
        shares, units = plan_shares(query_set, requirements, registry.sizes, adjacency=adjacency)
        usual = RATE * max(int(registry.sizes.sum()), 1)
        fields = (
            _by_query("rate", given.rate, query_set, usual),
            _by_query("drift", given.drift, query_set, DRIFT),
            _by_query("long_drift", given.long_drift, query_set, None),
            _by_query("chance", given.chance, query_set, None),
        )
        assumed = [_assumed(*one) for one in zip(query_set, *fields, strict=True)]
        return cls(
            *(with_one_key(query_set), requirements, registry, shares.tolist(), units, assumed),
            *(adjacency, [adjacency_of_one_key(query, adjacency) for query in query_set]),
            *(discoverers, _about_users(given, registry)),
        )

    def error(self, number: int, part: float = 1.0) -> Expected:
        """Of a query at a part of its share."""
        units = np.maximum(np.floor(self.units[number] * part), 1).astype(np.int64)
        return expected_error(
            *(self.query_set, number, self.requirements, self.registry.sizes),
            *(units, self.assumed[number]),
            adjacency=self.adjacencies[number],
        )


@dataclass(frozen=True)
class _Wanted:
    """An error that is wanted of a query."""

    number: int
    """Of the query."""
    error: float
    about: str = ""
    """Of what it is so many per cent, in brackets."""


def _about_users(given: argparse.Namespace, registry: Registry) -> str:
    if registry.guessed is None:
        return ""
    default = default_requirement_of(given.default_requirement)
    return " (assumed)" if default is None or default[1] is None else " (as given)"


def _discoverers(
    given: argparse.Namespace, query_set: QuerySet, registry: Registry
) -> list[Discoverer]:
    """What will discover keys. Raises ConfigurationError."""
    asked = discovering(query_set)
    if not asked:
        return []
    if given.delta is None:
        raise ConfigurationError(f"query {asked[0].name!r}: {OF_DISCOVERED['delta']} ({opt.delta})")
    known, deltas = Requirements.of(registry.classes), registry.deltas_or(given.delta)
    return [
        Discoverer(query, query_set, known, registry.sizes, deltas, given.adjacency)
        for query in asked
    ]


def main(given: argparse.Namespace, execution: Execution) -> int:
    """Run the command; returns the exit code."""
    plan = _Plan.of(given)
    wanted = _wanted(given.wanted, plan)
    for line in _lines(plan, wanted):
        print(line, flush=True)
    return 0


def _lines(plan: _Plan, wanted: Sequence[_Wanted]) -> Iterator[str]:
    """The lines that are printed."""
    yield from _assumptions(plan)
    yield ""
    shared = any(f"{share:.1%}" != "100.0%" for share in plan.shares)
    yield f"| query | slot | figure | share | error |{_OTHER_SHARES if shared else ''}"
    yield f"| :-- | :-- | :-- | --: | --: |{' --: | --: |' if shared else ''}"
    for number in range(len(plan.query_set.queries)):
        yield from _rows(plan, number, (1.0, 0.5, 2.0) if shared else (1.0,))
    yield ""
    yield _MEANING
    yield from _dropped(plan)
    yield from _better(plan)
    factors = [_factor(plan, one) for one in wanted]
    for one, factor in zip(wanted, factors, strict=True):
        yield _needed(plan, one, factor)
    if wanted and len(plan.shares) > 1:
        yield _together(plan, wanted, factors)


def _rows(plan: _Plan, number: int, parts: Sequence[float]) -> Iterator[str]:
    """Rows of a query at multiples of its share, first for its slots and then for its rollups."""
    query = plan.query_set.queries[number]
    share = float((plan.units[number] / plan.requirements.budgets).min())
    errors = [plan.error(number, part) for part in parts]
    of_slots = plan.query_set.slots_of(query).text, [one.figures for one in errors]
    of_rollups = [
        (f"{plan.query_set.of_length(length).text} (rollup)", [one.rollups[i] for one in errors])
        for i, length in enumerate(query.times)
    ]
    for slot, figures in (of_slots, *of_rollups):
        for name, *cells in zip(query.statistic.outputs, *figures, strict=True):
            listed = " | ".join(_shown(cell) for cell in cells)
            yield f"| {query.name} | {slot} | {name} | {share:.1%} | {listed} |"


def _dropped(plan: _Plan) -> Iterator[str]:
    """Queries of which contribution bounding drops events, which the errors do not contain."""
    for query, one in zip(plan.query_set, plan.assumed, strict=True):
        share = dropped_share(query, plan.registry.sizes, one)
        if share >= _MENTIONED:
            slot = plan.query_set.slots_of(query).text
            yield (
                f"{query.name}: contribution bounding would drop about {share:.0%} of the events, "
                f"if all users have equally many, because max_contributions keeps "
                f"{number_of(query.max_contributions, 'event')} of a user in {slot}; the error "
                "does not contain them"
            )


def _shown(error: float) -> str:
    return "unknown" if math.isnan(error) else f"{error:,.3g}"


def _assumptions(plan: _Plan) -> Iterator[str]:
    base = plan.query_set.base.text
    discovered = {each.query.name for each in plan.discoverers}
    for query, one in zip(plan.query_set, plan.assumed, strict=True):
        later = "" if one.long_drift is None else f" and by {one.long_drift:.3g} over a window"
        chance = "" if one.chance is None else f", whose variance is {one.chance:.3g} of the count"
        own = ", all of one key, for which the error is shown" if query.name in discovered else ""
        yield (
            f"assumed for {query.name}: {one.rate:,.6g} events in {base}{own}, and counts that "
            f"change by {one.drift:.3g} of their size from slot to slot{later}, in addition "
            f"to chance{chance}"
        )
    for each in plan.discoverers:
        yield about_discoverer(each, plan.query_set.base)
    users = number_of(int(plan.registry.sizes.sum()), "user")
    yield f"budgets: {_requirements_text(plan.requirements, 1.0)}; {users}{plan.about_users}"


def _requirements_text(requirements: Sequence[Requirement], factor: float) -> str:
    """Requirements in words, with their epsilons multiplied."""
    listed = [
        f"epsilon {factor * one.epsilon:.3g} over {number_of(one.window, 'base slot')}"
        for one in requirements[:_MOST_CLASSES]
    ]
    more = len(requirements) - len(listed)
    return ", ".join(listed) + (f" and {more:,} others" if more > 0 else "")


def _better(plan: _Plan) -> Iterator[str]:
    """Shares that are better under what is assumed, if there are any worth it."""
    if sum(query.share is None for query in plan.query_set) < 2:
        return
    shares = expected_shares(
        *(plan.query_set, plan.requirements, plan.registry.sizes, plan.units, plan.assumed),
        adjacency=plan.adjacency,
    )

    def weighted(parts: Sequence[float]) -> float:
        asked = enumerate(zip(plan.query_set, parts, strict=True))
        return sum(one.weight * plan.error(q, part).cells for q, (one, part) in asked)

    found = weighted([share / old for share, old in zip(shares, plan.shares, strict=True)])
    before = weighted([1.0] * len(plan.shares))
    if found < (1 - _WORTH) * before:
        listed = ", ".join(
            f"{query.name} {share:.2f}" for query, share in zip(plan.query_set, shares, strict=True)
        )
        yield (
            f"with these shares the weighted error would be {1 - found / before:.0%} less: "
            f"{listed}; write them as share: in the file if you are sure of what is assumed"
        )


def _factor(plan: _Plan, wanted: _Wanted) -> float:
    """The factor for a query's part of the budget with which it reaches the wanted error."""
    number = wanted.number
    return epsilon_factor(
        *(plan.query_set, number, plan.requirements, plan.registry.sizes),
        *(plan.units[number], plan.assumed[number], wanted.error),
        adjacency=plan.adjacencies[number],
    )


def _needed(plan: _Plan, wanted: _Wanted, factor: float) -> str:
    query = plan.query_set.queries[wanted.number]
    return (
        f"{query.name}: for an error of {wanted.error:.4g}{wanted.about}, with the same share, "
        f"multiply the epsilon of every user by {factor:.3g}: "
        f"{_requirements_text(plan.requirements, factor)}"
    )


def _together(plan: _Plan, wanted: Sequence[_Wanted], factors: Sequence[float]) -> str:
    """The smallest budget, and the shares, for all wanted errors. Other queries keep their errors.

    An error depends on the share of a query times epsilon alone.
    """
    largest: dict[int, float] = {}
    for one, factor in zip(wanted, factors, strict=True):
        largest[one.number] = max(factor, largest.get(one.number, 0.0))
    needed = np.array([share * largest.get(q, 1.0) for q, share in enumerate(plan.shares)])
    parts = np.ones(len(needed))
    for _ in range(_SHARE_STEPS - len(needed)):
        parts[np.argmax(needed / parts)] += 1
    shares = parts / max(_SHARE_STEPS, len(needed))
    epsilon = plan.requirements[0].epsilon
    factor = _rounded_up(float((needed / shares).max()) * epsilon) / epsilon
    names = [query.name for query in plan.query_set]
    listed = ", ".join(f"{name} {share:.3g}" for name, share in zip(names, shares, strict=True))
    others = (
        "" if len(largest) == len(names) else " and leave the errors of other queries as they are"
    )
    errors = "this error" if len(wanted) == 1 else "all of these errors"
    return (
        f"together: {_requirements_text(plan.requirements, factor)} and these shares give "
        f"{errors}{others}: {listed}; write them as share: in the file"
    )


def _rounded_up(number: float) -> float:
    """Round up to three digits, as many as :func:`_requirements_text` prints."""
    step = 10.0 ** (math.floor(math.log10(number)) - 2)
    return math.ceil(number / step - 1e-9) * step


def _assumed(
    query: Query, rate: float, drift: float, long_drift: float | None, chance: float | None
) -> Assumed:
    try:
        return Assumed(rate, drift, long_drift, chance)
    except ConfigurationError as error:
        raise ConfigurationError(f"query {query.name!r}: {error}") from None


def _by_query(
    option: str, text: str | None, query_set: QuerySet, usual: _Usual
) -> list[float | _Usual]:
    """A number for each query: one for all, and others by name."""
    found: dict[str, float] = {}
    for part in text.split(",") if text is not None else ():
        name, colon, number = part.rpartition(":")
        if colon:
            _number_of(option, text, name, query_set)
        if (name if colon else "") in found:
            whose = f"query {name!r}" if colon else "all queries"
            raise ConfigurationError(f"{opt[option]}={text} has two numbers for {whose}: give one")
        found[name if colon else ""] = _float(option, text, number)
    of_all = found.get("", usual)
    return [found.get(query.name, of_all) for query in query_set]


def _wanted(text: str | None, plan: _Plan) -> list[_Wanted]:
    found = []
    for part in text.split(",") if text is not None else ():
        name, colon, number = part.rpartition(":")
        per_cent = number.endswith("%")
        if not (colon or per_cent):
            raise ConfigurationError(
                f"{opt.wanted}={text}: write QUERY:ERROR, such as places:10 or places:5%, or a per "
                "cent for all counts, such as 5%"
            )
        error = _float("wanted", text, number.removesuffix("%"))
        if not error > 0:
            raise ConfigurationError(f"{opt.wanted}={text}: give an error above 0")
        asked = [_number_of("wanted", text, name, plan.query_set)] if colon else _counts(plan)
        if not asked:
            raise ConfigurationError(
                f"{opt.wanted}={text}: a per cent without a query is for counts, and no query "
                "counts events or users: write QUERY:ERROR, with the error in the unit of the "
                "numbers"
            )
        found += [_of_mean(plan, q, error) if per_cent else _Wanted(q, error) for q in asked]
    return found


def _counts(plan: _Plan) -> list[int]:
    """Numbers of the queries that count events or users."""
    return [q for q, query in enumerate(plan.query_set) if query.statistic.column is None]


def _of_mean(plan: _Plan, number: int, per_cent: float) -> _Wanted:
    """So many per cent of the average count. Raises ConfigurationError for another statistic."""
    query = plan.query_set.queries[number]
    if query.statistic.column is not None:
        raise ConfigurationError(
            f"{opt.wanted}: {per_cent:g}% is for counts, and query {query.name!r} is of the "
            f"numbers of {query.statistic.column}: give an error in their unit"
        )
    mean = mean_count(query, plan.registry.sizes, plan.assumed[number])
    about = f" ({per_cent:g}% of an average count of {mean:,.4g})"
    return _Wanted(number, per_cent / 100 * mean, about)


def _number_of(option: str, text: str | None, name: str, query_set: QuerySet) -> int:
    names = [query.name for query in query_set]
    if name not in names:
        raise ConfigurationError(
            f"{opt[option]}={text}: there is no query {name!r}: choose one of {', '.join(names)}"
        )
    return names.index(name)


def _float(option: str, text: str | None, number: str) -> float:
    try:
        return float(number)
    except ValueError:
        raise ConfigurationError(f"{opt[option]}={text}: {number!r} is not a number") from None
