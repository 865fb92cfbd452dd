"""What of a capture is replayed, by which back end, and what each rank has to do then."""

import numpy as np
import pytest

from dxt_replay.replay.plan.layers import BACKENDS, choose_layers, survey_rank
from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.schema import codes
from tests.capture_builder import File, Op, build_capture, read, write

OPS = [
    read(0, start_ns=0, length=8),
    read(0, start_ns=1, length=8, api="MPIIO"),
    read(0, start_ns=2, length=8, api="HDF5"),
    read(1, start_ns=3, length=8, api="MPIIO_COLL"),
    write(2, start_ns=4, length=8, api="STDIO"),
    Op("sync", 2, start_ns=5, api="STDIO", origin="reconstructed"),
    Op("open", 3, start_ns=6, offset=-1, origin="reconstructed"),
]
FILES = [File("/a.h5", format="hdf5"), "/b", "/log", File("/looked-at", size=0)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # The lowest layer, through what it was recorded at.
        ({}, "0 posix, 3 mpiio, 4 stdio, 5 stdio, 6 posix"),
        ({"reconstruct": False}, "0 posix, 3 mpiio, 4 stdio"),
        ({"api": "stdio"}, "0 stdio, 3 stdio, 4 stdio, 5 stdio, 6 stdio"),
        ({"api": "null"}, "0 null, 3 null, 4 null, 5 null, 6 null"),
        # The flush of a stream is nothing without streams.
        ({"api": "posix"}, "0 posix, 3 posix, 4 posix, 6 posix"),
        # A higher layer where there are rows of it.
        ({"api": "mpiio"}, "1 mpiio, 3 mpiio, 4 mpiio, 6 mpiio"),
        ({"api": "hdf5"}, "2 hdf5, 3 mpiio, 4 stdio, 5 stdio, 6 posix"),
    ],
)
def test_rows_and_back_ends(tmp_path, options, expected):
    capture = build_capture(tmp_path, ops=OPS, files=FILES)
    layers = choose_layers(capture, **options)
    (batch,) = capture.operations(0)
    mask = layers.replayed(batch)
    used = layers.backends(codes(batch, "api")[mask], batch.column("file_id").to_numpy()[mask])
    found = [f"{row} {BACKENDS[code]}" for row, code in zip(np.flatnonzero(mask), used, strict=True)]
    assert ", ".join(found) == expected


def surveyed(capture, rank=0):
    return survey_rank(capture, rank, choose_layers(capture))


def test_a_file_recorded_at_two_layers_is_replayed_at_one(tmp_path):
    ops = [
        read(0, lane=0, start_ns=1, length=8),
        read(0, lane=2, start_ns=0, length=8, api="MPIIO"),
        read(1, lane=2, start_ns=5, length=8, api="MPIIO"),
        read(1, lane=2, start_ns=5, length=8, api="MPIIO_COLL"),
        read(1, lane=3, start_ns=6, length=8, api="HDF5"),
        write(2, lane=1, start_ns=7, length=4),
        Op("open", 0, start_ns=8, origin="reconstructed"),
    ]
    survey = surveyed(build_capture(tmp_path, ops=ops, files=["/both", "/mpi", "/out"]))
    assert dict(survey.slots[["file_id", "uses"]].tolist()) == {0: 2, 1: 2, 2: 1}
    assert survey.lanes == (0, 1, 2)
    assert (survey.reads.tolist(), survey.writes.tolist()) == ([0, 1], [2])
    assert (survey.operations, survey.left_out) == (5, 2)


def test_the_layer_of_a_file_is_the_same_on_all_ranks(tmp_path):
    # Rank 0 aggregated the collective read of both: replaying rank 1 at MPI-IO would read the bytes twice.
    ops = [read(0, rank=rank, api="MPIIO_COLL", length=8) for rank in (0, 1)] + [read(0, rank=0, length=16)]
    capture = build_capture(tmp_path, ops=ops, files=["/shared"])
    found = [surveyed(capture, rank) for rank in (0, 1)]
    assert [(survey.operations, survey.lanes) for survey in found] == [(1, (0,)), (0, ())]


def test_a_rename_to_a_file_that_there_is_not_is_damage(tmp_path):
    capture = build_capture(tmp_path, ops=[Op("rename", 0, other_file_id=7)], files=[File("/a", size=0)])
    with pytest.raises(CaptureError, match="rename"):
        surveyed(capture)
