"""Arrays of whole numbers in the form in which sums travel between processes: lossless, and made to be compressed.

The bytes of equal significance lie together. Those of the high bytes are mostly equal, which a compressor needs to see.
"""

from __future__ import annotations

import numpy as np

_ONE = np.uint64(1)


def planes(values: np.ndarray) -> np.ndarray:
    """uint8 (bytes, n): the bytes of whole numbers (n,) that are not negative, as few as the largest needs."""
    most = int(values.max()) if len(values) else 0
    narrow = np.ascontiguousarray(values, dtype=np.min_scalar_type(most).newbyteorder("<"))
    return np.ascontiguousarray(narrow.view(np.uint8).reshape(len(values), narrow.itemsize).T)


def from_planes(found: np.ndarray) -> np.ndarray:
    """int64 (n,): inverse of `planes`, for numbers below 2**63."""
    size, count = found.shape
    narrow = np.ascontiguousarray(found.T).reshape(-1).view(np.dtype(f"<u{size}")) if count else np.empty(0)
    return narrow.astype(np.int64)


def step_planes(values: np.ndarray, order: int = 1) -> np.ndarray:
    """The planes of the differences of int64 (n,), of the first or a higher `order`. Values may descend and wrap."""
    steps = values.view(np.uint64)
    for _ in range(order):
        steps = np.diff(steps, prepend=np.uint64(0))
    signs = (steps.view(np.int64) >> 63).view(np.uint64)
    return planes((steps << _ONE) ^ signs)


def from_step_planes(found: np.ndarray, order: int = 1) -> np.ndarray:
    """int64 (n,): inverse of `step_planes`."""
    folded = from_planes(found).view(np.uint64)
    steps = (folded >> _ONE) ^ (np.uint64(0) - (folded & _ONE))
    for _ in range(order):
        steps = np.cumsum(steps, dtype=np.uint64)
    return steps.view(np.int64)
