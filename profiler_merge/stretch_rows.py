"""The op stream of one rank whose segments are in files, one stretch of time after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from dxt_replay.profiler_merge.clocks.offsets import Alignment
from dxt_replay.profiler_merge.darshan.job_logs import ProcessLog
from dxt_replay.profiler_merge.darshan.rank_segments import SegmentBatch
from dxt_replay.profiler_merge.darshan.spilled import chunks, release
from dxt_replay.profiler_merge.file_notes import FilesOfRows
from dxt_replay.profiler_merge.large_rank import STRETCH_ROWS, LargeRank
from dxt_replay.profiler_merge.process_rows import (
    COUNTED_API,
    RENAME,
    ProcessRows,
    as_columns,
    records_of,
    stale_descriptors,
)
from dxt_replay.profiler_merge.untraced.offset_repair import opened_together
from dxt_replay.profiler_merge.untraced.rank_counters import CountedFiles
from dxt_replay.profiler_merge.untraced.reconstruct import ReconstructedRows
from dxt_replay.profiler_merge.untraced.traced_operations import TracedRows
from dxt_replay.traces.row_order import order_by_start


@dataclass(slots=True)
class RowsInStretches(ProcessRows):
    """As `ProcessRows`, also for a rank with more segments than should be in memory."""

    def columns_in_stretches(
        self,
        process: ProcessLog,
        batch: SegmentBatch,
        alignment: Alignment,
        folder: Path,
        stretch_rows: int = STRETCH_ROWS,
    ) -> Iterator[dict[str, np.ndarray]]:
        """As `columns`, for a batch of one rank whose columns are in files, some `stretch_rows` rows at a time.

        The rows of each part start before those of the next.
        Raises: TargetError when the disk under `folder` refuses."""
        log_start = process.log.job.start_ns
        files = self._counted_files(process, batch.ranks, alignment)
        capture_ns = partial(self._capture_ns, log_start_ns=log_start, alignment=alignment)
        examined = self._repair(batch, files["POSIX"], capture_ns)
        self.made.threads_known.append(batch.knows_threads)
        rank = LargeRank(batch, capture_ns, folder, stretch_rows)
        made = self._reconstructed(process, batch, rank, files)
        traced = self.files.number(rank.records)
        of_made = [] if made is None else self.files.number_by_rank(records_of(made))
        self._note_in_stretches(batch, rank, traced, made, of_made)
        self._note_offsets(examined)
        rebuilt = None if made is None else self._made(batch.ranks, made, of_made)
        for stretch in rank.stretches():
            kept = ~stale_descriptors(stretch.rows, files)
            parts = [self._traced(batch.ranks, stretch.rows.select(kept), traced.select(stretch.file[kept]))]
            if rebuilt is not None:
                own = slice(*np.searchsorted(rebuilt["start_ns"], [stretch.begin_ns, stretch.end_ns]))
                if own.start < own.stop:
                    parts.append({name: values[own] for name, values in rebuilt.items()})
            yield as_columns(parts)

    def _repair(
        self, batch: SegmentBatch, posix: CountedFiles, capture_ns: Callable[[np.ndarray], np.ndarray]
    ) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """As `_examined`, in the columns of the batch. Memory: the operations of files that were opened together."""
        together = posix.record_id[opened_together(posix)]
        if not len(together):
            return {}
        found = []
        for piece in chunks(len(batch)):
            found.append(piece.start + np.flatnonzero(np.isin(batch.record_id[piece], together)))
            release(batch.record_id)
        places = np.concatenate(found)
        start, end = capture_ns(batch.start_ns[places]), capture_ns(batch.end_ns[places])
        order = order_by_start(start, [-end])
        places = places[order]
        thread = batch.thread[places] if batch.knows_threads else None
        none = np.zeros(len(places), dtype=np.int64)
        rows = TracedRows(
            process=none,
            record_id=batch.record_id[places],
            api=batch.api[places],
            is_write=batch.is_write[places],
            offset=batch.offset[places],
            length=batch.length[places],
            start_ns=start[order],
            end_ns=end[order],
            lane=none,
        )
        rows, examined = self._examined(rows, posix, thread)
        batch.offset[places] = rows.offset
        return examined

    def _note_in_stretches(
        self,
        batch: SegmentBatch,
        rank: LargeRank,
        files: FilesOfRows,
        made: ReconstructedRows | None,
        of_made: Sequence[FilesOfRows],
    ) -> None:
        """As `_note`, for one rank."""
        for file, api, offset, length in rank.accesses():
            of_row, counted = files.select(file), api == COUNTED_API
            ranks = np.full(int(counted.sum()), batch.ranks[0])
            self.files.note_traced(ranks, of_row.select(counted), length[counted])
            self.files.note_sizes(of_row, offset, length)
        if made is not None:
            self._note_sizes_made(made, of_made, slice(None))
            renamed = made.op == RENAME
            for old, new in zip(of_made[0].file_id[renamed].tolist(), of_made[1].file_id.tolist(), strict=True):
                self.files.note_renamed(old, new)
