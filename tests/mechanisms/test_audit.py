"""An empirical privacy audit: what an attacker can tell from releases stays within the claim.

Two neighbouring inputs are run many times under different keys. If the claim is epsilon, no event
is more than exp(epsilon) times as likely for one as for the other. Half of the runs choose the
event that tells the two apart best; the other half count it, and Clopper-Pearson bounds give an
epsilon that the mechanism has at least, at confidence 1 - 1e-6 (FLAKINESS). That bound must not
exceed the claim. Keys are fixed, so a result stays what it is.

An audit that cannot fail says nothing: mechanisms that were broken on purpose must exceed it.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from streamveil.mechanisms import (
    MECHANISMS,
    NoiseSource,
    Population,
    ReleaseStream,
    Requirement,
    mechanism,
)
from streamveil.mechanisms.comparators import spas
from streamveil.mechanisms.comparators.randomized_response import RandomizedResponse
from streamveil.mechanisms.randomness import noise
from streamveil.mechanisms.wevent import sampling
from streamveil.mechanisms.wevent.dissimilarity import dissimilarity
from streamveil.mechanisms.wevent.sampling import Sampling

FLAKINESS = 1e-6
KEY = bytes(range(32))
RUNS = 3000
# The even comparators are one publication a slot, of parts that are audited below; adaptive has its
# own audits in `adaptive/test_adaptive_audit.py`, and its losses are counted.
ELSEWHERE = ("uniform", "sample", "lbu", "plbu", "adaptive")

# Neighbours by adjacency: how much the target can change a slot, and the bin of the target's
# event in every slot of the window, in either world (None: no event).
ADJACENCY = {"add_remove": (1, (0, None)), "replace": (2, (0, 1))}


# ---- the auditor ----------------------------------------------------------------------------


def lower_bound(hits: int, other_hits: int, runs: int, flakiness: float) -> float:
    """Epsilon that P(event) >= exp(epsilon) P(other event) proves, wrong with this probability."""
    low = stats.beta.ppf(flakiness / 2, hits, runs - hits + 1) if hits else 0.0
    high = stats.beta.ppf(1 - flakiness / 2, other_hits + 1, runs - other_hits)
    high = 1.0 if other_hits == runs else high
    return math.log(low / high) if low > 0 else -math.inf


def audit(a: np.ndarray, b: np.ndarray) -> float:
    """Largest epsilon proven by the outcomes of two worlds, integers of shape (runs, parts)."""
    half = len(a) // 2
    proven = []
    for x, y in ((a, b), (b, a)):
        # Each part's outcome scores by how much likelier it was in the first half of x's runs.
        scores_x, scores_y = np.zeros(len(x)), np.zeros(len(y))
        for part in range(x.shape[1]):
            values = np.unique(np.concatenate([x[:half, part], y[:half, part]]))
            tables = [
                np.append((world[:half, part, None] == values).sum(axis=0), 0) for world in (x, y)
            ]
            gain = np.log(tables[0] + 1.0) - np.log(tables[1] + 1.0)
            for world, scores in ((x, scores_x), (y, scores_y)):
                at = np.searchsorted(values, world[:, part])
                seen = values[np.minimum(at, values.size - 1)] == world[:, part]
                scores += gain[np.where(seen, at, values.size)]
        chosen = max(
            np.unique(scores_x[:half])[-200:],
            key=lambda cut: lower_bound(
                (scores_x[:half] >= cut).sum(), (scores_y[:half] >= cut).sum(), half, FLAKINESS / 2
            ),
        )
        hits = [int((scores[half:] >= chosen).sum()) for scores in (scores_x, scores_y)]
        proven.append(lower_bound(*hits, len(x) - half, FLAKINESS / 2))
    return max(proven)


# The bound is what it says: of two worlds whose odds are known, it is near and not above.
def test_the_auditor_itself():
    rng = np.random.default_rng(1)
    n = 200_000
    a, b = rng.random((2, n, 1)) < [[[0.5]], [[0.5 / math.e]]]
    assert 0.9 < audit(a.astype(int), b.astype(int)) <= 1.0
    assert audit(a[::2].astype(int), a[1::2].astype(int)) <= 0.0


# ---- whole mechanisms over a window ---------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def thresholds_once():
    """Thresholds are a function of public facts: choose each of them once, not in every run."""
    choose, chosen = Sampling.choose, {}

    def choose_once(budgets, population):
        key = (budgets.tobytes(), population.sizes.tobytes(), population.sensitivity)
        if key not in chosen:
            chosen[key] = choose(budgets, population)
        return chosen[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sampling, "choose", choose_once)
        yield


def outcome_of(release, others) -> int:
    """Whether a release is published, with which of two bins above the others; or nullified."""
    if release.status == "published":
        high = release.counts > others
        return 2 + 2 * int(high[0]) + int(high[1])
    return int(release.status == "nullified")


def world(
    name, requirements, adjacency, target_bin, others, runs=RUNS, first=0, slots=None
) -> np.ndarray:
    """What each slot shows in every run: its status and each bin's side of `others`.

    The target is in the first class, in `target_bin` in every slot of its window, which begins
    with slot `first` (None: nowhere); `others` of the second class are in each of two bins. The
    stream ends with the window unless it has more `slots`.
    """
    sensitivity, _ = ADJACENCY[adjacency]
    window = requirements[0].window
    slots = slots or first + window
    people = Population(requirements, np.array([1, 50]), 2, sensitivity)
    counts = np.zeros((slots, 2, 2), dtype=np.int64)
    counts[:, 1] = others
    if target_bin is not None:
        counts[first : first + window, 0, target_bin] = 1
    machine = mechanism(name, people)
    outcomes = np.zeros((runs, slots), dtype=np.int64)
    for run in range(runs):
        stream = ReleaseStream(machine, NoiseSource(KEY, f"{name} {target_bin} {run}"))
        state = stream.start()
        for slot in range(slots):
            state, release = stream.release(state, slot, counts[slot])
            outcomes[run, slot] = outcome_of(release, others)
    return outcomes


def audit_mechanism(name, requirements, adjacency, others, runs=RUNS, **when) -> float:
    worlds = [
        world(name, requirements, adjacency, target_bin, others, runs, **when)
        for target_bin in ADJACENCY[adjacency][1]
    ]
    return audit(*worlds)


# A budget that a few thousand runs can see, and one above it: the target is really sampled.
CLAIM = (Requirement(3, 3.0), Requirement(3, 4.5))


# The releases of a whole window tell no more about a user than the user's own requirement allows.
@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in MECHANISMS if n not in ELSEWHERE])
@pytest.mark.parametrize("adjacency", list(ADJACENCY))
def test_a_window_keeps_its_claim(name, adjacency):
    # How many others are there decides which slots publish: what tells most was tried out.
    others = 0 if adjacency == "add_remove" and name in ("ba", "pba") else 3
    runs = RUNS // 4 if name == "ablation" else RUNS
    proven = audit_mechanism(name, CLAIM, adjacency, others, runs)
    print(f"audit of {name}, {adjacency}: at least {proven:.2f} of {CLAIM[0].epsilon}")
    assert proven <= CLAIM[0].epsilon


# The window of three slots that costs most in SPAS: it begins with the last slot of one run of the
# sparse vector technique and goes on with two of the next, whose last answer comes after it.
ASTRIDE = {"first": 5, "slots": 9}


@pytest.mark.slow
def test_spas_keeps_its_claim_between_two_runs():
    proven = audit_mechanism("spas", CLAIM, "add_remove", 1, RUNS // 2, **ASTRIDE)
    print(f"audit of spas astride of two runs: at least {proven:.2f} of {CLAIM[0].epsilon}")
    assert proven <= CLAIM[0].epsilon


def eightfold_noise_budget(patch, modules=(sampling,)) -> None:
    """Break the noise that these modules draw: an eighth of its scale."""
    exact = noise.discrete_laplace
    for module in modules:
        patch.setattr(
            module, "discrete_laplace", lambda units, size, words: exact(8 * units, size, words)
        )


def no_thinning(patch) -> None:
    """Break SM: keep everybody, also those whose budget is below the threshold."""
    patch.setattr(sampling, "thin", lambda counts, thresholds, words: counts.copy())


# A claim far below what the other class allows: thinning is most of the protection.
STRICT = (Requirement(3, 1.0), Requirement(3, 12.0))


# The same audit as above convicts a mechanism that was broken, of the claim that it grants to the
# whole one.
@pytest.mark.slow
def test_the_audit_convicts_too_little_noise(monkeypatch):
    eightfold_noise_budget(monkeypatch)
    proven = audit_mechanism("bd", CLAIM, "add_remove", 3)
    print(f"audit of bd with an eighth of its noise: at least {proven:.2f} of {CLAIM[0].epsilon}")
    assert proven > CLAIM[0].epsilon


@pytest.mark.slow
def test_the_audit_convicts_who_keeps_everybody(monkeypatch):
    claim = STRICT[0].epsilon
    assert audit_mechanism("pba", STRICT, "add_remove", 1, RUNS // 4) <= claim
    no_thinning(monkeypatch)
    proven = audit_mechanism("pba", STRICT, "add_remove", 1, RUNS // 4)
    print(f"audit of pba without thinning: at least {proven:.2f} of {claim}")
    assert proven > claim


# ---- the parts, with many more runs ---------------------------------------------------------


def sampling_of(sensitivity, bins) -> Sampling:
    """SM for a target of budget 1 among users of budget 2."""
    requirements = (Requirement(1, 1.0), Requirement(1, 2.0))
    people = Population(requirements, np.array([1, 50]), bins, sensitivity)
    chosen = Sampling.choose(np.array([2**40, 2**41]), people)
    assert chosen.epsilon == 2.0
    assert chosen.keep[0] < 1.0
    return chosen


def noisy_samples(adjacency, target_bin, runs) -> np.ndarray:
    """SM of two bins, as many pairs side by side as there are runs: shape (runs, 2)."""
    chosen = sampling_of(ADJACENCY[adjacency][0], 2 * runs)
    counts = np.zeros((2, runs, 2), dtype=np.int64)
    if target_bin is not None:
        counts[0, :, target_bin] = 1
    slot = NoiseSource(KEY, f"{adjacency} {target_bin}").slot(0, b"")
    sampled = chosen.sample(counts.reshape(2, -1), slot.words("sample"))
    released = sampled + chosen.noise(sampled.size, slot.words("noise"))
    return (released > 0).astype(np.int64).reshape(runs, 2)


# SM with discrete Laplace noise costs a user below the threshold their own budget: nearly all of
# it is proven, and no more. Without thinning it would cost the threshold.
@pytest.mark.slow
@pytest.mark.parametrize(("adjacency", "least"), [("add_remove", 0.9), ("replace", 0.6)])
def test_sampling_keeps_its_claim(monkeypatch, adjacency, least):
    worlds = [noisy_samples(adjacency, target, 300_000) for target in ADJACENCY[adjacency][1]]
    proven = audit(*worlds)
    print(f"audit of SM, {adjacency}: at least {proven:.3f} of 1")
    assert least < proven <= 1.0
    no_thinning(monkeypatch)
    worlds = [noisy_samples(adjacency, target, 300_000) for target in ADJACENCY[adjacency][1]]
    assert audit(*worlds) > 1.0


def noisy_dissimilarities(target_bin, runs) -> np.ndarray:
    """Whether the dissimilarity from nothing, of the target alone, is above 0: shape (runs, 1)."""
    chosen = sampling_of(1, 2)
    counts = np.zeros((2, 2), dtype=np.int64)
    if target_bin is not None:
        counts[0, target_bin] = 1
    source = NoiseSource(KEY, f"dissimilarity {target_bin}")
    last = np.zeros(2, dtype=np.int64)
    above = [dissimilarity(counts, last, chosen, source.slot(run, b"")) > 0 for run in range(runs)]
    return np.array(above, dtype=np.int64)[:, None]


# The dissimilarity costs its own budget, too.
@pytest.mark.slow
def test_dissimilarity_keeps_its_claim():
    proven = audit(*[noisy_dissimilarities(target, 6000) for target in (0, None)])
    print(f"audit of the dissimilarity: at least {proven:.3f} of 1")
    assert 0.4 < proven <= 1.0


def reported(adjacency, target_bin, runs) -> np.ndarray:
    """A user's reports in a slot: as many classes of one user as there are runs, shape (runs, 3).

    With twice the sensitivity a user has two tickets, of half the budget each.
    """
    sensitivity, _ = ADJACENCY[adjacency]
    people = Population((Requirement(1, 1.0),) * runs, np.ones(runs, np.int64), 2, sensitivity)
    response = RandomizedResponse.choose(np.full(runs, 2**40), people)
    counts = np.zeros((runs, 2), dtype=np.int64)
    if target_bin is not None:
        counts[:, target_bin] = 1
    slot = NoiseSource(KEY, f"{adjacency} {target_bin}").slot(0, b"")
    reports = response.perturb(response.symbols(counts), slot)
    return (reports @ [1, 3, 9])[:, None]  # all that the reports say, as one number


def answers(patch, target_bin, runs, noisy_threshold=True) -> np.ndarray:
    """When a run of SPAS's sparse vector technique says yes to a target in all slots: (runs, 1).

    Exact noise, drawn beforehand: the technique asks one query after the other.
    """
    machine = spas.SPAS("spas", Population((Requirement(8, 12.0),), np.array([50]), 2))
    source = NoiseSource(KEY, f"answers {target_bin}").slot(0, b"")
    pools = {}

    def drawn(units, size, words):
        assert size == 1
        if units not in pools:
            samples = noise.discrete_laplace(units, 8 * runs, source.words(str(units)))
            pools[units] = iter(samples[:, None])
        return next(pools[units])

    patch.setattr(spas, "discrete_laplace", drawn)
    counts = np.array([[0, 0]] if target_bin is None else [[1, 0]])
    publishing = Sampling.choose(np.array([6 * 2**40]), machine.population)
    start = replace(machine.start(), slots=8)
    outcomes = np.full((runs, 1), 8)
    for run in range(runs):
        state = machine._begun(start)
        state = replace(state, threshold_noise=machine._threshold(state, source))
        if not noisy_threshold:
            state = replace(state, threshold_noise=0)
        for slot in range(8):
            if machine._asked(state, counts, publishing, source) == "published":
                outcomes[run] = slot
                break
    return outcomes


# A run costs its price once for all of a window's slots; if its threshold had no noise, every one
# of them would cost, and the audit tells.
@pytest.mark.slow
def test_a_run_of_spas_keeps_its_claim(monkeypatch):
    claim = 3.0  # a quarter of E
    proven = audit(*[answers(monkeypatch, target, 20_000) for target in (0, None)])
    print(f"audit of a run of SPAS: at least {proven:.2f} of {claim}")
    assert 0.5 < proven <= claim
    broken = audit(*[answers(monkeypatch, target, 20_000, False) for target in (0, None)])
    print(f"without noise on its threshold: at least {broken:.2f} of {claim}")
    assert broken > claim


# Randomised response costs its budget: nearly all of it is proven, and no more. Where a user is
# replaced, only one of two tickets changes in this case, so half is proven.
@pytest.mark.slow
@pytest.mark.parametrize(("adjacency", "least"), [("add_remove", 0.9), ("replace", 0.4)])
def test_randomised_response_keeps_its_claim(adjacency, least):
    proven = audit(*[reported(adjacency, target, 200_000) for target in ADJACENCY[adjacency][1]])
    print(f"audit of randomised response, {adjacency}: at least {proven:.3f} of 1")
    assert least < proven <= 1.0
