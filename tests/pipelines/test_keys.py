"""The noise key: the same key gives the same release, and nobody ever sees it."""

import base64
import bz2
import dataclasses
import errno
import logging
import os
import pickle
import secrets
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2

from streamveil.mechanisms.core.records import ConfigurationError, MachineFault, Slots
from streamveil.pipelines.commands.release import job_of
from streamveil.pipelines.jobs.graphs import build
from streamveil.pipelines.options import noise_keys
from streamveil.pipelines.options.noise_keys import (
    ENVIRONMENT,
    KeyFile,
    KeyFromEnvironment,
    noise_key,
)
from tests.pipelines.secret_manager_server import VERSION

SECRET = "c0ffee" * 10 + "beef"


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
    first = released(noisy, "a.jsonl", noise_key=key)
    assert released(noisy, "b.jsonl", noise_key=key) == first
    # White space around the key does not count: editors leave it.
    assert released(noisy, "c.jsonl", noise_key=noisy.key(f"{SECRET}\n", "key2")) == first
    assert released(noisy, "d.jsonl", noise_key=noisy.key("ab" * 32, "key3")) != first


def test_no_key_fresh_noise(noisy):
    assert released(noisy, "a.jsonl") != released(noisy, "b.jsonl")


def test_key_of_the_environment(noisy, monkeypatch):
    of_file = released(noisy, "a.jsonl", noise_key=noisy.key(SECRET))
    monkeypatch.setenv(ENVIRONMENT, SECRET)
    assert released(noisy, "b.jsonl") == of_file


def test_other_events_other_noise(noisy):
    """Were the noise the same, the difference of two releases would be the difference of data."""
    key = noisy.key(SECRET)
    flags = {"noise_key": key, "mechanism": "pbd"}
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
    flags = {"noise_key": key, "ledger": noisy.path("l.csv"), "rejected": noisy.path("r.csv")}
    with caplog.at_level(logging.DEBUG):
        outcome = noisy.done(**flags)
        failed = noisy(output=noisy.path("no.txt"), **flags)
        late = noisy("--value_column=time", noise_key=key, output=noisy.path("x.jsonl"))
    assert (failed.code, late.code) == (2, 3)
    shown = [caplog.text]
    for each in (outcome, failed, late):
        shown += [each.out, each.err, each.log]
    digest = noise_key(key)()
    for text in shown:
        assert SECRET not in text
        assert digest.hex() not in text
        assert repr(digest)[2:-1] not in text
    for path, content in noisy.files().items():
        assert SECRET.encode() not in content or f"file:{path}" == key
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


def test_a_place_that_is_empty_is_not_fresh_randomness():
    """A variable of the shell that is not set, say: the next run would release something else."""
    with pytest.raises(ConfigurationError, match=r"--noise_key is empty: .* or leave it out"):
        noise_key("")


def test_long_keys_count_whole(job):
    long = secrets.token_hex(64)
    one, other = noise_key(job.key(long)), noise_key(job.key(f"{long[:-1]}x", "key2"))
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


def test_32_bytes_are_the_key_wherever_they_come_from(binary):
    """Else a file and the same bytes given to a transform would release one stream twice."""
    core = bytes(range(128, 160))
    assert binary(core) == noise_key(core)() == core
    longer = core + b"\x00"
    assert binary(longer) == noise_key(longer)() != longer[:32]
    assert len(binary(longer)) == 32


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
    place = job.key(content)
    path = place.removeprefix("file:")
    outcome = job.refused(path, f"{length} bytes", "32 or more", "secrets", noise_key=place)
    assert not content.strip() or f"'{content}'" not in outcome.message


def test_missing_key(job):
    path = job.path("nokey")
    job.refused(path, "cannot be read", "chmod", noise_key=f"file:{path}")


def test_a_disk_that_fails_is_not_taken_for_a_missing_key(job, monkeypatch):
    place = job.key(SECRET)

    def fail(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    monkeypatch.setattr(noise_keys, "open_to_read", fail)
    with pytest.raises(MachineFault, match="could not be read: Input/output error: look after"):
        noise_key(place)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602])
def test_key_open_to_everybody(job, mode):
    place = job.key(SECRET)
    path = place.removeprefix("file:")
    Path(path).chmod(mode)
    job.refused(path, "every user", f"{mode:o}", "chmod 600", "new key", noise_key=place)


def test_key_of_the_environment_is_checked(job, monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, "short")
    outcome = job.refused(ENVIRONMENT, "5 bytes", "32 or more")
    assert "short " not in outcome.message


def test_file_goes_before_the_environment(job, monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, "short")
    place = job.key(SECRET)
    assert noise_key(place) == KeyFile(place.removeprefix("file:"))


def test_environment_without_the_key(monkeypatch):
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    with pytest.raises(ConfigurationError, match=ENVIRONMENT):
        KeyFromEnvironment()()


# ---- places -------------------------------------------------------------------------------------


def test_all_places_give_the_same_key(job, monkeypatch, secret_manager):
    monkeypatch.setenv("ANOTHER_NAME", SECRET)
    places = (job.key(SECRET), "env:ANOTHER_NAME", f"secret:{VERSION}")
    assert len({noise_key(place)() for place in places}) == 1


# A worker that starts after a rotation would get another key than the others have.
@pytest.mark.parametrize("version", ["latest", "an-alias", "0", "٣"])
def test_version_of_a_secret_is_a_number(job, version):
    name = VERSION.replace("3", version)
    job.refused(name, "workers", VERSION.replace("3", "1"), noise_key=f"secret:{name}")


@pytest.mark.parametrize(
    "name", ["noise", "projects/p/secrets/s", "projects//secrets/s/versions/1"]
)
def test_name_of_a_secret_is_whole(job, name):
    job.refused(name, "secret:projects/P/secrets/S/versions/N", noise_key=f"secret:{name}")


def test_a_secret_of_a_region_is_refused(job):
    name = "projects/p/locations/europe-west4/secrets/noise/versions/1"
    job.refused(name, "of one region, which cannot be read", noise_key=f"secret:{name}")


# The command line is no place for a key, and an error must not spread it further.
@pytest.mark.parametrize("text", [SECRET, f"key:{SECRET}", "file:", ":", f"env:HOME,{SECRET}@7"])
def test_key_in_place_of_its_place(job, monkeypatch, text):
    monkeypatch.setenv("HOME", SECRET)
    outcome = job.refused("--noise_key", "not the key", "file:PATH", noise_key=text)
    assert SECRET not in outcome.message + outcome.log


def functions_of(pipeline):
    """What Beam sends to workers of the DoFns of a pipeline, unpacked."""
    transforms = pipeline.to_runner_api().components.transforms.values()
    pardos = [t.spec.payload for t in transforms if t.spec.urn == common_urns.primitives.PAR_DO.urn]
    packed = [beam_runner_api_pb2.ParDoPayload.FromString(one).do_fn.payload for one in pardos]
    return b"".join(bz2.decompress(base64.b64decode(one)) for one in packed)


def test_pipeline_holds_the_place_alone(noisy, monkeypatch, secret_manager):
    place = f"{noisy.key(SECRET)},env:A_NAME_2@19800,secret:{VERSION}@19900"
    monkeypatch.setenv("A_NAME_2", SECRET[::-1])
    secret_manager.content = SECRET[5:].encode()
    pipeline = beam.Pipeline()
    build(job_of("release", *noisy.asked("--runner=FnApiRunner", noise_key=place)), pipeline)
    sent = functions_of(pipeline)
    for name in (noisy.path("key"), "A_NAME_2", VERSION):
        assert name.encode() in sent
    keys = noise_key(place)()
    for secret in (keys.first, *(key for _, key in keys.later)):
        assert secret not in sent
        assert secret.hex().encode() not in sent
    for secret in (SECRET, SECRET[::-1], SECRET[5:]):
        assert secret.encode() not in sent


def test_the_test_above_would_see_a_key(noisy):
    job = job_of("release", *noisy.asked("--runner=FnApiRunner"))
    pipeline = beam.Pipeline()
    plan = dataclasses.replace(job.plan, noise_key=SECRET[:32].encode())
    build(dataclasses.replace(job, plan=plan), pipeline)
    assert SECRET[:32].encode() in functions_of(pipeline)


# ---- keys that take each other's place ----------------------------------------------------------

DAYS = Slots.of("1d")


@pytest.mark.parametrize(
    ("text", "slot"),
    [("5", 5), ("-3", -3), ("1970-01-06", 5), ("1970-01-06T00:00:01Z", 6), ("1970-01-05T23:00", 5)],
)
def test_from_when_on_a_key_is(job, text, slot):
    place = f"{job.key(SECRET)},{job.key(SECRET[::-1], 'b')}@{text}"
    keys = noise_key(place, DAYS)()
    assert keys.first == noise_key(job.key(SECRET))()
    assert keys.later == ((slot, noise_key(job.key(SECRET[::-1], "b"))()),)


def test_rotated_keys_are_picklable_and_say_where_they_are(job):
    key = noise_key(f"{job.key(SECRET)},{job.key(SECRET[::-1], 'b')}@7", DAYS)
    assert job.path("b") in repr(key)
    assert "@" not in repr(key())
    assert SECRET not in repr(key) + repr(key())
    assert pickle.loads(pickle.dumps(key))() == key()


@pytest.mark.parametrize(
    ("later", "words"),
    [
        ("{b}", ["From when on", "@TIME"]),
        ("{b}@", ["ISO 8601"]),
        ("{b}@soon", ["'soon'", "ISO 8601", "slot"]),
        ("{a}@5", ["two are the same", "new one"]),
        ("{b}@5,{c}@5", ["[5, 5]", "by slot"]),
        ("{b}@5,{c}@4", ["[5, 4]", "by slot"]),
        ("{b}@5,c@6", ["not the key but its place"]),
    ],
)
def test_keys_that_cannot_take_each_others_place(job, later, words):
    places = {"b": job.key(SECRET[::-1], "b"), "c": job.key("c3" * 32, "c"), "a": job.key(SECRET)}
    job.refused(*words, noise_key=f"{places['a']},{later.format(**places)}")


def test_slots_before_the_new_key_stay_and_all_later_ones_change(noisy):
    old, new = noisy.key(SECRET), noisy.key(SECRET[::-1], "new")
    noisy.done(output=noisy.path("old.jsonl"), noise_key=old)
    noisy.done(output=noisy.path("new.jsonl"), noise_key=f"{old},{new}@2024-01-02")
    before, after = noisy.rows("old.jsonl"), noisy.rows("new.jsonl")
    assert before[0] == after[0]
    assert all(
        one["counts"] != other["counts"] for one, other in zip(before[1:], after[1:], strict=True)
    )
