"""The inputs of an audit of streams of counts: all of them are public."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import Requirements
from streamveil.mechanisms.core.records import ADD_REMOVE, REPLACE, Requirement
from streamveil.mechanisms.protocol import Population
from streamveil.pipelines.audit.worlds import crowd, sizes_of
from streamveil.pipelines.options.audit_options import DEFAULT_BINS


@dataclass(frozen=True, eq=False, kw_only=True)
class Facts:
    """Of a mechanism and whom it is asked about."""

    mechanism: str
    """With its options."""
    requirements: Sequence[Requirement]
    """Of each class, K of them, all distinct."""
    sizes: Integers | None = None
    """Users of each class, shape (K,); in worst cases there are as many times more of all as these
    need."""
    guessed: int | None = None
    """The class whose size is only a guess, as of :class:`Population`; None if all are known."""
    bins: int = DEFAULT_BINS
    """Of the histogram."""
    sensitivity: int = 1
    """As of `Population`."""
    adjacency: str = ADD_REMOVE
    """What neighbouring streams differ in."""

    @property
    def moves(self) -> bool:
        """Whether neighbours replace a user."""
        return self.adjacency == REPLACE

    @property
    def each(self) -> int:
        """Events of a user that count in a slot."""
        return self.sensitivity // (2 if self.moves else 1)

    def population(self, *, own: bool, priced: Requirements | None = None) -> Population:
        """Of a real stream, or of worst cases, where users are many.

        Args:
            own: whether the stream is real.
            priced: requirements of a mechanism, where these are not what users ask for.

        Raises ConfigurationError for requirements that cannot be.
        """
        asked = Requirements.of(self.requirements)
        users = sizes_of(asked, self.sizes)
        asked = priced or asked
        if not own:
            users = crowd(asked, users, self.bins)
        return Population(asked, users, self.bins, self.sensitivity, guessed=self.guessed)
