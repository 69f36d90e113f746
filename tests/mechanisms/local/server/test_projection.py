"""Projection on the simplex."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms.local.server.projection import on_simplex

vectors = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8).map(np.array)


# Example 4 of the paper projects these figures; it prints 0.290, 0.182, 0, 0.324, 0.204.
def test_example_4():
    projected = on_simplex(np.array([0.301, 0.194, -0.047, 0.336, 0.215]))
    np.testing.assert_allclose(projected, [0.2895, 0.1825, 0, 0.3245, 0.2035], atol=1e-12)


@pytest.mark.parametrize("inside", [[1.0], [0.25, 0.75], [0, 1, 0], [0.2] * 5])
def test_what_is_possible_stays(inside):
    np.testing.assert_allclose(on_simplex(np.array(inside, float)), inside, atol=1e-15)


# Estimates of budgets so large that 1 is lost beside them: nothing was left to project.
@pytest.mark.parametrize("large", [[1e17, 3.0], [4.2e20], [-1e18, -1e18 - 1024, -1e19]])
def test_large_figures(large):
    projected = on_simplex(np.array(large))
    assert projected[0] == projected.sum() == 1


# Nearest, by its optimality condition: no direction within the simplex leads closer.
@settings(max_examples=100)
@given(vectors)
def test_nearest_point(vector):
    nearest = on_simplex(vector)
    assert (nearest >= 0).all()
    assert nearest.sum() == pytest.approx(1)
    corners = np.eye(len(vector))
    assert ((corners - nearest) @ (vector - nearest) <= 1e-6 * (1 + np.abs(vector).max())).all()
