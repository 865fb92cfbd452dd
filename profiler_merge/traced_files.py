"""The files of a traced job, numbered in order of appearance, with counts from the trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.file_notes import AS_RECORDED, SUSPECT
from dxt_replay.profiler_merge.file_table import files_table
from dxt_replay.profiler_merge.left_out import shown
from dxt_replay.traces.record_id import record_id
from dxt_replay.traces.schema import APIS, OPS, READ, WRITE

_COUNTED = {"opens": "open", "reads": "read", "writes": "write", "seeks": "seek"}
_OF_POSIX = {"stats": "stat", "fsyncs": "sync"}
_OF_STDIO = {"flushes": "sync"}


class TracedFiles:
    """Assigns file_ids to the files of a trace; `counts` holds operations and bytes by (column, file_id)."""

    def __init__(self, paths: Sequence[bytes], sizes: Mapping[int, int], suspect: Mapping[int, int]) -> None:
        self._paths, self._traced_sizes, self._suspect = paths, sizes, suspect
        self._ids = np.full(len(paths), -1, dtype=np.int32)
        self._numbers: list[int] = []
        self._counts: dict[str, Counter[int]] = {}
        self._ends: Counter[int] = Counter()

    def number(self, files: np.ndarray) -> np.ndarray:
        """int32 file_id of each file of the trace, new ones in order of appearance."""
        unique, first = np.unique(files, return_index=True)
        for file in unique[np.argsort(first)].tolist():
            if self._ids[file] < 0:
                self._ids[file] = len(self._numbers)
                self._numbers.append(file)
        return self._ids[files]

    def name(self, file_id: int) -> str:
        """The path of a file, with bytes that are not UTF-8 as escapes."""
        return shown(self._paths[self._numbers[file_id]])

    def note(self, columns: Mapping[str, np.ndarray]) -> None:
        """Count the operations of a rank, given as columns of `OPS_SCHEMA`."""
        op, api, file_id, length = (columns[name] for name in ("op", "api", "file_id", "length"))
        for interface, prefix, own in (("POSIX", "posix", _OF_POSIX), ("STDIO", "stdio", _OF_STDIO)):
            mine = api == APIS.index(interface)
            for what, name in (_COUNTED | own).items():
                self._add(f"{prefix}_{what}", file_id[mine & (op == OPS.index(name))])
            for what, code in (("bytes_read", READ), ("bytes_written", WRITE)):
                moved = mine & (op == code)
                self._add(f"{prefix}_{what}", file_id[moved], length[moved])
        moved = ((op == READ) | (op == WRITE)) & (length > 0)
        ends = np.zeros(len(self._numbers), dtype=np.int64)
        np.maximum.at(ends, file_id[moved], np.maximum(columns["offset"][moved], 0) + length[moved])
        for file in np.flatnonzero(ends).tolist():
            self._ends[file] = max(self._ends[file], int(ends[file]))

    def _add(self, column: str, file_id: np.ndarray, amounts: np.ndarray | None = None) -> None:
        counts = self._counts.setdefault(column, Counter())
        sums = np.bincount(file_id, weights=amounts, minlength=len(self._numbers))
        for file in np.unique(file_id).tolist():
            counts[file] += int(sums[file])

    @property
    def moved(self) -> int:
        """Bytes read and written."""
        return sum(counts.total() for name, counts in self._counts.items() if "_bytes_" in name)

    def table(self, *, complete: bool) -> pa.Table:
        """The files as `FILES_SCHEMA`. `complete`: whether the trace surely holds all I/O."""
        paths = [self._paths[number] for number in self._numbers]
        moved = {file for name, counts in self._counts.items() if "_bytes_" in name for file in counts}
        sizes = [max(self._ends[file], self._traced_sizes.get(number, 0)) for file, number in enumerate(self._numbers)]
        return files_table(
            paths,
            record_id=np.array([record_id(path) for path in paths], dtype=np.uint64),
            size=np.array(sizes, dtype=np.int64),
            offsets=np.ma.masked_array(
                [SUSPECT if number in self._suspect else AS_RECORDED for number in self._numbers],
                mask=[file not in moved for file in range(len(paths))],
                dtype=np.int8,
            ),
            mount=[""] * len(paths),
            fs_type=[""] * len(paths),
            by_file={
                "coverage": dict.fromkeys(moved, 1.0) if complete else {},
                **{name: self._of_used(name, counts) for name, counts in self._counts.items()},
            },
        )

    def _of_used(self, column: str, counts: Counter[int]) -> dict[int, int]:
        """A column for the files that were used through its interface, so that 0 is distinct from unused."""
        prefix = column.partition("_")[0]
        used = set[int]().union(*(files for name, files in self._counts.items() if name.startswith(prefix)))
        return {file: counts[file] for file in used}
