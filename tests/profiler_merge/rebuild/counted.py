"""Makes counted files for tests: zero counts and unseen times unless given."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dxt_replay.profiler_merge.rebuild.counted import COUNTED, NOT_SEEN, TIMES


def counted(rows: Iterable[Mapping[str, Any]]) -> np.ndarray:
    """COUNTED, one file per mapping of column to value; record ids count from 1 and records are a rank's own."""
    rows = list(rows)
    found = np.zeros(len(rows), dtype=COUNTED)
    found["record_id"], found["own"], found["shares"] = np.arange(len(rows)) + 1, True, 1
    for name in TIMES:
        found[name] = NOT_SEEN
    for place, row in enumerate(rows):
        for name, value in row.items():
            found[name][place] = value
    return found
