"""Writes a capture as a Darshan log (container 3.41, as Darshan 3.5 writes), for any tool that reads Darshan logs.

Traced POSIX and MPI-IO reads and writes become DXT segments; the counters of POSIX, MPI-IO and STDIO are computed from
all operations. Records are per rank, as with DARSHAN_DISABLE_SHARED_REDUCTION. Layouts: darshan-log-format.h and
darshan-dxt-log-format.h, which `profiler_merge.darshan` reads.
"""

from __future__ import annotations

import shutil
import struct
import zlib
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.darshan.counters import SHARED_RANK
from dxt_replay.profiler_merge.darshan.header import CONTAINERS, MAX_HEADER_BYTES, MODULE_NAMES
from dxt_replay.profiler_merge.darshan.job import METADATA_BYTES, UNKNOWN_MOUNT
from dxt_replay.profiler_merge.darshan.log import JOB_RECORD_BYTES
from dxt_replay.profiler_merge.export.darshan_counters import MODULE_OF_API, VERSIONS, Columns, Counters, new_records
from dxt_replay.profiler_merge.export.exported import Exported, ExportedFile
from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.file_rows import exact_paths
from dxt_replay.traces.output import new_file
from dxt_replay.traces.record_id import record_id
from dxt_replay.traces.schema import APIS, OPS, READ, RECONSTRUCTED, WRITE, codes
from dxt_replay.traces.stable_order import runs, stable_order
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import NS_PER_S, format_counted, seconds_to_ns
from dxt_replay.traces.version import VERSION

WRITER_KEY = "writer"
"""Key of job metadata that marks a log as written here instead of recorded by Darshan."""

FAILED = "failed"

FILES_TOGETHER = 1 << 16
"""Files of a rank whose counters are in memory together, some 100 MB; the rank is read again for the next ones."""

_DXT = {"POSIX": ("DXT_POSIX", 1), "MPI-IO": ("DXT_MPIIO", 2)}
"""The trace of a module and its version: those that released tools read, which hold no thread ids."""

_HOST = b"unknown"
_HEADER = np.dtype(
    [("id", "<u8"), ("rank", "<i8"), ("shared", "<i8"), ("host", "S64"), ("writes", "<i8"), ("reads", "<i8")]
)
_WORDS, _SEGMENT_WORDS = _HEADER.itemsize // 8, 4

_LOG_VERSION, _LIB_VERSION, _MAGIC, _ZLIB = "3.41", "3.5.0", 6567223, 0
_SLOTS = CONTAINERS[_LOG_VERSION].slots
_JOB_NUMBERS = struct.Struct("<7q")
_COMMAND_BYTES = JOB_RECORD_BYTES - _JOB_NUMBERS.size - METADATA_BYTES - 1
"""`DARSHAN_EXE_LEN`: bytes that the command line and the mounts share."""

_LEVEL = 2
"""zlib's level for the regions. Level 6 makes recorded DXT segments 3 to 6 % smaller, random ones not at all, and takes
three times as long."""

_RENAME, _SEEK = OPS.index("rename"), OPS.index("seek")
_NUMBERS = ("file_id", "offset", "length", "start_ns", "end_ns")
_COLUMNS = ("op", "api", "origin", "result", "other_file_id", "lane", *_NUMBERS)
"""`lane`, which no log keeps, is read so that the capture's own counts are checked."""

_COUNTED = {
    "POSIX": (
        "opens", "reads", "writes", "seeks", "stats", "fsyncs", "fdsyncs", "bytes_read", "bytes_written", "seq_reads",
        "seq_writes", "consec_reads", "consec_writes",
    ),
    "STDIO": ("opens", "reads", "writes", "seeks", "flushes", "bytes_read", "bytes_written"),
}  # fmt: skip
"""Columns of the files table, without the module's prefix, that are counters of the same name."""

_OPERATIONS = {"opens", "reads", "writes", "seeks", "stats", "fsyncs", "fdsyncs", "flushes"}
"""The columns that count operations."""


def write_darshan(capture: Capture, output: Path, *, force: bool = False) -> Exported:
    """Write `capture` to the log `output`.

    Memory: a row group, and the counters of FILES_TOGETHER files.
    Raises: CaptureError when the capture is damaged; TargetError when `output` exists and not `force`, or cannot be
    written.
    """
    with new_file(output, force=force) as log, ExitStack() as stack:
        writer = _Writer(capture, _Regions(stack, output.parent))
        for rank in capture.ranks:
            writer.write_rank(rank)
        writer.write_counted_only()
        is_whole = writer.finish(log)
    left_out = {reason: count for reason, count in sorted(writer.left_out.items()) if count}
    return Exported(
        format="darshan",
        output=str(output),
        operations=capture.operation_count() - sum(left_out.values()),
        files=(ExportedFile(path=str(output), entries=writer.said["segments"], bytes=output.stat().st_size),),
        left_out=left_out,
        notes=tuple(_notes(capture, writer, is_whole)),
    )


class _Regions:
    """The regions of a log, gathered in unnamed temporary files; a region is a zlib stream per rank."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack, self._folder = stack, folder
        self._files: dict[str, IO[bytes]] = {}
        self._streams: dict[str, Any] = {}
        self._versions: dict[str, int] = {}

    def append(self, module: str, version: int, data: bytes) -> None:
        if not data:
            return
        if module not in self._files:
            file = TemporaryFile(dir=self._folder)  # noqa: SIM115 - the stack closes it
            self._files[module] = self._stack.enter_context(file)
            self._versions[module] = version
        if module not in self._streams:
            self._streams[module] = zlib.compressobj(_LEVEL)
        self._files[module].write(self._streams[module].compress(data))

    def end_streams(self) -> None:
        for module, stream in self._streams.items():
            self._files[module].write(stream.flush())
        self._streams.clear()

    def write(self, log: IO[bytes], job: bytes, names: bytes, partial: Collection[str]) -> None:
        """Write the whole log: `job` and `names` decompressed; `partial` names modules that lack records."""
        log.write(bytes(MAX_HEADER_BYTES) + zlib.compress(job))
        table, versions = [(0, 0)] * (1 + _SLOTS), [0] * _SLOTS
        packed = zlib.compress(names)
        table[0] = log.tell(), len(packed)
        log.write(packed)
        for module in sorted(self._files, key=MODULE_NAMES.index):
            slot, begin = MODULE_NAMES.index(module), log.tell()
            self._files[module].seek(0)
            shutil.copyfileobj(self._files[module], log, 1 << 20)
            table[1 + slot], versions[slot] = (begin, log.tell() - begin), self._versions[module]
        flags = sum(1 << MODULE_NAMES.index(module) for module in partial if module in self._files)
        log.seek(0)
        log.write(struct.pack("<8sqB7xQ", _LOG_VERSION.encode(), _MAGIC, _ZLIB, flags))
        log.write(b"".join(struct.pack("<QQ", *region) for region in table))
        log.write(struct.pack(f"<{_SLOTS}I", *versions))


class _Writer:
    """One pass over the ranks.

    left_out: operations by reason. said: numbers for the notes.
    """

    def __init__(self, capture: Capture, regions: _Regions) -> None:
        self.left_out: Counter[str] = Counter()
        self.said: Counter[str] = Counter()
        self._capture, self._regions = capture, regions
        self._ids = _record_ids(capture)
        self._seeks = _counted_seeks(capture)
        files = capture.files.num_rows
        self._is_written = {module: np.zeros(files, dtype=bool) for module in VERSIONS}
        self._place = np.full(files, -1)
        self._nprocs = max(capture.info.job.nprocs, 1, *(rank + 1 for rank in capture.ranks))

    def write_rank(self, rank: int) -> None:
        """Append everything of one rank to the regions."""
        usage = self._capture.usage(rank)
        used = np.unique(np.concatenate([usage[name].to_numpy() for name in ("file_id", "other_file_id")]))
        used = used[used >= 0]
        for begin in range(0, len(used), FILES_TOGETHER):
            files = used[begin : begin + FILES_TOGETHER]
            self._place[files] = np.arange(len(files))
            self._write_files(rank, files, is_first=begin == 0)
            self._place[files] = -1
        self._regions.end_streams()

    def _write_files(self, rank: int, files: np.ndarray, *, is_first: bool) -> None:
        """The records of some files of a rank, ascending; `is_first` counts what its operations are."""
        ids = self._ids[files]
        counters: dict[str, Counters] = {}
        for batch in self._capture.operations(
            rank, columns=["op", "api", "origin", "result", "other_file_id", *_NUMBERS]
        ):
            rows, renames = self._rows(batch, is_first)
            for module in VERSIONS:
                here = _of_module(rows, module)
                if module not in counters and (len(here["file"]) or (module == "POSIX" and len(renames))):
                    counters[module] = Counters(module, ids, rank)
                if len(here["file"]):
                    counters[module].add(here)
                    self._write_segments(module, here, ids, rank)
            if len(renames):
                counters["POSIX"].add_new_names(self._place[renames[:, 1]], self._ids[renames[:, 0]])
        for module, found in counters.items():
            mine = files[found.is_used]
            if module in self._seeks:
                seeks, several = self._seeks[module], mine[self._is_written[module][mine]]
                self.said["seeks"] += int(seeks[several].sum())
                seeks[several] = 0
                found["SEEKS"][found.is_used] += np.where(self._is_written[module][mine], 0, seeks[mine])
            self._is_written[module][mine] = True
            self._regions.append(module, VERSIONS[module], found.used().tobytes())

    def _rows(self, batch: pa.RecordBatch, is_first: bool) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The operations on files with a place that a log can hold, and (old, new name) of their renames.

        Those that it cannot hold are counted by reason."""
        rows = {name: batch.column(name).to_numpy() for name in _NUMBERS}
        rows["op"], rows["api"] = op, api = codes(batch, "op"), codes(batch, "api")
        other = batch.column("other_file_id").fill_null(-1).to_numpy()
        failed = batch.column("result").fill_null(0).to_numpy() < 0
        counted = np.isin(api, [APIS.index(name) for name in MODULE_OF_API])
        # DXT_POSIX cannot express an unknown offset
        unknown = (api == APIS.index("POSIX")) & (rows["offset"] < 0)
        is_data = (op == READ) | (op == WRITE)
        is_traced = is_data & (api != APIS.index("STDIO")) & (codes(batch, "origin") != RECONSTRUCTED) & ~unknown
        kept = counted & ~failed
        rows["is_traced"] = is_traced
        if is_first:
            self.left_out[FAILED] += int(failed.sum())
            for code, count in enumerate(np.bincount(api[~counted & ~failed], minlength=len(APIS)).tolist()):
                self.left_out[APIS[code].lower()] += count
            self.said["segments"] += int((kept & is_traced).sum())
            self.said["counters"] += int((kept & ~is_traced).sum())
            self.said["early"] += int((kept & (rows["start_ns"] < 0)).sum())
            self.said["collective"] += int((kept & is_traced & (api == APIS.index("MPIIO_COLL"))).sum())
        renamed = kept & (op == _RENAME) & (api == APIS.index("POSIX"))
        renames = np.stack([rows["file_id"][renamed], other[renamed]], axis=1)
        rows["file"] = self._place[rows["file_id"]]
        kept &= rows["file"] >= 0
        return {name: column[kept] for name, column in rows.items()}, renames[self._place[renames[:, 1]] >= 0]

    def _write_segments(self, module: str, rows: Columns, ids: np.ndarray, rank: int) -> None:
        """A DXT record of each file's traced operations, which are in the order of their end: writes, then reads."""
        traced = np.flatnonzero(rows["is_traced"])
        if not len(traced):
            return
        is_write = rows["op"][traced] == WRITE
        order = traced[stable_order(2 * rows["file"][traced] + ~is_write)]
        file = rows["file"][order]
        begins = runs(file)
        headers = np.zeros(len(begins), dtype=_HEADER)
        headers["id"], headers["rank"], headers["host"] = ids[file[begins]], rank, _HOST
        headers["writes"] = np.add.reduceat(rows["op"][order] == WRITE, begins, dtype=np.int64)
        headers["reads"] = np.diff(begins, append=len(file)) - headers["writes"]
        # each segment behind the headers up to that of its file
        out = np.empty(len(begins) * _WORDS + len(file) * _SEGMENT_WORDS, dtype="<u8")
        segment = np.repeat(np.arange(1, len(begins) + 1), np.diff(begins, append=len(file))) * _WORDS
        segment += np.arange(len(file)) * _SEGMENT_WORDS
        header = np.arange(len(begins)) * _WORDS + begins * _SEGMENT_WORDS
        for word, column in enumerate(headers.view("<u8").reshape(len(headers), _WORDS).T):
            out[header + word] = column
        for word, name in enumerate(("offset", "length", "start_ns", "end_ns")):
            values = rows[name][order]
            out[segment + word] = (values / NS_PER_S if name.endswith("_ns") else values.astype("<i8")).view("<u8")
        self._regions.append(*_DXT[module], out.tobytes())

    def write_counted_only(self) -> None:
        """Write records of counted I/O in the files table that no operation shows; its rank is unknown.

        A shared record states that every rank used the file. If it would have fewer operations than ranks, rank 0 gets
        it instead.
        """
        table = self._capture.files
        sizes = np.maximum(table["size"].to_numpy(), 1)
        for module, names in _COUNTED.items():
            columns = {name: table[f"{module.lower()}_{name}"].fill_null(0).to_numpy() for name in names}
            mine = np.flatnonzero(
                ~self._is_written[module] & np.any([column > 0 for column in columns.values()], axis=0)
            )
            operations = np.sum([columns[name][mine] for name in names if name in _OPERATIONS], axis=0)
            records = new_records(module, self._ids[mine], SHARED_RANK)
            for name, column in columns.items():
                records[f"{module}_{name.upper()}"] = column[mine]
            for moved in ("READ", "WRITTEN"):
                # the table has one size per file, for every interface
                some = records[f"{module}_BYTES_{moved}"] > 0
                records[f"{module}_MAX_BYTE_{moved}"] = np.where(some, sizes[mine] - 1, 0)
            alone = (operations < self._nprocs) | (self._nprocs == 1)
            records["rank"][alone] = 0
            self.said["rank unknown"] += int(alone.sum()) if self._nprocs > 1 else 0
            self._regions.append(module, VERSIONS[module], records.tobytes())
        self._regions.end_streams()

    def finish(self, log: IO[bytes]) -> bool:
        """Write the log; returns whether the job record had room for everything."""
        info, files = self._capture.info, self._capture.files
        metadata = {
            "lib_ver": _LIB_VERSION,
            **{key: value for key, value in info.job.metadata.items() if "\n" not in key + value},
            WRITER_KEY: f"dxt-replay {VERSION}",
        }
        mounts = {
            (fs_type, path)
            for path, fs_type in zip(files["mount"].to_pylist(), files["fs_type"].to_pylist(), strict=True)
            if path.startswith("/") and path != UNKNOWN_MOUNT.path and fs_type
        }
        # an undated capture gets the second after the epoch, since 0 would mean "not known"
        start_ns = info.job.zero_ns if info.job.zero_ns > 0 else NS_PER_S
        # the run time after the start; old logs have a second more
        end_ns = max(info.job.end_ns, start_ns + max(1, seconds_to_ns(info.job.run_time_s)))
        numbers = (0, *divmod(start_ns, NS_PER_S), *divmod(end_ns, NS_PER_S), self._nprocs, info.job.job_id)
        lines, has_lines = _fitting(
            [f"{key}={value}\n".encode() for key, value in metadata.items()], METADATA_BYTES - 1
        )
        # longest first, as Darshan writes them
        ordered = sorted(sorted(mounts), key=lambda mount: len(mount[1]), reverse=True)
        table, has_mounts = _fitting([f"\n{fs_type}\t{path}".encode() for fs_type, path in ordered], _COMMAND_BYTES)
        command, room = info.job.exe.replace("\0", " ").encode(), _COMMAND_BYTES - len(table)
        cut = command[:room].decode("utf-8", "ignore").encode()
        job = _JOB_NUMBERS.pack(*numbers) + lines.ljust(METADATA_BYTES, b"\0") + cut + table + b"\0"
        paths = zip(self._ids.tolist(), _log_names(self._capture), strict=True)
        names = b"".join(struct.pack("<Q", record) + path + b"\0" for record, path in paths)
        shares = (info.coverage.bytes, info.coverage.operations)
        is_partial = info.partial or any(share is not None and share < 1 for share in shares)
        partial = [*_DXT, *(name for name, _ in _DXT.values())] if is_partial else []
        self._regions.write(log, job, names, partial)
        return has_lines and has_mounts and len(command) <= room


def _of_module(rows: dict[str, np.ndarray], module: str) -> dict[str, np.ndarray]:
    """The operations at one module, by file, and within a file in the order of their end."""
    mine = np.isin(rows["api"], [APIS.index(api) for api, name in MODULE_OF_API.items() if name == module])
    order = np.flatnonzero(mine)
    # they come in the order of their start
    order = order[np.argsort(rows["end_ns"][order], kind="stable")]
    order = order[stable_order(rows["file"][order])]
    return {name: column[order] for name, column in rows.items()}


def _counted_seeks(capture: Capture) -> dict[str, np.ndarray]:
    """Seeks of each module that are counted by file and have no operation, by file_id."""
    found = {module: capture.files[f"{module.lower()}_seeks"].fill_null(0).to_numpy().copy() for module in _COUNTED}
    if any(seeks.any() for seeks in found.values()):
        for usage in capture.usages():
            for module, seeks in found.items():
                mine = (codes(usage, "op") == _SEEK) & (codes(usage, "api") == APIS.index(module))
                np.subtract.at(seeks, usage["file_id"].to_numpy()[mine], usage["operations"].to_numpy()[mine])
    return {module: np.maximum(seeks, 0) for module, seeks in found.items()}


def _record_ids(capture: Capture) -> np.ndarray:
    """uint64 by file_id: the recorded ids if all differ, else Darshan's hashes of the paths."""
    recorded = capture.files["record_id"].to_numpy()
    if len(np.unique(recorded)) == len(recorded) and not np.any(recorded == 0):
        return recorded
    made = np.array([record_id(name) for name in _log_names(capture)], dtype=np.uint64)
    if len(np.unique(made)) < len(made):
        raise CaptureError(f"{capture.named}: two files have the same path and no record ids: merge again")
    return made


def _log_names(capture: Capture) -> list[bytes]:
    """Paths as a log holds them: a name ends at its first zero byte."""
    return [path.replace(b"\0", b"") for path in exact_paths(capture.files)]


def _fitting(lines: Sequence[bytes], room: int) -> tuple[bytes, bool]:
    """The first whole lines that fit, and whether all fit."""
    kept = b""
    for line in lines:
        if len(kept) + len(line) > room:
            return kept, False
        kept += line
    return kept, True


def _notes(capture: Capture, writer: _Writer, is_whole: bool) -> list[str]:
    """Notes on the parts of this capture that a Darshan log cannot hold."""
    notes, said = [], writer.said
    if capture.spans.num_rows:
        notes.append(
            f"{capture.spans.num_rows:,} spans and the steps are not kept: a Darshan log has no place for them"
        )
    if said["segments"]:
        notes.append("lanes are not kept: the DXT that released tools read has no place for them")
    if said["counters"]:
        notes.append(
            f"{said['counters']} operations are in the counters alone: DXT holds reads and writes of POSIX and MPI-IO"
        )
    for reason, count in sorted(writer.left_out.items()):
        if count and reason == FAILED:
            notes.append(f"{count} operations that failed are left out: Darshan does not record them")
        elif count:
            notes.append(f"{count} operations at {reason.upper()} are left out: the log holds POSIX, MPI-IO and STDIO")
    if capture.hdf5.num_rows:
        notes.append(f"{capture.hdf5.num_rows} HDF5 datasets are not kept: their counters are not those of operations")
    if said["collective"]:
        notes.append(f"{said['collective']} collective operations are marked in the counters alone: DXT cannot")
    if said["early"]:
        notes.append(f"{said['early']} operations begin before the job's start: their times are negative")
    if said["rank unknown"]:
        files = format_counted(said["rank unknown"], "file")
        notes.append(f"counters of {files} are written for rank 0: the capture does not hold which rank used them")
    if said["seeks"]:
        notes.append(
            f"{format_counted(said['seeks'], 'seek')} on files of several ranks are written for the lowest of these: "
            "the capture does not hold which rank made them"
        )
    if not is_whole:
        notes.append("the command line, the mounts or the metadata are cut: a job record has 4096 bytes")
    return notes
