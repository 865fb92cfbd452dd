"""The requests that reach the storage when an HDF5 capture is replayed through the library: those of the source.

The library reads through a Python file object, which notes each request.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

from dxt_replay.profiler_merge.hdf5 import hdf5_facts
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.replay.commands.main import cli
from dxt_replay.replay.engine.backends.hdf5 import Hdf5Backend
from dxt_replay.replay.target.hdf5_layout import Hdf5Files, hdf5_files
from dxt_replay.replay.target.stage import check_staged, plan_stage, stage
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.samples import sample
from dxt_replay.traces.schema import APIS, READ, codes
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.traces.store.writer import write_hdf5
from tests.capture_builder import File, Op, build_capture, read, write
from tests.places import CAPTURES

Request = tuple[int, int]
MOST_MORE = 0.05
"""The share by which the number of all requests may differ from the source's; those for data may not at all."""


class Recorder(io.FileIO):
    """A file that notes each read as (offset, bytes)."""

    def __init__(self, path, requests):
        super().__init__(path, "rb")
        self.requests = requests

    def readinto(self, buffer):
        self.requests.append((self.tell(), len(buffer)))
        return super().readinto(buffer) or 0


class RecordingBackend(Hdf5Backend):
    """Notes the requests of each path."""

    def __init__(self):
        self.requests: dict[bytes, list[Request]] = {}

    def access(self, path):
        access = super().access(path)
        recorder = Recorder(path, self.requests.setdefault(path, []))
        access.set_fileobj_driver(h5py.h5fd.fileobj_driver, recorder)
        return access


def source_requests(capture, rank, files):
    """(file_id, offset, length) of the POSIX reads of a rank on some files, in order."""
    found: list[tuple[int, int, int]] = []
    for batch in capture.operations(rank):
        mine = (codes(batch, "op") == READ) & (codes(batch, "api") == APIS.index("POSIX"))
        mine &= np.isin(batch.column("file_id").to_numpy(), list(files))
        columns = (batch.column(name).to_numpy()[mine].tolist() for name in ("file_id", "offset", "length"))
        found += list(zip(*columns, strict=True))
    return found


def data_only(files, requests):
    def is_data(file, offset, length):
        layout = files.layouts.get(file)
        return layout is None or bool(layout.is_data(np.array([offset]), np.array([length]))[0])

    return [request for request in requests if is_data(*request)]


def check_rank(capture, rank, target):
    """Replay one rank's data requests; what reached the storage is what the source read. Returns how many they are."""
    files = hdf5_files(capture)
    placements = check_staged(capture, target, hdf5=files)
    recorded = source_requests(capture, rank, files.layouts)
    data = data_only(files, recorded)
    backend = RecordingBackend()
    handles: dict[int, Any] = {}
    order: list[tuple[int, int, int]] = []
    for file, offset, length in data:
        path = placements[file].path
        if file not in handles:
            handles[file] = backend.open(path, writable=False, create=False)
        before = len(backend.requests[path])
        assert backend.read(handles[file], offset, length, memoryview(bytearray(length))) == length
        order += [(file, *request) for request in backend.requests[path][before:]]
    for handle in handles.values():
        backend.close(handle)
    assert data_only(files, order) == data
    total = sum(map(len, backend.requests.values()))
    if len(data) > len(recorded) / 2:  # of so short a run most requests are for metadata, and differ
        assert abs(total - len(recorded)) <= MOST_MORE * len(recorded), (total, len(recorded))
    return len(data)


@pytest.mark.parametrize("name", ["cosmictagger", "ffn", "climate"])
def test_recorded_jobs(name, tmp_path):
    """Of the package, and beside the checkout."""
    log, profiles = CAPTURES / name / "job.darshan", list[Path]()
    if name == "cosmictagger":
        files = sample(name)
        log, profiles = files.log, list(files.profiles)
    elif not log.exists():
        pytest.skip("the captures are not beside the checkout")
    merge([log], profiles, tmp_path / "c.capture")
    capture = open_capture(tmp_path / "c.capture")
    stage(plan_stage(capture, tmp_path / "target"))
    found = [check_rank(capture, rank, tmp_path / "target") for rank in capture.ranks]
    assert all(found)
    assert name != "cosmictagger" or found == [24002, 24002]


def captured_application(folder, path, accesses):
    """A capture of an application that reads selections of datasets of a file without a chunk cache."""
    requests: list[Request] = []
    with Recorder(os.fsencode(path), requests) as recorder, h5py.File(recorder, rdcc_nbytes=0) as file:
        for name, selection in accesses:
            file[name][selection]
    ops = [
        read(0, offset=offset, length=length, start_ns=2000 * number)
        for number, (offset, length) in enumerate(requests)
        if length
    ]
    return build_capture(folder, ops=ops, files=[File(str(path), format="hdf5", size=path.stat().st_size)])


@pytest.fixture
def source(tmp_path):
    """Compressed and other data, written out of order, with a hole."""
    rng = np.random.default_rng(9)
    path = tmp_path / "source.h5"
    with h5py.File(path, "w") as file:
        volume = file.create_dataset("raw", (64, 64, 64), dtype=np.uint16, chunks=(16, 16, 64), compression="gzip")
        for plane in (3, 0, 2):
            volume[16 * plane : 16 * plane + 16] = rng.integers(0, 1 << rng.integers(2, 14), (16, 64, 64))
        file.create_dataset("deep/er/labels", data=rng.integers(0, 99, 5000, dtype=np.int64), chunks=(512,))
        file.create_dataset("lzf", data=rng.integers(0, 20, (40, 100)), chunks=(8, 50), compression="lzf")
        file.create_dataset("flat", data=rng.random((300, 10)))
    return path


ACCESSES = [
    *[("raw", np.s_[z : z + 16, y : y + 16]) for z in (48, 0, 32) for y in (16, 0, 48, 32)],
    *[("deep/er/labels", np.s_[n : n + 512]) for n in (0, 2048, 512, 4096)],
    ("raw", np.s_[0:16, 0:16]),
    *[("lzf", np.s_[8 * n : 8 * n + 8, 50:]) for n in (4, 1, 0)],
]


def test_an_inspected_file(tmp_path, source):
    capture = captured_application(tmp_path, source, ACCESSES)
    table, warnings = hdf5_facts([], capture.files, inspect=True)
    assert not warnings
    write_hdf5(capture.path, table)
    capture = open_capture(capture.path)
    files = hdf5_files(capture)
    assert "index" in files.layouts[0].evidence
    stage(plan_stage(capture, tmp_path / "target"))
    check_rank(capture, 0, tmp_path / "target")
    data = data_only(files, source_requests(capture, 0, [0]))
    assert len(data) == len(ACCESSES)
    twin = check_staged(capture, tmp_path / "target")[0].path
    with h5py.File(source) as real, h5py.File(os.fsdecode(twin)) as file:
        for name in ("raw", "deep/er/labels", "lzf", "flat"):
            made, recorded = file[name.replace("/", ".")], real[name]
            assert (made.shape, made.chunks, made.dtype.itemsize) == (
                recorded.shape,
                recorded.chunks,
                recorded.dtype.itemsize,
            )
            if recorded.chunks:
                for number in range(recorded.id.get_num_chunks()):
                    mine, theirs = made.id.get_chunk_info(number), recorded.id.get_chunk_info(number)
                    assert (mine.chunk_offset, mine.byte_offset, mine.size) == (
                        theirs.chunk_offset,
                        theirs.byte_offset,
                        theirs.size,
                    )


def test_a_mapped_file_is_read_in_place(tmp_path, source):
    capture = captured_application(tmp_path, source, ACCESSES)
    write_hdf5(capture.path, hdf5_facts([], capture.files, inspect=True)[0])
    capture = open_capture(capture.path)
    data = data_only(hdf5_files(capture), source_requests(capture, 0, [0]))
    backend = RecordingBackend()
    handle = backend.open(os.fsencode(source), writable=False, create=False)
    opening = len(backend.requests[os.fsencode(source)])
    for _, offset, length in data:
        backend.read(handle, offset, length, memoryview(bytearray(length)))
    backend.close(handle)
    reads = [(0, *request) for request in backend.requests[os.fsencode(source)][opening:]]
    assert reads == data


def test_compressed_chunks_are_inferred(tmp_path, source):
    capture = captured_application(tmp_path, source, ACCESSES[:12])
    layout = hdf5_files(capture).layouts[0]
    assert [dataset.compressed for dataset in layout.datasets] == [True]
    stage(plan_stage(capture, tmp_path / "target"))
    check_rank(capture, 0, tmp_path / "target")


def test_files_that_are_none_stay_plain(tmp_path):
    """Overlapping requests, a written file, one that is only looked at; a layer above POSIX does not count."""
    ops = [
        read(0, offset=5000, length=700),
        read(0, offset=5100, length=900, start_ns=1),
        read(1, offset=4096, length=512, start_ns=2),
        write(1, offset=4096, length=512, start_ns=3),
        Op("open", 2, offset=-1, start_ns=4),
        read(3, offset=4096, length=700, start_ns=5, api="MPIIO"),
        read(4, offset=4096, length=700, start_ns=6),
    ]
    files = [File(f"/d/{name}.h5", format="hdf5") for name in "abcd"]
    capture = build_capture(tmp_path, ops=ops, files=[*files, File("/d/e.bin")])
    found = hdf5_files(capture)
    assert not found.layouts
    assert set(found.plain) == {0, 1}
    assert "overlap" in found.plain[0]
    assert "written" in found.plain[1]
    assert data_only(found, [(0, 0, 8), (4, 0, 8)]) == [(0, 0, 8), (4, 0, 8)]
    plan = plan_stage(capture, tmp_path / "target")
    assert any("plain bytes" in line and "a.h5" in line for line in plan.lines())


def test_a_run_past_the_library_need_not_know_the_chunks(tmp_path, source):
    """The twin is found by what it was made for; through the library only with the layout that it was made with."""
    target = tmp_path / "target"
    capture = captured_application(tmp_path, source, ACCESSES)
    stage(plan_stage(capture, target))
    assert not plan_stage(capture, target).to_write, "staged again, it is there"
    inferred = hdf5_files(capture)
    write_hdf5(capture.path, hdf5_facts([], capture.files, inspect=True)[0])
    capture = open_capture(capture.path)
    inspected = hdf5_files(capture)
    assert inspected.layouts[0].digest != inferred.layouts[0].digest
    first = list(check_staged(capture, target))
    with pytest.raises(TargetError, match="not staged"):
        check_staged(capture, target, hdf5=inspected)
    stage(plan_stage(capture, target))
    assert list(check_staged(capture, target, hdf5=inspected)) != first
    assert list(check_staged(capture, target, hdf5=inferred)) == first


@pytest.mark.parametrize(("api", "whole"), [("hdf5", False), ("posix", True)])
def test_one_twin_serves_the_library_and_requests_past_it(tmp_path, source, api, *, whole):
    capture = captured_application(tmp_path, source, ACCESSES)
    recorded = source_requests(capture, 0, [0])
    target, output = str(tmp_path / "target"), tmp_path / "replay.capture"
    Path(target).mkdir()
    for arguments in (
        ["stage", str(capture.path), "--target", target],
        ["run", str(capture.path), "--target", target, "-o", str(output), "--pace", "none", "--api", api],
        ["compare", str(capture.path), str(output)],
    ):
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == 0, result.output
    wanted = recorded if whole else data_only(hdf5_files(capture), recorded)
    assert source_requests(open_capture(output), 0, [0]) == wanted


def test_a_run_tells_which_files_stay_out_of_the_library(tmp_path):
    ops = [read(0, offset=5000, length=700), read(0, offset=5100, length=900, start_ns=1)]
    capture = build_capture(tmp_path, ops=ops, files=[File("/d/a.h5", format="hdf5")])
    notes = hdf5_files(capture).notes(capture)
    assert len(notes) == 1
    assert "/d/a.h5" in notes[0]
    assert "overlap" in notes[0]
    many = Hdf5Files(plain=dict.fromkeys(range(9), "it is written"))
    files = [File(f"/d/{number}.h5", format="hdf5") for number in range(9)]
    assert "4 more" in many.notes(build_capture(tmp_path, files=files, name="many"))[-1]
    assert not Hdf5Files().notes(capture)
