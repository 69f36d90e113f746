"""What devices could gain that tell one event of a window only: see docs/decisions/0016.

python benchmarks/local_presence.py

Users have an event in a slot with the given probability, independently, of one of ten bins whose
shares drift; else they have none. `rotation` asks every user once in a window, for the whole
budget. Against it stand devices that are asked so many times in a window, for half the budget: in
each block of w slots of a calendar of their own they tell the first event that they are asked
about, and that there was none in all other answers. The share of events that is told so is taken
to be known. Reports are drawn by slot and bin, and released by `rotation` with its filter.
"""

from __future__ import annotations

import statistics

from _measure import begin, measure_case, parser, save, table

PRESENCE = (0.01, 0.05, 0.3)
BINS = 10
SETTLED = 100  # slots at the beginning that are not measured


def main() -> None:
    options = parser(__doc__, repeats=1)
    add = options.add_argument
    add("--users", type=int, nargs="+", default=(100_000, 1_000_000))
    add("--slots", type=int, default=300)
    add("--keys", type=int, default=3, help="draws of data and noise in each row")
    add("--window", type=int, default=100)
    add("--epsilon", type=float, default=1.0)
    add("--turns", type=int, nargs="+", default=(10, 20, 50, 100))
    given = options.parse_args()
    errors = table(
        f"Devices that tell one event of {given.window} slots, epsilon {given.epsilon:g}",
        ["users", "presence", "asked in a window", "told", "relative error", "MSE / rotation"],
        f"Mean of {given.keys} draws. The relative error is the root of the mean square over that "
        "of the counts: releasing nothing but zeros has 1.",
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
            for turns in ("1", *map(str, given.turns)):
                error, told = (
                    statistics.mean(one[turns][what] for one in found) for what in ("error", "told")
                )
                ratio = error / statistics.mean(one["1"]["error"] for one in found)
                errors.add(users, presence, int(turns), told, error**0.5, ratio)
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
    """Mean square error over that of zeros, and the share told, by turns in a window."""
    import numpy as np

    random = np.random.default_rng(key)
    walk = np.cumsum(random.normal(0, 0.05, (slots, BINS)), axis=0) + random.normal(0, 1, BINS)
    shares = np.exp(walk) / np.exp(walk).sum(axis=1, keepdims=True)
    phase = random.integers(0, window, users)
    asked = {1: _Asked(users, window, epsilon, "best")}
    asked |= {one: _Asked(users, -(-window // one), epsilon / 2, "oue") for one in turns}
    for slot, chances in enumerate(shares):
        values = np.full(users, BINS, np.int8)
        there = np.flatnonzero(random.random(users) < presence)
        values[there] = random.choice(BINS, there.size, p=chances)
        fresh = (slot + phase) % window == 0
        for one, server in asked.items():
            server.release(slot, values, fresh, random, limited=one > 1)
    truth = presence * shares[SETTLED:]
    return {
        str(one): {
            "error": float(
                ((np.array(server.released)[SETTLED:] / server.kept - truth) ** 2).mean()
                / (truth**2).mean()
            ),
            "told": server.kept,
        }
        for one, server in asked.items()
    }


class _Asked:
    """A server that asks every user once in so many slots, and their devices."""

    def __init__(self, users: int, gap: int, epsilon: float, oracle: str) -> None:
        import numpy as np

        from streamveil.mechanisms.core.records import Requirement
        from streamveil.mechanisms.local.algorithms.rotation import Rotation
        from streamveil.mechanisms.local.protocol import Users
        from streamveil.mechanisms.randomness.noise import NoiseSource

        population = Users((Requirement(gap, epsilon),), np.zeros(users, np.int32), BINS + 1)
        self._server = Rotation("rotation", population, oracle=oracle)
        self._state, self._source = self._server.start(), NoiseSource(bytes(32))
        self._used = np.zeros(users, np.bool_)
        self._events = self._told = 0
        self.released: list[object] = []

    @property
    def kept(self) -> float:
        """Share of the events asked about that was told."""
        return self._told / max(self._events, 1)

    def release(self, slot, values, fresh, random, limited) -> None:
        """Ask, count what is told, and draw how many reports support each bin."""
        import numpy as np

        from streamveil.mechanisms.local.oracles import Oracle
        from streamveil.mechanisms.local.protocol import OUE, Tally

        noise = self._source.slot(slot, b"")
        self._state, ask = self._server.begin(self._state, slot, noise)
        told = values[ask.users]
        events = told < BINS
        self._events += int(events.sum())
        if limited:
            self._used[fresh] = False
            told = np.where(self._used[ask.users], BINS, told)
            self._used[ask.users[events]] = True
        self._told += int((told < BINS).sum())
        true = np.bincount(told, minlength=BINS + 1)
        oracle = Oracle.of(ask.oracles[0], int(ask.epsilons[0]), BINS + 1)
        if oracle.kind == OUE:
            supports = random.binomial(true, oracle.p) + random.binomial(
                true.sum() - true, oracle.q
            )
        else:
            chances = np.full((BINS + 1, BINS + 1), oracle.q)
            np.fill_diagonal(chances, oracle.p)
            supports = random.multinomial(true, chances).sum(axis=0)
        tally = Tally(supports[None].astype(np.int64), np.array([told.size]))
        self._state, release = self._server.take(self._state, tally, noise)
        self.released.append(release.frequencies[:BINS])


if __name__ == "__main__":
    begin(main, run)
