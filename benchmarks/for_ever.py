"""One budget for ever where people come and go: users count in so many slots of their lives.

python benchmarks/for_ever.py
python benchmarks/for_ever.py --picture=docs/images/for-ever.png

Users come for some slots that lie close together, and never again. What `--guarantee=user` releases
is compared with `gated`, which shares one budget among all slots (`--guarantee=infinite`). Errors
are squared differences of a bin's release and true count, averaged over bins and slots.
"""

from __future__ import annotations

import hashlib
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _measure import begin, measure_case, parser, save, table

EPSILON, BINS, DRIFT = 1.0, 20, 0.036
PART = 100
"""Slots of which an error is the mean."""
# Visits in a life, whether all have as many, users who are always there, and M.
POPULATIONS = (
    ("as many slots as count", 3, True, 0, 3),
    ("more than count", 3, True, 0, 2),
    ("unlike lives", 3, False, 0, 4),
    ("and 300 who stay", 3, True, 300, 3),
)
YEARS = 10


def main() -> None:
    options = parser(__doc__, repeats=1)
    add = options.add_argument
    add("--users", type=int, default=1_000_000, help="who come and go, in a thousand slots")
    add("--slots", type=int, default=1000)
    add("--seeds", type=int, nargs="+", default=[4, 5, 6, 7, 8])
    add("--processes", type=int, default=2)
    add("--picture", metavar="FILE", help="draw ten years of days, and measure nothing")
    given = options.parse_args()
    if given.picture:
        draw(given.picture)
        return
    errors = table(
        f"A budget of {EPSILON:g} for ever, {given.users:,} users who come and go in "
        f"{given.slots:,} slots, {BINS} bins",
        [
            *("users come in", "max_slots", "slots kept", "kept_share"),
            *("error, first", "error, last", "gated, last", "ratio", "coverage"),
        ],
        f"Means over {len(given.seeds)} seeds; first and last {PART} slots. Users come in 3 slots "
        "of their lives, or in 3 in the mean (unlike lives: 1, 2, 3, ... with falling chances), "
        "that lie within some days. Bins drift: the log popularity of each takes a normal step of "
        f"{DRIFT} a slot. `kept_share` is the private estimate after the last slot, beside the "
        "share of the last slots' events that count. Coverage is that of intervals of 90 %. Of "
        "those who stay, what is beyond 3 max_slots is in no figure.",
    )
    wanted = [
        {"users": given.users, "slots": given.slots, "visits": visits, "alike": alike}
        | {"staying": staying, "in_life": in_life, "seed": seed}
        for _, visits, alike, staying, in_life in POPULATIONS
        for seed in given.seeds
    ]
    with ThreadPoolExecutor(given.processes) as pool:
        answers = pool.map(lambda case: measure_case("for_ever.py", case, 1).answers[0], wanted)
        for name, *_, in_life in POPULATIONS:
            found = [next(answers) for _ in given.seeds]
            mean = {key: statistics.mean(one[key] for one in found) for key in found[0]}
            errors.add(
                *(name, in_life, mean["kept"], mean["kept_share"], mean["first"], mean["last"]),
                *(mean["gated"], mean["gated"] / mean["last"], mean["coverage"]),
            )
    names = ("users", "slots", "seeds", "processes")
    save(given.results, "for_ever", {name: getattr(given, name) for name in names}, [errors])


def run(seed: int, in_life: int, **population: Any) -> dict[str, float]:
    """Errors of both promises, coverage and share of one population."""
    import numpy as np

    true, kept, above = drawn(seed, in_life, **population)
    counts, stderr, share = released(kept, above, in_life, seed)
    gated, _ = shared(true, seed)
    missed = counts - true
    last = slice(-PART, None)
    return {
        "kept": float(kept[last].sum() / true[last].sum()),
        "kept_share": share,
        "first": float((missed[:PART] ** 2).mean()),
        "last": float((missed[last] ** 2).mean()),
        "gated": float(((gated - true)[last] ** 2).mean()),
        "coverage": float((np.abs(missed) < 1.645 * stderr).mean()),
    }


def drawn(
    seed: int,
    in_life: int,
    users: int,
    slots: int,
    visits: int = 3,
    alike: bool = True,
    staying: int = 0,
) -> tuple[Any, Any, Any]:
    """Events by slot and bin, those that count, and by slot those of layers 1 to 3 of lives."""
    import numpy as np

    random = np.random.default_rng([11, seed])
    logs = random.normal(0, 1, BINS) + random.normal(0, DRIFT, (slots, BINS)).cumsum(axis=0)
    shares = np.exp(logs) / np.exp(logs).sum(axis=1, keepdims=True)
    length = np.full(users, visits) if alike else random.geometric(1 / visits, users)
    who = np.repeat(np.arange(users), length)
    first = np.repeat(length.cumsum() - length, length)
    number = np.arange(len(who)) - first  # which visit of a life
    gaps = random.integers(1, 8, len(who)).cumsum()
    slot = np.repeat(random.integers(-20, slots, users), length) + gaps - gaps[first]
    slot = np.concatenate([slot, np.tile(np.arange(slots), staying)])
    number = np.concatenate([number, np.tile(np.arange(slots), staying)])
    there = (slot >= 0) & (slot < slots)
    slot, number = slot[there], number[there]
    edges = (shares.cumsum(axis=1)[:, :-1] + np.arange(slots)[:, None]).ravel()
    place = np.searchsorted(edges, slot + random.random(len(slot))) - slot * (BINS - 1)
    layer = np.where(number > 3 * in_life, 4, number // in_life)  # 3 is the first visit beyond
    true, kept = np.zeros((2, slots, BINS), np.int64)
    np.add.at(true, (slot, place), 1)
    np.add.at(kept, (slot[layer == 0], place[layer == 0]), 1)
    above = [np.bincount(slot[layer == each], minlength=slots) for each in (1, 2, 3)]
    return true, kept, np.column_stack(above)


def released(kept: Any, above: Any, in_life: int, seed: int) -> tuple[Any, Any, float]:
    """Counts and standard errors of `--guarantee=user`, and the share as it is estimated."""
    import numpy as np

    from streamveil.mechanisms import Lifetime
    from streamveil.mechanisms.core.budgets import Requirements
    from streamveil.mechanisms.driver.life_stream import LifeStream
    from streamveil.mechanisms.driver.present_stream import Presence
    from streamveil.mechanisms.presence import Limit
    from streamveil.mechanisms.presence.kept_share import Beyond
    from streamveil.mechanisms.presence.limits import EVERYBODY
    from streamveil.mechanisms.protocol import Population
    from streamveil.mechanisms.randomness.noise import NoiseSource
    from streamveil.mechanisms.registry import DEFAULT, mechanism

    limit, asked = Limit(None, in_life=in_life), Lifetime(EPSILON)
    population = Population(
        Requirements([limit.priced(asked)]), np.array([EVERYBODY]), kept.shape[1]
    )
    presence = Presence((limit,), Requirements([asked]), "add_remove")
    made = mechanism(DEFAULT, population)
    stream = LifeStream(made, NoiseSource(_key(seed)), {}, presence)
    state, found, nobody = stream.start(), [], np.zeros(3, np.int64)
    for slot, (counts, beyond_limit) in enumerate(zip(kept, above, strict=True)):
        beyond = Beyond(np.arange(1, 4), nobody, nobody, beyond_limit)
        state, release = stream.release(state, slot, counts[None], beyond)
        found.append(release)
    share = found[-1].diagnostics["kept_share"]
    return np.array([one.counts for one in found]), np.array([one.stderr for one in found]), share


def shared(true: Any, seed: int) -> tuple[Any, Any]:
    """Counts of `gated`, with the true total, and when it last measured."""
    from streamveil.mechanisms import simulate_infinite

    found = simulate_infinite("gated", true, EPSILON, _key(seed))
    return found.released * true.sum(axis=1, keepdims=True), found.age


def draw(path: str) -> None:
    """Ten years of days: one bin as it was and as both promises release it, and their errors."""
    import matplotlib.pyplot as plt
    import numpy as np

    days = 365 * YEARS
    true, kept, beyond = drawn(4, 3, users=1000 * days, slots=days)
    lines = {
        "gated (--guarantee=infinite)": (shared(true, 4)[0], "#cc7a00"),
        "--guarantee=user --max_slots=3": (released(kept, beyond, 3, 4)[0], "#0063b2"),
    }
    busiest = int(np.ptp(true, axis=0).argmax())
    years = np.arange(days) / 365
    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 4.4), sharex=True)
    above.plot(years, true[:, busiest], color="#c8c8c8", linewidth=3, label="true")
    for name, (counts, color) in lines.items():
        above.plot(years, counts[:, busiest], color=color, linewidth=0.8, label=name)
        squares = ((counts - true) ** 2).mean(axis=1)
        months = squares[: days // 30 * 30].reshape(-1, 30).mean(axis=1)
        below.semilogy(np.arange(len(months)) * 30 / 365, np.sqrt(months), color=color)
    above.set_ylabel("events a day in one bin")
    above.legend(loc="upper left", fontsize=8, frameon=False)
    below.set_ylabel("error (rms)")
    below.set_xlabel("years")
    below.set_xlim(0, YEARS)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=100, metadata={"Software": None})
    print(f"{path}: {Path(path).stat().st_size:,} bytes")


def _key(number: int) -> bytes:
    return hashlib.sha256(b"for ever %d" % number).digest()


if __name__ == "__main__":
    begin(main, run)
