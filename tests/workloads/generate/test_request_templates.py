"""Operations of a sample: against what strace shows of DLIO, and what must hold for any size."""

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
    index_requests,
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


def test_npz_reads_what_strace_shows():
    size = 1_000_498
    requests = sample_requests("npz", one_sample(size, 1_000_000), Layout())
    assert rows(requests)[:3] == ["open", "stat", "stat"]
    assert rows(requests)[-1] == "close"
    assert reads(requests) == [
        (0, 4096), (size - 22, 22), (size, 0), (size - 42, 42), (size - 124, 124), (0, 4096), (4096, 4096),
        (8192, 253952), (262144, 4096), (266240, 258048), (524288, 4096), (528384, 258048), (786432, 4096),
        (790528, 208896), (999424, 1074),
    ]  # fmt: skip


def test_a_file_of_146_mb_takes_about_1126_reads():
    assert len(reads(sample_requests("npz", one_sample(146_600_498, 146_600_000), Layout()))) == 1127


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


def test_npy_reads_its_values_through_a_stream():
    requests = sample_requests("npy", one_sample(10_128, 10_000), Layout())
    assert reads(requests) == [(0, 4096), (0, 128), (0, 4096), (4096, 4096), (8192, 1936)]


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


def test_hdf5_reads_headers_and_the_sample():
    layout = Layout(samples_per_file=10, hdf5=Hdf5Reads(older=False, data_offset=2048))
    requests = sample_requests("hdf5", one_sample(43_088, 4096, index=3), layout)
    assert reads(requests) == [(0, 8), (0, 48), (48, 512), (179, 512), (2048 + 3 * 4096, 7 * 4096)]


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


def test_chunked_hdf5_of_the_older_layout_reads_what_strace_shows():
    hdf5 = Hdf5Reads(older=True, data_offset=4536, chunk_rows=1, chunk_bytes=10_000)
    layout = Layout(samples_per_file=4, hdf5=hdf5)
    requests = sample_requests("hdf5", one_sample(646_616, 316 * 316, index=1, row_chunks=16), layout)
    headers = [(0, 8), (0, 48), (48, 48), (96, 512), (680, 512), (136, 544), (1072, 328), (800, 512), (1400, 3136)]
    assert reads(requests) == headers + [(4536 + chunk * 10_000, 10_000) for chunk in range(16, 32)]


@pytest.mark.parametrize(("sample_bytes", "expected"), [(8192, (16384, 8192)), (2000, (4000, 4096))])
def test_indexed_binary_reads_the_sample_or_a_block(sample_bytes, expected):
    requests = sample_requests(
        "indexed_binary", one_sample(10 * sample_bytes, sample_bytes, index=2), Layout(samples_per_file=10)
    )
    assert rows(requests) == ["open", "stat", ("read", *expected), "close"]


def test_a_block_ends_with_its_file():
    requests = sample_requests("indexed_binary", one_sample(20_000, 2000, index=9), Layout(samples_per_file=10))
    assert reads(requests) == [(18_000, 2000)]


def test_index_files_hold_a_number_per_sample():
    assert rows(index_requests(10, 2)) == ["open", "stat", ("read", 0, 80), "close"] * 2


@pytest.mark.parametrize("file_format", ["mmap_indexed_binary", "synthetic"])
def test_mapped_and_made_up_samples_are_not_read(file_format):
    assert rows(sample_requests(file_format, one_sample(100, 10), Layout())) == []


@pytest.mark.parametrize("file_format", ["npz", "npy", "csv", "jpeg"])
def test_whole_files_are_loaded_when_they_are_opened(file_format):
    assert rows(sample_requests(file_format, one_sample(10_000, 100, opens=False), Layout())) == []


def test_samples_keep_their_order():
    samples = Samples(
        size=np.array([10_498, 498 + 20_000]),
        sample_bytes=np.array([10_000, 20_000]),
        row_chunks=np.zeros(2, dtype=np.int64),
        index=np.zeros(2, dtype=np.int64),
        opens=np.ones(2, dtype=bool),
        closes=np.ones(2, dtype=bool),
    )
    together = sample_requests("npz", samples, Layout())
    apart = [sample_requests("npz", one_sample(size, size - 498), Layout()) for size in (10_498, 20_498)]
    assert rows(together) == rows(apart[0]) + rows(apart[1])
    assert together.counts.tolist() == [len(each.op) for each in apart]
