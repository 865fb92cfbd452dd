import errno
import os

import numpy as np
import pytest

from dxt_replay.profiler_merge.darshan import spilled
from dxt_replay.profiler_merge.darshan.spilled import ColumnFile, EmptyColumns, chunks, is_spilled, release
from dxt_replay.traces.errors import TargetError


def test_a_column_grows_in_a_file_without_a_name_and_keeps_what_is_written_to_it(tmp_path):
    file = ColumnFile(tmp_path, np.dtype(np.int64))
    file.append(np.arange(5))
    file.append(np.arange(5, 2_000, dtype=np.uint16))
    column = file.column()
    assert list(tmp_path.iterdir()) == []
    assert is_spilled(column[3:9])
    column[7:9] = -1
    release(column)
    assert column[:10].tolist() == [0, 1, 2, 3, 4, 5, 6, -1, -1, 9]
    assert len(column) == 2_000


def test_empty_columns_are_zeros(tmp_path):
    columns = EmptyColumns(tmp_path, {"offset": np.int64, "lane": np.int32}, 3_000)
    assert {name: (column.dtype, len(column)) for name, column in columns.items()} == {
        "offset": (np.int64, 3_000),
        "lane": (np.int32, 3_000),
    }
    assert not any(column.any() for column in columns.values())


def test_written_rows_are_seen_in_the_mapped_column(tmp_path, monkeypatch):
    columns = EmptyColumns(tmp_path, {"lane": np.int32}, 3_000)
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, place: whole(file, data[: len(data) // 2 + 1], place))
    columns.write("lane", 7, np.arange(2_000))
    assert columns["lane"][7:2_007].tolist() == list(range(2_000))
    assert not columns["lane"][:7].any()
    assert not columns["lane"][2_007:].any()


def test_a_disk_that_refuses_is_reported_with_its_place(tmp_path):
    for attempt in (
        lambda: EmptyColumns(tmp_path / "absent", {"offset": np.int64}, 10),
        lambda: EmptyColumns(tmp_path, {"offset": np.int64}, 1 << 58),
        lambda: ColumnFile(tmp_path / "absent", np.dtype(np.int64)),
    ):
        with pytest.raises(TargetError, match=f"cannot keep the operations of a large rank in files under {tmp_path}"):
            attempt()


def test_room_is_written_whole_where_a_file_system_cannot_reserve_it(tmp_path, monkeypatch):
    """A page of a map that the disk has no room for ends the process; `os.write` may write a part and say nothing."""

    def refuse(*_):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    whole = os.write
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    monkeypatch.setattr(os, "write", lambda descriptor, block: whole(descriptor, block[: len(block) // 2]))
    size = (3 << 20) + 5
    with (tmp_path / "room").open("w+b") as file:
        spilled._reserve(file.fileno(), size)
        assert os.fstat(file.fileno()).st_size >= size
        assert os.fstat(file.fileno()).st_blocks * 512 >= size


def test_chunks_are_all_rows_in_order():
    assert list(chunks(7, 3)) == [slice(0, 3), slice(3, 6), slice(6, 7)]
