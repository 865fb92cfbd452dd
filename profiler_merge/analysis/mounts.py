"""The file systems that a job used: files and bytes of each mount. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class MountTotals:
    """Files of one mount, and bytes of their traced reads and writes. `mount`: its directory; empty where unknown."""

    mount: str
    fs_type: str
    files: int
    bytes_read: int
    bytes_written: int


def mount_totals(recorded: pa.Table, accessed: pa.Table) -> tuple[MountTotals, ...]:
    """Totals of each mount, the one that moved the most first.

    `recorded`: the capture's files (`FILES_SCHEMA` of `traces.schema`); `accessed`: `patterns.FILES_SCHEMA`.
    """
    columns = ("file_id", "bytes_read", "bytes_written")
    sums: dict[tuple[str, str], list[int]] = {}
    mounts, types = recorded["mount"].to_pylist(), recorded["fs_type"].to_pylist()
    for file_id, read, written in zip(*(accessed[name].to_pylist() for name in columns), strict=True):
        total = sums.setdefault((mounts[file_id], types[file_id]), [0, 0, 0])
        for place, amount in enumerate((1, read, written)):
            total[place] += amount
    found = [
        MountTotals(mount=mount, fs_type=kind, files=files, bytes_read=read, bytes_written=written)
        for (mount, kind), (files, read, written) in sums.items()
    ]
    return tuple(sorted(found, key=lambda total: (-total.bytes_read - total.bytes_written, total.mount)))
