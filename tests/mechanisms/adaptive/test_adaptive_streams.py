"""The adaptive mechanism on streams: replays, what decisions depend on, and stated errors."""

import math

import numpy as np
import pytest

from streamveil.mechanisms import (
    ConfigurationError,
    NoiseSource,
    Population,
    ReleaseStream,
    Requirement,
    mechanism,
    simulate,
)
from streamveil.mechanisms.adaptive import running_sum
from streamveil.mechanisms.adaptive.budget_plan import Plan, Planned
from streamveil.mechanisms.adaptive.gap_errors import POINT, SUM
from streamveil.mechanisms.adaptive.weighting import Weighting
from streamveil.pipelines.sample_data.streams import make_stream, population

KEY = bytes(range(32))
REQUIREMENTS = ((8, 4.0), (12, 6.0), (20, 20.0))
SIZES = [300, 300, 100]
SLOTS = 120


def stream_of(bins=3, requirements=REQUIREMENTS, sizes=SIZES, key=KEY) -> ReleaseStream:
    people = Population(tuple(Requirement(*one) for one in requirements), np.array(sizes), bins)
    return ReleaseStream(mechanism("adaptive", people), NoiseSource(key))


def steps(seed=1, bins=3) -> np.ndarray:
    """Counts that are steady but for a level that changes every 30 slots."""
    rng = np.random.default_rng(seed)
    levels = np.repeat(rng.integers(0, 100, (SLOTS // 30, 3, bins)), 30, axis=0)
    return levels + rng.integers(0, 3, levels.shape)


def fields(release) -> tuple:
    """All of a release as bytes and plain values, to compare."""
    return tuple(
        part.tobytes() if isinstance(part, np.ndarray) else str(part)
        for part in vars(release).values()
    )


def run(stream, counts):
    state, releases = stream.start(), []
    for slot, table in enumerate(counts):
        state, release = stream.release(state, slot, table)
        releases.append(release)
    return releases, state


# ---- replays --------------------------------------------------------------------------------


# The same key and counts give the same releases, byte for byte, and the same state; another key
# gives others. The stream looks, releases, audits and sees jumps.
def test_replay_is_identical():
    (first, end), (again, same) = run(stream_of(), steps()), run(stream_of(), steps())
    assert [fields(release) for release in first] == [fields(release) for release in again]
    assert stream_of().encode(end) == stream_of().encode(same)
    assert {release.status for release in first} == {"published", "predicted"}
    assert any(release.alarm for release in first)
    others, _ = run(stream_of(key=bytes(32)), steps())
    assert sum((a.counts == b.counts).all() for a, b in zip(first, others, strict=True)) < SLOTS / 4


# A state that went through bytes in every slot, a new stream each time, goes on as one that never
# did; also in the middle of a sum.
@pytest.mark.slow
@pytest.mark.parametrize("kind", [POINT, SUM])
def test_bytes_in_every_slot_keep_the_future(monkeypatch, kind):
    if kind == SUM:
        monkeypatch.setattr(Plan, "best_gap", lambda *_: Planned(5, SUM, 0.0))
    counts = steps()
    undisturbed, end = run(stream_of(), counts)
    data, sums = stream_of().encode(stream_of().start()), 0
    for slot in range(SLOTS):
        stream = stream_of()
        state = stream.decode(data)
        assert stream.encode(state) == data
        state, release = stream.release(state, slot, counts[slot])
        assert fields(release) == fields(undisturbed[slot])
        data = stream.encode(state)
        sums += state.mechanism.running is not None
    assert data == stream_of().encode(end)
    assert kind == POINT or sums > SLOTS / 5


# A released slot stays what it was whatever the state does later.
def test_releases_are_not_changed_later():
    stream, counts = stream_of(), steps()
    state, kept = stream.start(), []
    for slot in range(40):
        state, release = stream.release(state, slot, counts[slot])
        kept.append((release, fields(release)))
    assert all(fields(release) == before for release, before in kept)


@pytest.mark.parametrize(
    "change",
    [{"bins": 2}, {"requirements": REQUIREMENTS[:2], "sizes": SIZES[:2]}],
    ids=["bins", "classes"],
)
def test_state_of_another_shape_is_refused(change):
    stream = stream_of()
    state, _ = stream.release(stream.start(), 0, steps()[0])
    other = stream_of(**change)
    with pytest.raises(ConfigurationError, match="another configuration"):
        other.decode(stream.encode(state))
    with pytest.raises(ConfigurationError, match="another configuration"):
        other.mechanism.decode(stream.mechanism.encode(state.mechanism))


# ---- what steers ----------------------------------------------------------------------------


# With the noisy results given, streams that have nothing in common get the same releases, field
# by field: gaps, weights, alarms and prices read no counts. Every result was asked for in the same
# way, with the same weights and public figures.
@pytest.mark.many
@pytest.mark.parametrize("size", [1, 1000, 10**7])
def test_nothing_but_noisy_results_steers(size):
    def outputs_of(counts):
        random, asked = np.random.default_rng(5), []

        def add_noise(weighting, statistic, noise, purpose, *shaping):
            asked.append((purpose, weighting.weights.tobytes(), weighting.unit, shaping))
            return random.integers(0, 2 * size * 2**16, statistic.shape)

        def add_to_sum(partial, unit, noise, purpose):
            asked.append((purpose, unit))
            return random.integers(0, 2 * size * 2**16, partial.shape)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Weighting, "add_noise", add_noise)
            patch.setattr(running_sum, "add_noise", add_to_sum)
            releases, state = run(stream_of(), counts)
        state.mechanism.running = None  # a sum without noise is no result
        return [fields(r) for r in releases], asked, stream_of().mechanism.encode(state.mechanism)

    rng = np.random.default_rng(2)
    quiet, busy = np.zeros((SLOTS, 3, 3), np.int64), rng.integers(0, 10**6, (SLOTS, 3, 3))
    assert outputs_of(quiet) == outputs_of(steps()) == outputs_of(busy)
    purposes = {purpose for purpose, *_ in outputs_of(quiet)[1]}
    assert {"release", "audit"} <= purposes


# ---- errors ---------------------------------------------------------------------------------


def released(name, stream, slots, seed, users=10_000, epsilon=0.6, window=120):
    """A mechanism's simulation of a named stream of the usual population, and the true counts."""
    requirements, sizes = population(epsilon, window, users)
    counts = np.array(list(make_stream(stream, sizes, slots, seed)))
    key = bytes([seed]) * 32
    return simulate(name, counts, requirements, sizes, key), counts.sum(axis=1)


# Of intervals of 90 %, from 85 to 95 % hold the truth, averaged over streams of every sort. A
# stream of 300 slots has some 30 releases, so its own coverage is hardly known; of all 22 runs
# together it is to about 2 % (seeds differ by some 8 %). The models hold roughly: streams with
# draws for every user are covered less (here 81 to 93 %), those without more.
@pytest.mark.slow
def test_standard_errors_are_honest():
    covered = {}
    for name in ("sin", "tlns", "log", "step", "sin-fixed", "tlns-fixed", "log-fixed", "city"):
        for seed in (1, 2, 3) if name != "city" else (1,):
            result, true = released("adaptive", name, 300, seed)
            known = np.isfinite(result.stderr)
            within = np.abs(result.released - true) <= 1.645 * result.stderr
            covered.setdefault(name, []).append(float(within[known].mean()))
    each = {name: round(float(np.mean(runs)), 3) for name, runs in covered.items()}
    mean = np.mean(list(each.values()))
    print(f"{each}, on average {mean:.3f}")
    assert 0.85 < mean < 0.95
    assert min(each.values()) > 0.7


# Counts of some tens in few bins that move at once: many slots are released, but not all of them.
# Releases of the largest counts were stated as nearly certain: 75 to 83 % were covered.
@pytest.mark.slow
def test_standard_errors_are_honest_whatever_the_count():
    asked, sizes, sure, true = [(6, 1.0), (12, 2.0), (24, 4.0)], [134, 133, 133], [], []
    for seed in range(3):
        random = np.random.default_rng(seed)
        shares = 5 + 3 * np.sin(np.arange(200)[:, None] / 8 + np.arange(6))
        shares[:20] = 0
        shares[20:] *= 0.6 / shares[20:].sum(axis=1, keepdims=True)
        rest = 1 - shares.sum(axis=1, keepdims=True)
        each = [random.multinomial(size, np.hstack([shares, rest]))[:, :6] for size in sizes]
        counts = np.stack(each, axis=1)
        result = simulate("adaptive", counts, asked, sizes, bytes([seed + 1]) * 32)
        published = (result.status == "published") & (np.arange(200) >= 30)
        true.append(counts.sum(axis=1)[published])
        sure.append(
            np.abs(result.released[published] - true[-1]) <= 1.645 * result.stderr[published]
        )
    within, size = np.concatenate(sure), np.concatenate(true)
    for least, most in ((0, 20), (20, 35), (35, 50), (50, 400)):
        assert 0.85 < within[(size >= least) & (size < most)].mean() < 0.96


# It is better than what it replaces, by far: fixed seeds, and margins that hold for others too.
@pytest.mark.slow
@pytest.mark.parametrize(("stream", "margin"), [("sin", 5), ("step", 5), ("city", 2)])
def test_adaptive_is_better_than_pba_and_pbd(stream, margin):
    errors = {}
    for name in ("adaptive", "pba", "pbd"):
        result, true = released(name, stream, 400, 3)
        errors[name] = float(((result.released - true) ** 2).mean())
    print(stream, {name: round(error) for name, error in errors.items()})
    assert errors["adaptive"] * margin < min(errors["pba"], errors["pbd"])


# Nothing is ever said that is not a number, from the first release on: not in streams that jump
# between nothing and everybody, nor with hardly any budget, nor with very much.
@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1e-9, 1e-3, 1.0, 4096.0])
@pytest.mark.parametrize("users", [1, 1000, 10**6])
def test_releases_are_numbers(epsilon, users):
    rng = np.random.default_rng(1)
    stream = stream_of(2, ((1, epsilon), (7, epsilon)), [users, users])
    half = rng.choice([0, users], (SLOTS, 2, 1))
    releases, _ = run(stream, np.concatenate([half, users - half], axis=2))
    for release in releases:
        assert ((release.counts >= 0) & (release.counts <= 2 * users)).all()
        if release.status == "skipped":
            continue
        assert np.isfinite(release.stderr).all()
        assert (release.stderr > 0).all()
        assert all(math.isfinite(value) for value in release.diagnostics.values())


# The error of the first release is that of its counts, not that of a guess before it.
def test_the_first_release_is_published_where_it_stands_out():
    usual = np.geomspace(0.5, 40, 105)
    counts = np.random.default_rng(6).poisson(usual / 9, (1, 9, 105))
    asked = [(window, epsilon) for window in (3, 7, 14) for epsilon in (1.0, 2.0, 4.0)]
    result, true = simulate("adaptive", counts, asked, [450] * 9, KEY), counts.sum(axis=1)
    assert ((result.released - true) ** 2).mean() < 0.2 * (true**2).mean()


# What the first audit is too high by was taken for a large count and for a bias of it, too, which
# was then added to every release: some bins rose to three times what they are.
def test_the_first_audit_is_no_evidence_of_a_bias_of_what_it_has_too_much_of():
    usual = np.geomspace(0.5, 40, 105)
    asked = [(window, epsilon) for window in (3, 7, 14) for epsilon in (1.0, 2.0, 4.0)]
    counts = np.random.default_rng(3).poisson(usual / 9, (12, 9, 105))
    result = simulate("adaptive", counts, asked, [450] * 9, bytes([3]) * 32, sensitivity=2)
    assert ((result.released - counts.sum(axis=1))[2:] ** 2).mean() < 25  # 97 when it was
