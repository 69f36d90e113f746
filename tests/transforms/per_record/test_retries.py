"""Every bundle of a step fails once at its end and is run again: nothing of it shows.

BundleBasedDirectRunner runs a bundle again that failed, from the state that it began with.
"""

from collections import Counter

import pytest

from streamveil.transforms import PerRecordRunningTotal
from streamveil.transforms.at_end import AtEnd
from streamveil.transforms.in_time import InTime
from streamveil.transforms.per_record.pipeline import _MapRecordsFn

STEPS = {
    False: [_MapRecordsFn, AtEnd],
    True: [_MapRecordsFn, InTime],
}


@pytest.mark.parametrize("streaming", STEPS)
def test_a_step_whose_bundles_all_fail_once_gives_the_same(
    release_on, records, monkeypatch, streaming
):
    rows = records.some(50, hours=4)

    def once():
        transform = PerRecordRunningTotal(
            records.noisy,
            "amount",
            key="key",
            keys=("a", "b"),
            noise_key=bytes(32),
            **records.windows(last=4),
        )
        source, flags = [records.batch(rows)], []
        if streaming:
            flags = ["--streaming"]
            source = records.timeline(transform).records(*rows[:30]).advance(0.5)
            source.records(*rows[30:]).advance(2.5).records(*rows[:9]).advance(5)
        return release_on("bundle_based", transform, source, *flags).figures

    calm = once()
    assert len(calm) == 10
    ends = Counter()

    def finish_bundle(self):
        ends[type(self)] += 1
        if ends[type(self)] % 2:
            raise RuntimeError("injected")

    for step in STEPS[streaming]:
        monkeypatch.setattr(step, "finish_bundle", finish_bundle, raising=False)
    assert once() == calm
    assert set(ends) == set(STEPS[streaming])
    assert min(ends.values()) >= 2
