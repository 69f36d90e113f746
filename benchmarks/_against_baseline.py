"""Every figure of one mechanism on one stream, beside the errors of `adaptive` as it was before.

The errors before are in `adaptive_baseline.json`, of the commit that is named there: by stream, one
for each seed. Streams and noise keys of a seed are those of `streamveil evaluate`, so that ratios
are of pairs.
"""

from __future__ import annotations

import functools
import itertools
import json
import tempfile
import time
from pathlib import Path

from _measure import HERE

BASELINE = HERE / "adaptive_baseline.json"
E, W, USERS, SLOTS = 0.6, 120, 10_000, 3_000
# E, w, users and slots of streams that are not like the others.
SPARSE = {"sparse": (1.0, 30, 943, 214), "few": (E, W, 50, 1_000)}
# What a stream is called where it is another one with fewer users.
DRAWN_AS = {"few": "city-sparse"}
REAL = ("flights", "flights-hourly")
BUSIEST = 10


@functools.cache
def source(name):
    """(stream, E, w), real ones counted once in each process."""
    from streamveil.pipelines.evaluation.data import real_stream
    from streamveil.pipelines.evaluation.sources import Synthetic

    if name in REAL:
        found = real_stream(name, Path(_folder().name))
        return found, found.epsilon, found.window
    epsilon, window, users, slots = SPARSE.get(name, (E, W, USERS, SLOTS))
    return Synthetic(DRAWN_AS.get(name, name), users, slots), epsilon, window


@functools.cache
def _folder():
    return tempfile.TemporaryDirectory(prefix="streamveil-benchmark-")


def baseline():
    """(commit, errors by stream)."""
    kept = json.loads(BASELINE.read_text())
    return kept["commit"], kept["errors"]


def run(task):
    """Figures of (stream, mechanism, seed, slots, revise): what a worker does."""
    import numpy as np

    from streamveil.mechanisms.core.tidy import interval
    from streamveil.mechanisms.simulation import simulate
    from streamveil.pipelines.evaluation.comparison_table import noise_key

    name, mechanism, seed, slots, revise = task
    stream, *asked = source(name)
    public = stream.population(*asked)
    drawn = stream.slots_of(*asked, seed)
    counts = np.stack([one.counts for one in itertools.islice(drawn, slots)])
    about = (counts, public.requirements, public.sizes, noise_key(seed))
    later = {"revise": revise} if revise else {}
    begun = time.process_time()
    found = simulate(mechanism, *about, sensitivity=public.sensitivity, **later)
    seconds = time.process_time() - begun
    true = counts.sum(axis=1)
    squares = (found.released - true).astype(float) ** 2
    low, high = interval(found.released, found.stderr)
    known = np.isfinite(low)
    within = known & (low <= true) & (true <= high)
    busiest = np.argsort(-true.sum(axis=0))[:BUSIEST]
    by_bin = within[:, busiest].sum(axis=0) / np.maximum(known[:, busiest].sum(axis=0), 1)
    figures = {
        "error": squares.mean(),
        "relative_error": np.abs(found.released - true).sum() / true.sum(),
        "of_zeros": squares.mean() / (true.astype(float) ** 2).mean(),
        "coverage": within.sum() / known.sum(),
        "coverage_above_0": within[known & (true > 0)].mean(),
        "least_covered": by_bin.min(),
        "most_covered": by_bin.max(),
        "published": (found.status == "published").mean(),
        "seconds": seconds / len(counts),
    }
    if revise:
        again = np.isfinite(found.revised_stderr)
        misses = (found.revised - true).astype(float) ** 2
        figures["revised"] = misses[again].mean() / squares[again].mean()
    return [{name: float(figure) for name, figure in figures.items()}]


def slot_costs(bins, slots):
    """(CPU ms a slot, bytes of the state) of `adaptive` on a city of so many places."""
    from streamveil.mechanisms import NoiseSource, ReleaseStream, mechanism
    from streamveil.pipelines.evaluation.comparison_table import noise_key
    from streamveil.pipelines.evaluation.sources import Synthetic

    places = Synthetic({100: "city", 10_000: "city-10000"}[bins], USERS, slots)
    stream = ReleaseStream(
        mechanism("adaptive", places.population(E, W)), NoiseSource(noise_key(0))
    )
    state, seconds = stream.start(), 0.0
    for slot, (counts, _) in enumerate(places.slots_of(E, W, 0)):
        begun = time.process_time()
        state, _ = stream.release(state, slot, counts)
        seconds += time.process_time() - begun
    return 1e3 * seconds / slots, len(stream.encode(state))


def record(processes, seeds, commit, streams):
    """Write the errors of `adaptive` in the code that runs as those of `commit`."""
    from streamveil.pipelines.evaluation.workers import all_results

    tasks = [(name, "adaptive", seed, None, 0) for name in streams for seed in range(seeds)]
    found = all_results(run, tasks, processes)
    errors = {name: [] for name in streams}
    for task, figures in zip(tasks, found, strict=True):
        errors[task[0]].append(figures["error"])
    BASELINE.write_text(json.dumps({"commit": commit, "errors": errors}, indent=1) + "\n")
