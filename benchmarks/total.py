"""Error of the total of all bins as the adaptive mechanism tells it, beside one that is released.

python benchmarks/total.py

Both answer the same query, a count with `levels: [all]`, seed by seed. In the first, the mechanism
follows the total and tells it. In the second, the total is one more cell of the histogram, which
doubles the sensitivity. Streams, users and windows are those of `factor.py`.
"""

from __future__ import annotations

import hashlib
import os
import statistics
from typing import Any

import factor
import numpy as np
from _measure import begin, measure_case, parser, save, table

STREAMS = (
    *("births", "births, 5 %", "riders, 10 %", "flights", "pizzas", "one week", "flat"),
    *("riders, 0.5 %", "police stops"),
)
SLOTS, WEEK = 400, 7
NAME = "counts"


def main() -> None:
    options = parser(__doc__, repeats=1)
    add = options.add_argument
    add("--seeds", type=int, nargs="+", default=[200, 201, 202])
    add("--epsilon", type=float, default=1.0)
    add("--streams", nargs="*", choices=factor.STREAMS, default=list(STREAMS))
    add("--slots", type=int, default=SLOTS, help="of each stream, at most")
    given = options.parse_args()
    found = table(
        f"Error of the total and of the bins, E = {given.epsilon:g}, {len(given.seeds)} seeds",
        [
            *("stream", "bins", "events a slot"),
            *("bins, released", "bins, followed", "total, released", "total, followed"),
            *("total held, released", "total held, followed", "week held, followed"),
        ],
        "Root mean squared errors of slots, and the share of intervals of 90 % that hold the "
        "truth. Released: the total is one more cell of the histogram. Followed: the mechanism "
        f"estimates it with a filter. Week: the total of {WEEK} slots.",
    )
    for name in given.streams:
        case = {"name": name, "epsilon": given.epsilon, "slots": given.slots}
        runs = [
            measure_case("total.py", {**case, "seed": seed}, 1).answers[0] for seed in given.seeds
        ]

        def mean(how: str, what: str, runs: list[dict[str, Any]] = runs) -> float:
            return statistics.fmean(one[how][what] for one in runs)

        def root(how: str, what: str, runs: list[dict[str, Any]] = runs) -> float:
            return statistics.fmean(one[how][what] ** 2 for one in runs) ** 0.5

        found.add(
            *(name, runs[0]["bins"], statistics.fmean(one["events"] for one in runs)),
            *(root(how, what) for what in ("each", "total") for how in ("released", "followed")),
            *(mean(how, "held") for how in ("released", "followed")),
            mean("followed", "held_week"),
        )
    kept = {"seeds": given.seeds, "epsilon": given.epsilon, "slots": given.slots}
    save(given.results, "total", kept, [found])


def run(name: str, epsilon: float, slots: int, seed: int) -> dict[str, Any]:
    """Answer the query with a total that is followed, and with one that is released."""
    counts = factor.STREAMS[name](seed)[:slots]
    found: dict[str, Any] = {
        "bins": counts.shape[1],
        "events": float(counts.sum(axis=1).mean()),
        "followed": answered(name, counts, epsilon, seed),
    }
    with factor.factor(False):
        found["released"] = answered(name, counts, epsilon, seed)
    return found


def answered(name: str, counts: np.ndarray, epsilon: float, seed: int) -> dict[str, float]:
    """Errors of what a query tells, and how many intervals hold the truth."""
    from streamveil.mechanisms import Categories, Requirement, Slots
    from streamveil.mechanisms.queries.queries import Query, QuerySet
    from streamveil.mechanisms.queries.simulated import answers_of, simulate_query_set, times_of
    from streamveil.mechanisms.queries.trees import Tree

    classes = len(factor.WINDOWS)
    split = np.random.default_rng(77 + seed).multinomial(counts.ravel(), [1 / classes] * classes)
    cells = split.reshape(*counts.shape, classes).transpose(0, 2, 1)
    cells = np.concatenate([cells, cells.sum(axis=2, keepdims=True)], axis=2)
    users = int(counts.sum(axis=1).max() * 1.5) // classes
    domain = Categories(tuple(f"bin-{number:05}" for number in range(counts.shape[1])))
    query = Query(NAME, value=("bin",), domain=domain, tree=Tree.of(domain, ["all"]), times=(WEEK,))
    query_set = QuerySet(Slots.of("1d"), (query,))
    releases = simulate_query_set(
        query_set,
        {NAME: cells},
        [Requirement(window, epsilon) for window in factor.WINDOWS],
        [users] * classes,
        key=hashlib.sha256(f"{name} {seed}".encode()).digest(),
    ).releases[NAME]
    true = cells.sum(axis=1)
    each, held = _errors(list(answers_of(query, releases)), true)
    weeks = times_of(query, query_set, releases, 0)[WEEK]
    summed = true[: len(weeks) * WEEK].reshape(len(weeks), WEEK, -1).sum(axis=1)
    _, held_week = _errors(weeks, summed)
    return {
        "each": float((each[:, :-1] ** 2).mean() ** 0.5),
        "total": float((each[:, -1] ** 2).mean() ** 0.5),
        "held": float(held[:, -1].mean()),
        "held_week": float(held_week[:, -1].mean()),
    }


def _errors(answers: Any, true: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Errors, and whether intervals hold the truth, both of the shape of `true`."""
    values, low, high = (
        np.array([getattr(one, name)[:, 0] for one in answers])
        for name in ("values", "low", "high")
    )
    return values - true, (low <= true) & (true <= high)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    begin(main, run)
