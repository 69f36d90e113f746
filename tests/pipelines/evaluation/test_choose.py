"""What is called best, what a tie, and that comparators are never advised."""

import math

import numpy as np
import pytest
from scipy import stats

from streamveil.mechanisms.registry import is_comparator
from streamveil.pipelines.evaluation import choose as module
from streamveil.pipelines.evaluation.choose import (
    Coverage,
    advice,
    choose,
    choose_overall,
    sentence,
)
from streamveil.pipelines.evaluation.w_event import WEvent
from tests.pipelines.evaluation.runs import run


def errors(**values):
    return {name: np.array(one, float) for name, one in values.items()}


def test_clear_difference():
    found = choose(errors(pba=[10, 11, 12], pbd=[30, 31, 33]))
    assert found.best == "pba"
    assert found.advised == ("pba",)
    assert found.ratios["pbd"] == pytest.approx(94 / 33)
    assert sentence(found) == "pba: pbd has 2.85 times its error"


def test_difference_within_noise_is_a_tie():
    found = choose(errors(pba=[10, 30, 20], pbd=[40, 15, 22]))
    assert found.advised == ("pba", "pbd")
    assert sentence(found) == "pba, tied with pbd"


def test_mechanisms_are_compared_seed_by_seed():
    # The streams differ much more than the mechanisms do, which are always 5 % apart or so.
    found = choose(errors(pba=[100, 1000, 9], pbd=[105, 1049, 9.46]))
    assert found.advised == ("pba",)


def test_errors_spread_in_proportion_to_their_size():
    # The larger error varies more, but is 26 times the smaller one in every run.
    found = choose(errors(adaptive=[1468, 1460], pba=[35000, 42000]))
    assert found.advised == ("adaptive",)


def test_one_seed_tells_nothing():
    found = choose(errors(pba=[1], pbd=[100]))
    assert found.advised == ("pba", "pbd")
    *_, last = advice(WEvent(), [run("pba", 0, 1.0), run("pbd", 0, 100.0)])
    assert "One seed cannot tell a difference from noise" in last
    assert "One seed" not in advice(WEvent(), [run("pba", 0, 1.0)])[-1]


def test_equal_errors_are_a_tie():
    assert choose(errors(pba=[3, 3], pbd=[3, 3])).advised == ("pba", "pbd")


def test_comparators_are_never_advised():
    found = choose(errors(ba=[1, 1.1], bd=[50, 51], pba=[10, 11]))
    assert found.advised == ("pba",)
    assert found.better_comparators == ("ba",)
    assert sentence(found) == "pba; less error, but only to compare with: ba"
    assert choose(errors(ba=[1, 1.1])).advised == ()
    assert sentence(choose(errors(ba=[1, 1.1]))) == "no advice: only comparators were run"


def test_which_mechanisms_are_comparators():
    assert is_comparator("ba:option=1")
    assert is_comparator("lba")
    assert not is_comparator("pba")
    assert not is_comparator("rotation")


def test_no_error_at_all():
    found = choose(errors(pba=[0, 0], pbd=[1, 1.5]))
    assert found.advised == ("pba",)
    assert math.isinf(found.ratios["pbd"])
    assert math.isnan(found.ratios["pba"])


def test_overall_is_by_ratios():
    # Twice the error of the other in each case; one case is a million times the other.
    cases = [errors(pba=[1e6, 1.1e6, 1.2e6], pbd=[2e6, 2.3e6, 2.4e6])]
    cases += [errors(pba=[1, 1.1, 1.2], pbd=[2, 2.3, 2.4])]
    found = choose_overall(cases)
    assert found.advised == ("pba",)
    assert found.ratios["pbd"] == pytest.approx((2 * 2.3 / 1.1 * 2) ** (1 / 3), rel=1e-6)


def test_overall_tie():
    cases = [errors(pba=[1, 1.1], pbd=[2, 2.1]), errors(pba=[2, 2.1], pbd=[1, 1.1])]
    assert set(choose_overall(cases).advised) == {"pba", "pbd"}


def test_quantiles_are_those_of_student():
    for degrees, value in enumerate(module._STUDENT, 1):
        assert value == pytest.approx(stats.t.ppf(0.975, degrees), abs=6e-4)


def test_advice_names_every_case_and_all_together():
    runs = [
        run(name, seed, amre + seed, stream)
        for stream in ("sin", "log")
        for name, amre in (("pba", 10), ("pbd", 99))
        for seed in (0, 1)
    ]
    lines = advice(WEvent(), runs)
    assert lines[0] == "Choose, by AMRE:"
    assert lines[1].startswith("sin, epsilon 0.6, w 12: pba: pbd has ")
    assert lines[2].startswith("log, epsilon 0.6, w 12: pba: ")
    assert lines[3].startswith("overall: pba: ")
    assert len(advice(WEvent(), runs[:4])) == 2


def coverages(**shares):
    return {name: [Coverage("coverage", share)] for name, share in shares.items()}


def test_too_little_coverage_is_not_advised():
    seen = errors(adaptive=[1, 1.1], pba=[10, 11], pbd=[30, 31.5])
    found = choose(seen, coverages(adaptive=0.0, pba=0.9, pbd=0.1))
    assert found.advised == ("pba",)
    assert found.leading == "pba"
    assert sentence(found) == (
        "pba: pbd has 2.93 times its error; not advised in spite of less error, since coverage is "
        "far below 0.9: adaptive 0"
    )
    assert choose(seen, coverages(pba=0.9)).advised == ("adaptive",)  # without intervals, as before


def test_nothing_is_advised_where_no_coverage_is_near():
    found = choose(errors(adaptive=[1, 1.1], ba=[2, 3]), coverages(adaptive=0.31, ba=0.9))
    assert found.advised == ()
    assert found.leading == "adaptive"
    assert sentence(found) == "no advice: coverage is far below 0.9: adaptive 0.31"


def test_advice_reports_low_coverage():
    seen = errors(adaptive=[1, 1.1], pba=[10, 11])
    found = choose(seen, coverages(adaptive=0.77, pba=0.7))
    assert found.advised == ("adaptive",)
    assert "; coverage is below 0.9: adaptive 0.77" in sentence(found)
    assert "pba 0.7" not in sentence(found)
    part = {"adaptive": [Coverage("coverage", 0.95), Coverage("coverage above 0", 0.02, True)]}
    assert sentence(choose(seen, part)).endswith("below 0.9: adaptive 0.02 (above 0)")


def test_the_worst_case_decides_overall():
    cases = [errors(pba=[1, 1.1], pbd=[2, 2.1])] * 2
    found = choose_overall(cases, [coverages(pba=0.9, pbd=0.9), coverages(pba=0.2, pbd=0.75)])
    assert found.advised == ("pbd",)
    assert (found.refused["pba"].share, found.low["pbd"].share) == (0.2, 0.75)


def test_advice_takes_the_coverage_of_all_seeds():
    runs = [
        run(name, seed, amre, coverage=covered, coverage_above_0=covered)
        for name, amre, shares in (("pba", 1, (0.9, 0.0)), ("pbd", 9, (0.9, math.nan)))
        for seed, covered in enumerate(shares)
    ]
    assert advice(WEvent(), runs)[1].startswith(
        "sin, epsilon 0.6, w 12: pbd; not advised in spite of less error"
    )
    assert "pba 0.45" in advice(WEvent(), runs)[1]
