"""Every bin has noise of its own; a mutant that draws for one bin too few went unseen before."""

import numpy as np
import pytest

from streamveil.mechanisms import NoiseSource, Population, ReleaseStream, Requirement, mechanism
from tests.mechanisms.streams import KEY, SIGMAS

SLOTS, BINS = 300, 5


# With one class everybody is kept, so that what is released less what there is is noise.
def noise_of(name) -> np.ndarray:
    """Noise of the releases of single slots, shape (slots, bins)."""
    people = Population((Requirement(1, 0.5),), np.array([1000]), BINS)
    stream = ReleaseStream(mechanism(name, people), NoiseSource(KEY))
    state, found = stream.start(), []
    for slot in range(SLOTS):
        counts = np.full((1, BINS), 400 * (slot % 2))  # far enough to be published
        state, release = stream.release(state, slot, counts)
        if release.status == "published":
            seen = release.observed[-1].counts if release.observed else release.counts
            found.append(np.rint(seen - counts[0]))
    return np.array(found)


@pytest.mark.parametrize("name", ["uniform", "pba", "adaptive"])
def test_every_bin_has_noise_of_its_own(name):
    noise = noise_of(name)
    assert len(noise) > SLOTS // 3
    assert (noise.std(axis=0) > 0).all()
    apart = np.corrcoef(noise.T) - np.eye(BINS)
    assert (np.abs(apart) * np.sqrt(len(noise)) < SIGMAS).all()
