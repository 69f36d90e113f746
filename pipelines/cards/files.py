"""The files of a card: its own, and the digests of those that it is about.

The digest of a family of files, one from each pass, is a chain: that of the first file is its
SHA-256, and that of the first n is the SHA-256 of the one before and of file n's. So a card stays
small however many passes there were.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from streamveil.io import filesystems
from streamveil.io.files import open_file, reading
from streamveil.io.tables import write_text
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.pipelines.options.noise_keys import CARD_ENVIRONMENT, card_key

Record = dict[str, Any]

SUFFIX = ".card.json"
IN_FOLDER = "card.json"
SIGNATURE = "signature"
"""The field of a card with its signature."""
PUBLIC = ("releases", "revisions", "ledger")
"""What may be published of what a run writes, and answers; dead letters are raw."""

EDITED = (LookupError, TypeError, AttributeError, OverflowError, ValueError)
"""What whoever reads a card that was edited may raise."""

_ONE_READ = 1 << 20  # bytes


def card_beside(output: str) -> str:
    """Where the card of a file of releases is."""
    return f"{output}{SUFFIX}"


def card_in(folder: str) -> str:
    """Where the card of a folder of answers is."""
    return filesystems.join(folder, IN_FOLDER)


def digest_of(path: str) -> str:
    """SHA-256 of a file, in hexadecimal. Raises ConfigurationError where it cannot be read."""
    state = hashlib.sha256()
    with reading(path), open_file(path) as file:
        while block := file.read(_ONE_READ):
            state.update(block)
    return state.hexdigest()


def chained(before: str | None, digest: str) -> str:
    """The digest of a family of files with one more."""
    if before is None:
        return digest
    return hashlib.sha256(bytes.fromhex(before) + bytes.fromhex(digest)).hexdigest()


def name_of(path: str) -> str:
    """The name of a file without its folder, which is nobody's business."""
    return filesystems.split(path)[1]


def file_of(path: str) -> dict[str, str]:
    """What a card says of a file."""
    return {"name": name_of(path), "sha256": digest_of(path)}


def numbered(name: str, number: int) -> str:
    """The name of the file that a pass made of a family."""
    root, extension = os.path.splitext(name)
    return f"{root}-{number:08d}{extension}"


def is_public(kind: str) -> bool:
    """Whether what a run writes under a name may be published."""
    return kind in PUBLIC or re.match("answers-", kind) is not None


def card_text(card: Mapping[str, Any]) -> str:
    """The card as it is written."""
    return json.dumps(card, indent=2, ensure_ascii=False) + "\n"


def write_card(path: str, card: Mapping[str, Any]) -> None:
    """Write a card, whole, in place of one that is there: signed where a key is given.

    Raises OSError, and ConfigurationError for a key that is none.
    """
    key = card_key()
    signed = card if key is None else {**card, SIGNATURE: signature_of(card, key)}
    write_text(path, card_text(signed))


def signature_of(card: Mapping[str, Any], key: bytes) -> str:
    """HMAC-SHA256 of a card without its signature, whatever the order of its fields."""
    text = json.dumps(
        {name: part for name, part in card.items() if name != SIGNATURE}, sort_keys=True
    )
    return hmac.digest(key, text.encode(), "sha256").hex()


def signature_faults(path: str) -> Iterator[str]:
    """What is wrong with the signature of a card, where the key of cards is given."""
    key = card_key()
    if key is None:
        return
    card = _read(path)
    found = card.get(SIGNATURE)
    if found is None:
        yield (
            f"{path} is not signed, and {CARD_ENVIRONMENT} is given: name the card of a run that "
            "had it"
        )
    elif not hmac.compare_digest(str(found).encode(), signature_of(card, key).encode()):
        yield (
            f"{path} was changed since it was signed, or signed with another key than that of "
            f"{CARD_ENVIRONMENT}: restore the card that the run wrote"
        )


def read_card(path: str) -> dict[str, Any]:
    """The card of a file, without its signature.

    Raises ConfigurationError for a file that cannot be read, or is none.
    """
    card = _read(path)
    card.pop(SIGNATURE, None)
    return card


def _read(path: str) -> dict[str, Any]:
    with reading(path), open_file(path) as file:
        data = file.read()
    try:
        card = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"{path} is not a card, for it is no JSON ({error}): name the file that a release "
            f"wrote next to its output, such as releases.csv{SUFFIX}"
        ) from None
    if not isinstance(card, dict) or "format" not in card:
        raise ConfigurationError(
            f"{path} is not a card: name the file that a release wrote next to its output, such as "
            f"releases.csv{SUFFIX}"
        )
    return card
