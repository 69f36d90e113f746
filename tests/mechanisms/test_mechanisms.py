"""The mechanisms by their names: budgets on every path, replays, and what steers them."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import (
    MECHANISMS,
    SCHEDULES,
    BudgetExceeded,
    ConfigurationError,
    NoiseSource,
    Population,
    ReleaseStream,
    Requirement,
    SlotRelease,
    mechanism,
    simulate,
)
from streamveil.mechanisms.core.identity import encoded
from streamveil.mechanisms.randomness.noise import SlotNoise
from streamveil.mechanisms.wevent import pwsm
from streamveil.mechanisms.wevent.obs import keep_probability
from streamveil.mechanisms.wevent.pba import PBA, AbsorptionState
from streamveil.mechanisms.wevent.pwsm import PWSM
from tests.mechanisms.streams import KEY, SIGMAS, assert_within_budget, windows_and_epsilons
from tests.mechanisms.streams import people as population

# Kurtosis of Laplace noise: the variance of n squared samples is (6 - 1) sigma**4 / n.
LAPLACE_KURTOSIS = 6

NAMES = pytest.mark.parametrize("name", list(MECHANISMS))
SCHEDULED = pytest.mark.parametrize("name", list(SCHEDULES))
PROPERTY = settings(max_examples=60)

ALWAYS, NEVER = math.inf, -math.inf


def stream_of(name, people, key=KEY, stream="", **context) -> ReleaseStream:
    return ReleaseStream(
        mechanism(name, people),
        NoiseSource(key, stream),
        context={k: encoded(v) for k, v in context.items()},
    )


def run(stream, counts, state=None, first=0):
    """Release all slots; returns the releases and the last state."""
    state = stream.start() if state is None else state
    releases = []
    for slot, table in enumerate(counts, start=first):
        state, release = stream.release(state, slot, table)
        releases.append(frozen(release))
    return releases, state


def frozen(release) -> SlotRelease:
    """A copy that no later slot can reach."""
    return SlotRelease(
        release.counts.copy(),
        release.status,
        release.published_slot,
        release.epsilon,
        release.stderr.copy(),
        dict(release.diagnostics),
        release.alarm,
        spent=release.spent.copy(),
    )


def fields(release) -> tuple:
    """All of a release as bytes and plain values, to compare."""
    return (
        release.counts.tobytes(),
        release.status,
        release.published_slot,
        release.epsilon,
        release.stderr.tobytes(),
        release.spent.tobytes(),
        tuple(release.diagnostics.items()),
        release.alarm,
    )


def decide(patch, values) -> None:
    """Let the dissimilarity of the open slots be these values; one value stands for all slots."""
    sequence = iter(values) if isinstance(values, list) else None
    patch.setattr(pwsm, "dissimilarity", lambda *_: values if sequence is None else next(sequence))


def counts_of(seed, slots, classes, bins, jumps=False) -> np.ndarray:
    """Counts of a stream, of one size or jumping between nothing and millions."""
    rng = np.random.default_rng(seed)
    scale = rng.choice([0, 3, 1000, 10**6], (slots, 1, 1)) if jumps else 20
    return (rng.random((slots, classes, bins)) * scale).astype(np.int64)


# ---- budgets --------------------------------------------------------------------------------


# No window of any class overspends, on real data that jumps and on every forced path: publishing
# always, never, and at random.
@SCHEDULED
@PROPERTY
@given(
    requirements=windows_and_epsilons(),
    sensitivity=st.integers(1, 3),
    forced=st.sampled_from(["data", "always", "never", "random"]),
    seed=st.integers(0, 2**32),
)
def test_no_window_overspends(name, requirements, sensitivity, forced, seed):
    slots, bins = 24, 2
    rng = np.random.default_rng(seed)
    sizes = rng.choice([0, 1, 50, 10**6], len(requirements)).tolist()
    people = population(requirements, sizes, bins, sensitivity)
    # Counts that are thinned one by one stay small; jumps come with their own test below.
    counts = counts_of(seed, slots, len(requirements), bins)
    with pytest.MonkeyPatch.context() as patch:
        if forced == "random":
            decide(patch, rng.choice([ALWAYS, NEVER], slots).tolist())
        elif forced != "data":
            decide(patch, ALWAYS if forced == "always" else NEVER)
        releases, _ = run(stream_of(name, people), counts)
    assert len(releases) == slots
    assert all((release.spent >= 0).all() for release in releases)
    assert_within_budget(releases, people.requirements)
    if forced == "never":
        assert not any(release.status == "published" for release in releases)
    if forced == "always" and max(sizes) > 0:
        assert all(release.status != "skipped" for release in releases)


# The same where the counts themselves jump between nothing and a million.
@NAMES
def test_no_window_overspends_when_counts_jump(name):
    people = population([(3, 1.0), (7, 0.3), (1, 5.0)], [100, 1000, 10], bins=3)
    releases, _ = run(stream_of(name, people), counts_of(5, 30, 3, 3, jumps=True))
    statuses = [release.status for release in releases]
    assert "published" in statuses
    assert_within_budget(releases, people.requirements)


# Half of the budget is spent on the dissimilarity by every slot, skipped and nullified ones too.
@SCHEDULED
def test_every_slot_pays_for_its_dissimilarity(monkeypatch, name):
    decide(monkeypatch, NEVER)
    people = population([(4, 1.0), (2, 3.0)])
    releases, _ = run(stream_of(name, people), counts_of(1, 6, 2, 2))
    share = [2**40 // 8] * 2 if name in ("bd", "ba") else [2**40 // 8, 3 * 2**40 // 4]
    assert all(release.spent.tolist() == share for release in releases)


class ForgetfulPBA(PBA):
    """PBA as its authors' code has it: no publication is ever recorded."""

    def commit(self, state, offer, published):
        return AbsorptionState(state.shares, state.since + 1)


# A mechanism whose own arithmetic is wrong releases nothing beyond the budget: the filter
# refuses the slot, and again when it is tried again.
def test_the_filter_stops_a_forgetful_schedule(monkeypatch):
    decide(monkeypatch, ALWAYS)
    people = population([(4, 1.0), (3, 2.0)])
    rigged = PWSM(ForgetfulPBA, "rigged", people)
    stream = ReleaseStream(rigged, NoiseSource(KEY))
    counts = counts_of(1, 20, 2, 2)
    released = []

    def release_all():
        state = stream.start()
        for slot in range(20):
            state, release = stream.release(state, slot, counts[slot])
            released.append(frozen(release))

    with pytest.raises(BudgetExceeded, match=r"requested .* remaining .* difference"):
        release_all()
    allowed = len(released)
    assert 0 < allowed < 4
    assert_within_budget(released, people.requirements)
    _, state = run(stream, counts[:allowed])
    data = stream.encode(state)
    for _ in range(2):
        with pytest.raises(BudgetExceeded):
            stream.release(stream.decode(data), allowed, counts[allowed])


class Spendthrift:
    """A mechanism that reports what it spends, and spends it all at once, twice."""

    name = "spendthrift"

    def __init__(self, people):
        self.population = people

    def start(self):
        return None

    def price(self, state):
        return np.full(len(self.population.requirements), 2**40)

    def step(self, state, slot_input, noise):
        counts, spent = slot_input.counts.sum(axis=0), self.price(state)
        return state, SlotRelease(
            counts, "published", slot_input.slot, 1.0, counts * 0.0, spent=spent
        )


def test_the_filter_stops_a_spendthrift():
    stream = ReleaseStream(Spendthrift(population([(2, 1.0), (1, 1.0)])), NoiseSource(KEY))
    state, _ = stream.release(stream.start(), 0, counts_of(1, 1, 2, 2)[0])
    with pytest.raises(BudgetExceeded, match=r"window=2.*requested 1 .*remaining 0 .*difference 1"):
        stream.release(state, 1, counts_of(1, 1, 2, 2)[0])


# ---- replays --------------------------------------------------------------------------------


# A slot that is released again from the same state bytes is the same release and the same state,
# byte for byte; and so is all that follows.
@pytest.mark.slow
@NAMES
def test_replay_is_identical(name):
    people = population([(3, 1.0), (5, 4.0)], [20, 30], bins=3)
    counts = counts_of(3, 30, 2, 3, jumps=True)
    stream = stream_of(name, people)
    state = stream.start()
    for slot in range(30):
        data = stream.encode(state)
        replayed, first = stream_of(name, people).release(stream.decode(data), slot, counts[slot])
        state, second = stream.release(stream.decode(data), slot, counts[slot])
        assert fields(first) == fields(second)
        assert stream.encode(replayed) == stream.encode(state)
    unbroken, end = run(stream_of(name, people), counts)
    assert fields(unbroken[-1]) == fields(second)
    assert stream.encode(end) == stream.encode(state)


def noise_terms(name, counts, bins, **changes) -> np.ndarray:
    """Noise of every slot over its standard error, for one class, of which nobody is sampled."""
    people = population([(2, 1.0)], [100], bins)
    releases, _ = run(stream_of(name, people, **changes), counts)
    published = [release for release in releases if release.status == "published"]
    true = counts[[release.published_slot for release in published]].sum(axis=1)
    noise = np.array([release.counts for release in published]) - true
    return noise / np.array([release.stderr for release in published])


def assert_unrelated(a, b) -> None:
    """Noise of shape (slots, bins): uncorrelated, and not the same in any slot."""
    assert a.shape == b.shape
    assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) * math.sqrt(a.size) < SIGMAS
    assert not (a == b).all(axis=1).any()


# One event more in a slot gives that slot, and every later one, independent noise; the slots
# before it keep theirs.
@pytest.mark.many
@SCHEDULED
@pytest.mark.parametrize("changed", [0, 60])
def test_one_event_changes_all_noise_from_then_on(monkeypatch, name, changed):
    decide(monkeypatch, ALWAYS)
    slots, bins = 160, 50
    counts = counts_of(2, slots, 1, bins)
    others = counts.copy()
    others[changed, 0, 7] += 1
    before, after = noise_terms(name, counts, bins), noise_terms(name, others, bins)
    published = len(before) * changed // slots
    np.testing.assert_array_equal(before[:published], after[:published])
    assert_unrelated(before[published:], after[published:])


# Another key, stream name or meaning of the counts gives independent noise as well.
@pytest.mark.many
@SCHEDULED
@pytest.mark.parametrize("change", [{"key": bytes(32)}, {"stream": "other"}, {"context": b"other"}])
def test_key_and_stream_change_all_noise(monkeypatch, name, change):
    decide(monkeypatch, ALWAYS)
    counts = counts_of(2, 100, 1, 50)
    assert_unrelated(noise_terms(name, counts, 50), noise_terms(name, counts, 50, **change))


# Neither does the configuration share noise: class sizes shape how it is used.
def test_configuration_changes_all_noise(monkeypatch):
    decide(monkeypatch, ALWAYS)
    counts = counts_of(2, 100, 1, 50)
    streams = [stream_of("pbd", population([(2, 1.0)], [n], 50)) for n in (10, 11)]
    noise = [
        np.array([release.counts for release in run(stream, counts)[0]]) - counts[:, 0]
        for stream in streams
    ]
    assert_unrelated(*noise)


# No words are drawn twice: within a slot every sample and every noise has a purpose of its own, and
# no two slots share a key.
@NAMES
def test_no_randomness_is_used_twice(monkeypatch, name):
    asked = []
    words = SlotNoise.words

    def watch(self, purpose):
        asked.append((self.key, purpose))
        return words(self, purpose)

    monkeypatch.setattr(SlotNoise, "words", watch)
    people = population([(3, 1.0), (5, 4.0)], [20, 30], bins=3)
    releases, _ = run(stream_of(name, people), counts_of(3, 30, 2, 3, jumps=True))
    statuses = [release.status for release in releases]
    assert len(set(asked)) == len(asked)
    if name in SCHEDULES:
        looks = len(statuses) - statuses.count("nullified")
        assert len(asked) == 2 * looks + 2 * statuses.count("published")
    assert statuses.count("published") > 0


# ---- control flow ---------------------------------------------------------------------------


# With the noisy dissimilarities given, everything but the counts is a function of public facts:
# two streams that have nothing in common get the same statuses, thresholds and prices, and (as
# standard errors are computed from released counts) no other field depends on events.
@SCHEDULED
def test_control_flow_reads_no_private_data(name):
    slots = 50
    people = population([(4, 0.5), (6, 2.0), (2, 8.0)], [40, 30, 2])
    decisions = np.random.default_rng(3).choice([ALWAYS, NEVER], slots).tolist()
    outcomes = []
    quiet, busy = np.zeros((slots, 3, 2), dtype=np.int64), counts_of(9, slots, 3, 2, jumps=True)
    for counts in (quiet, busy):
        with pytest.MonkeyPatch.context() as patch:
            decide(patch, decisions)
            releases, _ = run(stream_of(name, people), counts)
        outcomes.append(
            [(r.status, r.epsilon, r.published_slot, r.spent.tolist()) for r in releases]
        )
    assert outcomes[0] == outcomes[1]
    assert {"published", "skipped"} <= {status for status, *_ in outcomes[0]}


# What the dissimilarity is compared with, and looked at with, is public too.
@SCHEDULED
def test_thresholds_follow_class_sizes_not_presence(monkeypatch, name):
    seen = []

    def watch(counts, last, sampling, noise):
        seen.append((sampling.threshold, sampling.error, sampling.keep.tolist()))
        return ALWAYS

    monkeypatch.setattr(pwsm, "dissimilarity", watch)

    def thresholds(sizes, counts):
        seen.clear()
        people = population([(3, 0.5), (3, 4.0)], sizes)
        releases, _ = run(stream_of(name, people), counts)
        return list(seen), [release.epsilon for release in releases]

    many, few = counts_of(1, 12, 2, 2), np.zeros((12, 2, 2), dtype=np.int64)
    few[:, 1] = 1  # only the second class is present
    assert thresholds([1000, 3], many) == thresholds([1000, 3], few)
    if name in ("pbd", "pba"):  # in BD and BA all budgets are equal
        for mostly_strict, mostly_loose in zip(
            thresholds([1000, 3], few), thresholds([3, 1000], few), strict=True
        ):
            assert all(a < b for a, b in zip(mostly_strict, mostly_loose, strict=True))


# Quiet slots are released like any other, and pay like any other: silence would tell.
@NAMES
def test_quiet_slots_are_released(name):
    people = population([(3, 1.0), (4, 2.0)], bins=4)
    releases, _ = run(stream_of(name, people), np.zeros((20, 2, 4), dtype=np.int64))
    assert len(releases) == 20
    for release in releases:
        assert release.counts.shape == release.stderr.shape == (4,)
        if name in SCHEDULES or release.status == "published":
            assert (release.spent > 0).all()


# With nobody registered, or budgets of not one unit a slot, nothing is ever published, and the
# slots are released all the same.
@NAMES
@pytest.mark.parametrize(
    ("requirements", "sizes"), [([(3, 1.0)], [0]), ([(8, 2.0**-40)], [5]), ([(8, 1e-300)], [5])]
)
def test_nothing_to_publish_with(name, requirements, sizes):
    if name == "sample" and requirements == [(8, 2.0**-40)]:
        pytest.skip("one unit for a window is one unit for its one publication")
    people = Population(
        tuple(Requirement(w, e) for w, e in requirements), np.array(sizes, dtype=np.int64), 2
    )
    releases, _ = run(stream_of(name, people), counts_of(1, 6, 1, 2))
    for release in releases:
        assert release.status == "skipped"
        assert release.counts.tolist() == [0, 0]
    assert_within_budget(releases, people.requirements)


# ---- what a release says --------------------------------------------------------------------


# Statuses; and a slot that is not published repeats the last publication, field by field.
@SCHEDULED
def test_fields_of_a_release(monkeypatch, name):
    decisions = [NEVER, NEVER, ALWAYS, ALWAYS, NEVER, ALWAYS, NEVER, NEVER, ALWAYS, NEVER]
    decide(monkeypatch, decisions + [NEVER] * 10)
    people = population([(5, 1.0), (4, 1.0)], bins=3)
    releases, _ = run(stream_of(name, people), counts_of(4, 16, 2, 3), first=100)
    first = next(i for i, release in enumerate(releases) if release.status == "published")
    assert first == 2
    for release in releases[:first]:
        assert (release.status, release.published_slot, release.epsilon) == ("skipped", None, 0.0)
        assert release.counts.tolist() == [0, 0, 0]
        assert np.isnan(release.stderr).all()
    last = None
    for slot, release in enumerate(releases[first:], start=100 + first):
        assert release.counts.dtype == np.int64
        if release.status == "published":
            last = release
            assert release.published_slot == slot
            assert release.epsilon > 0
            assert (release.stderr > 0).all()
        else:
            assert release.status in ("skipped", "nullified")
            assert (release.published_slot, release.epsilon) == (last.published_slot, last.epsilon)
            np.testing.assert_array_equal(release.counts, last.counts)
            np.testing.assert_array_equal(release.stderr, last.stderr)
    statuses = {release.status for release in releases}
    # Absorbing mechanisms alone nullify: after the publication that absorbed three shares.
    assert ("nullified" in statuses) == (name in ("ba", "pba"))


def empirical_error(name, sensitivity, slots=400, bins=100):
    """Noise of a single class over the standard error it is said to have, and its budgets."""
    people = population([(1, 1.0)], [100], bins, sensitivity)
    counts = counts_of(11, slots, 1, bins)
    with pytest.MonkeyPatch.context() as patch:
        decide(patch, ALWAYS)
        releases, _ = run(stream_of(name, people), counts)
    assert_within_budget(releases, people.requirements)
    noise = np.array([release.counts for release in releases]) - counts[:, 0]
    assert {release.status for release in releases} == {"published"}
    return noise, releases


# The standard error is that of the noise: for a class of which all are kept, the mean square of
# (released - true) is stderr**2 up to the sampling error of a mean of Laplace squares. The noise
# of sensitivity D is that of a D-th of the budget; the epsilon reported is the user's.
@pytest.mark.slow
@SCHEDULED
@pytest.mark.parametrize("sensitivity", [1, 2, 3])
def test_standard_error_is_calibrated(name, sensitivity):
    noise, releases = empirical_error(name, sensitivity)
    tolerance = SIGMAS * math.sqrt((LAPLACE_KURTOSIS - 1) / noise.size)
    publication = 0.25 if name in ("bd", "pbd") else 0.5  # w = 1: half of E / 2, or all of it
    for release in releases:
        assert release.epsilon == pytest.approx(publication, rel=1e-9)
    decay = math.exp(-publication / sensitivity)
    variance = 2 * decay / (1 - decay) ** 2
    stderr = np.array([release.stderr for release in releases])
    np.testing.assert_allclose(stderr**2, variance, rtol=1e-6)
    assert abs((noise**2).mean() / variance - 1) < tolerance
    assert abs(noise.mean()) < SIGMAS * math.sqrt(variance / noise.size)


# The mean of what two classes release is sum_k p_k C_k: SM thins the class below the threshold.
@pytest.mark.parametrize("name", ["pbd", "pba"])
@pytest.mark.parametrize("sensitivity", [1, 2])
def test_mean_of_a_mixture(monkeypatch, name, sensitivity):
    decide(monkeypatch, ALWAYS)
    slots, bins = 200, 50
    people = population([(1, 1.0), (1, 6.0)], [1, 500], bins, sensitivity)
    counts = np.tile(np.array([[[40], [25]]]), (slots, 1, bins))
    releases, _ = run(stream_of(name, people), counts)
    released = np.array([release.counts for release in releases])
    fraction = 0.25 if name == "pbd" else 0.5
    threshold = fraction * 6 / sensitivity
    p = float(keep_probability([fraction * 1 / sensitivity], threshold)[0])
    assert 0 < p < 0.3
    assert releases[0].epsilon == pytest.approx(fraction * 6, rel=1e-9)
    decay = math.exp(-threshold)
    variance = 40 * p * (1 - p) + 2 * decay / (1 - decay) ** 2
    tolerance = SIGMAS * math.sqrt(variance / released.size)
    assert abs(released.mean() - (40 * p + 25)) < tolerance
    assert abs(released.var() / variance - 1) < SIGMAS * math.sqrt(
        (LAPLACE_KURTOSIS - 1) / released.size
    )


# BD and BA sample nobody: their releases are of all events, whatever the classes.
@pytest.mark.parametrize("name", ["bd", "ba"])
def test_baselines_are_unbiased(monkeypatch, name):
    decide(monkeypatch, ALWAYS)
    people = population([(1, 1.0), (1, 6.0)], [10, 500], 50)
    counts = np.tile(np.array([[[40], [25]]]), (200, 1, 50))
    releases, _ = run(stream_of(name, people), counts)
    released = np.array([release.counts for release in releases])
    tolerance = SIGMAS * float(releases[0].stderr[0]) / math.sqrt(released.size)
    assert abs(released.mean() - 65) < tolerance


# ---- order and shapes -----------------------------------------------------------------------


# A stream begins where it likes, and goes on slot by slot: none is skipped or released twice.
def test_slots_come_in_order():
    stream = stream_of("pba", population([(2, 1.0)]))
    counts = np.zeros((1, 2), dtype=np.int64)
    state, _ = stream.release(stream.start(), -3, counts)
    for wrong in (-3, -4, -1, 0):
        with pytest.raises(ValueError, match=rf"slot {wrong} is out of order: -2 comes next"):
            stream.release(state, wrong, counts)
    state = stream.decode(stream.encode(state))
    with pytest.raises(ValueError, match="out of order"):
        stream.release(state, -3, counts)
    stream.release(state, -2, counts)


@pytest.mark.parametrize(
    "counts",
    [
        np.zeros((1, 2), dtype=np.int64),
        np.zeros((2, 3), dtype=np.int64),
        np.zeros(2, dtype=np.int64),
        np.zeros((2, 2)),
        np.zeros((2, 2), dtype=np.int32),
        np.array([[1, -1], [0, 0]]),
    ],
)
def test_counts_that_do_not_fit_are_refused(counts):
    stream = stream_of("pbd", population([(2, 1.0), (3, 1.0)]))
    with pytest.raises(ValueError, match=r"counts of slot 0 must be int64 of shape \(2, 2\)"):
        stream.release(stream.start(), 0, counts)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"requirements": ()}, "no requirements"),
        ({"sizes": np.array([1, 2])}, r"as many sizes.*\[1, 2\]"),
        ({"sizes": np.array([-1])}, r"\[-1\]"),
        ({"bins": 0}, "bins 0"),
        ({"sensitivity": 0}, "sensitivity 0"),
    ],
)
def test_population_is_checked(fields, message):
    good = {"requirements": (Requirement(2, 1.0),), "sizes": np.array([1]), "bins": 1}
    Population(**good)
    with pytest.raises(ConfigurationError, match=message):
        Population(**{**good, **fields})


def test_unknown_mechanism_is_refused():
    with pytest.raises(ConfigurationError, match="'pbx' is unknown"):
        mechanism("pbx", population([(2, 1.0)]))


# ---- simulation -----------------------------------------------------------------------------


# The simulation is the stream: same releases, same prices.
@NAMES
def test_simulation_is_the_stream(name):
    requirements = [(3, 1.0), (5, 4.0)]
    counts = counts_of(6, 40, 2, 3)
    releases, _ = run(stream_of(name, population(requirements, [20, 30], 3)), counts)
    simulation = simulate(name, counts, requirements, [20, 30], KEY)
    np.testing.assert_array_equal(simulation.released, [r.counts for r in releases])
    assert simulation.status.tolist() == [r.status for r in releases]
    np.testing.assert_array_equal(simulation.spent * 2**40, [r.spent for r in releases])
    np.testing.assert_array_equal(simulation.epsilon, [r.epsilon for r in releases])
    np.testing.assert_array_equal(simulation.stderr, [r.stderr for r in releases])
    assert simulation.alarm.tolist() == [r.alarm for r in releases]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"counts": np.zeros((3, 2), dtype=int)}, r"shape \(3, 2\)"),
        ({"counts": np.zeros((3, 2, 2), dtype=int)}, "1 classes"),
        ({"counts": np.zeros((3, 1, 2))}, "float64; give whole numbers"),
        ({"counts": np.full((3, 1, 2), -1)}, "none negative"),
        ({"key": b"short"}, "a noise key has 5 bytes: give 32"),
        ({"name": "laplace"}, "'laplace' is unknown"),
        ({"requirements": [(0, 1.0)]}, "window 0"),
        ({"requirements": [(1, -1.0)]}, "epsilon -1.0"),
        ({"sizes": [1, 2]}, "as many sizes"),
        ({"sensitivity": 0}, "sensitivity 0"),
        ({"requirements": [(8, 2.0**-37)]}, r"window=8, .* leaves less than 2\*\*-40"),
        ({"requirements": [(8, 2.0**-36)], "sensitivity": 2}, "at sensitivity 2"),
    ],
)
def test_simulation_refuses(change, message):
    good = {
        "name": "pba",
        "counts": np.zeros((3, 1, 2), dtype=int),
        "requirements": [(2, 1.0)],
        "sizes": [5],
        "key": KEY,
    }
    simulate(**good)
    with pytest.raises(ValueError, match=message):
        simulate(**{**good, **change})


# ---- state ----------------------------------------------------------------------------------


# The state of 25 classes, windows of up to 200 slots and 100 bins stays below 64 KB: on a stream
# that publishes whenever it may, at random, and when it changes slowly. Equal windows run out of
# budget when all is published; with mixed ones some class always has some left.
@pytest.mark.slow
@SCHEDULED
@pytest.mark.parametrize("windows", ["equal", "mixed"])
@pytest.mark.parametrize("path", ["always", "random", "realistic"])
def test_state_is_small(monkeypatch, name, windows, path):
    slots, bins = 410, 100
    requirements = [(200 if windows == "equal" else 8 * (k + 1), 0.2 * (k + 1)) for k in range(25)]
    people = population(requirements, [400] * 25, bins)
    rng = np.random.default_rng(1)
    counts = np.tile(rng.integers(0, 40, (1, 25, bins)), (slots, 1, 1))
    counts += np.arange(slots)[:, None, None] // 20
    if path != "realistic":
        decide(
            monkeypatch, ALWAYS if path == "always" else rng.choice([ALWAYS, NEVER], slots).tolist()
        )
    stream = stream_of(name, people)
    state, largest = stream.start(), 0
    for slot in range(slots):
        state, _ = stream.release(state, slot, counts[slot])
        if slot % 10 == 0:
            largest = max(largest, len(stream.encode(state)))
    print(f"state of {name}, {windows} windows, {path}: {largest} bytes")
    assert largest < 64 * 1024


# State bytes of an unknown version are refused, in the stream and in its parts.
@NAMES
def test_unknown_version_is_refused(name):
    stream = stream_of(name, population([(2, 1.0)]))
    inner = stream.mechanism
    newer = b"\x09" + inner.encode(inner.start())[1:]
    for part, data in ((stream, stream.keeper.write(newer)), (inner, newer)):
        with pytest.raises(ValueError, match=r"version 9 .*newer"):
            part.decode(data)


# State goes on under the configuration that wrote it, and under no other.
@NAMES
def test_state_of_another_configuration_is_refused(name):
    facts = {"requirements": [(2, 1.0), (3, 2.0)], "sizes": [5, 6], "bins": 2}
    stream = stream_of(name, population(**facts), bins_are="places")
    state, _ = stream.release(stream.start(), 0, np.ones((2, 2), np.int64))
    data = stream.encode(state)
    assert stream_of(name, population(**facts), bins_are="places").decode(data).next_slot == 1
    others = [
        stream_of(name, population(**{**facts, **change}), bins_are="places")
        for change in (
            {"requirements": [(2, 1.0), (3, 2.5)]},
            {"requirements": [(2, 1.0)], "sizes": [5]},
            {"sizes": [6, 5]},
            {"bins": 3},
            {"sensitivity": 2},
        )
    ]
    others.append(stream_of(name, population(**facts), bins_are="ages"))
    another = "pbd" if name == "pba" else "pba"
    others.append(stream_of(another, population(**facts), bins_are="places"))
    for other in others:
        with pytest.raises(
            ConfigurationError, match=r"another configuration: .* start a new stream"
        ):
            other.decode(data)


# The parts check what they can by themselves: not every state has figures of classes.
@pytest.mark.parametrize("name", ["adaptive", *SCHEDULES])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bins": 3}, "for 2 bins, not 3"),
        ({"requirements": [(2, 1.0)], "sizes": [5]}, "for 2 classes of users, not 1"),
    ],
)
def test_a_mechanism_refuses_state_of_another_shape(name, change, message):
    facts = {"requirements": [(2, 1.0), (3, 2.0)], "sizes": [5, 6], "bins": 2}
    stream = stream_of(name, population(**facts))
    state, _ = stream.release(stream.start(), 0, np.ones((2, 2), np.int64))
    data = stream.mechanism.encode(state.mechanism)
    with pytest.raises(ConfigurationError, match=message):
        mechanism(name, population(**{**facts, **change})).decode(data)
