"""Which texts are one key, and which keys may be published: public rules, applied before counting.

A rule depends on one text only. So the events of a user become other events of the same user, and
the guarantee is the same.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

from streamveil.mechanisms.core.arguments import is_true
from streamveil.mechanisms.core.boolean_text import one_spelling
from streamveil.mechanisms.core.identity import Form, Identified
from streamveil.mechanisms.core.parameter_checks import whole
from streamveil.mechanisms.core.records import ConfigurationError

MOST_CHARACTERS = 200
"""The default of `longest`."""
_MOST_SHRINKING = 16
"""How many characters of a text become one character of its key, at most: 4 where Unicode NFC
composes them, and 4 for each of these where it composes them again after their case was folded."""


@dataclass(frozen=True)
class KeyRules(Identified):
    """How texts become keys.

    Raises:
        ConfigurationError: if a key is on both lists, or if a list has a text that is not a key
            under these rules.

    Example:
        >>> KeyRules(fold_case=True).key("  Café ")
        'café'
    """

    IDENTITY = Form("key rules", ("allow", "deny", "fold_case", "longest"))

    allow: tuple[str, ...] = ()
    """Keys that are public from the start. They are always listed."""
    deny: tuple[str, ...] = ()
    """Keys that are never published. Their events are counted as unlisted."""
    fold_case: bool = False
    """Whether upper and lower case are the same."""
    longest: int = MOST_CHARACTERS
    """Characters of the longest key. A longer text is never published."""

    def __post_init__(self) -> None:
        """Normalise both lists, and check all fields."""
        whole("longest", self.longest)
        object.__setattr__(self, "fold_case", is_true(self.fold_case, "fold_case"))
        for name in ("allow", "deny"):
            object.__setattr__(self, name, self._listed(name, getattr(self, name)))
        both = set(self.allow) & set(self.deny)
        if both:
            raise ConfigurationError(
                f"the key {min(both)!r} is on the lists allow and deny: take it off one of them"
            )

    def _listed(self, name: str, texts: Iterable[str]) -> tuple[str, ...]:
        if isinstance(texts, str):
            raise ConfigurationError(f"{name} is the text {texts!r}: give a list of keys")
        found = dict.fromkeys((self.key(text), text) for text in texts)
        for key, text in found:
            if key is None:
                raise ConfigurationError(
                    f"{name} has {text!r}, which is empty or longer than {self.longest} "
                    "characters: no key is"
                )
        return tuple(dict.fromkeys(key for key, _ in found if key is not None))

    def key(self, text: str) -> str | None:
        """The key of a text, or None if the text is empty or too long to be a key.

        The text is normalised to Unicode NFC and its ends are trimmed. All spellings of a boolean,
        such as `TRUE`, are one key, as they are in lists of keys. A whole number is its decimal
        text, so `01` and `1` are different keys. A text that is far too long is not normalised,
        because the time for this may grow with the square of its length. The text of one user
        could then stop a run.
        """
        trimmed = text.strip()
        if len(trimmed) > _MOST_SHRINKING * self.longest:
            return None
        found = self._normalised(trimmed)
        return one_spelling(found) if 0 < len(found) <= self.longest else None

    def prefix(self, text: str) -> str:
        """The beginning of keys whose texts begin with a text. Blanks at its end are kept."""
        return self._normalised(text.lstrip())

    def _normalised(self, text: str) -> str:
        found = unicodedata.normalize("NFC", text)
        return unicodedata.normalize("NFC", found.casefold()) if self.fold_case else found
