"""Names for what goes in and out of streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]
ArrayLike = npt.ArrayLike  # whatever numpy makes an array of
Given = ArrayLike | Mapping[str, ArrayLike]  # the one input, or inputs by name
Result = Array | Arrays  # of the one output, or outputs by name
