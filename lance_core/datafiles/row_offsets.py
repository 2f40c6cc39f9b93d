"""Row offsets: consecutive offsets of rows, as views of one array that all users share.

An operation on all rows of a fragment needs the same numbers several times, and making them takes as long as reading a
column. The shared array is released with its last view.
"""

import weakref

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]
_SHARED_ROWS_MAX = 1 << 20
"""Offsets up to the default number of rows of a fragment are shared."""
_FIRST_USE_ROWS = 1 << 18
"""Fewest offsets for which the shared array is made; fewer ones are taken from it if it exists."""
_shared: "weakref.WeakValueDictionary[int, Offsets]" = weakref.WeakValueDictionary()


def consecutive_offsets(start: int, stop: int) -> Offsets:
    """Return the offsets from `start` up to `stop`. They cannot be changed in place.

    >>> consecutive_offsets(3, 6).tolist()
    [3, 4, 5]
    """
    shared = _shared.get(0)
    if stop > _SHARED_ROWS_MAX or (shared is None and stop - start < _FIRST_USE_ROWS):
        return np.arange(start, stop, dtype=np.int64)
    if shared is None:  # several threads may make it at the same time
        shared = np.arange(_SHARED_ROWS_MAX, dtype=np.int64)
        shared.flags.writeable = False
        _shared[0] = shared
    return shared[start:stop]
