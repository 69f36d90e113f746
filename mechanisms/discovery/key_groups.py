"""Public groups of discovered keys. The text of a key decides which group the key belongs to.

The group of a key depends on its text only, and names of groups are public and are never taken from
events. So groups do not change the guarantee, for the same reason as in `key_rules.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from streamveil.mechanisms.core.identity import Form, Identified
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.discovery.key_rules import KeyRules

ANY = "*"
"""At the end of a member of a group: all keys that begin with the text before it."""


@dataclass(frozen=True)
class KeyGroups(Identified):
    """Groups of keys, each with a bin for those of its keys that are not listed.

    Example:
        >>> groups = KeyGroups.of({"unlisted: tea": ["tea", "tea *"]}, KeyRules())
        >>> [groups.place(key) for key in ("tea", "tea with milk", "teapot")]
        [0, 0, 1]
    """

    IDENTITY = Form("key groups", ("bins", "members"))

    bins: tuple[str, ...] = ()
    """The name of the bin of each group."""
    members: tuple[tuple[str, ...], ...] = ()
    """The normalised members of each group: keys, or beginnings of keys, followed by `*`."""

    @cached_property
    def _keys(self) -> Mapping[str, int]:
        """The group of each member that is a key."""
        return {text: group for text, group in self._members() if not text.endswith(ANY)}

    @cached_property
    def _beginnings(self) -> Mapping[str, int]:
        """The group of each beginning of keys."""
        members = self._members()
        return {text.removesuffix(ANY): group for text, group in members if text.endswith(ANY)}

    @cached_property
    def _lengths(self) -> tuple[int, ...]:
        """Of all beginnings, each once, the longest first."""
        return tuple(sorted(set(map(len, self._beginnings)), reverse=True))

    def _members(self) -> Iterator[tuple[str, int]]:
        return ((text, group) for group, some in enumerate(self.members) for text in some)

    @classmethod
    def of(cls, groups: Mapping[str, Sequence[str]], rules: KeyRules) -> KeyGroups:
        """The groups with normalised members.

        Args:
            groups: the members of each group, by the name of its bin.
            rules: how texts become keys.

        Raises:
            ConfigurationError: if a member is no key, or is in two groups.
        """
        found = set[str]()
        for text in itertools.chain(*groups.values()):
            member = _member(text, rules)
            if member in found:
                raise ConfigurationError(f"levels: {member!r} is listed twice: list it once")
            found.add(member)
        members = (tuple(_member(text, rules) for text in some) for some in groups.values())
        return cls(tuple(groups), tuple(members))

    def place(self, key: str) -> int:
        """The number of the group of a key, or the number of groups if the key is in none.

        A key that is a member itself is in the group of this member. Of several beginnings, the
        longest counts.
        """
        found = self._keys.get(key)
        for length in self._lengths:
            if found is not None:
                break
            found = self._beginnings.get(key[:length])
        return len(self.bins) if found is None else found


NO_GROUPS = KeyGroups()
"""All unlisted keys are counted together."""


def _member(text: str, rules: KeyRules) -> str:
    """The normalised form of a member. Raises ConfigurationError if it is no key."""
    if text.endswith(ANY):
        beginning = rules.prefix(text.removesuffix(ANY))
        if not beginning:
            raise ConfigurationError(
                f"levels: {text!r} stands for all keys: write the beginning of keys before the "
                f"{ANY!r}, or levels: [all] for a total"
            )
        return beginning + ANY
    key = rules.key(text)
    if key is None:
        raise ConfigurationError(
            f"levels: {text!r} is empty or longer than {rules.longest} characters: no key is"
        )
    return key
