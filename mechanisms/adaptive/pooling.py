"""Beliefs that bins share: which members of the filter bank describe the bins of a stream.

Where counts are below the noise, the releases of one bin do not show how fast it changes; those of
all bins together do. So the prior belief in each member is learnt over all bins, by expectation
maximization. It starts even, and counts for as many bins as `FLOOR` and `PER_BIN` say, so that a
bin that is unlike all others can still be believed to be so.

Everything here is post-processing of releases.
Source: our own; Dempster, Laird and Rubin, "Maximum likelihood from incomplete data via the EM
algorithm" (1977); an empirical Bayes prior as in Robbins (1956).
"""

from __future__ import annotations

import numpy as np

from streamveil.mechanisms.core.arrays import Floats, Singles

# Fewer bins show too little about each other.
FEWEST_BINS = 5
# Weight of the even prior, in bins: a constant, and a part of the number of bins.
FLOOR, PER_BIN = 10.0, 0.3
# Steps of expectation maximization after each release.
STEPS = 4


def pooled(likelihoods: Floats, prior: Singles) -> Singles:
    """The prior after a release.

    Args:
        likelihoods: of each member in each bin, each bin on any scale: shape (members, d).
        prior: before the release, relative to an even one, shape (members,).
    """
    members, bins = likelihoods.shape
    floor = FLOOR + PER_BIN * bins
    learnt = prior.astype(np.float64)
    for _ in range(STEPS):
        beliefs = likelihoods * learnt[:, None]
        described = (beliefs / beliefs.sum(axis=0)).sum(axis=1)
        learnt = (floor / members + described) / (floor + bins)
    return (members * learnt).astype(np.float32)
