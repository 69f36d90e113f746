"""What a stream costs at scale: the pieces of the cost model, and the model against whole runs.

python benchmarks/scaling.py

`--plan` alone prints what the model says of a service, from the last measured pieces.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from _cost_model import Pieces, Service
from _measure import begin, data_folder, measure, measure_case, parser, save, table

BINS = 100
CLASSES = 9
START_HOUR = 1_704_067_200 // 3600
# A stream's batch is what one bundle of a runner brings; a file's is a row group.
BATCHES = (1_000, 10_000, 100_000)
WORKER_FILES, WORKER_SLOTS = 8, 24
FUSED, SHUFFLED = "made in the same step", "behind a shuffle"
MESSAGE = b'{"user": "user-%07d", "value": "value-%02d", "time": "2024-05-01T09:12:00Z"}'


def main() -> None:
    options = parser(__doc__)
    add = options.add_argument
    add("--events", type=int, default=1_000_000, help="events of a slot whose pieces are measured")
    add("--users", type=int, nargs="+", default=[10_000, 1_000_000, 10_000_000])
    add("--bins", type=int, nargs="+", default=[100, 1_000, 10_000])
    add("--slots", type=int, default=200, help="slots of a stream whose release is measured")
    add("--files", type=int, nargs="*", default=[3_000_000, 10_000_000, 30_000_000])
    add("--worker_events", type=int, default=60_000_000, help="events for one and two processes")
    add("--plan", action="store_true", help="only print the plan, from the last measured pieces")
    add("--plan_events_per_second", type=float, default=1e6)
    add("--plan_users", type=float, default=1e8)
    add("--plan_bins", type=int, default=1_000)
    add("--plan_slot", type=float, default=60.0, metavar="SECONDS")
    given = options.parse_args()
    service = Service(
        given.plan_events_per_second, int(given.plan_users), given.plan_bins, given.plan_slot
    )
    if given.plan:
        runs = json.loads((Path(given.results) / "scaling.json").read_text())
        plan(Pieces.of(runs[-1]["tables"]), service)
        return
    measured = [events(given), messages(given), registries(given), slots(given)]
    measured.append(runners(given))
    pieces = Pieces.of([vars(one) for one in measured])
    if given.files:
        with data_folder(given.folder) as folder:
            measured += [commands(given, folder, pieces), cores(given, folder)]
    measured.append(plan(pieces, service))
    names = ("events", "users", "bins", "slots", "files", "worker_events", "repeats")
    kept = {name: getattr(given, name) for name in names}
    save(given.results, "scaling", kept, measured)


def events(given):
    """What an event costs before and after the shuffle."""
    found = table(
        "An event: from a record batch in memory to a slot's counts",
        [
            *("users", "in the table", "events a batch", "ns to map and bound", "ns to count"),
            *("bytes through the shuffle", "bytes of state until the slot closes"),
        ],
        f"CPU time; text ids, {BINS} bins, all events of one slot, in the layout of a stream. The "
        "state of an open slot is what came through the shuffle. Users outside the table travel "
        "as digests.",
    )
    for users, size in itertools.product(given.users, BATCHES):
        for inside in (True, False):
            if size > given.events or (not inside and users != min(given.users)):
                continue
            case = {"kind": "event", "users": users, "inside": inside, "batch": size}
            answer = measure_case("scaling.py", {**case, "events": given.events}, given.repeats)
            what = [answer.median(name) for name in ("map", "count", "shuffled", "state")]
            found.add(users, "yes" if inside else "no", size, *what)
    return found


def messages(given):
    """What a message of a broker costs before it is a row of a batch."""
    found = table(
        "A message: from JSON to a row of a record batch",
        ["messages a bundle", "ns to gather and parse"],
        "CPU time of our two steps, without what the runner and the connector take.",
    )
    number = given.events // 5
    for size in BATCHES[:2]:
        if size > number:
            continue
        case = {"kind": "message", "batch": size, "events": number}
        found.add(size, measure_case("scaling.py", case, given.repeats).median("parse"))
    return found


def runners(given):
    """What a message costs in a pipeline, where it is an element of its own."""
    found = table(
        "A message in a pipeline on FnApiRunner",
        ["way", "ns a message"],
        "From an element of bytes to rows of record batches; CPU time above that of a pipeline "
        "with few messages. A connector's messages come by the wire, as from a shuffle.",
    )
    for way in (FUSED, SHUFFLED):
        case = {"kind": "pipeline", "shuffled": way == SHUFFLED, "events": given.events // 4}
        answer = measure_case("scaling.py", case, given.repeats)
        found.add(way, answer.median("message"))
    return found


def registries(given):
    """What the table of requirements takes in the memory of each worker process."""
    found = table(
        "A registered user: the table and its index in memory",
        ["users", "peak MB", "bytes a user", "s to load and index"],
        "Text ids of 12 characters, read from Parquet. Bytes: the peak less that of a process with "
        "a table of one user.",
    )
    least = measure_case("scaling.py", {"kind": "registry", "users": 1}, given.repeats).peak
    for users in given.users:
        answer = measure_case("scaling.py", {"kind": "registry", "users": users}, given.repeats)
        found.add(users, answer.peak, (answer.peak - least) * 1e6 / users, answer.median("load"))
    return found


def slots(given):
    """What a slot costs the one key that releases it."""
    found = table(
        "A slot: what the hot key gets, keeps and takes",
        [
            *("bins", "shards", "bytes to it a slot", "bytes of its state"),
            *("CPU ms a slot", "CPU ms a slot of an input with an end"),
        ],
        f"The release stage of a stream with `adaptive`, {CLASSES} classes, windows up to 120 "
        "slots, all bins busy. It decodes its state, releases, and encodes its state, in each "
        "slot; an input with an end is released in one go. Events never reach it: whatever their "
        "number, it gets a table of classes x bins from each shard.",
    )
    for bins, shards in itertools.product(given.bins, (1, 16)):
        case = {"kind": "slot", "bins": bins, "shards": shards, "slots": given.slots}
        answer = measure_case("scaling.py", case, given.repeats)
        what = [answer.median(name) for name in ("received", "state", "ms", "at_once")]
        found.add(bins, shards, *what)
    return found


def command(folder: Path, size: int, slots: int, files: int, *flags: str) -> list[str]:
    """`streamveil release` over files of so many events in all."""
    stem = f"{size}-in-{slots}-of-{files}"
    given = {
        "input": folder / f"{stem}-*.parquet",
        "output": folder / "releases.parquet",
        "requirements": folder / "requirements.parquet",
        "user_column": "user",
        "value_column": "value",
        "time_column": "time",
        "slot": "1h",
        "start": _iso(START_HOUR),
        "end": _iso(START_HOUR + slots),
        "domain": ",".join(f"value-{b:02}" for b in range(BINS)),
    }
    paths = [folder / f"{stem}-{i}.parquet" for i in range(files)]
    for path in (given["requirements"], *paths):
        if not path.exists():
            events_in_it = size // files if path in paths else 0
            case = {"kind": "file", "path": str(path), "events": events_in_it, "slots": slots}
            measure_case("scaling.py", case, 1)
    named = [f"--{name}={value}" for name, value in given.items()]
    return [sys.executable, "-m", "streamveil", "release", *named, *flags]


def commands(given, folder: Path, pieces: Pieces):
    """Whole commands beside what the model says of them."""
    found = table(
        "The model against whole commands: Parquet to releases",
        [
            *("events", "slots", "measured CPU s", "model CPU s", "measured / model"),
            "ns an event",
        ],
        "One process, 10,000 users, 10,000 events a slot. Slots cost what the table above says; "
        "start-up, and what an event costs from file to count, are fitted to the second and the "
        "third row; the others check it. Users repeat in a row group and are read as a dictionary.",
    )
    sizes = [1000, *given.files]
    took = [
        measure(
            command(folder, size, _slots(size), 1), given.repeats, [folder / "releases.parquet"]
        ).cpu
        for size in sizes
    ]
    releasing = [_slots(size) * pieces.file_slot_ms(BINS) / 1e3 for size in sizes]
    rest = [measured - slots_took for measured, slots_took in zip(took, releasing, strict=True)]
    event = (rest[2] - rest[1]) / (sizes[2] - sizes[1])
    start = rest[1] - sizes[1] * event
    for size, measured, slots_took in zip(sizes, took, releasing, strict=True):
        modelled = start + slots_took + size * event
        found.add(size, _slots(size), measured, modelled, measured / modelled, event * 1e9)
    return found


def cores(given, folder: Path):
    """A command that may use one core, and one that may use two."""
    found = table(
        "One and two cores",
        [
            *("events", "cores", "wall s", "start-up wall s", "CPU s"),
            *("events a second without start-up", "times one core"),
        ],
        f"{WORKER_FILES} files, {WORKER_SLOTS} slots. Start-up is the same command on 1,000 "
        "events. The machine has two cores.",
    )
    size = given.worker_events
    pace = {}
    for number in (1, 2):
        ran, idle = (
            measure(
                on_cores(number, command(folder, events, WORKER_SLOTS, WORKER_FILES)),
                given.repeats,
                [folder / "releases.parquet"],
            )
            for events in (size, 1000)
        )
        pace[number] = size / (ran.wall - idle.wall)
        found.add(
            *(size, number, ran.wall, idle.wall, ran.cpu, pace[number], pace[number] / pace[1])
        )
    return found


def on_cores(number: int, command: Sequence[str]) -> list[str]:
    """The command, restricted to that number of cores."""
    some = sorted(os.sched_getaffinity(0))[:number]
    script = f"import os, sys; os.sched_setaffinity(0, {some}); os.execv(sys.argv[1], sys.argv[1:])"
    return [sys.executable, "-c", script, *command]


def plan(pieces: Pieces, service: Service):
    """What the model says of a service."""
    found = table(
        f"The plan: {service.events_per_second:,.0f} events/s, {service.users:,} users, "
        f"{service.bins:,} bins, slots of {service.slot_seconds:g} s",
        ["what", "users in the table", "users outside it"],
        "CPU of streamveil's own steps; connector and runner come on top. With users in the table, "
        "every worker process holds it all; with --default_requirement nothing is held, and events "
        "travel as digests.",
    )
    for name, inside, outside in pieces.plan(service):
        found.add(name, inside, outside)
    return found


def _slots(size: int) -> int:
    return max(size // 10_000, 1)


def _iso(hour: int) -> str:
    import datetime as dt

    return dt.datetime.fromtimestamp(hour * 3600, dt.timezone.utc).isoformat()


# ---- the cases, each in a process of its own ---------------------------------------------------


def run_event(users: int, inside: bool, batch: int, events: int) -> dict[str, float]:
    """Map, bound, shuffle by hand and count the events of one slot."""
    import numpy as np
    import pyarrow as pa
    from _events import START, user_ids

    from streamveil.engine.count.bounding import Bounding
    from streamveil.engine.count.counter import Counter
    from streamveil.engine.count.event_codes import Layout, pack
    from streamveil.engine.encode.event_mapper import EventMapper
    from streamveil.engine.messages import Kind
    from streamveil.mechanisms import Categories, Registry, Requirement, Slots
    from streamveil.transforms import Columns

    random = np.random.default_rng(users)
    names = [f"value-{b:02}" for b in range(BINS)]
    if inside:
        numbers = np.arange(users)
        registry = Registry.build(
            user_ids(numbers), 40 * (1 + numbers % 3), 0.6 + 0.2 * (numbers // 3 % 3)
        )
    else:
        registry = Registry.of(default=(Requirement(40, 0.6), users))
    mapper = EventMapper(
        Columns("user", ("value",), "time"),
        Slots.of("1h"),
        Categories(tuple(names)),
        registry,
        bytes(32),
    )
    layout = Layout.choose(registry, BINS, 1, timely=True)
    counter = Counter(registry, layout, partial(Bounding, 1), "", by_user=False)
    values = pa.array(names)
    mapped, by_key = 0.0, {}
    for _ in range(events // batch):
        rows = pa.RecordBatch.from_pydict(
            {
                "user": user_ids(random.integers(0, users, batch)),
                "value": values.take(pa.array(random.integers(0, BINS, batch))),
                "time": pa.array(
                    START + random.integers(0, 3_600_000_000, batch), pa.timestamp("us", "UTC")
                ),
            }
        )
        before = time.process_time()
        accepted, _ = mapper.map(rows)
        for block, key, codes, _ in pack(accepted, layout, counter.bounding):
            message = layout.message(Kind.EVENTS, block, key, codes.to_bytes())
            by_key.setdefault((*key, block), []).append(message)
        mapped += time.process_time() - before
    before = time.process_time()
    messages = [counter.messages(key, counter.bound(key, codes)) for key, codes in by_key.items()]
    counted = time.process_time() - before
    assert messages
    shuffled = sum(len(one.to_bytes()) for some in by_key.values() for one in some)
    return {
        "map": mapped * 1e9 / events,
        "count": counted * 1e9 / events,
        "shuffled": shuffled / events,
        "state": shuffled / events,
    }


def run_message(batch: int, events: int) -> dict[str, float]:
    """Gather and parse messages, bundle after bundle."""
    from streamveil.io.message_batches import MessageParser
    from streamveil.io.messages import _GatherFn

    columns = ("user", "value", "time")
    texts = [
        json.dumps(
            {
                "user": f"user-{i:07}",
                "value": f"value-{i % BINS:02}",
                "time": "2024-05-01T09:12:00Z",
            }
        )
        for i in range(batch)
    ]
    bundle = [text.encode() for text in texts]
    gather, parser = _GatherFn(len), MessageParser("benchmark", columns, False)
    before = time.process_time()
    for _ in range(events // batch):
        gather.start_bundle()
        lists = [made for message in bundle for made in gather.process(message, 0)]
        for made in (*lists, *gather.finish_bundle()):
            for _ in parser.parse(made.value):
                pass
    return {"parse": (time.process_time() - before) * 1e9 / (events // batch * batch)}


def made_messages(number: int):
    """Messages of so many events."""
    return (MESSAGE % (i, i % BINS) for i in range(number))


def run_pipeline(shuffled: bool, events: int) -> dict[str, float]:
    """Parse messages in a pipeline; what it takes with none to speak of is taken off."""
    import apache_beam as beam
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    from streamveil.io.messages import ParseMessages

    took = []
    for number in (10, events):
        before = time.process_time()
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            make = beam.FlatMap(made_messages).with_output_types(bytes)
            made = pipeline | beam.Create([number]) | make
            if shuffled:
                made |= beam.Reshuffle()
            parsed = made | ParseMessages("benchmark", ("user", "value", "time"))
            _ = parsed.batches | "Rows" >> beam.Map(len) | beam.CombineGlobally(sum)
        took.append(time.process_time() - before)
    return {"message": (took[1] - took[0]) * 1e9 / events}


def run_registry(users: int) -> dict[str, float]:
    """Read a table of requirements and index it."""
    import tempfile

    from _events import write_requirements

    from streamveil.engine.encode.text import TextIndex
    from streamveil.io import read_requirements

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "requirements.parquet"
        write_requirements(path, users)
        before = time.process_time()
        index = TextIndex(read_requirements(str(path)).users)
        assert index is not None
        return {"load": time.process_time() - before}


def run_slot(bins: int, shards: int, slots: int) -> dict[str, float]:
    """Release a stream slot by slot as the stateful step does, from the bytes of its shards."""
    import numpy as np
    from _stages import Stage

    from streamveil.engine.count.event_codes import BlockCounts, Layout
    from streamveil.engine.messages import Kind, Message
    from streamveil.engine.slot_clock import SlotClock
    from streamveil.engine.stream.configuration import Configuration
    from streamveil.engine.stream.drivers import one_driver
    from streamveil.engine.stream.noise_keys import SameKey
    from streamveil.engine.stream.release_in_time import ReleaseInTime
    from streamveil.engine.stream.release_slots import Publish, ReleaseConfig, release_at_end
    from streamveil.mechanisms import Population, Requirement, Slots
    from streamveil.transforms.at_end import AtEnd
    from streamveil.transforms.in_time import InTime

    requirements = tuple(Requirement(w, e) for w in (40, 80, 120) for e in (0.6, 0.8, 1.0))
    population = Population(requirements, np.full(len(requirements), 100_000), bins)
    layout = Layout(1, 900_000, len(requirements), bins, shards)
    made = Configuration("adaptive", population, layout, SameKey.of(bytes(32)))
    clock, make = SlotClock(Slots.of("1m")), partial(one_driver, made)
    config = ReleaseConfig(make, clock, Publish(clock.slots, made.mechanism), 0, slots - 1)
    stage, whole = Stage(InTime(ReleaseInTime(config))), AtEnd(partial(release_at_end, config))
    random = np.random.default_rng(bins)
    list(stage.process([("", Message(Kind.START, 0))]))
    cells = np.arange(len(requirements) * bins)
    every, took = [], []
    for slot in range(slots):
        parts = [
            Message(Kind.COUNTS, slot, number, counts.to_bytes(), layout.parts)
            for number in range(layout.parts)
            for counts in [BlockCounts(slot, cells, random.integers(1, 2000, len(cells)))]
        ]
        every += parts
        before = time.process_time()
        released = list(stage.process([("", part) for part in parts]))
        took.append(time.process_time() - before)
        assert released
    before = time.process_time()
    every.append(Message(Kind.WHOLE, payload=b"%d" % len(every)))
    assert len(list(whole.process(("", every)))) >= slots
    return {
        "ms": 1000 * float(np.median(took)),
        "at_once": 1000 * (time.process_time() - before) / slots,
        "received": sum(len(part.to_bytes()) for part in every) / slots,
        "state": stage.size,
    }


def run_file(path: str, events: int, slots: int) -> dict[str, float]:
    """Write a file of events or requirements."""
    from _events import write_events, write_requirements

    if events:
        write_events(Path(path), events, 10_000, slots, ordered=True)
    else:
        write_requirements(Path(path), 10_000)
    return {}


CASES = {
    "event": run_event,
    "message": run_message,
    "pipeline": run_pipeline,
    "registry": run_registry,
    "slot": run_slot,
    "file": run_file,
}

if __name__ == "__main__":
    begin(main, lambda kind, **case: CASES[kind](**case))
