"""Every measure against its definition, computed another way."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from streamveil.mechanisms.core.budgets import Requirements, to_units
from streamveil.mechanisms.core.records import PUBLISHED, SKIPPED, Requirement
from streamveil.mechanisms.protocol import SlotRelease
from streamveil.pipelines.evaluation.w_event import (
    WEvent,
    WindowMeter,
    divergence,
)
from streamveil.pipelines.evaluation.window_use import fullest

CLASSES = (Requirement(2, 1.0), Requirement(3, 2.0))


def release(counts, *, status=PUBLISHED, stderr=1.0, spent=(0, 0)):
    counts = np.array(counts, np.int64)
    errors = np.broadcast_to(np.asarray(stderr, float), counts.shape)
    return SlotRelease(counts, status, 0, 0.1, errors, spent=np.array(spent, np.int64))


def measured(*slots):
    meter = WindowMeter(CLASSES, 50)
    for true, made in slots:
        true = np.array(true, np.int64)
        meter.add(true, true, made)
    return SimpleNamespace(**meter.figures())


def test_every_field_is_described_once():
    names = [measure.name for measure in WEvent.measures]
    assert [*vars(measured(([1], release([1])))), "seconds"] == names


def test_figures_of_two_slots():
    # Errors 3 and -4, then 0 and 2: squares 29 over 4 cells, distances 9 over 30 true counts.
    found = measured(
        ([10, 10], release([13, 6], stderr=2.0)),
        ([5, 5], release([5, 7], status=SKIPPED, stderr=[1.0, math.inf])),
    )
    assert found.amre == 29 / 4
    assert found.amse == 29 / 4 / 2500
    assert found.relative_error == 9 / 30
    assert found.published == 1 / 2
    # 3 <= 1.645 * 2 < 4, 0 is within 1.645, and the infinite one does not count.
    assert found.coverage == 2 / 3
    assert found.coverage_above_0 == 2 / 3
    assert found.window_use == 0
    expected = [jensenshannon([10, 10], [13, 6]) ** 2, jensenshannon([5, 5], [5, 7]) ** 2]
    assert found.ajsd == pytest.approx(np.mean(expected), rel=1e-9)


def test_coverage_above_0_leaves_out_what_is_0():
    found = measured(([0, 4, 9], release([0, 4, 12])), ([0, 0, 1], release([0, 5, 2])))
    assert found.coverage == 4 / 6
    assert found.coverage_above_0 == 2 / 3


def test_nothing_counted_and_nothing_known():
    found = measured(([0, 0], release([0, 0], stderr=math.nan)))
    assert math.isnan(found.relative_error)
    assert math.isnan(found.coverage)
    assert math.isnan(found.coverage_above_0)
    assert found.amre == found.ajsd == 0


@pytest.mark.parametrize(
    ("true", "released", "expected"),
    [
        ([1, 2, 3], [2, 4, 6], 0),
        ([4, 0], [0, 9], math.log(2)),
        ([0, 0], [0, 0], 0),
        ([0, 0], [1, 3], math.log(2)),
        ([5, 1], [0, 0], math.log(2)),
        ([0, 0], [-3, 0], 0),  # clipped, so empty as well
        ([5, 1], [-3, 0], math.log(2)),
        ([5, 1], [5, -7], divergence(np.array([5, 1]), np.array([5, 0]))),
    ],
)
def test_divergence(true, released, expected):
    found = divergence(np.array(true), np.array(released))
    assert found == pytest.approx(expected, abs=1e-12)
    assert 0 <= found <= math.log(2) + 1e-12


def test_divergence_is_that_of_scipy():
    random = np.random.default_rng(3)
    for _ in range(50):
        p, q = random.integers(0, 4, (2, 6))
        if p.any() and q.any():
            assert divergence(p, q) == pytest.approx(jensenshannon(p, q) ** 2, abs=1e-12)


def test_window_use_is_the_largest_of_all_windows():
    random = np.random.default_rng(4)
    spent = random.integers(0, to_units(0.4), (40, 2))
    expected = max(
        sum(int(x) for x in spent[max(0, t + 1 - r.window) : t + 1, k]) / to_units(r.epsilon)
        for k, r in enumerate(CLASSES)
        for t in range(40)
    )
    assert fullest(Requirements(CLASSES), [(1, spent)]) == expected


def test_window_use_where_the_running_sum_overflows():
    most = Requirement(1, 4096.0)
    spent = np.full((3000, 1), to_units(4096.0))
    assert fullest(Requirements([most]), [(1, spent)]) == 1.0
    assert fullest(Requirements([Requirement(2, 4096.0)]), [(1, spent)]) == 2.0


def test_window_longer_than_the_stream():
    spent = np.full((3, 1), to_units(0.25))
    assert fullest(Requirements([Requirement(100, 1.0)]), [(1, spent)]) == 0.75
