"""Twins of HDF5 files: their layouts from what a trace and its H5D records tell; what h5py reads of them, where their
chunks lie; and the requests that reach the storage when a capture is replayed through the library: those of the source.

The library reads through a Python file object, which notes each request.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.hdf5 import hdf5_facts
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.engine.backends.hdf5 import Hdf5Backend
from dxt_replay.replay.target import hdf5_layout as layouts_module
from dxt_replay.replay.target.hdf5_layout import MAX_DATASETS, DatasetLayout, Hdf5Files, NoLayoutError, hdf5_files
from dxt_replay.replay.target.hdf5_twin import hdf5_bytes, hdf5_content
from dxt_replay.replay.target.stage import check_staged, plan_stage, stage
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.samples import sample
from dxt_replay.traces.schema import APIS, HDF5_SCHEMA, READ, codes
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.traces.store.writer import write_hdf5
from tests.capture_builder import File, Op, build_capture, read, write
from tests.examples import examples
from tests.places import CAPTURES
from tests.replay.target.test_content import HeldReader

OPENING = [(0, 8), (0, 48), (48, 48), (96, 512), (680, 512), (136, 544), (1072, 328), (800, 512)]
"""What the library asks for when it opens a file and its datasets, as a real trace has it."""


def stored(item):
    """Of a dataset in an HDF5 file: shapes, and index, offset and size of each chunk."""
    chunks = [item.id.get_chunk_info(number) for number in range(item.id.get_num_chunks() if item.chunks else 0)]
    places = [(chunk.chunk_offset, chunk.byte_offset, chunk.size) for chunk in chunks]
    return item.shape, item.chunks, item.dtype.itemsize, places


def found(requests, known=()):
    distinct = [(offset, length, 1) for offset, length in sorted(set(requests))]
    return layouts_module.layout_of(np.array(distinct, dtype=layouts_module.REQUEST), known)


def extents(made):
    return [(begin, end - begin) for begin, end in zip(*(each.tolist() for each in made.extents), strict=True)]


def chunked(name, chunk, points, type_size=4, **more):
    known = {"dataset": name, "type_size": type_size, "points": points, "chunk_shape": list(chunk), **more}
    return dict.fromkeys(HDF5_SCHEMA.names) | known


def row(first, size, count):
    return [(first + number * size, size) for number in range(count)]


def apart(first, sizes):
    return list(zip((first + np.cumsum(sizes) - sizes).tolist(), sizes.tolist(), strict=True))


STATS, NODE = row(4016, 500, 20) + row(20_000, 500, 3), (4016 + 30 * 2048, 2616)
PIXELS, LABELS = row(4016, 2048, 30) + row(sum(NODE), 2048, 30), row(sum(NODE) + 30 * 2048 + 2096, 2048, 2)
UNREAD, CLOSE = row(4016, 2048, 60), row(4016 + 60 * 2048, 2048, 2)
EQUAL = [chunked("/labels", (512,), 600), chunked("/pixels", (1, 2048), 60 * 2048, type_size=1)]
PACKED = apart(5000, np.random.default_rng(1).integers(700, 3900, 40))
INDEX = {"chunk_index": np.array([3, 0]), "chunk_offset": np.array([9000, 7000]), "chunk_size": np.array([512, 700])}
INDEXED = chunked("/x", (1000,), 4000, 1, shape=[4000], filters=["gzip"], **INDEX)


@pytest.mark.parametrize(
    ("requests", "known", "compressed", "datasets"),
    [
        # Requests of a chunk's size are chunks; datasets with equal chunks share them in order, and chunks that nobody
        # read count in the gaps.
        ([(1400, 2616), *STATS], [chunked("/stats", (1, 125), 6250)], False, {"/stats": STATS}),
        ([NODE, (LABELS[0][0] - 2096, 2096), *PIXELS, *LABELS], EQUAL, False, {"/pixels": PIXELS, "/labels": LABELS}),
        ([*UNREAD[:10], *UNREAD[50:], *CLOSE], EQUAL, False, {"/pixels": UNREAD[:10] + UNREAD[50:], "/labels": CLOSE}),
        # Requests of many sizes are compressed chunks, also without records.
        ([(1400, 3136), *PACKED], [chunked("/raw", (10, 10, 10), 200_000)], True, {"data": PACKED}),
        (row(4016, 500, 9), [], False, {"data": row(4016, 500, 9)}),
        ([(5000, 700), (6000, 900)], [], True, {"data": [(5000, 700), (6000, 900)]}),
        # A contiguous dataset is one extent however it was read.
        ([(2048, 65536), (67584, 65536), (62048, 4096), (133_120, 1000)], [chunked("/x", (), 16509, 8)], False,
         {"/x": [(2048, 132_072)]}),
        # The file's own index counts before sizes.
        ([(9000, 512), (7000, 700)], [INDEXED], True, {"/x": [(7000, 700), (9000, 512)]}),
    ],
)  # fmt: skip
def test_layouts(requests, known, compressed, datasets):
    made = found([*OPENING, *requests], known)
    places = {each.name: list(zip(each.offset.tolist(), each.size.tolist(), strict=True)) for each in made.datasets}
    assert places == datasets
    assert {each.compressed for each in made.datasets} == {compressed}
    data = {place for places in datasets.values() for place in places}
    reads_data = made.is_data(*np.array([*OPENING, *data]).T).tolist()
    assert reads_data == [False] * len(OPENING) + [True] * len(data), "the library's own requests are no data"
    for each in made.datasets:
        if each.name == "/stats":
            assert (each.shape, each.chunk_shape) == ((50, 125), (1, 125))
        if known == [INDEXED]:
            assert each.index.tolist() == [0, 3]


@pytest.mark.parametrize("size", [512, 544, 2616])
def test_chunks_may_have_the_size_of_metadata(size):
    chunks = row(10_000, size, 50)
    made = found([*OPENING, *chunks], [chunked("x", (1, size), 100 * size, type_size=1)])
    assert set(chunks) <= set(extents(made))
    assert len(extents(made)) <= len(chunks) + 2  # a lone look at a header cannot be told from a chunk


@pytest.mark.parametrize(
    ("requests", "why"),
    [
        ([(5000, 700), (5100, 900), (5200, 1000), (6100, 800)], "overlap"),
        ([(5000, 100_000), (5100, 700)], "overlap"),  # neither is a chunk, also where one has nearly all bytes
        ([(4096, 1 << 62), (4097, 1 << 62)], "overlap|no request|one of its"),  # more bytes than int64 holds
        (OPENING, "no request on it looks like one for data|none of its requests"),
        ([(100_000, 4096), (9000, 512)], "changed"),
    ],
)
def test_what_is_no_layout(requests, why):
    for known in ([INDEXED],) if why == "changed" else ((), [chunked("x", (1, 125), 6250)]):
        with pytest.raises(NoLayoutError, match=why):
            found(requests, known)


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 800)), min_size=1, max_size=30))
def test_whatever_was_read_a_layout_has_room_for_each_extent(requests):
    for known in ((), (chunked("x", (25,), 1000),), (chunked("c", (), 9, 1),)):
        try:
            made = found(requests, known)
        except NoLayoutError:
            continue
        starts, ends = made.extents
        assert np.all(starts[1:] >= ends[:-1])
        assert starts[0] >= 96
        assert all(len(d.index) == len(d.offset) == len(d.size) for d in made.datasets)
        offset, length = np.array(requests, dtype=np.int64).T
        assert made.is_data(offset, length).any()


def dataset(name, index, offset, size, *, shape, chunk=(), compressed=False, type_size=1):
    chunks = [np.array(each, dtype=np.int64) for each in (index, offset, size)]
    return DatasetLayout(name, type_size, shape, chunk, *chunks, compressed=compressed)


def checked(*datasets):
    return layouts_module._checked(datasets, "a test")


def one_chunk(name, offset):
    return dataset(name, [0], [offset], [8], shape=(8,), chunk=(8,))


def staged(path, *datasets, data_bytes=0, record_id=17):
    layout = checked(*datasets)
    content = hdf5_content(record_id, hdf5_bytes(layout, data_bytes), layout, data_bytes)
    path.write_bytes(b"".join(map(bytes, content.blocks())))
    assert path.stat().st_size == content.size
    assert content.first_difference(HeldReader(path.read_bytes()), 0, content.size) is None
    return content


@st.composite
def layouts(draw):
    """A few datasets of any shape whose chunks lie apart, in any order, some of them compressed."""
    made, at = [], 96 + draw(st.integers(0, 300))
    for number in range(draw(st.integers(1, 4))):
        chunk = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
        grid = tuple(draw(st.integers(1, 4)) for _ in chunk)
        type_size = draw(st.sampled_from((1, 2, 3, 4, 8, 24)))
        chunk_bytes, number_of_chunks = int(np.prod(chunk)) * type_size, int(np.prod(grid))
        compressed = draw(st.booleans())
        index = sorted(draw(st.sets(st.integers(0, number_of_chunks - 1), min_size=1, max_size=12)))
        places = []
        for _ in index:
            places.append((at, draw(st.integers(1, 2 * chunk_bytes)) if compressed else chunk_bytes))
            at += places[-1][1] + draw(st.integers(0, 40))
        offset, size = zip(*draw(st.permutations(places)), strict=True)
        shape = tuple(c * g - draw(st.integers(0, c - 1)) for c, g in zip(chunk, grid, strict=True))
        kind = {"shape": shape, "chunk": chunk, "compressed": compressed, "type_size": type_size}
        made.append(dataset(f"/group/set{number}", index, offset, size, **kind))
    return made


MANY, MANY_OFFSETS = 3000, (1000 + 24 * np.random.default_rng(2).permutation(3000)).tolist()


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layouts(), st.integers(0, 5000))
# A tree of several levels.
@example([dataset("x", list(range(MANY)), MANY_OFFSETS, [16] * MANY, shape=(MANY, 16), chunk=(1, 16))], 0)
# Contiguous data, and chunks that nobody read: both are fill values but for what is stored.
@example([dataset("x", [3], [500], [16], shape=(100,), chunk=(16,)), dataset("y", [0], [777], [50], shape=(50,))], 9)
# As many datasets as there may be.
@example([one_chunk(f"d{n}", 200 + 8 * n) for n in range(MAX_DATASETS)], 0)
def test_h5py_reads_all_of_it_and_finds_the_chunks_where_they_were(tmp_path, datasets, data_bytes):
    staged(tmp_path / "twin.h5", *datasets, data_bytes=data_bytes)
    raw = (tmp_path / "twin.h5").read_bytes()
    with h5py.File(tmp_path / "twin.h5") as file:
        assert len(file) == len(datasets)
        for layout in datasets:
            item = file[layout.name.strip("/").replace("/", ".")]
            shape, chunk, type_size, places = stored(item)
            assert (shape, chunk or (), type_size) == (layout.shape, layout.chunk_shape, layout.type_size)
            assert (item.compression == "gzip") == layout.compressed
            extents = [*zip(layout.offset.tolist(), layout.size.tolist(), strict=True)]
            if layout.chunk_shape:
                assert [place[1:] for place in places] == extents
                data = [item.id.read_direct_chunk(index)[1] for index, _, _ in places]
            else:
                assert (item.id.get_offset(), item.id.get_storage_size()) == extents[0]
                data = [item[...].tobytes()]
            assert data == [raw[offset:][:size] for offset, size in extents]
            if not layout.compressed:
                assert item[...].nbytes == int(np.prod(layout.shape)) * layout.type_size
                assert np.count_nonzero(item[...].view(np.uint8)) <= sum(size for _, size in extents)


def test_names_are_told_apart_and_stay_in_the_root(tmp_path):
    names = ["/a/b", "a.b", "", "../x", "."]
    staged(tmp_path / "a", *(one_chunk(name, 200 + 8 * at) for at, name in enumerate(names)))
    with h5py.File(tmp_path / "a") as file:
        assert sorted(file) == sorted(["a.b", "a.b-2", "data", "...x", "data-2"])


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        (dataset("x", [0], [200], [99], shape=(16,), chunk=(16,)), "other sizes"),
        (dataset("x", [9], [200], [16], shape=(16,), chunk=(16,)), "more chunks"),
        (dataset("x", [0], [95], [16], shape=(16,), chunk=(16,)), "superblock"),
        (dataset("x", [0], [200], [9], shape=(1 << 33,), chunk=(1 << 33,), compressed=True), "more than HDF5 allows"),
        ([one_chunk(f"d{n}", 200 + 8 * n) for n in range(MAX_DATASETS + 1)], "257 datasets"),
    ],
)
def test_what_cannot_be_made_is_told(layout, reason):
    with pytest.raises(NoLayoutError, match=reason):
        checked(*(layout if isinstance(layout, list) else [layout]))


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
        self.requests = {}

    def access(self, path):
        access = super().access(path)
        recorder = Recorder(path, self.requests.setdefault(path, []))
        access.set_fileobj_driver(h5py.h5fd.fileobj_driver, recorder)
        return access


def source_requests(capture, rank, files):
    """(file_id, offset, length) of the POSIX reads of a rank on some files, in order."""
    found = []
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
    handles = {}
    order = []
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
    """Of the package, and beside the checkout. The two ranks of the first are alike."""
    log, profiles = CAPTURES / name / "job.darshan", list[Path]()
    if name == "cosmictagger":
        files = sample(name)
        log, profiles = files.log, list(files.profiles)
    elif not log.exists():
        pytest.skip("the captures are not beside the checkout")
    merge([log], profiles, tmp_path / "c.capture")
    capture = open_capture(tmp_path / "c.capture")
    stage(plan_stage(capture, tmp_path / "target"))
    found = [check_rank(capture, rank, tmp_path / "target") for rank in capture.ranks[:1]]
    assert all(found)
    assert name != "cosmictagger" or found == [24002]


def captured_application(folder, path, accesses):
    """A capture of an application that reads selections of datasets of a file without a chunk cache."""
    requests = []
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
    target, output = tmp_path / "target", tmp_path / "replay.capture"
    target.mkdir()
    for command in (
        f"stage {capture.path} --target {target}",
        f"run {capture.path} --target {target} -o {output} --pace none --api {api}",
        f"compare {capture.path} {output}",
    ):
        assert main(command.split()) == 0
    wanted = recorded if whole else data_only(hdf5_files(capture), recorded)
    assert source_requests(open_capture(output), 0, [0]) == wanted


def test_a_run_tells_which_files_stay_out_of_the_library(tmp_path):
    capture = build_capture(tmp_path, files=[File(f"/d/{number}.h5", format="hdf5") for number in range(9)])
    notes = Hdf5Files(plain=dict.fromkeys(range(9), "it is written")).notes(capture)
    assert (notes[0], notes[-1]) == ("/d/0.h5 is not replayed as HDF5: it is written", "and 4 more HDF5 files are not")
