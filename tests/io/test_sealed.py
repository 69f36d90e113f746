"""Sealed records as files: which bytes they are, and that they are made but once."""

import hashlib
import json

import pytest

from streamveil.io import sealed
from streamveil.io.sealed import SealedRecord

RECORDS = [
    {"version": 2},
    {
        "version": 2,
        "inputs": {'/in/ü "a".csv': {"size": 3, "ends": None}},
        "files": {},
        "later": [],
    },
    {"version": 2, "last": {"a": [1, 2.5, True]}},
]


@pytest.mark.parametrize("record", RECORDS)
def test_digest_and_seal_come_after_the_record(record, tmp_path):
    made = SealedRecord.of(bytes(32), b"test", record)
    plain = json.dumps(record, indent=1) + "\n"
    digest = hashlib.blake2b(plain.encode(), digest_size=32).hexdigest()
    whole = {**record, "digest": digest, "seal": made.seal}
    assert made.text == json.dumps(whole, indent=1) + "\n"
    (tmp_path / "file").write_text(made.text)
    read = SealedRecord.read(tmp_path / "file", 2)
    assert read == made
    assert read.is_sealed_by(bytes(32), b"test")


def test_a_manifest_of_many_inputs_is_written_as_text_twice_at_most(monkeypatch):
    """Once for its seal, once for its file: a pass compares it with what is on the disk again and
    again."""
    texts = []
    dumps = sealed._text
    monkeypatch.setattr(sealed, "_text", lambda record: texts.append(record) or dumps(record))
    made = SealedRecord.of(bytes(32), b"test", RECORDS[1])
    for _ in range(5):
        assert made.text.endswith("}\n")
    assert len(texts) == 2
