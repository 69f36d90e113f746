"""Pay only when present: users count in a few slots only, and each of these may cost more.

Which slots count, what that gains, and what it leaves out. No Beam, no files, no clocks.
"""

from typing import TYPE_CHECKING

from streamveil.mechanisms.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from streamveil.mechanisms.presence.counters import Counters, counted
    from streamveil.mechanisms.presence.limits import (
        Limit,
        effective_window,
        effective_window_in_life,
    )

__all__ = [
    "Counters",
    "Limit",
    "counted",
    "effective_window",
    "effective_window_in_life",
]

__getattr__, __dir__ = lazy_names(__name__)
