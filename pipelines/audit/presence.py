"""The audit of streams where users count in a few slots only: of a life, or of blocks of a window.

In memory::

    findings = audited_presence([Lifetime(6.0)], [Limit(None, in_life=3)], extent=Extent(runs=20))

What is audited is the stream that releases, with its filter, behind the counters that decide which
slots of a user count. Three things are looked at besides charges, which are recounted of the slots
in which two stories of a user differ. Users who come once: what a slot tells of them must be
covered by what it was charged, and by what is set aside. Users with a whole story: what all of its
slots tell must be covered by the budget of a window, or of a life. And users who count alike and
come besides: what is told of that must be covered by what is set aside of each budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.budgets import Requirements, to_epsilon
from streamveil.mechanisms.core.records import ADD_REMOVE, REPLACE, Lifetime, Requirement
from streamveil.mechanisms.driver.life_stream import LifeStream
from streamveil.mechanisms.driver.present_stream import Presence, PresentState, PresentStream
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.calendars import Rules
from streamveil.mechanisms.presence.kept_share import (
    BY_BIN,
    FADING,
    LAYERS,
    NEARBY,
    Beyond,
    KeptShare,
    Rates,
    ShareQuery,
)
from streamveil.mechanisms.presence.life_share import BEYOND, MEMORIES, NEAR, due
from streamveil.mechanisms.presence.limits import priced
from streamveil.mechanisms.protocol import Population, SlotRelease
from streamveil.mechanisms.randomness.noise import NoiseSource, digest
from streamveil.mechanisms.registry import DEFAULT
from streamveil.mechanisms.registry import mechanism as made_mechanism
from streamveil.pipelines.audit import replay_worlds, worlds
from streamveil.pipelines.audit.clock import check_clock
from streamveil.pipelines.audit.comers import Comers, Pair, Real, Rule, comers, spacing
from streamveil.pipelines.audit.findings import CHARGE, LIFE, WINDOW, Check, Findings, asked_of
from streamveil.pipelines.audit.groups import group_of_window, groups_of_slots
from streamveil.pipelines.audit.guesses import Doubt, Guesses, check, joined, no_figures
from streamveil.pipelines.audit.options import DEFAULT_BINS
from streamveil.pipelines.audit.replay import Neighbour, Play, Stage
from streamveil.pipelines.audit.replay_worlds import STAGES, length_of, scripted
from streamveil.pipelines.audit.rounds import USUAL, Extent, found_by, left_out, watched
from streamveil.pipelines.audit.runs import Transcript, spent_of
from streamveil.pipelines.audit.scores import guesses_of, laplace_odds
from streamveil.pipelines.audit.shown import learnt
from streamveil.pipelines.audit.whole_runs import release_stage, second
from streamveil.pipelines.audit.worlds import BINS, SLOTS, crowd, saves_up, sizes_of, world_of
from streamveil.pipelines.guarantees import USER

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

STORIES, BESIDES = "stories", "besides"
KINDS = (SLOTS, BINS, STORIES, BESIDES)
WINDOWS, LIVES, LEFT_OUT = "windows", "lives", "left out"
"""Parts of what is released, beside those of single slots."""

# Checks of a class: see `_checks_of`.
_CHECKS = 6
# Losses of canaries that are told besides: the larger one shows what is kept, the other mistakes.
_TELLING = (2.0, 5.0)
# Streams of a run of canaries that are alone.
_TIMES = 4
# Stories of a run, one after the other, at least.
LEAST_STORIES = 4


def audited_presence(
    requirements: Sequence[Requirement],
    limits: Sequence[Limit],
    *,
    mechanism: str = DEFAULT,
    sizes: Integers | None = None,
    guessed: int | None = None,
    bins: int = DEFAULT_BINS,
    sensitivity: int = 1,
    adjacency: str = ADD_REMOVE,
    visits: tuple[Integers, Integers, int] | None = None,
    extent: Extent = USUAL,
) -> Findings:
    """Audit a mechanism where users count in a few slots only.

    Args:
        requirements: of each class, K of them, all distinct; or one :class:`Lifetime`.
        limits: of each class.
        mechanism: a key of `MECHANISMS`, with options.
        sizes: users of each class, shape (K,); in worst cases there are as many times more of all
            as these need.
        guessed: the class whose size is only a guess, as of :class:`Population`; None if all are
            known.
        bins: of the histogram.
        sensitivity: as of `Population`.
        adjacency: what neighbouring streams differ in.
        visits: events of a real stream, beside which canaries are put: as of :meth:`Real.of`, rows,
            the class of each user, and the number of slots; worst cases without.
        extent: how long the audit goes on, in rounds of a run of each kind for each class.

    Raises ConfigurationError for a mechanism, requirements or limits that cannot be.
    """
    asked = Requirements.of(requirements)
    prices = priced(limits, asked, adjacency)
    users = sizes_of(asked, sizes)
    if visits is None:
        users = crowd(prices, users, bins)
    population = Population(prices, users, bins, sensitivity, guessed=guessed)
    presence = Presence(tuple(limits), asked, adjacency)
    real, key = None, digest(b"audit", b"calendars", b"%d" % extent.seed)
    if visits is not None:
        rows, class_of, slots = visits
        rules = Rules.of(limits, asked, adjacency)
        real = Real.of(rows, class_of, (slots, len(asked), bins), rules, key)
    audit = PresenceAudit(mechanism, population, presence, real, extent.seed, key)
    people = replace(population, requirements=asked)
    return found_by(
        audit,
        mechanism,
        extent,
        own=real is not None,
        notes=left_out(people, audit.classes),
        too_short=audit.too_short,
        stages=audit.stages(),
    )


@dataclass(frozen=True, eq=False)
class _Seen:
    """All that one run showed."""

    transcript: Transcript
    answers: list[tuple[int, dict[int, float]]]
    """What was answered about each class that is limited, and after which slot."""


class PresenceAudit:
    """Runs of one configuration, and the guesses about their canaries."""

    def __init__(
        self,
        mechanism: str,
        population: Population,
        presence: Presence,
        real: Real | None,
        seed: int,
        key: bytes,
    ) -> None:
        self.runs = self.slots = 0
        self.overspent = 0.0
        self._text, self._population, self._presence = mechanism, population, presence
        self._real, self._seed, self._key = real, seed, key
        self._moves = presence.adjacency == REPLACE
        self._each = population.sensitivity // (2 if self._moves else 1)
        self.classes = watched(population)
        self._rules = {
            k: Rule.of(presence.limits, presence.requirements, presence.adjacency, k)
            for k in self.classes
        }
        self._groups: dict[tuple[int, str], tuple[int, int]] = {}
        self._guesses: dict[tuple[int, str], list[Guesses]] = {
            (k, kind): []
            for k in self.classes
            for kind in KINDS
            if kind != BESIDES or self._rules[k].limited
        }
        self._machine = made_mechanism(mechanism, population)

    @property
    def too_short(self) -> dict[str, int]:
        """Stories that are longer than the real stream, and how long they are."""
        slots, found = math.inf if self._real is None else len(self._real.counts), {}
        for k, kind in self._guesses:
            if kind in (STORIES, BESIDES):
                asked, alone = self._presence.requirements[k], kind == BESIDES
                _, least = self._pairs(k, alone)
                what = "what is left out" if alone else self._whole(k)[0]
                found[f"{what} of {asked_of(asked)}"] = least
        return {what: least for what, least in found.items() if least > slots}

    def round(self, number: int, done: Callable[[int], object]) -> None:
        """Run every kind of world once for each class."""
        for (k, kind), guesses in self._guesses.items():
            random = np.random.default_rng([self._seed, k, KINDS.index(kind), number])
            if kind in (SLOTS, BINS):
                guesses.append(self._of_slots(k, kind, number, random))
            else:
                times = _TIMES if kind == BESIDES else 1
                some = [self._of_stories(k, kind, f"{number} {i}", random) for i in range(times)]
                guesses.append(joined(some))
            done(number)

    # ---- worlds that are replayed -----------------------------------------------------------

    def stages(self) -> Iterator[Stage]:
        """Of every class, a user with each of the stories, beside others who come and go."""
        return second(self._streams(), self._whole_runs)

    def _whole_runs(self) -> Stage:
        asked = [self._presence.requirements[k] for k in self.classes]
        limit = next(
            (self._presence.limits[k] for k in self.classes if self._rules[k].limited),
            self._presence.limits[self.classes[0]],
        )
        if isinstance(asked[0], Lifetime):
            promise: dict[str, Any] = {
                "guarantee": USER,
                "epsilon": asked[0].epsilon,
                "max_slots": limit.in_life,
            }
        else:
            promise = {"max_slots": f"{limit.max_slots},{limit.blocks}"}
        return release_stage(
            asked,
            bins=self._population.bins,
            seed=self._seed,
            most=self._each,
            mechanism=self._text,
            adjacency=self._presence.adjacency,
            **promise,
        )

    def _streams(self) -> Iterator[Stage]:
        for number in range(STAGES):
            random = np.random.default_rng([self._seed, 911, number])
            for k in self.classes:
                rule = self._rules[k]
                pairs = [*rule.pairs(), *([rule.besides()] if rule.limited else [])]
                for pair in pairs:
                    if self._fits(rule, pair):
                        yield self._stage(k, pair, number, random)

    def _fits(self, rule: Rule, pair: Pair) -> bool:
        """Whether there are slots for both stories, and bins to move to."""
        if self._moves and self._population.bins < 2:
            return False
        return self._real is None or spacing(rule, [pair], alone=False) <= len(self._real.counts)

    def _stage(self, k: int, pair: Pair, number: int, random: np.random.Generator) -> Stage:
        rule = self._rules[k]
        if self._real is not None:
            slots = max(replay_worlds.LENGTH, spacing(rule, [pair], alone=False))
            others, beside = self._real.counts[:slots], self._real.beyond
        else:
            slots = max(
                length_of(self._population), spacing(rule, [pair], alone=False) + rule.block
            )
            others = scripted(self._population, slots, random)
            beside = [
                Beyond(*random.integers([[1], [0], [0], [1]], _most(self._population), (4, 3)))
                for _ in range(slots)
            ]
        span = spacing(rule, [pair], alone=False)
        first = int(random.integers(max(len(others) - span, 0) + 1))
        at = np.zeros((1, 1), np.int64)
        plan = comers(rule, [pair], np.array([first], np.int64), at, self._each, self._key)
        base = plan.beside(others)

        def play(there: bool, strangers: bool = False) -> Play:
            told = replace(plan, canaries=replace(plan.canaries, there=np.array([there])))
            counts = told.canaries.add_to(base)
            beyond = told.beyond(self._each, len(others))
            both = [
                Beyond(*np.concatenate([mine, more], axis=1))
                for mine, more in zip(beyond, beside, strict=False)
            ]
            if strangers:
                counts, both = counts[::-1].copy(), both[::-1]
            key = digest(b"audit", b"%d" % self._seed, f"replay {k} {number}".encode())
            return partial(self._public, self._stream(key), counts, both)

        asked = self._presence.requirements[k]
        aside = self._presence.limits[k].aside(asked, self._presence.adjacency)

        def claims(published: list[Any]) -> dict[str, int]:
            spent = spent_of(published)[:, k]
            cost = int(np.append(spent, 0)[plan.differing[0]].sum()) + aside
            budget = int(self._presence.requirements.budgets[k])
            return {"what slots and what is left out were charged": cost, "the budget": budget}

        whose = f"a user with {asked_of(asked)} whose stories differ from slot {first} on"
        neighbours = (
            Neighbour("everybody", play(False, strangers=True)),
            Neighbour(whose, play(True), claims),
        )
        return Stage(play(False), neighbours)

    @staticmethod
    def _public(
        stream: PresentStream, counts: Integers, beyond: Sequence[Beyond]
    ) -> Iterator[tuple[int, Any]]:
        """All that is public of a run, slot by slot."""
        state = stream.start()
        for slot, (table, one) in enumerate(zip(counts, beyond, strict=True)):
            price = stream.stream.price(state.stream)
            state, release = stream.release(state, slot, table, one)
            yield slot, {"price": price, "release": release}
        yield len(counts), {"revisions": stream.rest(state)}

    def checks(self, doubt: Doubt) -> Iterator[Check]:
        """Each check may be wrong with an even part of the probability."""
        for k in self.classes:
            yield from self._checks_of(k, doubt / (_CHECKS * len(self.classes)))

    def _checks_of(self, k: int, each: Doubt) -> Iterator[Check]:
        asked = self._presence.requirements[k]
        part, whole = self._whole(k)
        single = self._guesses[k, SLOTS]
        wide, stories = (learnt(self._guesses[k, kind]) for kind in (BINS, STORIES))
        yield check("publications", CHARGE, asked, learnt([one.only(True) for one in single]), each)
        yield check("looks", CHARGE, asked, learnt([one.only(False) for one in single]), each)
        yield check("bins", CHARGE, asked, wide, each)
        yield check(part, CHARGE, asked, stories, each)
        yield check(part, whole, asked, [one.of_window(asked.epsilon) for one in stories], each)
        if (k, BESIDES) in self._guesses:
            yield check(LEFT_OUT, CHARGE, asked, self._guesses[k, BESIDES], each)

    def _whole(self, k: int) -> tuple[str, str]:
        """What has a budget: the part and the claim."""
        forever = isinstance(self._presence.requirements[k], Lifetime)
        return (LIVES, LIFE) if forever else (WINDOWS, WINDOW)

    # ---- users who come once ------------------------------------------------------------------

    def _of_slots(self, k: int, kind: str, number: int, random: np.random.Generator) -> Guesses:
        real = self._real and self._real.stretch(worlds.LENGTH, random)
        world = world_of(
            *(kind, self._text, self._population, k, self._moves, number, random),
            real.counts if real else None,
        )
        if (k, kind) not in self._groups:
            seen = self._run(
                k, world.others, self._beside(real, len(world.others)), f"trial {kind}"
            )
            people = int(self._population.sizes[k])
            self._groups[k, kind] = groups_of_slots(
                kind, seen.transcript, world.plan, people, saves_up(self._text)
            )
        users = random.choice(np.array(self._groups[k, kind]), world.plan.users.size)
        canaries = world.plan.of_users(users).flipped(random)
        counts = canaries.add_to(world.others)
        seen = self._run(k, counts, self._beside(real, len(counts)), f"{kind} {number}")
        found = guesses_of(seen.transcript, world.others, canaries, alone=kind == SLOTS)
        return replace(found, losses=found.losses + self._aside(k) * found.users)

    @staticmethod
    def _beside(real: Real | None, slots: int) -> list[Beyond]:
        return real.beyond if real else [Beyond.none()] * slots

    def _aside(self, k: int) -> float:
        """What is set aside for what does not count, epsilon."""
        limit, asked = self._presence.limits[k], self._presence.requirements[k]
        return float(to_epsilon(limit.aside(asked, self._presence.adjacency)))

    # ---- users with a story -------------------------------------------------------------------

    def _of_stories(self, k: int, kind: str, number: str, random: np.random.Generator) -> Guesses:
        rule, alone = self._rules[k], kind == BESIDES
        pairs, every = self._pairs(k, alone)
        slots = -(-max(worlds.LENGTH, LEAST_STORIES * every) // every) * every
        others = np.zeros((slots, *self._shape), np.int64)
        real = self._real and self._real.stretch(slots, random)
        if real:
            others = real.counts
        starts = np.arange(0, len(others) - every + 1, every, dtype=np.int64)
        plan = comers(rule, pairs, starts, self._bins(starts.size, alone), self._each, self._key)
        users = random.choice(self._users_of(k, alone), plan.canaries.users.size)
        plan = plan.of_users(users).flipped(random)
        base = plan.beside(others)
        beyond = [
            Beyond(*np.concatenate([mine, more], axis=1))
            for mine, more in zip(
                plan.beyond(self._each, len(others)), self._beside(real, len(others)), strict=True
            )
        ]
        seen = self._run(k, plan.canaries.add_to(base), beyond, f"{kind} {number}")
        if alone:
            return self._of_answers(k, plan, self._beside(real, len(others)), seen)
        found = guesses_of(seen.transcript, base, plan.canaries, alone=False)
        cost = plan.charged(seen.transcript.spent[:, k]) + self._aside(k)
        asked = self._presence.requirements[k].epsilon
        self.overspent = max(self.overspent, float(cost.max(initial=0.0)) / asked)
        return replace(found, losses=cost * found.users)

    def _pairs(self, k: int, alone: bool) -> tuple[list[Pair], int]:
        """Pairs of stories, and slots from one to the next."""
        rule = self._rules[k]
        pairs = [rule.besides()] if alone else rule.pairs()
        return pairs, spacing(rule, pairs, alone)

    @property
    def _shape(self) -> tuple[int, int]:
        return len(self._population.requirements), self._population.bins

    def _bins(self, starts: int, alone: bool) -> Integers:
        """Bins of groups of each start, shape (s, places): all at once, or one after the other."""
        bins = self._population.bins
        if alone:
            return np.arange(starts)[:, None] % bins
        at = np.arange(0, bins - bins % 2, 2) if self._moves else np.arange(bins)
        return np.tile(at, (starts, 1))

    def _users_of(self, k: int, alone: bool) -> Integers:
        """Users of a group: one of these numbers."""
        people = max(int(self._population.sizes[k]), 1)
        if not alone:
            return np.array(group_of_window(self._presence.requirements[k].epsilon, people))
        wanted = np.rint(np.array(_TELLING) / self._aside(k)).astype(np.int64)
        return np.clip(wanted, 1, people)

    def _of_answers(self, k: int, plan: Comers, beside: list[Beyond], seen: _Seen) -> Guesses:
        """Guesses by what is told of what does not count.

        What other groups do is taken at half of each.
        """
        canaries, told = plan.canaries, plan.told
        query, rates = self._stream(bytes(32)).queries[k]
        nothing = np.zeros(self._population.bins, np.int64)
        known = np.stack([query.sums(nothing, one, one.classes == k) for one in beside])
        scores, begin = np.zeros(canaries.users.size), np.zeros(query.width, np.int64)
        for slot, answer in seen.answers:
            for part, value in answer.items():
                span = begin[part], slot + 1
                inside = np.flatnonzero(
                    told.there & (told.slots >= span[0]) & (told.slots < span[1])
                )
                mine = np.zeros(scores.size)
                for row in inside[_is_part(query, part, told.layers[inside], told.bins[inside])]:
                    mine[told.groups[row]] += canaries.users[told.groups[row]] * self._each
                met = np.flatnonzero(mine)
                rest = value - float(known[slice(*span), part].sum()) - (mine.sum() - mine[met]) / 2
                blur = np.full(met.size, 1 / float(to_epsilon(_rate(rates, query, part))))
                scores[met] += laplace_odds(rest, mine[met], blur)
                begin[part] = slot + 1
        return Guesses(
            scores,
            canaries.there,
            canaries.users.astype(np.float64) * self._aside(k),
            canaries.users,
            np.ones(scores.size, np.bool_),
            no_figures(scores.size),
        )

    # ---- runs ---------------------------------------------------------------------------------

    def _stream(self, key: bytes) -> PresentStream:
        """As a pipeline drives it."""
        forever = self._presence.requirements.forever
        make = LifeStream if forever else PresentStream
        return make(self._machine, NoiseSource(key), {}, self._presence)

    def _run(self, k: int, counts: Integers, beyond: Sequence[Beyond], name: str) -> _Seen:
        """Release all slots. Raises BudgetExceeded when the filter refuses."""
        stream = self._stream(digest(b"audit", b"%d" % self._seed, f"{k} {name}".encode()))
        state, releases, prices, answers = stream.start(), [], [], []
        for slot, (table, one) in enumerate(zip(counts, beyond, strict=True)):
            check_clock()
            before = state.shares.get(k)
            prices.append(to_epsilon(stream.stream.price(state.stream)))
            state, release = stream.release(state, slot, table, one)
            releases.append(_unscaled(stream, state, release))
            if before is not None:
                answers.append((slot, _answered(before, state.shares[k], slot)))
        self.runs += 1
        self.slots += len(counts)
        return _Seen(Transcript(self._population, releases, np.stack(prices)), answers)


def _most(population: Population) -> list[list[int]]:
    """One more than the largest layer, class, bin and number of what others have left out."""
    classes, bins = len(population.requirements), population.bins
    return [[LAYERS + 1], [classes], [bins], [6]]


def _unscaled(stream: PresentStream, state: PresentState, release: SlotRelease) -> SlotRelease:
    """What was released before it was scaled, but for rounding: by what is public."""
    if not stream.queries:
        return release
    left_out, nothing = stream.left_out(state), np.zeros(release.counts.size)
    least, _ = left_out.made_up(nothing, nothing)
    most, _ = left_out.made_up(nothing + 1, nothing)
    counts = np.rint((release.counts - least) / (most - least)).astype(np.int64)
    return replace(release, counts=counts)


def _answered(before: Any, after: Any, slot: int) -> dict[int, float]:
    """What was answered after a slot, by its place in an answer: a function of what is public."""
    if isinstance(before, KeptShare):
        if after.answers == before.answers:
            return {}
        fading = 0.0 if before.answers == 1 else FADING
        answer = after.sums - fading * before.sums
        return {part: float(answer[part]) for part in range(NEARBY, answer.size)}
    asked = due(slot + 1, before.query.in_life)
    values = after.near[0] - MEMORIES[0] * before.near[0], after.gone[0] - before.gone[0]
    return {part: float(values[part]) for part in (NEAR, BEYOND) if asked[part]}


def _is_part(query: Any, part: int, layers: Integers, bins: Integers) -> npt.NDArray[np.bool_]:
    """Which events that do not count are in a place of an answer."""
    near: npt.NDArray[np.bool_] = layers < LAYERS
    if not isinstance(query, ShareQuery):
        return near if part == NEAR else ~near
    if part >= BY_BIN:
        return near & (bins == part - BY_BIN)
    return near if part == NEARBY else ~near


def _rate(rates: Rates, query: Any, part: int) -> int:
    """Units that an event costs in a place of an answer."""
    if not isinstance(query, ShareQuery):
        return rates.layers if part == NEAR else rates.rest
    if part >= BY_BIN:
        return rates.bins
    return rates.layers if part == NEARBY else max(rates.rest, 1)
