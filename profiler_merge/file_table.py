"""The files of a job: numbers, kinds, sizes, counters and coverage, gathered while the op stream is written."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.profiler_merge.darshan.counters import SHARED_RANK, CounterTable, read_counters, read_lustre
from dxt_replay.profiler_merge.darshan.log import DarshanLog
from dxt_replay.profiler_merge.file_notes import AS_RECORDED, REPAIRED, SUSPECT, FileNotes, KnownFiles, Renamed
from dxt_replay.profiler_merge.left_out import shown
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.file_rows import STANDARD_STREAMS, without_dots
from dxt_replay.traces.record_id import STREAM_RECORDS, record_id
from dxt_replay.traces.recorder_files import is_recorder_file
from dxt_replay.traces.schema import COUNTERS, FILES_SCHEMA, FORMATS, Coverage, table_from_columns
from dxt_replay.traces.text import listed
from dxt_replay.traces.units import format_counted
from dxt_replay.traces.unseen import StreamTotals

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


def classify(path: str) -> int:
    """Code in `traces.schema.FORMATS` from a file's name; a TFRecord set without an ending is `other`."""
    lowered = path.lower()
    for name, rule in _FORMAT_RULES.items():
        if re.search(rule, lowered):
            return FORMATS.index(name)
    return FORMATS.index("other")


def _plain(path: bytes) -> bytes:
    """The path without `.` and `..`; unchanged if a folder before `..` is a link, which leads elsewhere."""
    folders = [path[: found.start()] for found in re.finditer(rb"/\.\.(?=/|\Z)", path)]
    return path if any(map(os.path.islink, folders)) else without_dots(path)


def moved_bytes(files: pa.Table, *prefixes: str) -> int:
    """Sum of the counters of a files table whose names begin with a prefix, such as "posix_bytes_"."""
    return sum(pc.sum(files[name]).as_py() or 0 for name in COUNTERS if name.startswith(prefixes))


@dataclass(slots=True)
class _Traced:
    """Operations and bytes of one (rank, file) that the trace holds."""

    operations: int = 0
    bytes: int = 0

    def add(self, other: _Traced) -> None:
        self.operations += other.operations
        self.bytes += other.bytes


@dataclass(slots=True)
class FileTable:
    """Numbers the files of a job and gathers facts about them; ignores the `excluded` record ids.

    Names that differ only in `..` belong to one file. Files in the counters come first, then those that only the rows
    name, in order of appearance.
    """

    logs: Sequence[DarshanLog]
    excluded: Collection[int] = ()
    streams: StreamTotals = field(default_factory=StreamTotals)
    _ids: dict[int, int] = field(default_factory=dict)
    _sizes: list[int] = field(default_factory=list)
    _traced: dict[tuple[int, int], _Traced] = field(default_factory=dict)
    _new_names: dict[int, bytes] = field(default_factory=dict)
    _same: dict[int, int] = field(default_factory=dict)
    _offsets: dict[int, dict[int, int]] = field(default_factory=lambda: {REPAIRED: {}, SUSPECT: {}})
    _uncounted: set[tuple[str, int]] = field(default_factory=set)
    _mappable: set[int] = field(default_factory=set)
    never_mapped: set[int] = field(default_factory=set)

    def known(self) -> KnownFiles:
        """The files in the counters of the logs, which get their numbers now. Raises: LogError for damaged ones."""
        for log in self.logs:
            for module in _SUMMED:
                records = self._counters(log, module)
                self._note_streams(log, module)
                for record in dict.fromkeys(() if records is None else _file_records(records)):
                    self.number(record)
            self._let_go(log)
        return KnownFiles.numbered(np.fromiter(self._ids, dtype=np.uint64, count=len(self._ids)))

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

    def add(self, notes: FileNotes) -> dict[int, int]:
        """Add the notes on the next ranks' files.

        Returns: the final number of each file that has one of the notes' own numbers.
        """
        changed = {number: self.number(record) for record, number in notes.own.items()}
        self._new_names |= notes.names
        for state, of_file in notes.offsets.items():
            for file, count in of_file.items():
                number = changed.get(file, file)
                self._offsets[state][number] = self._offsets[state].get(number, 0) + count
        for each in notes.sizes:
            if isinstance(each, Renamed):
                old, new = changed.get(each.file, each.file), changed.get(each.target, each.target)
                self._sizes[new] = max(self._sizes[new], self._sizes[old])
                continue
            for file, end in zip(each.files.tolist(), each.ends.tolist(), strict=True):
                number = changed.get(file, file)
                self._sizes[number] = max(self._sizes[number], end)
        for traced in notes.traced:
            columns = (traced.ranks, traced.files, traced.operations, traced.bytes)
            for rank, file, count, size in zip(*(column.tolist() for column in columns), strict=True):
                self._traced.setdefault((rank, changed.get(file, file)), _Traced()).add(_Traced(count, int(size)))
        return changed

    def _let_go(self, log: DarshanLog) -> None:
        """Drop the decoded counters if there are many logs: all of them together would fill the memory."""
        if len(self.logs) > 1:
            log.counters.clear()

    def __post_init__(self) -> None:
        for log in self.logs:
            dotted = {record: path for record, path in log.names.items() if b"/.." in path}
            known = {path: record for record, path in log.names.items()} if dotted else {}
            for record, path in dotted.items():
                if (plain := _plain(path)) != path:
                    self._same[record] = known.get(plain, record_id(plain))
                    self._new_names[self._same[record]] = plain

    def number(self, record: int) -> int:
        """The file_id of a record."""
        record = self._same.get(record, record)
        if record not in self._ids:
            self._ids[record] = len(self._ids)
            self._sizes.append(0)
        return self._ids[record]

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

    def _offset_states(self, files: int) -> np.ndarray:
        """int8 code of OFFSETS by file_id, masked if nothing was traced."""
        traced = np.fromiter({file for _, file in self._traced}, dtype=np.int64)
        states = np.ma.masked_all(files, dtype=np.int8)
        states[traced] = AS_RECORDED
        for state, of_file in sorted(self._offsets.items()):
            states[list(of_file)] = state
        return states

    def finish(self, ranks_of_logs: Sequence[int | None]) -> tuple[pa.Table, Coverage]:
        """The files table and the coverage; `ranks_of_logs[i]`: the rank of log i's process, None for a whole job."""
        counted: dict[tuple[int, int], _Traced] = {}
        streams: dict[tuple[int, int], _Traced] = {}
        sums: dict[str, dict[int, Any]] = {name: {} for columns in _SUMMED.values() for name in columns}
        stripes: dict[int, tuple[int, int]] = {}
        for log, fixed_rank in zip(self.logs, ranks_of_logs, strict=True):
            self._add_counters(log, fixed_rank, sums, counted, streams)
            self._let_go(log)
            stripes |= {
                self.number(record): stripe
                for record, stripe in _stripes(log).items()
                if self._same.get(record, record) in self._ids
            }
        dups, fdopens, modes = (sums.pop(name) for name in ("posix_dups", "stdio_fdopens", "posix_mode"))
        # Darshan may give a stream that was made of a duplicated descriptor to a file which had that number before.
        read = {file for name in ("posix_reads", "stdio_reads") for file, number in sums[name].items() if number}
        without = {file for file, number in dups.items() if number and sums["posix_seeks"][file] and file not in read}
        missing = sum(dups[file] for file in without)
        strays = sum(max(fdopens.get(file, 0) - number, 0) for file, number in dups.items() if number)
        created = {file for file, mode in modes.items() if mode}
        self.never_mapped = created | (dups.keys() - self._mappable) | (without if strays >= missing else set())
        coverage = self._coverage(counted, streams)
        for column, file in self._uncounted:
            sums[column][file] = None
            if column.startswith(("posix", "stdio")):
                coverage = replace(coverage, bytes=None, ranks={}, without_streams=None)
        return self._table(sums, stripes, self._file_coverage(counted)), coverage

    def _add_counters(
        self,
        log: DarshanLog,
        fixed_rank: int | None,
        sums: dict[str, dict[int, int]],
        counted: dict[tuple[int, int], _Traced],
        streams: dict[tuple[int, int], _Traced],
    ) -> None:
        for module, columns in _SUMMED.items():
            records = self._counters(log, module)
            if records is None:
                continue
            file_ids = [self.number(record) for record in _file_records(records)]
            for column, counters in columns.items():
                total = sum(np.maximum(records.counters[name], 0) for name in counters)
                for file, value in zip(file_ids, np.asarray(total).tolist(), strict=True):
                    sums[column][file] = sums[column].get(file, 0) + value
                prefix, _, what = column.partition("_")
                by = columns.get(f"{prefix}_{_OPERATIONS.get(what)}", ())
                wrong = (records.counters[counters[0]] < 0) & (sum(records.counters[name] > 0 for name in by) > 0)
                for place in np.flatnonzero(wrong).tolist():
                    self._uncounted.add((column, file_ids[place]))
                    value, path = records.counters[counters[0]][place], log.describe(_file_records(records)[place])
                    log.add_warning(f"{counters[0]} of {path} is {value}, which is no number of bytes: it is not known")
            if module == "POSIX":
                opens, seeks, dups = (records.counters[f"POSIX_{name}"] for name in ("OPENS", "SEEKS", "DUPS"))
                of_python = (dups == 0) & (seeks >= _SEEKS_OF_PYTHON * np.maximum(opens, 1))
                self._mappable |= set(np.array(file_ids)[~of_python].tolist())
            for last_byte, moved in _LAST_BYTE.get(module, ()):
                for file, last, total in zip(
                    file_ids, records.counters[last_byte].tolist(), records.counters[moved].tolist(), strict=True
                ):
                    # The counter has the same error as the trace.
                    if total > 0 and file not in self._offsets[REPAIRED]:
                        self._sizes[file] = max(self._sizes[file], last + 1)
            if module in _LAST_BYTE:
                kept = _of_the_job(log, records)
                _count(records, file_ids, kept, fixed_rank, counted)
                if module == "STDIO":
                    _count(records, file_ids, kept, fixed_rank, streams)

    def _counters(self, log: DarshanLog, module: str) -> CounterTable | None:
        records = read_counters(log, module)
        if records is None or not self.excluded:
            return records
        kept = ~np.isin(np.array(_file_records(records), dtype=np.uint64), np.fromiter(self.excluded, dtype=np.uint64))
        return replace(
            records,
            ranks=records.ranks[kept],
            record_ids=records.record_ids[kept],
            counters={name: values[kept] for name, values in records.counters.items()},
            fcounters={name: values[kept] for name, values in records.fcounters.items()},
            file_ids=None if records.file_ids is None else records.file_ids[kept],
        )

    def _file_coverage(self, counted: dict[tuple[int, int], _Traced]) -> dict[int, float]:
        traced, every = (_sums_by(1, each) for each in (self._traced, counted))
        nothing = _Traced()
        return {file: traced.get(file, nothing).bytes / total.bytes for file, total in every.items() if total.bytes}

    def _coverage(self, counted: dict[tuple[int, int], _Traced], streams: dict[tuple[int, int], _Traced]) -> Coverage:
        reduced = {file for rank, file in counted if rank == SHARED_RANK}
        traced_by_rank, counted_by_rank = (_sums_by(0, each, reduced) for each in (self._traced, counted))
        nothing = _Traced()
        by_rank = {
            rank: _ratio(traced_by_rank.get(rank, nothing), counted_by_rank.get(rank, nothing))
            for rank in sorted(traced_by_rank.keys() | counted_by_rank.keys())
            if rank != SHARED_RANK
        }
        traced, every, through = (_summed(each.values()) for each in (self._traced, counted, streams))
        share = _ratio(traced, every)
        rest = _Traced(every.operations - through.operations, every.bytes - through.bytes)
        without = _ratio(traced, rest) if through.operations or through.bytes else None
        return Coverage(bytes=share[0], operations=share[1], ranks=by_rank, without_streams=without)

    def _table(
        self, sums: dict[str, dict[int, int]], stripes: dict[int, tuple[int, int]], coverage: dict[int, float]
    ) -> pa.Table:
        names = dict(self._new_names)
        for log in self.logs:
            names |= {record: log.names[record] for record in self._ids if record in log.names}
        raw = [names.get(record, f"<record {record}>".encode()) for record in self._ids]
        mounts = [self.logs[0].mount_of(path) for path in raw]
        return files_table(
            raw,
            record_id=np.fromiter(self._ids, dtype=np.uint64, count=len(raw)),
            size=np.array(self._sizes, dtype=np.int64),
            offsets=self._offset_states(len(raw)),
            mount=[mount.path for mount in mounts],
            fs_type=[mount.fs_type for mount in mounts],
            by_file={
                "stripe_size": {file: stripe[0] for file, stripe in stripes.items()},
                "stripe_count": {file: stripe[1] for file, stripe in stripes.items()},
                "coverage": coverage,
                **sums,
            },
        )


def files_table(paths: Sequence[bytes], *, by_file: Mapping[str, Mapping[int, Any]], **columns: Any) -> pa.Table:
    """Files as `FILES_SCHEMA`, by number: columns that follow from their paths, `by_file` if known, and other
    columns."""
    names = [shown(path) for path in paths]
    columns |= {
        "file_id": np.arange(len(paths), dtype=np.int32),
        "path": names,
        "path_bytes": [None if name.encode() == path else path for name, path in zip(names, paths, strict=True)],
        "format": np.array([classify(name) for name in names], dtype=np.int8),
    }
    columns |= {name: [values.get(file) for file in range(len(paths))] for name, values in by_file.items()}
    return table_from_columns(columns, FILES_SCHEMA)


def _file_records(records: CounterTable) -> list[int]:
    """Record id of the file of each counter record; an H5D record is of a dataset and names its file."""
    ids = records.record_ids if records.file_ids is None else records.file_ids
    return [int(record) for record in ids]


def _of_the_job(log: DarshanLog, records: CounterTable) -> list[bool]:
    """Which records belong to the job: TensorFlow also writes its profile through C streams, and that is not part of
    it."""
    if records.module != "STDIO":
        return [True] * len(records.ranks)
    paths = (shown(log.names.get(record, b"")) for record in _file_records(records))
    return [not is_recorder_file(path) for path in paths]


def _count(
    records: CounterTable,
    file_ids: list[int],
    kept: list[bool],
    fixed_rank: int | None,
    counted: dict[tuple[int, int], _Traced],
) -> None:
    """Add the reads and writes of a module, of the records that are `kept`.

    I/O counted by STDIO is not counted by POSIX as well: Darshan sees the program's calls, not those of the C library.
    """
    operations, moved = (
        sum(np.maximum(records.counters[f"{records.module}_{name}"], 0) for name in names)
        for names in (("READS", "WRITES"), ("BYTES_READ", "BYTES_WRITTEN"))
    )
    for rank, file, of_job, count, total in zip(
        records.ranks.tolist(), file_ids, kept, operations.tolist(), moved.tolist(), strict=True
    ):
        if not of_job:
            continue
        entry = counted.setdefault((rank if fixed_rank is None else fixed_rank, file), _Traced())
        entry.operations += count
        entry.bytes += total


def _stripes(log: DarshanLog) -> dict[int, tuple[int, int]]:
    """record id -> (stripe size, stripe count) of files on Lustre, from the first component of their layout."""
    found: dict[int, tuple[int, int]] = {}
    try:
        for record in read_lustre(log):
            if record.components:
                found[record.record_id] = (record.components[0].stripe_size, record.components[0].stripe_count)
    except LogError as error:
        # Stripes are only shown: pre-releases of log version 3.41 have another layout, and may give wrong ones.
        log.add_warning(f"{error}: stripes of files on Lustre are unknown from there on")
    return found


def _sums_by(
    place: int, entries: Mapping[tuple[int, int], _Traced], reduced: Collection[int] = ()
) -> dict[int, _Traced]:
    """The sums of each rank (place 0) or file (1), without the `reduced` files, whose records do not distinguish
    ranks."""
    sums: dict[int, _Traced] = {}
    for key, entry in entries.items():
        total = sums.setdefault(key[place], _Traced())
        if key[1] not in reduced:
            total.add(entry)
    return sums


def _summed(entries: Iterable[_Traced]) -> _Traced:
    total = _Traced()
    for entry in entries:
        total.add(entry)
    return total


def _ratio(traced: _Traced, counted: _Traced) -> tuple[float | None, float | None]:
    """Traced / counted as (bytes, operations), None if nothing was counted."""
    return (
        traced.bytes / counted.bytes if counted.bytes else None,
        traced.operations / counted.operations if counted.operations else None,
    )
