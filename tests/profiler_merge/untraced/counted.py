"""Makes counted files for tests: zero counts and unseen times unless given."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from dxt_replay.profiler_merge.untraced.rank_counters import COUNTED_TIMES, NOT_SEEN, CountedFiles

_TYPES = {"record_id": np.uint64, "renamed_from": np.uint64, "own": bool}


def counted(rows: Iterable[Mapping[str, Any]]) -> CountedFiles:
    """One file per mapping of column to value; record ids count from 1 and records are a rank's own."""
    filled = [
        {"record_id": number + 1, "own": True, **dict.fromkeys(COUNTED_TIMES, NOT_SEEN), **row}
        for number, row in enumerate(rows)
    ]
    return CountedFiles(
        **{
            each.name: np.array([row.get(each.name, 0) for row in filled], dtype=_TYPES.get(each.name, np.int64))
            for each in fields(CountedFiles)
        }
    )
