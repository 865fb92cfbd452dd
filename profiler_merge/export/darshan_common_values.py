"""The four most common values per file, as Darshan tracks access sizes and strides. Pure."""

from __future__ import annotations

import numpy as np

from dxt_replay.traces.stable_order import places_in_groups, runs, stable_order

TOP = 4
TRACKED = 32
"""DARSHAN_COMMON_VAL_MAX_RUNTIME_COUNT: Darshan counts this many distinct values per file, the first to occur."""


def common_values(file: np.ndarray, value: np.ndarray, files: int) -> tuple[np.ndarray, np.ndarray]:
    """int64 (files, TOP) each: values by falling count, then by falling value, and the counts; 0 if there are fewer.

    `file` (n,) ascending, `value` int64 (n,) in the order of occurrence. The value 0 is tracked, but never shown.
    """
    found, counts = np.zeros((files, TOP), dtype=np.int64), np.zeros((files, TOP), dtype=np.int64)
    if not len(file):
        return found, counts
    order = stable_order(value)
    order = order[stable_order(file[order])]
    firsts = _firsts(file[order], value[order])
    # the sort is stable, so the first of a run occurred first
    of_file, of_value, came = file[order[firsts]], value[order[firsts]], order[firsts]
    count = np.diff(firsts, append=len(file))
    by_coming = np.lexsort((came, of_file))
    tracked = by_coming[_place_in_run(of_file[by_coming]) < TRACKED]
    shown = tracked[of_value[tracked] != 0]
    ranked = shown[np.lexsort((-of_value[shown], -count[shown], of_file[shown]))]
    place = _place_in_run(of_file[ranked])
    ranked, place = ranked[place < TOP], place[place < TOP]
    found[of_file[ranked], place] = of_value[ranked]
    counts[of_file[ranked], place] = count[ranked]
    return found, counts


def _firsts(file: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Index of the first of each run of equal (file, value)."""
    return np.flatnonzero(np.append(True, (file[1:] != file[:-1]) | (value[1:] != value[:-1])))


def _place_in_run(ordered: np.ndarray) -> np.ndarray:
    """0, 1, 2 ... within each run of equal values."""
    if not len(ordered):
        return np.empty(0, dtype=np.int64)
    return places_in_groups(np.diff(runs(ordered), append=len(ordered)))
