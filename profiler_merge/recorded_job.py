"""A job as one source recorded it: the interface between the merge and every kind of recording.

A merge asks a `Recording` for the places of the profiles, has it write the operations of its ranks, and then asks for
the results over all of them. This module and `merge` hold what recordings share: spans, steps, `capture.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.clocks.offsets import Alignment
from dxt_replay.profiler_merge.clocks.profile_ranks import ProfileRanks
from dxt_replay.profiler_merge.profiles.event_table import Profile
from dxt_replay.profiler_merge.profiles.marks import NO_FETCH
from dxt_replay.profiler_merge.profiles.span_parts import SpanColumns
from dxt_replay.profiler_merge.rebuild.met import Met
from dxt_replay.profiler_merge.rows import BLOCK_ROWS, MOST_ROWS, NO_FILE
from dxt_replay.traces.schema import (
    FILES_SCHEMA,
    HDF5_SCHEMA,
    LANES_SCHEMA,
    OPS_SCHEMA,
    ROLES,
    Coverage,
    Job,
    RankClock,
    table_from_columns,
)
from dxt_replay.traces.store.writer import ROW_GROUP_ROWS, OpsWriter

if TYPE_CHECKING:
    from dxt_replay.profiler_merge.job_spans import JobSpans

MAX_RANKS = 1 << 20
"""Most ranks of a job: a record that claims more is damaged, and then only ranks with operations count."""

ProcessIds = Sequence[Collection[int]]
"""The process ids of each rank of a job, empty if they are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOptions:
    """The options of a merge.

    align: auto, anchors, nesting, wall, or seconds as text.
    exclude: globs over whole paths.
    include: globs over whole paths of files that `record` was asked to trace, which a trace of calls leaves out else.
    reconstruct: make the operations that a trace does not hold (`profiler_merge.rebuild.rows`).
    inspect: open the recorded HDF5 files and store where their chunks lie.
    inspect_maps: (recorded prefix, directory) pairs that say where those files are now.
    force: replace an earlier capture.
    memory_rows: a rank with more traced operations is kept in a file and merged in blocks of about `block_rows` rows.
    The rows do not depend on either.
    """

    align: str = "auto"
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    reconstruct: bool = True
    inspect: bool = False
    inspect_maps: tuple[tuple[bytes, bytes], ...] = ()
    force: bool = False
    memory_rows: int = MOST_ROWS
    block_rows: int = BLOCK_ROWS

    def repeated(self) -> dict[str, Any]:
        """The options that capture.json repeats."""
        return {"align": self.align, "exclude": list(self.exclude)}


DEFAULTS = MergeOptions()


MAIN, THREAD, WORKER = (ROLES.index(name) for name in ("main", "thread", "worker"))


@dataclass(frozen=True, slots=True)
class LaneFacts:
    """Facts of one lane; None where they are not known. `role`: code of ROLES."""

    host: str | None = None
    pid: int | None = None
    thread: int | None = None
    role: int | None = None


def lane_rows(rank: np.ndarray, lane: np.ndarray, facts: Sequence[LaneFacts]) -> pa.Table:
    """`LANES_SCHEMA` of the lanes, int (n,) each, with their facts."""
    role = [-1 if each.role is None else each.role for each in facts]
    columns = {
        "rank": rank,
        "lane": lane,
        **{name: [getattr(each, name) for each in facts] for name in ("host", "pid", "thread")},
        "role": np.ma.masked_less(np.array(role, dtype=np.int8), 0),
    }
    return table_from_columns(columns, LANES_SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankRows:
    """Operations of a rank, or of several that have no spans of their own.

    ranks: int (r,), ascending; those without an operation too.
    columns: of `OPS_SCHEMA` except step, by rank and start; `other_file_id` is NO_FILE for null, and
        `open_flags`, where the source has them, -1.
    process: int (n,), the process of each operation within its rank, 0 is the rank's own.
    clock, warnings: those of these ranks.
    lanes: what is known of the lanes (`LANES_SCHEMA`). A lane that earlier rows had may come again.
    profile: of the rank; its spans are not yet added. `undated_offset_ns` moves an undated one to these times.
    """

    ranks: np.ndarray
    columns: dict[str, np.ndarray]
    process: np.ndarray
    clock: Sequence[RankClock] = ()
    warnings: Sequence[str] = ()
    lanes: pa.Table = field(default_factory=LANES_SCHEMA.empty_table)
    profile: Profile | None = None
    undated_offset_ns: int = 0


@dataclass(slots=True, kw_only=True)
class WrittenRanks:
    """The results of some ranks, apart from their rows.

    ranks: those that were traced or counted. stored: number of rows. lanes: what is known of the lanes
    (`LANES_SCHEMA`); a lane may come again.
    """

    ranks: set[int] = field(default_factory=set)
    stored: int = 0
    clock: list[RankClock] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    lanes: pa.Table = field(default_factory=LANES_SCHEMA.empty_table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The results over all ranks of a recording.

    files, hdf5: the tables of the capture. reconstructed: rows that were made, and how well they meet the counters.
    made_by: facts in capture.json that only this kind of recording has.
    """

    files: pa.Table = field(default_factory=FILES_SCHEMA.empty_table)
    hdf5: pa.Table = field(default_factory=HDF5_SCHEMA.empty_table)
    coverage: Coverage
    lanes: str = "overlap"
    warnings: Sequence[str] = ()
    reconstructed: int = 0
    rebuilt: Met = field(default_factory=Met)
    made_by: Mapping[str, Any] = field(default_factory=dict)


class Recording(Protocol):
    """An opened recording. Results of the profiles, such as numbers of ranks, are known after `place`.

    files: with their kinds, as capture.json names them. ranks: those that the job surely has. start_ns: zero of the
    capture's time (CLOCK_REALTIME).
    loops: spans of a training loop, if the program was annotated for the recorder.
    """

    @property
    def files(self) -> Sequence[tuple[Path, str]]: ...

    @property
    def job(self) -> Job: ...

    @property
    def ranks(self) -> Sequence[int]: ...

    @property
    def start_ns(self) -> int: ...

    @property
    def loops(self) -> Mapping[int, SpanColumns]: ...

    @property
    def warnings(self) -> Sequence[str]:
        """Warnings about the recording itself; there are more as it is read."""

    def place(self, profiles: Sequence[tuple[Path, ...]]) -> ProfileRanks:
        """Give each profile its rank. Raises: ProfileError for one that cannot be used."""

    def process_ids(self) -> ProcessIds:
        """Process ids of each rank."""

    def write(self, folder: Path, spans: JobSpans) -> WrittenRanks:
        """Write the operations of all ranks into a capture, and note the spans of ranks with operations.

        Raises: LogError for damage; AlignmentError if a profile's clock is not found; TargetError for `folder`.
        """

    def finish(self, written: WrittenRanks, spans: pa.Table) -> Finished:
        """The results over all ranks. Raises: LogError, ProfileError if nothing was found."""


def rank_clock(rank: int, alignment: Alignment, worker: int = 0) -> RankClock:
    """The entry in capture.json for the clock of a rank, or of one of its workers."""
    return RankClock(
        rank=rank,
        method=alignment.method,
        offset_ns=alignment.offset_ns,
        residual_ns=alignment.residual_ns,
        interval_ns=alignment.interval_ns,
        worker=worker,
    )


def write_ranks(folder: Path, rows: Iterable[RankRows], spans: JobSpans, path: Callable[[int], str]) -> WrittenRanks:
    """Write the rows of some ranks as parts of the capture `folder`, with their steps. `path`: of a file_id.

    Raises: TargetError where the disk refuses.
    """
    found = WrittenRanks()
    lanes = [found.lanes]
    waiting, count = list[dict[str, np.ndarray]](), 0
    with OpsWriter(folder) as writer:
        for each in rows:
            found.ranks.update(each.ranks.tolist())
            found.clock += each.clock
            found.warnings += each.warnings
            lanes.append(each.lanes)
            if each.profile is not None:
                found.warnings += spans.add_profiled(each, path)
            step = spans.step_of(int(each.ranks[0]), each.columns["start_ns"])
            waiting.append({**each.columns, "step": step})
            count += len(step)
            if count >= ROW_GROUP_ROWS:  # ranks with few rows share a table, which costs more than its few rows
                writer.write(_joined(waiting))
                waiting, count = [], 0
        if waiting:
            writer.write(_joined(waiting))
    found.stored = writer.rows
    found.lanes = pa.concat_tables(lanes)
    return found


def _joined(ranks: list[dict[str, np.ndarray]]) -> pa.Table:
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
        if name in columns
    }
    return table_from_columns({**columns, **known}, OPS_SCHEMA)
