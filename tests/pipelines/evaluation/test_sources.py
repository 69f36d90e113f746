"""Named streams and counted events, by requirement."""

import dataclasses

import numpy as np
import pytest

from streamveil.mechanisms.core.records import Requirement
from streamveil.pipelines.evaluation.sources import Counted, Synthetic, scaled
from streamveil.pipelines.sample_data.streams import make_stream, population


@pytest.fixture
def counted(tmp_path):
    """Four slots, three classes, two bins, in a narrow type."""
    counts = np.arange(24, dtype=np.uint8).reshape(4, 3, 2)
    np.save(tmp_path / "counts.npy", counts)
    np.save(tmp_path / "events.npy", counts.sum(axis=1) + 1)
    classes = (Requirement(2, 0.5), Requirement(3, 0.5), Requirement(6, 1.0))
    paths = str(tmp_path / "counts.npy"), str(tmp_path / "events.npy")
    return Counted("mine", *paths, classes, np.array([5, 7, 9]), 2)


def test_scaling():
    asked = [Requirement(2, 0.5), Requirement(3, 0.6), Requirement(7, 2.0)]
    assert scaled(asked, 0.5, 7) == asked
    # Windows 20/7, 30/7 and 10, rounded up; budgets four times as large.
    found = scaled(asked, 2.0, 10)
    assert [one.window for one in found] == [3, 5, 10]
    assert [one.epsilon for one in found] == pytest.approx([2.0, 2.4, 8.0])
    assert {one.window for one in scaled(asked, 0.5, 1)} == {1}


def test_scaled_units_are_the_made_up_population():
    units = population(1.0, 3, 9)[0]
    for window in (120, 7, 2):
        found = sorted(set(scaled(units, 0.6, window)))
        asked = population(0.6, window, 90)[0]
        assert [one.window for one in found] == [one.window for one in asked]
        assert [one.epsilon for one in found] == pytest.approx([one.epsilon for one in asked])


def test_counted_as_it_is(counted):
    assert (counted.epsilon, counted.window) == (0.5, 6)
    public = counted.population(0.5, 6)
    assert public.requirements == counted.requirements
    assert public.sizes.tolist() == [5, 7, 9]
    assert (public.bins, public.sensitivity) == (2, 2)
    tables, events = zip(*counted.slots_of(0.5, 6, seed=0), strict=True)
    assert np.stack(tables).tolist() == np.arange(24).reshape(4, 3, 2).tolist()
    assert {table.dtype for table in tables + events} == {np.dtype(np.int64)}
    assert np.array_equal(events, np.sum(tables, axis=1) + 1)


def test_classes_that_become_equal_are_merged(counted):
    public = counted.population(0.5, 2)
    assert public.requirements == (Requirement(1, 0.5), Requirement(2, 1.0))
    assert public.sizes.tolist() == [12, 9]
    first = next(counted.slots_of(0.5, 2, seed=3)).counts
    assert first.tolist() == [[0 + 2, 1 + 3], [4, 5]]


def test_synthetic():
    source = Synthetic("city", users=100, slots=3)
    public = source.population(0.6, 12)
    assert public.bins == 100
    assert public.sizes.sum() == 100
    tables, events = zip(*source.slots_of(0.6, 12, seed=4), strict=True)
    expected = list(make_stream("city", public.sizes, 3, 4))
    assert np.array_equal(tables, expected)
    assert np.array_equal(events, np.sum(tables, axis=1))
    again = [one.counts for one in source.slots_of(0.6, 12, seed=5)]
    assert not np.array_equal(tables, again)


def test_in_a_sparse_stream_few_users_are_there_and_stay_for_days():
    _, sizes = population(1.0, 30, 943)
    found = np.stack(list(make_stream("sparse", sizes, 214, 3)))
    assert found.shape == (214, 9, 19)
    assert (found.sum(axis=2) <= sizes).all()
    assert 8 < found.sum(axis=(1, 2)).mean() < 15
    by_bin = found.sum(axis=(0, 1))
    assert by_bin[0] > 4 * by_bin[10:].mean()
    # Waves: the days differ more than if everybody came by chance.
    days = found.sum(axis=(1, 2))
    assert days.var() > 2 * days.mean()


def test_a_guess_is_of_the_class_that_it_became(counted):
    assert counted.population(0.5, 6).guessed is None
    guessed = dataclasses.replace(counted, guessed=2).population(0.5, 6)
    assert guessed.sizes[guessed.guessed] == 9
    assert guessed.assumed
