"""Mutants of the mechanisms: what a programmer may get wrong, each as a patch of one place.

Every mutant says what it gets wrong, and in which scene (`scenes.py`) it is put on trial. Which
test of this repository convicts it without luck is in `doors.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from streamveil.mechanisms.accounting import schedule, window_filter, window_sums
from streamveil.mechanisms.accounting.changing_filter import ChangingFilter
from streamveil.mechanisms.accounting.open_windows import NO_LIMIT, OpenWindows
from streamveil.mechanisms.accounting.shared_ledgers import Interned
from streamveil.mechanisms.adaptive import gate, outputs, releases, running_sum
from streamveil.mechanisms.adaptive import weighting as adaptive_weighting
from streamveil.mechanisms.adaptive.algorithm import AdaptiveRelease
from streamveil.mechanisms.adaptive.fixed import Adaptive
from streamveil.mechanisms.adaptive.running_sum import RunningSum
from streamveil.mechanisms.adaptive.weighting import Weighting
from streamveil.mechanisms.core.budgets import Requirements, to_epsilon
from streamveil.mechanisms.driver.dynamic_stream import DynamicStream
from streamveil.mechanisms.driver.stream import ReleaseStream
from streamveil.mechanisms.infinite.distance import GRID
from streamveil.mechanisms.infinite.dpi import DPI
from streamveil.mechanisms.infinite.gated import Gated
from streamveil.mechanisms.infinite.series import Harmonic, Series
from streamveil.mechanisms.local import oracles
from streamveil.mechanisms.local.accounting.one_event import OneEvent
from streamveil.mechanisms.local.client.device import Device
from streamveil.mechanisms.local.oracles import Oracle
from streamveil.mechanisms.per_record import hat, prdp, running
from streamveil.mechanisms.per_record.node_noise import Nodes
from streamveil.mechanisms.presence import counters, limits
from streamveil.mechanisms.presence.counters import Counters
from streamveil.mechanisms.presence.kept_share import ShareQuery
from streamveil.mechanisms.presence.life_share import LifeQuery
from streamveil.mechanisms.protocol import SlotRelease
from streamveil.mechanisms.queries import query_stream
from streamveil.mechanisms.queries.cuts import Even
from streamveil.mechanisms.queries.query_filter import QueryFilter
from streamveil.mechanisms.queries.query_stream import QueryStream
from streamveil.mechanisms.randomness import noise
from streamveil.mechanisms.randomness.noise import NoiseSource, SlotNoise
from streamveil.mechanisms.wevent import pwsm, sampling
from streamveil.mechanisms.wevent.obs import keep_probability
from streamveil.mechanisms.wevent.pba import PBA, AbsorptionState
from streamveil.mechanisms.wevent.pbd import PBD
from streamveil.mechanisms.wevent.sampling import Sampling

Patch = pytest.MonkeyPatch
Breaks = Callable[[Patch], None]


@dataclass(frozen=True)
class Mutant:
    """One mistake."""

    name: str
    wrong: str
    """What it gets wrong, in words."""
    scene: str
    breaks: Breaks

    @contextmanager
    def patched(self) -> Iterator[None]:
        """With the mistake in place."""
        with pytest.MonkeyPatch.context() as patch:
            self.breaks(patch)
            yield


MUTANTS: dict[str, Mutant] = {}


def mutant(*scenes: str) -> Callable[[Breaks], Breaks]:
    """Enter a patch that is on trial in scenes; what it gets wrong is its docstring."""

    def enter(breaks: Breaks) -> Breaks:
        wrong = " ".join((breaks.__doc__ or "").split())
        for number, scene in enumerate(scenes):
            name = breaks.__name__ + (f"_of_{scene.replace(' ', '_')}" if number else "")
            MUTANTS[name] = Mutant(name, wrong, scene, breaks)
        return breaks

    return enter


# ---- noise ----------------------------------------------------------------------------------

LAPLACE = noise.discrete_laplace


def scaled(module: Any, patch: Patch, tenths: int) -> None:
    """Draw noise of a module for so many tenths of its budget."""
    patch.setattr(
        module,
        "discrete_laplace",
        lambda units, size, words: LAPLACE(units * tenths // 10, size, words),
    )


@mutant("uniform")
def noise_a_fifth_less(patch):
    """Published counts get noise for 1.2 times the budget."""
    scaled(sampling, patch, 12)


@mutant("uniform")
def noise_a_third_less(patch):
    """Published counts get noise for 1.5 times the budget."""
    scaled(sampling, patch, 15)


@mutant("uniform")
def noise_halved(patch):
    """Published counts get noise for twice the budget."""
    scaled(sampling, patch, 20)


@mutant("weights")
def noise_of_points_a_fifth_less(patch):
    """Weighted releases get noise for 1.2 times the budget."""
    scaled(adaptive_weighting, patch, 12)


@mutant("weights")
def noise_of_points_halved(patch):
    """Weighted releases get noise for twice the budget."""
    scaled(adaptive_weighting, patch, 20)


@mutant("sums")
def noise_of_sums_a_third_less(patch):
    """Sums get noise for 1.5 times the budget."""
    scaled(running_sum, patch, 15)


@mutant("pba")
def looks_with_half_the_noise(patch):
    """The dissimilarity gets noise for twice its budget."""
    drawn = Sampling.noise
    patch.setattr(
        Sampling,
        "noise",
        lambda self, size, words: (
            LAPLACE(2 * self.threshold, 1, words) if size == 1 else drawn(self, size, words)
        ),
    )


@mutant("pba")
def looks_without_noise(patch):
    """Whether a slot publishes is decided by the true dissimilarity."""
    drawn = Sampling.noise
    patch.setattr(
        Sampling,
        "noise",
        lambda self, size, words: np.zeros(1, np.int64) if size == 1 else drawn(self, size, words),
    )


def published(patch: Patch, change: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> None:
    """Let SM publish something else of sampled counts and their noise."""

    def publish(self, counts, noise):
        sampled = self.sample(counts, noise.words("publication sample"))
        drawn = self.noise(sampled.size, noise.words("publication noise"))
        released = change(sampled, drawn)
        return released, self.standard_error(released)

    patch.setattr(Sampling, "publish", publish)


@mutant("uniform")
def empty_bins_without_noise(patch):
    """A bin without events gets no noise."""
    published(patch, lambda sampled, drawn: np.where(sampled > 0, sampled + drawn, 0))


@mutant("uniform")
def the_last_bin_without_noise(patch):
    """Noise is drawn for one bin too few."""
    published(patch, lambda sampled, drawn: sampled + np.append(drawn[:-1], 0))


@mutant("uniform")
def one_draw_for_all_bins(patch):
    """All bins of a slot get the same draw."""
    published(patch, lambda sampled, drawn: sampled + drawn[0])


@mutant("uniform")
def one_draw_for_all_slots(patch):
    """Every slot starts the same stream of random words."""
    patch.setattr(NoiseSource, "slot", lambda self, *_: SlotNoise(self._keys.first))


@mutant("uniform")
def noise_that_counts_have_no_part_in(patch):
    """Noise is a function of key and slot alone: other counts get the same."""
    slot = NoiseSource.slot
    patch.setattr(NoiseSource, "slot", lambda self, number, _: slot(self, number, b""))


@mutant("pba")
def one_purpose_for_two_draws(patch):
    """The dissimilarity and the publication of a slot draw from the same words."""

    def publish(self, counts, noise):
        sampled = self.sample(counts, noise.words("dissimilarity sample"))
        released = sampled + self.noise(sampled.size, noise.words("dissimilarity noise"))
        return released, self.standard_error(released)

    patch.setattr(Sampling, "publish", publish)


@mutant("uniform")
def zero_of_both_signs(patch):
    """Zero is accepted with either sign: it is twice as likely as it should be."""

    def drawn(units, size, words):
        samples = np.empty(0, dtype=np.int64)
        while samples.size < size:
            _, fraction, whole, negative = _exponentials(UNIT_BITS, 2 * size + 16, words)  # noqa: F821
            magnitude = (fraction + (whole << UNIT_BITS)) // units  # noqa: F821
            samples = np.append(samples, np.where(negative, -magnitude, magnitude))
        return samples[:size]

    patch.setattr(noise.discrete_laplace, "__code__", drawn.__code__)


# ---- sensitivity ----------------------------------------------------------------------------

CHOOSE = Sampling.choose.__func__


def divided(patch: Patch, by: Callable[[int], int]) -> None:
    """Let SM divide budgets by something else than the sensitivity."""

    def choose(cls, budgets, population):
        each = to_epsilon(budgets // by(population.sensitivity))
        threshold, error = sampling.optimal_budget_selection(each, population.sizes)
        keep = keep_probability(each, threshold)
        return cls(sampling.to_units(threshold), error, keep, population)

    patch.setattr(Sampling, "choose", classmethod(choose))


@mutant("replaced")
def a_replaced_event_as_one(patch):
    """Under `replace` a user counts as one change, not as two."""
    divided(patch, lambda sensitivity: sensitivity // 2)


@mutant("replaced")
def contributions_ignored(patch):
    """A user's several events are taken for one."""
    divided(patch, lambda sensitivity: 1)


@mutant("moved")
def weights_without_sensitivity(patch):
    """Weighted releases take every change for one, in weights and in the bill."""

    def at(cls, threshold, offers, population):
        unit = max(1, threshold * population.sensitivity >> adaptive_weighting.STEP_BITS)
        return cls(np.minimum(offers, threshold * population.sensitivity) // unit, unit, population)

    patch.setattr(Weighting, "at", classmethod(at))
    patch.setattr(Weighting, "spent", property(lambda self: self.weights * self.unit))


def bounded(patch: Patch, kept: Callable[[Any, np.ndarray], np.ndarray]) -> None:
    """Let other events count, of groups of so many each; one event of each visit is not drawn."""
    bounding = import_module("streamveil.engine.count.bounding")
    event_codes = import_module("streamveil.engine.count.event_codes")
    patch.setattr(
        bounding.Bounding, "__call__", lambda self, visits, repeats, *_: kept(self, repeats)
    )
    patch.setattr(event_codes, "draw_one", lambda *_: None)


@mutant("events")
def events_unbounded(patch):
    """More of a user's events count in a slot than may."""
    bounded(patch, lambda self, repeats: repeats)


@mutant("events")
def events_bounded_by_bin(patch):
    """A user's events are bounded in every bin by itself."""
    bounded(patch, lambda self, repeats: np.minimum(repeats, self.most))


# ---- budgets over windows -------------------------------------------------------------------


def absorbed(patch: Patch, later: int) -> None:
    """Let PBA absorb as if more slots had passed."""
    right = PBA._absorbed
    patch.setattr(
        PBA,
        "_absorbed",
        lambda self, state: right(self, replace(state, since=state.since + later)),
    )


@mutant("pba")
def absorbs_a_slot_early(patch):
    """PBA absorbs the share of a slot that has not come yet."""
    absorbed(patch, 1)


def nullified(patch: Patch, still: Callable[[Any, int], bool]) -> None:
    """Let PBA nullify other slots."""

    def offer(self, state):
        if still(state, int((state.shares - 1).max())):
            return schedule.Offer(self.share, np.zeros_like(self.share), nullified=True)
        return schedule.Offer(self.share, self._absorbed(state) * self.share, nullified=False)

    patch.setattr(PBA, "offer", offer)
    patch.setattr(
        PBA, "_absorbed", lambda self, state: np.minimum(np.maximum(state.since, 1), self.windows)
    )


@mutant("pba")
def nothing_nullified(patch):
    """PBA may publish right after a publication that took several shares."""
    nullified(patch, lambda state, last: False)


@mutant("pba")
def nullifies_a_slot_less(patch):
    """PBA nullifies one slot too few."""
    nullified(patch, lambda state, last: state.since <= last - 1)


@mutant("pba")
def absorbs_twice(patch):
    """PBA spends the absorbed shares twice."""
    right = PBA.offer

    def offer(self, state):
        found = right(self, state)
        return replace(found, publication=2 * found.publication)

    patch.setattr(PBA, "offer", offer)


@mutant("pba")
def publications_forgotten(patch):
    """PBA never records a publication, as its authors' code."""
    patch.setattr(
        PBA, "commit", lambda self, state, *_: AbsorptionState(state.shares, state.since + 1)
    )


@mutant("pba")
def shares_rounded_up(patch):
    """Shares of a budget are rounded up to whole units."""
    begin = schedule.FixedBudgets.__init__

    def rounded(self, requirements):
        begin(self, requirements)
        self.share = -(-self.requirements.budgets // (2 * self.windows))

    patch.setattr(schedule.FixedBudgets, "__init__", rounded)


@mutant("pbd")
def recycled_a_slot_early(patch):
    """PBD gets back what a slot spent that is still in the window."""
    begin = window_sums.WindowSums.__init__
    patch.setattr(
        window_sums.WindowSums,
        "__init__",
        lambda self, windows: begin(self, np.maximum(windows - 1, 1)),
    )


@mutant("pbd")
def publications_unrecorded(patch):
    """PBD halves the whole budget again and again."""
    patch.setattr(
        PBD, "commit", lambda self, state, offer, _: self._sums.add(state, 0 * offer.publication)
    )


@mutant("pbd")
def all_for_publications(patch):
    """PBD's publications may take all of E, beside the half for the dissimilarity."""
    begin = PBD.__init__

    def whole(self, requirements):
        begin(self, requirements)
        self.publication_cap = self.requirements.budgets

    patch.setattr(PBD, "__init__", whole)
    patch.setattr(
        PBD,
        "offer",
        lambda self, state: schedule.Offer(
            self.share, self.publication_cap - state.recent, nullified=False
        ),
    )


@mutant("pbd")
def skipped_slots_unbooked(patch):
    """A slot that is skipped has looked, and is not booked for it."""
    step = pwsm.PWSM.step

    def free(self, state, slot_input, noise):
        state, release = step(self, state, slot_input, noise)
        if release.status != "published":
            release = replace(release, spent=0 * release.spent)
        return state, release

    patch.setattr(pwsm.PWSM, "step", free)


@mutant("uniform")
def windows_a_slot_short(patch):
    """Every window is read as one slot shorter, by mechanisms and filters alike."""
    windows = Requirements.windows.func
    patch.setattr(Requirements, "windows", property(lambda self: np.maximum(windows(self) - 1, 1)))


@mutant("uniform")
def no_filter(patch):
    """The filter lets everything pass; the mechanism is right."""
    patch.setattr(window_filter.WindowFilter, "charge", lambda *_: None)


@mutant("uniform")
def a_filter_that_forgets_early(patch):
    """The filter lets a slot leave the window one slot early; the mechanism is right."""
    begin = window_filter.WindowFilter.__init__

    def short(self, requirements):
        begin(self, requirements)
        self._windows = np.maximum(self._windows - 1, 1)

    patch.setattr(window_filter.WindowFilter, "__init__", short)


@mutant("restarted")
def spending_forgotten_at_a_restart(patch):
    """What PBD spent before is not read from a saved state."""

    def read(self, record):
        return replace(self.start(), slots=record["slots"])

    patch.setattr(window_sums.WindowSums, "read", read)


@mutant("restarted")
def filters_forget_at_a_restart(patch):
    """Neither PBD nor the filter read what was spent from a saved state."""
    spending_forgotten_at_a_restart(patch)
    decode = window_filter.WindowFilter.decode.__func__

    def fresh(cls, data, requirements):
        made = decode(cls, data, requirements)
        return cls(made.requirements)

    patch.setattr(window_filter.WindowFilter, "decode", classmethod(fresh))


# ---- sampling of classes --------------------------------------------------------------------


@mutant("classes")
def nobody_is_thinned(patch):
    """Users of small budgets are all kept."""
    patch.setattr(sampling, "thin", lambda counts, *_: counts.copy())


@mutant("classes")
def kept_in_proportion(patch):
    """Users are kept with probability e / th, not expm1(e) / expm1(th)."""

    def keep(budgets, threshold):
        return np.minimum(np.asarray(budgets) / threshold, 1.0)

    patch.setattr(sampling, "keep_probability", keep)


@mutant("present")
def thresholds_from_who_is_there(patch):
    """OBS chooses by who is in the slot, not by the registry."""
    decide = pwsm.decide

    def looking(state, offer, crowd, slot_input, noise):
        return decide(
            state, offer, replace(crowd, sizes=slot_input.counts.sum(axis=1)), slot_input, noise
        )

    patch.setattr(pwsm, "decide", looking)


# ---- the adaptive mechanism -----------------------------------------------------------------


@mutant("weights")
def all_weigh_alike(patch):
    """Everybody counts fully, and is charged by weight."""

    def release(self, counts, noise, purpose):
        alike = self.weights.max() * counts.sum(axis=0)
        return self.add_noise(alike, noise, purpose) * self.factor

    patch.setattr(Weighting, "release", release)


@mutant("weights")
def a_reserve_counted_twice(patch):
    """The main part may spend the reserve as well."""
    parts = Adaptive._parts

    def twice(self, budgets):
        gate_rate, rate, main, reserve = parts(self, budgets)
        return gate_rate, rate + reserve // self.windows, main + reserve, reserve

    patch.setattr(Adaptive, "_parts", twice)


@mutant("weights")
def two_audits_in_a_window(patch):
    """Audits come twice in the longest window."""
    terms = Adaptive.terms

    def due(self, state, members):
        found = terms(self, state, members)
        return replace(
            found, audit=self.audit if state.slots % max(self.longest // 2, 1) == 0 else None
        )

    patch.setattr(Adaptive, "terms", due)


@mutant("gate")
def looks_for_free(patch):
    """Looks of the gate are not booked."""
    look = gate.look

    def free(state, here, offers):
        spent, surprise = look(state, here, offers)
        return 0 * spent, surprise

    patch.setattr(gate, "look", free)


@mutant("gate")
def a_gate_without_noise(patch):
    """The gate looks at the true distance."""
    add = Weighting.add_noise

    def exact(self, statistic, noise, purpose, *shaping):
        if purpose == "gate":
            return statistic
        return add(self, statistic, noise, purpose, *shaping)

    patch.setattr(Weighting, "add_noise", exact)


@mutant("gate")
def compared_with_the_counts(patch):
    """A release shows nothing where a bin is empty."""
    release_of = outputs.released

    def shown(state, here, *given):
        release = release_of(state, here, *given)
        return replace(release, counts=release.counts * (here.counts.sum(axis=0) > 0))

    patch.setattr(outputs, "released", shown)


@mutant("gate")
def gaps_by_true_counts(patch):
    """The gap to the next release is planned by the true counts."""
    seen, replan, counted = AdaptiveRelease._seen, AdaptiveRelease._replan, [0]

    def noted(self, state, here):
        counted[0] = int(here.counts.sum())
        return seen(self, state, here)

    def planned(self, state, terms):
        replan(self, state, terms)
        state.gap += counted[0] % 2

    patch.setattr(AdaptiveRelease, "_seen", noted)
    patch.setattr(AdaptiveRelease, "_replan", planned)


@mutant("sums")
def sums_paid_at_the_end(patch):
    """A sum is booked in its last slot only, which pays what all have saved."""
    add, weighting = releases.add, RunningSum.weighting

    def unbooked(state, here, bill):
        full = replace(bill)
        add(state, here, full)
        if state.since >= state.gap:
            bill.main, bill.reserve = full.main, full.reserve

    def saved_up(self, offers, crowd):
        once = weighting(self, offers, crowd)
        return replace(once, weights=3 * once.weights)

    patch.setattr(releases, "add", unbooked)
    patch.setattr(RunningSum, "weighting", saved_up)
    patch.setattr(AdaptiveRelease, "price", lambda self, state, members=None: self.main_cap)


@mutant("sums")
def sums_go_on(patch):
    """A sum begins with what the one before has released."""
    release, begin, left = RunningSum.release, RunningSum.begin.__func__, {}

    def kept(self, *given):
        left[self.partial.shape] = self.partial
        return release(self, *given)

    def begun(cls, *given, **more):
        made = begin(cls, *given, **more)
        made.partial = made.partial + left.pop(made.partial.shape, 0)
        return made

    patch.setattr(RunningSum, "release", kept)
    patch.setattr(RunningSum, "begin", classmethod(begun))


@mutant("sums")
def sums_by_who_came(patch):
    """A class that has no events in a slot is not weighed, and so not in the scale."""
    add = RunningSum.add

    def present(self, weighting, counts):
        came = counts.any(axis=1)
        add(self, replace(weighting, weights=weighting.weights * came), counts)

    patch.setattr(RunningSum, "add", present)


# ---- requirements that change ---------------------------------------------------------------


@mutant("changing")
def promises_forgotten(patch):
    """When a requirement changes, windows that were open end, for mechanism and filter."""
    opens = OpenWindows.open

    def forget(self, windows, lengths, caps, rates):
        windows.ends[:] = -1
        windows.caps[:] = windows.rates[:] = NO_LIMIT
        opens(self, windows, lengths, caps, rates)

    patch.setattr(OpenWindows, "open", forget)
    patch.setattr(ChangingFilter, "_check", lambda *_: None)


@mutant("changing")
def windows_ahead_end_early(patch):
    """Windows that look ahead are a slot too short in the mechanism."""
    opens = OpenWindows.open
    patch.setattr(
        OpenWindows,
        "open",
        lambda self, windows, lengths, *given: opens(
            self, windows, np.minimum(lengths, np.maximum(lengths - 1, 1)), *given
        ),
    )


@mutant("stricter")
def changes_in_force_late(patch):
    """Who moves keeps what was asked for before."""
    move = Interned.move

    def late(self, moves, default):
        before = self.asked[self.ledgers_of(np.maximum(moves.parents, 0))]
        return move(self, replace(moves, requirements=before), default)

    patch.setattr(Interned, "move", late)


# ---- participation limits ---------------------------------------------------------------------


@mutant("limited")
def one_slot_more_counts(patch):
    """The limit of a block is checked a slot late."""
    begin = Counters.__init__

    def late(self, rules, key, like):
        begin(self, rules, key, like)
        self.rules = replace(rules, most=rules.most + 1)

    patch.setattr(Counters, "__init__", late)


@mutant("limited")
def blocks_from_the_first_visit(patch):
    """Blocks begin with a user's first visit, not with a phase of their own."""

    def first(key, users, slots, lengths, names=None):
        start = int(slots[0]) if len(slots) else 0
        return ((slots - start) // lengths + 1) * lengths + start

    patch.setattr(counters, "block_ends", first)


@mutant("limited")
def a_price_for_fewer_slots(patch):
    """Under `add_remove` a slot costs E / ((j + 1) m), the price under `replace`."""

    def fewer(window, max_slots, blocks=2, adjacency=""):
        return min((blocks + 1) * max_slots, window)

    patch.setattr(limits.effective_window, "__code__", fewer.__code__)


# ---- one budget forever ---------------------------------------------------------------------


@mutant("forever")
def noise_of_one_slot_for_several(patch):
    """The mean of several slots gets the noise of one."""
    patch.setattr(Gated, "_width", lambda self, slots: self.population.sensitivity)


@mutant("gate forever")
def a_gate_for_another_sensitivity(patch):
    """The gate's noise is for distances that one user moves by a 2**-25 of a count."""
    patch.setattr(Gated, "_step", 1)


@mutant("gate forever")
def a_gate_without_its_factor_two(patch):
    """The gate takes the distance from a distribution to move by one count, not by two."""
    patch.setattr(Gated, "_step", property(lambda self: self.population.sensitivity * GRID))


@mutant("forever")
def a_series_without_an_end(patch):
    """Terms of the series are not divided by its sum."""

    def term(self, k):
        return math.floor(self.units / float(k) ** float(self.power))

    patch.setattr(Series, "term", term)


@mutant("forever")
def every_epoch_as_the_first(patch):
    """Every epoch gets the first term of the series."""
    patch.setattr(Series, "term", lambda self, k, right=Series.term: right(self, 1))
    patch.setattr(Harmonic, "term", lambda self, k, right=Harmonic.term: right(self, 1))


@mutant("drawn")
def a_draw_without_the_factor_t(patch):
    """DPI over t slots draws as if one user were in one of them, as published."""
    rate = DPI._rate
    patch.setattr(DPI, "_rate", lambda self, units, rounds, width: rate(self, units, 1, width))


# ---- devices --------------------------------------------------------------------------------


@mutant("devices")
def the_truth_too_often(patch):
    """The probability of the truth leaves out that a lie may be true by chance."""

    def threshold(self):
        if self.kind != oracles.GRR:
            return oracles.raised_threshold(self.q)
        return oracles.probability_threshold(min(self.p, math.nextafter(1, 0)))

    patch.setattr(Oracle, "threshold", property(threshold))


@mutant("symbols")
def one_symbol_too_few(patch):
    """Probabilities are for one symbol less than there are."""
    right = Oracle.of.__func__

    def of(cls, kind, units, symbols):
        made = right(cls, kind, units, max(symbols - 1, 2))
        return replace(made, symbols=symbols)

    patch.setattr(Oracle, "of", classmethod(of))


@mutant("bits")
def true_bits_kept_as_others(patch):
    """A true bit is flipped as rarely as others are, and not half of the time."""
    right = oracles._unary

    def symmetric(oracle, values, words):
        packed = right(oracle, values, words)
        bits = np.unpackbits(packed, axis=1, count=oracle.symbols)
        lies = words.draw(values.size) < np.uint64(oracle.threshold)
        bits[np.arange(values.size), values] = ~lies
        return np.packbits(bits, axis=1)

    patch.setattr(oracles, "_unary", symmetric)


@mutant("one event")
def every_event_reported(patch):
    """An event does not use up its block: a device tells all of them."""
    patch.setattr(OneEvent, "reported", lambda self, slot, users, values: values)


@mutant("asked again")
def an_answer_drawn_anew(patch):
    """A device that is asked the same again draws anew, and books nothing."""
    report, times = Device.report, [0]

    def anew(self, assignment, slot, value):
        self._answers.clear()
        before = list(self._spending)
        self._spending = [one for one in before if one[0] != slot]
        times[0] += 1
        self._noise = NoiseSource(self._key, f"{times}")
        return report(self, assignment, slot, value)

    patch.setattr(Device, "report", anew)


@mutant("devices")
def reports_for_a_shorter_window(patch):
    """Reports cost E / (w - 1) and not E / w."""
    patch.setattr(
        Requirements,
        "shares",
        property(lambda self: self.budgets // np.maximum(self.windows - 1, 1)),
    )


# ---- single records -------------------------------------------------------------------------


@mutant("counted")
def noise_of_the_next_node(patch):
    """Every node gets the noise of the next one."""
    noisy = Nodes.noisy

    def next_one(self, *given, **more):
        rates = np.append(self.rates[1:], self.rates[-1])
        return noisy(replace(self, rates=rates), *given, **more)

    patch.setattr(Nodes, "noisy", next_one)


@mutant("counted")
def parts_rounded_up(patch):
    """A record's part at the larger budget is rounded up, to whole steps."""

    def split(self, steps, budgets):
        affordable = self.nodes.affordable(budgets) / steps
        left, _, weight = hat.hat_weights(affordable, self.nodes.budgets)
        right = np.ceil(steps * weight).astype(np.int64)
        return hat.Contribution(left, steps - right), hat.Contribution(left + 1, right)

    patch.setattr(hat._Hat, "split", split)


@mutant("counted")
def nodes_chosen_by_true_totals(patch):
    """Which nodes are summed up is decided without noise."""
    noisy, exact = Nodes.noisy, {}

    def noted(self, part, *given, **more):
        found = noisy(self, part, *given, **more)
        low, high = part.reshape(2, -1)
        exact["totals"] = (low + high * 2.0**24) * 2.0**self.grid.exponent
        return found

    def select(self, found):
        true = np.broadcast_to(exact["totals"], found.totals.shape)
        nodes = np.sqrt(2 / found.variances)
        return hat.gap_select(true, nodes, self.base, self.beta0, self.slope, self.beta_far)

    patch.setattr(Nodes, "noisy", noted)
    patch.setattr(hat._Hat, "select", select)


@mutant("domains")
def domains_rounded_up(patch):
    """A budget is put into the next domain, whose noise is for twice as much."""

    def above(budgets, low):
        budgets = np.asarray(budgets, np.float64)
        index = np.array(np.searchsorted(low, budgets, side="left"), np.int64) + 1
        index[np.isnan(budgets) | (budgets < low[0])] = 0
        return np.minimum(index, len(low))

    patch.setattr(prdp.domain_index, "__code__", above.__code__)


@mutant("domains")
def domains_unchecked(patch):
    """The same, and nobody checks what a record can afford."""
    domains_rounded_up(patch)
    patch.setattr(Nodes, "affordable", lambda self, budgets: np.full_like(budgets, np.inf))


@mutant("running")
def budgets_undivided_in_a_tree(patch):
    """Every node of a tree gets noise for the whole budget."""
    tick = running.RunningTotal.tick

    class Whole:
        def __init__(self, inner):
            self._inner = inner

        def __getattr__(self, name):
            return getattr(self._inner, name)

        def noisy(self, part, noise, shares):
            return self._inner.noisy(part, noise, 1)

    def whole(self, state, part, noise):
        inner = self.statistic
        self.statistic = Whole(inner)
        try:
            return tick(self, state, part, noise)
        finally:
            self.statistic = inner

    patch.setattr(running.RunningTotal, "tick", whole)


# ---- many queries -------------------------------------------------------------------------


@mutant("queries")
def shares_of_more_than_all(patch):
    """Shares of queries add up to 1.2 of the budget."""
    stream = QueryStream._stream
    patch.setattr(
        QueryStream,
        "_stream",
        lambda self, query, units, noise, **given: stream(
            self, query, units * 6 // 5, noise, **given
        ),
    )


@mutant("queries")
def slots_in_part_as_whole(patch):
    """A slot of which the window has a part is priced as one that it has whole."""
    patch.setattr(query_stream, "sensitivity_of", lambda query, _, **more: query.sensitivity)


@mutant("queries")
def windows_of_queries_rounded_down(patch):
    """A window is taken to meet one slot less of a query."""
    patch.setattr(Even, "most_in", lambda self, window: (window - 1) // self.slots + 1)


@mutant("queries")
def releases_charged_to_their_last_slot(patch):
    """The filter over all queries takes a long release for one of its last base slot."""
    charge = QueryFilter.charge

    def late(self, last, charges):
        charge(self, last, [one._replace(first=one.last) for one in charges])

    patch.setattr(QueryFilter, "charge", late)


# ---- what leaves, whatever was made with noise ----------------------------------------------

STREAMED = ("pba", "weights", "limited", "limited pba", "lives", "queries", "queries pba")
"""Scenes in which a stream of one mechanism, or of several, releases counts by class."""


def left(patch: Patch, change: Callable[[SlotRelease, np.ndarray], SlotRelease]) -> None:
    """Let something else leave a stream than its mechanism made, of counts of all classes (d,)."""
    release, changing = ReleaseStream.release, DynamicStream.release

    def counts_released(self, state, slot, counts):
        state, made = release(self, state, slot, counts)
        return state, change(made, counts.sum(axis=0))

    def cells_released(self, state, slot, counts, moves):
        state, made = changing(self, state, slot, counts, moves)
        table = np.zeros(made.counts.size, np.int64)
        np.add.at(table, counts.bins, counts.counts)
        return state, change(made, table)

    patch.setattr(ReleaseStream, "release", counts_released)
    patch.setattr(DynamicStream, "release", cells_released)


@mutant(*STREAMED, "forever", "changing")
def true_counts_published(patch):
    """Every slot publishes its true counts; all that is internal stays as it is."""
    left(patch, lambda made, counts: replace(made, counts=counts.copy()))


@mutant(*STREAMED, "changing")
def errors_tell_the_counts(patch):
    """The standard error of a bin has its true count in its last digits."""
    left(patch, lambda made, counts: replace(made, stderr=made.stderr + 1e-9 * (1 + counts)))


@mutant(*STREAMED, "forever", "changing")
def a_diagnostic_tells_a_count(patch):
    """A diagnostic says how many events a slot has."""
    left(
        patch,
        lambda made, counts: replace(
            made, diagnostics={**made.diagnostics, "events": float(counts.sum())}
        ),
    )


@mutant("queries", "queries pba")
def true_histograms_of_queries(patch):
    """A query set publishes the true histogram of every query."""
    release = QueryStream.release

    def counts_released(self, state, base_slot, counts):
        state, made = release(self, state, base_slot, counts)
        return state, {q: replace(one, counts=counts[q].sum(axis=0)) for q, one in made.items()}

    patch.setattr(QueryStream, "release", counts_released)


@mutant("limited", "limited pba")
def kept_counts_without_noise(patch):
    """What counts, and what a limit leaves out, is released without noise."""
    patch.setattr(ShareQuery, "answer", lambda self, sums, rates, words: sums.copy())


@mutant("lives")
def kept_counts_of_lives_without_noise(patch):
    """What a lifetime limit leaves out is released without noise."""
    patch.setattr(
        LifeQuery, "answer", lambda self, sums, asked, rates, words: np.where(asked, sums, 0)
    )


LATE = 302


def late(patch: Patch, silence: Callable[[Callable[[], bool]], None]) -> None:
    """Tell from which slot on noise is made."""
    slot, now = NoiseSource.slot, [0]

    def noted(self, number, digest):
        now[0] = number
        return slot(self, number, digest)

    patch.setattr(NoiseSource, "slot", noted)
    silence(lambda: now[0] >= LATE)


@mutant(*STREAMED)
def no_noise_from_slot_302(patch):
    """From slot 302 on mechanisms add no noise."""

    def silence(is_late):
        for module in (sampling, adaptive_weighting, running_sum):
            patch.setattr(
                module,
                "discrete_laplace",
                lambda units, size, words: (
                    np.zeros(size, np.int64) if is_late() else LAPLACE(units, size, words)
                ),
            )

    late(patch, silence)


@mutant(*STREAMED)
def a_silent_source_from_slot_302(patch):
    """From slot 302 on the noise source gives nothing but zeros."""
    tries = noise._exponentials

    def silence(is_late):
        def silent(bits, size, words):
            if not is_late():
                return tries(bits, size, words)
            nothing = np.zeros(size, np.int64)
            return np.ones(size, np.bool_), nothing, nothing, np.zeros(size, np.bool_)

        patch.setattr(noise, "_exponentials", silent)

    late(patch, silence)


LEAVING = (
    true_counts_published,
    errors_tell_the_counts,
    a_diagnostic_tells_a_count,
    true_histograms_of_queries,
    kept_counts_without_noise,
    kept_counts_of_lives_without_noise,
    no_noise_from_slot_302,
    a_silent_source_from_slot_302,
)
"""Those that show in what leaves, and not in what is charged."""
