"""Events as integers: slot, user and bin of every row of a batch, or a reason to reject it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.engine.encode.dead_letters import (
    WRONG_TYPE,
    column_of,
    naming_source,
    rejected_rows,
    unread_rows,
)
from streamveil.engine.encode.numbers import as_numbers
from streamveil.engine.encode.text import (
    NULL_USER,
    TextIndex,
    as_text,
    find_users,
    if_of_pandas,
    user_texts,
)
from streamveil.engine.encode.time_formats import form_text
from streamveil.engine.encode.times import Reasons, check_reading, is_number, to_micros
from streamveil.mechanisms.core.arguments import (
    column_name,
    column_names,
    refuse,
    user_column,
)
from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.boolean_text import FALSE, TRUE, spellings
from streamveil.mechanisms.core.domains import (
    Categories,
    Domain,
    Edges,
    Grid,
    check_value_columns,
    parts_of,
)
from streamveil.mechanisms.core.identity import Form, Identified
from streamveil.mechanisms.core.records import ConfigurationError, Slots
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.discovery.discovered_keys import DiscoveredKeys
from streamveil.mechanisms.discovery.key_rules import KeyRules
from streamveil.mechanisms.queries.queries import Query

NO_REQUIREMENT = "no requirement"
OUTSIDE_RANGE = "outside the released slots"
AHEAD = "ahead of time"
NULL_VALUE = "null value"
NOT_A_NUMBER = "not a number"
OUTSIDE_DOMAIN = "outside the domain"

A_NUMBER = ", a number: "
"""What a detail says of a time that is a number without a unit."""

_OUTSIDE, _NULL, _NAN = -1, -2, -3
REASON_OF_CODE = {_OUTSIDE: OUTSIDE_DOMAIN, _NULL: NULL_VALUE, _NAN: NOT_A_NUMBER}


@dataclass(frozen=True)
class Columns(Identified):
    """The names of the user, value and time columns of events, and the format of event times.

    Raises:
        ConfigurationError: if a column name is empty, or if the time zone or the time unit is
            unknown.

    Example:
        >>> Columns(user="user", value="place", time="time").names
        ('user', 'place', 'time')
    """

    IDENTITY = Form(
        "columns",
        ("user", "value", "time", "time_zone", "time_unit"),
        later={"time_format": None, "computed": None},
    )

    user: str
    """Column of the user id."""
    value: tuple[str, ...]
    """Column to count by, or the columns of longitude and latitude for a grid."""
    time: str
    """Column of the event time."""
    time_zone: str = "UTC"
    """IANA time zone of times without an offset."""
    time_unit: str | None = None
    """Unit of times that are numbers: `s`, `ms`, `us` or `ns`, or `excel` for serial dates."""
    time_format: str | None = None
    """Format of times that are not in ISO 8601, as strptime codes such as `%d.%m.%Y %H:%M`, or a
    list of formats, which may include `iso`. It is stored as text with one format per line."""
    computed: str | None = None
    """How the columns are computed from each record, if they are not in the source. A resumed run
    must compute them in the same way."""

    def __post_init__(self) -> None:
        """Check the names, and how times are read."""
        for name, read in (("user", user_column), ("value", column_names), ("time", column_name)):
            object.__setattr__(self, name, read(getattr(self, name), name))
        object.__setattr__(self, "time_format", form_text(self.time_format))
        check_reading(self.time_zone, self.time_unit, self.time_format)

    @classmethod
    def of(cls, value: Any) -> Columns:
        """Convert a mapping to `Columns`.

        The argument is a mapping whose keys are fields of `Columns`, such as `user` and `time`. If
        the argument is already a `Columns` object, this object is returned unchanged. If a key or a
        value of the mapping is not valid, ConfigurationError is raised.
        """
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping) or not {"user", "value", "time"} <= set(value):
            refuse("columns", value, "give Columns(user, value, time), with a name for each")
        if unknown := [name for name in value if name not in cls.__dataclass_fields__]:
            raise ConfigurationError(
                f"columns has {unknown[0]!r}; there are: {', '.join(cls.__dataclass_fields__)}"
            )
        return cls(**value)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns to read. No name is repeated."""
        return tuple(dict.fromkeys((self.user, *self.value, self.time)))


def slots_of(batch: pa.RecordBatch, columns: Columns, slots: Slots) -> tuple[Integers, Reasons]:
    """Slot of every row, and by row why it has none.

    Raises ConfigurationError for a column of times that is missing or of another type.
    """
    micros, bad_times = to_micros(
        column_of(batch, columns.time),
        zone=columns.time_zone,
        unit=columns.time_unit,
        form=columns.time_format,
        name=columns.time,
    )
    return slots.indices(micros), bad_times


class DomainMap:
    """Maps values to bins of a domain, vectorised."""

    def __init__(self, domain: Domain, columns: tuple[str, ...]) -> None:
        parts = parts_of(domain)
        self._other = _OUTSIDE if parts.other is None else parts.listed.bins
        self._null = _NULL if parts.null is None else domain.bins - 1
        check_value_columns(domain, columns)
        self.domain = parts.listed
        self.columns = columns
        values = self.domain.values if isinstance(self.domain, Categories) else ()
        listed = set(values)
        others: dict[str, int] = {}
        for at, value in enumerate(values):
            for text in spellings(value):
                if text not in listed:
                    others.setdefault(text, at)
        self._index = TextIndex((*values, *others))
        # Last of all, where -1 leads to, is no bin.
        aliases = [*range(len(values)), *others.values(), _OUTSIDE]
        self._bin_of_text = np.array(aliases) if others else None

    def bins(self, arrays: list[pa.Array]) -> npt.NDArray[np.int64]:
        """Bin of each row, int64, shape (n,); a negative code is a key of `REASON_OF_CODE`.

        Raises ConfigurationError for a column whose type the domain cannot hold.
        """
        if isinstance(self.domain, Categories):
            text = as_text(arrays[0])
            if text is None:
                raise ConfigurationError(
                    f"column {self.columns[0]!r} holds {arrays[0].type}; a list of categories "
                    "matches text, whole numbers or booleans: convert it"
                    f"{if_of_pandas(arrays[0])}, or use numeric edges"
                )
            if isinstance(self.domain, DiscoveredKeys):
                text = keys_of_texts(text, self.domain.rules)
            bins = self._index.find(text)
            if self._bin_of_text is not None:
                bins = self._bin_of_text[bins]
            if not (bins < 0).any():
                return bins
            bins[nulls_of(text)] = self._null
            if isinstance(self.domain, DiscoveredKeys) and self.domain.groups.bins:
                return self._grouped(bins, text, self.domain)
        else:
            bins = self._numeric(arrays)
        bins[bins == _OUTSIDE] = self._other
        return bins

    @staticmethod
    def _grouped(
        bins: npt.NDArray[np.int64], text: pa.DictionaryArray, domain: DiscoveredKeys
    ) -> npt.NDArray[np.int64]:
        """The bins with unlisted keys in the bins of their groups."""
        rows = np.flatnonzero(bins == _OUTSIDE)
        some = text.take(pa.array(rows))
        used, place = np.unique(some.indices.to_numpy(), return_inverse=True)
        keys = some.dictionary.take(pa.array(used)).to_pylist()
        groups = np.array([domain.groups.place(key) for key in keys], np.int64)
        bins[rows] = len(domain.values) + groups[place]
        return bins

    def _numeric(self, arrays: list[pa.Array]) -> npt.NDArray[np.int64]:
        numbers = [self._numbers(a, c) for a, c in zip(arrays, self.columns, strict=True)]
        if isinstance(self.domain, Grid):
            bins = self._cells(*numbers)
        else:
            assert isinstance(self.domain, Edges)
            edges = np.array(self.domain.edges)
            bins = np.searchsorted(edges, numbers[0], side="right") - 1
            bins[(numbers[0] < edges[0]) | (numbers[0] >= edges[-1])] = _OUTSIDE
        bins[np.any([np.isnan(n) for n in numbers], axis=0)] = _NAN
        bins[np.any([nulls_of(a) for a in arrays], axis=0)] = self._null
        return bins.astype(np.int64)

    def _cells(self, longitude: Any, latitude: Any) -> npt.NDArray[np.int64]:
        grid = self.domain
        assert isinstance(grid, Grid)
        with np.errstate(invalid="ignore"):  # NaN becomes a null value later
            inside = (longitude >= grid.west) & (longitude < grid.east)
            inside &= (latitude >= grid.south) & (latitude < grid.north)
            x = np.where(inside, (longitude - grid.west) / (grid.east - grid.west), 0)
            y = np.where(inside, (latitude - grid.south) / (grid.north - grid.south), 0)
        # A value just below the far edge may round up to it.
        column = np.minimum((x * grid.columns).astype(np.int64), grid.columns - 1)
        row = np.minimum((y * grid.rows).astype(np.int64), grid.rows - 1)
        return np.where(inside, row * grid.columns + column, _OUTSIDE)

    def _numbers(self, array: pa.Array, column: str) -> npt.NDArray[np.float64]:
        numbers = as_numbers(array)
        if numbers is None:
            raise ConfigurationError(
                f"column {column!r} holds {array.type}; this domain needs numbers"
            )
        return numbers


NO_KEY = " "
"""In place of a text that is too long to be a key: a key has no blanks at its ends."""
_PLAIN = "^[!-~]([ -~]*[!-~])?$"
"""Text of which rules of keys change nothing but its case."""
_BOOLEANS = pa.array([TRUE, FALSE], pa.large_string())
"""All spellings of each of these values are one key."""


def not_discovered(query: Query, rules: KeyRules) -> list[str]:
    """Texts that are never discovered: they are no keys, or are public already.

    The names of groups are among them. Otherwise a key could make the names of the results
    ambiguous.
    """
    names = query.tree.labels(query.domain)
    return ["", NO_KEY, *rules.deny, *rules.allow, *names]


def keys_of_texts(text: pa.Array, rules: KeyRules) -> pa.DictionaryArray:
    """The keys of texts under some rules, each distinct text looked at once.

    A text that is blank becomes empty, and one that is too long becomes `NO_KEY`.
    """
    coded = text if pa.types.is_dictionary(text.type) else text.dictionary_encode()
    values = coded.dictionary.cast(pa.large_string())
    lower = pc.ascii_lower(values)
    found = lower if rules.fold_case else pc.if_else(pc.is_in(lower, _BOOLEANS), lower, values)
    short = pc.less_equal(pc.binary_length(values), rules.longest)
    plain = pc.and_(pc.match_substring_regex(values, _PLAIN), short)
    others = pc.invert(pc.fill_null(plain, True))
    keys = [
        rules.key(one) or (NO_KEY if one.strip() else "")
        for one in values.filter(others).to_pylist()
    ]
    found = pc.replace_with_mask(found, others, pa.array(keys, pa.large_string()))
    return pa.DictionaryArray.from_arrays(coded.indices, found)


def nulls_of(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Which rows are null, or empty text, in a dictionary as well; shape (n,)."""
    nulls: npt.NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        empty = pc.equal(pc.binary_length(array), 0)
        return nulls | pc.fill_null(empty, False).to_numpy(zero_copy_only=False)
    if pa.types.is_dictionary(array.type) and len(array.dictionary):
        nulls |= nulls_of(array.dictionary)[
            array.indices.fill_null(0).to_numpy(zero_copy_only=False)
        ]
    return nulls


@dataclass(frozen=True, eq=False)
class Events:
    """Accepted events of a batch, in no particular order."""

    slots: Integers
    """Shape (n,)."""
    bins: Integers
    """Shape (n,)."""
    members: Integers
    """Position of each user in the registry, shape (n,), or -1 for a user outside it."""
    strangers: npt.NDArray[np.uint64]
    """128-bit keyed digest of each user outside the registry, in order, shape (number of -1, 2)."""

    def without(self, rows: Integers) -> Events:
        """All events but those in the given rows."""
        keep = np.ones(len(self.slots), dtype=bool)
        keep[rows] = False
        return Events(
            self.slots[keep],
            self.bins[keep],
            self.members[keep],
            self.strangers[keep[self.members < 0]],
        )


class _Read(NamedTuple):
    """What the columns of a batch say, row by row."""

    users: pa.Array
    slots: Integers
    bad_times: Reasons
    """By row, what is wrong with its time: its slot is none."""
    bins: Integers
    """Below 0, a key of `REASON_OF_CODE`."""


@dataclass(frozen=True)
class EventMapper:
    """Maps batches of events; the registry and the domain are indexed once per worker."""

    columns: Columns
    slots: Slots
    domain: Domain
    registry: Registry
    stranger_key: bytes
    """Secret for the digests of users outside the registry: 32 bytes."""
    first_slot: int | None = None
    """Events before this slot are rejected."""
    last_slot: int | None = None
    """Events after this slot are rejected."""
    dynamic: bool = False
    """Whether users outside the registry may have joined, so that none is rejected here."""
    away: npt.NDArray[np.int32] | None = None
    """Positions of users in the registry who are rejected like those outside it, as they left."""

    _users: TextIndex = field(init=False, repr=False, compare=False)
    _bins: DomainMap = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index users and bins."""
        object.__setattr__(self, "_users", TextIndex(self.registry.users))
        object.__setattr__(self, "_bins", DomainMap(self.domain, self.columns.value))

    def check(self, batch: pa.RecordBatch) -> None:
        """Raise ConfigurationError for a missing column or one of a type that cannot be read."""
        user_texts(self._read(batch).users, self.columns.user)

    def map(
        self, batch: pa.RecordBatch, latest: int | None = None
    ) -> tuple[Events, pa.RecordBatch]:
        """Split a batch into accepted events and rejected rows (`io.REJECTED_SCHEMA`).

        Events after the slot `latest` are rejected, where there is one: they are ahead of time.

        Raises ConfigurationError for a missing column or one of a type that cannot be read.
        """
        with naming_source(batch):
            return self._map(batch, self._read(batch), latest)

    def map_located(
        self, batch: pa.RecordBatch
    ) -> tuple[Events, pa.RecordBatch, Integers, Integers]:
        """What :meth:`map` gives, and the events in a bin whoever they are of.

        Of each event that has a slot in the range and a bin: both, shapes (n,). Raises
        ConfigurationError as :meth:`map`.
        """
        with naming_source(batch):
            read = self._read(batch)
            events, rejected = self._map(batch, read, None)
        slots, bins = read.slots, read.bins
        good = bins >= 0
        good[list(read.bad_times)] = False
        if self.first_slot is not None:
            good &= slots >= self.first_slot
        if self.last_slot is not None:
            good &= slots <= self.last_slot
        return events, rejected, slots[good], bins[good]

    def _read(self, batch: pa.RecordBatch) -> _Read:
        columns = self.columns
        arrays = {name: column_of(batch, name) for name in columns.names}
        slots, bad_times = slots_of(batch, columns, self.slots)
        bins = self._bins.bins([arrays[name] for name in columns.value])
        return _Read(arrays[columns.user], slots, bad_times, bins)

    def _map(
        self, batch: pa.RecordBatch, read: _Read, latest: int | None
    ) -> tuple[Events, pa.RecordBatch]:
        slots, bins = read.slots, read.bins
        users = user_texts(read.users, self.columns.user)
        members, strangers, nameless = find_users(users, self._users, self.stranger_key)

        bad = [(nameless, NULL_USER)]
        if (bins < 0).any():
            bad += [(np.flatnonzero(bins == code), why) for code, why in REASON_OF_CODE.items()]
        if self.registry.default_class is None and not self.dynamic:
            bad.append((np.flatnonzero(members < 0), NO_REQUIREMENT))
        if self.away is not None and self.away.size:
            bad.append((np.flatnonzero(np.isin(members, self.away)), NO_REQUIREMENT))
        if latest is not None:
            bad.append((np.flatnonzero(slots > latest), AHEAD))
        for bound, outside in ((self.first_slot, np.less), (self.last_slot, np.greater)):
            if bound is not None:
                bad.append((np.flatnonzero(outside(slots, bound)), OUTSIDE_RANGE))
        # What is wrong with each bad row; the first fault found is the one reported.
        faults = dict(read.bad_times) | dict.fromkeys(unread_rows(batch), WRONG_TYPE)
        for rows, reason in bad:
            for row in rows.tolist():
                faults.setdefault(row, reason)

        events = Events(slots, bins, members, strangers)
        if faults:
            events = events.without(np.fromiter(faults, np.int64, len(faults)))
        return events, rejected_rows(batch, faults, self._detail)

    def _detail(self, reason: str, record: dict[str, Any]) -> str:
        columns = self.columns
        if reason in (NULL_USER, NO_REQUIREMENT):
            names: tuple[str, ...] = (columns.user,)
        elif reason in REASON_OF_CODE.values():
            names = columns.value
        else:
            names = (columns.time,)
            time = record[columns.time]
            if columns.time_unit is None and isinstance(time, str) and is_number(time):
                return f"{columns.time} is {time}{A_NUMBER}say its unit ({opt.time_unit})"
        return ", ".join(
            f"{name} is {'null' if record[name] is None else record[name]}" for name in names
        )
