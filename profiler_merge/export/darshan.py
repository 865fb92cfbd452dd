"""Writes a capture as a Darshan log (container 3.41, as Darshan 3.5 writes), for any tool that reads Darshan logs.

Traced POSIX and MPI-IO reads and writes become DXT segments; the counters of POSIX are computed from all operations.
Records are per rank, as with DARSHAN_DISABLE_SHARED_REDUCTION. Layouts: darshan-log-format.h and
darshan-dxt-log-format.h, which `profiler_merge.darshan` reads. Meaning of the counters: darshan-posix-log-format.h and
the POSIX_RECORD macros in darshan-posix.c. Darshan updates them when a call returns, so operations count in the order
of their end. What operations do not show (mode, alignment of memory) and what the log does not keep (common sizes and
strides, alignment of files) is 0, or -1 where Darshan uses that for "not collected".
"""

from __future__ import annotations

import shutil
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import numpy as np

from dxt_replay.profiler_merge.darshan.counter_layouts import NEWEST
from dxt_replay.profiler_merge.darshan.log import (
    CONTAINERS,
    JOB_RECORD_BYTES,
    MAX_HEADER_BYTES,
    METADATA_BYTES,
    MODULE_NAMES,
    UNKNOWN_MOUNT,
)
from dxt_replay.profiler_merge.export.exported import Exported, ExportedFile, rank_columns
from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.files import exact_paths, record_id
from dxt_replay.traces.output import new_file
from dxt_replay.traces.schema import APIS, OPS, READ, RECONSTRUCTED, WRITE, codes
from dxt_replay.traces.stable_order import runs
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import NS_PER_S, format_counted, seconds_to_ns
from dxt_replay.traces.version import VERSION

WRITER_KEY = "writer"
"""Key of job metadata that marks a log as written here instead of recorded by Darshan."""

FAILED = "failed"

_MODULES = {"POSIX": 4, "DXT_POSIX": 1, "DXT_MPIIO": 2}
"""Modules and their versions. Those of DXT are the ones that released tools read, which hold no thread ids."""

_HEADER = np.dtype(
    [("id", "<u8"), ("rank", "<i8"), ("shared", "<i8"), ("host", "S64"), ("writes", "<i8"), ("reads", "<i8")]
)
_SEGMENT = np.dtype([("offset", "<i8"), ("length", "<i8"), ("start_ns", "<f8"), ("end_ns", "<f8")])
_LAYOUT = NEWEST["POSIX"]
_RECORD = np.dtype(
    [
        ("id", "<u8"), ("rank", "<i8"), *((name, "<i8") for name in _LAYOUT.counters),
        *((name, "<f8") for name in _LAYOUT.fcounters),
    ]
)  # fmt: skip
_NOT_COLLECTED = ("MEM_ALIGNMENT", "MEM_NOT_ALIGNED", "FILE_ALIGNMENT", "FILE_NOT_ALIGNED", "MMAPS")
_SIZE_BOUNDS = [100, 1 << 10, 10 << 10, 100 << 10, 1 << 20, 4 << 20, 10 << 20, 100 << 20, 1 << 30]

_LOG_VERSION, _LIB_VERSION, _MAGIC, _ZLIB = "3.41", "3.5.0", 6567223, 0
_SLOTS = CONTAINERS[_LOG_VERSION].slots
_JOB_NUMBERS = struct.Struct("<7q")
_COMMAND_BYTES = JOB_RECORD_BYTES - _JOB_NUMBERS.size - METADATA_BYTES - 1
"""`DARSHAN_EXE_LEN`: bytes that the command line and the mounts share."""

_LEVEL = 2
"""zlib's level for the regions. Level 6 makes recorded DXT segments 3 to 6 % smaller, random ones not at all, and takes
three times as long."""

_OPEN, _CLOSE, _STAT, _SYNC, _SEEK, _RENAME = (
    OPS.index(name) for name in ("open", "close", "stat", "sync", "seek", "rename")
)
_RENAMED = len(OPS)
"""Code of a rename as it is counted at its new name."""
_POSIX = APIS.index("POSIX")
Rows = dict[str, np.ndarray]


def write_darshan(capture: Capture, output: Path, *, force: bool = False) -> Exported:
    """Write `capture` to the log `output`.

    Memory: some 150 bytes an operation of the largest rank.
    Raises: CaptureError when the capture is damaged; TargetError when `output` exists and not `force`, or cannot be
    written.
    """
    left_out: Counter[str] = Counter()
    said: Counter[str] = Counter()
    ids, seeks = _record_ids(capture), _seeks_without_rows(capture)
    seen = np.zeros(capture.files.num_rows, dtype=bool)
    nprocs = max(capture.info.job.nprocs, 1, *(rank + 1 for rank in capture.ranks))
    with new_file(output, force=force) as log, ExitStack() as stack:
        regions = {name: stack.enter_context(TemporaryFile(dir=output.parent)) for name in _MODULES}
        packers = {name: zlib.compressobj(_LEVEL) for name in _MODULES}
        for rank in capture.ranks:
            rows = _rank_rows(capture, rank, left_out, said)
            at_posix = rows["api"] == _POSIX
            posix, mpiio = ({name: column[mask] for name, column in rows.items()} for mask in (at_posix, ~at_posix))
            files, records = _posix_records(posix, ids, rank)
            # The capture does not hold which rank made the seeks that are counted by file.
            said["seeks"] += int(seeks[files[seen[files]]].sum())
            records["POSIX_SEEKS"] += np.where(seen[files], 0, seeks[files])
            seeks[files[seen[files]]] = 0
            seen[files] = True
            made = {"POSIX": records.tobytes(), "DXT_POSIX": _segments(posix, ids, rank)}
            for name, data in (made | {"DXT_MPIIO": _segments(mpiio, ids, rank)}).items():
                regions[name].write(packers[name].compress(data))
        used = {"POSIX": seen.any(), "DXT_POSIX": said["DXT_POSIX"], "DXT_MPIIO": said["DXT_MPIIO"]}
        for name, packer in packers.items():
            regions[name].write(packer.flush())
        whole = _write_log(log, capture, nprocs, ids, {name: regions[name] for name in _MODULES if used[name]})
    left_out = +left_out
    segments = said["DXT_POSIX"] + said["DXT_MPIIO"]
    return Exported(
        format="darshan",
        output=str(output),
        operations=capture.operation_count() - left_out.total(),
        files=(ExportedFile(path=str(output), entries=segments, bytes=output.stat().st_size),),
        left_out=dict(sorted(left_out.items())),
        notes=tuple(_notes(capture, left_out, said, whole)),
    )


def _rank_rows(capture: Capture, rank: int, left_out: Counter[str], said: Counter[str]) -> Rows:
    """The operations of a rank that a log can hold, by file, and within a file in the order of their end.

    `is_traced`: whether DXT holds it. A rename has a second row, at its new name, whose `old` is the old one. Those
    that a log cannot hold are counted by reason.
    """
    numbers = ["file_id", "offset", "length", "start_ns", "end_ns", "other_file_id"]
    rows = rank_columns(capture, rank, ["op", "api", "origin", "result", *numbers])
    op, api = rows["op"], rows["api"]
    failed = rows.pop("result") < 0
    is_data = (op == READ) | (op == WRITE)
    # DXT_POSIX cannot express an unknown offset.
    known = (api != _POSIX) | (rows["offset"] >= 0)
    dxt = np.isin(api, [APIS.index(name) for name in ("POSIX", "MPIIO", "MPIIO_COLL")])
    rows["is_traced"] = is_data & dxt & known & (rows.pop("origin") != RECONSTRUCTED) & ~failed
    kept = rows["is_traced"] | ((api == _POSIX) & ~failed)
    left_out[FAILED] += int(failed.sum())
    for code, count in enumerate(np.bincount(api[~kept & ~failed], minlength=len(APIS)).tolist()):
        left_out[APIS[code].lower()] += count
    said["counters"] += int((kept & ~rows["is_traced"]).sum())
    said["early"] += int((kept & (rows["start_ns"] < 0)).sum())
    said["collective"] += int((kept & (api == APIS.index("MPIIO_COLL"))).sum())
    for name, mask in (("DXT_POSIX", api == _POSIX), ("DXT_MPIIO", api != _POSIX)):
        said[name] += int((rows["is_traced"] & mask).sum())
    rows["old"] = np.full(len(op), -1, dtype=np.int32)
    renames = kept & (op == _RENAME) & (rows["other_file_id"] >= 0)
    again = {name: column[renames] for name, column in rows.items()}
    again |= {"file_id": again["other_file_id"], "old": again["file_id"], "op": np.full(renames.sum(), _RENAMED)}
    rows = {name: np.concatenate((column[kept], again[name])) for name, column in rows.items()}
    order = np.lexsort((rows["end_ns"], rows["file_id"]))
    return {name: column[order] for name, column in rows.items()}


def _segments(rows: Rows, ids: np.ndarray, rank: int) -> bytes:
    """A DXT record of each file's traced operations, which are in the order of their end: writes, then reads."""
    traced = np.flatnonzero(rows["is_traced"])
    order = traced[np.lexsort((rows["op"][traced] != WRITE, rows["file_id"][traced]))]
    file = rows["file_id"][order]
    begins = runs(file)
    counts = np.diff(begins, append=len(file))
    headers = np.zeros(len(begins), dtype=_HEADER)
    headers["id"], headers["rank"], headers["host"] = ids[file[begins]], rank, b"unknown"
    if len(begins):
        headers["writes"] = np.add.reduceat(rows["op"][order] == WRITE, begins, dtype=np.int64)
        headers["reads"] = counts - headers["writes"]
    segments = np.empty(len(file), dtype=_SEGMENT)
    for name in _SEGMENT.names or ():
        segments[name] = rows[name][order] / NS_PER_S if name.endswith("_ns") else rows[name][order]
    # each segment behind the headers up to that of its file
    out = np.empty(headers.nbytes + segments.nbytes, dtype=np.uint8)
    is_header = np.zeros(len(out) // 8, dtype=bool)
    words = _HEADER.itemsize // 8
    at = np.arange(len(begins)) * words + begins * (_SEGMENT.itemsize // 8)
    is_header[(at[:, None] + np.arange(words)).ravel()] = True
    out.view("<u8")[is_header] = headers.view("<u8")
    out.view("<u8")[~is_header] = segments.view("<u8")
    return out.tobytes()


def _posix_records(rows: Rows, ids: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """The files (m,) that a rank used at POSIX, and their records."""
    op, start, end, length = (rows[name] for name in ("op", "start_ns", "end_ns", "length"))
    first = runs(rows["file_id"])
    files = rows["file_id"][first]
    place = np.repeat(np.arange(len(first)), np.diff(first, append=len(op)))
    records = np.zeros(len(files), dtype=_RECORD)
    records["id"], records["rank"] = ids[files], rank
    for name in _NOT_COLLECTED:
        records[f"POSIX_{name}"] = -1
    column = {name.removeprefix("POSIX_"): records[name] for name in _RECORD.names or ()}

    def count(name: str, mask: np.ndarray) -> None:
        column[name][:] = np.bincount(place[mask], minlength=len(files))

    def before(mask: np.ndarray, values: np.ndarray, none: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows of the mask, and the value of the row before each among those of its file; `none` for the first."""
        mine = np.flatnonzero(mask)
        previous = np.roll(values[mine], 1)
        previous[runs(place[mine])] = none
        return mine, previous

    def busy(name: str, mask: np.ndarray) -> None:
        """Time in operations, without time that earlier-ending ones already cover (DARSHAN_TIMER_INC_NO_OVERLAP)."""
        mine, covered = before(mask, end, np.iinfo(np.int64).min)
        np.add.at(column[name], place[mine], (end[mine] - np.maximum(start[mine], covered)) / NS_PER_S)

    def moments(name: str, mask: np.ndarray) -> None:
        """First start and last end; 0 means none, so a real time is never 0."""
        for when, earliest, times in (("START", np.minimum, start), ("END", np.maximum, end)):
            seconds = times[mask] / NS_PER_S
            seconds[seconds == 0] = np.nextafter(0.0, 1.0)
            found = np.full(len(files), np.inf if when == "START" else -np.inf)
            earliest.at(found, place[mask], seconds)
            column[f"F_{name}_{when}_TIMESTAMP"][:] = np.where(np.isinf(found), 0, found)

    for way, code, moved in (("READ", READ, "READ"), ("WRITE", WRITE, "WRITTEN")):
        mine = op == code
        count(f"{way}S", mine)
        np.add.at(column[f"BYTES_{moved}"], place[mine], length[mine])
        np.maximum.at(column[f"MAX_BYTE_{moved}"], place[mine], (np.maximum(rows["offset"], 0) + length - 1)[mine])
        bins = np.searchsorted(_SIZE_BOUNDS, length)
        for number, name in enumerate(name for name in column if name.startswith(f"SIZE_{way}_")):
            count(name, mine & (bins == number))
        # Darshan begins anew at an open.
        last_byte = np.where(mine, rows["offset"] + length - 1, 0)
        both, previous = before(mine | (op == _OPEN), last_byte, 0)
        for name, follows in (
            ("SEQ", rows["offset"][both] > previous),
            ("CONSEC", rows["offset"][both] == previous + 1),
        ):
            column[f"{name}_{way}S"][:] = np.bincount(place[both[follows & mine[both]]], minlength=len(files))
        moments(way, mine)
        # The longest operation; of equal ones the first to end. None if it took no time.
        seconds, longest = (end - start) / NS_PER_S, column[f"F_MAX_{way}_TIME"]
        np.maximum.at(longest, place[mine], seconds[mine])
        found = np.flatnonzero(mine & (seconds == longest[place]) & (seconds > 0))
        found = found[runs(place[found])]
        column[f"MAX_{way}_TIME_SIZE"][place[found]] = length[found]
    busy("F_READ_TIME", op == READ)
    busy("F_WRITE_TIME", (op == WRITE) | (op == _SYNC))
    busy("F_META_TIME", np.isin(op, (_OPEN, _CLOSE, _STAT, _SEEK, _RENAME)))
    counted = {"OPENS": _OPEN, "FSYNCS": _SYNC, "SEEKS": _SEEK, "STATS": _STAT, "RENAME_SOURCES": _RENAME}
    for name, code in (counted | {"RENAME_TARGETS": _RENAMED}).items():
        count(name, op == code)
    renamed = np.flatnonzero(op == _RENAMED)
    renamed = renamed[runs(place[renamed])]
    column["RENAMED_FROM"][place[renamed]] = ids[rows["old"][renamed]].view(np.int64)
    data, previous = before((op == READ) | (op == WRITE), op, -1)
    column["RW_SWITCHES"][:] = np.bincount(place[data[(previous >= 0) & (previous != op[data])]], minlength=len(files))
    moments("OPEN", op == _OPEN)
    moments("CLOSE", op == _CLOSE)
    _assume_opens(column)
    return files, records


def _assume_opens(column: Rows) -> None:
    """A file that was used without a recorded open or close counts as opened once, around its use."""
    times = np.stack([column[f"F_{way}_{end}_TIMESTAMP"] for end in ("START", "END") for way in ("READ", "WRITE")])
    assumed = (times != 0).any(axis=0) & (column["OPENS"] == 0) & (column["F_CLOSE_START_TIMESTAMP"] == 0)
    column["OPENS"][assumed] = 1
    for name, part, none in (("OPEN", times[:2], np.inf), ("CLOSE", times[2:], -np.inf)):
        part = np.where(part == 0, none, part)
        moment = part.min(axis=0) if name == "OPEN" else part.max(axis=0)
        for when in ("START", "END"):
            column[f"F_{name}_{when}_TIMESTAMP"][assumed] = moment[assumed]


def _seeks_without_rows(capture: Capture) -> np.ndarray:
    """Seeks of POSIX that are counted by file and have no operation, by file_id."""
    seeks = capture.files["posix_seeks"].fill_null(0).to_numpy().copy()
    for batch in capture.operations(columns=["op", "api", "file_id"]) if seeks.any() else ():
        mine = (codes(batch, "op") == _SEEK) & (codes(batch, "api") == _POSIX)
        np.subtract.at(seeks, batch.column("file_id").to_numpy()[mine], 1)
    found: np.ndarray = np.maximum(seeks, 0)
    return found


def _write_log(log: IO[bytes], capture: Capture, nprocs: int, ids: np.ndarray, regions: dict[str, IO[bytes]]) -> bool:
    """Write the header, the job, the names and the regions; returns whether the job record had room for everything."""
    info, files = capture.info, capture.files
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
    numbers = (0, *divmod(start_ns, NS_PER_S), *divmod(end_ns, NS_PER_S), nprocs, info.job.job_id)
    lines, has_lines = _fitting((f"{key}={value}\n" for key, value in metadata.items()), METADATA_BYTES - 1)
    # longest first, as Darshan writes them
    ordered = sorted(sorted(mounts), key=lambda mount: len(mount[1]), reverse=True)
    table, has_mounts = _fitting((f"\n{fs_type}\t{path}" for fs_type, path in ordered), _COMMAND_BYTES)
    command, room = info.job.exe.replace("\0", " ").encode(), _COMMAND_BYTES - len(table)
    cut = command[:room].decode("utf-8", "ignore").encode()
    job = _JOB_NUMBERS.pack(*numbers) + lines.ljust(METADATA_BYTES, b"\0") + cut + table + b"\0"
    names = zip(ids.tolist(), _log_names(capture), strict=True)
    log.write(bytes(MAX_HEADER_BYTES) + zlib.compress(job))
    places, versions = [(0, 0)] * (1 + _SLOTS), [0] * _SLOTS
    packed = zlib.compress(b"".join(struct.pack("<Q", record) + path + b"\0" for record, path in names))
    places[0] = log.tell(), len(packed)
    log.write(packed)
    for module in sorted(regions, key=MODULE_NAMES.index):
        slot, begin = MODULE_NAMES.index(module), log.tell()
        regions[module].seek(0)
        shutil.copyfileobj(regions[module], log, 1 << 20)
        places[1 + slot], versions[slot] = (begin, log.tell() - begin), _MODULES[module]
    shares = (info.coverage.bytes, info.coverage.operations)
    is_partial = info.partial or any(share is not None and share < 1 for share in shares)
    flags = sum(1 << MODULE_NAMES.index(module) for module in regions if is_partial)
    log.seek(0)
    log.write(struct.pack("<8sqB7xQ", _LOG_VERSION.encode(), _MAGIC, _ZLIB, flags))
    log.write(b"".join(struct.pack("<QQ", *region) for region in places))
    log.write(struct.pack(f"<{_SLOTS}I", *versions))
    return has_lines and has_mounts and len(command) <= room


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


def _fitting(lines: Iterable[str], room: int) -> tuple[bytes, bool]:
    """The first whole lines that fit, and whether all fit."""
    kept = b""
    for line in lines:
        if len(kept) + len(line.encode()) > room:
            return kept, False
        kept += line.encode()
    return kept, True


def _notes(capture: Capture, left_out: Counter[str], said: Counter[str], whole: bool) -> Iterator[str]:
    """Notes on the parts of this capture that a Darshan log cannot hold."""
    if spans := capture.spans.num_rows:
        yield f"{spans:,} spans and the steps are not kept: a Darshan log has no place for them"
    if said["DXT_POSIX"] + said["DXT_MPIIO"]:
        yield "lanes are not kept: the DXT that released tools read has no place for them"
    if count := said["counters"]:
        yield f"{count} operations are in the counters alone: DXT holds reads and writes of POSIX and MPI-IO"
    for reason, count in sorted(left_out.items()):
        why = f"at {reason.upper()} are left out: the log holds POSIX, and MPI-IO as traced"
        if reason == FAILED:
            why = "that failed are left out: Darshan does not record them"
        yield f"{count} operations {why}"
    if count := capture.hdf5.num_rows:
        yield f"{count} HDF5 datasets are not kept: their counters are not those of operations"
    if count := said["collective"]:
        yield f"{count} collective operations are not marked as such: DXT cannot"
    if count := said["early"]:
        yield f"{count} operations begin before the job's start: their times are negative"
    if count := said["seeks"]:
        yield (
            f"{format_counted(count, 'seek')} on files of several ranks are written for the lowest of these: the "
            "capture does not hold which rank made them"
        )
    if not whole:
        yield "the command line, the mounts or the metadata are cut: a job record has 4096 bytes"
