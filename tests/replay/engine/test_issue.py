"""The issue loop: what an operation does and gives."""

from __future__ import annotations

import errno
import os
import resource
import zlib
from pathlib import Path

from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files
from dxt_replay.replay.engine.items import (
    CLOSE,
    MARK,
    OPEN,
    READ_AT,
    RENAME,
    SEEK,
    SLEEP,
    SPIN,
    STAT,
    SYNC,
    WRITE_AT,
)
from tests.fakes import make_batch
from tests.replay.engine.issue_lanes import results, run_lane


def test_a_read_of_nothing_at_the_end_asks_for_a_page(data):
    # Only a file that has grown since it was opened shows what was asked for.
    files = Files([FileSlot(path=data, writable=True, uses=9)])
    grow = (WRITE_AT, 0, 10_000, 50_000, 0)
    assert results(files, grow, (READ_AT, 0, 10_000, 0, 0), (READ_AT, 0, 9_999, 0, 0), (READ_AT, 0, 40_000, 0, 0)) == [
        50_000,
        4096,
        0,
        4096,
    ]


def test_writes_make_and_extend_a_file_with_data_that_does_not_compress(tmp_path):
    path = tmp_path / "new"
    files = Files([FileSlot(path=bytes(path), writable=True, create=True, uses=3)])
    assert results(files, (WRITE_AT, 0, 0, 3_000_000, 0), (WRITE_AT, 0, 5_000_000, 7, 0), (WRITE_AT, 0, 10, 0, 0)) == [
        3_000_000,
        7,
        0,
    ]
    written = path.read_bytes()
    assert len(written) == 5_000_007
    assert len(zlib.compress(written[:3_000_000], 1)) > 2_990_000
    assert not any(written[3_000_000:5_000_000])


def test_data_can_be_made_before_it_is_due(tmp_path):
    path = tmp_path / "new"
    files = Files([FileSlot(path=bytes(path), writable=True, create=True, uses=2)])
    files.prepare_payload(5_000_000)
    assert results(files, (WRITE_AT, 0, 0, 5_000_000, 0), (WRITE_AT, 0, 5_000_000, 6_000_000, 0)) == [
        5_000_000,
        6_000_000,
    ]
    assert len(zlib.compress(path.read_bytes()[:5_000_000], 1)) > 4_990_000


def test_reads_of_many_sizes(tmp_path):
    path = tmp_path / "large"
    path.write_bytes(bytes(3 << 20))
    sizes = [1, 4096, 4097, 1 << 20, 5, (3 << 20) - 1, 3 << 20, 1 << 40, 100]
    files = Files([FileSlot(path=bytes(path), uses=len(sizes))])
    assert results(files, *((READ_AT, 0, 0, size, 0) for size in sizes)) == [min(size, 3 << 20) for size in sizes]


def test_compute_and_marks_have_no_result():
    files = Files([])
    items = [(SLEEP, -1, 0, 200_000, 0), (SPIN, -1, 0, 100_000, 0), (MARK, -1, 0, 0, 0), (SLEEP, -1, 0, 0, 0)]
    (completed,), lane = run_lane(files, make_batch(*items))
    took = completed.end_ns - completed.begin_ns
    assert completed.result.tolist() == [0, 0, 0, 0]
    assert took[0] >= 200_000
    assert took[1] >= 100_000
    assert took[2:].tolist() == [0, 0]
    assert lane.items_done == 4


def test_errors_of_the_system_are_results(data, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(os.fsdecode(data))
    slots = [
        FileSlot(path=bytes(tmp_path / "missing"), uses=1),
        FileSlot(path=bytes(tmp_path), uses=1),
        FileSlot(path=data, uses=1),
        FileSlot(path=bytes(link), writable=True, create=True, uses=1),
        FileSlot(path=bytes(link), uses=1),
    ]
    items = [
        (READ_AT, 0, 0, 1, 0),
        (READ_AT, 1, 0, 1, 0),
        (WRITE_AT, 2, 0, 1, 0),
        (WRITE_AT, 3, 0, 1, 0),
        (READ_AT, 4, 0, 1, 0),
    ]
    files = Files(slots)
    assert results(files, *items) == [-errno.ENOENT, -errno.EISDIR, -errno.EBADF, -errno.ELOOP, 1]
    assert [(f.slot, f.call, f.errno, f.path) for f in files.failures()] == [
        (0, "open", errno.ENOENT, slots[0].path),
        (3, "open", errno.ELOOP, slots[3].path),
    ]


def test_a_failed_open_is_not_tried_again(tmp_path):
    path = tmp_path / "late"
    files = Files([FileSlot(path=bytes(path), uses=4)])
    assert results(files, (READ_AT, 0, 0, 1, 0), (READ_AT, 0, 0, 1, 0)) == [-errno.ENOENT] * 2
    path.write_bytes(b"now")
    assert results(files, (READ_AT, 0, 0, 1, 0), (READ_AT, 0, 0, 1, 0)) == [-errno.ENOENT] * 2


def test_no_memory_is_a_result(tmp_path):
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 8 << 30)
    files = Files([FileSlot(path=bytes(path), writable=True, uses=3)])
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (512 << 20), limits[1]))
    try:
        got = results(files, (READ_AT, 0, 0, 1 << 40, 0), (WRITE_AT, 0, 0, 1 << 40, 0), (READ_AT, 0, 0, 100, 0))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert got == [-errno.ENOMEM, -errno.ENOMEM, 100]


def test_null_does_nothing_and_succeeds(tmp_path):
    slots = [FileSlot(path=bytes(tmp_path / name), writable=True, create=True, uses=20) for name in ("none", "new")]
    moves = [(READ_AT, 0, 0, 1 << 50, 0), (WRITE_AT, 0, 7, 9, 0), (READ_AT, 0, 7, 0, 0)]
    calls = [(kind, 0, 1, 0, 0) for kind in (OPEN, CLOSE, STAT, SYNC, SEEK, RENAME)]
    refused = [(READ_AT, 0, -1, 1, 0), (SEEK, 0, -1, 0, 0), (READ_AT, 2, 0, 1, 0), (OPEN, 2, 0, 0, 0)]
    errors = [-errno.EINVAL, -errno.EINVAL, -errno.EBADF, -errno.EBADF]
    assert results(Files(slots, "null"), *moves, *calls, *refused) == [1 << 50, 9, 0, *[0] * 6, *errors]
    assert not list(tmp_path.iterdir())
