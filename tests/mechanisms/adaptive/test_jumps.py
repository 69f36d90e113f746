"""What jumps cost until they are seen, and what of the budget is kept for them."""

import numpy as np
import pytest

from streamveil.mechanisms.adaptive.budget_plan import Rates
from streamveil.mechanisms.adaptive.filter_bank import Bank, partner_reach, reach
from streamveil.mechanisms.adaptive.gap_errors import GAPS, POINT, SUM
from streamveil.mechanisms.adaptive.jumps import ALERTS, MOST, WATCHES, Jumps, Watch
from tests.mechanisms.adaptive.test_budget_plan import NONE, member, plan_of

UNITS = np.array([2**40, 2**41])
NOISE = np.ones(len(ALERTS))


def watch_of(jumps, slots=1000, look_scale=400.0, alert=None, largest=np.inf, noise=NOISE) -> Watch:
    return Watch(jumps, slots, look_scale, 40.0, 1000.0, 2, noise, alert, largest=largest)


def jumps_of(size, count=3) -> Jumps:
    jumps = Jumps()
    for _ in range(count):
        jumps.note(np.array([size, -size]))
    return jumps


# What is kept for looks is taken from releases, unit by unit, at every alert.
@pytest.mark.parametrize("gate", [0, 1, 6])
def test_rates_divide_the_same_budget(gate):
    gate, main, reserve = gate * UNITS // 10, UNITS, UNITS // 5
    kept = []
    for alert in ALERTS.tolist():
        rates = Rates.at(alert, gate, main, reserve)
        assert (rates.gate + rates.main == gate + main).all()
        assert (rates.main > 0).all()
        assert (rates.lent >= 0).all()
        assert (rates.lent <= reserve).all()
        here = float(rates.noise[alert == ALERTS][0])
        assert here == pytest.approx(1)
        kept.append(rates.gate.tolist())
    assert kept == sorted(kept)


# The longer the gap, the later a jump is seen; the more looks may take, the earlier.
@pytest.mark.parametrize("kind", [POINT, SUM])
def test_jumps_cost_less_with_more_looks_and_shorter_gaps(kind):
    costs, watches = watch_of(jumps_of(800.0)).costs(kind, np.full(len(GAPS), 200.0))
    assert costs.shape == watches.shape == (len(ALERTS), len(GAPS))
    assert set(watches.ravel().tolist()) <= set(WATCHES.tolist())
    assert (np.diff(costs, axis=1) >= -1e-9).all()
    assert (np.diff(costs, axis=0) <= 1e-9).all()
    assert costs[-1, -1] < costs[0, -1] / 2


def test_jumps_cost_what_was_off_until_they_were_seen():
    # Nothing shows them before the release: on average after (gap - 1) / 2 slots.
    gaps = GAPS <= 32
    jumps = jumps_of(1000.0, 4)
    costs, _ = watch_of(jumps, look_scale=np.inf).costs(POINT, np.full(len(GAPS), 1.0))
    expected = 4 * 2e6 * (GAPS[gaps] - 1) / 2 / 1200
    assert costs[0, gaps] == pytest.approx(expected, rel=1e-6)


# Streams that jump are watched, streams that do not are not, in the end.
def test_alert_follows_jumps():
    plan, beliefs, scale = plan_of(0.6, window=120), member(drift=1e-2), np.full(2, 1000.0)
    noise = Rates.at(1.0, UNITS // 5, UNITS, UNITS // 5).noise

    def alert(jumps, slots):
        watch = watch_of(jumps, slots, noise=noise)
        return plan.best_gap(beliefs, scale, NONE, watch).alert

    assert alert(Jumps(), 10**6) == ALERTS[0]
    assert alert(jumps_of(800.0, 5), 1500) >= 1
    assert alert(jumps_of(20.0, 50), 10**5) == ALERTS[0]
    settled = watch_of(Jumps(), 10**6, alert=1.0, noise=noise)
    assert plan.best_gap(beliefs, scale, NONE, settled).alert == 1.0


# Counts that are small compared with the noise of looks cannot jump by what looks would show.
def test_sparse_streams_are_not_watched_for_jumps_that_cannot_be():
    plan, beliefs, scale = plan_of(0.6, window=120), member(drift=1e-2), np.full(2, 20.0)
    noise = Rates.at(1.0, UNITS // 5, UNITS, UNITS // 5).noise

    def alert(jumps, largest):
        watch = watch_of(jumps, 200, largest=largest, noise=noise)
        return plan.best_gap(beliefs, scale, NONE, watch).alert

    assert alert(Jumps(), np.inf) > ALERTS[0]
    assert alert(Jumps(), 40.0) == ALERTS[0]
    assert alert(jumps_of(800.0, 5), 40.0) >= 1


def test_the_last_jumps_are_remembered():
    jumps = Jumps()
    for size in range(1, MOST + 4):
        jumps.note(np.array([size, 0.0]))
    assert jumps.seen == MOST + 3
    assert jumps.sizes == list(range(4, MOST + 4))
    assert jumps.squares == [size**2 for size in jumps.sizes]
    assert Jumps(**jumps.record()) == jumps
    assert Jumps().rarity(1000) > jumps.rarity(1000)


# The rarer jumps are, and the more bins, the further off is a jump; not so far with an alarm, and
# next to nothing where its only partner jumped.
def test_what_is_a_jump():
    noise, variance = 2000.0, np.full(1, 500.0)

    def least(*given):
        return float(reach(*given)[0])

    assert least(2, 5.0, variance, noise) < least(2, 7.0, variance, noise)
    assert least(2, 5.0, variance, noise) < least(100, 5.0, variance, noise)
    assert least(2, 5.0, variance, noise, True) < least(2, 5.0, variance, noise)
    assert partner_reach(2, variance, noise)[0] < least(2, 5.0, variance, noise, True)


def test_partners_jump_together():
    bank = Bank(10_000.0, 2)
    state = bank.start()
    for _ in range(40):
        bank.observe(state, np.array([8000.0, 2000.0]), 400.0, np.full(2, 100.0))
        state.elapsed = 3
    seen = bank.observe(state, np.array([9500.0, 1700.0]), 900.0, np.full(2, 100.0))
    assert seen.jumped.tolist() == [True, True]
    assert seen.mean[1] == pytest.approx(1700, abs=60)


def test_plans_without_budget_for_looks():
    beliefs, scale = member(drift=1e-2), np.full(2, 1000.0)
    quiet = watch_of(Jumps(), look_scale=np.inf)
    assert plan_of(1.0).best_gap(beliefs, scale, NONE, quiet).gap > 1


# A gap's watch goes on with later slots as if it had been made then.
@pytest.mark.parametrize("kind", [POINT, SUM])
def test_a_watch_goes_on(kind):
    noise, kept = np.linspace(200.0, 2.0, len(GAPS)), watch_of(jumps_of(800.0), alert=1.0)
    for slots in (1000, 1004, 5000, 10**6):
        kept.slots, fresh = slots, watch_of(jumps_of(800.0), slots, alert=1.0)
        for ours, theirs in zip(kept.costs(kind, noise), fresh.costs(kind, noise), strict=True):
            assert ours.tolist() == theirs.tolist()
