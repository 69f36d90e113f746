"""What plans of counts and of query sets have in common: how requirements may change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from streamveil.engine.encode.event_mapper import Columns
from streamveil.engine.stream.drivers import is_joined
from streamveil.engine.stream.noise_keys import SameKey
from streamveil.engine.stream.plan_checks import check_moving
from streamveil.mechanisms.core.parameter_checks import check_horizon, whole
from streamveil.mechanisms.core.records import Slots
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.choice import Auto

if TYPE_CHECKING:
    from streamveil.engine.count.changes import ChangeMapper


class CentralPlan:
    """A plan of events that are counted in one place; its fields are those of the plans."""

    registry: Registry
    columns: Columns
    first_slot: int | None
    last_slot: int | None
    limit: Limit | Auto | Sequence[Limit] | None
    changing: bool
    longest_window: int | None
    resume: bytes | None
    _key: SameKey

    def _take_changes(self) -> None:
        """Check what is said of changes, and keep whether there may be some.

        Raises ConfigurationError.
        """
        if self.longest_window is not None:
            self.longest_window = whole("longest_window", self.longest_window)
            check_horizon(self.longest_window, self.registry)
        self._dynamic = self.changing or (self.resume is not None and is_joined(self.resume))
        self._known = self.registry

    @property
    def known(self) -> Registry:
        """The registry by the classes that the ledger has; where users may move, by epsilon."""
        return self._known

    @property
    def _horizon(self) -> int:
        """The longest window that a user may ask for, in slots of the plan."""
        longest = self.registry.classes.longest
        return longest if self.longest_window is None else self.longest_window

    def _up_to_longest(self) -> Registry:
        """The registry of users who may move from class to class: see `presence/changing.py`.

        Raises ConfigurationError for a limit that such users cannot have.
        """
        check_moving(self.registry, self.limit)
        return self.registry.up_to(self._horizon)

    @property
    def _range(self) -> int | None:
        """How many slots there are, None where that is not given."""
        if self.first_slot is None or self.last_slot is None:
            return None
        return self.last_slot - self.first_slot + 1

    def _mapper_of_changes(self, slots: Slots, sensitivity: int = 1) -> ChangeMapper:
        """What maps batches of changes of requirements, with the users as events have them."""
        from streamveil.engine.count.changes import ChangeMapper

        return ChangeMapper(
            slots,
            self.columns.time_zone,
            self.columns.time_unit,
            self.registry,
            self._key.derived("strangers"),
            self._horizon,
            sensitivity,
        )
