"""Devices of users who are rarely there: asked often, against once in a window.

python benchmarks/local_presence.py

Users have an event in a slot independently, of one of ten bins whose shares drift; else they have
none. In half of the streams users come equally often, in the others how often is spread as an
exponential distribution is. Reports are drawn by slot and bin, as those of all devices are.
"""

from __future__ import annotations

import statistics

from _measure import begin, measure_case, parser, save, table

PRESENCE = (0.01, 0.05, 0.3)
BINS = 10


def main() -> None:
    options = parser(__doc__, repeats=1)
    add = options.add_argument
    add("--users", type=int, nargs="+", default=(100_000, 1_000_000))
    add("--slots", type=int, default=400)
    add("--keys", type=int, default=4, help="draws of data and noise in each row")
    add("--window", type=int, default=100)
    add("--epsilon", type=float, default=1.0)
    add("--turns", type=int, nargs="+", default=(10, 20, 50))
    given = options.parse_args()
    errors = table(
        f"rotation:turns=N, epsilon {given.epsilon:g} over {given.window} slots",
        ["users", "presence", "turns", "reported", "relative error", "MSE / no turns", "coverage"],
        f"Mean of {given.keys} draws, from the end of the first window on. The relative error is "
        "the root of the mean square over that of the counts: nothing but zeros has 1. Coverage is "
        "the share of frequencies within 1.645 standard errors, nominally 0.9.",
    )
    for users in given.users:
        for presence in PRESENCE:
            case = {
                **{"users": users, "presence": presence, "slots": given.slots},
                **{"window": given.window, "epsilon": given.epsilon, "turns": given.turns},
            }
            found = [
                measure_case("local_presence.py", {**case, "key": key}, 1).answers[0]
                for key in range(given.keys)
            ]
            for turns in ("0", *map(str, given.turns)):
                share, error, covers = (
                    statistics.mean(one[turns][what] for one in found)
                    for what in ("reported", "error", "covers")
                )
                ratio = error / statistics.mean(one["0"]["error"] for one in found)
                errors.add(users, presence, int(turns), share, error**0.5, ratio, covers)
    names = ("users", "slots", "keys", "window", "epsilon", "turns")
    save(given.results, "local_presence", {name: getattr(given, name) for name in names}, [errors])


def run(
    users: int,
    presence: float,
    slots: int,
    window: int,
    epsilon: float,
    turns: list[int],
    key: int,
) -> dict[str, dict[str, float]]:
    """Mean square error over that of zeros, coverage and the share of events reported, by turns."""
    import numpy as np

    random = np.random.default_rng([key, users])
    walk = np.cumsum(random.normal(0, 0.05, (slots, BINS)), axis=0) + random.normal(0, 1, BINS)
    shares = np.exp(walk) / np.exp(walk).sum(axis=1, keepdims=True)
    often = random.exponential(presence, users) if key % 2 else np.full(users, presence)
    sides = {one: _Sides(users, window, epsilon, one) for one in (0, *turns)}
    for slot, chances in enumerate(shares):
        values = np.full(users, BINS, np.int8)
        there = np.flatnonzero(random.random(users) < often)
        values[there] = random.choice(BINS, there.size, p=chances)
        for one in sides.values():
            one.release(slot, values, random)
    truth = (often.mean() * shares)[window:]
    found = {}
    for one, side in sides.items():
        off = np.array(side.released)[window:] - truth
        found[str(one)] = {
            "error": float((off**2).mean() / (truth**2).mean()),
            "covers": float((abs(off) <= 1.645 * np.array(side.stderr)[window:]).mean()),
            "reported": side.reported / max(side.events, 1),
        }
    return found


class _Sides:
    """A server and all devices."""

    def __init__(self, users: int, window: int, epsilon: float, turns: int) -> None:
        import numpy as np

        from streamveil.mechanisms.core.records import Requirement
        from streamveil.mechanisms.local.accounting.one_event import OneEvent
        from streamveil.mechanisms.local.algorithms.rotation import Rotation
        from streamveil.mechanisms.local.protocol import Users
        from streamveil.mechanisms.randomness.noise import NoiseSource

        asked = Users((Requirement(window, epsilon),), np.zeros(users, np.int32), BINS + 1)
        self._server = Rotation("rotation", asked, turns=turns)
        self._devices = OneEvent(self._server.users, bytes(32)) if turns else None
        self._state, self._source = self._server.start(), NoiseSource(bytes(32))
        self.events = self.reported = 0
        self.released: list[object] = []
        self.stderr: list[object] = []

    def release(self, slot, values, random) -> None:
        """Ask, count what is reported, and draw how many reports support each bin."""
        import numpy as np

        from streamveil.mechanisms.local.oracles import Oracle
        from streamveil.mechanisms.local.protocol import GRR, Tally

        noise = self._source.slot(slot, b"")
        self._state, ask = self._server.begin(self._state, slot, noise)
        reported = values[ask.users]
        self.events += int((reported < BINS).sum())
        if self._devices:
            reported = self._devices.reported(slot, ask.users, reported)
        self.reported += int((reported < BINS).sum())
        true = np.bincount(reported, minlength=BINS + 1)
        oracle = Oracle.of(ask.oracles[0], int(ask.epsilons[0]), BINS + 1)
        if oracle.kind == GRR:
            chances = np.full((BINS + 1, BINS + 1), oracle.q)
            np.fill_diagonal(chances, oracle.p)
            supports = random.multinomial(true, chances).sum(axis=0)
        else:
            supports = random.binomial(true, oracle.p)
            supports += random.binomial(reported.size - true, oracle.q)
        tally = Tally(supports[None].astype(np.int64), np.array([reported.size]))
        self._state, release = self._server.take(self._state, tally, noise)
        self.released.append(release.frequencies[:BINS])
        self.stderr.append(release.stderr[:BINS])


if __name__ == "__main__":
    begin(main, run)
