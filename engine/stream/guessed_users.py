"""Whether releases contradict the guess of how many users there are.

It is asked of what is released, so the answer is post-processing: it is as private as that.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from streamveil.engine import metrics
from streamveil.mechanisms.core.records import PUBLISHED
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.protocol import SlotRelease

_LOGGER = logging.getLogger("streamveil")

# So many standard errors are no chance: of Laplace noise one release in 10,000 exceeds them.
SURE = 6.0


@dataclass(frozen=True)
class GuessedUsers:
    """How many users there should be, as public input says."""

    guess: int
    """Of users outside the table."""
    members: int
    """Of the table."""

    @classmethod
    def of(cls, registry: Registry) -> GuessedUsers | None:
        """None where the number of users is known, or nothing was said of it."""
        default = registry.default
        if default is None or not default[1]:
            return None
        return cls(default[1], len(registry.class_of))

    @property
    def text(self) -> str:
        """The guess in words."""
        more = f" beside {self.members:,} in the table" if self.members else ""
        return f"{self.guess:,}{more}"

    def check(self, release: SlotRelease, each: int) -> None:
        """Count a release that more users must have made.

        Args:
            release: of one slot.
            each: the most that one user adds to all of its counts together.
        """
        if release.status != PUBLISHED:
            return
        total, squares = float(release.counts.sum()), float((release.stderr**2).sum())
        if release.observed:
            seen = release.observed[-1]
            total, squares = float(seen.counts.sum()), float(seen.variances.sum())
        found, error = total / each, math.sqrt(squares) / each
        if found - SURE * error > self.guess + self.members:
            metrics.count(f"{metrics.MORE_USERS_PREFIX}{self.text}", 1)
            metrics.count(metrics.USERS_SUGGESTED, round(found))
            if self not in _LOGGED:
                _LOGGED.add(self)
                _LOGGER.info("%s", more_users(self.text, round(found)))


_LOGGED: set[GuessedUsers] = set()
"""What this process has logged: each guess once."""


def more_users(guess: str, found: int) -> str:
    """What is said of a guess that releases contradict."""
    about = float(f"{found:.2g}")
    return (
        f"releases suggest about {about:,.0f} users or more in a slot, but "
        f"{opt.default_requirement} names {guess}: counts are not cut off at that number, but give "
        f"about the right one, or leave it out ({opt.default_requirement}=WINDOW,EPSILON)"
    )
