"""Finds the HDF5 files of a capture that can be replayed chunk by chunk, and says why others cannot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from dxt_replay.replay.hdf5.file_metadata import can_be_made
from dxt_replay.replay.hdf5.layout import Hdf5Layout, KnownDataset, NoLayout, layout_of
from dxt_replay.traces.schema import APIS, FORMATS, READ, WRITE, codes
from dxt_replay.traces.store.index import USAGE_COLUMNS, UsageCounter
from dxt_replay.traces.store.reader import Capture

MAX_REQUESTS = 1 << 24
"""Distinct requests of a file beyond which its layout is not looked for: it would be larger than the rest of a plan."""

_SHOWN = 5
_FOLD_ROWS = 1 << 19
_POSIX = APIS.index("POSIX")
_HDF5 = FORMATS.index("hdf5")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hdf5Files:
    """`layouts`: by file_id; `plain`: the HDF5 files that have none, with the reason."""

    layouts: Mapping[int, Hdf5Layout] = field(default_factory=dict)
    plain: Mapping[int, str] = field(default_factory=dict)

    def is_own_request(self, file_id: np.ndarray, offset: np.ndarray, length: np.ndarray) -> np.ndarray:
        """bool[n]: the requests on files with a layout that are the library's own, for its metadata.

        Where those files are replayed through the library they are not reissued: it makes them again. The mask of the
        operations to issue is the complement.
        """
        own = np.zeros(len(file_id), dtype=bool)
        for file, layout in self.layouts.items():
            mine = np.flatnonzero(file_id == file)
            if len(mine):
                own[mine] = ~layout.is_data(offset[mine], length[mine])
        return own

    def data_usage(self, capture: Capture, rank: int) -> pa.Table:
        """`capture.usage(rank)` without the library's own requests. Reads the rank's rows if it uses such a file.

        Raises: CaptureError when a part is damaged.
        """
        used = capture.usage(rank)
        if not np.isin(used["file_id"].to_numpy(), list(self.layouts)).any():
            return used
        counter = UsageCounter()
        for batch in capture.operations(rank, columns=USAGE_COLUMNS):
            counter.add(batch.filter(pa.array(~self.own_rows(batch))))
        return counter.table()

    def notes(self, capture: Capture) -> tuple[str, ...]:
        """One line for each file that is not opened through the library, with the reason, for a run with `--api
        hdf5`."""
        if not self.plain:
            return ()
        paths = capture.paths()
        shown = [
            f"{paths[file]} is not replayed as HDF5: {reason}" for file, reason in list(self.plain.items())[:_SHOWN]
        ]
        rest = len(self.plain) - _SHOWN
        return (*shown, f"and {rest} more HDF5 files are not") if rest > 0 else tuple(shown)

    def own_rows(self, batch: pa.RecordBatch | pa.Table) -> np.ndarray:
        """`is_own_request` of the rows of a batch (columns op, api, file_id, offset, length): POSIX reads alone."""
        reads = (codes(batch, "op") == READ) & (codes(batch, "api") == _POSIX)
        rows = np.flatnonzero(reads)
        own = np.zeros(len(reads), dtype=bool)
        own[rows] = self.is_own_request(
            *(batch.column(name).to_numpy()[rows] for name in ("file_id", "offset", "length"))
        )
        return own


def hdf5_files(capture: Capture) -> Hdf5Files:
    """The layouts of the HDF5 files, from one pass over the requests of the whole capture: its parts
    share one twin. A file that is written, or not read at POSIX, has no layout.

    Raises: CaptureError when a part is damaged.
    """
    wanted = codes(capture.files, "format") == _HDF5
    if not wanted.any():
        return Hdf5Files(layouts={}, plain={})
    requests, refused = _requests(capture.whole, wanted)
    known = known_datasets(capture.hdf5)
    layouts: dict[int, Hdf5Layout] = {}
    plain = dict(refused)
    for file, (offset, length, uses) in requests.items():
        if file in refused:  # written after it was read
            continue
        found = layout_of(offset, length, uses, known.get(file, ()))
        reason = found.reason if isinstance(found, NoLayout) else can_be_made(found)
        if isinstance(found, Hdf5Layout) and reason is None:
            layouts[file] = found
        else:
            plain[file] = str(reason)
    return Hdf5Files(layouts=layouts, plain=plain)


_Requests = tuple[np.ndarray, np.ndarray, np.ndarray]


def _requests(capture: Capture, wanted: np.ndarray) -> tuple[dict[int, _Requests], dict[int, str]]:
    """Distinct POSIX reads of each wanted file (offset, length, uses); and the files that have too many."""
    found: dict[int, _Distinct] = defaultdict(_Distinct)
    refused: dict[int, str] = {}
    ranks = [rank for rank in capture.ranks if wanted[capture.usage(rank)["file_id"].to_numpy()].any()]
    for batch in capture.operations(ranks, columns=["op", "api", "file_id", "offset", "length"]):
        file_id = batch.column("file_id").to_numpy()
        op, posix = codes(batch, "op"), codes(batch, "api") == _POSIX
        mine = wanted[file_id]
        for file in np.unique(file_id[mine & (op == WRITE)]).tolist():
            refused[file] = "it is written"
        offset, length = batch.column("offset").to_numpy(), batch.column("length").to_numpy()
        reads = np.flatnonzero(mine & (op == READ) & posix & (offset >= 0))
        for file in np.unique(file_id[reads]).tolist():
            if file in refused:
                continue
            rows = reads[file_id[reads] == file]
            if found[file].add(offset[rows], length[rows]) > MAX_REQUESTS:
                refused[file] = f"more than {MAX_REQUESTS} different requests"
                del found[file]
    return {file: distinct.requests() for file, distinct in found.items()}, refused


class _Distinct:
    """Counts the distinct requests on a file. New ones are sorted in when there are as many as known ones."""

    def __init__(self) -> None:
        self._parts: list[_Requests] = []
        self._known = 0
        self._new = 0

    def add(self, offset: np.ndarray, length: np.ndarray) -> int:
        """Note requests, int64[n] each; how many distinct ones were known at the last sorting."""
        self._parts.append((offset, length, np.ones(len(offset), dtype=np.int64)))
        self._new += len(offset)
        if self._new >= max(self._known, _FOLD_ROWS):
            self.requests()
        return self._known

    def requests(self) -> _Requests:
        """All of them in order of offset and length, with how often each was made."""
        offset, length, uses = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        order = np.lexsort((length, offset))
        offset, length, uses = offset[order], length[order], uses[order]
        first = np.concatenate(([True], (np.diff(offset) != 0) | (np.diff(length) != 0)))
        distinct = offset[first], length[first], np.add.reduceat(uses, np.flatnonzero(first))
        self._parts, self._known, self._new = [distinct], len(distinct[0]), 0
        return distinct


def known_datasets(table: pa.Table) -> dict[int, list[KnownDataset]]:
    """The rows of a capture's table of HDF5 datasets, by file_id."""
    datasets: dict[int, list[KnownDataset]] = defaultdict(list)
    for row in table.to_batches():
        for number, file in enumerate(row.column("file_id").to_pylist()):
            datasets[file].append(_known(row, number))
    return dict(datasets)


def _known(batch: pa.RecordBatch, number: int) -> KnownDataset:
    def values(column: str) -> np.ndarray | None:
        cell = batch.column(column)[number]
        return cell.values.to_numpy(zero_copy_only=False) if cell.is_valid else None

    def dimensions(column: str) -> tuple[int, ...] | None:
        found = batch.column(column)[number].as_py()
        return None if found is None else tuple(found)

    filters = batch.column("filters")[number].as_py()
    return KnownDataset(
        name=batch.column("dataset")[number].as_py(),
        type_size=batch.column("type_size")[number].as_py(),
        points=batch.column("points")[number].as_py(),
        shape=dimensions("shape"),
        chunk_shape=dimensions("chunk_shape"),
        filters=None if filters is None else tuple(filters),
        index=values("chunk_index"),
        offset=values("chunk_offset"),
        size=values("chunk_size"),
    )
