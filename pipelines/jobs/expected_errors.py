"""The error that a run is expected to have, in words: what a dry run says of it.

As in `streamveil plan`, mechanisms are simulated on assumed counts, which drift from slot to slot.
Streams without events would not do: adaptive mechanisms learn there that nothing changes, and
smooth more than they may where something does.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from streamveil.engine.plan_kinds import PlanKind
from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.driver.stream import RunningStream
from streamveil.mechanisms.presence.limits import expected_sizes
from streamveil.mechanisms.queries.bounds import is_known
from streamveil.mechanisms.queries.discovered import (
    adjacency_of_one_key,
    discovered_keys,
    with_one_key,
)
from streamveil.mechanisms.queries.expected import (
    DRIFT,
    RATE,
    Assumed,
    assumed_counts,
    expected_error,
)
from streamveil.mechanisms.queries.queries import MOST_CELLS, Query
from streamveil.mechanisms.randomness.noise import KEY_BYTES
from streamveil.mechanisms.registry import LOCAL_MECHANISMS, mechanism, only_dynamic, parse
from streamveil.mechanisms.simulation import simulate_local

if TYPE_CHECKING:
    from streamveil.engine.stream.histogram_plan import HistogramPlan
    from streamveil.engine.stream.local_plan import LocalPlan
    from streamveil.engine.stream.query_plan import QueryPlan
    from streamveil.mechanisms.core.records import Slots


# Enough slots for a first publication of most mechanisms.
_SLOTS = 20
_MOST_DEVICES = 20_000
_NOT_COMPUTED = "not computed here: see streamveil evaluate"


def count_error(plan: HistogramPlan | LocalPlan, rate: float | None) -> str:
    """The standard error of a count, as the mechanism states it.

    Args:
        plan: of the releases.
        rate: events of all users in a slot; None if it is not known.
    """
    if plan.plan_kind is PlanKind.LOCAL:
        errors, of_what = _local_errors(plan), "without events"
    else:
        assumed = _assumed(rate, plan.population.sizes)
        errors, of_what = _central_errors(plan, assumed), _words_of(assumed, plan.slots)
    if errors is None:
        return _NOT_COMPUTED
    known = errors[np.isfinite(errors)]
    if not len(known):
        return f"not known to the mechanism after {_SLOTS} slots"
    return (
        f"about {np.median(known):,.1f} for each count (standard error {of_what}, as simulated "
        f"over {_SLOTS} slots)"
    )


def query_error(plan: QueryPlan, number: int, rate: float | None) -> str:
    """The error of each result of a query, as in `streamveil plan`, or of one discovered key.

    Args:
        plan: of the results.
        number: of the query.
        rate: events of all users that the query counts in a base slot; None if unknown.
    """
    query, known = plan.query_set.queries[number], plan.known
    if not is_known(query):
        return "not known before the bounds are chosen"
    if plan.presences is not None:
        return _NOT_COMPUTED
    sizes = expected_sizes(known.classes, known.sizes)
    assumed = _assumed(rate, sizes)
    found = expected_error(
        *(with_one_key(plan.query_set), number, known.classes, sizes),
        *(plan.units[number], assumed),
        adjacency=adjacency_of_one_key(query, plan.adjacency),
    )
    listed = ", ".join(
        f"{name} unknown" if math.isnan(error) else f"{name} about {error:,.3g}"
        for name, error in zip(query.statistic.outputs, found.figures, strict=True)
    )
    of_one = "for one key with all events: " if discovered_keys(query) else ""
    return f"{of_one}{listed} (root mean squared error {_words_of(assumed, plan.slots)})"


def _assumed(rate: float | None, sizes: npt.NDArray[np.int64]) -> Assumed:
    return Assumed(RATE * max(int(sizes.sum()), 1) if rate is None else rate)


def _words_of(assumed: Assumed, slots: Slots) -> str:
    return (
        f"of {assumed.rate:,.4g} events in {slots.text}, with counts that change by {DRIFT:.0%} "
        "from slot to slot"
    )


def _central_errors(plan: HistogramPlan, assumed: Assumed) -> Floats | None:
    population, text = plan.population, plan.mechanism
    if only_dynamic(text) or population.bins > MOST_CELLS:
        return None
    stream = RunningStream(mechanism(text, population), bytes(KEY_BYTES))
    query = Query(
        "count",
        value=plan.columns.value,
        domain=plan.domain,
        max_contributions=plan.max_contributions,
    )
    # The longest window is only asked for where counts drift differently over one.
    counts = assumed_counts(query, population.sizes, assumed, 1, _SLOTS, np.random.default_rng(0))
    return np.concatenate([stream.release(*one).stderr for one in enumerate(counts)])


def _local_errors(plan: LocalPlan) -> Floats | None:
    registry = plan.registry
    users = len(registry.class_of)
    if users > _MOST_DEVICES:
        return None
    name, options = parse(plan.mechanism, LOCAL_MECHANISMS)
    values = np.zeros((_SLOTS, users), np.int64)
    asked = [registry.classes[k] for k in registry.class_of.tolist()]
    key, bins = bytes(KEY_BYTES), max(2, plan.domain.bins)
    done = simulate_local(name, values, bins, asked, key, **options)
    return done.stderr.ravel() * users
