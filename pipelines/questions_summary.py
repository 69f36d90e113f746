"""What a run over questions counted, question by question: see `summary.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streamveil.engine import metrics
from streamveil.mechanisms.core.event_tallies import is_loss
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import STATUSES, format_duration
from streamveil.mechanisms.portfolio.questions import Portfolio, Question
from streamveil.pipelines.summary import Summary

# Where more than this share of what a question asks about cannot be read, or of that is dropped by
# its bound on contributions, it is said what may help.
_MUCH_UNREAD, _SOME_BEYOND = 0.5, 0.05


@dataclass(frozen=True)
class QuestionsSummary:
    """The counters of a run, for people and tools."""

    summary: Summary
    portfolio: Portfolio

    @property
    def lost(self) -> dict[str, int]:
        """Events that count in no question, by reason."""
        return {why: n for why, n in self.summary.rejected.items() if is_loss(why)}

    @property
    def unasked(self) -> int:
        """Events that meet no question's conditions."""
        return self.summary.counters.get(metrics.EVENTS_UNASKED, 0)

    @property
    def late(self) -> int:
        """Events that came too late for all questions; those for some are told by question."""
        for_some = sum(self._of(one, metrics.EVENTS_LATE) for one in self.portfolio)
        return max(self.summary.late - for_some, 0)

    def _of(self, question: Question, name: str) -> int:
        return self.summary.counters.get(f"{name}{metrics.OF_QUESTION}{question.name}", 0)

    def unread(self, question: Question) -> dict[str, int]:
        """Events that a question asks about and cannot read, by reason."""
        start = f"{metrics.EVENTS_UNREAD}{metrics.OF_QUESTION}{question.name}: "
        return {
            name.removeprefix(start): number
            for name, number in sorted(self.summary.counters.items())
            if name.startswith(start)
        }

    def bounds(self, question: Question) -> list[float] | None:
        """The bounds that the run chose for a question, if it did."""
        start = f"{metrics.BOUNDS_PREFIX}{metrics.OF_QUESTION}{question.name}: "
        for name in self.summary.counters:
            if name.startswith(start):
                return [float(bound) for bound in name.removeprefix(start).split(" to ")]
        return None

    def figures_of(self, question: Question) -> dict[str, Any]:
        """What became of a question's events and slots."""
        statuses = {one: self._of(question, metrics.SLOTS_PREFIX + one) for one in STATUSES}
        late = self._of(question, metrics.EVENTS_LATE)
        return {
            "counted": self._of(question, metrics.EVENTS_COUNTED),
            "beyond_bound": self._of(question, metrics.EVENTS_BOUNDED_AWAY),
            "unread": self.unread(question),
            **({"late": late} if late else {}),
            "slots": sum(statuses.values()),
            "statuses": {one: number for one, number in statuses.items() if number},
            **({"bounds": bounds} if (bounds := self.bounds(question)) else {}),
        }

    def figures(self) -> dict[str, Any]:
        """What `--summary` tells: of all events, each once, then question by question.

        Of several questions `counted` are the events that any of them takes; by which of them they
        are counted, or dropped by its bound on contributions, is in the figures of each.
        """
        return {
            **self.summary.figures(),
            "rejected": self.lost,
            "late": self.late,
            "unasked": self.unasked,
            "questions": {one.name: self.figures_of(one) for one in self.portfolio},
        }

    def events_text(self) -> str:
        """What became of the events, in a line."""
        late = f", {self.late:,} late" if self.late else ""
        unasked = f", {self.unasked:,} that no question asks about" if self.unasked else ""
        return (
            f"{number_of(self.summary.read, 'event')} read, {sum(self.lost.values()):,} of them "
            f"rejected{late}{unasked}"
        )

    def text(self, dead_letters: str | None = None) -> str:
        """A few lines for the operator, and one for each question."""
        lost = self.lost
        lines = [f"events:   {self.events_text()}"]
        if lost:
            listed = ", ".join(f"{reason} {number:,}" for reason, number in lost.items())
            where = "" if dead_letters else " (give --rejected=FILE to keep them)"
            lines.append(f"rejected: {listed}{where}")
        for question in self.portfolio:
            lines.append(f"question: {self._line(question)}")
        users = self.summary.users_text()
        lines += [f"warning:  {one}" for one in (*self.warnings(), users) if one]
        if self.summary.largest_window_use is not None:
            lines.append(
                f"budget:   at most {self.summary.largest_window_use:.1%} of any user's budget was "
                "spent, by all questions together"
            )
        return "\n".join(lines)

    def _line(self, question: Question) -> str:
        told = self.figures_of(question)
        length = format_duration(self.portfolio.slots_of(question).length)
        statuses = ", ".join(f"{number:,} {one}" for one, number in told["statuses"].items())
        lost = {**told["unread"], **({"late": told["late"]} if "late" in told else {})}
        unread = "".join(f", {number:,} {reason}" for reason, number in lost.items())
        bounds = "; bounds chosen: {:g} to {:g}".format(*told["bounds"]) if "bounds" in told else ""
        return (
            f"{question.name}: {number_of(told['slots'], 'slot')} of {length}"
            f"{f' ({statuses})' if statuses else ''}; {number_of(told['counted'], 'event')} "
            f"counted, {told['beyond_bound']:,} beyond the users' contribution bound"
            f"{unread}{bounds}"
        )

    def warnings(self) -> list[str]:
        """What to do where most of what a question asks about does not count."""
        found = [(question.name, self._warning(question)) for question in self.portfolio]
        return [f"question {name}: {warning}" for name, warning in found if warning]

    def _warning(self, question: Question) -> str | None:
        told = self.figures_of(question)
        counted, beyond = told["counted"], told["beyond_bound"]
        unread = sum(told["unread"].values())
        if not told["slots"]:  # the runner keeps no counters, or loses those of timers
            return None
        if not counted + beyond + unread + told.get("late", 0):
            wanted = " that meet its conditions (where)" if question.where else ""
            return f"there are no events{wanted}, and every figure is of noise alone"
        if unread > _MUCH_UNREAD * (counted + beyond + unread):
            return (
                f"{unread / (counted + beyond + unread):.0%} of its events could not be counted: "
                "see that value, domain and column are meant so; other: NAME gives all values "
                "outside the domain a bin"
            )
        # Of one user several events make no more users: a larger bound would only add noise.
        if not question.statistic.once and beyond > _SOME_BEYOND * (counted + beyond):
            return (
                f"{beyond / (counted + beyond):.0%} of its events were beyond max_contributions "
                f"({question.max_contributions}), and its figures are without them: give it a "
                "larger one, which makes noise grow in proportion, or shorter slots"
            )
        return None
