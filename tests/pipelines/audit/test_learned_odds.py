"""Odds are learnt of figures by what is more frequent with a canary than without."""

import numpy as np
import pytest

from streamveil.pipelines.audit.learned_odds import LearnedOdds

COINS = np.arange(40_000) % 2 == 0


def learned(figures, *, surely):
    odds = LearnedOdds(figures, surely=surely)
    odds.learn(figures, COINS)
    return odds


@pytest.mark.parametrize("surely", [False, True])
def test_odds_of_figures_are_added_up_and_a_missing_value_is_a_figure_as_well(surely):
    random = np.random.default_rng(3)
    one = random.laplace(COINS, 1)
    heads = random.random(COINS.size) < np.where(COINS, 0.8, 0.4)
    odds = learned(np.stack([one, np.where(heads, 7.0, np.nan)], axis=1), surely=surely)
    asked = np.array([[9.0, 7.0], [-9.0, 7.0], [9.0, np.nan], [-9.0, np.nan]])
    # Laplace noise of scale 1, moved by 1: at most 1 in favour, and 1 against.
    seven, nothing = np.log(0.8 / 0.4), np.log(0.2 / 0.6)
    wanted = [1 + seven, -1 + seven, 1 + nothing, -1 + nothing]
    assert odds.scores(asked) == pytest.approx(wanted, abs=0.2)


def test_worlds_that_are_alike_tell_little_or_nothing():
    figures = np.random.default_rng(4).normal(size=(COINS.size, 2))
    assert (learned(figures, surely=True).scores(figures) == 0).all()
    by_luck = learned(figures, surely=False).scores(figures)
    assert 0 < abs(by_luck).max() < 0.5


@pytest.mark.parametrize("surely", [False, True])
def test_missing_values_show_nothing(surely):
    figures = np.full((COINS.size, 1), np.nan)
    assert abs(learned(figures, surely=surely).scores(figures)).max() == 0
    nobody = LearnedOdds(figures[:0], surely=surely)
    assert (nobody.scores(np.array([[1.0], [np.nan]])) == 0).all()
