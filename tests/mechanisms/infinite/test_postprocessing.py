import numpy as np
import pytest

from streamveil.mechanisms.infinite.postprocessing import hbos, top_k


def test_top_k_of_one_and_of_many():
    shares = np.array([[0.1, 0.4, 0.1, 0.4], [0.7, 0.1, 0.2, 0.0]])
    assert top_k(shares, 2).tolist() == [[1, 3], [0, 2]]
    assert top_k(shares[0], 3).tolist() == [1, 3, 0]
    with pytest.raises(ValueError, match="1 to 4"):
        top_k(shares, 5)


def test_hbos_scores_rare_bins_higher():
    scores = hbos([0.5, 0.25, 0.25, 0.0], [0, 1, 3])
    assert scores == pytest.approx(np.log([1.0, 2.0, 0.5 / 0.025]))
    assert hbos([0.5, 0.5, 0.0], [2], least=0.25) == pytest.approx(np.log([2.0]))


def test_hbos_sums_features():
    shares = [[0.5, 0.5], [0.8, 0.2]]
    assert hbos(shares, [[0, 0], [0, 1]]) == pytest.approx(np.log([1.0, 4.0]))
    with pytest.raises(ValueError, match="as many features"):
        hbos(shares, [0, 1])
