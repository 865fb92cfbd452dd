"""The files of a job: their numbers, kinds, sizes, counters and coverage, gathered while the op stream is written."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.profiler_merge.darshan.counters import SHARED_RANK, CounterTable, read_counters, read_lustre
from dxt_replay.profiler_merge.darshan.log import DarshanLog
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.files import STANDARD_STREAMS, STREAM_RECORDS, is_recorder_file, record_id, without_dots
from dxt_replay.traces.row_order import distinct, distinct_rows
from dxt_replay.traces.schema import (
    APIS,
    COUNTERS,
    FILES_SCHEMA,
    FORMATS,
    OFFSETS,
    OPS,
    READ,
    WRITE,
    Coverage,
    table_from_columns,
)
from dxt_replay.traces.text import listed
from dxt_replay.traces.units import format_counted
from dxt_replay.traces.unseen import StreamTotals

AS_RECORDED, REPAIRED, SUSPECT = range(len(OFFSETS))
"""Codes of `traces.schema.OFFSETS`."""

_FORMAT_RULES = {
    "checkpoint": r"\.ckpt|ckpt[-_/]|checkpoint|\.tempstate|\.data-\d+-of-\d+|-of-\d+\.(data|index)|\.index$",
    "tfrecord": r"\.tfrecords?(\.|$)|tfrecord",
    "hdf5": r"\.(h5|hdf5|hdf|he5|nc4?|keras)$",
    "npz": r"\.np[zy]$",
    "csv": r"\.(csv|tsv)(\.|$)",
    "json": r"\.jsonl?$",
}
"""Format -> pattern in the path, tried in this order: a checkpoint is a checkpoint whatever its container."""

_SUMMED: dict[str, dict[str, tuple[str, ...]]] = {
    "POSIX": {
        "posix_opens": ("POSIX_OPENS",), "posix_reads": ("POSIX_READS",), "posix_writes": ("POSIX_WRITES",),
        "posix_seeks": ("POSIX_SEEKS",), "posix_stats": ("POSIX_STATS",), "posix_fsyncs": ("POSIX_FSYNCS",),
        "posix_fdsyncs": ("POSIX_FDSYNCS",), "posix_bytes_read": ("POSIX_BYTES_READ",),
        "posix_bytes_written": ("POSIX_BYTES_WRITTEN",), "posix_seq_reads": ("POSIX_SEQ_READS",),
        "posix_seq_writes": ("POSIX_SEQ_WRITES",), "posix_consec_reads": ("POSIX_CONSEC_READS",),
        "posix_consec_writes": ("POSIX_CONSEC_WRITES",), "posix_dups": ("POSIX_DUPS",),
        "posix_mode": ("POSIX_MODE",),
    },
    "STDIO": {
        "stdio_opens": ("STDIO_OPENS",), "stdio_reads": ("STDIO_READS",), "stdio_writes": ("STDIO_WRITES",),
        "stdio_seeks": ("STDIO_SEEKS",), "stdio_flushes": ("STDIO_FLUSHES",),
        "stdio_bytes_read": ("STDIO_BYTES_READ",), "stdio_bytes_written": ("STDIO_BYTES_WRITTEN",),
        "stdio_fdopens": ("STDIO_FDOPENS",),
    },
    "MPI-IO": {
        "mpiio_reads": ("MPIIO_INDEP_READS", "MPIIO_COLL_READS", "MPIIO_SPLIT_READS", "MPIIO_NB_READS"),
        "mpiio_writes": ("MPIIO_INDEP_WRITES", "MPIIO_COLL_WRITES", "MPIIO_SPLIT_WRITES", "MPIIO_NB_WRITES"),
        "mpiio_bytes_read": ("MPIIO_BYTES_READ",), "mpiio_bytes_written": ("MPIIO_BYTES_WRITTEN",),
    },
    "H5D": {
        "h5d_reads": ("H5D_READS",), "h5d_writes": ("H5D_WRITES",),
        "h5d_bytes_read": ("H5D_BYTES_READ",), "h5d_bytes_written": ("H5D_BYTES_WRITTEN",),
    },
}  # fmt: skip
"""Column of the files table, or what else is told by it -> the Darshan counters whose sum it is, by module. -1 means
not collected."""

_SEEKS_OF_PYTHON = 3
"""Of each `open` that may write: it asks for the position three times. C programs that map a file seek at most twice,
and Python's `mmap` duplicates the descriptor."""

# An untouched file also has a last byte of 0, so it counts only if bytes were moved.
_LAST_BYTE = {
    module: tuple((f"{module}_MAX_BYTE_{done}", f"{module}_BYTES_{done}") for done in ("READ", "WRITTEN"))
    for module in ("POSIX", "STDIO")
}

_OPERATIONS = {"bytes_read": "reads", "bytes_written": "writes"}
_STREAMS = [name.encode() for name in STANDARD_STREAMS]


_COUNTED_OPS = {
    "posix": {"opens": "open", "reads": "read", "writes": "write", "seeks": "seek", "stats": "stat", "fsyncs": "sync"},
    "stdio": {"opens": "open", "reads": "read", "writes": "write", "seeks": "seek", "flushes": "sync"},
}
"""Operations of a trace that are counted as Darshan would count them, by interface."""

_TRACED = np.dtype([("rank", np.int64), ("file", np.int64), ("operations", np.int64), ("bytes", np.int64)])
"""Operations and bytes of a rank and file."""


def classify(path: str) -> int:
    """Code in `traces.schema.FORMATS` from a file's name; a TFRecord set without an ending is `other`."""
    lowered = path.lower()
    found = (name for name, rule in _FORMAT_RULES.items() if re.search(rule, lowered))
    return FORMATS.index(next(found, "other"))


def shown(path: bytes) -> str:
    """The path as text, with bytes that are not UTF-8 as escapes."""
    return path.decode("utf-8", "backslashreplace")


def is_export(path: str, exports: Collection[str]) -> bool:
    """Whether the profiler wrote the file, or a temporary form of it that is renamed or compressed later.

    exports: paths and names of the profiler's output.
    """
    name = path.rpartition("/")[2]
    finals = (path, name, f"{name}.gz", name.removesuffix(".tmp"), path.removesuffix(".tmp"))
    return any(final in exports for final in finals)


def exports_warnings(paths: Iterable[str]) -> list[str]:
    """Warnings about exports that are left out."""
    names = ", ".join(sorted(paths))
    return [f"files that the profiler itself wrote are left out: {names}"] if names else []


def moved_bytes(files: pa.Table, *prefixes: str) -> int:
    """Sum of the counters of a files table whose names begin with a prefix, such as "posix_bytes_"."""
    return sum(pc.sum(files[name]).as_py() or 0 for name in COUNTERS if name.startswith(prefixes))


def files_table(paths: Sequence[bytes], **columns: Any) -> pa.Table:
    """Files as `FILES_SCHEMA`, by number, with the columns that follow from their paths, and `columns`."""
    names = [shown(path) for path in paths]
    columns |= {
        "file_id": np.arange(len(paths), dtype=np.int32),
        "path": names,
        "path_bytes": [None if name.encode() == path else path for name, path in zip(names, paths, strict=True)],
        "format": np.array([classify(name) for name in names], dtype=np.int8),
    }
    return table_from_columns(columns, FILES_SCHEMA)


class Numbers:
    """Numbers files in order of appearance by a key: Darshan's record id, or a tracer's own number.

    numbers: of each key. keys: by number. sizes: int64, by number, the end of the last access so far.
    """

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.keys: list[int] = []
        self.sizes = np.zeros(16, dtype=np.int64)
        self._record_ids = np.empty(0, dtype=np.uint64)

    def number(self, keys: np.ndarray) -> np.ndarray:
        """int32 number of each key."""
        found, first, inverse = distinct(keys)
        numbers = np.empty(len(found), dtype=np.int32)
        for place in np.argsort(first).tolist():
            key = self._same(int(found[place]))
            numbers[place] = self.numbers.setdefault(key, len(self.keys))
            self.keys += [key] if len(self.numbers) > len(self.keys) else []
        while len(self.keys) > len(self.sizes):
            self.sizes = np.append(self.sizes, np.zeros_like(self.sizes))
        return numbers[inverse]

    def number_of(self, key: int) -> int:
        """The number of one key."""
        return int(self.number(np.array([key], dtype=np.uint64))[0])

    @property
    def record_ids(self) -> np.ndarray:
        """uint64 key of each file."""
        if len(self._record_ids) < len(self.keys):
            self._record_ids = np.array(self.keys, dtype=np.uint64)
        return self._record_ids

    def _same(self, key: int) -> int:
        """The key that stands for this one too."""
        return key

    def note_ends(self, rows: np.ndarray) -> None:
        """Extend the files to hold these accesses (`ROW`); an offset of -1 is unknown and counts as 0."""
        moved = ((rows["op"] == READ) | (rows["op"] == WRITE)) & (rows["length"] > 0)
        ends = np.maximum(rows["offset"][moved], 0) + rows["length"][moved]
        np.maximum.at(self.sizes, rows["file"][moved], ends)


class TracedFiles(Numbers):
    """The files of a trace of all operations, counted from its rows. `paths`, `sizes`, `suspect`: by its numbers."""

    def __init__(self, paths: Sequence[bytes], sizes: Mapping[int, int], suspect: Mapping[int, int]) -> None:
        super().__init__()
        self._paths, self._known_sizes, self._suspect = paths, sizes, suspect
        self._counts: dict[str, np.ndarray] = {}

    def name(self, file_id: int) -> str:
        """The path of a file, with bytes that are not UTF-8 as escapes."""
        return shown(self._paths[self.keys[file_id]])

    def note(self, rows: np.ndarray) -> None:
        """Count the operations of a rank (`ROW`)."""
        self.note_ends(rows)
        for prefix, counted in _COUNTED_OPS.items():
            mine = rows[rows["api"] == APIS.index(prefix.upper())]
            columns: dict[str, tuple[Any, str | None]] = {
                what: (mine["op"] == OPS.index(name), None) for what, name in counted.items()
            }
            columns["bytes_read"], columns["bytes_written"] = ((mine["op"] == op, "length") for op in (READ, WRITE))
            for what, (kept, amount) in columns.items():
                weights = None if amount is None else mine[amount][kept]
                found = np.bincount(mine["file"][kept], weights=weights, minlength=len(self.sizes))
                before = self._counts.get(f"{prefix}_{what}", np.zeros(0))
                found[: len(before)] += before.astype(found.dtype)
                self._counts[f"{prefix}_{what}"] = found

    @property
    def moved(self) -> int:
        """Bytes read and written."""
        return int(sum(counts.sum() for name, counts in self._counts.items() if "_bytes_" in name))

    def table(self, *, complete: bool) -> pa.Table:
        """The files as `FILES_SCHEMA`. `complete`: whether the trace surely holds all I/O."""
        count, counts, moved = len(self.keys), dict[str, np.ndarray](), np.zeros(len(self.keys), dtype=bool)
        for prefix, counted in _COUNTED_OPS.items():
            names = [f"{prefix}_{what}" for what in (*counted, "bytes_read", "bytes_written")]
            own = [np.pad(self._counts[name].astype(np.int64), (0, count))[:count] for name in names]
            moved |= own[1] + own[2] > 0  # reads and writes
            unused = np.sum(own, axis=0) == 0  # which is distinct from 0
            counts |= {name: np.ma.masked_array(each, mask=unused) for name, each in zip(names, own, strict=True)}
        paths = [self._paths[number] for number in self.keys]
        sizes = [self._known_sizes.get(number, 0) for number in self.keys]
        states = np.array([SUSPECT if number in self._suspect else AS_RECORDED for number in self.keys], dtype=np.int8)
        return files_table(
            paths,
            record_id=np.array([record_id(path) for path in paths], dtype=np.uint64),
            size=np.maximum(self.sizes[:count], np.array(sizes, dtype=np.int64)),
            offsets=np.ma.masked_array(states, mask=~moved),
            mount=[""] * count,
            fs_type=[""] * count,
            coverage=np.ma.masked_array(np.ones(count), mask=~(moved & complete)),
            **counts,
        )


def _plain(path: bytes) -> bytes:
    """The path without `.` and `..`; unchanged if a folder before `..` is a link, which leads elsewhere."""
    folders = [path[: found.start()] for found in re.finditer(rb"/\.\.(?=/|\Z)", path)]
    return path if any(map(os.path.islink, folders)) else without_dots(path)


class LogFiles(Numbers):
    """The files of Darshan logs; ignores the `excluded` record ids. Names that differ only in `..` are of one file.

    Files in the counters come first, then those that only the rows name, in order of appearance.
    streams: reads and writes of standard streams, which are left out. names: paths of record ids that no log names.
    never_mapped: files that the job made itself, or whose positions were not those of a mapping.
    """

    def __init__(self, logs: Sequence[DarshanLog], excluded: Collection[int] = ()) -> None:
        super().__init__()
        self.logs, self.excluded = logs, excluded
        self.streams = StreamTotals()
        self.names: dict[int, bytes] = {}
        self.never_mapped: set[int] = set()
        self._plain_id: dict[int, int] = {}
        self._traced: list[np.ndarray] = [np.empty(0, dtype=_TRACED)]
        self._offsets: dict[int, dict[int, int]] = {REPAIRED: {}, SUSPECT: {}}
        for log in logs:
            dotted = {record: path for record, path in log.names.items() if b"/.." in path}
            known = {path: record for record, path in log.names.items()} if dotted else {}
            for record, path in dotted.items():
                if (plain := _plain(path)) != path:
                    self._plain_id[record] = known.get(plain, record_id(plain))
                    self.names[self._plain_id[record]] = plain
        for log in logs:
            for module in _SUMMED:
                records = self._counters(log, module)
                self._note_streams(log, module)
                if records is not None:
                    self.number(_file_records(records))
            self._let_go(log)

    def _same(self, key: int) -> int:
        return self._plain_id.get(key, key)

    def path(self, file_id: int) -> str:
        """The recorded path of a file, if a log has it."""
        record = self.keys[file_id]
        names = (log.names[record] for log in self.logs if record in log.names)
        return shown(next(names, self.names.get(record, b"")))

    def note_renamed(self, old: np.ndarray, new: np.ndarray) -> None:
        """Note that files got new names; a new file is as large as the old one is by now."""
        for file, target in zip(old.tolist(), new.tolist(), strict=True):
            self.sizes[target] = max(self.sizes[target], self.sizes[file])

    def note_traced(self, rows: np.ndarray) -> None:
        """Count traced operations at the interface to which the counters are compared."""
        mine = rows["api"] == APIS.index("POSIX")
        rank, file, length = (rows[name] if mine.all() else rows[name][mine] for name in ("rank", "file", "length"))
        pairs, _, of_row = distinct_rows(rank, file)
        found = np.zeros(len(pairs), dtype=_TRACED)
        if len(pairs):
            found["rank"], found["file"] = pairs.T
            found["operations"] = np.bincount(of_row)
            found["bytes"] = np.bincount(of_row, weights=length)
            self._traced.append(found)

    def note_offsets(self, state: int, record_ids: np.ndarray, operations: np.ndarray) -> None:
        """Note the operations of files whose offsets were REPAIRED or are SUSPECT."""
        of_file = self._offsets[state]
        for file, count in zip(self.number(record_ids).tolist(), operations.tolist(), strict=True):
            of_file[file] = of_file.get(file, 0) + count

    def _note_streams(self, log: DarshanLog, module: str) -> None:
        """Add a module's counts of the standard streams, which are left out."""
        records = read_counters(log, module) if module in _LAST_BYTE else None
        if records is None:
            return
        streams = [record for record in self.excluded if record in STREAM_RECORDS or log.names.get(record) in _STREAMS]
        mine = np.isin(records.record_ids, np.array(streams, dtype=np.uint64))
        for names in (("READS", "BYTES_READ"), ("WRITES", "BYTES_WRITTEN")):
            counted = (np.maximum(records.counters[f"{module}_{name}"][mine], 0).sum() for name in names)
            self.streams.add(*map(int, counted))

    def _let_go(self, log: DarshanLog) -> None:
        """Drop the decoded counters if there are many logs: all of them together would fill the memory."""
        if len(self.logs) > 1:
            log.counters.clear()

    def offset_warnings(self, paths: Sequence[str]) -> list[str]:
        """Warnings about repaired and suspect offsets, with some names; `paths` by file_id."""
        warnings = []
        for state, text in (
            (REPAIRED, "were repaired: Darshan keeps one position a file, but each descriptor read these files whole"),
            (SUSPECT, "may be wrong: Darshan keeps one position a file, but these files had several descriptors open"),
        ):
            of_file = self._offsets[state]
            if of_file:
                names = listed([paths[file] for file in of_file])
                warnings.append(f"offsets of {format_counted(sum(of_file.values()), 'operation')} {text} ({names})")
        return warnings

    def finish(self, ranks_of_logs: Sequence[int | None]) -> tuple[pa.Table, Coverage]:
        """The files table and the coverage; `ranks_of_logs[i]`: the rank of log i's process, None for a whole job."""
        count = len(self.keys)
        sums: dict[str, Any] = {}  # masked arrays
        stripes = np.full((count, 2), -1, dtype=np.int64)
        mappable, unknown = np.zeros(count, dtype=bool), set[tuple[str, int]]()
        counted, streams = [np.empty(0, dtype=_TRACED)], [np.empty(0, dtype=_TRACED)]
        for log, fixed_rank in zip(self.logs, ranks_of_logs, strict=True):
            for module, columns in _SUMMED.items():
                records = self._counters(log, module)
                if records is None:
                    continue
                files = self.number(_file_records(records))
                for column, counters in columns.items():
                    values = sums.setdefault(column, np.ma.masked_array(np.zeros(count, dtype=np.int64), mask=True))
                    np.add.at(values.data, files, sum(np.maximum(records.counters[name], 0) for name in counters))
                    values.mask[files] = False
                    for place in _wrong_bytes(log, records, column):
                        unknown.add((column, int(files[place])))
                if module == "POSIX":
                    opens, seeks, dups = (records.counters[f"POSIX_{name}"] for name in ("OPENS", "SEEKS", "DUPS"))
                    mappable[files[(dups != 0) | (seeks < _SEEKS_OF_PYTHON * np.maximum(opens, 1))]] = True
                if module in _LAST_BYTE:
                    self._note_last_bytes(records, files)
                    found = _counted(log, records, files, fixed_rank)
                    counted.append(found)
                    streams += [found] if module == "STDIO" else []
            for record, stripe in _stripes(log).items():
                if (file := self.numbers.get(self._same(record))) is not None:
                    stripes[file] = stripe
            self._let_go(log)
        self._find_never_mapped(sums, mappable)
        coverage, of_file = self._coverage(np.concatenate(counted), np.concatenate(streams))
        for column, file in unknown:
            sums[column][file] = np.ma.masked
        if any(column.startswith(("posix", "stdio")) for column, _ in unknown):
            coverage = replace(coverage, bytes=None, ranks={}, without_streams=None)
        names = dict(self.names)
        for log in self.logs:
            names |= {record: log.names[record] for record in self.keys if record in log.names}
        paths = [names.get(record, f"<record {record}>".encode()) for record in self.keys]
        mounts = [self.logs[0].mount_of(path) for path in paths]
        states = np.ma.masked_all(count, dtype=np.int8)
        states[np.concatenate(self._traced)["file"]] = AS_RECORDED
        for state, files_in_state in sorted(self._offsets.items()):
            states[list(files_in_state)] = state
        table = files_table(
            paths,
            record_id=self.record_ids,
            size=self.sizes[:count],
            offsets=states,
            mount=[mount.path for mount in mounts],
            fs_type=[mount.fs_type for mount in mounts],
            stripe_size=np.ma.masked_array(stripes[:, 0], mask=stripes[:, 1] < 0),
            stripe_count=np.ma.masked_less(stripes[:, 1], 0),
            coverage=of_file,
            **{name: values for name, values in sums.items() if name in COUNTERS},
        )
        return table, coverage

    def _note_last_bytes(self, records: CounterTable, files: np.ndarray) -> None:
        for last_byte, moved in _LAST_BYTE[records.module]:
            # A repaired file's counter has the same error as its trace.
            known = (records.counters[moved] > 0) & ~np.isin(files, list(self._offsets[REPAIRED]))
            np.maximum.at(self.sizes, files[known], records.counters[last_byte][known] + 1)

    def _find_never_mapped(self, sums: Mapping[str, Any], mappable: np.ndarray) -> None:
        def of(name: str) -> np.ndarray:
            return sums[name].filled(0) if name in sums else np.zeros(len(mappable), dtype=np.int64)

        dups, fdopens = of("posix_dups"), of("stdio_fdopens")
        # Darshan may give a stream that was made of a duplicated descriptor to a file which had that number before.
        without = (dups > 0) & (of("posix_seeks") > 0) & (of("posix_reads") == 0) & (of("stdio_reads") == 0)
        strays = np.maximum(fdopens - dups, 0)[dups > 0].sum()
        never = of("posix_mode") > 0
        if "posix_dups" in sums:
            never |= ~np.ma.getmaskarray(sums["posix_dups"]) & ~mappable
        if strays >= dups[without].sum():
            never |= without
        self.never_mapped = set(np.flatnonzero(never).tolist())

    def _counters(self, log: DarshanLog, module: str) -> CounterTable | None:
        records = read_counters(log, module)
        if records is None or not self.excluded:
            return records
        kept = ~np.isin(_file_records(records), np.fromiter(self.excluded, dtype=np.uint64))
        return replace(
            records,
            ranks=records.ranks[kept],
            record_ids=records.record_ids[kept],
            counters={name: values[kept] for name, values in records.counters.items()},
            fcounters={name: values[kept] for name, values in records.fcounters.items()},
            file_ids=None if records.file_ids is None else records.file_ids[kept],
        )

    def _coverage(self, counted: np.ndarray, streams: np.ndarray) -> tuple[Coverage, np.ndarray]:
        """What the trace holds of what the counters saw; of each file by bytes, masked where nothing was counted."""
        traced, count = np.concatenate(self._traced), len(self.keys)
        of_trace, of_counters = (np.bincount(each["file"], each["bytes"], count) for each in (traced, counted))
        with np.errstate(divide="ignore", invalid="ignore"):
            of_file = np.ma.masked_array(of_trace / of_counters, mask=of_counters == 0)
        # A reduced record does not distinguish ranks.
        reduced = np.unique(counted["file"][counted["rank"] == SHARED_RANK])
        sums = []
        for each in (traced, counted):
            ranks, place = np.unique(each["rank"], return_inverse=True)
            own = ~np.isin(each["file"], reduced)
            amounts = [np.bincount(place[own], each[name][own], len(ranks)).tolist() for name in _AMOUNTS]
            sums.append(dict(zip(ranks.tolist(), zip(*amounts, strict=True), strict=True)))
        by_rank = {
            rank: _ratio(*(each.get(rank, (0, 0)) for each in sums))
            for rank in sorted(sums[0].keys() | sums[1].keys())
            if rank != SHARED_RANK
        }
        held, every, through = (
            tuple(int(each[name].sum()) for name in _AMOUNTS) for each in (traced, counted, streams)
        )
        share = _ratio(held, every)
        without = _ratio(held, (every[0] - through[0], every[1] - through[1])) if any(through) else None
        return Coverage(bytes=share[0], operations=share[1], ranks=by_rank, without_streams=without), of_file


_AMOUNTS = ("bytes", "operations")


def _ratio(traced: Sequence[float], counted: Sequence[float]) -> tuple[float | None, float | None]:
    """Traced / counted as (bytes, operations), None if nothing was counted."""
    by_bytes, by_operations = (one / all_ if all_ else None for one, all_ in zip(traced, counted, strict=True))
    return by_bytes, by_operations


def _file_records(records: CounterTable) -> np.ndarray:
    """Record id of the file of each counter record; an H5D record is of a dataset and names its file."""
    return records.record_ids if records.file_ids is None else records.file_ids


def _wrong_bytes(log: DarshanLog, records: CounterTable, column: str) -> list[int]:
    """Places of the records that count operations of this column of bytes, and no number of bytes. Warns of them."""
    prefix, _, what = column.partition("_")
    counter, *_ = _SUMMED[records.module][column]
    by = _SUMMED[records.module].get(f"{prefix}_{_OPERATIONS.get(what)}", ())
    wrong = (records.counters[counter] < 0) & (sum(records.counters[name] > 0 for name in by) > 0)
    for place in np.flatnonzero(wrong).tolist():
        value, path = records.counters[counter][place], log.describe(int(_file_records(records)[place]))
        log.add_warning(f"{counter} of {path} is {value}, which is no number of bytes: it is not known")
    return np.flatnonzero(wrong).tolist()


def _counted(log: DarshanLog, records: CounterTable, files: np.ndarray, fixed_rank: int | None) -> np.ndarray:
    """The reads and writes of a module, as `_TRACED`.

    I/O counted by STDIO is not counted by POSIX as well: Darshan sees the program's calls, not those of the C library.
    TensorFlow also writes its profile through C streams, and that is not part of the job.
    """
    found = np.zeros(len(files), dtype=_TRACED)
    found["rank"], found["file"] = records.ranks if fixed_rank is None else fixed_rank, files
    for field, names in (("operations", ("READS", "WRITES")), ("bytes", ("BYTES_READ", "BYTES_WRITTEN"))):
        found[field] = sum(np.maximum(records.counters[f"{records.module}_{name}"], 0) for name in names)
    if records.module == "STDIO":
        paths = (shown(log.names.get(record, b"")) for record in _file_records(records).tolist())
        return found[[not is_recorder_file(path) for path in paths]]
    return found


def _stripes(log: DarshanLog) -> dict[int, tuple[int, int]]:
    """record id -> (stripe size, stripe count) of files on Lustre, from the first component of their layout."""
    found: dict[int, tuple[int, int]] = {}
    try:
        for record, _, components in read_lustre(log):
            if components:
                found[record] = components[0]
    except LogError as error:
        # Stripes are only shown: pre-releases of log version 3.41 have another layout, and may give wrong ones.
        log.add_warning(f"{error}: stripes of files on Lustre are unknown from there on")
    return found
