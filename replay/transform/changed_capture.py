"""Writing a changed capture: rows, files and spans by rank, and what capture.json says of how they were made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from dxt_replay.traces.benchmark_run import BENCHMARK
from dxt_replay.traces.schema import SPANS_SCHEMA, CaptureInfo, Coverage
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.store.relation import as_source
from dxt_replay.traces.store.writer import (
    OpsWriter,
    begin_capture,
    discard_capture,
    publish_capture,
    write_capture_info,
    write_files,
    write_hdf5,
    write_spans,
)
from dxt_replay.traces.units import ns_to_seconds
from dxt_replay.traces.version import VERSION


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankRows:
    """What is written of one rank. operations: rows of `OPS_SCHEMA` in start order, as batches or tables; they are read
    when they are written. spans: rows of `SPANS_SCHEMA`."""

    rank: int
    operations: Callable[[], Iterable[pa.Table]]
    spans: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tables:
    """The tables of a changed capture that hold no operations. files: `FILES_SCHEMA`. hdf5: `HDF5_SCHEMA`."""

    files: pa.Table
    hdf5: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """What capture.json says of a changed capture.

    changes: by name, in the order in which they were applied. assumptions: sentences.
    known: whether the rows say what they wait for. elapsed_ns: of the changed job.
    """

    changes: Mapping[str, Any]
    assumptions: Sequence[str]
    known: bool
    elapsed_ns: int


def write_changed(
    source: Capture, ranks: Iterable[RankRows], tables: Tables, making: Making, output: Path, *, force: bool
) -> None:
    """Write the capture `output`, rank by rank. Raises: TargetError for `output`; CaptureError for a damaged source."""
    working = begin_capture(output, force=force)
    try:
        numbers, spans = [], [SPANS_SCHEMA.empty_table()]
        with OpsWriter(working) as writer:
            for rank in ranks:
                numbers.append(rank.rank)
                spans.append(rank.spans)
                for table in rank.operations():
                    writer.write(table)
        write_files(working, tables.files)
        write_spans(working, pa.concat_tables(spans))
        write_hdf5(working, tables.hdf5)
        write_capture_info(working, _info(source, tuple(numbers), writer.rows, making))
        publish_capture(working, output, force=force)
    except BaseException:
        discard_capture(working)
        raise


def _info(source: Capture, ranks: tuple[int, ...], stored: int, making: Making) -> CaptureInfo:
    info = source.info
    job = info.job
    earlier = info.made_by.get("transforms", [])
    # What a benchmark says of its training does not hold for a changed one.
    metadata = {name: value for name, value in job.metadata.items() if name != BENCHMARK}
    ended = job.end_ns if not job.start_ns else job.start_ns + making.elapsed_ns
    return dataclasses.replace(
        info,
        job=dataclasses.replace(
            job, nprocs=len(ranks), run_time_s=ns_to_seconds(making.elapsed_ns), end_ns=ended, metadata=metadata
        ),
        ranks=ranks,
        sources=(as_source(source), *info.sources),
        # The rows stand at the times of one clock, and no counters count them.
        clock=() if making.known else info.clock,
        coverage=Coverage(bytes=None, operations=None, unseen=info.coverage.unseen),
        dependencies="known" if making.known else info.dependencies,
        made_by={
            "program": "dxt-replay",
            "version": VERSION,
            "command": "transform",
            "operations_stored": stored,
            "transforms": [*earlier, {"changes": dict(making.changes), "assumptions": list(making.assumptions)}],
        },
    )
