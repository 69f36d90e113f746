"""Exact discrete Laplace samples per CPU second, here and in OpenDP.

python benchmarks/noise.py
"""

from __future__ import annotations

import importlib.util
import time

from _measure import begin, measure_case, parser, save, table

SECONDS = 0.5


def main() -> None:
    options = parser(__doc__)
    add = options.add_argument
    add("--sizes", type=int, nargs="+", default=[100, 10_000, 1_000_000])
    add("--scales", type=float, nargs="+", default=[1.0, 20.0, 1000.0])
    add("--opendp_size", type=int, default=10_000, help="largest vector given to OpenDP")
    add("--seconds", type=float, default=SECONDS, help="least CPU time of a case")
    given = options.parse_args()
    rates = table(
        "Exact discrete Laplace samples per CPU second",
        ["scale", "vector", "streamveil", "OpenDP", "times OpenDP"],
        f"Scale is 1 / epsilon. OpenDP is measured at vectors up to {given.opendp_size:,}; its "
        "sampler takes no key, so that a replayed slot would get other noise.",
    )
    theirs = importlib.util.find_spec("opendp") is not None
    if not theirs:
        print("  opendp is not installed: left out (pip install opendp)")
    for scale in given.scales:
        for size in given.sizes:
            case = {"scale": scale, "size": size, "seconds": given.seconds}
            ours = measure_case("noise.py", case, given.repeats).median("rate")
            other = None
            if theirs and size <= given.opendp_size:
                found = measure_case("noise.py", case | {"opendp": True}, given.repeats)
                other = found.median("rate")
            rates.add(scale, size, ours, other, ours / other if other else None)
    names = ("sizes", "scales", "opendp_size", "seconds", "repeats")
    save(given.results, "noise", {name: getattr(given, name) for name in names}, [rates])


def run(scale: float, size: int, seconds: float, opendp: bool = False) -> dict[str, float]:
    """Draw vectors until the time is over."""
    draw = _opendp(scale, size) if opendp else _streamveil(scale, size)
    draw()
    drawn, before, spent = 0, time.process_time(), 0.0
    while spent < seconds:
        draw()
        drawn += size
        spent = time.process_time() - before
    return {"rate": drawn / spent}


def _streamveil(scale: float, size: int):
    from streamveil.mechanisms.core.budgets import to_units
    from streamveil.mechanisms.randomness.noise import NoiseSource, discrete_laplace

    words = NoiseSource(bytes(32)).slot(0, b"").words("benchmark")
    units = int(to_units(1 / scale))
    return lambda: discrete_laplace(units, size, words)


def _opendp(scale: float, size: int):
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
    laplace, zeros = dp.m.make_laplace(*space, scale=scale), [0] * size
    return lambda: laplace(zeros)


if __name__ == "__main__":
    begin(main, run)
