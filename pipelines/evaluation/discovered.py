"""Query sets that discover their keys: which keys are found, and their errors by rank.

With each seed, keys are discovered anew, and all events are counted for them. The true keys are all
keys of the events that can be counted, except keys in `allow` or `deny`. True keys are ranked by
their number of distinct users over all slots.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from streamveil.engine.run.discover import discover_keys
from streamveil.engine.stream.unprotected_queries import ExactQuery, TrueKeys, exact_answers
from streamveil.io import read_events
from streamveil.mechanisms.core.arrays import Flags, Floats
from streamveil.mechanisms.queries.discovered import discovered_keys
from streamveil.mechanisms.queries.queries import Query
from streamveil.pipelines.evaluation.comparison_table import Measure, Run, Task, noise_key
from streamveil.pipelines.evaluation.queries import (
    Asked,
    AskedEvents,
    FoundScores,
    runs_of,
    scores_of,
)
from streamveil.pipelines.evaluation.query_data import AskedData

RANKS = ((1, 10), (11, 100), (101, 1000), (1001, None))
"""First and last rank of each band."""
KEYS = "keys"
"""Name of the case for all keys of a query together."""


@dataclass(frozen=True, eq=False)
class DiscoveringEvents:
    """Events whose keys are discovered anew with each seed."""

    name: str
    data: AskedData
    truth: Mapping[str, TrueKeys]
    """The true keys of each query that discovers its keys, by its name."""
    about: str = ""

    def found(self, seed: int) -> tuple[AskedEvents, dict[str, ExactQuery]]:
        """The events with the keys that are found with a seed, and the exact answers."""
        plan = replace(self.data.transform, noise_key=noise_key(seed))
        plan = discover_keys(plan, self._batches())
        first, exact = exact_answers(plan, self._batches())
        asked = self.data.events(plan, first)
        return asked, dict(zip([query.name for query in plan.query_set], exact, strict=True))

    def _batches(self) -> Iterator[Any]:
        names = self.data.transform.columns.names
        for batch, _ in read_events(self.data.files, names, None, self.data.dialect):
            if batch.num_rows:
                yield batch


class AskedDiscovered(Asked):
    """Measures for each result of a query, for all its keys, and for keys of some ranks."""

    measures = (
        *Asked.measures,
        Measure("found", "found", "keys that are found", "keys"),
        Measure(
            "recall",
            "recall",
            "fraction of the true keys of these ranks that are found. For all keys together, it is "
            "the fraction of the keys that have enough users in a discovery slot to be found with "
            "probability 1/2",
        ),
        Measure(
            "precision",
            "precision",
            "fraction of the found keys that have enough users in a discovery slot to be found "
            "with probability 1/2. Every found key exists",
        ),
    )
    template = "discovered.html.jinja"

    def check(self, source: Any, setting: tuple[Any, ...], kinds: Sequence[str]) -> None:
        """Everything was checked when the plan was made."""

    def run(self, task: Task) -> list[Run]:
        """Run a task, which discovers keys and answers all queries with each kind of shares.

        Raises BudgetExceeded when a filter refuses.
        """
        source: DiscoveringEvents = task.source
        asked, exact = source.found(task.seed)
        by_kind = [
            runs_of(asked, exact, kind, task.seed, partial(_scores, source.truth))
            for kind in task.mechanisms
        ]
        unknown = {measure.name: math.nan for measure in self.measures}
        return [
            replace(run, figures={**unknown, **run.figures})
            for same in zip(*by_kind, strict=True)
            for run in same
        ]


def _scores(
    truth: Mapping[str, TrueKeys], query: Query, values: Sequence[Floats], true: Floats
) -> Iterator[FoundScores]:
    """The scores of the keys of a query, and of its figures by the rank of their keys."""
    if query.name not in truth:
        return
    keys, listed = truth[query.name], discovered_keys(query)
    assert listed is not None
    place = {text: at for at, text in enumerate(listed.values)}
    bins = np.array([place.get(text, -1) for text in keys.texts], np.int64)
    ranks = np.arange(1, len(bins) + 1)
    is_found, wanted = bins >= 0, keys.most >= keys.needed
    yield (
        KEYS,
        {
            "found": float(is_found.sum()),
            "recall": _share(is_found, wanted),
            "precision": _share(wanted, is_found),
        },
    )
    for first, last in RANKS:
        band = (ranks >= first) & (ranks <= (last or len(bins)))
        if not band.any():
            continue
        some = {"found": float((is_found & band).sum()), "recall": _share(is_found, band)}
        mine = bins[is_found & band]
        by_figure = scores_of(query, [each[:, mine] for each in values], true[:, mine])
        for figure, scores in by_figure.items():
            yield f"{figure} of ranks {first}-{last or ''}", {**scores, **some}


def _share(some: Flags, of: Flags) -> float:
    """The mean, or NaN if there are no values."""
    return float(some[of].mean()) if of.any() else math.nan
