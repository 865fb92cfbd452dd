import numpy as np
import pytest

from dxt_replay.replay.plan.chosen_layers import BACKENDS, choose_layers
from dxt_replay.traces.errors import UsageError
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


def chosen(tmp_path, **options):
    """(row, back end) of what is replayed."""
    capture = build_capture(tmp_path, ops=OPS, files=FILES)
    layers = choose_layers(capture, **options)
    (batch,) = capture.operations(0)
    mask = layers.replayed(batch)
    used = layers.backends(codes(batch, "api")[mask], batch.column("file_id").to_numpy()[mask])
    return list(zip(np.flatnonzero(mask).tolist(), [BACKENDS[code] for code in used], strict=True))


def test_auto_is_the_lowest_layer_through_what_it_was_recorded_at(tmp_path):
    expected = [(0, "posix"), (3, "mpiio"), (4, "stdio"), (5, "stdio"), (6, "posix")]
    assert chosen(tmp_path) == expected


def test_what_was_reconstructed_can_be_left_out(tmp_path):
    assert chosen(tmp_path, reconstruct=False) == [(0, "posix"), (3, "mpiio"), (4, "stdio")]


@pytest.mark.parametrize("api", ["stdio", "null"])
def test_one_back_end_for_all(tmp_path, api):
    assert chosen(tmp_path, api=api) == [(row, api) for row in (0, 3, 4, 5, 6)]


def test_the_flush_of_a_stream_is_nothing_without_streams(tmp_path):
    assert chosen(tmp_path, api="posix") == [(row, "posix") for row in (0, 3, 4, 6)]


def test_a_higher_layer_is_taken_where_there_are_rows_of_it(tmp_path):
    assert chosen(tmp_path, api="mpiio") == [(row, "mpiio") for row in (1, 3, 4, 6)]
    assert chosen(tmp_path, api="hdf5") == [(2, "hdf5"), (3, "mpiio"), (4, "stdio"), (5, "stdio"), (6, "posix")]


def test_another_word_is_refused(tmp_path):
    with pytest.raises(UsageError, match="smb"):
        choose_layers(build_capture(tmp_path), api="smb")
