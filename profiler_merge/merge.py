"""Merges recordings into one capture: the job as seen by Darshan or another tracer, and the profiles of its ranks.

`recorded_job.Recording` hides the differences between kinds of recordings; `sources` lists the kinds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.profiler_merge.clocks.alignment import parse_method
from dxt_replay.profiler_merge.given_files import GivenFiles, given_files, kind_of
from dxt_replay.profiler_merge.job_spans import JobSpans
from dxt_replay.profiler_merge.profiles.marks import NO_FETCH
from dxt_replay.profiler_merge.profiles.reading import profile_files, profile_kind
from dxt_replay.profiler_merge.recorded_job import DEFAULTS, MergeOptions, Recording
from dxt_replay.profiler_merge.rows import NO_FILE
from dxt_replay.profiler_merge.sources import BY_KIND, reader
from dxt_replay.traces.plain import Result, plain
from dxt_replay.traces.schema import LANES_SCHEMA, OPS_SCHEMA, CaptureInfo, RankClock, Source, table_from_columns
from dxt_replay.traces.store.digests import digests_beside
from dxt_replay.traces.store.writer import (
    ROW_GROUP_ROWS,
    OpsWriter,
    begin_capture,
    check_capture_output,
    discard_capture,
    publish_capture,
    write_capture_info,
    write_files,
    write_hdf5,
    write_lanes,
    write_spans,
)
from dxt_replay.traces.unseen import coverage_json, nothing_recorded, recorder_notes
from dxt_replay.traces.version import VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult(Result):
    """The result of a merge.

    `operations`: number of traced ones; `reconstructed`: number of rebuilt ones. `counted`: Darshan's counters of each
    interface, as {"POSIX": {"reads": ..., "writes": ..., "bytes_read": ..., "bytes_written": ...}}.
    """

    capture: Path
    info: CaptureInfo
    operations: int
    reconstructed: int
    files: int
    spans: int
    counted: Mapping[str, Mapping[str, int]]

    @property
    def recorded_by(self) -> str | None:
        """The kind of the first source of operations, such as darshan; None for profiles alone."""
        return None if nothing_recorded(self.info.coverage.unseen) else self.info.sources[0].kind

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay merge --json` prints."""
        clock = ("rank", "worker", "method", "offset_ns", "residual_ns", "interval_ns")
        return {
            "capture": str(self.capture),
            "recorded_by": self.recorded_by,
            "ranks": len(self.info.ranks),
            "operations": {"traced": self.operations, "reconstructed": self.reconstructed},
            "files": self.files,
            "spans": self.spans,
            "lanes": self.info.lanes,
            "counted": plain(self.counted),
            "coverage": coverage_json(self.info.coverage),
            "clock": [{name: plain(getattr(found, name)) for name in clock} for found in self.info.clock],
            "rebuilt": plain(self.info.made_by["rebuilt"]),
            "extended": plain(self.info.made_by.get("extended", {})),
            "warnings": plain(self.info.warnings),
        }


def merge(
    logs: Sequence[Path], profiles: Sequence[Path], output: Path, options: MergeOptions = DEFAULTS
) -> MergeResult:
    """Write the capture `output` from the logs or traces of one job and the profiles of its ranks, or from these alone.

    Raises: LogError, ProfileError, AlignmentError for sources that cannot be used; TargetError for `output`.
    """
    given = given_files(logs, profiles)
    parse_method(options.align)
    check_capture_output(output, force=options.force)
    recording, requests = open_recording(given, options)
    working = begin_capture(output, force=options.force)
    try:
        info, files, spans = _written(recording, requests, given, options, working)
        publish_capture(working, output, force=options.force)
    except BaseException:
        discard_capture(working)
        raise
    reconstructed = int(info.made_by["operations_reconstructed"])
    return MergeResult(
        capture=output,
        info=info,
        operations=int(info.made_by["operations_stored"]) - reconstructed,
        reconstructed=reconstructed,
        files=files.num_rows,
        spans=spans,
        counted=_counted(files, info.made_by.get("counted_times", {})),
    )


def open_recording(given: GivenFiles, options: MergeOptions) -> tuple[Recording, Any]:
    """The recording of the operations, read by the reader in the registry, or the profiles alone; and the job's
    `RequestsOfRanks`, if there are any.

    Most merges need few of these modules. Raises: LogError for files that their reader cannot read.
    """
    if given.recorder is None:
        from dxt_replay.profiler_merge.profiles_alone import ProfilesAlone

        return ProfilesAlone(given.spans, options), None
    if given.recorder.requests:
        from dxt_replay.profiler_merge.request_recording import requests_alone

        return requests_alone(reader(given.recorder.requests)(given.operations), options)
    recording: Recording
    if given.recorder.trace:
        from dxt_replay.profiler_merge.traced_recording import TracedRecording

        job = reader(given.recorder.trace)(given.operations, options.exclude, options.include)
        recording = TracedRecording(given.recorder.kind, job, options)
    else:
        recording = reader(given.recorder.recording)(given.operations, options)
    if not given.requests:
        return recording, None
    from dxt_replay.profiler_merge.request_recording import requests_beside

    kind = BY_KIND[str(kind_of(given.requests[0]))]
    return recording, requests_beside(recording, reader(kind.requests)(given.requests))


def _written(
    recording: Recording, requests: Any, given: GivenFiles, options: MergeOptions, folder: Path
) -> tuple[CaptureInfo, pa.Table, int]:
    """Write everything into the capture `folder`. Returns the contents of capture.json, the files table, and the number
    of spans."""
    placed = recording.place(profile_files(given.profiles))
    loops, warnings = dict(recording.loops), [*placed.warnings]
    if given.spans:  # training loops by rank, from traces given as profiles
        annotations = reader(BY_KIND[str(kind_of(given.spans[0]))].spans)
        found_loops, loop_warnings = annotations(given.spans, recording.process_ids())
        loops |= found_loops
        warnings += loop_warnings
    job_spans = JobSpans(profiles=placed.by_rank, start_ns=recording.start_ns, ranks=recording.ranks, loops=loops)
    recorded = [*recording.files, *(() if requests is None else requests.files)]
    sources = [
        *dict.fromkeys(recorded),
        *((path, profile_kind(path)) for _, files in sorted(placed.by_rank.items()) for path in files),
        *((path, str(kind_of(path))) for path in given.spans),
    ]
    digest = digests_beside([path for path, _ in sources])
    ranks, clock, lanes = {*recording.ranks, *placed.by_rank}, list[RankClock](), [LANES_SCHEMA.empty_table()]
    waiting, count = list[dict[str, np.ndarray]](), 0
    with OpsWriter(folder) as writer:
        for rows in recording.rows(folder, job_spans):
            ranks.update(rows.ranks.tolist())
            clock += rows.clock
            warnings += rows.warnings
            lanes.append(rows.lanes)
            if rows.profile is not None:
                warnings += job_spans.add_profiled(rows, recording.path)
            columns = rows.columns
            if (columns["file_id"] < 0).any():  # the recorder's own files, which told clocks and threads
                columns = {name: values[rows.columns["file_id"] >= 0] for name, values in columns.items()}
            step = job_spans.step_of(int(rows.ranks[0]), columns["start_ns"])
            waiting.append({**columns, "step": step})
            count += len(step)
            if count >= ROW_GROUP_ROWS:  # ranks with few rows share a table, which costs more than its few rows
                writer.write(_joined(waiting))
                waiting, count = [], 0
        if waiting:
            writer.write(_joined(waiting))
    stored = writer.rows
    warnings += job_spans.add_rest()
    extended, extension_warnings = job_spans.extended()
    spans = job_spans.table()
    found = recording.finish(stored or (0 if requests is None else requests.count), spans)
    if requests is not None:
        found, of_requests, lanes_of_requests = requests.add(folder, found, job_spans, spans, recording.start_ns)
        stored += requests.count
        ranks |= of_requests
        lanes.append(lanes_of_requests)
    marked = [{"rank": rank, **times} for rank, times in sorted(job_spans.marked.items())]
    notes = recorder_notes([path for path, _ in recorded], "notes")
    info = CaptureInfo(
        job=recording.job,
        ranks=tuple(sorted(ranks)),
        sources=tuple(Source(name=path.name, sha256=digest(path), kind=kind) for path, kind in sources),
        clock=tuple(sorted(clock, key=lambda each: (each.rank, each.worker))),
        coverage=found.coverage,
        lanes=found.lanes,
        dependencies="known" if job_spans.known and job_spans.known >= ranks else "inferred",
        warnings=(
            *(*notes, *recording.warnings, *(() if requests is None else requests.warnings)),
            *(*warnings, *extension_warnings, *found.warnings),
        ),
        made_by={
            "program": "dxt-replay",
            "version": VERSION,
            "command": "merge",
            "operations_stored": stored,
            "operations_reconstructed": found.reconstructed,
            "rebuilt": found.rebuilt.as_json(),
            **({"extended": extended} if extended else {}),
            **({"marks": marked} if marked else {}),
            **found.made_by,
            "align": options.align,
            "exclude": list(options.exclude),
        },
    )
    write_files(folder, found.files)
    write_spans(folder, spans)
    write_hdf5(folder, found.hdf5)
    write_lanes(folder, pa.concat_tables(lanes))
    write_capture_info(folder, info)
    return info, found.files, spans.num_rows


def _joined(ranks: list[dict[str, np.ndarray]]) -> pa.Table:
    """Rows of one or several `RankRows` as `OPS_SCHEMA`."""
    columns = ranks[0]
    if len(ranks) > 1:
        columns = {name: np.concatenate([each[name] for each in ranks]) for name in columns}
    if "follows" in columns:
        nothing = columns["follows"] == NO_FETCH
        columns = {**columns, "follows_end": np.ma.masked_array(columns["follows_end"], nothing)}
        columns |= {name: np.ma.masked_equal(columns[name], NO_FETCH) for name in ("feeds", "follows", "ready_ns")}
    known = {
        name: None if (columns[name] == unknown).all() else np.ma.masked_equal(columns[name], unknown)
        for name, unknown in (("other_file_id", NO_FILE), ("open_flags", -1))
    }
    return table_from_columns({**columns, **known}, OPS_SCHEMA)


def _counted(files: pa.Table, counted_times: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Reads, writes and bytes in the counters of each interface that was used, over all files.

    counted_times: of interfaces that the files table lacks.
    """
    amounts = ("reads", "writes", "bytes_read", "bytes_written")
    totals = {
        name: {what: pc.sum(files[f"{prefix}_{what}"]).as_py() or 0 for what in amounts}
        for name, prefix in (("POSIX", "posix"), ("STDIO", "stdio"), ("MPIIO", "mpiio"), ("HDF5", "h5d"))
    }
    totals |= {
        name: {what: each[what] for what in amounts}
        for name, each in counted_times.items()
        if name not in totals and each["reads"] is not None
    }
    return {name: counts for name, counts in totals.items() if any(counts.values())}
