"""Small Darshan logs for the tests of their readers."""

from pathlib import Path
from typing import Any

from dxt_replay.profiler_merge.darshan.counter_layouts import LAYOUTS
from dxt_replay.profiler_merge.darshan.log import DarshanLog, open_log
from tests.darshan_writer import ModuleSpec, write_log

PFL = [
    (1 << 20, 1, 0, 16, 0, 1 << 26, 0, b"ssd"),
    (4 << 20, 3, 0, 16, 1 << 26, -1, 0, b""),
    (-1, 0, 0, 0, 0, 0, 0, b""),
]
"""Components of a progressive layout on Lustre, of which the last one is unused."""


def one_module(target: Path, module: str, version: int, *streams: bytes, **options: Any) -> DarshanLog:
    write_log(target, modules={module: ModuleSpec(version=version, streams=streams)}, **options)
    return open_log(target)


def numbered_rows(module: str, version: int, count: int = 3) -> list[dict[str, Any]]:
    """Rows in which every counter has a value of its own."""
    layout, rows = LAYOUTS[module, version], []
    for row in range(count):
        values: dict[str, Any] = {"record_id": 2**64 - 1 - row, "rank": row - 1}
        if layout.has_file_id:
            values["file_id"] = 2**63 + row
        values |= {name: 1000 * row + number for number, name in enumerate(layout.counters)}
        values |= {name: 1000.5 * row + number for number, name in enumerate(layout.fcounters)}
        if layout.stdio_counter:
            values[layout.stdio_counter] = 0
        rows.append(values)
    return rows
