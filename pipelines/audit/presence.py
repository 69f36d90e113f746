"""The audit of participation limits: a few slots of a lifetime, or of each block of a window.

In memory::

    findings = audited_presence([Lifetime(6.0)], [Limit(None, in_life=3)], extent=Extent(runs=20))

What is audited is the stream that releases, with its filter, behind the counters that decide which
slots of a user count. Three things are looked at besides charges, which are recounted of the slots
in which two stories of a user differ. Users who come once: what a slot tells of them must be
covered by what it was charged, and by what is set aside. Users with a whole story: what all of its
slots tell must be covered by the budget of a window, or of a life. And users who count alike and
come besides: what is released about them must be covered by what is set aside of each budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import Requirements, to_epsilon
from streamveil.mechanisms.core.records import Lifetime, Requirement
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
from streamveil.mechanisms.protocol import SlotRelease
from streamveil.mechanisms.randomness.noise import NoiseSource, digest
from streamveil.mechanisms.registry import DEFAULT
from streamveil.mechanisms.registry import mechanism as made_mechanism
from streamveil.pipelines.audit import replay_worlds, worlds
from streamveil.pipelines.audit.auditing import OF_SLOTS, TELLING, StreamsAudit, telling_group
from streamveil.pipelines.audit.audits import Part, left_out
from streamveil.pipelines.audit.audits import World as WorldOf
from streamveil.pipelines.audit.canaries import Canaries
from streamveil.pipelines.audit.churning_users import Comers, Pair, Real, Rule, comers, spacing
from streamveil.pipelines.audit.facts import Facts
from streamveil.pipelines.audit.findings import LIFE, WINDOW, Findings, asked_of
from streamveil.pipelines.audit.guesses import Guesses
from streamveil.pipelines.audit.replay_worlds import Neighbours, length_of, scripted
from streamveil.pipelines.audit.rounds import USUAL, Extent, found_by
from streamveil.pipelines.audit.runs import Public, spent_of
from streamveil.pipelines.audit.shown import guesses_of
from streamveil.pipelines.audit.streams import OneStream
from streamveil.pipelines.audit.worlds import SLOTS, World
from streamveil.pipelines.options.guarantees import USER

Random = np.random.Generator

STORIES, BESIDES = "stories", "besides"
WINDOWS, LIVES, LEFT_OUT = "windows", "lives", "left out"
"""Parts of what is released, beside those of single slots."""

# Losses of canaries that are reported in addition: the larger one shows what is kept, the other
# mistakes.
_TELLING = (2.0, 5.0)
# Stories of a run, one after the other, at least.
LEAST_STORIES = 4
# One more than the largest number of events of what others have left out in a slot.
_MOST_BEYOND = 6


def audited_presence(
    requirements: Sequence[Requirement],
    limits: Sequence[Limit],
    *,
    mechanism: str = DEFAULT,
    visits: tuple[Integers, Integers, int] | None = None,
    extent: Extent = USUAL,
    **facts: Any,
) -> Findings:
    """Audit a mechanism where users count in a few slots only.

    Args:
        requirements: of each class, K of them, all distinct; or one :class:`Lifetime`.
        limits: of each class.
        mechanism: a key of `MECHANISMS`, with options.
        visits: events of a real stream, beside which canaries are put: as of :meth:`Real.of`, rows,
            the class of each user, and the number of slots; worst cases without.
        extent: how long the audit goes on, in rounds of a run of each kind for each class.
        facts: others of :class:`Facts`.

    Raises ConfigurationError for a mechanism, requirements or limits that cannot be.
    """
    audit_facts = Facts(mechanism=mechanism, requirements=requirements, **facts)
    asked = Requirements.of(requirements)
    prices = priced(limits, asked, audit_facts.adjacency)
    population = audit_facts.population(own=visits is not None, priced=prices)
    stream = LimitedStream(
        audit_facts, population, presence=Presence(tuple(limits), asked, audit_facts.adjacency)
    )
    real, key = None, digest(b"audit", b"calendars", b"%d" % extent.seed)
    if visits is not None:
        rows, class_of, slots = visits
        rules = Rules.of(limits, asked, audit_facts.adjacency)
        real = Real.of(rows, class_of, (slots, len(asked), audit_facts.bins), rules, key)
    return found_by(LimitsAudit(stream, real, extent.seed, key), extent)


@dataclass(frozen=True, eq=False)
class LimitedStream(OneStream):
    """A mechanism over what one slot may cost, where users count in a few slots only."""

    presence: Presence = field(kw_only=True)

    @cached_property
    def _machine(self) -> Any:
        return made_mechanism(self.facts.mechanism, self.people)

    def narrowed(self) -> LimitedStream:
        """Worst cases as they are: who is left out is asked for by bin."""
        return self

    def stream(self, key: bytes) -> PresentStream:
        """As a pipeline drives it."""
        make = LifeStream if self.presence.requirements.forever else PresentStream
        return make(self._machine, NoiseSource(key), {}, self.presence)

    def public(
        self, key: bytes, made: World, plans: Sequence[Canaries], number: int = 0
    ) -> Iterator[tuple[int, Public]]:
        """See :class:`OneStream`. Contains releases before and after scaling, and answers."""
        (counts,), beyond, stream = made.counts(plans), made.left_out(plans[0]), self.stream(key)
        state = stream.start()
        for slot, (table, left) in enumerate(zip(counts, beyond, strict=True)):
            price, before = stream.stream.price(state.stream), state.shares
            state, release = stream.release(state, slot, table, left)
            yield (
                slot,
                {
                    "prices": {0: price},
                    "releases": {0: _unscaled(stream, state, release)},
                    "scaled": release,
                    "answers": {k: _answered(before[k], state.shares[k], slot) for k in before},
                },
            )
        yield len(counts), {"revisions": stream.rest(state)}

    @property
    def asked(self) -> Requirements:
        """See :class:`OneStream`."""
        return self.presence.requirements

    def arguments(self, classes: Sequence[int]) -> dict[str, Any]:
        """See :class:`OneStream`: all have the limit of one that has any."""
        limited = [k for k in classes if k in self.stream(bytes(32)).queries]
        limit = self.presence.limits[[*limited, classes[0]][0]]
        if self.asked.forever:
            epsilon = self.asked[0].epsilon
            return {"guarantee": USER, "epsilon": epsilon, "max_slots": limit.in_life}
        return {"max_slots": f"{limit.max_slots},{limit.blocks}"}


class LimitsAudit(StreamsAudit):
    """Of one stream where users count in a few slots only.

    Args:
        stream: how it is run.
        real: a real stream, beside which canaries are put; None for worst cases.
        seed: of all that is drawn.
        key: of the calendars, 32 bytes.
    """

    kinds = (*OF_SLOTS, STORIES, BESIDES)
    times = MappingProxyType({STORIES: 1, BESIDES: 4})

    def __init__(self, stream: LimitedStream, real: Real | None, seed: int, key: bytes) -> None:
        self._stream, self._presence, self._facts = stream, stream.presence, stream.facts
        self._real, self._key = real, key
        limits, asked = self._presence.limits, self._presence.requirements
        self._rules = {
            k: Rule.of(limits, asked, self._presence.adjacency, k) for k in range(len(asked))
        }
        counts = None if real is None else [real.counts]
        super().__init__(stream.facts.mechanism, stream, counts, seed)
        self.notes = list(left_out(replace(stream.people, requirements=asked), self.classes))

    def parts(self, k: int) -> Mapping[str, Sequence[Part]]:
        """See :class:`StreamsAudit`."""
        stories = {STORIES: (Part(self._whole(k)[0], whole=self._whole(k)[1]),)}
        besides = {BESIDES: (Part(LEFT_OUT),)} if self._rules[k].limited else {}
        return {**OF_SLOTS, **stories, **besides}

    def requirement(self, k: int) -> Requirement:
        """See :class:`Audit`."""
        return self._presence.requirements[k]

    def _whole(self, k: int) -> tuple[str, str]:
        """What has a budget: the part and the claim."""
        return (LIVES, LIFE) if isinstance(self.requirement(k), Lifetime) else (WINDOWS, WINDOW)

    @property
    def too_short(self) -> Mapping[str, int]:
        """Stories that are longer than the real stream, and how long they are."""
        slots, found = math.inf if self._real is None else len(self._real.counts), {}
        for k, kind in self.worlds:
            if kind in (STORIES, BESIDES):
                alone = kind == BESIDES
                what = "what is left out" if alone else self._whole(k)[0]
                found[f"{what} of {asked_of(self.requirement(k))}"] = self._pairs(k, alone)[1]
        return {what: least for what, least in found.items() if least > slots}

    def fullest(self, outputs: Sequence[Public]) -> float:
        """Of single slots nothing: what stories cost is added up when their runs are scored."""
        return 0.0

    # ---- worlds that are replayed -------------------------------------------------------------

    def neighbours(self, random: Random) -> Iterator[Neighbours]:
        """Of every class, a user with each of the stories, beside others who come and go."""
        for k in self.classes:
            rule = self._rules[k]
            for pair in [*rule.pairs(), *([rule.besides()] if rule.limited else [])]:
                if self._fits(rule, pair):
                    yield self._neighbour(k, pair, random)

    def _fits(self, rule: Rule, pair: Pair) -> bool:
        """Whether there are slots for both stories, and bins to move to."""
        if self._facts.moves and self._bins < 2:
            return False
        return self._real is None or spacing(rule, [pair], alone=False) <= len(self._real.counts)

    def _neighbour(self, k: int, pair: Pair, random: Random) -> Neighbours:
        rule = self._rules[k]
        span = spacing(rule, [pair], alone=False)
        if self._real is not None:
            slots = max(replay_worlds.LENGTH, span)
            others, beside = self._real.counts[:slots], self._real.beyond[:slots]
        else:
            slots = max(length_of(self.streams.scene), span + rule.block)
            others = scripted(self.streams.people, slots, random)
            most = [[LAYERS + 1], [others.shape[1]], [others.shape[2]], [_MOST_BEYOND]]
            beside = [
                Beyond(*random.integers([[1], [0], [0], [1]], most, (4, 3))) for _ in range(slots)
            ]
        first = int(random.integers(max(len(others) - span, 0) + 1))
        starts, at = np.array([first], np.int64), np.zeros((1, 1), np.int64)
        plans = (comers(rule, [pair], starts, at, self._facts.each, self._key),)
        asked = asked_of(self.requirement(k))
        return Neighbours(
            World((others,), plans, beyond=beside),
            World((others[::-1],), plans, beyond=beside[::-1]),
            {0: f"a user with {asked} whose stories differ from slot {first} on"},
            [int(self._presence.requirements.budgets[k])],
            [self._aside(k)],
        )

    # ---- runs with canaries -------------------------------------------------------------------

    def made(self, world: WorldOf, number: int, random: Random) -> World:
        """See :class:`StreamsAudit`: users who come once, or who have a story."""
        k, kind = world
        if kind in OF_SLOTS:
            made = super().made(world, number, random)
            beyond = self._real.beyond[made.first :] if self._real else ()
            return replace(made, beyond=beyond[: len(made.others[0])])
        alone = kind == BESIDES
        pairs, every = self._pairs(k, alone)
        slots = -(-max(worlds.LENGTH, LEAST_STORIES * every) // every) * every
        others = np.zeros((slots, len(self._presence.requirements), self._bins), np.int64)
        beyond = [Beyond.none()] * slots
        if self._real:
            real = self._real.stretch(slots, random)
            others, beyond = real.counts, real.beyond
        starts = np.arange(0, len(others) - every + 1, every, dtype=np.int64)
        at = self._at(starts.size, alone)
        plan = comers(self._rules[k], pairs, starts, at, self._facts.each, self._key)
        return World((others,), (plan,), beyond=beyond)

    def flipped(self, world: WorldOf, made: World, random: Random) -> tuple[Canaries, ...]:
        """See :class:`StreamsAudit`."""
        k, kind = world
        if kind in OF_SLOTS:
            return super().flipped(world, made, random)
        (plan,), users = made.plans, self._users_of(k, kind == BESIDES)
        return (plan.of_users(random.choice(users, plan.users.size)).flipped(random),)

    def scored(
        self, world: WorldOf, made: World, plan: Canaries, outputs: Sequence[Public], q: int
    ) -> Guesses:
        """See :class:`StreamsAudit`: what is set aside is charged besides."""
        k, kind = world
        if isinstance(plan, Comers) and kind == BESIDES:
            return self._of_answers(k, plan, made.beyond, outputs)
        seen = self.transcript(outputs, q, plan)
        found = guesses_of(seen, made.others[q], plan, alone=kind == SLOTS)
        units = plan.charged(spent_of(outputs)) + self._aside(k)
        if kind == STORIES:
            budget = int(self._presence.requirements.budgets[k])
            self.overspent = max(self.overspent, int(units.max(initial=0)) / budget)
        found = replace(found, losses=to_epsilon(units) * found.users)
        return found.promised(self.requirement(k).epsilon)

    def _aside(self, k: int) -> int:
        """What is set aside for what does not count, units."""
        return self._presence.limits[k].aside(self.requirement(k), self._presence.adjacency)

    def _pairs(self, k: int, alone: bool) -> tuple[list[Pair], int]:
        """Pairs of stories, and slots from one to the next."""
        rule = self._rules[k]
        pairs = [rule.besides()] if alone else rule.pairs()
        return pairs, spacing(rule, pairs, alone)

    @property
    def _bins(self) -> int:
        return self.streams.people.bins

    def _at(self, starts: int, alone: bool) -> Integers:
        """Bins of groups of each start, shape (s, places): all at once, or one after the other."""
        if alone:
            return np.arange(starts)[:, None] % self._bins
        return np.tile(self.streams.scene.places[0].there[0][0], (starts, 1))

    def _users_of(self, k: int, alone: bool) -> Integers:
        """Users of a group: one of these numbers."""
        people = max(int(self.streams.people.sizes[k]), 1)
        if not alone:
            return np.full(2, telling_group(TELLING, self.requirement(k).epsilon, people))
        wanted = np.rint(np.array(_TELLING) / to_epsilon(self._aside(k))).astype(np.int64)
        return np.clip(wanted, 1, people)

    def _of_answers(
        self, k: int, plan: Comers, beside: Sequence[Beyond], published: Sequence[Public]
    ) -> Guesses:
        """Guesses by what is released about events that do not count.

        What other groups do is taken at half of each.
        """
        outside = plan.outside
        query, rates = self._stream.stream(bytes(32)).queries[k]
        nothing = np.zeros(self._bins, np.int64)
        known = np.stack([query.sums(nothing, one, one.classes == k) for one in beside])
        scores, begin = np.zeros(plan.users.size), np.zeros(query.width, np.int64)
        for slot, one in enumerate(published[:-1]):
            for part, value in one["answers"][k].items():
                span = begin[part], slot + 1
                inside = np.flatnonzero(
                    outside.there & (outside.slots >= span[0]) & (outside.slots < span[1])
                )
                mine = np.zeros(scores.size)
                for row in inside[
                    _is_part(query, part, outside.layers[inside], outside.bins[inside])
                ]:
                    mine[outside.groups[row]] += plan.users[outside.groups[row]] * self._facts.each
                met = np.flatnonzero(mine)
                rest = value - float(known[slice(*span), part].sum()) - (mine.sum() - mine[met]) / 2
                rate = float(to_epsilon(_rate(rates, query, part)))
                scores[met] += (np.abs(rest) - np.abs(rest - mine[met])) * rate
                begin[part] = slot + 1
        losses = plan.users * to_epsilon(self._aside(k))
        return Guesses.of(scores, plan.there, losses, users=plan.users)


def _unscaled(stream: PresentStream, state: PresentState, release: SlotRelease) -> SlotRelease:
    """What was released before it was scaled: by what is public."""
    if not stream.queries:
        return release
    left_out, nothing = stream.left_out(state), np.zeros(release.counts.size)
    least, _ = left_out.made_up(nothing, nothing)
    most, _ = left_out.made_up(nothing + 1, nothing)
    more = most - least
    values = (release.values - least) / more
    counts = np.rint(values).astype(np.int64)
    return replace(release, counts=counts, estimates=values, stderr=release.stderr / more)


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
