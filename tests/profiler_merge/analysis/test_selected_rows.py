from __future__ import annotations

from pathlib import Path

import pytest

from profiler_merge.analysis.filters import Filters
from profiler_merge.analysis.selected_rows import above_posix, select, select_layers
from tests.capture_builder import Op, build_capture, read
from traces.measures.operation_rows import operation_rows
from traces.store.reader import Capture


def counted_lengths(capture: Capture, exclude: tuple[str, ...] = ()) -> list[int]:
    selection = select(capture, Filters(exclude=exclude))
    found: list[int] = []
    if any(above_posix(rows) for rows in operation_rows(capture)):
        selection = select_layers(capture, selection)
    for rows in operation_rows(capture):
        found += selection.counted(selection.selected(rows)).length.tolist()
    return found


@pytest.mark.parametrize(
    ("exclude", "kept"),
    [((), [1, 2, 3]), (("*.py",), [1, 3]), (("/lib/*", "*.h5"), []), (("a.py",), [1, 2, 3]), (("*.PY",), [1, 2, 3])],
)
def test_excluded_are_files_whose_whole_path_matches(tmp_path: Path, exclude: tuple[str, ...], kept: list[int]) -> None:
    capture = build_capture(
        tmp_path,
        files=["/d/x.h5", "/lib/a.py", "/lib/a.pyc"],
        ops=[read(file, length=file + 1, start_ns=file) for file in range(3)],
    )
    assert counted_lengths(capture, exclude) == kept


def test_a_file_recorded_at_several_layers_counts_at_the_lowest(tmp_path: Path) -> None:
    capture = build_capture(
        tmp_path,
        files=["/both", "/mpi", "/stdio"],
        ops=[
            read(0, api="HDF5", length=1, start_ns=0),
            read(0, api="MPIIO_COLL", length=2, start_ns=1),
            read(0, api="POSIX", length=3, start_ns=2),
            read(1, api="HDF5", length=4, start_ns=3),
            read(1, api="MPIIO", length=5, start_ns=4),
            read(1, api="MPIIO_COLL", length=6, start_ns=5),
            read(2, api="STDIO", length=7, start_ns=6),
            read(2, api="POSIX", length=8, start_ns=7),
        ],
    )
    assert counted_lengths(capture) == [3, 5, 6, 7, 8]


def test_the_layer_of_a_file_is_the_same_for_all_ranks(tmp_path: Path) -> None:
    """In a collective read only the aggregators issue POSIX reads."""
    capture = build_capture(
        tmp_path,
        files=["/shared"],
        ops=[
            read(0, rank=0, api="MPIIO_COLL", length=1, start_ns=0),
            read(0, rank=0, api="POSIX", length=2, start_ns=1),
            read(0, rank=1, api="MPIIO_COLL", length=1, start_ns=0),
        ],
    )
    assert counted_lengths(capture) == [2]


def test_reconstructed_rows_and_opens_do_not_decide_the_layer(tmp_path: Path) -> None:
    capture = build_capture(
        tmp_path,
        files=["/f"],
        ops=[
            Op("open", 0, api="POSIX", length=1, start_ns=0),
            read(0, api="POSIX", length=2, start_ns=1, origin="reconstructed"),
            read(0, api="MPIIO", length=3, start_ns=2),
        ],
    )
    assert counted_lengths(capture) == [1, 2, 3]
