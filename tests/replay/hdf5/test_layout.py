"""Layouts of HDF5 files from what a trace and its H5D records tell."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.target.hdf5_layout import REQUEST, KnownDataset, NoLayoutError, layout_of

OPENING = [(0, 8), (0, 48), (48, 48), (96, 512), (680, 512), (136, 544), (1072, 328), (800, 512)]
"""What the library asks for when it opens a file and its datasets, as a real trace has it."""


def found(requests, known=()):
    distinct = sorted(set(requests))
    return layout_of(np.array([(offset, length, 1) for offset, length in distinct], dtype=REQUEST), known)


def extents(made):
    starts, ends = made.extents
    return list(zip(starts.tolist(), (ends - starts).tolist(), strict=True))


def chunked(name, chunk, points, type_size=4):
    return KnownDataset(name=name, type_size=type_size, points=points, chunk_shape=chunk)


def row(first, size, count):
    return [(first + number * size, size) for number in range(count)]


def test_requests_of_a_chunk_s_size_are_chunks():
    chunks = row(4016, 500, 20) + row(20_000, 500, 3)
    made = found([*OPENING, (1400, 2616), *chunks], [chunked("/stats", (1, 125), 6250)])
    assert extents(made) == chunks
    (dataset,) = made.datasets
    assert (dataset.name, dataset.shape, dataset.chunk_shape) == ("/stats", (50, 125), (1, 125))
    assert not dataset.compressed


def test_the_library_s_own_requests_are_no_data():
    chunks = row(4016, 500, 20)
    requests = [*OPENING, (1400, 2616), *chunks]
    made = found(requests, [chunked("/stats", (1, 125), 6250)])
    offset, length = np.array(requests).T
    assert made.is_data(offset, length).tolist() == [False] * 9 + [True] * 20


@pytest.mark.parametrize("size", [512, 544, 2616])
def test_chunks_may_have_the_size_of_metadata(size):
    chunks = row(10_000, size, 50)
    made = found([*OPENING, *chunks], [chunked("x", (1, size), 100 * size, type_size=1)])
    assert set(chunks) <= set(extents(made))
    assert len(extents(made)) <= len(chunks) + 2  # a lone look at a header cannot be told from a chunk


def test_datasets_with_equal_chunks_share_them_in_order_beside_the_nodes_of_their_trees():
    pixels = row(4016, 2048, 30) + row(4016 + 30 * 2048 + 2616, 2048, 30)
    node = (4016 + 30 * 2048, 2616)
    labels = row(pixels[-1][0] + 2048 + 2096, 2048, 2)
    known = [chunked("/labels", (512,), 600), chunked("/pixels", (1, 2048), 60 * 2048, type_size=1)]
    made = found([*OPENING, node, (labels[0][0] - 2096, 2096), *pixels, *labels], known)
    by_name = {dataset.name: dataset.offset.tolist() for dataset in made.datasets}
    assert by_name == {"/pixels": [offset for offset, _ in pixels], "/labels": [offset for offset, _ in labels]}


def test_chunks_that_nobody_read_count_in_the_gaps():
    pixels, labels = row(4016, 2048, 60), row(4016 + 60 * 2048, 2048, 2)
    known = [chunked("/labels", (512,), 600), chunked("/pixels", (1, 2048), 60 * 2048, type_size=1)]
    made = found([*pixels[:10], *pixels[50:], *labels], known)
    assert {d.name: len(d.offset) for d in made.datasets} == {"/pixels": 20, "/labels": 2}


def test_requests_of_many_sizes_are_compressed_chunks():
    rng = np.random.default_rng(1)
    sizes = rng.integers(700, 3900, 40)
    chunks = list(zip((5000 + np.cumsum(sizes) - sizes).tolist(), sizes.tolist(), strict=True))
    made = found([*OPENING, (1400, 3136), *chunks], [chunked("/raw", (10, 10, 10), 200_000)])
    assert extents(made) == chunks
    assert made.datasets[0].compressed
    assert "compressed" in made.evidence


def test_a_contiguous_dataset_is_one_extent_however_it_was_read():
    reads = [(2048, 65536), (2048 + 65536, 65536), (2048 + 60000, 4096), (2048 + 131072, 1000)]
    made = found([*OPENING, *reads], [KnownDataset(name="/x", type_size=8, points=16509, chunk_shape=())])
    assert extents(made) == [(2048, 132_072)]
    assert made.datasets[0].name == "/x"


def test_without_records_equal_requests_are_chunks_and_others_compressed_ones():
    assert not found([*OPENING, *row(4016, 500, 9)]).datasets[0].compressed
    made = found([*OPENING, (5000, 700), (6000, 900)])
    assert made.datasets[0].compressed
    assert extents(made) == [(5000, 700), (6000, 900)]


@pytest.mark.parametrize(
    "requests",
    [
        [(5000, 700), (5100, 900), (5200, 1000), (6100, 800)],
        [(5000, 100_000), (5100, 700)],  # neither is a chunk, also where one has nearly all bytes
    ],
)
def test_overlap_is_no_layout(requests):
    with pytest.raises(NoLayoutError, match="overlap"):
        found(requests)


def test_overlap_of_more_bytes_than_int64_holds_is_no_layout():
    with pytest.raises(NoLayoutError):
        found([(4096, 1 << 62), (4097, 1 << 62)])


def test_only_metadata_is_no_layout():
    for known in ((), [chunked("x", (1, 125), 6250)]):
        with pytest.raises(NoLayoutError):
            found(OPENING, known)


def test_the_file_s_own_index_counts_before_sizes():
    known = KnownDataset(
        name="/x",
        type_size=1,
        points=4000,
        shape=(4000,),
        chunk_shape=(1000,),
        filters=("gzip",),
        index=np.array([3, 0]),
        offset=np.array([9000, 7000]),
        size=np.array([512, 700]),
    )
    made = found([*OPENING, (9000, 512), (7000, 700)], [known])
    assert made.datasets[0].index.tolist() == [0, 3]
    assert made.datasets[0].size.tolist() == [700, 512]
    with pytest.raises(NoLayoutError, match="changed"):
        found([(100_000, 4096), (9000, 512)], [known])


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 800)), min_size=1, max_size=30))
def test_whatever_was_read_a_layout_has_room_for_each_extent(requests):
    for known in ((), (chunked("x", (25,), 1000),), (KnownDataset(name="c", type_size=1, points=9, chunk_shape=()),)):
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
