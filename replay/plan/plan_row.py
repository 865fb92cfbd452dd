"""One planned item as a row: what a lane is to do, and what the record of it must carry."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

PLAN_ROW = np.dtype(
    [
        ("kind", "u1"),
        ("op", "i1"),
        ("api", "i1"),
        ("origin", "i1"),
        ("slot", "<i4"),
        ("file_id", "<i4"),
        ("step", "<i4"),
        ("offset", "<i8"),
        ("length", "<i8"),
        ("due_ns", "<i8"),
    ]
)
"""One planned item: what the loop needs and what the recorded row must carry again. 56 bytes. Of a rename, `offset` is
the slot of the new name and `length` its file_id."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OperationBatch:
    """Operations of one rank in start order: `lane`, `op`, `file_id`, `length`, `start_ns`, `end_ns`, each (n,)."""

    lane: np.ndarray
    op: np.ndarray
    file_id: np.ndarray
    length: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
