"""Array types and marks that the kernel shares with those who do not need the kernel itself."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

# Deadlines in stream time: an event that nothing holds, and one that is held until a match releases it.
NOT_HELD = -(2**63)
FOREVER = 2**63 - 1
