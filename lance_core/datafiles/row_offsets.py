"""Row offsets: returns consecutive row offsets as views of one shared array.

An operation on all rows of a fragment needs the same offsets several times, and creating them takes as long as reading
a column. The shared array is released with its last view.
"""

import weakref

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]
_SHARED_ROWS_MAX = 1 << 20
"""Length of the shared array, which is the default number of rows of a fragment."""
_FIRST_USE_ROWS = 1 << 18
"""Minimum number of requested offsets that creates the shared array. Smaller requests use it only if it exists."""
_shared: "weakref.WeakValueDictionary[int, Offsets]" = weakref.WeakValueDictionary()


def consecutive_offsets(start: int, stop: int) -> Offsets:
    """Return the offsets from `start` to `stop`, without `stop`. Callers must not change them in place.

    >>> consecutive_offsets(3, 6).tolist()
    [3, 4, 5]
    """
    shared = _shared.get(0)
    if stop > _SHARED_ROWS_MAX or (shared is None and stop - start < _FIRST_USE_ROWS):
        return np.arange(start, stop, dtype=np.int64)
    if shared is None:  # concurrent threads may each create one, which is harmless
        shared = np.arange(_SHARED_ROWS_MAX, dtype=np.int64)
        shared.flags.writeable = False
        _shared[0] = shared
    return shared[start:stop]
