"""What an event costs by how many a message of a broker holds: decoded, mapped, and all in all.

python benchmarks/messages.py
"""

from __future__ import annotations

import json
import time
from functools import cache

from _measure import begin, measure_case, parser, save, table

FORMATS = ("json", "jsonl", "arrow", "avro")
NAMES = ("user", "value", "time")
BINS, USERS = 100, 10_000
# A bundle of a broker's connector, in events; more make no difference.
BUNDLE = 10_000


def main() -> None:
    options = parser(__doc__)
    add = options.add_argument
    add("--events", type=int, default=400_000, help="events of each case")
    add("--kinds", nargs="+", choices=FORMATS, default=list(FORMATS))
    add("--per_message", type=int, nargs="+", default=[1, 10, 100, 1000])
    add("--odd", nargs="+", choices=list(ODD), default=list(ODD), help="odd events")
    given = options.parse_args()
    found = table(
        "An event in a message",
        [
            *("format", "events a message", "bytes an event", "us to decode", "us to map"),
            *("us in a pipeline", "thousand events per CPU second", "times those of one a message"),
        ],
        "CPU time of an event. Decode: from bytes to columns of text; map: to slot, bin and user. "
        "In a pipeline: both, in FnApiRunner, where a message is an element that came through a "
        "shuffle, as it comes from a connector; less what a pipeline of few messages takes.",
    )
    for kind in given.kinds:
        single = None
        for per in given.per_message:
            case = {
                "kind": kind,
                "per": per,
                "events": max(given.events // (10 if per == 1 else 1), per),
            }
            answer = measure_case("messages.py", case, given.repeats)
            what = [answer.median(n) for n in ("bytes", "decode", "map", "pipeline")]
            single = single or what[-1]
            found.add(kind, per, *what, 1e3 / what[-1], single / what[-1])
    kept = {name: getattr(given, name) for name in ("events", "kinds", "per_message", "repeats")}
    save(given.results, "messages", kept, [found, odd_events(given)])


def odd_events(given):
    """What one odd event costs those of its batch."""
    found = table(
        f"One odd event among {BUNDLE:,}",
        ["the odd event", "us to decode", "us to map"],
        "CPU time of an event of the batch, single JSON objects.",
    )
    for odd in given.odd:
        answer = measure_case("messages.py", {"odd": odd}, given.repeats)
        found.add(odd, answer.median("decode"), answer.median("map"))
    return found


def event(number: int) -> dict[str, str]:
    return {
        "user": f"user-{number % USERS:07}",
        "value": f"value-{number % BINS:02}",
        "time": f"2024-05-01T09:{number // 60 % 60:02}:{number % 60:02}Z",
    }


ODD = {
    "none": None,
    "not JSON": b"{",
    "not UTF-8": b'{"user": "\xff"}',
    "500 keys": json.dumps({f"key {i}": i for i in range(500)}).encode(),
    "20 nested keys": json.dumps({f"key {i}": [i] for i in range(20)}).encode(),
    "a user of 60,000 bytes": json.dumps({**event(0), "user": "x" * 60_000}).encode(),
    "a user of 1,000,000 bytes": json.dumps({**event(0), "user": "x" * 1_000_000}).encode(),
    "a value of 1,000,000 bytes": json.dumps({**event(0), "value": "x" * 1_000_000}).encode(),
    "a time that is none": json.dumps({**event(0), "time": "noon"}).encode(),
}


def encoded(kind: str, per: int, first: int) -> bytes:
    """A message of so many events."""
    import io

    import fastavro
    import pyarrow as pa

    rows = [event(first + i) for i in range(per)]
    if kind == "json":
        return json.dumps(rows if per > 1 else rows[0]).encode()
    if kind == "jsonl":
        return b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    if kind == "avro":
        fields = [{"name": name, "type": "string"} for name in NAMES]
        sink = io.BytesIO()
        fastavro.writer(sink, {"type": "record", "name": "Event", "fields": fields}, rows)
        return sink.getvalue()
    stream = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_pylist(rows)
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    return stream.getvalue().to_pybytes()


def mapper():
    """Of all these users and values."""
    from streamveil.engine.encode.event_mapper import Columns, EventMapper
    from streamveil.mechanisms import Categories, Registry, Requirement, Slots

    registry = Registry.of(
        dict.fromkeys((f"user-{i:07}" for i in range(USERS)), Requirement(7, 1.0)),
        default=(Requirement(7, 1.0), 1000),
    )
    values = Categories(tuple(f"value-{i:02}" for i in range(BINS)))
    columns = Columns("user", ("value",), "time")
    made = EventMapper(columns, Slots.of("1h"), values, registry, bytes(32))
    return made


def decode_and_map(messages: list[bytes], kind: str, times: int) -> tuple[float, float]:
    """CPU seconds of both, over some bundles."""
    from streamveil.io.message_batches import MessageParser

    parser, to_codes = MessageParser("benchmark", NAMES, False, kind), mapper()
    took = [0.0, 0.0]
    for _ in range(times):
        before = time.process_time()
        outputs = list(parser.parse(messages))
        between = time.process_time()
        for output in outputs:
            if output.tag is None:
                to_codes.map(output.value)
        took[0] += between - before
        took[1] += time.process_time() - between
    return took[0], took[1]


def run_format(kind: str, per: int, events: int) -> dict[str, float]:
    """Decode and map events by hand, then in a pipeline."""
    number = max(BUNDLE // per, 1)
    messages = [encoded(kind, per, i * per) for i in range(number)]
    decode_and_map(messages, kind, 1)
    times = max(events // (number * per), 1)
    took = decode_and_map(messages, kind, times)
    all_events = times * number * per
    return {
        "bytes": sum(map(len, messages)) / (number * per),
        "decode": took[0] * 1e6 / all_events,
        "map": took[1] * 1e6 / all_events,
        "pipeline": in_pipeline(messages, kind, per, events // per) * 1e6 / events,
    }


def in_pipeline(messages: list[bytes], kind: str, per: int, number: int) -> float:
    """CPU seconds of so many messages, above those of few."""
    import apache_beam as beam
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    from streamveil.io.messages import ParseMessages

    took = []
    for many in (2, 2, 2 + number):  # the first one also pays for what is made once
        before = time.process_time()
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            made = (
                pipeline
                | beam.Create([many])
                | beam.FlatMap(_repeated, messages).with_output_types(bytes)
                | beam.Reshuffle()
            )
            parsed = made | ParseMessages("benchmark", NAMES, message_format=kind)
            _ = parsed.batches | "Map" >> beam.Map(_mapped) | beam.CombineGlobally(sum)
        took.append(time.process_time() - before)
    return took[2] - took[1]


@cache
def _shared_mapper():
    return mapper()


def _mapped(batch):
    return len(_shared_mapper().map(batch)[0].slots)


def _repeated(number, messages):
    return (messages[i % len(messages)] for i in range(number))


def run_odd(odd: str) -> dict[str, float]:
    """One odd event, among the records that are looked at to learn what shapes there are."""
    messages = [json.dumps(event(i)).encode() for i in range(BUNDLE)]
    if ODD[odd] is not None:
        messages[0] = ODD[odd]
    decode_and_map(messages, "json", 1)
    took = decode_and_map(messages, "json", 5)
    return {"decode": took[0] * 1e6 / (5 * BUNDLE), "map": took[1] * 1e6 / (5 * BUNDLE)}


if __name__ == "__main__":
    begin(main, lambda **case: run_odd(**case) if "odd" in case else run_format(**case))
