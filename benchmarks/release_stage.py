"""Milliseconds of the release stage per slot: counts in, release and budgets out, without Beam.

python benchmarks/release_stage.py
"""

from __future__ import annotations

import itertools
import time

from _measure import begin, measure_case, parser, save, table

CLASSES = 25
BINS = 100
GOAL_MS = 60
# Where most slots are quiet, of a slot, whatever it is.
GOAL_OF_QUIET_MS = 0.25


def main() -> None:
    options = parser(__doc__)
    add = options.add_argument
    add("--users", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    add("--windows", type=int, nargs="+", default=[40, 200, 1000])
    add("--slots", type=int, default=300, help="slots that are measured, after w more")
    add("--quiet_slots", type=int, default=3000, help="slots of a stream that stays as it is")
    given = options.parse_args()
    measured = [changing(given), quiet(given)]
    names = ("users", "windows", "slots", "quiet_slots", "repeats")
    kept = {name: getattr(given, name) for name in names}
    save(given.results, "release_stage", kept, measured)


def changing(given):
    """What a slot costs where its bins are others than before."""
    columns = [
        *("mechanism", "requirements", "registered users", "present users", "longest window"),
        *("median ms a slot", "95th percentile ms", "ms of a published slot", "published share"),
    ]
    times = table(
        f"The release stage alone: {CLASSES} classes, {BINS} bins",
        columns,
        f"CPU milliseconds of one ReleaseStream.release; goal: below {GOAL_MS} with 1,000,000 "
        "users present, and independent of the window and, when as many are present, of the "
        "registered users. The bins change from slot to slot, so that most slots that may publish "
        "do. Grid: 5 windows x 5 epsilons; the larger the classes, the "
        "fewer of them are sampled, at most one of 25 with 1,000,000 users. Near: epsilons of 0.1 "
        "that differ by a ten-millionth, the worst case: all classes but the highest, or nearly "
        "all, are sampled, one random word for each user present, twice in a published slot.",
    )
    fewest = min(given.users)
    for name, near, users in itertools.product(("pbd", "pba"), (False, True), given.users):
        for present, window in itertools.product(sorted({fewest, users}), given.windows):
            case = {
                "kind": "changing",
                "name": name,
                "near": near,
                "users": users,
                "present": present,
                "window": window,
                "slots": given.slots,
            }
            found = measure_case("release_stage.py", case, given.repeats)
            asked_for = "near" if near else "grid"
            published = found.answers[0]["published_ms"] and found.median("published_ms")
            times.add(
                *(name, asked_for, users, present, window, found.median("median")),
                *(found.median("high"), published, found.median("published")),
            )
    return times


def quiet(given):
    """What a slot costs where nothing happens, as in most slots of most streams."""
    columns = [
        *("mechanism", "classes", "mean ms a slot", "median ms", "95th percentile ms"),
        *("ms of a published slot", "published share"),
    ]
    times = table(
        f"A stream that stays as it is: 10,000 users, {BINS} bins, {given.quiet_slots} slots",
        columns,
        "CPU milliseconds of one ReleaseStream.release, from the first slot on; goal: a mean of "
        f"{GOAL_OF_QUIET_MS} at most. Every bin has as many events in every slot, but for chance. "
        "Windows of 40 to 120 slots, epsilons of 0.6 to 1.",
    )
    for name, classes in itertools.product(("adaptive", "pbd", "pba"), (9, CLASSES)):
        case = {"kind": "quiet", "name": name, "classes": classes, "slots": given.quiet_slots}
        found = measure_case("release_stage.py", case, given.repeats)
        what = [found.median(one) for one in ("mean", "median", "high", "published_ms")]
        times.add(name, classes, *what, found.median("published"))
    return times


def run_quiet(name: str, classes: int, slots: int) -> dict[str, float]:
    """Release `slots` slots of a stream that stays as it is."""
    import numpy as np

    from streamveil.mechanisms import NoiseSource, Population, ReleaseStream, Requirement, mechanism

    each = round(classes**0.5)
    windows = np.linspace(40, 120, each).astype(int).tolist()
    requirements = [Requirement(w, e) for w in windows for e in np.linspace(0.6, 1, each).tolist()]
    population = Population(tuple(requirements), np.full(classes, 10_000 // classes), BINS)
    stream = ReleaseStream(mechanism(name, population), NoiseSource(bytes(32)))
    random, state = np.random.default_rng(7), stream.start()
    spent, published = [], []
    for slot in range(slots):
        counts = random.poisson(100 / classes, (classes, BINS)).astype(np.int64)
        before = time.process_time()
        state, release = stream.release(state, slot, counts)
        spent.append(1000 * (time.process_time() - before))
        published.append(release.status == "published")
    return {
        "mean": float(np.mean(spent)),
        "median": float(np.median(spent)),
        "high": float(np.quantile(spent, 0.95)),
        "published": float(np.mean(published)),
        "published_ms": float(np.median(np.array(spent)[published])),
    }


def run_changing(
    name: str, near: bool, users: int, present: int, window: int, slots: int
) -> dict[str, float | None]:
    """Release `slots` slots of a stream whose bins change, after a warm-up of one window."""
    import numpy as np

    from streamveil.mechanisms import NoiseSource, Population, ReleaseStream, Requirement, mechanism

    requirements = [
        Requirement(window, 0.1 * (1 - 1e-7 * (5 * w + e)))
        if near
        else Requirement(max(window * w // 5, 1), 0.2 * e)
        for w in range(1, 6)
        for e in range(1, 6)
    ]
    random = np.random.default_rng(users + window)
    sizes = np.full(CLASSES, users // CLASSES)
    population = Population(tuple(requirements), sizes, BINS)
    stream = ReleaseStream(mechanism(name, population), NoiseSource(bytes(32)))
    state = stream.start()
    spent, published = [], []
    for slot in range(window + slots):
        shares = random.dirichlet(np.ones(BINS))
        counts = random.multinomial(present // CLASSES, shares, CLASSES).astype(np.int64)
        before = time.process_time()
        state, release = stream.release(state, slot, counts)
        if slot >= window:
            spent.append(1000 * (time.process_time() - before))
            published.append(release.status == "published")
    where = np.array(published)
    return {
        "median": float(np.median(spent)),
        "high": float(np.quantile(spent, 0.95)),
        "published": float(where.mean()),
        "published_ms": float(np.median(np.array(spent)[where])) if where.any() else None,
    }


CASES = {"changing": run_changing, "quiet": run_quiet}

if __name__ == "__main__":
    begin(main, lambda kind, **case: CASES[kind](**case))
