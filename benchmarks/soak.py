"""State, memory and speed of a stream that never ends, as time goes on.

python benchmarks/soak.py
"""

from __future__ import annotations

import resource
import sys
import time
from functools import partial

from _measure import begin, measure_case, parser, save, table

USERS = 10_000
PRESENT = 500
BINS = 20
WINDOWS = (10, 40, 120)
EPSILONS = (0.5, 1.0, 2.0)
CHANGES = 1  # in every slot, where requirements change
FIXED, CHANGING = "fixed", "changing"
STREAMS = tuple(
    [(name, FIXED) for name in ("adaptive", "pbd", "pba")]
    + [(name, CHANGING) for name in ("adaptive", "dpbd", "dpba")]
)


def main() -> None:
    options = parser(__doc__, repeats=1)
    add = options.add_argument
    add("--slots", type=int, nargs="+", default=[1_000, 10_000, 50_000, 100_000])
    names = sorted({name for name, _ in STREAMS})
    add("--mechanisms", nargs="+", choices=names, default=names)
    given = options.parse_args()
    found = table(
        f"A stream that never ends: {len(WINDOWS) * len(EPSILONS)} classes, windows up to "
        f"{max(WINDOWS)} slots, {BINS} bins, {PRESENT} events a slot",
        [
            *(
                "mechanism",
                "requirements",
                "slots",
                "state bytes",
                "largest since the row before",
                "keys",
            ),
            *("peak MB", "events per CPU s"),
        ],
        "The steps of the pipeline from batches of events to releases, their own code over state "
        "that is kept as bytes in memory, without a runner: the local one takes 0.1 s and more a "
        "slot. State: of all steps and keys, after that slot. Some events come a slot too late or "
        f"three too early. Where requirements change, {CHANGES} of {USERS:,} users chooses another "
        "class in every slot. Peak: of the whole process, which also makes the events. Events per "
        "CPU second: since the row before, state read and written at every slot.",
    )
    for name, requirements in STREAMS:
        if name not in given.mechanisms:
            continue
        changing = requirements == CHANGING
        case = {"name": name, "changing": changing, "marks": sorted(given.slots)}
        answers = measure_case("soak.py", case, given.repeats).answers[0]
        for row in answers["rows"]:
            found.add(name, requirements, *row)
    kept = {
        "slots": given.slots,
        "mechanisms": list(given.mechanisms),
        "repeats": given.repeats,
    }
    save(given.results, "soak", kept, [found])


class Stream:
    """The steps of PrivateHistograms over an input without end, one after the other."""

    def __init__(self, transform, changing: bool) -> None:
        from _stages import Stage

        from streamveil.engine.count.bounding import Bounding
        from streamveil.engine.count.changing_requirements import ChangingRequirements
        from streamveil.engine.count.close_shards import CloseShards
        from streamveil.engine.count.close_slots import CloseSlots
        from streamveil.engine.count.counter import Counter
        from streamveil.engine.count.event_codes import Layout
        from streamveil.engine.slot_clock import SlotClock
        from streamveil.engine.stream.configuration import Configuration
        from streamveil.engine.stream.drivers import one_driver
        from streamveil.engine.stream.noise_keys import SameKey
        from streamveil.engine.stream.release_in_time import ReleaseInTime
        from streamveil.engine.stream.release_slots import Publish, ReleaseConfig
        from streamveil.transforms.counting.count_events import _MapEventsFn
        from streamveil.transforms.counting.map_changes import _MapChangesFn
        from streamveil.transforms.in_time import InTime
        from streamveil.transforms.slots.heartbeat import _OpenSlotsFn

        registry, most = transform.registry, transform.max_contributions
        self.clock = SlotClock(transform.slots, transform.allowed_lateness)
        self.layout = Layout.choose(registry, transform.domain.bins, transform.shards, timely=True)
        ledgers = Configuration(
            transform.mechanism,
            transform.population,
            self.layout,
            SameKey.of(transform.noise_key),
            context=transform.context,
            changing=changing,
        )
        mapper = partial(transform.event_mapper, changing)
        counter = Counter(registry, self.layout, partial(Bounding, most), "", changing)
        self._map = _MapEventsFn(mapper, counter, bounded=False, real_time=False)
        self._map.setup()
        self._open = Stage(_OpenSlotsFn(None, None))
        self._count = Stage(InTime(CloseSlots(counter, self.clock)))
        longest = max(WINDOWS)
        logic = ChangingRequirements(
            registry=registry,
            clock=self.clock,
            layout=self.layout,
            change_mapper=transform.change_mapper,
            longest_window=longest,
            first_slot=0,
        )
        self._map_changes = _MapChangesFn(logic.change_mapper, logic.layout)
        self._map_changes.setup()
        self._join = Stage(InTime(CloseShards(logic))) if changing else None
        publish = Publish(transform.slots, transform.mechanism)
        config = ReleaseConfig(partial(one_driver, ledgers), self.clock, publish)
        self._release = Stage(InTime(ReleaseInTime(config)))

    @property
    def stages(self) -> tuple:
        """Those with state."""
        stages = self._open, self._count, self._join, self._release
        return tuple(stage for stage in stages if stage is not None)

    def slot(self, slot: int, batch, changes) -> list:
        """What is released, once a slot has begun, had its events and changes, and closed."""
        from apache_beam.utils.timestamp import Timestamp

        from streamveil.transforms.counting.count_events import open_blocks
        from streamveil.transforms.counting.count_shards import to_shards

        closes = Timestamp(micros=self.clock.closing(slot))
        opened, starts = split(self._open.process([("", slot)]))
        codes, _ = split(self._map.process(batch))
        ticks = [block for tick in opened for block in open_blocks(tick, self.layout)]
        # The codes that are late fire at once, those of this slot when it closes.
        split(self._count.process([*ticks, *codes]))
        counts, _ = split(self._count.fire(closes))
        if self._join is not None:
            asked, _ = split(self._map_changes.process(changes))
            begin = [one for start in starts for one in to_shards(start, self.layout)]
            split(self._join.process([*begin, *asked, *counts]))
            counts, _ = split(self._join.fire(closes))
            counts = [count.value for count in counts]
        releases, _ = split(self._release.process([*starts, *counts]))
        return [release.value for release in releases]


def split(outputs) -> tuple[list, list]:
    """Main outputs, and those on the side."""
    from apache_beam.pvalue import TaggedOutput

    main, side = [], []
    for one in outputs:
        tagged = isinstance(one, TaggedOutput)
        (side if tagged else main).append(one.value if tagged else one)
    return main, side


def run(name: str, changing: bool, marks: list[int]) -> dict[str, list]:
    """Release slots; the state and the speed at each mark."""
    import numpy as np
    import pyarrow as pa

    from streamveil.mechanisms import Categories, Registry, Slots
    from streamveil.transforms import Columns
    from streamveil.transforms.release_plan import PrivateHistograms

    requirements = [(w, e) for w in WINDOWS for e in EPSILONS]
    users = [f"user-{i}" for i in range(USERS)]
    names = [f"bin-{i}" for i in range(BINS)]
    transform = PrivateHistograms(
        Registry.of({user: requirements[i % 9] for i, user in enumerate(users)}),
        Categories(tuple(names)),
        Slots.of("1m"),
        Columns("user", ("value",), "time"),
        mechanism=name,
        first_slot=0,
        noise_key=bytes(32),
    )
    stream = Stream(transform, changing)
    random = np.random.default_rng(1)
    everybody, values = pa.array(users), pa.array(names)
    weights, rows, largest, released, spent = np.ones(BINS), [], 0, 0, 0.0
    mark_before = 0
    for slot in range(marks[-1]):
        weights = np.clip(weights + random.normal(0, 0.02, BINS), 0.1, 3.0)
        drift = np.zeros(PRESENT, np.int64)
        drift[:4], drift[4:6] = -1, 3
        batch = pa.RecordBatch.from_pydict(
            {
                "user": everybody.take(pa.array(random.integers(USERS, size=PRESENT))),
                "value": values.take(
                    pa.array(random.choice(BINS, size=PRESENT, p=weights / weights.sum()))
                ),
                "time": pa.array((slot + drift) * 60_000_000, pa.timestamp("us", "UTC")),
            }
        )
        movers = random.integers(USERS, size=CHANGES)
        asked = np.array(requirements)[random.integers(len(requirements), size=CHANGES)]
        windows, epsilons = asked[:, 0].astype(np.int64), asked[:, 1]
        changes = pa.RecordBatch.from_pydict(
            {
                "user": everybody.take(pa.array(movers)),
                "slot": np.full(CHANGES, slot),
                "window_backward": windows,
                "epsilon_backward": epsilons,
                "window_forward": windows,
                "epsilon_forward": epsilons,
            }
        )
        before = time.process_time()
        releases = stream.slot(slot, batch, changes)
        spent += time.process_time() - before
        released += [release.slot for release in releases] == [slot]
        size = sum(stage.size for stage in stream.stages)
        largest = max(largest, size)
        if slot + 1 in marks:
            if released != slot + 1:
                raise AssertionError(f"{released} of {slot + 1} slots were released")
            rate = PRESENT * (slot + 1 - mark_before) / spent
            keys = sum(stage.keys for stage in stream.stages)
            rows.append([slot + 1, size, largest, keys, peak_mb(), rate])
            mark_before, largest, spent = slot + 1, 0, 0.0
    return {"rows": rows}


def peak_mb() -> float:
    unit = 1e6 if sys.platform == "darwin" else 1e3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


if __name__ == "__main__":
    begin(main, run)
