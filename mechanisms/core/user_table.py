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
    ConfigurationError,
    Lifetime,
    Requirement,
    as_requirement,
    check_shares,
)

SOME_USERS = 1_000
"""Users outside the table, where nothing is said of their number and the table has no more."""


@dataclass(frozen=True, eq=False)
class Registry:
    """The PUBLIC table user -> requirement, as classes of users who ask for the same.

    Thresholds, budgets and class sizes are computed from this table alone, so it must not depend
    on who is present in the data. Make one with :meth:`build`, :meth:`of` or
    `streamveil.io.read_requirements`.
    """

    users: Sequence[str]
    """The registered user ids, distinct, as text (a list, or an Arrow string array)."""
    class_of: npt.NDArray[np.int32]
    """Class of each of `users`, shape (users,)."""
    classes: Requirements
    """The distinct requirements, shape (K,): those of the table sorted, then one that only users
    outside it have. One that users have with different limits is there once for each."""
    sizes: npt.NDArray[np.int64]
    """Public number of users in each class, shape (K,)."""
    default_class: int | None = None
    """Class of a user who is not in the table, or None when such users are rejected. How many
    those are is only assumed: see :attr:`guessed`."""
    max_slots: tuple[int | None, ...] = ()
    """Slots of a block in which the users of each class count (`mechanisms/presence`), None of a
    class of which the table says nothing; empty if it says nothing of any."""
    unsaid: bool = False
    """Whether nothing was said of the number of users outside the table, so that the size of their
    class is `SOME_USERS` or as many as the table has."""
    reload: Callable[[], Registry] | None = field(default=None, repr=False)
    """How a worker gets this registry without it travelling in the pipeline's graph."""

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
        default: tuple[Requirement, int | None] | None = None,
        reload: Callable[[], Registry] | None = None,
    ) -> Registry:
        """Group users by requirement, and by the limit of their presence.

        Args:
            users: distinct ids, length n: text or whole numbers, which count by their text.
            windows: slots, shape (n,).
            epsilons: budgets, shape (n,).
            max_slots: slots of a block in which they count, 0 where nothing is said, shape (n,).
            default: requirement of users outside the table, and what is publicly assumed of their
                number; None for as many as are in the table, `SOME_USERS` at least. Under a
                :class:`Lifetime`, whose mechanisms do not need it, 0 if it is not known.
            reload: see the field.

        Raises:
            ConfigurationError: for an id that is missing, empty or listed twice; a requirement
                out of range or too small for its window; a limit that is no whole number; an empty
                registry.
        """
        users = _checked(users)
        lengths, window_of = _distinct(windows)
        budgets, budget_of = _distinct(epsilons)
        asked, class_of = _distinct(window_of * len(budgets) + budget_of)
        most: list[int | None] = [None] * len(asked)
        if max_slots is not None:
            max_slots = _limits(max_slots, len(users))
            numbers, number_of = _distinct(max_slots)
            both, class_of = _distinct(class_of * len(numbers) + number_of)
            asked = asked[both // max(len(numbers), 1)]
            most = [int(numbers[pair % len(numbers)]) or None for pair in both.tolist()]
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
                    f"the default requirement is for {count} users: say how many may come, 1 or "
                    "more, or leave the number out"
                )
            same = list(zip(classes, most, strict=True))
            if (requirement, None) not in same:
                same.append((requirement, None))
                classes.append(requirement)
                most.append(None)
                sizes = np.append(sizes, 0)
            default_class = same.index((requirement, None))
            sizes[default_class] += count
        if not classes:
            raise ConfigurationError(
                "the table of requirements is empty and there is no default requirement: "
                "nobody could be counted"
            )
        check_shares(classes)
        known = Requirements(classes)
        limits = tuple(most) if any(most) else ()
        unsaid = default is not None and default[1] is None
        return cls(
            users, class_of.astype(np.int32), known, sizes, default_class, limits, unsaid, reload
        )

    @classmethod
    def of(
        cls,
        requirements: Mapping[str, Requirement | tuple[int, float]] | Iterable[Any] = (),
        *,
        default: tuple[Requirement, int | None] | None = None,
    ) -> Registry:
        """Make a small registry from a mapping user -> Requirement or (window, epsilon)."""
        pairs = requirements.items() if isinstance(requirements, Mapping) else requirements
        users, wanted = tuple(zip(*pairs, strict=True)) or ((), ())
        asked = [as_requirement(requirement) for requirement in wanted]
        return cls.build(
            users,
            np.array([r.window for r in asked], np.int64),
            np.array([r.epsilon for r in asked], np.float64),
            default=default,
        )

    @property
    def guessed(self) -> int | None:
        """The class whose size is only a guess, since users outside the table count; or None.

        A size of 0 is none: mechanisms then take more users than there are people.
        """
        k = self.default_class
        return k if k is not None and self.sizes[k] else None

    @property
    def default(self) -> tuple[Requirement, int | None] | None:
        """The requirement of users outside the table, and what was said of their number."""
        k = self.default_class
        if k is None:
            return None
        members = int((self.class_of == k).sum())
        return self.classes[k], None if self.unsaid else int(self.sizes[k]) - members

    def up_to(self, longest: int) -> Registry:
        """The same users, whose classes differ by epsilon alone, all over the longest window.

        Classes ascend by epsilon. Raises ConfigurationError where a window is longer.
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
        """`class_of`, and last the class of users outside the table (0 if they are rejected)."""
        return np.append(self.class_of, np.int32(self.default_class or 0))

    def named(self, k: int) -> str:
        """Words for the users of a class: one of them, and what they ask for."""
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
        """Digest of the whole table, ids included: two loads of one table agree on it.

        So do texts in any Arrow type, in any chunks, or in a list. The order of the users counts:
        a user's place in the table decides which of the user's events are kept.
        """
        digest = hashlib.blake2b(digest_size=32)
        limits = (self.max_slots,) if self.max_slots else ()
        for fact in (self.classes, self.default_class, self.sizes, len(self.users), *limits):
            digest.update(encoded(fact))
        digest.update(np.ascontiguousarray(self.class_of, "<i4").data)
        _absorb(digest, self.users)
        return digest.hexdigest()

    def identity(self) -> bytes:
        """See `mechanisms/core/identity.py`."""
        return encoded("registry") + encoded(self.fingerprint)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the way to load it again, when there is one."""
        if self.reload is not None:
            return _reload_registry, (self.reload, self.fingerprint)
        facts = (self.classes, self.sizes, self.default_class, self.max_slots, self.unsaid)
        return Registry, (self.users, self.class_of, *facts)


def _limits(max_slots: Any, users: int) -> npt.NDArray[np.int64]:
    """Limits of presence as whole numbers, 0 where nothing is said; one for each user."""
    given = np.asarray(max_slots)
    if given.shape != (users,) or not np.issubdtype(given.dtype, np.integer) or (given < 0).any():
        raise ConfigurationError(
            f"max_slots is of {given.dtype}, shape {given.shape}, for {users:,} users: give each a "
            "whole number of slots, or 0 where there is no limit"
        )
    return given.astype(np.int64)


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
