"""Events and changes of requirements from a real Kafka broker, releases back to it, on Prism."""

import datetime as dt
import json
import re
import secrets
import shlex
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.clusters.fault_proxy import Fault
from tests.io.framed import FIELD, add, file_of, frame, message_class
from tests.spending import spent

pytestmark = [pytest.mark.kafka, pytest.mark.prism]

SHAPE = re.MULTILINE | re.DOTALL
START = dt.datetime(2024, 5, 1, tzinfo=dt.timezone.utc)
HOUR = dt.timedelta(hours=1)
SLOTS = 72
USERS = 40
PLACES = ("cafe", "park", "pier")
ALIKE = 5, 1.0  # window and epsilon of all users in real time: a release costs all the same
SECONDS = 2  # length of slots in real time

BAD = {
    b"no": "unparsable",
    None: "unparsable",
    b"\xff": "not UTF-8",
    b'["ann"]': "unparsable",
    b'{"user": {"id": 1}, "place": "cafe", "time": "2024-05-01T00:10:00Z"}': "unparsable",
    b'{"user": "u1", "place": 7, "time": "2024-05-01T00:10:00Z"}': "outside the domain",
    b'{"user": "u1", "place": "cafe", "time": "noon"}': "unparsable time",
    b'{"user": "u1", "place": "cafe"}': "null time",
}
EARLIEST = "auto.offset.reset=earliest"
GIVEN_TIMES = "timestamp_policy=CreateTime"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "kafka.md"


def flags(kafka, **changed):
    """Flags of the command in the page, some changed; those that are None are left out.

    Which event counts of a user who has several in a slot depends on how often each was delivered,
    unless events in different bins come before repeats. Rows say what a slot cost.
    """
    (text,) = re.findall(r"^```sh kafka\nstreamveil release (.+?)^```", PAGE.read_text(), SHAPE)
    text = text.replace("broker:9092", kafka.broker).replace("localhost:8097", kafka.expansion)
    text = text.replace(EARLIEST, f"{EARLIEST}&{GIVEN_TIMES}")  # these events are long past
    words = shlex.split(text.replace("\\\n", " "))
    found = dict(word.removeprefix("--").split("=", 1) for word in words)
    found |= {"keep": "distinct", "layout": "rows", **changed}
    return [f"--{name}={value}" for name, value in found.items() if value is not None]


def millis(time):
    return round(time.timestamp() * 1000)


def events():
    """(time, record) of users who come and go; some are in two places in one slot."""
    for slot in range(SLOTS):
        for user in range(USERS):
            for visit in range((slot + user) % 4 % 3):
                time = START + slot * HOUR + (user + 1) * dt.timedelta(seconds=30 + visit)
                place = PLACES[(user + slot // 12 + visit) % 3]
                yield time, {"user": f"u{user}", "place": place, "time": time.isoformat()}


def change(user, slot, window=None, epsilon=None):
    asked = {
        "window_backward": window,
        "epsilon_backward": epsilon,
        "window_forward": window,
        "epsilon_forward": epsilon,
    }
    return {"user": f"u{user}", "time": (START + slot * HOUR).isoformat(), **asked}


CHANGES = [change(0, 5, 4, 0.5), change(1, 20, 8, 2.0), change(2, 30), change(USERS, 40, 6, 1.0)]


def as_json(record):
    return json.dumps(record).encode()


@pytest.fixture(scope="module")
def folder(kafka):
    """Where jobs find the tables of users and the noise key."""
    table = ["user,window,epsilon", *(f"u{user},{3 + user % 4},1.0" for user in range(USERS - 5))]
    (kafka.work / "users.csv").write_text("\n".join(table))
    alike = "\n".join(f"u{user},{ALIKE[0]},{ALIKE[1]}" for user in range(USERS - 5))
    (kafka.work / "alike.csv").write_text(f"{table[0]}\n{alike}")
    key = kafka.work / "noise.key"
    key.touch(0o600)
    key.write_text(secrets.token_hex(32))
    return kafka.work


@pytest.fixture(scope="module")
def expected(kafka, folder):
    """Lines of releases by slot that a run over files gives, of all events and changes."""
    (folder / "events.jsonl").write_bytes(b"\n".join(as_json(record) for _, record in events()))
    (folder / "changes.jsonl").write_bytes(b"\n".join(map(as_json, CHANGES)))
    places = {
        "input": "events.jsonl",
        "requirement_changes": "changes.jsonl",
        "output": "releases.jsonl",
    }
    code, log = kafka.launch(*flags(kafka, runner="FnApiRunner", **places)).end()
    assert code == 0, log
    lines = (folder / "releases.jsonl").read_bytes().splitlines()
    return {json.loads(line)["slot"]: line for line in lines}


# ---- messages whose schemas are in a registry ---------------------------------------------------


def avro_schema(user, time, *more):
    fields = [{"name": "place", "type": "string"}, *user, {"name": "time", "type": time}, *more]
    return json.dumps({"type": "record", "name": "Event", "fields": fields})


def avro_versions(registry):
    """Writers of events by two schemas: the second renames a field, and has others."""
    first = avro_schema([{"name": "user", "type": "string"}], "string")
    second = avro_schema(
        [{"name": "rider", "aliases": ["user"], "type": ["null", "string"]}],
        {"type": "long", "logicalType": "timestamp-micros"},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
    )
    before = registry.writer("framed-avro", "avro", first)
    after = registry.writer("framed-avro", "avro", second)
    return before, lambda event: after(
        {
            "rider": event["user"],
            "place": event["place"],
            "time": dt.datetime.fromisoformat(event["time"]),
            "tags": {"a": [1, 2]},
        }
    )


def protobuf_versions(registry):
    """The same of Protobuf: the second has a time of its own type, and another type before it."""
    text, message = FIELD.TYPE_STRING, FIELD.TYPE_MESSAGE
    files = [file_of(f"v{n}.proto", dependency=["google/protobuf/timestamp.proto"]) for n in (1, 2)]
    add(files[1].message_type.add(name="Other"), "x", 1, text)
    for file in files:
        event = file.message_type.add(name="Event")
        add(event, "user", 1, text)
        add(event, "place", 2, text)
    add(files[0].message_type[0], "time", 3, text)
    stamp = ".google.protobuf.Timestamp"
    add(files[1].message_type[1], "time", 4, message, type_name=stamp)
    first, second = (message_class("demo.Event", file) for file in files)
    before, after = (registry.writer("framed-protobuf", "protobuf", one) for one in (first, second))

    def later(event):
        made = second(user=event["user"], place=event["place"])
        made.time.FromDatetime(dt.datetime.fromisoformat(event["time"]))
        return after(made)

    return lambda event: before(first(**event)), later


def json_schema(title):
    user = {"user": {"type": "string"}}
    return json.dumps({"title": title, "type": "object", "properties": user})


def json_versions(registry):
    """The same of JSON Schema."""
    before, after = (
        registry.writer("framed-json", "json", json_schema(title)) for title in ("First", "Second")
    )
    return before, lambda event: after({**event, "tags": {"a": [1, 2]}})


VERSIONS = {"avro": avro_versions, "protobuf": protobuf_versions, "json": json_versions}


@pytest.mark.registry
@pytest.mark.parametrize("kind", VERSIONS)
def test_messages_of_two_schemas_while_the_registry_is_away_and_after_a_restart(
    kafka, expected, schema_registry, wait_until, capsys, kind
):
    topic, changes, releases = (f"framed-{kind}-{what}" for what in ("events", "changes", "out"))
    for name in (topic, changes, releases):
        kafka.create(name)
    proxy = schema_registry.proxy
    proxy.reset()
    before, after = VERSIONS[kind](schema_registry)
    good = list(events())
    half = len(good) // 2
    written = [before(record) for _, record in good[:half]]
    written += [after(record) for _, record in good[half:]]
    assert len({message[:5] for message in written}) == 2
    other = schema_registry.register("other", '"string"')
    bad = [b"", b"no", b'{"user": "u1"}', written[0][:4], b"\1" + written[0][1:]]
    bad += [frame(number, written[0][5:]) for number in (0, 10_000, 2**32 - 1, other)]
    bad += [written[0][:5] + b"\xff\xff\xff"]
    records = [(millis(time), message, 0) for (time, _), message in zip(good, written, strict=True)]
    times, schemas = f"{EARLIEST}&{GIVEN_TIMES}", f"schema_registry={schema_registry.url}"
    given = flags(
        kafka,
        input=kafka.location(topic, f"{times}&message_format={kind}&{schemas}"),
        requirement_changes=kafka.location(changes, times),
        output=kafka.location(releases),
    )
    # All is there before the launch: a topic that has been read to its end makes past events late.
    poison = [(millis(START), message, 0) for message in bad]
    kafka.send(topic, [*records[:half], *poison, *records[half:]])
    second = int.from_bytes(written[-1][1:5], "big")
    proxy.faults = [Fault("reset", path=f"/schemas/ids/{second}\\b")]
    job = kafka.launch(*given)
    wait_until("the second schema is asked for, in vain", lambda: proxy.struck() > 2)
    assert job.counters()["events_read"] <= half + len(bad)
    proxy.stop()
    time.sleep(1)
    proxy.reset()
    wait_until("all", lambda: job.counters()["events_read"] == len(good) + len(bad))
    # No release so far: a slot waits for the changes, and there was no record of them.
    kafka.send(changes, [(millis(START), as_json(one), 0) for one in CHANGES])
    wait_until("all slots", lambda: len(dict(kafka.read(releases))) == SLOTS)
    counters = job.counters()
    undecoded = counters.get("rejected: not UTF-8", 0)
    rejected = undecoded + counters["rejected: unparsable"]
    assert (rejected, counters["events_late"]) == (len(bad), 0)
    job.cancel()
    first = kafka.read(releases)
    if kind == "avro":
        again = kafka.launch(*given)
        wait_until("once more", lambda: len(dict(kafka.read(releases)[len(first) :])) == SLOTS)
        again.cancel()
    released = kafka.read(releases)
    differing = [value for key, value in released if value != expected[int(key)]]
    with capsys.disabled():
        print(
            f"\nKafka and a registry, {kind}: {len(good)} events of two schemas, {len(bad)} bad "
            f"messages, the registry away once: {len(released)} releases of {SLOTS} slots, "
            f"{len(differing)} differing"
        )
    assert {int(key): value for key, value in released} == expected
    assert differing == []


def test_duplicates_redelivery_a_broken_broker_and_bad_records(kafka, expected, capsys, wait_until):
    good = list(events())
    first, second = good[: len(good) // 2], good[len(good) // 2 :]
    for topic, partitions in (("events", 2), ("changes", 1), ("releases", 1)):
        kafka.create(topic, partitions)

    # All is there before the launch, and in each partition: past events are late once a job has
    # read to the end of one.
    sent = 0
    for some, partition in ((first, 0), (first, 1), (second, 1), (second, 0), (first[::2], 1)):
        kafka.send("events", [(millis(time), as_json(one), partition) for time, one in some])
        sent += len(some)
    kafka.send("events", [(millis(START), value, 0) for value in BAD])
    every = sent + len(BAD)
    location = kafka.location("events", f"{EARLIEST}&{GIVEN_TIMES}&max.poll.records=20")
    job = kafka.launch(*flags(kafka, input=location))
    wait_until("some of it is read", lambda: job.counters()["events_read"])
    broken_after = job.counters()["events_read"]
    kafka.stop("broker")
    kafka.start()
    wait_until("all is read", lambda: job.counters()["events_read"] == every)
    rejected = {
        name.partition(": ")[2]: number
        for name, number in job.counters().items()
        if name.startswith("rejected: ")
    }
    # No release so far: a slot waits for the changes, and there was no record of them.
    assert kafka.read("releases") == []
    kafka.send("changes", [(millis(START), as_json(one), 0) for one in CHANGES + CHANGES])
    wait_until("a release", lambda: kafka.read("releases"))
    job.cancel()
    before = kafka.read("releases")

    again = kafka.launch(*flags(kafka))
    wait_until(
        "all slots once more",
        lambda: len(dict(kafka.read("releases")[len(before) :])) == SLOTS,
    )
    again.cancel()

    released = kafka.read("releases")
    compacted = {int(key): value for key, value in released}
    differing = [value for key, value in released if value != expected[int(key)]]
    with capsys.disabled():
        print(
            f"\nKafka: {len(good)} events sent {sent} times, {len(BAD)} bad records, the broker "
            f"restarted after {broken_after}, the job killed after {len(before)} releases and "
            f"started again: {SLOTS} slots checked, {SLOTS - len(compacted)} lost, "
            f"{len(released) - SLOTS} released again, {len(differing)} differing"
        )
    assert rejected == Counter(BAD.values())
    assert compacted == expected
    assert differing == []


def test_changes_that_never_come_do_not_hold_releases_back_by_log_append_time(
    kafka, folder, wait_until
):
    """By CreateTime they do, until the first record: the drill above waits on it."""
    kafka.create("visits")
    kafka.create("no-changes", **{"message.timestamp.type": "LogAppendTime"})
    kafka.create("statistics")
    good = list(events())
    kafka.send("visits", [(millis(time), as_json(record), 0) for time, record in good])
    job = kafka.launch(
        *flags(
            kafka,
            input=kafka.location("visits", f"{EARLIEST}&{GIVEN_TIMES}"),
            requirement_changes=kafka.location("no-changes", "timestamp_policy=LogAppendTime"),
            output=kafka.location("statistics"),
            layout=None,
        )
    )
    wait_until("all slots", lambda: len(kafka.read("statistics")) >= SLOTS)
    job.cancel()
    compacted = dict(kafka.read("statistics"))
    assert len(compacted) == SLOTS
    for key, value in compacted.items():
        message = json.loads(value)
        assert (message["query"], message["slot"]) == ("count", int(key))
        assert [row["key"] for row in message["rows"]] == list(PLACES)


# Without a start all that was sent before the launch is late: 487 of 1,325 events in one such run.
# One partition: of several, Prism lets the one that was read last move the watermark.
def test_a_live_stream_has_its_backlog_in_time_and_outlives_its_broker(
    kafka, folder, wait_until, live_drill, capsys
):
    """Real clocks: events are sent from before the launch on, each with the time of now.

    Many at first, then few, then many again, when the broker is killed. Those that producers keep
    while it is away may be late, and are counted as such.
    """
    events, releases, many, few = "live", "live-releases", 1_000, 20
    kafka.create(events, **{"message.timestamp.type": "LogAppendTime"})
    kafka.create(releases)
    start = dt.datetime.now(dt.timezone.utc).replace(microsecond=0)

    def released():
        """Contents of each slot."""
        found = defaultdict(set)
        for slot, content in kafka.read(releases):
            found[int(slot)].add(content)
        return dict(sorted(found.items()))

    def released_until(moment):
        return max(released(), default=0) * SECONDS > moment

    with kafka.producing(events, many, PLACES) as stream:
        wait_until("a backlog", lambda: stream.sent >= 5 * many)
        launched = time.time()
        job = kafka.launch(
            *flags(
                kafka,
                input=kafka.location(events, EARLIEST),
                output=kafka.location(releases),
                requirement_changes=None,
                requirements="alike.csv",
                longest_window=None,
                mechanism="uniform",
                slot=f"{SECONDS}s",
                start=start.isoformat(),
                end=None,
                allowed_lateness="1s",
                job_server_timeout="10",  # a stream is followed for longer
            )
        )
        wait_until("a release since the launch", lambda: released_until(launched))
        stream.rate, slow = few, time.time()
        wait_until("a release of a slow stream", lambda: released_until(slow + SECONDS))
        begun = stream.sent
        wait_until("all that was sent so far", lambda: job.counters()["events_read"] >= begun)
        assert job.counters()["events_late"] == 0
        stream.rate = many
        kafka.kill("broker")
        kafka.start()
        again = time.time()
        wait_until("a release since the kill", lambda: released_until(again))
    wait_until("all that was sent", lambda: job.counters()["events_read"] >= stream.sent)
    ended = time.time()
    wait_until("the last release", lambda: released_until(ended))
    parts = ("events_late", "events_counted", "events_bounded_away")

    def accounted():
        """Whether it is known what became of all; late events hold no release back."""
        counters = job.counters()
        return counters["events_read"] <= sum(counters[name] for name in parts)

    wait_until("an account of all", accounted)
    counters = job.counters()
    job.cancel()
    with capsys.disabled():
        late, read = counters["events_late"], counters["events_read"]
        print(
            f"\nKafka: {read} events of {few} to {many} a second, {late} late since the broker "
            "was killed"
        )
    assert read == stream.sent == sum(counters[name] for name in parts)
    found = released()
    assert all(json.loads(one)["status"] == "published" for each in found.values() for one in each)
    assert live_drill.faults(found, ended, SECONDS, spent(found), *ALIKE) == set()
    assert min(found) == start.timestamp() // SECONDS


def test_a_missing_topic_and_a_missing_broker_are_reported(kafka, folder):
    missing = kafka.location("nowhere", "default.api.timeout.ms=5000")
    away = missing.replace(kafka.broker, "127.0.0.1:1")
    alone = {"requirement_changes": None, "longest_window": None}
    expected = {
        kafka.launch(
            *flags(kafka, input=missing, **alone)
        ): "any partitions info for topic nowhere",
        kafka.launch(*flags(kafka, input=away, **alone)): "while fetching topic metadata",
    }
    for job, words in expected.items():
        code, log = job.end()
        assert code == 1
        (line,) = [one for one in log.splitlines() if one.startswith("streamveil release: f")]
        assert words in line
