"""Operations of a sample: against what strace shows of DLIO, and what must hold for any size.

`test_dlio_runs.py` compares the requests of whole runs; here is what those runs do not have.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.traces.schema import OPS, READ
from dxt_replay.workloads.generate.request_templates import (
    NPZ_DATA_OFFSET,
    Hdf5Reads,
    Layout,
    Samples,
    sample_requests,
)


def one_sample(size, sample_bytes, index=0, row_chunks=0, opens=True, closes=True):
    columns = {"size": size, "sample_bytes": sample_bytes, "row_chunks": row_chunks, "index": index}
    arrays = {name: np.array([value], dtype=np.int64) for name, value in columns.items()}
    return Samples(**arrays, opens=np.array([opens]), closes=np.array([closes]))


def rows(requests):
    return [
        (OPS[op], offset, length) if op == READ else OPS[op]
        for op, offset, length in zip(
            requests.op.tolist(), requests.offset.tolist(), requests.length.tolist(), strict=True
        )
    ]


def reads(requests):
    return [row[1:] for row in rows(requests) if isinstance(row, tuple)]


@pytest.mark.parametrize(
    ("file_format", "calls"),
    [
        ("npz", ["open", "stat", "stat", "close"]),
        ("csv", ["stat", "open", "stat", "close"]),
        *((name, ["open", "stat", "close"]) for name in ("npy", "jpeg", "png", "indexed_binary")),
    ],
)
def test_a_file_is_opened_and_closed_as_strace_shows(file_format, calls):
    found = rows(sample_requests(file_format, one_sample(10_498, 10_000), Layout()))
    assert [row for row in found if isinstance(row, str)] == calls


@given(
    sample_bytes=st.integers(1, 3_000_000),
    per_file=st.integers(1, 3),
    block=st.sampled_from([512, 4096, 65536, 1 << 20, 4 << 20]),
)
def test_npz_reads_all_values_once_for_any_block_size(sample_bytes, per_file, block):
    size = sample_bytes * per_file + 8 * per_file + 490
    layout = Layout(block_bytes=block, samples_per_file=per_file)
    found = np.array(reads(sample_requests("npz", one_sample(size, sample_bytes), layout))[5:])
    begin, end = found[:, 0], found.sum(axis=1)
    assert begin[0] == 0
    assert np.array_equal(begin[1:], end[:-1])
    assert NPZ_DATA_OFFSET + sample_bytes * per_file <= end[-1] <= size


def test_past_the_page_cache_a_file_is_one_read():
    requests = sample_requests("npz", one_sample(10_498, 10_000), Layout(odirect=True))
    assert rows(requests) == ["open", "stat", ("read", 0, 10_498), "close"]


def test_images_are_read_as_strace_shows():
    requests = sample_requests("jpeg", one_sample(200_389, 1), Layout())
    assert rows(requests)[:2] == ["open", "stat"]
    assert reads(requests) == [
        (0, 4096), (4096, 61440), (65536, 65536), (131072, 65536), (196608, 3781), (200389, 0),
    ]  # fmt: skip
    assert reads(sample_requests("jpeg", one_sample(51_463, 1), Layout())) == [(0, 4096), (4096, 47367), (51463, 0)]
    png = sample_requests("png", one_sample(361_133, 1), Layout())
    assert reads(png)[:5] == [(0, 4096), (4096, 61440), (65536, 4096), (69632, 61440), (131072, 4096)]
    assert reads(png)[-2:] == [(331776, 28672), (360448, 685)]


def test_an_open_hdf5_file_is_read_once():
    layout = Layout(samples_per_file=10, hdf5=Hdf5Reads(older=False, data_offset=2048, datasets=2))
    sample = one_sample(43_088, 4096, index=3, opens=False, closes=False)
    assert rows(sample_requests("hdf5", sample, layout)) == [
        ("read", 2048 + 3 * 2048, 7 * 2048), ("read", 2048 + 13 * 2048, 7 * 2048),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("samples", "index", "array"),
    [
        (4, 2, [(475, 818)]),
        (40, 38, [(4164, 8018)]),
        (60, 58, [(4164, 19), (12_379, 3812)]),
        (2000, 1998, [(4164, 25), (397_597, 6788)]),
        (2000, 40, [(4164, 25), (4189, 8196), (12_385, 8196)]),
    ],
)
def test_the_index_of_many_chunks_is_read_as_strace_shows(samples, index, array):
    """25 chunks of 46 x 46 per sample, but the first case, with 100 chunks in all."""
    hdf5 = Hdf5Reads(older=False, data_offset=2048, chunk_rows=1, chunk_bytes=2116)
    sample = one_sample(10_000_000, 40_000, index=index, row_chunks=25)
    found = reads(sample_requests("hdf5", sample, Layout(samples_per_file=samples, hdf5=hdf5)))
    assert found[4 : 5 + len(array)] == [(447, 28), *array]
    assert [length for _, length in found[5 + len(array) :]] == [2116] * 25


@pytest.mark.parametrize(("sample_bytes", "expected"), [(8192, (16384, 8192)), (2000, (4000, 4096))])
def test_indexed_binary_reads_the_sample_or_a_block(sample_bytes, expected):
    requests = sample_requests(
        "indexed_binary", one_sample(10 * sample_bytes, sample_bytes, index=2), Layout(samples_per_file=10)
    )
    assert rows(requests) == ["open", "stat", ("read", *expected), "close"]


def test_a_block_ends_with_its_file():
    requests = sample_requests("indexed_binary", one_sample(20_000, 2000, index=9), Layout(samples_per_file=10))
    assert reads(requests) == [(18_000, 2000)]


@pytest.mark.parametrize("file_format", ["mmap_indexed_binary", "synthetic"])
def test_mapped_and_made_up_samples_are_not_read(file_format):
    assert rows(sample_requests(file_format, one_sample(100, 10), Layout())) == []


@pytest.mark.parametrize("file_format", ["npz", "npy", "csv", "jpeg"])
def test_whole_files_are_loaded_when_they_are_opened(file_format):
    assert rows(sample_requests(file_format, one_sample(10_000, 100, opens=False), Layout())) == []
