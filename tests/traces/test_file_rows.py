from __future__ import annotations

import pyarrow as pa
import pytest

from dxt_replay.traces.files import exact_paths, probably_mapped
from tests.capture_builder import File, files_table


def test_the_exact_bytes_of_a_path() -> None:
    files = pa.table({"path": ["/a", "/\\xff", "/é"], "path_bytes": pa.array([None, b"/\xff", None], pa.binary())})
    assert exact_paths(files) == [b"/a", b"/\xff", "/é".encode()]
    assert exact_paths(files.slice(1, 1)) == [b"/\xff"]


@pytest.mark.parametrize(
    ("counters", "mapped"),
    [
        ({"posix_opens": 2, "posix_seeks": 3, "posix_reads": 0}, True),
        ({"posix_opens": 2, "posix_seeks": 3, "posix_reads": 1}, False),
        ({"posix_opens": 2, "posix_seeks": 0, "posix_reads": 0}, False),
        ({"posix_opens": 1, "posix_seeks": 1, "posix_writes": 4}, False),
        ({"posix_opens": 1, "posix_seeks": 1, "mpiio_reads": 4}, False),
        ({"stdio_opens": 1, "stdio_seeks": 1}, False),
        ({}, False),
    ],
)
def test_a_file_that_is_positioned_and_never_read_was_probably_mapped(counters: dict[str, int], mapped: bool) -> None:
    table = files_table([File("/data", counters=counters), File("<STDIN>", counters=counters)], [])
    assert probably_mapped(table).tolist() == [mapped, False]
