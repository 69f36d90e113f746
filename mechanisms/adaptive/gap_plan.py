"""When to release next: the gap that the filter expects to lower the error most.

A longer gap saves budget: the noise variance falls with its square, faster than the curve drifts.
Everything here is computed from public requirements and from releases.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.adaptive import filter_bank
from streamveil.mechanisms.adaptive.weight_bias import Risk
from streamveil.mechanisms.adaptive.weighting import Choices

Floats = npt.NDArray[np.float64]


class Plan:
    """The releases that are possible after gaps.

    Args:
        after: what a release can be after a gap, one of `kalman.GAPS`; asked once for each.
    """

    def __init__(self, after: Callable[[int], Choices]) -> None:
        self._after = after
        self._known: dict[int, Choices] = {}

    def choices(self, gap: int) -> Choices:
        """What a release can be after a gap."""
        if gap not in self._known:
            self._known[gap] = self._after(gap)
        return self._known[gap]

    @property
    def _all(self) -> list[Choices]:
        return [self.choices(gap) for gap in filter_bank.GAPS.tolist()]

    @property
    def possible(self) -> bool:
        """Whether a release is possible after any gap."""
        return all(one.thresholds.size for one in self._all)

    def error_after(self, since: int, scale: float, risk: Risk) -> float:
        """Expected squared error of a count in a release after `since` slots; inf if impossible."""
        place = min(int(np.searchsorted(filter_bank.GAPS, since)), len(filter_bank.GAPS) - 1)
        found = self.choices(int(filter_bank.GAPS[place])).errors(scale, risk)
        return float(found.min(initial=np.inf))

    def best_gap(self, beliefs: Floats, scale: Floats, risk: Risk) -> tuple[int, float]:
        """Choose the gap.

        Args:
            beliefs: in each member of the bank, shape (members,).
            scale: s of each bin, shape (d,).
            risk: of bias.

        Returns:
            (gap, expected variance of the curve between releases in parts of a release's error).
        """
        found = self._all
        errors = [choices.errors(float(scale.mean()), risk) for choices in found]
        best = [int(one.argmin()) for one in errors]
        noise = np.array([c.noise[i] for c, i in zip(found, best, strict=True)])
        # What is not noise is taken to be proportional to s.
        other = np.array([one[i] for one, i in zip(errors, best, strict=True)]) - noise
        # Bins of about the same scale are planned for together.
        exponents, bins = np.unique(np.rint(2 * np.log2(scale)), return_counts=True)
        scales = 2 ** (exponents / 2)
        ratios = noise[:, None] / scales + other[:, None] / float(scale.mean())
        expected, curve = filter_bank.expected_error(beliefs, ratios)
        weight = scales * bins
        place = int(np.argmin(expected @ weight))
        patience = float(curve[place] @ weight / (ratios[place] @ weight))
        return int(filter_bank.GAPS[place]), patience
