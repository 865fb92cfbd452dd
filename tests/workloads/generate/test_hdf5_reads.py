"""Reads of contiguous HDF5 datasets, against what strace shows of h5py: recorded, and live where strace is."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from dxt_replay.traces.schema import READ
from dxt_replay.workloads.generate.request_templates import (
    OPEN,
    Hdf5Reads,
    Layout,
    Samples,
    sample_requests,
)
from tests.workloads.generate.test_dlio_runs import generated

DATA_OFFSET = 2048
Read = tuple[int, int]

RECORDED: dict[tuple[int, int, tuple[int, ...]], list[Read]] = {
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
path, record, samples, indexes, stays_open = sys.argv[1], *map(int, sys.argv[2:4]), sys.argv[4].split(","), sys.argv[5]
with h5py.File(path, "w", libver="latest") as file:
    file["records_0"] = numpy.zeros((samples, record), dtype="u1")
print("written", flush=True)
file = h5py.File(path, "r")
for index in map(int, indexes):
    if stays_open == "no":
        file.close()
        file = h5py.File(path, "r")
    file["records_0"][index]
"""


def expected_reads(record: int, samples: int, indexes: tuple[int, ...], *, reopens: bool) -> list[Read]:
    """What the template says that the data reads are, headers left out."""
    count = len(indexes)
    every = np.ones(count, dtype=bool)
    found = sample_requests(
        "hdf5",
        Samples(
            size=np.full(count, DATA_OFFSET + record * samples + 8 * samples),
            sample_bytes=np.full(count, record),
            row_chunks=np.zeros(count, dtype=np.int64),
            index=np.array(indexes),
            opens=every if reopens else np.arange(count) == 0,
            closes=every if reopens else np.arange(count) == count - 1,
        ),
        Layout(samples_per_file=samples, hdf5=Hdf5Reads(older=False, data_offset=DATA_OFFSET)),
    )
    assert np.count_nonzero(found.op == OPEN) == (count if reopens else 1)
    reads = found.op == READ
    return of_data(zip(found.offset[reads].tolist(), found.length[reads].tolist(), strict=True))


def of_data(reads: Iterable[Read]) -> list[Read]:
    """The reads behind the headers."""
    return [(offset, length) for offset, length in reads if offset >= DATA_OFFSET]


@pytest.mark.parametrize("reopens", [True, False])
@pytest.mark.parametrize("case", RECORDED, ids=str)
def test_a_sample_is_read_as_strace_has_shown(case: tuple[int, int, tuple[int, ...]], reopens: bool) -> None:
    assert expected_reads(*case, reopens=reopens) == RECORDED[case]


@pytest.mark.skipif(shutil.which("strace") is None, reason="there is no strace")
@pytest.mark.parametrize("reopens", [True, False])
@pytest.mark.parametrize("case", RECORDED, ids=str)
def test_a_sample_is_read_as_strace_shows(
    case: tuple[int, int, tuple[int, ...]], reopens: bool, tmp_path: Path
) -> None:
    record, samples, indexes = case
    words = [str(tmp_path / "f.h5"), str(record), str(samples), ",".join(map(str, indexes)), "no" if reopens else "yes"]
    command = ["strace", "-f", "-o", str(tmp_path / "trace"), "-e", "trace=pread64,write"]
    if subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("strace may not trace here")
    subprocess.run([*command, sys.executable, "-c", PROGRAM, *words], check=True, capture_output=True)

    text = (tmp_path / "trace").read_text().partition('"written')[2]
    reads = [(int(offset), int(length)) for offset, length in re.findall(r"pread64\(.*, (\d+)\) += (\d+)", text)]
    assert of_data(reads) == expected_reads(*case, reopens=reopens)


@pytest.mark.parametrize("loader", ["pytorch", "tensorflow"])
def test_a_generated_run_reads_whole_buffers_up_to_the_end_of_the_dataset(loader: str, tmp_path: Path) -> None:
    values = {
        "framework": loader,
        "reader": {"data_loader": loader, "batch_size": 4, "read_threads": 2},
        "train": {"epochs": 1},
        "dataset": {
            "format": "hdf5",
            "num_files_train": 2,
            "num_samples_per_file": 100,
            "record_length_bytes": 4096,
            "data_folder": "data",
        },
    }
    lanes = generated({"workload": values, "reading": "documented", "ranks": 1}, tmp_path / "run.capture")
    reads = [each for visits in lanes[0].values() for _, requests in visits for each in requests]
    sizes = [int(each.split("+")[1]) for each in reads if int(each[1:].split("+")[0]) >= DATA_OFFSET]
    # 85 of the 100 samples of a file have 65,536 B behind them, the last 15 have 15, 14 ... 1 times 4,096 B.
    assert sum(sizes) == 2 * (85 * 65_536 + sum(range(1, 16)) * 4096)
