"""Operations of a sample: against what strace shows of NumPy, Pillow, pandas and h5py, and what must hold for any size.

`test_dlio_runs.py` compares the requests of whole runs; here is what those runs do not have.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.traces.schema import OPS, READ
from dxt_replay.workloads.files import Hdf5Layout
from dxt_replay.workloads.generate.requests import NPZ_DATA_OFFSET, SAMPLE, Layout, sample_requests

DATA_OFFSET = 2048


def rows(file_format, size, sample_bytes, *, index=(0,), row_chunks=0, opens=True, closes=True, **layout):
    """(op, offset, length) of each read, and the names of the other operations."""
    samples = np.zeros(len(index), dtype=SAMPLE)
    for name, value in (("size", size), ("sample_bytes", sample_bytes), ("row_chunks", row_chunks)):
        samples["file"][name] = value
    samples["index"], samples["opens"], samples["closes"] = index, opens, closes
    found = sample_requests(samples, Layout(format=file_format, **layout))
    return [
        (offset, length) if op == READ else OPS[op]
        for op, offset, length in zip(*(found[name].tolist() for name in ("op", "offset", "length")), strict=True)
    ]


def reads(*args, **values):
    return [row for row in rows(*args, **values) if isinstance(row, tuple)]


def contiguous(samples, record, datasets=1):
    """Datasets of `samples` records behind the headers of `libver="latest"`."""
    return Hdf5Layout(
        names=("records",) * datasets, type_size=1, shape=(samples, record), chunk_shape=(), filters=(),
        data_offset=DATA_OFFSET, data_bytes=samples * record, other_bytes=DATA_OFFSET,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("file_format", "layout", "calls"),
    [
        ("npz", {}, "open stat stat close"), ("csv", {}, "stat open stat close"),
        *((name, {}, "open stat close") for name in ("npy", "jpeg", "png", "indexed_binary")),
        ("mmap_indexed_binary", {}, ""), ("synthetic", {}, ""), ("npz", {"odirect": True}, "open stat close"),
    ],
)  # fmt: skip
def test_a_file_is_opened_and_closed_as_strace_shows(file_format, layout, calls):
    found = rows(file_format, 10_498, 10_000, **layout)
    assert [row for row in found if isinstance(row, str)] == calls.split()
    if layout:  # past the page cache a file is one read
        assert found[2] == (0, 10_498)


@pytest.mark.parametrize(
    ("file_format", "size", "sample_bytes", "shown"),
    [
        ("npz", 2998, 2500, "0+2998 2976+22 2998+0 2956+42 2874+124 0+2998"),
        (
            "npz", 599_574, 599_076, "0+4096 599552+22 599574+0 599532+42 599450+124 0+4096 4096+4096 8192+253952 "
            "262144+4096 266240+258048 524288+4096 528384+69632 598016+1558",
        ),
        ("npy", 180_128, 180_000, "0+4096 0+128 0+4096 4096+172032 176128+4000"),
        ("jpeg", 200_389, 1, "0+4096 4096+61440 65536+65536 131072+65536 196608+3781 200389+0"),
        ("jpeg", 51_463, 1, "0+4096 4096+47367 51463+0"),
        (
            "png", 361_133, 1, "0+4096 4096+61440 65536+4096 69632+61440 131072+4096 135168+61440 196608+4096 "
            "200704+61440 262144+4096 266240+61440 327680+4096 331776+28672 360448+685",
        ),
    ],
)  # fmt: skip
def test_a_file_is_read_as_strace_shows_of_dlio(file_format, size, sample_bytes, shown):
    assert " ".join(f"{at}+{length}" for at, length in reads(file_format, size, sample_bytes)) == shown


@given(
    sample_bytes=st.integers(1, 3_000_000),
    per_file=st.integers(1, 3),
    block=st.sampled_from([512, 4096, 65536, 1 << 20, 4 << 20]),
)
def test_npz_reads_all_values_once_for_any_block_size(sample_bytes, per_file, block):
    size = sample_bytes * per_file + 8 * per_file + 490
    found = np.array(reads("npz", size, sample_bytes, block_bytes=block, samples_per_file=per_file)[5:])
    begin, end = found[:, 0], found.sum(axis=1)
    assert begin[0] == 0
    assert np.array_equal(begin[1:], end[:-1])
    assert NPZ_DATA_OFFSET + sample_bytes * per_file <= end[-1] <= size


def shown_by_strace(folder: Path, calls: str, program: str, *words: str) -> str:
    """What strace shows of a Python program; the test is skipped where it may not trace."""
    command = ["strace", "-f", "-o", str(folder / "trace"), "-e", f"trace={calls}"]
    if shutil.which("strace") is None or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("strace is not installed, or may not trace here")
    subprocess.run([*command, sys.executable, "-c", program, *words], check=True, capture_output=True)
    return (folder / "trace").read_text()


def test_mlperf_reads_a_file_whole_as_strace_shows(tmp_path):
    for file_format in ("npz", "npy", "jpeg", "png"):
        found = rows(file_format, 184_301, 184_301, whole=True)
        assert found == ["open", "stat", "stat", (0, 184_301), (184_301, 0), "close"]
    path = tmp_path / "data"
    path.write_bytes(bytes(184_301))
    text = shown_by_strace(tmp_path, "openat,read", f"with open({str(path)!r}, 'rb') as file: len(file.read())")
    calls = text.partition(f'"{path}"')[2].splitlines()[1:3]
    assert [int(call.rpartition(" = ")[2]) for call in calls] == [184_301, 0]


@pytest.mark.parametrize(
    ("size", "sample_bytes", "index", "expected"),
    [(81_920, 8192, 2, (16384, 8192)), (20_000, 2000, 2, (4000, 4096)), (20_000, 2000, 9, (18_000, 2000))],
)
def test_indexed_binary_reads_the_sample_or_a_block_up_to_the_end_of_the_file(size, sample_bytes, index, expected):
    found = rows("indexed_binary", size, sample_bytes, index=(index,), samples_per_file=10)
    assert found == ["open", "stat", expected, "close"]


def test_an_open_file_is_not_read_again_but_for_a_sample_of_hdf5():
    assert [rows(file_format, 10_000, 100, opens=False) for file_format in ("npz", "npy", "csv", "jpeg")] == [[]] * 4
    layout = {"samples_per_file": 10, "hdf5": contiguous(10, 2048, datasets=2)}
    assert rows("hdf5", 43_088, 4096, index=(3,), opens=False, closes=False, **layout) == [
        (2048 + 3 * 2048, 7 * 2048), (2048 + 13 * 2048, 7 * 2048),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("samples", "index", "array"),
    [
        (4, 2, [(475, 818)]), (40, 38, [(4164, 8018)]), (60, 58, [(4164, 19), (12_379, 3812)]),
        (2000, 1998, [(4164, 25), (397_597, 6788)]), (2000, 40, [(4164, 25), (4189, 8196), (12_385, 8196)]),
    ],
)  # fmt: skip
def test_the_index_of_many_chunks_is_read_as_strace_shows(samples, index, array):
    """25 chunks of 46 x 46 per sample, but the first case, with 100 chunks in all."""
    hdf5 = Hdf5Layout(
        names=("records",), type_size=1, shape=(samples, 230, 230), chunk_shape=(1, 46, 46), filters=(),
        data_offset=2048, data_bytes=samples * 25 * 2116, other_bytes=2048,
    )  # fmt: skip
    found = reads("hdf5", 10_000_000, 40_000, index=(index,), row_chunks=25, samples_per_file=samples, hdf5=hdf5)
    assert found[4 : 5 + len(array)] == [(447, 28), *array]
    assert [length for _, length in found[5 + len(array) :]] == [2116] * 25


RECORDED = {
    (512, 200, (0, 1, 127, 128, 199, 198, 0)): [
        (2048, 65536), (2560, 65536), (67072, 37376), (67584, 36864), (103936, 512), (103424, 1024), (2048, 65536)
    ],
    (4096, 40, (39, 38, 37, 20, 20, 0)): [
        (161792, 4096), (157696, 8192), (153600, 12288), (83968, 65536), (83968, 65536), (2048, 65536)
    ],
    (32768, 10, (0, 1, 9, 8, 2)): [(2048, 65536), (34816, 65536), (296960, 32768), (264192, 65536), (67584, 65536)],
    (65535, 6, (0, 1, 5)): [(2048, 65536), (67583, 65536), (329723, 65535)],
    (65536, 6, (0, 1, 1, 5)): [(2048, 65536), (67584, 65536), (67584, 65536), (329728, 65536)],
    (100_000, 4, (0, 1, 1, 3)): [(2048, 100_000), (102048, 100_000), (102048, 100_000), (302048, 100_000)],
}  # fmt: skip
"""(bytes of a record, records of the file, records in their order) -> offset and length of the reads, by h5py 3.16 and
HDF5 2.0: `file["records_0"][index]` for each record of a file that stays open. An open for each shows the same."""

PROGRAM = """
import sys, h5py, numpy
for number, (record, samples, indexes) in enumerate(eval(sys.argv[2])):
    with h5py.File(f"{sys.argv[1]}/{number}.h5", "w", libver="latest") as file:
        file["records_0"] = numpy.zeros((samples, record), dtype="u1")
    for reopens in (True, False):
        print("begin", flush=True)
        file = h5py.File(f"{sys.argv[1]}/{number}.h5", "r")
        for index in indexes:
            if reopens:
                file.close()
                file = h5py.File(f"{sys.argv[1]}/{number}.h5", "r")
            file["records_0"][index]
"""


def test_a_sample_of_a_contiguous_dataset_is_read_as_strace_shows(tmp_path: Path) -> None:
    for (record, samples, indexes), expected in RECORDED.items():
        size, layout = DATA_OFFSET + (record + 8) * samples, contiguous(samples, record)
        for opens in (True, np.arange(len(indexes)) == 0):
            found = reads("hdf5", size, record, index=indexes, opens=opens, samples_per_file=samples, hdf5=layout)
            assert [read for read in found if read[0] >= DATA_OFFSET] == expected
    text = shown_by_strace(tmp_path, "pread64,write", PROGRAM, str(tmp_path), str(list(RECORDED)))
    twice = [expected for expected in RECORDED.values() for _ in (True, False)]
    for part, expected in zip(text.split('"begin')[1:], twice, strict=True):
        shown = [(int(offset), int(length)) for offset, length in re.findall(r"pread64\(.*, (\d+)\) += (\d+)", part)]
        assert [read for read in shown if read[0] >= DATA_OFFSET] == expected
