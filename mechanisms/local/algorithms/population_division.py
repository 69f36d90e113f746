"""Population division: each slot asks a few users, and each of them with the whole price at once.

Guarantee: a user is asked at most once in any `gap` slots, and ceil(w / gap) times the user's price
is at most E: so any w slots cost at most E, in exact integers. Half of the users is enough for the
dissimilarities of any `gap` slots and half for the publications, so there is always somebody left.

Source: Du et al., "PLDP-IDS: personalized local differential privacy for infinite data stream",
Algorithms 3 to 6; Ren et al., "LDP-IDS: local differential privacy for infinite data streams"
(2022).
Changed: the gap is ceil(w_opt), where the paper's Example 4 truncates n / (2 z_opt). A user whose
window w_i is longer than n / 2 is refused: floor(n / (2 w_i)) is nobody. Where z_opt users in each
of ceil(w_opt) slots are more than half of all, floor(n / (2 gap)) are asked in a slot.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import Requirements, Units, to_epsilon
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.local.algorithms.population_selection import optimal_population_selection
from streamveil.mechanisms.local.algorithms.publication_strategy import (
    Strategy,
    personalised_frequency_oracle,
)
from streamveil.mechanisms.local.algorithms.pue import personalised_utility_enhancement
from streamveil.mechanisms.local.algorithms.schedule import best_oracles
from streamveil.mechanisms.local.algorithms.user_draws import Pool
from streamveil.mechanisms.local.protocol import GRR, OUE, Ask, Users
from streamveil.mechanisms.randomness.noise import RandomWords

S = TypeVar("S")


@dataclass(frozen=True, eq=False)
class Plan:
    """Who can be asked how often, and for what: public."""

    sample: int
    """Users asked in a slot for the dissimilarity."""
    gap: int
    """Slots from one report of a user to the next one, at least."""
    prices: Units
    """What a report costs a user of each class, shape (K,)."""
    oracles: tuple[str, ...]
    """How users of each class report, shape (K,)."""

    @classmethod
    def longest(cls, users: Users, requirements: Requirements | None = None) -> Plan:
        """Once in the longest window, with the whole budget: PLPD and PLPA.

        Args:
            users: the population.
            requirements: what each class is taken to ask for, where that is not its own.

        Raises:
            ConfigurationError: for a window longer than half of the number of users.
        """
        gap, sample = users.classes.longest, int(_samples(users).min())
        prices = (users.classes if requirements is None else requirements).budgets
        return cls(sample, gap, prices, best_oracles(prices, users.symbols))

    @classmethod
    def optimal(cls, users: Users) -> Plan:
        """Once in the window that OPS finds: PLPD+ and PLPA+.

        All classes report by one kind of oracle, the better one of the two: PUE needs that.
        Raises as :meth:`longest` does.
        """
        samples, budgets = _samples(users), users.classes.budgets
        chosen = {
            kind: optimal_population_selection(
                samples, to_epsilon(budgets), users.symbols, users.sizes, kind
            )
            for kind in (GRR, OUE)
        }
        kind = min(chosen, key=lambda kind: chosen[kind].error)
        best = chosen[kind]
        n = users.class_of.size
        gap = -(-n // (2 * best.sample))
        sample = min(best.sample, n // (2 * gap))
        return cls(sample, gap, budgets // best.shares, (kind,) * len(users.classes))


def _samples(users: Users) -> Units:
    """z_k = floor(n / (2 w_k)) of each class, shape (K,)."""
    n = users.class_of.size
    windows = users.classes.windows
    if 2 * windows.max() > n:
        raise ConfigurationError(
            f"a window of {windows.max()} slots is longer than half of the {n} users, so that no "
            "user could be asked in every slot: use the mechanism rotation, longer slots, "
            "shorter windows or more users"
        )
    return n // (2 * windows)


class Publications(Protocol[S]):
    """How many users a publication may ask, by the history of publications."""

    def start(self, plan: Plan, users: int) -> S:
        """State before the first slot."""

    def offer(self, state: S) -> int | None:
        """Users for a publication in the next slot; None in a nullified slot."""

    def commit(self, state: S, asked: int) -> S:
        """State after a slot whose publication asked so many users, 0 for none."""

    def record(self, state: S) -> list[int]:
        """The state as integers."""

    def of_record(self, state: S, record: list[int]) -> S:
        """Read :meth:`record` into the state of :meth:`start`."""


@dataclass(frozen=True, eq=False)
class PopulationState(Generic[S]):
    """Whom the stream has asked."""

    pool: Pool
    publications: S
    first: int | None = None
    """The stream's first slot; None before it."""


class PopulationDivision(Generic[S]):
    """The schedule of population division: a plan, and how many users publications get."""

    SCHEMAS = {
        1: state_codec.record_schema(
            "PopulationDivision",
            first=["null", "long"],
            pool="bytes",
            publications=state_codec.LONGS,
        )
    }

    def __init__(self, users: Users, plan: Plan, publications: Publications[S]) -> None:
        self.users = users
        self.plan = plan
        self._publications = publications

    def start(self) -> PopulationState[S]:
        """Nobody has been asked yet."""
        n = self.users.class_of.size
        return PopulationState(Pool.of(n), self._publications.start(self.plan, n))

    def dissimilarity(
        self, state: PopulationState[S], slot: int, words: RandomWords
    ) -> tuple[PopulationState[S], Ask]:
        """Draw U_s and take it out of the pool."""
        state = replace(state, first=slot if state.first is None else state.first)
        ask = self._ask(state, slot, 1, self.plan.sample, words)
        self._spend(state, ask)
        return state, ask

    def publication(self, state: PopulationState[S], slot: int, words: RandomWords) -> Ask | None:
        """Draw U_r, which stays in the pool until it is committed."""
        size = self._publications.offer(state.publications)
        return None if size is None else self._ask(state, slot, 2, size, words)

    def commit(self, state: PopulationState[S], published: Ask | None) -> PopulationState[S]:
        """Take U_r out of the pool if it was asked."""
        if published is not None:
            self._spend(state, published)
        asked = 0 if published is None else published.users.size
        return replace(state, publications=self._publications.commit(state.publications, asked))

    def _ask(
        self, state: PopulationState[S], slot: int, round: int, size: int, words: RandomWords
    ) -> Ask:
        assert state.first is not None
        users = state.pool.draw(size, slot - state.first, self.plan.gap, words)
        return Ask(slot, round, users, self.plan.prices, self.plan.oracles)

    def _spend(self, state: PopulationState[S], ask: Ask) -> None:
        assert state.first is not None
        state.pool.spend(ask.users, ask.slot - state.first)

    def encode(self, state: PopulationState[S]) -> bytes:
        """Bytes of the state."""
        return state_codec.pack(
            self.SCHEMAS,
            {
                "first": state.first,
                "pool": state.pool.encode(),
                "publications": self._publications.record(state.publications),
            },
        )

    def decode(self, data: bytes) -> PopulationState[S]:
        """State of bytes. Raises ConfigurationError for those of another population."""
        _, record = state_codec.unpack(self.SCHEMAS, data)
        start = self.start()
        pool = Pool.decode(record["pool"])
        state_codec.check_length(pool.last, len(start.pool.last), "users")
        publications = self._publications.of_record(start.publications, record["publications"])
        return PopulationState(pool, publications, record["first"])


class OverLongestWindow(Strategy[PopulationState[Any]]):
    """Population division over the longest window, reports combined by PFO."""

    publications: Publications[Any]

    def __init__(self, name: str, users: Users, *, project: bool = False) -> None:
        schedule = PopulationDivision(users, Plan.longest(users), self.publications)
        super().__init__(name, schedule, personalised_frequency_oracle, project)


class OverChosenWindow(Strategy[PopulationState[Any]]):
    """Population division over the window that OPS chooses, reports enhanced by PUE."""

    publications: Publications[Any]

    def __init__(self, name: str, users: Users, *, project: bool = False) -> None:
        schedule = PopulationDivision(users, Plan.optimal(users), self.publications)
        super().__init__(name, schedule, personalised_utility_enhancement, project)


class ForTheStrictest(Strategy[PopulationState[Any]]):
    """Population division as if everybody asked for the strictest. For comparison only.

    Guarantee: that under the strictest requirement, which implies everybody's own.
    Source: Ren et al., "LDP-IDS: local differential privacy for infinite data streams" (2022).
    """

    publications: Publications[Any]

    def __init__(self, name: str, users: Users, *, project: bool = False) -> None:
        plan = Plan.longest(users, users.classes.strictest)
        schedule = PopulationDivision(users, plan, self.publications)
        super().__init__(name, schedule, personalised_frequency_oracle, project)
