"""Error of the releases where requirements change in every slot, beside reference results.

python benchmarks/changing.py

Streams and types of users are those of `utility.py`, whose page says where they come from. Every
type asks in every slot anew, looking ahead only: for an epsilon from its own up to 1.0 and a window
from 40 up to its own, both drawn uniformly; the window looking back is 1 slot and its epsilon 10,
which never binds.
"""

from __future__ import annotations

import hashlib
import itertools
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

from _measure import begin, measure_case, parser, save, table
from utility import BUDGETS, EPSILONS, STREAMS, TYPES, USERS, WINDOWS, probabilities, user_types

NAMES = ("dpbd", "dpba", "adaptive")
# Printed algorithms with budgets kept, one run: by mechanism, stream and E.
REFERENCE = {
    "dpbd": ((101e3, 63.5e3, 31.4e3), (122e3, 68.8e3, 30.6e3), (124e3, 61.2e3, 32.0e3)),
    "dpba": ((24.0e3, 19.8e3, 21.9e3), (27.6e3, 31.2e3, 25.6e3), (8.3e3, 5.4e3, 5.3e3)),
}


def main() -> None:
    options = parser(__doc__, repeats=1)
    add = options.add_argument
    add("--slots", type=int, default=10_000)
    add("--keys", type=int, default=3, help="noise keys and draws of the data in each cell")
    add("--streams", nargs="+", choices=STREAMS, default=STREAMS)
    add("--budgets", nargs="+", type=float, choices=BUDGETS, default=BUDGETS)
    add("--processes", type=int, default=2)
    given = options.parse_args()
    started = time.monotonic()
    errors = table(
        f"Requirements that change in every slot, {given.slots:,} slots, w = 120",
        [
            *("stream", "E", "DPBD", "DPBD / reference", "DPBA", "DPBA / reference"),
            *("adaptive", "adaptive / better of both"),
        ],
        f"Mean squared error a bin and slot, mean over {given.keys} noise keys and draws of the "
        "data; one draw of the types of users and of what they ask for in each slot. The reference "
        "is one run of another draw, which matters more than the noise, as for PBD and PBA.",
    )
    cells = list(itertools.product(given.streams, given.budgets))
    cases = [
        {"name": n, "stream": s, "budget": e, "key": k, "slots": given.slots}
        for s, e in cells
        for n in NAMES
        for k in range(given.keys)
    ]
    with ThreadPoolExecutor(given.processes) as pool:
        answers = pool.map(_measured, cases)
        for stream, budget in cells:
            dpbd, dpba, adaptive = (
                statistics.mean(next(answers) for _ in range(given.keys)) for _ in NAMES
            )
            ratios = [
                found / REFERENCE[name][STREAMS.index(stream)][BUDGETS.index(budget)]
                for name, found in (("dpbd", dpbd), ("dpba", dpba))
            ]
            better = adaptive / min(dpbd, dpba)
            errors.add(stream, budget, dpbd, ratios[0], dpba, ratios[1], adaptive, better)
    print(f"\n{time.monotonic() - started:.0f} s in {given.processes} processes")
    kept = {name: getattr(given, name) for name in ("slots", "keys", "processes")}
    save(given.results, "changing", kept, [errors])


def _measured(case):
    return measure_case("changing.py", case, 1).answers[0]["error"]


def requirements(budget: float, slots: int):
    """What each of the ten types asks for in each slot, shape (slots, 10, 4)."""
    import numpy as np

    random = np.random.default_rng([TYPES, 7])
    asked = np.empty((slots, 10, 4))
    asked[:, :, :2] = 1, 10.0
    for i, (window, epsilon) in enumerate(user_types(budget, TYPES)):
        asked[:, i, 2] = random.choice([w for w in WINDOWS if w <= window], slots)
        asked[:, i, 3] = random.choice([e for e in EPSILONS if e >= epsilon], slots)
    return asked


def run(name: str, stream: str, budget: float, key: int, slots: int) -> dict[str, float]:
    """One simulation: its mean squared error."""
    import numpy as np

    from streamveil.mechanisms import simulate_dynamic

    users = np.full(10, USERS // 10)
    ones = np.random.default_rng(key).binomial(users, probabilities(stream, slots)[:, None])
    counts = np.stack([users - ones, ones], axis=2)
    secret = hashlib.sha256(b"changing %d" % key).digest()
    found = simulate_dynamic(name, counts, requirements(budget, slots), users, secret)
    return {"error": float(((found.released - counts.sum(axis=1)) ** 2).mean())}


if __name__ == "__main__":
    begin(main, run)
