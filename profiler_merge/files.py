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

_SUMMED = {
    "POSIX": (
        "POSIX",
        "OPENS READS WRITES SEEKS STATS FSYNCS FDSYNCS BYTES_READ BYTES_WRITTEN SEQ_READS SEQ_WRITES CONSEC_READS "
        "CONSEC_WRITES DUPS MODE",
    ),
    "STDIO": ("STDIO", "OPENS READS WRITES SEEKS FLUSHES BYTES_READ BYTES_WRITTEN FDOPENS"),
    "MPI-IO": ("MPIIO", "READS WRITES BYTES_READ BYTES_WRITTEN"),
    "H5D": ("H5D", "READS WRITES BYTES_READ BYTES_WRITTEN"),
}
"""Module -> prefix of its counters, and those whose sum is a column of the files table (such as `posix_opens`), or
tells something else of a file. -1 means not collected."""

_KINDS = ("INDEP", "COLL", "SPLIT", "NB")
"""MPI-IO counts each kind of its reads and writes."""

_SEEKS_OF_PYTHON = 3
"""Of each `open` that may write: it asks for the position three times. C programs that map a file seek at most twice,
and Python's `mmap` duplicates the descriptor."""

_STREAMS = [name.encode() for name in STANDARD_STREAMS]

_MARKS = re.compile(rb".+[./]\d+\.\d+\.marks", re.DOTALL)
_FIRST_OWN = -10
"""Number of the first file of the recorder's own; the next ones are below. Those up to -1 have other meanings."""

_COUNTED_OPS = {
    "posix": {"opens": "open", "reads": "read", "writes": "write", "seeks": "seek", "stats": "stat", "fsyncs": "sync"},
    "stdio": {"opens": "open", "reads": "read", "writes": "write", "seeks": "seek", "flushes": "sync"},
}
"""Operations of a trace that are counted as Darshan would count them, by interface."""

_AMOUNTS = ("bytes", "operations")
_TRACED = np.dtype([(name, np.int64) for name in ("rank", "file", *_AMOUNTS)])
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


def files_table(paths: Sequence[bytes], first: int = 0, **columns: Any) -> pa.Table:
    """Files as `FILES_SCHEMA`, numbered from `first`, with the columns that follow from their paths, and `columns`."""
    names = [shown(path) for path in paths]
    columns |= {
        "file_id": np.arange(first, first + len(paths), dtype=np.int32),
        "path": names,
        "path_bytes": [None if name.encode() == path else path for name, path in zip(names, paths, strict=True)],
        "format": np.array([classify(name) for name in names], dtype=np.int8),
    }
    return table_from_columns(columns, FILES_SCHEMA)


class Numbers:
    """Numbers files in order of appearance by a key: Darshan's record id, or a tracer's own number.

    numbers: of each key. keys: by number. same: key -> the one that stands for it. sizes: int64, by number, the end of
    the last access so far. own: names of the marks that `record` itself wrote, by number below 0: their rows tell
    clocks and threads, and are no I/O of the job.
    """

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.keys: list[int] = []
        self.same: dict[int, int] = {}
        self.sizes = np.zeros(16, dtype=np.int64)
        self.own: dict[int, bytes] = {}

    def set_apart(self, names: Iterable[tuple[int, bytes]]) -> None:
        """Give the recorder's own files numbers apart. names: key and path of each file."""
        for key, path in names:
            if _MARKS.fullmatch(path) and key not in self.numbers:
                self.numbers[key] = _FIRST_OWN - len(self.own)
                self.own[self.numbers[key]] = path

    def number(self, keys: np.ndarray) -> np.ndarray:
        """int32 number of each key."""
        found, first, inverse = distinct(keys)
        numbers = np.empty(len(found), dtype=np.int32)
        for place in np.argsort(first).tolist():
            key = int(found[place])
            key = self.same.get(key, key)
            numbers[place] = self.numbers.setdefault(key, len(self.keys))
            self.keys += [key] if numbers[place] == len(self.keys) else []
        while len(self.keys) > len(self.sizes):
            self.sizes = np.append(self.sizes, np.zeros_like(self.sizes))
        return numbers[inverse]

    def note_ends(self, rows: np.ndarray) -> None:
        """Extend the files to hold these accesses (`ROW`); an offset of -1 is unknown and counts as 0."""
        moved = ((rows["op"] == READ) | (rows["op"] == WRITE)) & (rows["length"] > 0) & (rows["file"] >= 0)
        ends = np.maximum(rows["offset"][moved], 0) + rows["length"][moved]
        np.maximum.at(self.sizes, rows["file"][moved], ends)


class TracedFiles(Numbers):
    """The files of a trace of all operations, counted from its rows. `paths`, `sizes`, `suspect`: by its numbers."""

    def __init__(self, paths: Sequence[bytes], sizes: Mapping[int, int], suspect: Mapping[int, int]) -> None:
        super().__init__()
        self._paths, self._known_sizes, self._suspect = paths, sizes, suspect
        self._counts: dict[str, np.ndarray] = {}
        self.set_apart(enumerate(paths))

    def path(self, file_id: int) -> str:
        """The path of a file, with bytes that are not UTF-8 as escapes."""
        return shown(self.own[file_id] if file_id < 0 else self._paths[self.keys[file_id]])

    def note(self, rows: np.ndarray) -> None:
        """Count the operations of a rank (`ROW`)."""
        self.note_ends(rows)
        rows = rows[rows["file"] >= 0]
        for prefix, counted in _COUNTED_OPS.items():
            mine = rows[rows["api"] == APIS.index(prefix.upper())]
            kept = {what: (mine["op"] == OPS.index(name), None) for what, name in counted.items()}
            kept |= {
                what: (mine["op"] == op, mine["length"])
                for what, op in (("bytes_read", READ), ("bytes_written", WRITE))
            }
            for what, (those, weights) in kept.items():
                weights = None if weights is None else weights[those]
                found = np.bincount(mine["file"][those], weights, len(self.sizes)).astype(np.int64)
                before = self._counts.get(f"{prefix}_{what}", found[:0])
                found[: len(before)] += before
                self._counts[f"{prefix}_{what}"] = found

    @property
    def moved(self) -> int:
        """Bytes read and written."""
        return int(sum(counts.sum() for name, counts in self._counts.items() if "_bytes_" in name))

    def table(self, *, complete: bool) -> pa.Table:
        """The files as `FILES_SCHEMA`. `complete`: whether the trace surely holds all I/O."""
        count, counts, moved = len(self.keys), dict[str, Any](), np.zeros(len(self.keys), dtype=bool)
        for prefix, counted in _COUNTED_OPS.items():
            names = [f"{prefix}_{what}" for what in (*counted, "bytes_read", "bytes_written")]
            own = [np.pad(self._counts[name], (0, count))[:count] for name in names]
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
    uncounted: the excluded records, and those of the recorder's own files. streams: reads and writes of standard
    streams, which are left out. names: paths of record ids that no log names.
    never_mapped: files that the job made itself, or whose positions were not those of a mapping.
    """

    def __init__(self, logs: Sequence[DarshanLog], excluded: Collection[int] = ()) -> None:
        super().__init__()
        self.logs, self.excluded = logs, excluded
        self.streams = StreamTotals()
        self.names: dict[int, bytes] = {}
        self.never_mapped: set[int] = set()
        self._traced: list[np.ndarray] = [np.empty(0, dtype=_TRACED)]
        self._offsets: dict[int, dict[int, int]] = {REPAIRED: {}, SUSPECT: {}}
        for log in logs:
            dotted = {record: path for record, path in log.names.items() if b"/.." in path}
            known = {path: record for record, path in log.names.items()} if dotted else {}
            for record, path in dotted.items():
                if (plain := _plain(path)) != path:
                    self.same[record] = known.get(plain, record_id(plain))
                    self.names[self.same[record]] = plain
            self.set_apart((record, path) for record, path in log.names.items() if record not in excluded)
        self.uncounted = {*excluded, *(key for key, number in self.numbers.items() if number < 0)}
        for log in logs:
            streams = [each for each in excluded if each in STREAM_RECORDS or log.names.get(each) in _STREAMS]
            for module, (prefix, _) in _SUMMED.items():
                if (table := read_counters(log, module)) is None:
                    continue
                self.number(table.without(self.uncounted).file_ids)
                mine = np.isin(table.record_ids, np.array(streams, dtype=np.uint64)) & (module in ("POSIX", "STDIO"))
                for names in (("READS", "BYTES_READ"), ("WRITES", "BYTES_WRITTEN")) if mine.any() else ():
                    self.streams.add(*(int(_of(table, prefix, name)[mine].sum()) for name in names))
            self._let_go(log)

    def path(self, file_id: int) -> str:
        """The recorded path of a file, if a log has it."""
        if file_id < 0:
            return shown(self.own[file_id])
        record = self.keys[file_id]
        names = (log.names[record] for log in self.logs if record in log.names)
        return shown(next(names, self.names.get(record, b"")))

    def note_renamed(self, old: np.ndarray, new: np.ndarray) -> None:
        """Note that files got new names; a new file is as large as the old one is by now."""
        for file, target in zip(old.tolist(), new.tolist(), strict=True):
            self.sizes[target] = max(self.sizes[target], self.sizes[file])

    def note_traced(self, rows: np.ndarray) -> None:
        """Count traced operations at the interface to which the counters are compared."""
        mine = (rows["api"] == APIS.index("POSIX")) & (rows["file"] >= 0)
        rank, file, length = (rows[name] if mine.all() else rows[name][mine] for name in ("rank", "file", "length"))
        if len(rank):
            pairs, _, of_row = distinct_rows(rank, file)
            found = np.zeros(len(pairs), dtype=_TRACED)
            found["rank"], found["file"] = pairs.T
            found["operations"], found["bytes"] = np.bincount(of_row), np.bincount(of_row, weights=length)
            self._traced.append(found)

    def note_offsets(self, state: int, record_ids: np.ndarray, operations: np.ndarray) -> None:
        """Note the operations of files whose offsets were REPAIRED or are SUSPECT."""
        of_file = self._offsets[state]
        for file, count in zip(self.number(record_ids).tolist(), operations.tolist(), strict=True):
            of_file[file] = of_file.get(file, 0) + count

    def _let_go(self, log: DarshanLog) -> None:
        """Drop the decoded counters if there are many logs: all of them together would fill the memory."""
        if len(self.logs) > 1:
            log.counters.clear()

    def offset_warnings(self, paths: Sequence[str]) -> list[str]:
        """Warnings about repaired and suspect offsets, with some names; `paths` by file_id."""
        keeps, found = "Darshan keeps one position a file, but", []
        for state, text in (
            (REPAIRED, f"were repaired: {keeps} each descriptor read these files whole"),
            (SUSPECT, f"may be wrong: {keeps} these files had several descriptors open"),
        ):
            if of_file := self._offsets[state]:
                names = listed([paths[file] for file in of_file])
                found.append(f"offsets of {format_counted(sum(of_file.values()), 'operation')} {text} ({names})")
        return found

    def finish(self, ranks_of_logs: Sequence[int | None]) -> tuple[pa.Table, Coverage]:
        """The files table and the coverage; `ranks_of_logs[i]`: the rank of log i's process, None for a whole job."""
        count = len(self.keys)
        sums: dict[str, Any] = {}  # masked arrays
        stripes = np.full((count, 2), -1, dtype=np.int64)
        mappable, unknown = np.zeros(count, dtype=bool), set[tuple[str, int]]()
        counted, streams = [np.empty(0, dtype=_TRACED)], [np.empty(0, dtype=_TRACED)]
        for log, fixed_rank in zip(self.logs, ranks_of_logs, strict=True):
            for module, (prefix, columns) in _SUMMED.items():
                table = read_counters(log, module, self.uncounted)
                if table is None:
                    continue
                files = self.number(table.file_ids)
                for name in columns.split():
                    column = f"{prefix}_{name}".lower()
                    values = sums.setdefault(column, np.ma.masked_array(np.zeros(count, dtype=np.int64), mask=True))
                    np.add.at(values.data, files, _of(table, prefix, name))
                    values.mask[files] = False
                    unknown |= {(column, int(files[place])) for place in _wrong_bytes(log, table, prefix, name)}
                if module == "POSIX":
                    opens, seeks, dups = (table.counters[f"POSIX_{name}"] for name in ("OPENS", "SEEKS", "DUPS"))
                    mappable[files[(dups != 0) | (seeks < _SEEKS_OF_PYTHON * np.maximum(opens, 1))]] = True
                if module in ("POSIX", "STDIO"):
                    for done in ("READ", "WRITTEN"):
                        # An untouched file also has a last byte of 0; that of a repaired one is as wrong as its trace.
                        known = table.counters[f"{prefix}_BYTES_{done}"] > 0
                        known &= ~np.isin(files, list(self._offsets[REPAIRED]))
                        ends = table.counters[f"{prefix}_MAX_BYTE_{done}"] + 1
                        np.maximum.at(self.sizes, files[known], ends[known])
                    found = _counted(log, table, files, fixed_rank)
                    counted.append(found)
                    streams += [found] if module == "STDIO" else []
            for record, stripe in _stripes(log).items():
                if (file := self.numbers.get(self.same.get(record, record), -1)) >= 0:
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
        table_of_files = files_table(
            paths,
            record_id=np.array(self.keys, dtype=np.uint64),
            size=self.sizes[:count],
            offsets=states,
            mount=[mount.path for mount in mounts],
            fs_type=[mount.fs_type for mount in mounts],
            stripe_size=np.ma.masked_array(stripes[:, 0], mask=stripes[:, 1] < 0),
            stripe_count=np.ma.masked_less(stripes[:, 1], 0),
            coverage=of_file,
            **{name: values for name, values in sums.items() if name in COUNTERS},
        )
        return table_of_files, coverage

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
        held, every, through = ([int(each[name].sum()) for name in _AMOUNTS] for each in (traced, counted, streams))
        share = _ratio(held, every)
        without = _ratio(held, [all_ - one for all_, one in zip(every, through, strict=True)]) if any(through) else None
        return Coverage(bytes=share[0], operations=share[1], ranks=by_rank, without_streams=without), of_file


def _ratio(traced: Sequence[float], counted: Sequence[float]) -> tuple[float | None, float | None]:
    """Traced / counted as (bytes, operations), None if nothing was counted."""
    by_bytes, by_operations = (one / all_ if all_ else None for one, all_ in zip(traced, counted, strict=True))
    return by_bytes, by_operations


def _of(table: CounterTable, prefix: str, name: str) -> np.ndarray:
    """A counter of each record, 0 where it was not collected."""
    kinds = [f"{kind}_{name}" for kind in _KINDS] if prefix == "MPIIO" and "BYTES" not in name else [name]
    return np.sum([np.maximum(table.counters[f"{prefix}_{each}"], 0) for each in kinds], axis=0)


def _wrong_bytes(log: DarshanLog, table: CounterTable, prefix: str, name: str) -> list[int]:
    """Places of the records that count operations of this counter of bytes, and no number of bytes. Warns of them."""
    if not name.startswith("BYTES"):
        return []
    values = table.counters[f"{prefix}_{name}"]
    wrong = np.flatnonzero((values < 0) & (_of(table, prefix, "READS" if name == "BYTES_READ" else "WRITES") > 0))
    for place in wrong.tolist():
        path = log.describe(int(table.file_ids[place]))
        log.add_warning(f"{prefix}_{name} of {path} is {values[place]}, which is no number of bytes: it is not known")
    return wrong.tolist()


def _counted(log: DarshanLog, table: CounterTable, files: np.ndarray, fixed_rank: int | None) -> np.ndarray:
    """The reads and writes of a module, as `_TRACED`.

    I/O counted by STDIO is not counted by POSIX as well: Darshan sees the program's calls, not those of the C library.
    TensorFlow also writes its profile through C streams, and that is not part of the job.
    """
    found = np.zeros(len(files), dtype=_TRACED)
    found["rank"], found["file"] = table.ranks if fixed_rank is None else fixed_rank, files
    for field, names in (("operations", ("READS", "WRITES")), ("bytes", ("BYTES_READ", "BYTES_WRITTEN"))):
        found[field] = sum(_of(table, table.module, name) for name in names)
    if table.module == "STDIO":
        paths = (shown(log.names.get(record, b"")) for record in table.record_ids.tolist())
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
