"""The files of a job that a tracer recorded: numbered as they are met, and what the trace counts of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.file_notes import AS_RECORDED, SUSPECT
from dxt_replay.profiler_merge.file_table import classify
from dxt_replay.traces.record_id import record_id
from dxt_replay.traces.schema import APIS, FILES_SCHEMA, OPS, READ, WRITE, table_from_columns

_COUNTED = {"opens": "open", "reads": "read", "writes": "write", "seeks": "seek"}
_OF_POSIX = {"stats": "stat", "fsyncs": "sync"}
_OF_STDIO = {"flushes": "sync"}


class TracedFiles:
    """Gives the files of a trace their file_id; `counts` holds operations and bytes by (column, file_id)."""

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
        """The path of a file, what is not UTF-8 as escapes."""
        return self._paths[self._numbers[file_id]].decode("utf-8", "backslashreplace")

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
        """Bytes that were read and written."""
        return sum(counts.total() for name, counts in self._counts.items() if "_bytes_" in name)

    def table(self, *, complete: bool) -> pa.Table:
        """The files as `FILES_SCHEMA`. `complete`: whether the trace is known to hold all that was read and written."""
        raw = [self._paths[number] for number in self._numbers]
        shown = [path.decode("utf-8", "backslashreplace") for path in raw]
        files = range(len(raw))
        moved = {file for name, counts in self._counts.items() if "_bytes_" in name for file in counts}
        columns = {
            "file_id": np.arange(len(raw), dtype=np.int32),
            "record_id": np.array([record_id(path) for path in raw], dtype=np.uint64),
            "path": shown,
            "path_bytes": [None if text.encode() == path else path for text, path in zip(shown, raw, strict=True)],
            "size": np.array(
                [max(self._ends[file], self._traced_sizes.get(number, 0)) for file, number in enumerate(self._numbers)],
                dtype=np.int64,
            ),
            "format": np.array([classify(path) for path in shown], dtype=np.int8),
            "mount": [""] * len(raw),
            "fs_type": [""] * len(raw),
            "coverage": [1.0 if complete and file in moved else None for file in files],
            "offsets": np.ma.masked_array(
                [SUSPECT if number in self._suspect else AS_RECORDED for number in self._numbers],
                mask=[file not in moved for file in files],
                dtype=np.int8,
            ),
        }
        columns |= {
            name: [counts[file] if self._used(name, file) else None for file in files]
            for name, counts in self._counts.items()
        }
        return table_from_columns(columns, FILES_SCHEMA)

    def _used(self, column: str, file: int) -> bool:
        """Whether the file was used at all through the interface of a column, so that 0 means none."""
        prefix = column.partition("_")[0]
        return any(file in counts for name, counts in self._counts.items() if name.startswith(prefix))
