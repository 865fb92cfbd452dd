"""A job as one source recorded it: the interface between the merge and every kind of recording.

A merge asks a `Recording` for the places of the profiles, writes the rows of its ranks, and then asks for the results
over all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.clocks.offsets import Alignment
from dxt_replay.profiler_merge.clocks.profile_ranks import ProfileRanks
from dxt_replay.profiler_merge.profiles.event_table import Profile
from dxt_replay.profiler_merge.profiles.span_parts import SpanColumns
from dxt_replay.profiler_merge.rebuild.met import Met
from dxt_replay.profiler_merge.rows import BLOCK_ROWS, MOST_ROWS
from dxt_replay.traces.schema import (
    FILES_SCHEMA,
    HDF5_SCHEMA,
    LANES_SCHEMA,
    ROLES,
    Coverage,
    Job,
    RankClock,
    table_from_columns,
)

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


DEFAULTS = MergeOptions()

MAIN, THREAD, WORKER = (ROLES.index(name) for name in ("main", "thread", "worker"))


class LaneFacts(NamedTuple):
    """Facts of one lane; None where they are not known. `role`: code of ROLES."""

    host: str | None = None
    pid: int | None = None
    thread: int | None = None
    role: int | None = None


def lane_rows(rank: np.ndarray, lane: np.ndarray, facts: Sequence[LaneFacts]) -> pa.Table:
    """`LANES_SCHEMA` of the lanes, int (n,) each, with their facts."""
    columns = {name: [each[place] for each in facts] for place, name in enumerate(("host", "pid", "thread"))}
    role = np.ma.masked_less(np.array([-1 if each.role is None else each.role for each in facts], dtype=np.int8), 0)
    return table_from_columns({"rank": rank, "lane": lane, **columns, "role": role}, LANES_SCHEMA)


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
    capture's time (CLOCK_REALTIME). loops: spans of a training loop, if the program was annotated for the recorder.
    warnings: about the recording itself; there are more as it is read.
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
    def warnings(self) -> Sequence[str]: ...

    def place(self, profiles: Sequence[tuple[Path, ...]]) -> ProfileRanks:
        """Give each profile its rank. Raises: ProfileError for one that cannot be used."""

    def process_ids(self) -> ProcessIds:
        """Process ids of each rank."""

    def rows(self, folder: Path, spans: JobSpans) -> Iterator[RankRows]:
        """The operations of all ranks that were traced or counted, ascending. `folder`: for files of large ranks.

        Raises: LogError for damage; AlignmentError if a profile's clock is not found; TargetError for `folder`.
        """

    def path(self, file_id: int) -> str:
        """The recorded path of a file among the rows so far."""

    def finish(self, stored: int, spans: pa.Table) -> Finished:
        """The results over all ranks, of which so many rows are stored. Raises: LogError, ProfileError if nothing was
        found."""


def rank_clock(rank: int, alignment: Alignment, worker: int = 0) -> RankClock:
    """The entry in capture.json for the clock of a rank, or of one of its workers."""
    facts = {name: getattr(alignment, name) for name in ("method", "offset_ns", "residual_ns", "interval_ns")}
    return RankClock(rank=rank, worker=worker, **facts)
