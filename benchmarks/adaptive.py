"""Error of the adaptive mechanism beside PBD and PBA, what its parts are worth, and where it fails.

python benchmarks/adaptive.py

Everything runs through what `streamveil evaluate` runs: its streams, requirements, seeds and
measures. Budgets E, 4/3 E and 5/3 E, windows w/3, 2w/3 and w, users spread evenly over the nine.
The error is the squared difference of a bin's release and true count, averaged over bins and slots.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from pathlib import Path

import _against_baseline
from _against_baseline import USERS, E, W
from _measure import parser, save, table

ALIKE = "adaptive:assume_independent=false"
MECHANISMS = ("pbd", "pba", "adaptive", ALIKE)
# Mean squared errors from this project's own design notes, written before the code: not from a
# paper, and measured with another implementation and other seeds. By stream, as MECHANISMS.
REFERENCE = {
    "sin": (105e3, 41e3, 1478.0, 2457.0),
    "tlns": (102e3, 40e3, 3719.0, 5740.0),
    "log": (84e3, 37e3, 2105.0, 2711.0),
    "step": (101e3, 42e3, 2768.0, 18.7e3),
    "sin-fixed": (98e3, 37e3, 560.0, 1079.0),
    "tlns-fixed": (98e3, 37e3, 2944.0, 4762.0),
    "log-fixed": (98e3, 37e3, 250.0, 404.0),
    "step-fixed": (None,) * 4,
    "city": (6233.0, 7274.0, 730.0, 2355.0),
    "city-sparse": (1307.0, 1783.0, 267.0, 637.0),
    "sin-correlated": (106e3, 40e3, 8586.0, 2746.0),
    "tlns-correlated": (96e3, 42e3, 11.3e3, 5693.0),
    "log-correlated": (None,) * 4,
    "step-correlated": (None,) * 4,
    "city-correlated": (5.7e3, 7.3e3, 949.0, 1955.0),
}
# The same notes on sin: each part on top of those before it.
ABLATION = {
    "pba": 39.6e3,
    "ablation": 39.4e3,
    "ablation:release=rescaled": 10.9e3,
    "ablation:release=weighted": 7.2e3,
    "ablation:release=weighted:ledger=sliding": 4.0e3,
    "ablation:release=weighted:ledger=sliding:rule=corrected": 3.5e3,
    "ablation:release=weighted:ledger=saving": None,
    "ablation:release=weighted:ledger=saving:rule=corrected": None,
    "adaptive:gate=0:audit=0:reserve=0": 1.2e3,
}
# Stream, E, w, users.
SWEEP = (
    ("sin", 0.2, 120, 10_000),
    ("sin", 0.6, 2, 1_000),
    ("sin", 0.6, 400, 10_000),
    ("sin", 5.0, 12, 1_000_000),
    ("step", 0.2, 12, 50),
    ("step", 0.6, 120, 1_000),
    ("step", 5.0, 400, 10_000),
    ("step", 0.6, 12, 1_000_000),
    ("city", 0.2, 400, 1_000),
    ("city", 0.6, 2, 10_000),
    ("city", 5.0, 120, 50),
    ("city", 0.6, 120, 1_000_000),
    ("sin-correlated", 5.0, 120, 1_000),
    ("sin-correlated", 0.6, 12, 10_000),
    ("sin-correlated", 0.2, 400, 1_000_000),
    ("city-correlated", 5.0, 2, 1_000),
    ("city-correlated", 0.6, 120, 10_000),
)
RIVALS = ("pbd", "pba", "adaptive")
# Stream, mechanism, and what its error must be and should be in parts of what it was before.
AIMS = (
    ("sin", "adaptive", 0.88, 0.78),
    ("tlns", "adaptive", 0.90, 0.80),
    ("log", "adaptive", 0.97, 0.90),
    ("step", "adaptive", 1.05, 0.95),
    ("sin-fixed", "adaptive", 0.75, 0.62),
    ("tlns-fixed", "adaptive", 1.05, None),
    ("log-fixed", "adaptive", 1.05, None),
    ("step-fixed", "adaptive", 1.05, None),
    ("city", "adaptive", 0.97, 0.90),
    ("city-sparse", "adaptive", 1.05, None),
    ("sin-correlated", "adaptive", 1.05, 0.90),
    ("tlns-correlated", "adaptive", 1.05, 0.90),
    ("log-correlated", "adaptive", 1.05, 0.90),
    ("step-correlated", "adaptive", 1.05, 0.90),
    ("city-correlated", "adaptive", 1.05, 0.90),
    ("flights", "adaptive", 1.05, None),
    ("flights", "adaptive:cycle=auto", 0.90, 0.75),
    ("flights-hourly", "adaptive", 1.05, None),
    ("flights-hourly", "adaptive:cycle=auto", 0.50, 0.35),
    ("sparse", "adaptive", 0.75, 0.50),
    ("few", "adaptive", 1.05, None),
)
STREAMS = tuple(dict.fromkeys(aim[0] for aim in AIMS))


def main() -> None:
    options = parser(__doc__)
    add = options.add_argument
    add("--seeds", type=int, default=10, help="streams and noises of the first two tables")
    add("--processes", type=int, default=2)
    add("--quick", action="store_true", help="sizes that measure nothing, to see that it runs")
    add("--pairs", type=int, default=5, help="seeds of the comparison with what was before")
    add("--lag", type=int, default=0, help="slots after which rows are revised; 0 measures none")
    add("--only", nargs="*", choices=TABLES, default=TABLES, help="tables to compute")
    add("--record", metavar="COMMIT", help="write what is compared with, and nothing else")
    given = options.parse_args()
    if given.record:
        _against_baseline.record(given.processes, given.pairs, given.record, STREAMS)
        return
    started = time.monotonic()
    tables = [TABLES[name](given) for name in given.only]
    print(f"\n{time.monotonic() - started:.0f} s in {given.processes} processes")
    kept = {"seeds": given.seeds, "processes": given.processes}
    save(given.results, "adaptive", kept, tables)


def against_baseline(given):
    """Every stream beside what `adaptive` erred before, with all that was asked of it."""
    from streamveil.pipelines.evaluation.workers import all_results

    commit, before = _against_baseline.baseline()
    aims = AIMS[:1] if given.quick else AIMS
    slots, pairs = (12, 1) if given.quick else (None, given.pairs)
    found = table(
        f"Mean squared error in parts of that of adaptive at {commit}, {pairs} seeds",
        [
            *("stream", "mechanism", "error", "ratio", "standard error", "must", "goal"),
            *("relative error", "error / all zeros", "coverage", "coverage above 0"),
            *("least covered", "most covered", "revised / filtered", "CPU ms a slot"),
        ],
        "Ratios are of pairs: the same stream and noise key. All zeros: the error of releasing "
        "nothing but zeros. Least and most covered: of the 10 busiest bins. Revised: the error of "
        f"rows revised {given.lag} slots later in parts of that when they were first released. "
        "`sparse`: 943 users, 214 slots, E = 1, w = 30. `few`: 50 users in 100 bins.",
    )
    tasks = [(*aim[:2], seed, slots, given.lag) for aim in aims for seed in range(pairs)]
    runs = all_results(_against_baseline.run, tasks, given.processes)
    for i, (name, mechanism, must, goal) in enumerate(aims):
        mine = runs[i * pairs : (i + 1) * pairs]
        mean = {key: statistics.fmean(run[key] for run in mine) for key in mine[0]}
        ratios = [run["error"] / was for run, was in zip(mine, before[name], strict=False)]
        spread = statistics.stdev(ratios) / math.sqrt(pairs) if pairs > 1 else None
        shown = ("relative_error", "of_zeros", "coverage", "coverage_above_0")
        ends = ("least_covered", "most_covered")
        found.add(
            *(name, mechanism, mean["error"], statistics.fmean(ratios), spread, must, goal),
            *(mean[key] for key in shown + ends),
            *(mean.get("revised"), 1e3 * mean["seconds"]),
        )
    return found


def slot_costs(given):
    """Time and state by bins."""
    found = table(
        "A slot and the state between slots",
        ["bins", "CPU ms a slot", "state bytes"],
        f"The stream `city`, {USERS:,} users, nine classes, w = {W}.",
    )
    for bins, slots in ((100, 500), (10_000, 200)):
        costs = _against_baseline.slot_costs(bins, 2 if given.quick else slots)
        found.add(bins, *costs)
    return found


def evaluated(given, source, epsilon, window, mechanisms, seeds):
    """Rows of `streamveil evaluate`, one for each mechanism."""
    from streamveil.pipelines.evaluation.comparison import compare, tasks
    from streamveil.pipelines.evaluation.w_event import WEvent

    todo = tasks(WEvent(), [(source, [(epsilon, window)])], mechanisms, seeds)
    return compare(WEvent(), todo, given.processes).rows


def synthetic(name, users, slots):
    from streamveil.pipelines.evaluation.sources import Synthetic

    return Synthetic(name, users, slots)


def error_of(row):
    """Mean squared error that the mechanism makes, and its standard error."""
    spread = row.errors["noise"]
    return row.means["noise"], spread if row.facts["seeds"] > 1 else None


def known(value):
    """A figure, or None in place of NaN."""
    return None if math.isnan(value) else value


def against_reference(given):
    """Every stream with the mechanisms that may be advised."""
    slots, seeds = (12, 1) if given.quick else (3_000, given.seeds)
    names = ("sin", "city") if given.quick else REFERENCE
    errors = table(
        f"Mean squared error, E = {E}, w = {W}, {USERS:,} users, {slots:,} slots, {seeds} seeds",
        [
            *("stream", "mechanism", "error", "standard error", "reference", "error / reference"),
            *("coverage", "published share"),
        ],
        "The reference is from this project's design notes, another implementation, not from a "
        "paper. Coverage: share of true counts within 1.645 released standard errors, 0.9 if they "
        "were complete.",
    )
    for name in names:
        rows = evaluated(given, synthetic(name, USERS, slots), E, W, MECHANISMS, seeds)
        for row, reference in zip(rows, REFERENCE[name], strict=True):
            mean, spread = error_of(row)
            ratio = None if reference is None else mean / reference
            means = known(row.means["coverage"]), row.means["published"]
            errors.add(name, row.mechanism, mean, spread, reference, ratio, *means)
    return errors


def ablations(given):
    """PBA with the parts of adaptive put in one by one."""
    slots, seeds = (12, 1) if given.quick else (3_000, given.seeds)
    parts = table(
        f"Parts of adaptive put into PBA, sin, E = {E}, w = {W}, {slots:,} slots, {seeds} seeds",
        ["mechanism", "error", "standard error", "reference", "error / reference", "published"],
        "The same as `streamveil evaluate --streams=sin --mechanisms=pba,ablation,...`. Rows with "
        "ledger=saving are no part of the reference.",
    )
    for row in evaluated(given, synthetic("sin", USERS, slots), E, W, list(ABLATION), seeds):
        reference = ABLATION[row.mechanism]
        mean, spread = error_of(row)
        ratio = None if reference is None else mean / reference
        parts.add(row.mechanism, mean, spread, reference, ratio, row.means["published"])
    return parts


def sweep(given):
    """Other budgets, windows and sizes."""
    slots, seeds, cases = (8, 1, SWEEP[:2]) if given.quick else (1_000, 2, SWEEP)
    found = table(
        f"Other budgets, windows and sizes, {slots:,} slots, {seeds} seeds",
        [
            *("stream", "E", "w", "users", "pbd", "pba", "adaptive"),
            *("adaptive / better of pbd, pba", "coverage of adaptive", "window use of adaptive"),
        ],
        "Mean squared errors, the ratio of their means, and the coverage of its 90 % intervals.",
    )
    for name, epsilon, window, users in cases:
        rows = evaluated(given, synthetic(name, users, slots), epsilon, window, RIVALS, seeds)
        pbd, pba, adaptive = (row.means["amre"] for row in rows)
        last = rows[-1].means
        ratio = adaptive / min(pbd, pba)
        tail = known(last["coverage"]), last["window_use"]
        found.add(name, epsilon, window, users, pbd, pba, adaptive, ratio, *tail)
    ratios = [row[7] for row in found.rows]
    found.note += f" Geometric mean of the ratios: {statistics.geometric_mean(ratios):.3f}."
    return found


def many_bins(given):
    """Ten thousand bins."""
    slots, seeds = (2, 1) if given.quick else (300, 2)
    found = table(
        f"10,000 bins: city-10000, E = {E}, w = {W}, {slots} slots, {seeds} seeds",
        ["users", "mechanism", "error", "relative error", "coverage", "CPU ms a slot"],
        "The relative error is the sum of absolute errors over that of true counts.",
    )
    for users in (10_000, 1_000_000):
        rows = evaluated(given, synthetic("city-10000", users, slots), E, W, RIVALS, seeds)
        for row in rows:
            m = row.means
            millis = 1e3 * m["seconds"] / slots
            found.add(
                users, row.mechanism, m["amre"], m["relative_error"], known(m["coverage"]), millis
            )
    return found


def flights(given):
    """Real flights, with the requirements of the demo."""
    seeds, names = (1, ["flights"]) if given.quick else (3, ["flights", "flights-hourly"])
    found = table(
        f"A year of flights from New York, the demo's requirements, {seeds} seeds",
        [
            *("stream", "slots", "mechanism", "error", "standard error", "relative error"),
            *("coverage", "published share"),
        ],
        "4,043 aircraft, 105 airports; 1, 2 and 4 epsilon over 3, 7 and 14 days. Of the counts of "
        "hours most are 0. Errors are those of the mechanism, against what counts; the relative "
        "error and the coverage are against all flights.",
    )
    from streamveil.pipelines.evaluation.data import real_stream

    with tempfile.TemporaryDirectory(prefix="streamveil-benchmark-") as folder:
        for name in names:
            source = real_stream(name, Path(folder))
            asked = source.epsilon, source.window
            for row in evaluated(given, source, *asked, ("pbd", "pba", "adaptive"), seeds):
                m = row.means
                errors = *error_of(row), m["relative_error"], known(m["coverage"]), m["published"]
                found.add(name, row.facts["slots"], row.mechanism, *errors)
    return found


TABLES = {
    "before": against_baseline,
    "reference": against_reference,
    "ablations": ablations,
    "sweep": sweep,
    "bins": many_bins,
    "flights": flights,
    "costs": slot_costs,
}

if __name__ == "__main__":
    main()
