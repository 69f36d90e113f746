"""What is above the bins of a query: groups of bins, groups of these, and so on.

Nodes are numbered level by level: the bins first, in order, then those above them, each level in
the order in which its nodes first are above a bin that is not a discovered key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.domains import Domain
from streamveil.mechanisms.core.identity import Form, Identified
from streamveil.mechanisms.core.records import ConfigurationError

ALL = "all"
"""Name of the node above all bins."""
ROOT = -1
"""What is above a node of the top level."""


@dataclass(frozen=True)
class Tree(Identified):
    """Nodes above the bins of a domain, level by level.

    Raises ConfigurationError for a node that lies under two, levels of different bins, an empty
    label and a label of two nodes.
    """

    IDENTITY = Form("tree", ("levels",), later={"keys": 0})

    levels: tuple[tuple[str, ...], ...] = ()
    """Of each level from the bins upwards, the label of the node that each bin lies under."""
    keys: int = 0
    """How many of the bins, the first ones, are discovered keys. Each of them lies under nodes that
    other bins lie under as well, and the order of the nodes does not depend on them."""

    def __post_init__(self) -> None:
        """Check that the levels are nested."""
        object.__setattr__(self, "levels", tuple(tuple(level) for level in self.levels))
        seen: set[str] = set()
        for number, level in enumerate(self.levels):
            if len(level) != len(self.levels[0]):
                raise ConfigurationError(
                    f"levels: one is above {len(self.levels[0])} bins, another above {len(level)}: "
                    "give every bin a node of each level"
                )
            for label in dict.fromkeys(level):
                if not isinstance(label, str) or not label:
                    raise ConfigurationError(
                        f"levels: {label!r} is not a name of a group: write text"
                    )
                if label in seen:
                    raise ConfigurationError(
                        f"levels: {label!r} names groups of two levels: rename one"
                    )
                seen.add(label)
            if number:
                under: dict[str, str] = {}
                for label, parent in zip(self.levels[number - 1], level, strict=True):
                    if under.setdefault(label, parent) != parent:
                        raise ConfigurationError(
                            f"levels: {label!r} is in {under[label]!r} and in {parent!r}: leave it "
                            "in one"
                        )

    @classmethod
    def of(cls, domain: Domain, levels: Sequence[Mapping[str, Sequence[str]] | str]) -> Tree:
        """The tree that lists what is in each group.

        Args:
            domain: of the bins.
            levels: from the bins upwards: what is in each group of the level, by name. Of the first
                these are labels of bins, of each other one groups of the level below. `all` stands
                for one group of all, above everything else.

        Raises:
            ConfigurationError: for what is in two groups or in none, or is not there.
        """
        below, found = tuple(domain.labels), []
        for level in levels:
            groups = {ALL: tuple(dict.fromkeys(below))} if level == ALL else level
            if isinstance(groups, str):
                raise ConfigurationError(
                    f"levels: {groups!r} is not a level: give a mapping of groups to what is in "
                    f"each, or {ALL!r}"
                )
            below = _above(below, groups)
            found.append(below)
        tree = cls(tuple(found))
        tree.labels(domain)
        return tree

    def with_keys(self, beside: Sequence[int]) -> Tree:
        """The tree with other discovered keys.

        Args:
            beside: for each key, the number of a bin under whose nodes it lies. Bins that are
                discovered keys are not counted.
        """
        if not self.levels:
            return self
        others = (level[self.keys :] for level in self.levels)
        levels = tuple((*(level[bin_] for bin_ in beside), *level) for level in others)
        return replace(self, levels=levels, keys=len(beside))

    def _groups(self, level: Sequence[str]) -> tuple[str, ...]:
        """Labels of the nodes of a level, in order."""
        return tuple(dict.fromkeys(level[self.keys :]))

    def above(self, bins: int) -> Integers:
        """Nodes to which the events of each bin add, itself first: shape (bins, levels + 1).

        Raises ConfigurationError for a tree over another number of bins.
        """
        nodes = [np.arange(bins, dtype=np.int64)]
        following = bins
        for level in self.levels:
            if len(level) != bins:
                raise ConfigurationError(
                    f"levels are above {len(level)} bins, but the domain has {bins}: give every "
                    "bin a node of each level"
                )
            number = {label: each for each, label in enumerate(self._groups(level), following)}
            nodes.append(np.array([number[label] for label in level], np.int64))
            following += len(number)
        return np.stack(nodes, axis=1)

    def measured(self, bins: int) -> Integers:
        """Nodes of the histogram to which the events of each bin add: shape (bins, 1 or 2).

        These are the bins and the top level, numbered as if none were between: what lies between is
        the sum of bins that were brought to agree with the top. To measure it as well costs all
        others more than it gains. Raises as :meth:`above` does.
        """
        above = self.above(bins)
        if above.shape[1] == 1:
            return above
        return np.stack([above[:, 0], above[:, -1] - above[:, -1].min() + bins], axis=1)

    def labels(self, domain: Domain) -> tuple[str, ...]:
        """Names of the nodes in order, those of the bins first.

        Raises ConfigurationError for a node that is called as a bin is.
        """
        bins = domain.labels
        groups = [label for level in self.levels for label in self._groups(level)]
        for label in groups:
            if label in bins:
                raise ConfigurationError(
                    f"levels: the group {label!r} is called as a bin is: rename it"
                )
        return (*bins, *groups)


FLAT = Tree()
"""Nothing is above the bins."""


def parents_of(above: Integers) -> Integers:
    """The node above each node, `ROOT` at the top.

    Args:
        above: of each bin the nodes from itself upwards, shape (bins, levels): see `Tree.above`.

    Returns:
        int64, shape (nodes,).
    """
    parents = np.full(int(above.max(initial=-1)) + 1, ROOT, np.int64)
    parents[above[:, :-1]] = above[:, 1:]
    return parents


def levels_of(above: Integers) -> Integers:
    """The level of each node, 0 for bins: shape (nodes,)."""
    levels = np.zeros(int(above.max(initial=-1)) + 1, np.int64)
    levels[above] = np.arange(above.shape[1])
    return levels


def _above(below: tuple[str, ...], groups: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Of each bin the group that has its node of the level below."""
    known = frozenset(below)
    group_of: dict[str, str] = {}
    for group, members in groups.items():
        if not members:
            raise ConfigurationError(f"levels: {group!r} is empty: name what is in it")
        for member in members:
            if member not in known:
                raise ConfigurationError(
                    f"levels: {group!r} lists {member!r}, which is neither a bin nor a group of "
                    "the level below: check its name"
                )
            if member in group_of:
                raise ConfigurationError(
                    f"levels: {member!r} is listed in {group_of[member]!r} and in {group!r}: list "
                    "it once"
                )
            group_of[member] = group
    for label in below:
        if label not in group_of:
            raise ConfigurationError(
                f"levels: {label!r} is in none of {', '.join(map(repr, groups))}: put it in one, "
                "or all would not add up"
            )
    return tuple(group_of[label] for label in below)
