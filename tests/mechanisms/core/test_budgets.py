"""Requirements in columns: exact, rounded down, and the same for mechanism and filter."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamveil.mechanisms import Requirement
from streamveil.mechanisms.core.budgets import Requirements, asked_units, to_units
from streamveil.mechanisms.core.identity import encoded

ASKED = (Requirement(3, 0.5), Requirement(7, 0.3))


# A fraction is exact where a float may round: nobody is promised a unit that was not asked for.
@given(st.floats(2.0**-40, 4096.0))
def test_units_are_rounded_down_one_by_one_and_in_arrays(epsilon):
    numerator, denominator = epsilon.as_integer_ratio()
    assert to_units(epsilon) == numerator * 2**40 // denominator
    assert to_units([epsilon, 1.0]).tolist() == [to_units(epsilon), 2**40]


def test_columns():
    asked = Requirements.of(ASKED)
    assert asked == ASKED
    assert asked.windows.tolist() == [3, 7]
    assert asked.budgets.tolist() == [2**39, to_units(0.3)]
    assert asked.shares.tolist() == [2**39 // 3, to_units(0.3) // 7]
    assert asked.longest == 7
    assert asked.strictest == (Requirement(7, 0.3),) * 2
    figures = [(one.window, one.epsilon) * 2 for one in ASKED]
    np.testing.assert_array_equal(asked.as_changing, asked_units(figures))


def test_they_are_the_tuple_that_they_were():
    asked = Requirements.of(ASKED)
    assert Requirements.of(asked) is asked
    assert encoded(asked) == encoded(ASKED)


# A mechanism that wrote into what its filter reads could widen its own budget.
@pytest.mark.parametrize("column", ["windows", "budgets"])
def test_nobody_can_write_them(column):
    asked = Requirements.of(ASKED)
    for one in (asked, pickle.loads(pickle.dumps(asked))):
        with pytest.raises(ValueError, match="read-only"):
            getattr(one, column)[0] = 2**50
