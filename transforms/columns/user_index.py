"""User ids as positions in the registry, or as digests of those who are not in it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.user_table import Registry
from streamveil.transforms.columns.text import TextIndex, as_text, keyed_digest

NULL_USER = "null user"

Integers = npt.NDArray[np.int64]


def user_texts(array: pa.Array, name: str) -> pa.Array:
    """User ids as text. Raises ConfigurationError for neither text nor whole numbers."""
    text = as_text(array)
    if text is None:
        raise ConfigurationError(
            f"column {name!r} holds {array.type}; user ids must be text or whole numbers: "
            "convert the column"
        )
    return text


class UserIndex:
    """Finds users of a registry by their ids."""

    def __init__(self, registry: Registry, stranger_key: bytes) -> None:
        """Index the registry; the key is the secret of the digests, 32 bytes."""
        self._members = TextIndex(registry.users)
        self._key = stranger_key

    def find(self, array: pa.Array, name: str) -> tuple[Integers, npt.NDArray[np.uint64], Integers]:
        """Registry position of each row's user or -1, digests of those, and rows without user.

        Raises ConfigurationError for a column that is neither text nor whole numbers.
        """
        text = user_texts(array, name)
        members = self._members.find(text)
        unknown = np.flatnonzero(members < 0)
        if not len(unknown):
            return members, np.zeros((0, 2), np.uint64), unknown
        names = text.take(pa.array(unknown))
        if pa.types.is_dictionary(names.type):
            names = names.dictionary_decode()
        names = pc.fill_null(names, "")
        nameless = unknown[pc.equal(names, "").to_numpy(zero_copy_only=False)]
        return members, keyed_digest(names, self._key), nameless
