"""Error, time and memory of releases forever, beside reference results.

python benchmarks/infinite.py

One budget for all slots of a stream. The error is the mean squared error of released distributions,
against each slot's own, averaged over bins and slots. What can be done without any data is to
release that all bins are alike.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

from _measure import begin, measure_case, parser, save, table

BUDGETS = (0.5, 2.0, 10.0)
UNIT = 1e-6
# Of `streamveil.pipelines.sample_data.streams`.
STREAMS = ("even", "drifting", "jumping", "drifting-many")
# The reference's mechanism: one span, no allowance for noise and chance, means of 8 slots.
AS_SPECIFIED = "spans=false:worth=0:chance=0:latest=8:f_s=0.2:shrink=james-stein"
# Error of the reference in units of 1e-6, by stream and budget; None where it has none.
REFERENCE = {
    "constant": ((0.38,) * 3, (566,) * 3, (714,) * 3, (1112,) * 3),
    "doubling": ((51, 6.2, 0.65), (163, 78, 67), (713, 762, 780), None),
    f"gated:p=1.5:gl=2:{AS_SPECIFIED}": (
        *((0.38,) * 3, (119, 72, 40), (476, 61, 11), (22, 15, 6.6)),
    ),
    f"gated:p=1.2:gl=1.1:{AS_SPECIFIED}": (
        *((0.38,) * 3, (132, 52, 29), (510, 69, 8.6), (16, 7.8, 3.2)),
    ),
    # Beside the better one of the two settings of the reference.
    "gated": ((0.38,) * 3, (119, 52, 29), (476, 61, 8.6), (16, 7.8, 3.2)),
    "gated:p=1.2": ((0.38,) * 3, (119, 52, 29), (476, 61, 8.6), (16, 7.8, 3.2)),
    "gated:p=1.5": ((0.38,) * 3, (119, 52, 29), (476, 61, 8.6), (16, 7.8, 3.2)),
    "gated:shrink=james-stein": ((0.38,) * 3, (119, 52, 29), (476, 61, 8.6), (16, 7.8, 3.2)),
    "gated:spans=false": ((0.38,) * 3, (119, 52, 29), (476, 61, 8.6), (16, 7.8, 3.2)),
    "horizon": (None,) * 4,
}
DPI = "dpi:pool={pool}:precision=10000:total=10000"
DPI_REFERENCE = {"even": 1.35, "drifting": 620}


def main() -> None:
    options = parser(__doc__, repeats=1)
    add = options.add_argument
    add("--slots", type=int, default=1000)
    add("--keys", type=int, default=6, help="draws of data and noise in each cell")
    add("--streams", nargs="+", choices=STREAMS, default=STREAMS, help="rows of the first table")
    add("--pool", type=int, default=10_000, help="synopses of DPI, in the second table")
    add("--many_bins", type=int, default=100_000, help="first row of the last table")
    add("--many_slots", type=int, default=1_000_000, help="second row of the last table")
    add("--processes", type=int, default=2)
    given = options.parse_args()
    started = time.monotonic()
    with ThreadPoolExecutor(given.processes) as pool:
        tables = [against_reference(given, pool), pools(given, pool), at_scale(given)]
    print(f"\n{time.monotonic() - started:.0f} s in {given.processes} processes")
    names = ("slots", "keys", "streams", "pool", "many_bins", "many_slots", "processes")
    save(given.results, "infinite", {name: getattr(given, name) for name in names}, tables)


def against_reference(given, pool):
    """Every mechanism on every stream."""
    errors = table(
        f"Error in units of {UNIT:g}, {given.slots:,} slots, 100 bins",
        ["stream", "mechanism", "epsilon", "error", "standard error", "reference", "ratio"],
        f"Mean and standard error over {given.keys} draws of data and noise. `even`: about equal "
        "counts; `jumping`: a Zipf distribution of exponent 1.1, shuffled anew every 200 slots; "
        "`drifting`: each bin's log popularity takes a normal step of 0.036 a slot from a Zipf "
        "distribution of exponent 0.95, of 10,000 events a slot; `drifting-many`: steps of 0.034 "
        "from an exponent of 1.2, of a million. The reference names its streams and no more: "
        "exponents and steps are such that `constant` and `doubling` err about as they do there, "
        "and draws differ a lot. So ratios on drifting streams are rough. "
        "What is beside `gated` without or with one option is the better of the reference's two "
        "settings. `horizon` is not infinite: it releases nothing new after 1,000 slots.",
    )
    cases = [{"stream": stream, "slots": given.slots} for stream in given.streams]
    names = list(REFERENCE)
    for stream, found in zip(given.streams, _errors(given, pool, cases, names), strict=True):
        for name in names:
            known = REFERENCE[name][STREAMS.index(stream)]
            for i, epsilon in enumerate(BUDGETS):
                mean, error = _mean(found[f"{name} {epsilon}"])
                reference = known[i] if known else None
                ratio = mean / reference if reference else None
                errors.add(stream, name, epsilon, mean, error, reference, ratio)
    return errors


def pools(given, pool):
    """DPI beside what knows no data."""
    errors = table(
        f"DPI repaired, {given.pool:,} synopses: error in units of {UNIT:g}",
        ["stream", "epsilon", "constant", "dpi", "reference"],
        "One draw of data and noise. It errs more than releasing that all bins are alike.",
    )
    name = DPI.format(pool=given.pool)
    streams = [stream for stream in given.streams if stream in DPI_REFERENCE]
    cases = [{"stream": stream, "slots": given.slots} for stream in streams]
    for stream, found in zip(
        streams, _errors(given, pool, cases, ["constant", name], keys=1), strict=True
    ):
        for epsilon in BUDGETS:
            constant, dpi = (found[f"{one} {epsilon}"][0] for one in ("constant", name))
            errors.add(stream, epsilon, constant, dpi, DPI_REFERENCE[stream])
    return errors


def at_scale(given):
    """Seconds and bytes of `gated`."""
    cost = table(
        "Gated at scale",
        ["bins", "slots", "CPU s", "slowest slot (s)", "releases", "bytes of state"],
        "CPU seconds of releasing all slots, on one core, drawing the data left out; slots of "
        "100 events a bin, of a Zipf distribution that jumps every 1,000 slots; an epsilon of 10.",
    )
    for bins, slots in ((given.many_bins, 10), (100, given.many_slots)):
        found = _answered({"bins": bins, "slots": slots})
        names = ("seconds", "slowest", "releases", "bytes")
        cost.add(bins, slots, *(found[name] for name in names))
    return cost


def _errors(given, pool, cases, mechanisms, keys=None):
    """Yield, for each case, the errors of each mechanism and budget with each key."""
    numbers = range(keys or given.keys)
    wanted = [{"mechanisms": mechanisms, **case, "key": key} for case in cases for key in numbers]
    answers = pool.map(_answered, wanted)
    for _ in cases:
        found = [next(answers) for _ in numbers]
        yield {name: [one[name] / UNIT for one in found] for name in found[0]}


def _answered(case):
    return measure_case("infinite.py", case, 1).answers[0]


def _mean(values):
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
    return statistics.mean(values), error


def run(mechanisms: list[str], stream: str, slots: int, key: int) -> dict[str, float]:
    """Error of each mechanism and budget on the same counts."""
    import numpy as np

    from streamveil.mechanisms import INFINITE_MECHANISMS, simulate_infinite
    from streamveil.mechanisms.registry import parse
    from streamveil.pipelines.sample_data.streams import infinite_stream

    counts = np.stack(list(infinite_stream(stream, slots, np.random.default_rng([7, key]))))
    truth = counts / counts.sum(axis=1, keepdims=True)
    errors = {}
    for text in mechanisms:
        name, options = parse(text, INFINITE_MECHANISMS)
        for epsilon in BUDGETS:
            found = simulate_infinite(name, counts, epsilon, _key(key), **options)
            errors[f"{text} {epsilon}"] = float(((found.released - truth) ** 2).mean())
    return errors


def run_long(bins: int, slots: int) -> dict[str, float]:
    """Seconds and bytes of a long stream, or of many bins."""
    import numpy as np

    from streamveil.mechanisms import NoiseSource, ReleaseStream, infinite_mechanism

    random = np.random.default_rng(1)
    logs = -1.1 * np.log(np.arange(1, bins + 1))
    stream = ReleaseStream(infinite_mechanism("gated", bins, 10.0), NoiseSource(_key(1)))
    state, seconds, slowest, releases = stream.start(), 0.0, 0.0, 0
    for first in range(0, slots, 1000):
        random.shuffle(logs)
        shares = np.exp(logs) / np.exp(logs).sum()
        some = random.multinomial(100 * bins, shares, min(1000, slots - first))
        for slot, row in enumerate(some, first):
            started = time.process_time()
            state, release = stream.release(state, slot, row[None])
            taken = time.process_time() - started
            seconds, slowest = seconds + taken, max(slowest, taken)
            releases += release.status == "published"
    held = len(stream.encode(state))
    return {"seconds": seconds, "slowest": slowest, "releases": releases, "bytes": held}


def _key(number: int) -> bytes:
    return hashlib.sha256(b"infinite %d" % number).digest()


if __name__ == "__main__":
    begin(main, lambda **case: run_long(**case) if "bins" in case else run(**case))
