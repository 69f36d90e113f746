"""The public table of users and what each of them asks for."""

from __future__ import annotations

import hashlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.budgets import Requirements
from streamveil.mechanisms.core.identity import encoded
from streamveil.mechanisms.core.records import (
    LEAST_DELTA,
    MOST_DELTA,
    ConfigurationError,
    Lifetime,
    Requirement,
    check_shares,
    requirement_and_delta,
    valid_deltas,
)

SOME_USERS = 1_000
"""Users outside the table, where nothing is said of their number and the table has no more."""


@dataclass(frozen=True, eq=False)
class Registry:
    """The public requirements table, which gives the privacy budget of each user.

    Users with equal requirements form a class. Values that are computed from the table, such as the
    number of users in each class, become public. Therefore, do not derive the table from the
    events. To make a table, use :meth:`of`, :meth:`build` or `sv.read_requirements`.

    Example:
        >>> table = Registry.of({"ann": (7, 1.0), "bob": (7, 1.0), "cy": (30, 0.5)})
        >>> table.sizes.tolist()
        [2, 1]
    """

    users: Sequence[str]
    """The distinct ids of the registered users, as a list of text or an Arrow string array."""
    class_of: npt.NDArray[np.int32]
    """Class of each of `users`, shape (users,)."""
    classes: Requirements
    """The distinct requirements, shape (K,). The requirements of registered users come first,
    sorted. A requirement that only unregistered users have comes last. If users with equal
    requirements have different participation limits or different deltas, the requirement is
    repeated once for each of them."""
    sizes: npt.NDArray[np.int64]
    """Public number of users in each class, shape (K,)."""
    default_class: int | None = None
    """Class of unregistered users, or None if they are rejected. The number of these users is
    assumed, see :attr:`guessed`."""
    max_slots: tuple[int | None, ...] = ()
    """Participation limit of each class, in slots per block. A class without a limit has None. The
    sequence is empty if no class has a limit."""
    unsaid: bool = False
    """Whether the number of unregistered users was left out. It is then assumed to be `SOME_USERS`,
    or the number of registered users if that is larger."""
    reload: Callable[[], Registry] | None = field(default=None, repr=False)
    """Function with which a worker loads the table, so that it is not sent with the pipeline."""
    deltas: tuple[float | None, ...] = ()
    """Delta of each class, where the table gives one, for keys that are discovered. All other
    classes have None, and the delta of the run applies to them. The sequence is empty if the table
    gives no delta."""

    def __post_init__(self) -> None:
        """Remember a registry that can be reloaded: unpickled in this process, it is found."""
        if self.reload is not None:
            _LIVING[self.fingerprint] = self

    @classmethod
    def build(
        cls,
        users: Sequence[str],
        windows: npt.NDArray[np.int64],
        epsilons: npt.NDArray[np.float64],
        *,
        max_slots: npt.NDArray[np.int64] | None = None,
        deltas: npt.NDArray[np.float64] | None = None,
        default: tuple[Requirement, int | None] | None = None,
        reload: Callable[[], Registry] | None = None,
    ) -> Registry:
        """Make a table of n users from arrays.

        Args:
            users: the n distinct user ids. An id that is a whole number is treated as its decimal
                text.
            windows: length of each user's privacy window, as a number of slots, shape (n,).
            epsilons: budget of each user, shape (n,).
            max_slots: participation limit of each user, shape (n,). With a limit M, the user
                contributes to at most M slots in each block (a part of the window). The value 0
                means that the user has no limit.
            deltas: the probability with which the discovery of keys may fail to protect each user,
                shape (n,). NaN means that the delta of the run applies. With 0, the user is not
                counted in the discovery of keys.
            default: requirement of unregistered users (users who are not in the table), followed by
                the assumed number of unregistered users, which is public. If you give None as the
                number, streamveil assumes that there are as many unregistered users as registered
                users, but at least `SOME_USERS`. With a :class:`Lifetime`, the number 0 is allowed
                and means that the number is unknown.
            reload: function with which each worker loads the table, so that the table is not sent
                with the pipeline.

        Raises:
            ConfigurationError: if a user id is missing, empty or repeated; if a requirement is out
                of range, or its epsilon is too small for its window; if a participation limit is
                not a whole number; if a delta is neither 0 nor from 1e-15 to 0.1; or if there are
                neither users nor a default.
        """
        users = _checked(users)
        lengths, window_of = _distinct(windows)
        budgets, budget_of = _distinct(epsilons)
        asked, class_of = _distinct(window_of * len(budgets) + budget_of)
        most: list[int | None] = [None] * len(asked)
        given = None if max_slots is None else _limits(max_slots, len(users))
        if given is not None and given.any():
            numbers, number_of = _distinct(given)
            both, class_of = _distinct(class_of * len(numbers) + number_of)
            asked = asked[both // max(len(numbers), 1)]
            most = [int(numbers[pair % len(numbers)]) or None for pair in both.tolist()]
        own: list[float | None] = [None] * len(asked)
        of_users = None if deltas is None else _deltas(deltas, len(users))
        if of_users is not None and (of_users != _NOT_GIVEN).any():
            numbers, number_of = _distinct(of_users)
            both, class_of = _distinct(class_of * len(numbers) + number_of)
            asked, most = asked[both // len(numbers)], [most[k] for k in both // len(numbers)]
            found = numbers[both % len(numbers)].tolist()
            own = [None if delta == _NOT_GIVEN else delta for delta in found]
        classes = [
            Requirement(int(lengths[pair // len(budgets)]), float(budgets[pair % len(budgets)]))
            for pair in asked.tolist()
        ]
        sizes = np.bincount(class_of, minlength=len(classes)).astype(np.int64)
        default_class = None
        if default is not None:
            requirement, count = default
            if count is None:
                count = max(len(users), SOME_USERS)
            if count < (0 if isinstance(requirement, Lifetime) else 1):
                raise ConfigurationError(
                    f"the default requirement is for {count} users: give the expected number, 1 "
                    "or more, or leave it out"
                )
            same = list(zip(classes, most, own, strict=True))
            if (requirement, None, None) not in same:
                same.append((requirement, None, None))
                classes.append(requirement)
                most.append(None)
                own.append(None)
                sizes = np.append(sizes, 0)
            default_class = same.index((requirement, None, None))
            sizes[default_class] += count
        if not classes:
            raise ConfigurationError(
                "the table of requirements is empty and there is no default requirement: "
                "no user could be counted"
            )
        check_shares(classes)
        known = Requirements(classes)
        limits = tuple(most) if any(most) else ()
        unsaid = default is not None and default[1] is None
        given_deltas = tuple(own) if any(one is not None for one in own) else ()
        return cls(
            *(users, class_of.astype(np.int32), known, sizes, default_class, limits, unsaid),
            *(reload, given_deltas),
        )

    @classmethod
    def of(
        cls,
        requirements: Mapping[str, Requirement | tuple[int, float] | tuple[int, float, float]]
        | Iterable[Any] = (),
        *,
        default: tuple[Requirement, int | None] | None = None,
    ) -> Registry:
        """Make a requirements table from a mapping user -> requirement.

        It is convenient for few users.

        Args:
            requirements: the requirement of each user, as (window in slots, epsilon) or a
                `Requirement`. You may add a delta, as (window in slots, epsilon, delta), for keys
                that are discovered.
            default: requirement of unregistered users, followed by their assumed number, as for
                :meth:`build`.

        Raises:
            ConfigurationError: if :meth:`build` would raise this error, or if a user's requirement
                is a `Lifetime`. Only `default` may be a `Lifetime`.
        """
        pairs = requirements.items() if isinstance(requirements, Mapping) else requirements
        users, wanted = tuple(zip(*pairs, strict=True)) or ((), ())
        both = [requirement_and_delta(requirement) for requirement in wanted]
        asked = [requirement for requirement, _ in both]
        if any(isinstance(requirement, Lifetime) for requirement in asked):
            raise ConfigurationError(
                "a Lifetime is the requirement of all users: give it as "
                "Registry.of(default=(Lifetime(epsilon), 0)), and not user by user"
            )
        return cls.build(
            users,
            np.array([r.window for r in asked], np.int64),
            np.array([r.epsilon for r in asked], np.float64),
            deltas=np.array([delta for _, delta in both], np.float64),
            default=default,
        )

    @property
    def guessed(self) -> int | None:
        """The class that contains the unregistered users, or None if there is no such class.

        The number of unregistered users is assumed. The result is also None if you gave 0 as this
        number. In this case, mechanisms use an upper bound on the number of users instead of an
        assumed number.
        """
        k = self.default_class
        return k if k is not None and self.sizes[k] else None

    @property
    def unknown(self) -> int | None:
        """The requirement class of unregistered users, if you did not give their number.

        The result is None if you gave the number of unregistered users, or if unregistered users
        are rejected. Registered users with the same requirement are also in this class, so its
        total number of users is unknown.
        """
        return self.default_class if self.unsaid else None

    @property
    def stated_sizes(self) -> npt.NDArray[np.int64]:
        """The number of users of each class, as stated in the results, shape (K,).

        An unknown number is 0.
        """
        return stated_users(self.sizes, self.unknown)

    @property
    def default(self) -> tuple[Requirement, int | None] | None:
        """The requirement of unregistered users, and their number if it was given."""
        k = self.default_class
        if k is None:
            return None
        members = int((self.class_of == k).sum())
        return self.classes[k], None if self.unsaid else int(self.sizes[k]) - members

    def deltas_or(self, default: float) -> tuple[float, ...]:
        """Return the delta of each class, shape (K,).

        Args:
            default: the delta of a class for which the table gives none.
        """
        own = self.deltas or (None,) * len(self.classes)
        return tuple(default if delta is None else delta for delta in own)

    def without_deltas(self) -> Registry:
        """Return the table as if it gave no delta.

        Users who only differ in delta are then in the same class.
        """
        if not self.deltas:
            return self
        limits = self.max_slots or (None,) * len(self.classes)
        same = list(zip(self.classes, limits, strict=True))
        kept = {one: place for place, one in enumerate(dict.fromkeys(same))}
        merged = np.array([kept[one] for one in same])
        other = self.default_class
        return Registry(
            self.users,
            merged[self.class_of].astype(np.int32),
            Requirements(requirement for requirement, _ in kept),
            np.bincount(merged, self.sizes, len(kept)).astype(np.int64),
            None if other is None else int(merged[other]),
            tuple(limit for _, limit in kept) if self.max_slots else (),
            self.unsaid,
            None if self.reload is None else _WithoutDeltas(self.reload),
        )

    def up_to(self, longest: int) -> Registry:
        """Return a table in which all users have the same window.

        Its classes are sorted by epsilon.

        Args:
            longest: length of the window in slots.

        Raises:
            ConfigurationError: if a user in the table has a window that is longer than `longest`.
        """
        if self.classes.longest > longest:
            raise ConfigurationError(
                f"the longest window is {longest} slots, and users of the table ask for "
                f"{self.classes.longest}"
            )
        epsilons, merged = np.unique([one.epsilon for one in self.classes], return_inverse=True)
        classes = Requirements(Requirement(longest, one) for one in epsilons.tolist())
        if classes == self.classes:
            return self
        other = self.default_class
        return Registry(
            self.users,
            merged[self.class_of].astype(np.int32),
            classes,
            np.bincount(merged, self.sizes, len(epsilons)).astype(np.int64),
            None if other is None else int(merged[other]),
            unsaid=self.unsaid,
            reload=None if self.reload is None else _UpTo(self.reload, longest),
        )

    @cached_property
    def classes_with_other(self) -> npt.NDArray[np.int32]:
        """The class of each registered user, followed by the class of unregistered users.

        The last entry of the array is 0 if unregistered users are rejected.
        """
        return np.append(self.class_of, np.int32(self.default_class or 0))

    def named(self, k: int) -> str:
        """Describe a requirement class for an error message.

        The description contains the window and epsilon of the class. It also contains the id of the
        first user of the class and, if the table was read from a file, this user's place in the
        file. If no user in the table belongs to the class, it is the class of unregistered users.
        """
        one = self.classes[k]
        asked = f"window {one.window}, epsilon {one.epsilon:g}"
        members = np.flatnonzero(self.class_of == k)
        if not len(members):
            return f"users outside the table ({asked})"
        user = str(self.users[int(members[0])])
        place = getattr(self.reload, "place_of", None)  # of a table in a file
        where = "" if place is None else f"{place(user)}: "
        return f"{where}user {user!r} and whoever asks for the same ({asked})"

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the whole requirements table, by which saved states identify the table.

        The digest does not depend on the Arrow type of the user ids or on the division of the ids
        into chunks. The digest depends on the order of the users, because the events that
        contribution bounding keeps depend on a user's position in the table.
        """
        digest = hashlib.blake2b(digest_size=32)
        limits = (self.max_slots,) if self.max_slots else ()
        deltas = (("deltas", self.deltas),) if self.deltas else ()
        facts = (self.classes, self.default_class, self.sizes, len(self.users))
        for fact in (*facts, *limits, *deltas):
            digest.update(encoded(fact))
        digest.update(np.ascontiguousarray(self.class_of, "<i4").data)
        _absorb(digest, self.users)
        return digest.hexdigest()

    def identity(self) -> bytes:
        """The table's digest as bytes. It is part of saved states, and the noise depends on it.

        All versions of streamveil compute the same bytes from the same table.
        """
        return encoded("registry") + encoded(self.fingerprint)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the way to load it again, when there is one."""
        if self.reload is not None:
            return _reload_registry, (self.reload, self.fingerprint)
        facts = (self.classes, self.sizes, self.default_class, self.max_slots, self.unsaid)
        return Registry, (self.users, self.class_of, *facts, None, self.deltas)


def stated_users(sizes: npt.NDArray[np.int64], unknown: int | None) -> npt.NDArray[np.int64]:
    """Numbers of users of classes or ledgers, with 0 for one of which the number is not known."""
    stated = sizes.copy()
    if unknown is not None:
        stated[unknown] = 0
    return stated


def _limits(max_slots: Any, users: int) -> npt.NDArray[np.int64]:
    """Limits of presence as whole numbers, 0 where nothing is said; one for each user."""
    given = np.asarray(max_slots)
    if given.shape != (users,) or not np.issubdtype(given.dtype, np.integer) or (given < 0).any():
        raise ConfigurationError(
            f"max_slots has type {given.dtype}, shape {given.shape}, for {users:,} users: give "
            "each user a whole number of slots, or 0 for no limit"
        )
    return given.astype(np.int64)


_NOT_GIVEN = -1.0
"""Delta of a user for whom the table gives none."""


def _deltas(deltas: Any, users: int) -> npt.NDArray[np.float64]:
    """Deltas of users, one for each, and `_NOT_GIVEN` in place of NaN."""
    given = np.asarray(deltas, np.float64)
    if given.shape != (users,) or not (np.isnan(given) | valid_deltas(given)).all():
        raise ConfigurationError(
            f"deltas have shape {given.shape}, for {users:,} users: give each user 0 or a number "
            f"from {LEAST_DELTA:g} to {MOST_DELTA:g}, or NaN for the delta of the run"
        )
    return np.where(np.isnan(given), _NOT_GIVEN, given)


def _checked(users: Any) -> Sequence[str]:
    """Ids as text, each of one user; an Arrow array stays one. Nothing walks over good ids."""
    if hasattr(users, "null_count"):
        if str(users.type) not in ("string", "large_string"):
            raise ConfigurationError(f"the user ids are {users.type} in Arrow: cast them to string")
        empty = users.null_count > 0 or users.index("").as_py() >= 0
        distinct = len(users.unique())
    else:
        kinds = set(map(type, users))
        for kind in kinds:
            if issubclass(kind, bool) or not issubclass(kind, (str, Integral)):
                raise ConfigurationError(
                    f"user id {next(user for user in users if type(user) is kind)!r} is neither "
                    "text nor a whole number: give ids as text"
                )
        users = users if kinds <= {str} else list(map(str, users))
        found = set(users)
        empty, distinct = "" in found, len(found)
    if empty:
        raise ConfigurationError("a user id of the registry is missing or empty: name every user")
    if distinct < len(users):
        again = next(user for user, times in Counter(map(str, users)).items() if times > 1)
        raise ConfigurationError(
            f"user {again!r} is in the registry twice: list every user once (ids count by their "
            "text)"
        )
    return users


def _absorb(digest: hashlib.blake2b, texts: Any) -> None:
    """Hash texts: the lengths of all of them, int64, then their bytes."""
    chunks = [_text_bytes(chunk) for chunk in getattr(texts, "chunks", [texts])]
    for lengths, _ in chunks:
        digest.update(lengths.astype("<i8").data)
    for _, data in chunks:
        digest.update(data)


def _text_bytes(texts: Any) -> tuple[npt.NDArray[np.int64], Any]:
    """Length of each of some texts in UTF-8, shape (n,), and the bytes of all."""
    if hasattr(texts, "buffers"):
        width = np.int64 if str(texts.type) == "large_string" else np.int32
        _, offsets, data = texts.buffers()
        if not len(texts):
            return np.zeros(0, np.int64), b""
        ends = np.frombuffer(offsets, width)[texts.offset : texts.offset + len(texts) + 1]
        return np.diff(ends).astype(np.int64), memoryview(data or b"")[ends[0] : ends[-1]]
    if not "".join(texts).isascii():
        texts = [text.encode("utf-8", "surrogatepass").decode("latin-1") for text in texts]
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    return lengths, "".join(texts).encode("latin-1")


def _distinct(values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Distinct values, ascending, and where each value is among them."""
    distinct = np.unique(values)
    return distinct, np.searchsorted(distinct, values)


@dataclass(frozen=True)
class _UpTo:
    """Loads a registry and takes it up to the longest window."""

    reload: Callable[[], Registry]
    longest: int

    def __call__(self) -> Registry:
        return self.reload().up_to(self.longest)


@dataclass(frozen=True)
class _WithoutDeltas:
    """Loads a registry, and leaves its deltas out."""

    reload: Callable[[], Registry]

    def __call__(self) -> Registry:
        return self.reload().without_deltas()

    @property
    def place_of(self) -> Callable[[str], str] | None:
        return getattr(self.reload, "place_of", None)


_LIVING: weakref.WeakValueDictionary[str, Registry] = weakref.WeakValueDictionary()


def _reload_registry(reload: Callable[[], Registry], fingerprint: str) -> Registry:
    living = _LIVING.get(fingerprint)
    if living is not None and living.reload == reload:
        return living
    loaded = reload()
    if loaded.fingerprint != fingerprint:
        raise ConfigurationError(
            f"the table of requirements changed after the pipeline was built ({reload}): "
            "launch the pipeline again"
        )
    return loaded
