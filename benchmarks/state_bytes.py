"""Bytes of a stream's state between slots, for a typical stream and for the worst one.

python benchmarks/state_bytes.py
"""

from __future__ import annotations

from _measure import begin, measure_case, parser, save, table

from streamveil.mechanisms.wevent.last_publication import Publication

CLASSES = 25
BINS = 100
WINDOW = 200
MECHANISMS = ("bd", "ba", "pbd", "pba")


def main() -> None:
    options = parser(__doc__, repeats=1)
    options.add_argument("--slots", type=int, default=1000)
    options.add_argument("--mechanisms", nargs="+", choices=MECHANISMS, default=MECHANISMS)
    given = options.parse_args()
    sizes = table(
        f"Encoded state after {given.slots:,} slots: {CLASSES} classes, w = {WINDOW}, {BINS} bins",
        ["mechanism", "stream", "bytes", "largest on the way", "published slots"],
        "Drift: 10,000 users whose bins drift. Always: every slot publishes that its budgets let "
        "publish, whatever the data. Half: half of these, at random, which leaves no runs of "
        "equal spending to shorten. The last two release counts of about 1,000,000.",
    )
    for name in given.mechanisms:
        for kind, share in (("drift", 0), ("always", 1), ("half", 0.5)):
            case = {"name": name, "share": share, "slots": given.slots}
            found = measure_case("state_bytes.py", case, given.repeats).answers[0]
            sizes.add(name, kind, found["bytes"], found["largest"], found["published"])
    kept = {"slots": given.slots, "repeats": given.repeats}
    save(given.results, "state_bytes", kept, [sizes])


def run(name: str, share: float, slots: int) -> dict[str, int]:
    """Release a stream and encode its state after every 50th slot.

    A share of 0 lets drifting data decide what is published, another forces that share of slots.
    """
    import numpy as np

    from streamveil.mechanisms import NoiseSource, Population, ReleaseStream, Requirement, mechanism

    requirements = [Requirement(WINDOW * w // 5, 0.2 * e) for w in range(1, 6) for e in range(1, 6)]
    population = Population(tuple(requirements), np.full(CLASSES, 400), BINS)
    stream = ReleaseStream(mechanism(name, population), NoiseSource(bytes(32)))
    state, random = stream.start(), np.random.default_rng(1)
    weights, published, sizes = np.ones(BINS), 0, []
    for slot in range(slots):
        if share:
            wanted = random.random() < share
            state, status = publish_if_allowed(stream, state, slot, wanted, random)
        else:
            weights = np.clip(weights + random.normal(0, 0.02, BINS), 0.1, None)
            shares = weights / weights.sum()
            counts = random.multinomial(400, shares, CLASSES).astype(np.int64)
            state, release = stream.release(state, slot, counts)
            status = release.status
        published += status == "published"
        if slot % 50 == 49 or slot == slots - 1:
            sizes.append(len(stream.encode(state)))
    return {"bytes": sizes[-1], "largest": max(sizes), "published": int(published)}


def publish_if_allowed(stream, state, slot: int, wanted: bool, random):
    """Do as ReleaseStream.release when the data ask for a publication, or for none."""
    schedule, inner = stream.mechanism.schedule, state.mechanism
    offer = schedule.offer(inner.schedule)
    published = wanted and not offer.nullified and bool(offer.publication.any())
    if published:
        counts = random.integers(900_000, 1_100_000, BINS)
        inner.last = Publication(counts, random.random(BINS), slot)
    inner.schedule = schedule.commit(inner.schedule, offer, published)
    spent = offer.dissimilarity + published * offer.publication
    state.filter.charge(spent)
    state.next_slot = slot + 1
    return state, "published" if published else "skipped"


if __name__ == "__main__":
    begin(main, run)
