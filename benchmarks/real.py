"""Streams shaped like public event files: value / truth, and coverage of the 90 % intervals.

python benchmarks/real.py

Streams and their truth are in `tests/real`. All goes through `sv.release`.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

from _measure import HERE, begin, measure_case, parser, save, table

sys.path.insert(0, str(HERE.parent))


def main() -> None:
    from tests.real import scores as scored
    from tests.real.streams import STREAMS

    options = parser(__doc__)
    add = options.add_argument
    add("--seeds", type=int, default=len(scored.SEEDS), help="of each stream and its noise")
    add("--streams", nargs="*", choices=STREAMS, default=list(STREAMS), help="those to measure")
    add("--epsilons", type=float, nargs="+", default=list(scored.EPSILONS))
    given = options.parse_args()
    found = []
    for name in given.streams:
        case = {"name": name, "epsilons": given.epsilons, "seeds": given.seeds}
        (answer,) = measure_case("real.py", case, 1).answers
        found += [scored.Score(**one) for one in answer["scores"]]
    seeds = f"{given.seeds} seeds"
    days = f"first {scored.FIRST_DAYS} days"
    about = "; ".join(f"{name}: {STREAMS[name].about}" for name in given.streams)
    each = table(
        f"Value / truth and coverage of intervals of 90 %, {seeds}",
        ["stream", "figure", "E", "value / truth", "bias in s.e.", f"coverage, {days}", "later"],
        f"{about}. A figure is the sum of all its slots and bins; the bias is the mean difference "
        "from the truth, in standard errors of that mean over the seeds.",
    )
    for asked in scored.grouped(found, "stream", "figure", "epsilon"):
        each.add(*asked.key, asked.ratio, asked.bias, *asked.coverages)
    together = table(
        f"The same by figure and budget, {seeds}",
        [
            *("figure", "E", "streams", "least value / truth", "most"),
            *("sums beyond 3 s.e.", f"coverage, {days}", "later"),
        ],
        "Beyond 3 standard errors are sums that differ from the truth by more than that and by "
        f"more than {scored.SLIGHT:.0%}.",
    )
    for asked in scored.grouped(found, "figure", "epsilon"):
        parts = scored.grouped(asked.scores, "stream")
        ratios = [one.ratio for one in parts]
        beyond = sum(one.is_biased for one in parts)
        together.add(*asked.key, len(parts), min(ratios), max(ratios), beyond, *asked.coverages)
    kept = {"seeds": given.seeds, "streams": given.streams, "epsilons": given.epsilons}
    save(given.results, "real", kept, [each, together])


def run(name: str, epsilons: list[float], seeds: int) -> dict[str, Any]:
    """One stream with each budget, with all seeds."""
    from tests.real.scores import scores

    found = [scores(name, epsilon, seed) for epsilon in epsilons for seed in range(seeds)]
    return {"scores": [asdict(one) for some in found for one in some]}


if __name__ == "__main__":
    begin(main, run)
