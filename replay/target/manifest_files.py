"""The entries of a manifest: one file of ours as a row, and all of them as columns."""

from __future__ import annotations

import functools
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.replay.target.containment import is_contained
from dxt_replay.replay.target.path_columns import ascending_order, booleans, column, pieces
from dxt_replay.replay.target.placement import OWN_ROOT_ID_CHARS, TWIN_ROOT

PLANNED = "planned"
"""State of a file that is to be written; it may exist already, or not."""
WHOLE = "whole"
"""State of a file that is written to its full size."""
CREATED_BY_RUN = "created_by_run"
"""State of a file that the captured job only writes: each run makes it anew."""
STATES = (PLANNED, WHOLE, CREATED_BY_RUN)

BELOW_A_ROOT = rf"^{TWIN_ROOT}(-[0-9a-f]{{{OWN_ROOT_ID_CHARS}}})?/"
OURS = re.compile(BELOW_A_ROOT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFile:
    """One file: `path` below the target, `size` in bytes; a `sparse` one is a hole of that size.

    `data_bytes`: the bytes of a real HDF5 file that accesses need, without its metadata.
    `layout`: digest of where its chunks lie. Both None for other files.
    `written`: True for a staged file that replays write into, or give another name; else None.
    """

    path: str
    size: int
    record_id: int
    sparse: bool
    state: str
    data_bytes: int | None = None
    layout: str | None = None
    written: bool | None = None

    def __post_init__(self) -> None:
        numbers = (self.size, self.record_id, self.size if self.data_bytes is None else self.data_bytes)
        if not all(type(number) is int and 0 <= number < 1 << 64 for number in numbers):
            raise ValueError(f"{self.path!r} has no valid size or record id")
        if not isinstance(self.layout, (str, type(None))):
            raise ValueError(f"{self.path!r} has no valid layout")
        if self.written not in (True, None):
            raise ValueError(f"{self.path!r} is not clearly written or not")
        if self.state not in STATES or type(self.sparse) is not bool:
            raise ValueError(f"{self.path!r} has no valid state")
        if not OURS.match(self.path) or not is_contained(self.path):
            raise ValueError(f"{self.path!r} is not below {TWIN_ROOT}")
        self.path.encode("utf-8")  # the names of files are bytes: half a surrogate pair has none


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ManifestFiles(Mapping[str, ManifestFile]):
    """Path -> entry, in ascending order of the bytes of the paths; entries are made when they are asked for.

    Columns as in `ManifestFile`. `size`, `record_id`: uint64[files]. `state`: int8[files], place in `STATES`.
    `sparse`, `written`: bool[files]. `data_bytes` (uint64) and `layout` (text) are Arrow arrays with nulls.
    """

    path: pa.LargeStringArray
    size: np.ndarray
    record_id: np.ndarray
    sparse: np.ndarray
    state: np.ndarray
    written: np.ndarray
    data_bytes: pa.UInt64Array
    layout: pa.StringArray

    @staticmethod
    def of(entries: Iterable[ManifestFile]) -> ManifestFiles:
        """The entries as columns; of two with one path the later one."""
        last = {entry.path: entry for entry in entries}
        found = [last[path] for path in sorted(last)]
        return ManifestFiles(
            path=column([each.path for each in found]),
            size=np.array([each.size for each in found], dtype=np.uint64),
            record_id=np.array([each.record_id for each in found], dtype=np.uint64),
            sparse=np.array([each.sparse for each in found], dtype=bool),
            state=np.array([STATES.index(each.state) for each in found], dtype=np.int8),
            written=np.array([bool(each.written) for each in found], dtype=bool),
            data_bytes=pa.array([each.data_bytes for each in found], pa.uint64()),
            layout=pa.array([each.layout for each in found], pa.string()),
        )

    def __len__(self) -> int:
        return len(self.path)

    def __iter__(self) -> Iterator[str]:
        for rows in pieces(len(self)):
            yield from self.path[rows].to_pylist()

    def __getitem__(self, path: str) -> ManifestFile:
        row = bisect_left(self.path, path.encode("utf-8", "surrogatepass"), key=lambda found: found.as_py().encode())
        if row == len(self) or self.path[row].as_py() != path:
            raise KeyError(path)
        return self.entry(row)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ManifestFiles):
            return Mapping.__eq__(self, other)
        return all(
            mine.equals(theirs) if isinstance(mine, pa.Array) else np.array_equal(mine, theirs)
            for mine, theirs in ((getattr(self, each.name), getattr(other, each.name)) for each in fields(self))
        )

    def entry(self, row: int) -> ManifestFile:
        """The entry in row `row`."""
        return ManifestFile(
            path=self.path[row].as_py(),
            size=int(self.size[row]),
            record_id=int(self.record_id[row]),
            sparse=bool(self.sparse[row]),
            state=STATES[self.state[row]],
            data_bytes=self.data_bytes[row].as_py(),
            layout=self.layout[row].as_py(),
            written=True if self.written[row] else None,
        )

    def entries(self) -> Iterator[ManifestFile]:
        """All entries in order, faster than by their paths."""
        return (self.entry(row) for row in range(len(self)))

    def in_state(self, state: str) -> np.ndarray:
        """bool[files]: which entries are in the state."""
        found: np.ndarray = self.state == STATES.index(state)
        return found

    def part(self, rows: slice) -> ManifestFiles:
        """Adjacent entries, which share the memory of these."""
        return ManifestFiles(**{each.name: getattr(self, each.name)[rows] for each in fields(self)})

    def taken(self, rows: np.ndarray) -> ManifestFiles:
        """The entries in these rows (int64), in ascending order of their paths."""
        taken = {}
        for each in fields(self):
            values = getattr(self, each.name)
            taken[each.name] = values.take(pa.array(rows)) if isinstance(values, pa.Array) else values[rows]
        return ManifestFiles(**taken)

    def with_entries(self, entries: ManifestFiles) -> ManifestFiles:
        """These entries and `entries`, which replace those of the same paths."""
        if not len(self) or entries.path.equals(self.path):
            return entries
        old = self.taken(np.flatnonzero(~booleans(pc.is_in(self.path, value_set=entries.path))))
        return joined([old, entries])


@functools.cache
def no_files() -> ManifestFiles:
    """A manifest without entries."""
    return ManifestFiles.of(())


def joined(parts: Iterable[ManifestFiles]) -> ManifestFiles:
    """All entries of the parts, no two of which have the same path; a part need not be in the order of its paths."""
    some = [part for part in parts if len(part)]
    if not some:
        return no_files()
    together = {}
    for each in fields(ManifestFiles):
        columns = [getattr(part, each.name) for part in some]
        joined_up = pa.concat_arrays if isinstance(columns[0], pa.Array) else np.concatenate
        together[each.name] = columns[0] if len(some) == 1 else joined_up(columns)
    found = ManifestFiles(**together)
    order = ascending_order(found.path)
    return found if np.array_equal(order, np.arange(len(order))) else found.taken(order)
