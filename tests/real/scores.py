"""Streams released through the public interface, beside what is true of them."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

import streamveil as sv
from tests.calls import arguments
from tests.real.streams import STREAMS, Stream
from tests.real.truth import SUMS, joined, truth

EPSILONS = (0.3, 1.0, 4.0)
SEEDS = tuple(range(8))
FIRST_DAYS = 14
"""Days that count as the beginning of a stream."""
SPARSE = 10
"""Mean of true counts below which they are called sparse."""
SLIGHT = 0.01
"""Part of the truth by which a sum may always differ."""


@dataclass(frozen=True)
class Score:
    """One figure of one run: of all its slots and bins."""

    stream: str
    figure: str
    epsilon: float
    seed: int
    released: float
    """Sum of the released values."""
    true: float
    """Sum of the true ones."""
    rows: int
    """How many values were added up."""
    held: tuple[float, float]
    """Share of the intervals that hold the truth, in the first days and later."""

    @property
    def is_sum(self) -> bool:
        """Whether values add up over bins and slots; those of means do not."""
        return self.figure.split()[0] in SUMS

    @property
    def is_sparse(self) -> bool:
        """Whether it is of counts so small that an honest interval may hold nearly all of them."""
        return self.is_sum and self.true < SPARSE * self.rows

    @property
    def is_hidden(self) -> bool:
        """Whether it is of quantiles whose tails hold fewer events than noise may add or take.

        No interval can be narrow then, and one that allows for slots that differ holds nearly all
        quantiles of a stream whose slots are alike.
        """
        return self.figure in ("p50", "p95") and self.epsilon == min(EPSILONS)


def scores(name: str, epsilon: float, seed: int) -> list[Score]:
    """Draw a stream, release it with one budget, and compare."""
    stream = STREAMS[name]
    events = stream.draw(np.random.default_rng([seed, *name.encode()]))
    key = np.random.default_rng([seed, 1, *name.encode()]).bytes(32)
    level = logging.getLogger("streamveil").level
    logging.getLogger("streamveil").setLevel(logging.ERROR)  # of a guessed population
    try:
        tables = list(_tables(stream, events, epsilon, key))
    finally:
        logging.getLogger("streamveil").setLevel(level)
    return [_score(name, figure, epsilon, seed, table) for figure, table in tables]


def _tables(
    stream: Stream, events: pd.DataFrame, epsilon: float, key: bytes
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Released rows with the truth, by figure; its truth is NaN where nothing has one."""
    start, end = stream.span
    place = {"slot": stream.slot, "zone": stream.zone, "first": start}
    asked: dict[str, Any] = {
        **stream.requirements(epsilon),
        **{"user": "user", "time": "time", "start": start, "end": end, "origin": start},
        "noise_key": key,
    }
    if stream.histogram:
        zone = {} if stream.zone == "UTC" else {"slot_zone": stream.zone}
        found = sv.release(
            events, **arguments({**stream.histogram, "slot": stream.slot, **zone, **asked})
        )
        query = {"by": stream.histogram["value"]}
        yield (
            "count of a bin",
            joined(found.to_pandas().assign(level=0), truth(events, query, place)),
        )
    if not stream.queries:
        return
    queries = {"slot": stream.slot, "queries": list(stream.queries)}
    answers = sv.release(events, queries, **arguments(asked))
    for query in stream.queries:
        table = joined(answers[query["name"]].to_pandas(), truth(events, query, place))
        for (statistic, level), rows in table.groupby(["statistic", "level"]):
            yield _figure(query, str(statistic), int(level)), rows


def _figure(query: Any, statistic: str, level: int) -> str:
    if "levels" in query:
        return f"{statistic} of levels, {'total' if level else 'bin'}"
    return f"{statistic} where" if "where" in query else statistic


def _score(name: str, figure: str, epsilon: float, seed: int, table: pd.DataFrame) -> Score:
    rows = table[table.true.notna()]
    held = (rows.low <= rows.true) & (rows.true <= rows.high)  # false without an interval
    early = rows.start < rows.start.min() + pd.Timedelta(days=FIRST_DAYS)
    value = rows.value.fillna(0).sum()
    parts = (float(held[early].mean()), float(held[~early].mean()))
    sums = float(value), float(rows.true.sum())
    return Score(name, figure, epsilon, seed, *sums, len(rows), parts)


@dataclass(frozen=True)
class Group:
    """Scores that share a key."""

    key: tuple[Any, ...]
    scores: Sequence[Score]

    @property
    def ratio(self) -> float:
        """Released over true, of all runs together."""
        return sum(one.released for one in self.scores) / sum(one.true for one in self.scores)

    @property
    def bias(self) -> float | None:
        """Mean difference of released and true, in standard errors of this mean over the runs."""
        if len(self.scores) < 2:
            return None
        apart = np.array([one.released - one.true for one in self.scores])
        return float(apart.mean() / (apart.std(ddof=1) / np.sqrt(len(apart))))

    @property
    def is_biased(self) -> bool:
        """Whether sums differ from the truth by more than noise explains and by more than little.

        Always false of figures that do not add up, such as means.
        """
        sums = all(one.is_sum for one in self.scores)
        return sums and abs(self.ratio - 1) > SLIGHT and abs(self.bias or 0) > 3

    @property
    def coverages(self) -> tuple[float, float]:
        """Mean over runs of the share of intervals that hold the truth, early and later."""
        early, later = np.mean([one.held for one in self.scores], axis=0).tolist()
        return early, later


def grouped(some: Iterable[Score], *names: str) -> list[Group]:
    """Scores by some of their attributes, in the order of the first of each group."""
    found: dict[tuple[Any, ...], list[Score]] = {}
    for one in some:
        found.setdefault(tuple(getattr(one, name) for name in names), []).append(one)
    return [Group(key, group) for key, group in found.items()]
