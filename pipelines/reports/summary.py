"""What a finished run, or one that was refused, counted: in words for people, in JSON for tools.

Figures of events are raw: for those who may see the events.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from streamveil.engine import metrics
from streamveil.engine.plan_kinds import PlanKind
from streamveil.engine.stream.guessed_users import more_users
from streamveil.io.tables import write_text
from streamveil.mechanisms.core.event_tallies import EventTally, is_loss, query_of
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import (
    NOT_PRIVATE,
    STATUSES,
    TEST,
    UNMEASURED,
    MachineFault,
    Slots,
)
from streamveil.mechanisms.core.wording import opt
from streamveil.pipelines.console.logs import tell_aside
from streamveil.pipelines.reports.given_limits import kept_shares_needed

if TYPE_CHECKING:
    from streamveil.engine.plans import Plan
    from streamveil.mechanisms.queries.queries import Query, QuerySet

# Of events that do not count, so many are no longer made up for.
_MANY_LEFT_OUT = 1 / 3
# A warning says what may help if this fraction of the events is rejected, a query cannot read more
# than this fraction of its events, or contribution bounding drops more than this fraction.
_SOME_REJECTED = _SOME_UNREAD = _SOME_BEYOND = 0.05


class _Tally:
    """What became of events and slots, by counters of a run."""

    counters: Mapping[str, int]

    @property
    def _suffix(self) -> str:
        """Of the names of the counters."""
        return ""

    def _number(self, name: str) -> int:
        return self.counters.get(name + self._suffix, 0)

    @property
    def counted(self) -> int:
        """Events in the counts that noise was added to; of several queries, of any of them."""
        return self._number(metrics.EVENTS_COUNTED)

    @property
    def beyond_bound(self) -> int:
        """Events dropped by contribution bounding (`max_contributions`).

        Of several queries together 0: an event that one of them drops may be counted by another.
        """
        return self._number(metrics.EVENTS_BOUNDED_AWAY)

    @property
    def beyond_limit(self) -> int:
        """Events in slots in which their user does not count (`max_slots`)."""
        return self._number(metrics.EVENTS_BEYOND_LIMIT)

    @property
    def late(self) -> int:
        """Events that came too late; other queries may count those of one."""
        return self._number(metrics.EVENTS_LATE)

    @property
    def statuses(self) -> dict[str, int]:
        """Released slots by status, without those of none."""
        numbers = {status: self._number(metrics.SLOTS_PREFIX + status) for status in STATUSES}
        return {status: number for status, number in numbers.items() if number}


@dataclass(frozen=True)
class QuerySummary(_Tally):
    """What became of the events and slots of one query."""

    query: Query
    slots: Slots
    counters: Mapping[str, int]
    """Of the whole run."""
    kept_share_needed: float = 0.0
    """Fraction of the events that a participation limit must keep to reduce errors, if given."""

    @property
    def _suffix(self) -> str:
        """Of the names of its counters."""
        return f"{metrics.OF_QUERY}{self.query.name}"

    @property
    def unread(self) -> dict[str, int]:
        """Events that the query asks about and cannot read, by reason."""
        start = f"{metrics.EVENTS_UNREAD}{self._suffix}: "
        return {
            name.removeprefix(start): number
            for name, number in sorted(self.counters.items())
            if name.startswith(start)
        }

    @property
    def bounds(self) -> list[float] | None:
        """The bounds that the run chose, if it did."""
        start = f"{metrics.BOUNDS_PREFIX}{self._suffix}: "
        for name in self.counters:
            if name.startswith(start):
                return [float(bound) for bound in name.removeprefix(start).split(" to ")]
        return None

    def figures(self) -> dict[str, Any]:
        """What `--summary` has of the query."""
        return {
            **{key: text for key in ("title", "unit") if (text := getattr(self.query, key))},
            "counted": self.counted,
            "beyond_bound": self.beyond_bound,
            "beyond_limit": self.beyond_limit,
            "unread": self.unread,
            **({"late": self.late} if self.late else {}),
            "slots": sum(self.statuses.values()),
            "statuses": self.statuses,
            **({"bounds": self.bounds} if self.bounds else {}),
        }

    def text(self) -> str:
        """A line for the operator."""
        number = number_of(sum(self.statuses.values()), "slot")
        statuses = ", ".join(f"{number:,} {one}" for one, number in self.statuses.items())
        lost = {**self.unread, **({"late": self.late} if self.late else {})}
        unread = "".join(f", {number:,} {reason}" for reason, number in lost.items())
        limited = ""
        if self.beyond_limit:
            limited = f", {self.beyond_limit:,} beyond the slots in which they count"
        title = f" ({self.query.title})" if self.query.title else ""
        bounds = "; bounds chosen: {:g} to {:g}".format(*self.bounds) if self.bounds else ""
        return (
            f"{self.query.name}{title}: {number} of {self.slots.text}"
            f"{f' ({statuses})' if statuses else ''}; {number_of(self.counted, 'event')} "
            f"counted, {self.beyond_bound:,} beyond the users' contribution bound"
            f"{limited}{unread}{bounds}"
        )

    def warning(self) -> str | None:
        """What to do where most of what the query asks about does not count."""
        bounded = self.counted + self.beyond_bound + self.beyond_limit
        unread = sum(self.unread.values())
        if not self.statuses:  # the runner keeps no counters, or loses those of timers
            return None
        if not bounded + unread + self.late:
            wanted = " that meet its conditions (where)" if self.query.where else ""
            of_noise = "" if TEST in self.statuses else ", and every figure is of noise alone"
            return f"there are no events{wanted}{of_noise}"
        if unread > _SOME_UNREAD * (bounded + unread):
            return (
                f"{unread / (bounded + unread):.0%} of its events could not be counted: "
                "check by, keys and of, or write other: NAME to count all values that are not "
                "among the keys in a bin of their own"
            )
        # Of one user several events make no more users: a larger bound would only add noise.
        if not self.query.statistic.once and (much := _bounded(self, "max_contributions")):
            return much
        return _limited(self.counted, self.beyond_limit, self.kept_share_needed)


def _bounded(one: _Tally, bound: str) -> str | None:
    """What to do if contribution bounding drops many events, with the name of its option."""
    accepted = one.counted + one.beyond_bound + one.beyond_limit
    if one.beyond_bound <= _SOME_BEYOND * accepted:
        return None
    return (
        f"{one.beyond_bound / accepted:.0%} of the accepted events were dropped by the bound of "
        f"{bound}, so counts and sums are lower by about this fraction, and intervals are for the "
        f"events that were kept: give a larger {bound}, which makes noise grow in proportion, or "
        "use shorter slots"
    )


def _limited(counted: int, beyond: int, needed: float) -> str | None:
    """What to do where a participation limit drops much of what contribution bounding kept.

    Args:
        counted: events.
        beyond: those that the limit dropped.
        needed: the fraction that it must keep to reduce errors; 0 where it is not known.
    """
    total = counted + beyond
    if beyond > _MANY_LEFT_OUT * total:
        why = "more than results can be trusted to make up for"
    elif counted < needed * total:
        why = f"and where less than {needed:.0%} is kept, the limit may increase errors"
    else:
        return None
    return (
        f"{beyond / total:.0%} of the events that {opt.max_contributions} kept were dropped by "
        f"{opt.max_slots}, {why}: give a larger {opt.max_slots}, or where budgets are for windows "
        "leave it out"
    )


@dataclass(frozen=True)
class Summary(_Tally):
    """What a run counted; empty where the runner keeps no counters."""

    counters: dict[str, int] = field(default_factory=dict)
    largest_window_use: float | None = None
    """Largest share of any class's window that was spent, from 0 to 1."""
    handed_over: bool = False
    """Whether nothing ran yet: Dataflow's --template_location has somebody else submit the job."""
    query_set: QuerySet | None = None
    """The queries that the counters are by; None where they are of one count."""
    test_mode: bool = False
    """Whether exact counts were released: NOT private."""
    kept_shares_needed: Mapping[str | None, float] = field(default_factory=dict)
    """By query, what fraction of its events a participation limit must keep to reduce errors."""

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

    def for_plan(self, plan: Plan) -> Summary:
        """The same, with figures of each query where the plan is of a query set."""
        of_plan = replace(self, test_mode=plan.test_mode)
        if plan.plan_kind is PlanKind.QUERIES:
            of_plan = replace(of_plan, query_set=plan.query_set)
        if plan.plan_kind is PlanKind.QUERIES or plan.plan_kind is PlanKind.HISTOGRAMS:
            return replace(of_plan, kept_shares_needed=kept_shares_needed(plan))
        return of_plan

    @cached_property
    def queries(self) -> dict[str, QuerySummary]:
        """Of each query, by its name."""
        asked = self.query_set
        if asked is None:
            return {}
        needed = self.kept_shares_needed
        return {
            one.name: QuerySummary(
                one, asked.slots_of(one), self.counters, needed.get(one.name, 0.0)
            )
            for one in asked
        }

    @property
    def read(self) -> int:
        """Events read: the sum of those rejected, late, counted and dropped.

        Lines and messages that are no events are among those rejected, so also here.
        """
        return self._number(metrics.EVENTS_READ)

    @property
    def rejected(self) -> dict[str, int]:
        """Rejected events by reason, without those that a query rejects and another one counts."""
        return {
            name.removeprefix(metrics.REJECTED_PREFIX): number
            for name, number in sorted(self.counters.items())
            if name.startswith(metrics.REJECTED_PREFIX) and is_loss(name)
        }

    @property
    def unasked(self) -> int:
        """Events that meet no query's conditions."""
        return self._number(metrics.EVENTS_UNASKED)

    @property
    def late(self) -> int:
        """Events whose slot was released before they came: too late for every query."""
        for_some = sum(one.late for one in self.queries.values())
        return max(self._number(metrics.EVENTS_LATE) - for_some, 0)

    @property
    def _is_timeless(self) -> bool:
        """Whether the runner loses what is counted in timers, where slots of a stream close."""
        return self.read > 0 and not self.statuses and not self.counted

    def events_text(self) -> str:
        """What became of the events, in a line."""
        counted = "an unknown number" if self._is_timeless else f"{self.counted:,}"
        dropped = {
            "beyond the users' contribution bound": self.beyond_bound,
            "beyond the slots in which they count": self.beyond_limit,
            "that no query asks about": self.unasked,
        }
        listed = "".join(f", {number:,} {what}" for what, number in dropped.items() if number)
        return (
            f"{number_of(self.read, 'event')} read: {counted} counted, "
            f"{sum(self.rejected.values()):,} rejected, {self.late:,} late{listed}"
        )

    def limits_text(self) -> str | None:
        """In how many slots users count, where that was chosen; None where it was not."""
        found = []
        for name, users in sorted(self.counters.items()):
            if name.startswith(metrics.LIMITED_PREFIX) and users:
                limit, of_query, query = name.removeprefix(metrics.LIMITED_PREFIX).partition(
                    metrics.OF_QUERY
                )
                most, _, slots = limit.partition(" of ")
                where = "every slot" if most == slots else f"the first {most} of {slots} slots"
                whose = f"query {query}: " if of_query else ""
                found.append(f"{whose}{number_of(users, 'user')} in {where}")
        return f"max_slots=auto: users count as chosen, {', '.join(found)}" if found else None

    def users_text(self) -> str | None:
        """Where releases contradict the guess of how many users there are; None where not."""
        for name, slots in self.counters.items():
            if name.startswith(metrics.MORE_USERS_PREFIX) and slots:
                guess = name.removeprefix(metrics.MORE_USERS_PREFIX)
                return more_users(guess, round(self._number(metrics.USERS_SUGGESTED) / slots))
        return None

    def rejected_warning(self, letters: str | None = None) -> str | None:
        """What to do if many events were rejected before any query read them; None if few were.

        `letters` is the place of the dead letters, if it is not that of the option.
        """
        rejected = {why: n for why, n in self.rejected.items() if query_of(why)[1] is None}
        number = sum(rejected.values())
        # Some runners lose the number of events that were read.
        if not number or not self.read or number < _SOME_REJECTED * self.read:
            return None
        most = max(rejected, key=rejected.__getitem__)
        return (
            f"{number / self.read:.0%} of the events were rejected (most often: {most}), so no "
            f"result contains them: the dead letters ({letters or opt.rejected}) say why"
        )

    def warnings(self) -> list[str]:
        """What to do where most of the events do not count."""
        if self.queries:
            by_query = {name: one.warning() for name, one in self.queries.items()}
            return [f"query {name}: {warning}" for name, warning in by_query.items() if warning]
        # Of lives both of the last may be so.
        left_out = self._left_out() or _limited(
            self.counted, self.beyond_limit, self.kept_shares_needed.get(None, 0.0)
        )
        bounded = _bounded(self, opt.max_contributions)
        return [one for one in (bounded, left_out) if one]

    def _left_out(self) -> str | None:
        slots = self._number(metrics.SLOTS_MOSTLY_LEFT_OUT)
        if not slots:
            return None
        return (
            f"in {number_of(slots, 'slot')} more seems to be left out than counts, by the private "
            "kept_share and events_beyond: people stay who have used up the slots of their lives. "
            f"Give a larger {opt.max_slots}, or choose {opt.guarantee}=infinite, whose mechanism "
            f"gated counts everybody for ever"
        )

    def loss(self, most: float) -> str | None:
        """Where more than that share of the events was lost, how many were."""
        lost = sum(self.rejected.values()) + self.late
        if lost <= most * self.read:
            return None
        return (
            f"{lost:,} of {self.read:,} events were rejected or late, more than the share of "
            f"{most:g} ({opt.max_rejected}): the dead letters ({opt.rejected}) say why"
        )

    def rejected_text(self, dead_letters: str | None = None) -> str | None:
        """Why events were rejected, and how to keep them; None if none were rejected."""
        if not self.rejected:
            return None
        listed = ", ".join(f"{reason} {number:,}" for reason, number in self.rejected.items())
        return f"{listed}{'' if dead_letters else f' (give {opt.rejected}=FILE to keep them)'}"

    def text(self, dead_letters: str | None = None) -> str:
        """A few lines for the operator."""
        lines = [f"warning:  {NOT_PRIVATE}"] if self.test_mode else []
        lines.append(f"events:   {self.events_text()}")
        rejected = self.rejected_text(dead_letters)
        if rejected:
            lines.append(f"rejected: {rejected}")
        lines += [f"query: {one.text()}" for one in self.queries.values()]
        limits = self.limits_text()
        if limits:
            lines.append(f"limits:   {limits}")
        warnings = (self.rejected_warning(dead_letters), *self.warnings(), self.users_text())
        lines += [f"warning:  {one}" for one in warnings if one]
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
                f"or a larger {opt.epsilon}, or choose {opt.guarantee}=w-event"
            )
        if self.largest_window_use is not None:
            lines.append(
                f"budget:   at most {self.largest_window_use:.1%} of any user's budget was spent"
            )
        return "\n".join(lines)

    def figures(self) -> dict[str, Any]:
        """What `--summary` has: `read` is the sum of kept, rejected, late and dropped events.

        Of several queries, and in passes of one with longer slots, `kept` and `counted` are the
        events that any query takes, and `dropped` those that meet no query's conditions; which
        query counts an event, or drops it by contribution bounding, is in the figures of each.
        """
        by_query = {
            "unasked": self.unasked,
            "queries": {name: one.figures() for name, one in self.queries.items()},
        }
        return {
            **({"test_mode": True} if self.test_mode else {}),
            "read": self.read,
            "kept": self.counted,
            "dropped": self.beyond_bound + self.beyond_limit + self.unasked,
            "rejected": self.rejected,
            "beyond_bound": self.beyond_bound,
            "beyond_limit": self.beyond_limit,
            "late": self.late,
            "counted": self.counted,
            "slots": sum(self.statuses.values()),
            "statuses": self.statuses,
            "largest_window_use": self.largest_window_use,
            **(by_query if self.queries else {}),
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
            f"warning: {opt.summary}={path} cannot be written ({why}): the run continues without "
            "it",
            logging.WARNING,
        )
        return False
    return True
