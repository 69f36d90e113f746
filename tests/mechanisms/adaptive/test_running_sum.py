"""A sum over the slots of a gap: what it costs, what it estimates, where its noise comes from."""

import numpy as np
import pytest

from streamveil.mechanisms import NoiseSource, Requirement
from streamveil.mechanisms.adaptive import running_sum
from streamveil.mechanisms.adaptive.running_sum import RunningSum
from streamveil.mechanisms.adaptive.weighting import STEP_BITS
from tests.mechanisms.streams import KEY, people

UNIT = 2**40
SIZES = [1000, 3000]
NOISE = NoiseSource(KEY).slot(9, b"")
COUNTS = np.array([[100, 200], [600, 300]])


def crowd(sizes=SIZES, sensitivity=1):
    return people([Requirement(4, 1.0)] * len(sizes), sizes, 2, sensitivity)


def begun(slots=3, offers=(UNIT, 4 * UNIT), first=5, sensitivity=1):
    """A gap in which every slot gets these offers."""
    public = crowd(sensitivity=sensitivity)
    running = RunningSum.begin(first, max(offers), 672, public)
    spent = []
    for _ in range(slots):
        weighting = running.weighting(np.array(offers), public)
        running.add(weighting, COUNTS)
        spent.append(weighting.spent)
    return running, np.array(spent)


def words_of(running, monkeypatch):
    """The purpose that the noise of a sum is drawn for."""
    asked = []
    monkeypatch.setattr(
        running_sum, "add_noise", lambda partial, *rest: asked.append(rest[-1]) or partial
    )
    running.release(NOISE)
    return asked[0]


# Every slot is charged its weight times unit and sensitivity, within the offer and hardly below it;
# a slot with less room weighs and costs less.
@pytest.mark.parametrize("sensitivity", [1, 2])
def test_slots_are_charged_within_their_offers(sensitivity):
    running, spent = begun(sensitivity=sensitivity)
    offers = np.array([UNIT, 4 * UNIT])
    assert (spent <= offers).all()
    assert (spent > offers * (1 - 2.0**-14)).all()
    less = running.weighting(np.array([UNIT // 2, 0]), crowd(sensitivity=sensitivity))
    assert (less.spent <= [UNIT // 2, 0]).all()
    assert less.unit == running.unit


# Without noise, a sum of slots that are alike is one slot; of slots that are not, their mean.
def test_it_estimates_the_mean_of_its_slots(monkeypatch):
    monkeypatch.setattr(running_sum, "add_noise", lambda partial, *_: partial)
    public = crowd()
    alike = RunningSum.begin(0, UNIT, 672, public)
    for slot in range(4):
        alike.add(alike.weighting(np.array([UNIT, UNIT]), public), COUNTS * slot)
    released = alike.release(NOISE)
    np.testing.assert_allclose(released.mean, 1.5 * COUNTS.sum(axis=0))
    np.testing.assert_allclose(released.shares, 0.25)
    assert released.scatter == released.dispersion == 0
    unequal, _ = begun()
    released = unequal.release(NOISE)
    # The second class counts four times: 4000 / (1000 + 4 * 3000) of the weighted counts.
    weighted = (COUNTS * [[1], [4]]).sum(axis=0) * 4000 / 13000
    np.testing.assert_allclose(released.mean, weighted, rtol=1e-3)
    assert released.dispersion == pytest.approx(3 * released.scatter)


# The noise of a mean falls with the square of its slots.
def test_noise_falls_with_the_square_of_the_slots():
    variances = [begun(slots)[0].release(NOISE).noise for slots in (1, 2, 4)]
    assert variances[0] == pytest.approx(4 * variances[1]) == pytest.approx(16 * variances[2])


# Words are those of all slots, weights and the unit: another query gets other noise.
def test_other_slots_and_weights_get_other_noise(monkeypatch):
    asked = {
        words_of(begun()[0], monkeypatch),
        words_of(begun(first=6)[0], monkeypatch),
        words_of(begun(slots=4)[0], monkeypatch),
        words_of(begun(offers=(UNIT, 3 * UNIT))[0], monkeypatch),
        words_of(begun(offers=(2 * UNIT, 8 * UNIT))[0], monkeypatch),
    }
    assert len(asked) == 5
    assert any(purpose.startswith("sum 5 to 7 ") for purpose in asked)
    assert words_of(begun()[0], monkeypatch) in asked


def test_nothing_is_released_of_nobody():
    public = crowd()
    running = RunningSum.begin(0, UNIT, 672, public)
    assert running.release(NOISE) is None
    running.add(running.weighting(np.zeros(2, np.int64), public), COUNTS)
    assert running.release(NOISE) is None


# However many users, the largest sum that their public number allows fits into 64 bits.
@pytest.mark.parametrize("users", [1, 10**6, 10**12, 10**15])
def test_sums_do_not_overflow(users):
    public = crowd([users])
    running = RunningSum.begin(0, UNIT, 672, public)
    weighting = running.weighting(np.array([UNIT]), public)
    assert 1 <= weighting.weights[0] <= 2 ** (STEP_BITS + 1)
    assert int(weighting.weights[0]) * users * 672 < 2**63


def test_bytes_lose_nothing():
    running, _ = begun()
    again = RunningSum.read(running.record(), 2)
    assert vars(again).keys() == vars(running).keys()
    np.testing.assert_array_equal(again.partial, running.partial)
    np.testing.assert_array_equal(again.release(NOISE).mean, running.release(NOISE).mean)
