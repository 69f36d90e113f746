"""Types of arrays, named by their elements. Docstrings of functions state the shapes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Singles = npt.NDArray[np.float32]
Halves = npt.NDArray[np.float16]
