from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dxt_replay.profiler_merge.analysis.summary import summarise
from dxt_replay.replay.plan.layers import choose_layers
from dxt_replay.traces.layers import file_layers, lowest
from dxt_replay.traces.measures.operation_rows import operation_rows
from dxt_replay.traces.part import Part
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import Op, build_capture, read


def counted_lengths(capture: Capture) -> list[int]:
    layers = file_layers(capture)
    return [
        length
        for rows in operation_rows(capture)
        for length in rows.where(layers.counted(rows.api, rows.file_id)).length.tolist()
    ]


def replayed_lengths(capture: Capture, **options: Any) -> list[int]:
    layers = choose_layers(capture, **options)
    return [
        length
        for batch in capture.operations()
        for length in batch.filter(pa.array(layers.replayed(batch))).column("length").to_pylist()
    ]


@pytest.mark.parametrize(
    ("rows", "counted"),
    [
        ([(0, "HDF5"), (0, "MPIIO_COLL"), (0, "POSIX"), (1, "HDF5"), (1, "MPIIO"), (1, "MPIIO_COLL"), (2, "STDIO"),
          (2, "POSIX")], [3, 5, 6, 7, 8]),
        # In a collective read only the aggregators issue POSIX reads: the layer of a file is one for all ranks.
        ([(0, "MPIIO_COLL"), (0, "POSIX"), (0, "MPIIO_COLL", 1)], [2]),
    ],
)  # fmt: skip
def test_a_file_recorded_at_several_layers_counts_at_the_lowest(
    tmp_path: Path, rows: list[tuple[Any, ...]], counted: list[int]
) -> None:
    """Row n has n bytes. File, interface, and rank where it is not 0."""
    ops = [read(row[0], api=row[1], length=n, start_ns=n, rank=sum(row[2:])) for n, row in enumerate(rows, 1)]
    assert counted_lengths(build_capture(tmp_path, files=["/a", "/b", "/c"], ops=ops)) == counted


def test_a_summary_counts_what_a_replay_issues(tmp_path: Path) -> None:
    """POSIX rows that only open a file do not make it one that is read through POSIX; nor do reconstructed rows, where
    the reads were traced one layer above."""
    capture = build_capture(
        tmp_path,
        files=["/opened", "/reconstructed", "/only-opened"],
        ops=[
            Op("open", 0, api="POSIX", start_ns=0),
            Op("open", 0, api="MPIIO", start_ns=1),
            read(0, api="MPIIO", length=3, start_ns=2),
            read(1, api="POSIX", length=4, start_ns=3, origin="reconstructed"),
            read(1, api="MPIIO", length=5, start_ns=4),
            Op("open", 2, api="MPIIO", start_ns=5),
            Op("open", 2, api="POSIX", start_ns=6),
        ],
    )
    assert counted_lengths(capture) == replayed_lengths(capture) == [0, 3, 5, 0]
    found = summarise(capture)
    assert (found.operations.read, found.operations.other, found.reconstructed.read) == (2, 2, 0)


def test_adjacent_windows_and_ranks_count_each_byte_once(tmp_path: Path) -> None:
    """A window may hold the MPI-IO read and not the POSIX read that carried it out."""
    ops = [
        read(0, rank=0, api="MPIIO", length=8, start_ns=9),
        read(0, rank=1, api="POSIX", length=8, start_ns=10),
        Op("open", 0, rank=0, api="POSIX", start_ns=0),
        Op("open", 0, rank=0, api="POSIX", start_ns=20),
    ]
    capture = build_capture(tmp_path, files=["/f"], ops=ops)
    windows = [Part(until_ns=10), Part(from_ns=10)]
    assert sum(summarise(part_of(capture, part)).bytes.read for part in windows) == 8
    assert sum(summarise(part_of(capture, Part(ranks=(rank,)))).bytes.read for rank in (0, 1)) == 8
    assert summarise(part_of(capture, Part(interfaces=("MPIIO",)))).bytes.read == 8


@pytest.mark.parametrize(
    ("moved", "found"),
    [
        ({"POSIX": 5, "STDIO": 9, "MPIIO": 100, "HDF5": 100}, ["POSIX", "STDIO"]),
        ({"POSIX": 0, "STDIO": 9, "MPIIO": 100, "HDF5": 90}, ["STDIO", "MPIIO"]),
        ({"HDF5": 0, "POSIX": 0}, ["POSIX"]),
        ({"STDIO": 9, "MPIIO": 100, "DFS": 100, "DAOS": 100}, ["STDIO", "DAOS"]),
        ({"POSIX": 200, "DFS": 100}, ["POSIX"]),
        ({}, []),
    ],
)
def test_of_counted_interfaces_those_count_that_carry_out_the_others(moved: dict[str, int], found: list[str]) -> None:
    assert lowest(moved) == found
