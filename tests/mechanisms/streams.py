"""What tests of mechanisms over fixed requirements share: populations, releases, what they spent.

Every test of a distribution accepts correct code with probability 1 - 1e-6 (FLAKINESS); keys are
fixed, so a result stays what it is.
"""

import math
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st
from scipy import stats

from streamveil.mechanisms import NoiseSource, Population, ReleaseStream, Requirement, mechanism

FLAKINESS = 1e-6
SIGMAS = stats.norm.isf(FLAKINESS / 2)
KEY = bytes(range(32))


def windows_and_epsilons(largest=1.0):
    """Up to four requirements as pairs; epsilons of all magnitudes up to 10**largest."""
    epsilons = st.builds(lambda x: 10**x, st.floats(-6, largest))
    return st.lists(st.tuples(st.integers(1, 8), epsilons), min_size=1, max_size=4)


def people(requirements, sizes=None, bins=2, sensitivity=1) -> Population:
    """Classes with these requirements, of ten users each unless sizes are given."""
    requirements = tuple(
        one if isinstance(one, Requirement) else Requirement(*one) for one in requirements
    )
    sizes = [10] * len(requirements) if sizes is None else sizes
    return Population(requirements, np.array(sizes, dtype=np.int64), bins, sensitivity)


def released(population, name, counts, key=KEY):
    """The releases of all slots."""
    stream = ReleaseStream(mechanism(name, population), NoiseSource(key))
    state, releases = stream.start(), []
    for slot, table in enumerate(counts):
        state, release = stream.release(state, slot, np.asarray(table, dtype=np.int64))
        releases.append(release)
    return releases


def assert_within_budget(releases, requirements) -> None:
    """Add up every window of every class, in exact integers."""
    for k, requirement in enumerate(requirements):
        cap = math.floor(Fraction(requirement.epsilon) * 2**40)
        spent = [int(release.spent[k]) for release in releases]
        assert min(spent) >= 0
        for end in range(1, len(spent) + 1):
            assert sum(spent[max(0, end - requirement.window) : end]) <= cap
