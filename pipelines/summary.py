"""What a finished run, or one that was refused, counted: in words for people, in JSON for tools.

Figures of events are raw: for those who may see the events.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamveil.engine import metrics
from streamveil.engine.stream.guessed_users import more_users
from streamveil.io.tables import write_text
from streamveil.mechanisms.core.event_tallies import EventTally, is_loss
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import STATUSES, UNMEASURED, MachineFault
from streamveil.pipelines.logs import tell_aside

# From here on bounding has changed what is counted so much that it must be said how to mend it.
_MUCH_BEYOND = 0.5
# Of events that do not count, so many are no longer made up for.
_MANY_LEFT_OUT = 1 / 3


@dataclass(frozen=True)
class Summary:
    """What a run counted; empty where the runner keeps no counters."""

    counters: dict[str, int] = field(default_factory=dict)
    largest_window_use: float | None = None
    """Largest share of any class's window that was spent, from 0 to 1."""
    handed_over: bool = False
    """Whether nothing ran yet: Dataflow's --template_location has somebody else submit the job."""

    @classmethod
    def of_metrics(cls, counters: dict[str, int], uses: Iterable[int]) -> Summary:
        """Of counters by name, and the largest values that `WINDOW_USE` took, in millionths."""
        largest = max(uses, default=None)
        return cls(counters, None if largest is None else largest / 1e6)

    @classmethod
    def of_tally(cls, tally: EventTally) -> Summary:
        """Of a run that was refused before it released anything."""
        rejected = {
            metrics.REJECTED_PREFIX + reason: number for reason, number in tally.rejected.items()
        }
        return cls(
            {
                metrics.EVENTS_READ: tally.read,
                metrics.EVENTS_BOUNDED_AWAY: tally.beyond_bound,
                metrics.EVENTS_BEYOND_LIMIT: tally.beyond_limit,
                metrics.EVENTS_LATE: tally.late,
                metrics.EVENTS_COUNTED: tally.counted,
                **rejected,
            }
        )

    @classmethod
    def total(cls, parts: Sequence[Summary]) -> Summary:
        """Several passes as one run."""
        counters: dict[str, int] = {}
        for part in parts:
            for name, number in part.counters.items():
                counters[name] = counters.get(name, 0) + number
        uses = [part.largest_window_use for part in parts if part.largest_window_use is not None]
        return cls(counters, max(uses, default=None))

    def _number(self, name: str) -> int:
        return self.counters.get(name, 0)

    @property
    def read(self) -> int:
        """Events read: the sum of those rejected, beyond bound and limit, late and counted.

        Lines and messages that are no events are among those rejected, so also here.
        """
        return self._number(metrics.EVENTS_READ)

    @property
    def rejected(self) -> dict[str, int]:
        """Rejected events by reason."""
        return {
            name.removeprefix(metrics.REJECTED_PREFIX): number
            for name, number in sorted(self.counters.items())
            if name.startswith(metrics.REJECTED_PREFIX)
        }

    @property
    def beyond_bound(self) -> int:
        """Events of users who had more in a slot than `--max_contributions`."""
        return self._number(metrics.EVENTS_BOUNDED_AWAY)

    @property
    def beyond_limit(self) -> int:
        """Events in slots in which their users did not count any more (`max_slots`)."""
        return self._number(metrics.EVENTS_BEYOND_LIMIT)

    @property
    def late(self) -> int:
        """Events whose slot was released before they came."""
        return self._number(metrics.EVENTS_LATE)

    @property
    def counted(self) -> int:
        """Events in the counts that noise was added to."""
        return self._number(metrics.EVENTS_COUNTED)

    @property
    def statuses(self) -> dict[str, int]:
        """Released slots by status, without those of none."""
        numbers = {status: self._number(metrics.SLOTS_PREFIX + status) for status in STATUSES}
        return {status: number for status, number in numbers.items() if number}

    @property
    def _is_timeless(self) -> bool:
        """Whether the runner loses what is counted in timers, where slots of a stream close."""
        return self.read > 0 and not self.statuses and not self.counted

    def events_text(self) -> str:
        """What became of the events, in a line."""
        rejected = sum(self.rejected.values())
        limit = f", {self.beyond_limit:,} beyond the slots in which they count"
        limited = limit if self.beyond_limit else ""
        counted = "an unknown number" if self._is_timeless else f"{self.counted:,}"
        return (
            f"{number_of(self.read, 'event')} read: {counted} counted, {rejected:,} rejected, "
            f"{self.late:,} late, {self.beyond_bound:,} beyond the users' contribution bound"
            f"{limited}"
        )

    def limits_text(self) -> str | None:
        """In how many slots users count, where that was chosen; None where it was not."""
        found = []
        for name, users in sorted(self.counters.items()):
            if name.startswith(metrics.LIMITED_PREFIX) and users:
                most, _, slots = name.removeprefix(metrics.LIMITED_PREFIX).partition(" of ")
                where = "every slot" if most == slots else f"the first {most} of {slots} slots"
                found.append(f"{number_of(users, 'user')} in {where}")
        return f"max_slots=auto: users count as chosen, {', '.join(found)}" if found else None

    def users_text(self) -> str | None:
        """Where releases contradict the guess of how many users there are; None where not."""
        for name, slots in self.counters.items():
            if name.startswith(metrics.MORE_USERS_PREFIX) and slots:
                guess = name.removeprefix(metrics.MORE_USERS_PREFIX)
                return more_users(guess, round(self._number(metrics.USERS_SUGGESTED) / slots))
        return None

    def warning(self) -> str | None:
        """What to do where most of the events were beyond the bound, or most lives too long."""
        left_out = self._left_out() or self._limited()  # of lives both may be so
        return "; ".join(one for one in (self._bounded(), left_out) if one) or None

    def _left_out(self) -> str | None:
        slots = self._number(metrics.SLOTS_MOSTLY_LEFT_OUT)
        if not slots:
            return None
        return (
            f"in {number_of(slots, 'slot')} more seems to be left out than counts, by the private "
            "kept_share and events_beyond: people stay who have used up the slots of their lives. "
            "Give a larger --max_slots, or choose --guarantee=infinite, whose mechanism gated "
            "counts everybody for ever"
        )

    def _bounded(self) -> str | None:
        bounded = self.counted + self.beyond_bound
        if not bounded or self.beyond_bound <= _MUCH_BEYOND * bounded:
            return None
        return (
            f"{self.beyond_bound / bounded:.0%} of the accepted events were beyond the bound of "
            "--max_contributions, so the counts are of so many events fewer: give a larger "
            "--max_contributions, which makes noise grow in proportion, or shorter slots"
        )

    def _limited(self) -> str | None:
        there = self.counted + self.beyond_limit
        if not there or self.beyond_limit <= _MANY_LEFT_OUT * there:
            return None
        return (
            f"{self.beyond_limit / there:.0%} of the bounded events were beyond --max_slots, more "
            "than counts can be trusted to make up for: give a larger --max_slots, or none"
        )

    def loss(self, most: float) -> str | None:
        """Where more than that share of the events was lost, how many were."""
        lost = sum(n for why, n in self.rejected.items() if is_loss(why)) + self.late
        if lost <= most * self.read:
            return None
        return (
            f"{lost:,} of {self.read:,} events were rejected or late, more than the share of "
            f"{most:g} (--max_rejected): the dead letters (--rejected) say why"
        )

    def text(self, dead_letters: str | None = None) -> str:
        """A few lines for the operator."""
        lines = [f"events:   {self.events_text()}"]
        if self.rejected:
            listed = ", ".join(f"{reason} {number:,}" for reason, number in self.rejected.items())
            where = "" if dead_letters else " (give --rejected=FILE to keep them)"
            lines.append(f"rejected: {listed}{where}")
        limits, warning = self.limits_text(), self.warning()
        if limits:
            lines.append(f"limits:   {limits}")
        lines += [f"warning:  {one}" for one in (warning, self.users_text()) if one]
        if self._number(metrics.CHANGES_READ):
            lines.append(
                f"changes:  {self._number(metrics.CHANGES_READ):,} read, "
                f"{self._number(metrics.CHANGES_ACCEPTED):,} accepted, "
                f"{self._number(metrics.CHANGES_LATE):,} of them late"
            )
        if self.statuses:  # some runners lose what is counted in a timer
            listed = ", ".join(f"{number:,} {status}" for status, number in self.statuses.items())
            lines.append(f"slots:    {listed}")
        if UNMEASURED in self.statuses:
            lines.append(
                f"warning:  in {self.statuses[UNMEASURED]:,} slots nothing was measured yet: their "
                "shares are all alike and their counts no counts. Give longer slots, fewer bins "
                "or a larger --epsilon, or choose --guarantee=w-event"
            )
        if self.largest_window_use is not None:
            lines.append(
                f"budget:   at most {self.largest_window_use:.1%} of any user's budget was spent"
            )
        return "\n".join(lines)

    def figures(self) -> dict[str, Any]:
        """What `--summary` tells."""
        return {
            "read": self.read,
            "rejected": self.rejected,
            "beyond_bound": self.beyond_bound,
            "beyond_limit": self.beyond_limit,
            "late": self.late,
            "counted": self.counted,
            "slots": sum(self.statuses.values()),
            "statuses": self.statuses,
            "largest_window_use": self.largest_window_use,
        }


def write_summary(path: str | None, figures: Mapping[str, Any]) -> bool:
    """Replace the file by these figures, whole, as JSON that only its owner may read.

    Gives whether it is written. If it cannot be, a warning says so: what is released stays so.
    """
    if path is None:
        return False
    text = json.dumps(figures, indent=2, ensure_ascii=False) + "\n"
    try:
        write_text(path, text, private=True)
    except (OSError, MachineFault) as error:
        why = error.strerror if isinstance(error, OSError) else error
        tell_aside(
            f"warning: --summary={path} cannot be written ({why}): the run goes on without it",
            logging.WARNING,
        )
        return False
    return True
