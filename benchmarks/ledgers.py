"""Milliseconds and bytes of the release stage when requirements change, by how many histories.

python benchmarks/ledgers.py
"""

from __future__ import annotations

import itertools
import time

from _measure import begin, measure_case, parser, save, table

WINDOW = 120
BINS = 25
GOAL_MS = 20
MECHANISMS = ("dpbd", "dpba", "adaptive")
# Share of the users that changes in a slot, and of how many requirements they choose.
STREAMS = {
    "no user changes": (0.0, 5),
    "one in a thousand, 5 requirements": (0.001, 5),
    "one in a hundred, 5 requirements": (0.01, 5),
    "everybody, all different": (1.0, None),
}


def main() -> None:
    options = parser(__doc__, repeats=1)
    options.add_argument("--users", type=int, default=10_000)
    options.add_argument("--slots", type=int, default=120, help="slots measured, after w more")
    options.add_argument("--mechanisms", nargs="+", choices=MECHANISMS, default=MECHANISMS)
    given = options.parse_args()
    times = table(
        f"Requirements that change: {given.users:,} users, w = {WINDOW}, {BINS} bins",
        [
            *("mechanism", "who changes in a slot", "ledgers", "median ms a slot"),
            *("95th percentile ms", "ledgers at most", "state kB", "ms to write it"),
        ],
        f"CPU milliseconds of one DynamicStream.release; goal: below {GOAL_MS} when everybody "
        "changes in every slot. Ledgers: at the end, of users with the same history inside the "
        "window; they merge again when they have become equal. State: as bytes at the end; a "
        "bounded run writes it once, a stream without end in every slot.",
    )
    for name, stream in itertools.product(given.mechanisms, STREAMS):
        case = {"name": name, "stream": stream, "users": given.users, "slots": given.slots}
        found = measure_case("ledgers.py", case, given.repeats)
        names = ("ledgers", "median", "high", "most", "kilobytes", "writing")
        times.add(name, stream, *(found.median(name) for name in names))
    kept = {n: getattr(given, n) for n in ("users", "slots", "mechanisms", "repeats")}
    save(given.results, "ledgers", kept, [times])


def run(name: str, stream: str, users: int, slots: int) -> dict[str, float]:
    """Release a stream in which every user is present; every user is a cohort of its own."""
    import numpy as np

    from streamveil.engine.messages import compressed
    from streamveil.mechanisms import DynamicStream, NoiseSource, dynamic_mechanism
    from streamveil.mechanisms.core.budgets import asked_units
    from streamveil.mechanisms.core.cohorts import Moves
    from streamveil.mechanisms.driver.dynamic_stream import CohortCounts
    from streamveil.mechanisms.protocol import Setting

    changing, kinds = STREAMS[stream]
    random = np.random.default_rng(0)

    def asked(number: int):
        chosen = random.integers(kinds, size=number) if kinds else None
        windows = random.integers(1, WINDOW + 1, number) if chosen is None else 20 * (chosen + 1)
        epsilons = random.uniform(0.5, 2, number) if chosen is None else 0.2 * (chosen + 1)
        return asked_units(np.column_stack([windows, epsilons, windows, epsilons]))

    first = asked(users)
    classes, class_of = np.unique(first, axis=0, return_inverse=True)
    class_of = class_of.reshape(-1)
    stream_ = DynamicStream(
        dynamic_mechanism(name, Setting(BINS, WINDOW)),
        classes,
        np.bincount(class_of),
        NoiseSource(bytes(32)),
    )
    cohorts = np.arange(users) + users
    moves = Moves(class_of, cohorts, np.ones(users, np.int64), first)
    state, spent, most = stream_.start(), [], 0
    for slot in range(WINDOW + slots):
        counts = CohortCounts(cohorts, random.integers(0, BINS, users), np.ones(users, np.int64))
        before = time.process_time()
        state, _ = stream_.release(state, slot, counts, moves)
        if slot >= WINDOW:
            spent.append(1000 * (time.process_time() - before))
            most = max(most, len(state.interned.asked))
        movers = np.flatnonzero(random.random(users) < changing)
        children = users * (slot + 2) + movers
        moves = Moves(cohorts[movers], children, np.ones(len(movers), np.int64), asked(len(movers)))
        cohorts[movers] = children
    before = time.process_time()
    written = stream_.keeper.write(compressed(stream_.pack(state)))
    writing = 1000 * (time.process_time() - before)
    return {
        "ledgers": len(state.interned.asked),
        "median": float(np.median(spent)),
        "high": float(np.quantile(spent, 0.95)),
        "most": most,
        "kilobytes": len(written) / 1000,
        "writing": writing,
    }


if __name__ == "__main__":
    begin(main, run)
