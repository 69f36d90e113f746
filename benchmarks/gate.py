"""Whether streamveil has become slower, beside bare loops in the same run: by more than a fifth.

python benchmarks/gate.py

It measures a few ratios to what does the same without budgets, noise and checks, compares them with
those in results/gate.json, and exits with 1 if one of them is more than 20 % above. CPU seconds of
two machines, or of a busy one and an idle one, do not compare; ratios within one run nearly do.
`--record` puts what it found in place of what is committed.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _measure import asked_case, data_folder, machine, measure, measure_case, parser, table
from end_to_end import FEW, FEWEST, MANY, Bench

MOST = 0.2
"""A ratio may be above what is committed by this part of it."""
IMPORTS = "import apache_beam, pyarrow.csv, pyarrow.parquet"
MECHANISMS = ("pba", "adaptive")
SLOTS, BINS, CLASSES = 600, 100, 9
BARE_FOR_EACH = 20
"""Bare releases for each slot that is measured: one alone takes microseconds."""


def main() -> None:
    options = parser(__doc__, repeats=3)
    add = options.add_argument
    add("--events", type=int, default=5_000_000, help="events of each large file")
    add("--many_users", type=int, default=MANY, help="users of the file with many")
    add("--slots", type=int, default=SLOTS, help="slots that are released in one process")
    add("--record", action="store_true", help="write what is found to the results, and accept it")
    given = options.parse_args()
    sizes = {name: getattr(given, name) for name in ("events", "many_users", "slots")}
    path = Path(given.results) / "gate.json"
    committed = {} if given.record else json.loads(path.read_text())
    if committed and committed["options"] | sizes != committed["options"]:
        sys.exit(
            f"gate: {path.name} was measured with {committed['options']}, and this run with "
            f"{sizes}: measure the same, or write this down with --record"
        )
    with data_folder(given.folder) as folder:
        ratios = ratios_of(medians(folder, given.repeats, **sizes), given.many_users)
    if given.record:
        path.parent.mkdir(parents=True, exist_ok=True)
        known = {"machine": machine(), "options": sizes | {"repeats": given.repeats}}
        path.write_text(json.dumps(known | {"ratios": ratios}, indent=1) + "\n")
        print(f"\nwrote {path.name}")
        return
    faults = compared(ratios, committed["ratios"])
    if faults:
        sys.exit("\n".join(f"gate: {fault}" for fault in faults))
    print(f"\nno ratio is more than {MOST:.0%} above what is committed")


def compared(measured: Mapping[str, float], committed: Mapping[str, float]) -> list[str]:
    """What is wrong with ratios beside those that are committed, each in a line; shows all."""
    shown = table("Ratios", ["what", "measured", "committed", "above"])
    faults = []
    for name in dict.fromkeys((*committed, *measured)):
        ours, theirs = measured.get(name), committed.get(name)
        if ours is None or theirs is None:
            where = "measured" if ours is None else "committed"
            faults.append(f"{name} is not {where}: write down what there is with --record")
            continue
        above = ours / max(theirs, 1e-9) - 1  # of too few events nothing is measured
        shown.add(name, ours, theirs, f"{above:+.0%}")
        if above > MOST:
            faults.append(
                f"{name} is {ours:.2f} times as much, and {theirs:.2f} is committed: {above:.0%} "
                f"more, of {MOST:.0%} at most. Find what became slower; if that is meant to be so, "
                "run with --record and say why in the commit"
            )
    return faults


def medians(
    folder: Path, repeats: int, events: int, many_users: int, slots: int
) -> dict[str, float]:
    """Medians of CPU seconds by name; of each round everything is measured once, in turn."""
    bench, found = Bench(folder, 1), defaultdict(list)
    for _ in range(repeats):
        found["imports"].append(measure([sys.executable, "-c", IMPORTS], 1).cpu)
        for users in (FEW, many_users):
            for size, many in ((FEWEST, "few"), (events, "many")):
                found[f"command {users} {many}"].append(bench.streamveil(size, users).cpu)
                found[f"loop {users} {many}"].append(bench.bare_loop(size, users).cpu)
        for name in MECHANISMS:
            case = {"mechanism": name, "slots": slots}
            times = measure_case("gate.py", case, 1).answers[0]
            for what, seconds in times.items():
                found[f"{what} {name}"].append(seconds)
    return {name: statistics.median(times) for name, times in found.items()}


def ratios_of(seconds: Mapping[str, float], many_users: int) -> dict[str, float]:
    """How many times as long streamveil takes as what it is measured beside."""
    ratios = {"start-up beside its imports": seconds[f"command {FEW} few"] / seconds["imports"]}
    for users in (FEW, many_users):
        command, loop = (
            seconds[f"{which} {users} many"] - seconds[f"{which} {users} few"]
            for which in ("command", "loop")
        )
        # Of too few events there is nothing but start-up.
        ratios[f"events of {users:,} users beside a bare loop"] = max(command, 0) / max(loop, 1e-3)
    for name in MECHANISMS:
        bare = seconds[f"bare {name}"]
        ratios[f"a slot of {name} beside a bare release"] = seconds[f"slot {name}"] / bare
    return ratios


def run(mechanism: str, slots: int) -> dict[str, float]:
    """Mean CPU seconds of a slot, and of a bare release of it: a sum, and noise of floats."""
    import numpy as np

    from streamveil.mechanisms import NoiseSource, Population, ReleaseStream, Requirement
    from streamveil.mechanisms import mechanism as mechanism_of

    asked = tuple(Requirement(w, e) for w in (40, 80, 120) for e in (0.6, 0.8, 1.0))
    population = Population(asked, np.full(CLASSES, FEW // CLASSES), BINS)
    stream = ReleaseStream(mechanism_of(mechanism, population), NoiseSource(bytes(32)))
    random, state = np.random.default_rng(7), stream.start()
    clock: dict[str, float] = {"slot": 0.0, "bare": 0.0}
    for slot in range(slots):
        counts = random.poisson(11, (CLASSES, BINS)).astype(np.int64)
        began = time.process_time()
        state, _ = stream.release(state, slot, counts)
        between = time.process_time()
        for _ in range(BARE_FOR_EACH):
            np.rint(np.maximum(counts.sum(axis=0) + random.laplace(0, 10, BINS), 0))
        clock["slot"] += between - began
        clock["bare"] += (time.process_time() - between) / BARE_FOR_EACH
    return {what: seconds / slots for what, seconds in clock.items()}


if __name__ == "__main__":
    asked: dict[str, Any] | None = asked_case()
    if asked is None:
        main()
    else:
        print(json.dumps(run(**asked)))
