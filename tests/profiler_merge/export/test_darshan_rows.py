from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.export.darshan_rows import ROW, RowsByFile
from tests.examples import examples


def rows_of(files: list[int], first: int) -> np.ndarray:
    rows = np.zeros(len(files), dtype=ROW)
    rows["file_id"], rows["offset"] = files, np.arange(first, first + len(files))
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows")


@settings(max_examples=examples(150))
@given(batches=st.lists(st.lists(st.integers(0, 6), max_size=12), max_size=5), group_rows=st.integers(1, 20))
def test_files_come_whole_and_in_order(folder: Path, batches: list[list[int]], group_rows: int) -> None:
    with RowsByFile(folder) as by_file:
        first = 0
        for files in batches:
            by_file.add(rows_of(files, first))
            first += len(files)
        groups = [group.copy() for group in by_file.groups(group_rows)]
    everything = np.concatenate([np.zeros(0, dtype=ROW), *groups])
    flat = [(file, place) for place, file in enumerate(file for files in batches for file in files)]
    assert list(zip(everything["file_id"].tolist(), everything["offset"].tolist(), strict=True)) == sorted(flat)
    for group, following in pairwise(groups):
        assert group["file_id"].max() < following["file_id"].min()
    largest = max((sum(file == other for other, _ in flat) for file, _ in flat), default=0)
    assert all(len(group) < largest + group_rows for group in groups)
    assert list(folder.iterdir()) == []
