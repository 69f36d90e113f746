"""Revisions of a stream: as it goes, at its end, and in pieces."""

import numpy as np
import pytest

from streamveil.mechanisms import ConfigurationError, Registry

KEY = bytes(range(32))
USERS = [f"u{i}" for i in range(24)]
REGISTRY = Registry.of({u: (1 + i % 4, 0.5 + i % 2) for i, u in enumerate(USERS)})
LAST = 20
ROWS = [(u, "ab"[i * s % 2], s) for s in range(LAST + 1) for i, u in enumerate(USERS) if i % 3]


def histograms(kit, **options):
    return kit.histograms(REGISTRY, **{"noise_key": KEY, "mechanism": "adaptive", **options})


def plain_values(revisions):
    return [(r.slot, r.revised_slot, r.counts.tolist(), str(r.stderr)) for r in revisions]


def test_a_bounded_stream_revises_every_slot(here, kit):
    transform = histograms(kit, revise=5)
    ran = here(transform, [kit.batch(ROWS)])
    assert [r.slot for r in ran.revisions] == ran.slots
    assert [r.revised_slot for r in ran.revisions] == [min(s + 5, LAST) for s in ran.slots]
    assert ran.revisions[0].revised_at == transform.slots.end(5)
    plain = here(histograms(kit), [kit.batch(ROWS)])
    kit.assert_same_releases(plain.releases, ran.releases)
    assert plain.revisions == []


def pieces(run, kit, **options):
    revisions, state = [], None
    for first, last in ((0, 0), (1, 3), (4, 13), (14, LAST)):
        some = [row for row in ROWS if first <= row[2] <= last]
        piece = {"first_slot": first, "last_slot": last, "resume": state, "ends": last == LAST}
        ran = run(histograms(kit, revise=5, **piece, **options), [kit.batch(some)])
        _, state = max(ran.state)
        revisions += ran.revisions
    return plain_values(revisions)


@pytest.mark.slow
def test_pieces_revise_what_one_run_does(here, kit):
    whole = here(histograms(kit, revise=5, first_slot=0, last_slot=LAST), [kit.batch(ROWS)])
    assert pieces(here, kit) == plain_values(whole.revisions)


@pytest.mark.slow
def test_pieces_of_a_stream_whose_requirements_may_change(here, kit):
    found = pieces(here, kit, changing=True)
    assert [slot for slot, *_ in found] == list(range(LAST + 1))


@pytest.mark.slow
@pytest.mark.parametrize("last", [None, LAST])
def test_a_stream_in_time_revises_as_it_goes(run_on, kit, last):
    timeline = kit.timeline(histograms(kit, revise=5, last_slot=last))
    for slot in range(LAST + 1):
        timeline.events(*(row for row in ROWS if row[2] == slot)).advance(slot + 1)
    ran = run_on("bundle_based", timeline.transform, timeline, "--streaming")
    revised = [(r.slot, r.revised_slot) for r in ran.revisions]
    end = max(ran.slots)
    as_it_goes = [(slot, slot + 5) for slot in range(end - 4)]
    assert revised[: end - 4] == as_it_goes
    rest = [(slot, LAST) for slot in range(LAST - 4, LAST + 1)] if last else []
    assert revised[end - 4 :] == rest
    direct = run_on("bundle_based", histograms(kit, revise=5), [kit.batch(ROWS)])
    for one, other in zip(ran.revisions[: LAST - 4], direct.revisions, strict=False):
        np.testing.assert_array_equal(one.counts, other.counts)


def test_a_mechanism_that_cannot_is_refused_at_construction(kit):
    with pytest.raises(ConfigurationError, match="'pba' cannot revise"):
        histograms(kit, mechanism="pba", revise=5)
