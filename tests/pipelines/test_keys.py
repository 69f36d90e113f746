"""The noise key: the same key gives the same release, and nobody ever sees it."""

import logging
import os
import pickle
import secrets
from pathlib import Path

import pytest

from streamveil.mechanisms.records import ConfigurationError
from streamveil.pipelines.keys import ENVIRONMENT, KeyFile, KeyFromEnvironment, noise_key

SECRET = "c0ffee" * 10 + "beef"


@pytest.fixture
def noisy(job):
    """A job whose releases are mostly noise."""
    job.requirements({f"u{u}": (1, 1.0) for u in range(200)})
    job.lines(*(f"u{u},{'ABC'[u % 3]},2024-01-0{d}" for u in range(200) for d in (1, 2, 3)))
    return job


@pytest.fixture
def binary(tmp_path):
    """The key that is read from a file of these bytes."""

    def read(content):
        path = tmp_path / "binary"
        path.write_bytes(content)
        path.chmod(0o600)
        return KeyFile(str(path))()

    return read


def released(job, name, **flags):
    job.done(output=job.path(name), **flags)
    return Path(job.path(name)).read_bytes()


def test_same_key_same_bytes(noisy):
    key = noisy.key(SECRET)
    first = released(noisy, "a.jsonl", noise_key_file=key)
    assert released(noisy, "b.jsonl", noise_key_file=key) == first
    # White space around the key does not count: editors leave it.
    assert released(noisy, "c.jsonl", noise_key_file=noisy.key(f"{SECRET}\n", "key2")) == first
    assert released(noisy, "d.jsonl", noise_key_file=noisy.key("ab" * 32, "key3")) != first


def test_no_key_fresh_noise(noisy):
    assert released(noisy, "a.jsonl") != released(noisy, "b.jsonl")


def test_key_of_the_environment(noisy, monkeypatch):
    of_file = released(noisy, "a.jsonl", noise_key_file=noisy.key(SECRET))
    monkeypatch.setenv(ENVIRONMENT, SECRET)
    assert released(noisy, "b.jsonl") == of_file


def test_other_events_other_noise(noisy):
    """Were the noise the same, the difference of two releases would be the difference of data."""
    key = noisy.key(SECRET)
    flags = {"noise_key_file": key, "mechanism": "pbd"}
    released(noisy, "a.jsonl", **flags)
    noisy.lines(*(f"u{u},{'ABC'[u % 3]},2024-01-01" for u in range(199)))
    released(noisy, "b.jsonl", **flags)
    one, other = noisy.rows("a.jsonl")[0], noisy.rows("b.jsonl")[0]
    assert one["status"] == other["status"] == "published"
    gaps = [abs(x - y) for x, y in zip(one["counts"], other["counts"], strict=True)]
    assert gaps != [0, 1, 0]
    assert max(gaps) > 1


def test_key_is_never_shown(noisy, caplog):
    key = noisy.key(SECRET)
    flags = {"noise_key_file": key, "ledger": noisy.path("l.csv"), "rejected": noisy.path("r.csv")}
    with caplog.at_level(logging.DEBUG):
        outcome = noisy.done(**flags)
        failed = noisy(output=noisy.path("no.txt"), **flags)
        late = noisy("--value_column=time", noise_key_file=key, output=noisy.path("x.jsonl"))
    assert (failed.code, late.code) == (2, 2)
    shown = [caplog.text]
    for each in (outcome, failed, late):
        shown += [each.out, each.err, each.log]
    digest = KeyFile(key)()
    for text in shown:
        assert SECRET not in text
        assert digest.hex() not in text
        assert repr(digest)[2:-1] not in text
    for path, content in noisy.files().items():
        assert SECRET.encode() not in content or path == key
        assert digest not in content


def test_key_does_not_travel_with_the_pipeline(job):
    key = noise_key(job.key(SECRET))
    assert SECRET.encode() not in pickle.dumps(key)
    assert SECRET not in repr(key)
    assert key() not in pickle.dumps(key)
    assert pickle.loads(pickle.dumps(key))() == key()
    assert len(key()) == 32


def test_no_key():
    assert noise_key(None) is None


def test_long_keys_count_whole(job):
    long = secrets.token_hex(64)
    one, other = KeyFile(job.key(long)), KeyFile(job.key(f"{long[:-1]}x", "key2"))
    assert one() != other()


# White space is a byte like any other where the key is no text: one random key in 25 has some at an
# end, and 32 bytes are enough.
@pytest.mark.parametrize("edge", [b" ", b"\t", b"\n", b"\r", b"\x0b", b"\x0c"])
def test_binary_keys_keep_their_ends(binary, edge):
    core = bytes(range(128, 159))
    keys = {binary(edge + core), binary(core + edge), binary(core + b"\x80")}
    assert len(keys) == 3


# One line end that an editor put after a whole key does not count.
def test_one_line_end_after_a_binary_key_does_not_count(binary):
    core = bytes(range(128, 160))
    assert binary(core) == binary(core + b"\n") == binary(core + b"\r\n")
    others = {binary(core + more) for more in (b"", b" ", b"\r", b"\n\n", b"\x00")}
    assert len(others) == 5
    # 31 bytes and a line end are 32 bytes.
    assert binary(core[:31] + b"\n") != binary(core[:31] + b"\r\n") == binary(core[:31] + b"\r")


@pytest.mark.parametrize("text", [SECRET, SECRET.upper(), "aB3_-+/=" * 6])
def test_white_space_around_a_text_key_does_not_count(binary, text):
    key = text.encode()
    for around in (b"%s\n", b"%s\r\n", b" %s ", b"\n\t%s\n\n"):
        assert binary(around % key) == binary(key)


def test_binary_key_of_the_environment(monkeypatch, binary):
    core = bytes(range(128, 160))
    monkeypatch.setenv(ENVIRONMENT, os.fsdecode(core))
    assert KeyFromEnvironment()() == binary(core)


@pytest.mark.parametrize(
    ("content", "length"), [("", 0), ("abc", 3), ("a" * 31, 31), (" " * 64, 0)]
)
def test_short_key(job, content, length):
    path = job.key(content)
    outcome = job.refused(path, f"{length} bytes", "32 or more", "secrets", noise_key_file=path)
    assert not content.strip() or f"'{content}'" not in outcome.message


def test_missing_key(job):
    job.refused(job.path("nokey"), "cannot be read", "chmod", noise_key_file=job.path("nokey"))


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602])
def test_key_open_to_everybody(job, mode):
    path = job.key(SECRET)
    Path(path).chmod(mode)
    job.refused(path, "every user", f"{mode:o}", "chmod 600", "new key", noise_key_file=path)


def test_key_of_the_environment_is_checked(job, monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, "short")
    outcome = job.refused(ENVIRONMENT, "5 bytes", "32 or more")
    assert "short " not in outcome.message


def test_file_goes_before_the_environment(job, monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, "short")
    path = job.key(SECRET)
    assert noise_key(path) == KeyFile(path)


def test_environment_without_the_key(monkeypatch):
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    with pytest.raises(ConfigurationError, match=ENVIRONMENT):
        KeyFromEnvironment()()
