"""An input that lost most of its events is not released: what was lost, and what the cause may be.

The decision is made of tallies that go through the pipeline as data, before the release stage sees
any count: counters would come too late, and not from every runner.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from streamveil.engine.encode.dead_letters import WRONG_TYPE
from streamveil.engine.encode.event_mapper import (
    A_NUMBER,
    NO_REQUIREMENT,
    NOT_A_NUMBER,
    NULL_VALUE,
    OUTSIDE_DOMAIN,
    OUTSIDE_RANGE,
    Columns,
)
from streamveil.engine.encode.numbers import NOT_FINITE, NULL_NUMBER
from streamveil.engine.encode.text import NULL_USER
from streamveil.engine.encode.time_formats import guesses
from streamveil.engine.encode.times import NULL_TIME, UNPARSABLE_TIME
from streamveil.engine.messages import Kind, Message
from streamveil.mechanisms.core.event_tallies import LATE, EventTally, Lost, query_of
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import EXCEL, InputLost, Slots, format_time
from streamveil.mechanisms.core.wording import opt

# Of a stream, before its share of lost events is checked.
ENOUGH = 1000
_LONGEST = 200  # characters of a record in a message

_LOGGER = logging.getLogger("streamveil")

# From 1973 to 2286; of Excel from 1927 to 2173.
_UNITS_BY_DIGITS = {
    **{5: EXCEL, 9: "s", 10: "s", 12: "ms", 13: "ms"},
    **{15: "us", 16: "us", 18: "ns", 19: "ns"},
}
# As a detail has it: alone, or followed by what is missing for it.
_NUMBER = re.compile(rf"-?(\d+)(?:[.]\d*)?(?:{A_NUMBER}.*)?")
_PLAIN = re.compile(r"[\w%/:.,+-]+")
_DAY_FIRST = re.compile(r"\d{1,2}([./-])\d{1,2}\1\d{2,4}\b.*")
_OTHER_FIELDS = re.compile(r"[\d,]+ fields? where the header has \d+")
_COMMA = re.compile(r"\s*[+-]?(\d+|\d{1,3}(?:[. ]\d{3})+),\d+\s*")
_NESTED = re.compile(r"' is (an object|a list), not ")
_COLUMN_VALUE = re.compile(r"(.*?) is (.*)", re.DOTALL)


class Reads(Protocol):
    """A plan or transform of events that may lose some."""

    columns: Columns
    first_slot: int | None
    last_slot: int | None
    max_rejected: float
    may_be_empty: bool

    @property
    def slots(self) -> Slots:
        """How time is cut."""


@dataclass(frozen=True)
class LossLimit:
    """How much of a bounded input may be lost, and what is public of how it was read."""

    max_rejected: float
    """Share of the events, from 0 to 1; with 1 whatever is lost."""
    may_be_empty: bool
    """Whether no event at all may be read."""
    slots: Slots
    first_slot: int | None
    last_slot: int | None
    time_unit: str | None
    time_format: str | None = None

    @classmethod
    def of(cls, transform: Reads) -> LossLimit:
        """The limit that a transform of events was given."""
        columns = transform.columns
        return cls(
            transform.max_rejected,
            transform.may_be_empty,
            transform.slots,
            transform.first_slot,
            transform.last_slot,
            columns.time_unit,
            columns.time_format,
        )

    def check(self, data: bytes, stream: str) -> tuple[str, Message]:
        """Of a whole tally as bytes, the word how many messages there must be to release.

        Raises InputLost where more was lost than may be, also where a query can read none of
        its events, or there is nothing to release.
        """
        tally = EventTally.of_bytes(data)
        problem = self._problem(tally)
        if problem:
            cause_text = f" {self._mostly(tally.losses)}" if tally.losses else ""
            if not self._ranged:
                cause_text += (
                    f" Nor does a range ({opt.start} and {opt.end}) say which slots there are."
                )
        elif tally.blind and self.max_rejected < 1:
            unread = tally.unread_by[tally.blind[0]]
            events = number_of(sum(some.events for some in unread.values()), "event")
            problem = f"query {tally.blind[0]!r} asks about {events} and can read none of them"
            cause_text = f" {self._mostly(unread)}"
        elif query := tally.without_requirement(self.max_rejected):
            lost, every = tally.no_requirement_by[query]
            problem = (
                f"{lost:,} of {every:,} events of query {query!r} are of users with no requirement "
                f"in force, and no query loses less than the allowed fraction of "
                f"{self.max_rejected:g} ({opt.max_rejected})"
            )
            cause = self._unknown_cause(NO_REQUIREMENT, "", "")
            cause_text = (
                f" Likely cause: {cause}. Correct this, or allow it with {opt.max_rejected}=1."
            )
        if problem:
            raise InputLost(f"{problem}, so nothing is released.{cause_text} {found(tally)}")
        return stream, Message(Kind.WHOLE, payload=b"%d" % tally.messages)

    @property
    def _ranged(self) -> bool:
        """Whether it is known which slots are released, whatever is read."""
        return None not in (self.first_slot, self.last_slot)

    def _problem(self, tally: EventTally) -> str | None:
        read, lost = tally.read, tally.all_lost
        if not read and not (self._ranged and (self.may_be_empty or self.max_rejected >= 1)):
            return (
                "no event was read: the input has no rows (a header alone?), and so no event was "
                "accepted"
            )
        if lost < read and not read * self.max_rejected < lost:
            return None
        if not read or (self._ranged and self.max_rejected >= 1):
            return None
        if lost == read:
            all_read = "the only event was" if read == 1 else f"all {read:,} events were"
            return f"{all_read} rejected or late, no event was accepted"
        return (
            f"{lost:,} of {read:,} events were rejected or late, more than the allowed fraction of "
            f"{self.max_rejected:g} ({opt.max_rejected})"
        )

    def _mostly(self, lost: Mapping[str, Lost]) -> str:
        """The commonest reason, one of the events, and what may be behind it."""
        why, some = max(lost.items(), key=lambda item: (item[1].events, item[0]))
        sample = f"{some.place}: {_shown(some.detail)!r}"
        return (
            f"Most often: {why} ({some.events:,}), as in {sample}. Likely cause: "
            f"{self.cause(why, some)}. Correct this, or allow it with {opt.max_rejected}=1."
        )

    def cause(self, why: str, some: Lost) -> str:
        """What may be behind a reason, in the words of the options."""
        match = _COLUMN_VALUE.fullmatch(some.detail)
        column, value = match.groups() if match else ("", some.detail)
        why, query = query_of(why)
        if query:
            return _cause_of_query(why, query, column, value)
        if why in (UNPARSABLE_TIME, OUTSIDE_RANGE):
            return self._time_cause(why, column, value)
        if why in (NULL_USER, NULL_VALUE, NULL_TIME):
            more = f"; {opt.null}=NAME gives null values a bin" if why == NULL_VALUE else ""
            return f"the column {column} is empty: perhaps another one was meant{more}"
        if why in (NO_REQUIREMENT, OUTSIDE_DOMAIN):
            return self._unknown_cause(why, column, value)
        if _OTHER_FIELDS.fullmatch(some.detail):
            return (
                f"{opt.delimiter} is not what separates the fields, stands in a text without "
                f"quotes, or several spaces separate them: make these one first (tr -s ' '); or "
                f"the file is not of the format that its name says"
            )
        if why == NOT_A_NUMBER and _COMMA.fullmatch(value):
            return _commas(column)
        if _NESTED.search(some.detail):
            return (
                "such a key is no text or number: name another one, or first move what is inside "
                "it to keys of their own"
            )
        if why == NOT_A_NUMBER:
            return (
                f"the column of the value is not the right one, or {opt.domain} should list texts"
            )
        if why == LATE:
            return f"the events came after their slots were released ({opt.allowed_lateness})"
        return _OTHER_CAUSES.get(why, f"see the dead letters ({opt.rejected})")

    def _time_cause(self, why: str, column: str, value: str) -> str:
        number = _NUMBER.fullmatch(value.strip())
        if number:
            unit = _UNITS_BY_DIGITS.get(len(number[1]))
            if unit is not None and unit != self.time_unit:
                read_as = (
                    "" if self.time_unit is None else f", but {opt.time_unit}={self.time_unit}"
                )
                return f"the times look like {opt.time_unit}={unit}{read_as}"
        if why == UNPARSABLE_TIME:
            text = value.partition(A_NUMBER)[0]
            forms = [f"{opt.time_format}={_quoted(form)}" for form in guesses(text)]
            if self.time_format is not None:
                given = ", ".join(self.time_format.split("\n"))
                more = f"; this one looks like {_either(forms)}: give it too" if forms else ""
                return f"the times are not all of {opt.time_format}={given}{more}"
            if forms and _DAY_FIRST.fullmatch(value.strip()):
                return (
                    f"the days or months of the dates come first: give {_either(forms)}, or write "
                    "ISO 8601 such as 2024-05-31"
                )
            if forms:
                return f"the times look like {_either(forms)}"
        if why == OUTSIDE_RANGE:
            ends = [
                "any time" if slot is None else format_time(end(slot))
                for slot, end in (
                    (self.first_slot, self.slots.start),
                    (self.last_slot, self.slots.end),
                )
            ]
            return (
                f"the range that was asked for, {ends[0]} to {ends[1]}, is not that of the events "
                f"({opt.start}, {opt.end}, {opt.time_unit}, {opt.time_zone})"
            )
        return (
            f"the column {column} is not that of the times, or they are not ISO 8601: say by "
            f"{opt.time_format} how they are written"
        )

    def _unknown_cause(self, why: str, column: str, value: str) -> str:
        # Where requirements change, only the slot of such an event is known.
        named = f"the column {column}" if column else f"the column of the user ({opt.user_column})"
        if why == NO_REQUIREMENT:
            return _unlisted(named, value, opt.requirements)
        return _unlisted(
            named, value, opt.domain, f"; {opt.other}=NAME gives all other values a bin"
        )


def _quoted(form: str) -> str:
    """A form as a shell takes it; one without blanks is as it is."""
    return form if _PLAIN.fullmatch(form) else f"'{form}'"


def _either(forms: Sequence[str]) -> str:
    """Forms to choose from, where it cannot be known which one is meant."""
    chosen = ", whichever is meant" if len(forms) > 1 else ""
    return f"{' or '.join(forms)}{chosen}"


def _cause_of_query(why: str, query: str, column: str, value: str) -> str:
    """What may be behind it that a query cannot read an event, in the words of its file."""
    if why in (NOT_FINITE, NOT_A_NUMBER) and _COMMA.fullmatch(value):
        return _commas(column)
    named = f"the column {column}"
    if why == OUTSIDE_DOMAIN:
        more = "; other: NAME gives all other values a bin"
        return _unlisted(named, value, f"query {query!r}", more)
    if why == NOT_A_NUMBER:
        return f"{named} is not the right one, or the keys of query {query!r} should be texts"
    key = "of" if why in (NULL_NUMBER, NOT_FINITE) else "by"
    fault = "holds what is not a number, or no finite one" if why == NOT_FINITE else "is empty"
    more = ", or null: NAME gives null values a bin" if why == NULL_VALUE else ""
    return f"{named} {fault}: perhaps another one was meant (query {query!r}, key {key!r}){more}"


def _commas(column: str) -> str:
    return f"the column {column} has decimal commas: write points, such as 1.5"


def _unlisted(named: str, value: str, public: str, more: str = "") -> str:
    if value != value.strip():
        return f"{named} has blanks before or after what {public} lists without"
    return f"{named} is not what {public} lists: perhaps another one was meant{more}"


_OTHER_CAUSES = {
    WRONG_TYPE: "the rows hold something else than text, numbers and times: convert these fields",
    "not UTF-8": "the text is not UTF-8: convert the file, as by iconv -f WINDOWS-1252 -t UTF-8",
    "unparsable": "the file is not of the format that its name says, or was cut",
}


def found(tally: EventTally) -> str:
    """The figures of a tally in words that :func:`tally_in` reads."""
    limited = f", {tally.beyond_limit} beyond the limit" if tally.beyond_limit else ""
    reasons = ", ".join(f"{why} {number}" for why, number in tally.rejected.items())
    return (
        f"Found: {tally.read} read, {sum(tally.rejected.values())} rejected"
        f"{f' ({reasons})' if reasons else ''}, {tally.late} late, {tally.beyond_bound} beyond "
        f"the bound{limited}, {tally.counted} counted"
    )


def _shown(detail: str) -> str:
    """A detail, which quotes a record, in a line: no line end, also none that an error spells."""
    text = "".join(each if each.isprintable() and each != "\\" else "?" for each in detail)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


_FOUND = re.compile(
    r"Found: (\d+) read, \d+ rejected(?: \((.*?)\))?, (\d+) late, (\d+) beyond the bound"
    r"(?:, (\d+) beyond the limit)?, (\d+) counted"
)
# A reason may name a query in brackets.
_REASON = re.compile(r"((?:[^()]|\([^()]*\))+?) (\d+)(?:, |$)")


def tally_in(text: str) -> EventTally:
    """The figures that :func:`found` put into an error; zeros where there are none.

    They come last: a record that is quoted before them may look alike.
    """
    matches = _FOUND.findall(text)
    if not matches:
        return EventTally()
    read, reasons, late, beyond_bound, beyond_limit, counted = matches[-1]
    lost = {}
    for why, number in _REASON.findall(reasons):
        lost[why] = Lost(int(number))
    if int(late):
        lost[LATE] = Lost(int(late))
    limited = int(beyond_limit or 0)
    return EventTally(int(read), lost, int(beyond_bound), int(counted), beyond_limit=limited)


def check_whole(words: Sequence[int], came: int) -> None:
    """Refuse to release from messages of which one is missing, by the word how many there must be.

    Raises InputLost, also where there is no word.
    """
    if list(words) != [came]:
        should = words[0] if words else "an unknown number"
        raise InputLost(
            f"{came} messages of counts came to be released, and {should} were expected: an "
            "earlier step failed or was lost and the runner continued, so nothing is released. "
            "See the first error in the runner's log, and run again"
        )


def whole_counts(messages: Iterable[Message]) -> list[Message]:
    """The counts among some messages, none of which is missing. Raises InputLost."""
    counts: list[Message] = []
    words: list[int] = []
    for message in messages:
        if message.kind is Kind.COUNTS:
            counts.append(message)
        elif message.kind is Kind.WHOLE:
            words.append(int(message.payload))
    check_whole(words, len(counts))
    return counts


@dataclass
class LossWatch:
    """Warns on a worker of a stream, which cannot be refused, once most of it is lost."""

    max_rejected: float
    _seen: EventTally = field(init=False, default_factory=EventTally)

    def see(self, tally: EventTally) -> None:
        """Take what became of some more events."""
        seen = EventTally.total([self._seen, tally])
        if seen.read >= ENOUGH:
            if seen.all_lost > seen.read * self.max_rejected:
                _LOGGER.warning(
                    "of the last %d events of a stream %d were rejected: %s; see the dead letters",
                    seen.read,
                    seen.all_lost,
                    ", ".join(f"{why} {number}" for why, number in seen.rejected.items()),
                )
            seen = EventTally()
        self._seen = seen
