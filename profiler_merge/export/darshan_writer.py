"""Writes a capture as a Darshan log (container 3.41, as Darshan 3.5 writes), for any tool that reads Darshan logs.

Traced POSIX and MPI-IO reads and writes become DXT segments; the counters of POSIX, MPI-IO and STDIO and the HEATMAP
are computed from all operations. Records are per rank, as with DARSHAN_DISABLE_SHARED_REDUCTION.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.darshan.counters import SHARED_RANK
from dxt_replay.profiler_merge.darshan.job import UNKNOWN_MOUNT
from dxt_replay.profiler_merge.export.darshan_container import LogRegions, encode_job, encode_names
from dxt_replay.profiler_merge.export.darshan_counters import (
    APIS_OF_MODULE,
    UNKNOWN_ALIGNMENT,
    VERSIONS,
    Values,
    encode_counters,
    module_counters,
    rows_of_module,
)
from dxt_replay.profiler_merge.export.darshan_heatmap import VERSION as HEATMAP_VERSION
from dxt_replay.profiler_merge.export.darshan_heatmap import Heatmap, heatmap_bins
from dxt_replay.profiler_merge.export.darshan_lustre import VERSION as LUSTRE_VERSION
from dxt_replay.profiler_merge.export.darshan_lustre import encode_lustre
from dxt_replay.profiler_merge.export.darshan_rows import RENAME, RENAMED, ROW, RowsByFile, is_one_of
from dxt_replay.profiler_merge.export.darshan_seeks import CountedSeeks, counted_seeks
from dxt_replay.profiler_merge.export.darshan_segments import DXT_VERSIONS, encode_segments
from dxt_replay.profiler_merge.export.exported import Exported, ExportedFile
from dxt_replay.profiler_merge.export.numbers import known_numbers
from dxt_replay.traces.errors import CaptureError, UsageError
from dxt_replay.traces.file_rows import exact_paths
from dxt_replay.traces.output import folder_beside, new_file, refusal
from dxt_replay.traces.record_id import record_id
from dxt_replay.traces.schema import APIS, READ, RECONSTRUCTED, WRITE, codes
from dxt_replay.traces.store.rank_pieces import rank_pieces, work_of
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import NS_PER_S, format_counted, seconds_to_ns
from dxt_replay.traces.version import VERSION
from dxt_replay.traces.workers.workers import ALONE, Workers

WRITER_KEY = "writer"
"""Key of job metadata that marks a log as written here instead of recorded by Darshan."""

FAILED = "failed"
HDF5 = "hdf5"

_LIB_VERSION = "3.5.0"
_DXT_OF_MODULE = {"POSIX": "DXT_POSIX", "MPI-IO": "DXT_MPIIO"}
_HEATMAP_OF_MODULE = {"POSIX": "heatmap:POSIX", "MPI-IO": "heatmap:MPIIO", "STDIO": "heatmap:STDIO"}
_COLUMNS = (
    "op",
    "api",
    "origin",
    "lane",
    "file_id",
    "offset",
    "length",
    "start_ns",
    "end_ns",
    "result",
    "other_file_id",
)
_SUMMED_COUNTERS = {
    "POSIX": {
        "opens", "reads", "writes", "seeks", "stats", "fsyncs", "fdsyncs", "bytes_read", "bytes_written", "seq_reads",
        "seq_writes", "consec_reads", "consec_writes",
    },
    "STDIO": {"opens", "reads", "writes", "seeks", "flushes", "bytes_read", "bytes_written"},
}  # fmt: skip
"""Columns of the files table, without the module's prefix, that are counters of the same name."""

_OPERATIONS = {"opens", "reads", "writes", "seeks", "stats", "fsyncs", "fdsyncs", "flushes"}
"""The columns that count operations."""


def write_darshan(
    capture: Capture, output: Path, *, dxt_version: int = 1, force: bool = False, workers: Workers = ALONE
) -> Exported:
    """Write `capture` to the log `output`.

    `dxt_version` 1: DXT_POSIX 1 and DXT_MPIIO 2, which released tools read. 2: DXT_POSIX 2 and DXT_MPIIO 3, with a
    pthread id per lane, so that lanes survive. Memory: a row group, or the operations of one rank on one file if those
    are more. Disk beside `output`: 48 bytes per operation of the largest rank. There workers also write the regions of
    some ranks each, which are then joined.
    Raises: UsageError for an unknown version; CaptureError when the capture is damaged; TargetError when `output`
    exists and not `force`, or cannot be written.
    """
    if dxt_version not in DXT_VERSIONS:
        raise UsageError(f"--dxt-version {dxt_version}: choose {' or '.join(map(str, DXT_VERSIONS))}")
    with new_file(output, force=force) as log, LogRegions(output.parent) as regions:
        writer = _Writer(capture, regions, dxt_version, counted_seeks(capture))
        _write_ranks(writer, output, workers)
        writer.write_counted_only()
        writer.write_stripes()
        whole = writer.finish(log)
    left_out = {reason: count for reason, count in sorted(writer.tally.left_out.items()) if count}
    return Exported(
        format="darshan",
        output=str(output),
        operations=capture.operation_count() - sum(left_out.values()),
        files=(ExportedFile(path=str(output), entries=writer.tally.segments, bytes=output.stat().st_size),),
        left_out=left_out,
        notes=tuple(_notes(capture, writer, dxt_version, whole)),
    )


def _write_ranks(writer: _Writer, output: Path, workers: Workers) -> None:
    capture = writer.capture
    pieces = rank_pieces(capture, workers.piece_operations)
    if len(pieces) == 1:
        for rank in capture.ranks:
            writer.write_rank(rank)
        return
    with folder_beside(output) as folder:
        work = _RankWork(
            capture=capture, folder=folder, dxt_version=writer.dxt_version, seeks=writer.seeks, output=output
        )
        with workers.results(work, pieces, operations=work_of(capture)) as results:
            for tally, regions in results:
                writer.tally.add(tally)
                for module, (version, path) in regions.items():
                    writer.regions.add_piece(module, version, path)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankWork:
    """Writes the regions of some ranks to files of `folder`; returns a tally, and the files by module."""

    capture: Capture
    folder: Path
    dxt_version: int
    seeks: Mapping[str, CountedSeeks]
    output: Path

    def __call__(self, ranks: tuple[int, ...]) -> tuple[_Tally, dict[str, tuple[int, Path]]]:
        try:
            with LogRegions(self.folder, str(ranks[0])) as regions:
                writer = _Writer(self.capture, regions, self.dxt_version, self.seeks)
                for rank in ranks:
                    writer.write_rank(rank)
            return writer.tally, regions.pieces()
        except OSError as error:
            raise refusal(error, self.output) from error


@dataclass(slots=True, kw_only=True)
class _Tally:
    """What was written for some ranks.

    `counted[module]`: by file_id, whether a record of it was written. `left_out`: operations by reason.
    `heatmaps`: names of the records there. `rank_unknown`: records of unknown rank, written for rank 0."""

    counted: dict[str, np.ndarray]
    segments: int = 0
    not_traced: int = 0
    early: int = 0
    collective: int = 0
    rank_unknown: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    heatmaps: set[str] = field(default_factory=set)

    def add(self, other: _Tally) -> None:
        """Add the tally of other ranks."""
        for module, mask in other.counted.items():
            self.counted[module] |= mask
        self.segments += other.segments
        self.not_traced += other.not_traced
        self.early += other.early
        self.collective += other.collective
        self.rank_unknown += other.rank_unknown
        self.left_out += other.left_out
        self.heatmaps |= other.heatmaps


@dataclass(slots=True)
class _Writer:
    """One pass over the ranks."""

    capture: Capture
    regions: LogRegions
    dxt_version: int
    seeks: Mapping[str, CountedSeeks]
    tally: _Tally = field(init=False)
    record_ids: np.ndarray = field(init=False)
    block_sizes: np.ndarray = field(init=False)
    end_ns: int = field(init=False)

    def __post_init__(self) -> None:
        files = self.capture.files
        self.record_ids = _record_ids(self.capture)
        self.block_sizes = np.array([_block_size(fs_type) for fs_type in files["fs_type"].to_pylist()], dtype=np.int64)
        self.end_ns = max(self.capture.time_span_ns[1], _job_end_ns(self.capture) - _job_start_ns(self.capture))
        self.tally = _Tally(counted={module: np.zeros(files.num_rows, dtype=bool) for module in VERSIONS})

    def write_rank(self, rank: int) -> None:
        """Append everything of one rank to the regions."""
        heatmaps = {module: Heatmap(*heatmap_bins(self.end_ns)) for module in VERSIONS}
        with RowsByFile(self.regions.folder) as by_file:
            for batch in self.capture.operations(rank, columns=list(_COLUMNS)):
                rows = self._rows(batch, rank)
                by_file.add(rows)
                by_file.add(self._new_names(rows, rank))
                _add_data(heatmaps, rows)
            for group in by_file.groups():
                for module in VERSIONS:
                    self._write_group(rank, module, group)
        for module, heatmap in heatmaps.items():
            if data := heatmap.encode(record_id(_HEATMAP_OF_MODULE[module]), rank):
                self.tally.heatmaps.add(_HEATMAP_OF_MODULE[module])
                self.regions.append("HEATMAP", HEATMAP_VERSION, data)
        self.regions.end_streams()

    def _rows(self, batch: pa.RecordBatch, rank: int) -> np.ndarray:
        """The rows of a batch that a Darshan log can hold; the others are counted by reason."""
        rows = np.empty(batch.num_rows, dtype=ROW)
        for name in ("lane", "file_id", "offset", "length", "start_ns", "end_ns"):
            rows[name] = batch.column(name).to_numpy()
        rows["op"], rows["api"] = op, api = codes(batch, "op"), codes(batch, "api")
        rows["other_file_id"] = batch.column("other_file_id").fill_null(-1).to_numpy()
        is_data = is_one_of(op, (READ, WRITE))
        posix = api == APIS.index("POSIX")
        dxt = is_one_of(api, APIS_OF_MODULE["POSIX"] + APIS_OF_MODULE["MPI-IO"])
        # DXT_POSIX cannot express an unknown offset
        unknown = posix & (batch.column("offset").to_numpy() < 0)
        rows["traced"] = is_data & dxt & (codes(batch, "origin") != RECONSTRUCTED) & ~unknown
        failed = known_numbers(batch, "result")[0] < 0
        hdf5 = ~failed & (api == APIS.index("HDF5"))
        self.tally.left_out[FAILED] += int(failed.sum())
        self.tally.left_out[HDF5] += int(hdf5.sum())
        gone = failed | hdf5
        kept = rows.take(np.flatnonzero(~gone)) if gone.any() else rows
        self.tally.segments += int(kept["traced"].sum())
        self.tally.not_traced += int((~kept["traced"]).sum())
        self.tally.early += int((kept["start_ns"] < 0).sum())
        self.tally.collective += int((kept["traced"] & (kept["api"] == APIS.index("MPIIO_COLL"))).sum())
        return kept

    def _new_names(self, rows: np.ndarray, rank: int) -> np.ndarray:
        """The other side of each rename in `rows`: a rename is counted at both names."""
        found = rows.take(np.flatnonzero(rows["op"] == RENAME))
        found["op"] = RENAMED
        found["file_id"], found["other_file_id"] = found["other_file_id"], found["file_id"].copy()
        return found

    def _write_group(self, rank: int, module: str, group: np.ndarray) -> None:
        """Counter and DXT records of one rank's files at one module."""
        mine = rows_of_module(group, module)
        if not mine.files:
            return
        self.tally.counted[module][mine.file_ids] = True
        ids = self.record_ids[mine.file_ids]
        values = module_counters(module, mine, self.block_sizes[mine.file_ids], self.record_ids)
        if module in self.seeks:
            values[f"{module}_SEEKS"] = values[f"{module}_SEEKS"] + self.seeks[module].of(rank, mine.file_ids)
        self.regions.append(module, VERSIONS[module], encode_counters(module, ids, rank, values))
        if module in _DXT_OF_MODULE:
            traced = np.flatnonzero(mine["traced"])
            pieces = encode_segments(
                mine.file[traced],
                mine["op"][traced] == WRITE,
                mine.rows if len(traced) == len(mine.rows) else mine.rows.take(traced),
                ids,
                rank,
                threads=self.dxt_version > 1,
            )
            dxt = _DXT_OF_MODULE[module]
            for piece in pieces:
                self.regions.append(dxt, DXT_VERSIONS[self.dxt_version][dxt], piece)

    @property
    def nprocs(self) -> int:
        """Number of processes in the job record of the log."""
        return max(self.capture.info.job.nprocs, 1, *(rank + 1 for rank in self.capture.ranks))

    def write_counted_only(self) -> None:
        """Write records of counted I/O in the files table that no operation shows; its rank is unknown.

        A shared record states that every rank used the file. If it would have fewer operations than ranks, rank 0 gets
        it instead.
        """
        sizes = np.maximum(self.capture.files["size"].to_numpy(), 1)
        for module, names in _SUMMED_COUNTERS.items():
            columns = {
                f"{module}_{name.upper()}": self.capture.files[f"{module.lower()}_{name}"].fill_null(0).to_numpy()
                for name in sorted(names)
            }
            mine = np.flatnonzero(
                ~self.tally.counted[module] & np.any([column > 0 for column in columns.values()], axis=0)
            )
            values: Values = {name: column[mine] for name, column in columns.items()}
            for moved in ("READ", "WRITTEN"):
                # the table has one size per file, for every interface
                some = values[f"{module}_BYTES_{moved}"] > 0
                values[f"{module}_MAX_BYTE_{moved}"] = np.where(some, sizes[mine] - 1, 0)
            operations = np.sum([values[f"{module}_{name.upper()}"] for name in sorted(names & _OPERATIONS)], axis=0)
            shared: np.ndarray = (operations >= self.nprocs) & (self.nprocs > 1)
            self.tally.rank_unknown += int((~shared).sum()) if self.nprocs > 1 else 0
            for rank, of_rank in ((SHARED_RANK, shared), (0, ~shared)):
                some_values = {name: column[of_rank] for name, column in values.items()}
                data = encode_counters(module, self.record_ids[mine[of_rank]], rank, some_values)
                self.regions.append(module, VERSIONS[module], data)
        self.regions.end_streams()

    def write_stripes(self) -> None:
        """A LUSTRE record of each file whose stripes are known."""
        sizes, counts = (self.capture.files[name].to_pylist() for name in ("stripe_size", "stripe_count"))
        for record, size, count in zip(self.record_ids.tolist(), sizes, counts, strict=True):
            if size is not None and count is not None:
                self.regions.append("LUSTRE", LUSTRE_VERSION, encode_lustre(record, size, count))
        self.regions.end_streams()

    def finish(self, log: IO[bytes]) -> bool:
        """Write the log; returns whether the job record had room for everything."""
        info = self.capture.info
        metadata = {
            "lib_ver": _LIB_VERSION,
            **{key: value for key, value in info.job.metadata.items() if "\n" not in key + value},
            WRITER_KEY: f"dxt-replay {VERSION}",
        }
        files = self.capture.files
        mounts = {
            (fs_type, path)
            for path, fs_type in zip(files["mount"].to_pylist(), files["fs_type"].to_pylist(), strict=True)
            if path.startswith("/") and path != UNKNOWN_MOUNT.path and fs_type
        }
        job, whole = encode_job(
            start_ns=_job_start_ns(self.capture),
            end_ns=_job_end_ns(self.capture),
            nprocs=self.nprocs,
            job_id=info.job.job_id,
            exe=info.job.exe,
            metadata=metadata,
            mounts=sorted(mounts),
        )
        names = [*zip(self.record_ids.tolist(), _log_names(self.capture), strict=True)]
        names += [(record_id(name), name.encode()) for name in sorted(self.tally.heatmaps)]
        partial = [*_DXT_OF_MODULE, *_DXT_OF_MODULE.values()] if _is_partial(self.capture) else []
        self.regions.write(log, job=job, names=encode_names(names), partial=partial)
        return whole


def _add_data(heatmaps: Mapping[str, Heatmap], rows: np.ndarray) -> None:
    """Add reads and writes to the heatmaps of their modules."""
    op, api, length, start, end = (
        np.ascontiguousarray(rows[name]) for name in ("op", "api", "length", "start_ns", "end_ns")
    )
    is_data = is_one_of(op, (READ, WRITE))
    for module, heatmap in heatmaps.items():
        mine = is_data & is_one_of(api, APIS_OF_MODULE[module])
        if mine.any():
            heatmap.add(length[mine], start[mine], end[mine], op[mine] == WRITE)


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


def _block_size(fs_type: str) -> int:
    """Darshan's alignment of a file: 1 MiB on Lustre, else the block size, which nearly always is 4 KiB."""
    if fs_type in ("", UNKNOWN_MOUNT.fs_type):
        return UNKNOWN_ALIGNMENT
    return 1 << 20 if fs_type == "lustre" else 1 << 12


def _job_start_ns(capture: Capture) -> int:
    """The capture's zero. An undated one gets the second after the epoch, since 0 would mean "not known"."""
    zero_ns = capture.info.job.zero_ns
    return zero_ns if zero_ns > 0 else NS_PER_S


def _job_end_ns(capture: Capture) -> int:
    """End of the job: its run time after the start; old logs have a second more."""
    job = capture.info.job
    return max(job.end_ns, _job_start_ns(capture) + max(1, seconds_to_ns(job.run_time_s)))


def _is_partial(capture: Capture) -> bool:
    coverage = capture.info.coverage
    return capture.info.partial or any(
        share is not None and share < 1 for share in (coverage.bytes, coverage.operations)
    )


def _notes(capture: Capture, writer: _Writer, dxt_version: int, whole: bool) -> list[str]:
    """Notes on the parts of this capture that a Darshan log cannot hold."""
    notes, tally = [], writer.tally
    if capture.spans.num_rows:
        notes.append(
            f"{capture.spans.num_rows:,} spans and the steps are not kept: a Darshan log has no place for them"
        )
    if dxt_version == 1 and tally.segments:
        notes.append("lanes are not kept: --dxt-version 2 keeps them, as thread ids, but few tools read it yet")
    if tally.not_traced:
        notes.append(
            f"{tally.not_traced} operations are in the counters alone: DXT holds reads and writes of POSIX and MPI-IO"
        )
    if tally.left_out[FAILED]:
        notes.append(f"{tally.left_out[FAILED]} operations that failed are left out: Darshan does not record them")
    if tally.left_out[HDF5]:
        notes.append(f"{tally.left_out[HDF5]} operations at HDF5 are left out: its datasets are not in a capture")
    if capture.hdf5.num_rows:
        notes.append(f"{capture.hdf5.num_rows} HDF5 datasets are not kept: their counters are not those of operations")
    if tally.collective:
        notes.append(f"{tally.collective} collective operations are marked in the counters alone: DXT cannot")
    if tally.early:
        notes.append(f"{tally.early} operations begin before the job's start: their times are negative")
    if tally.rank_unknown:
        files = format_counted(tally.rank_unknown, "file")
        notes.append(f"counters of {files} are written for rank 0: the capture does not hold which rank used them")
    if seeks := sum(of_module.rank_unknown for of_module in writer.seeks.values()):
        notes.append(
            f"{format_counted(seeks, 'seek')} on files of several ranks are written for the lowest of these: the "
            "capture does not hold which rank made them"
        )
    if not whole:
        notes.append("the command line, the mounts or the metadata are cut: a job record has 4096 bytes")
    return notes
