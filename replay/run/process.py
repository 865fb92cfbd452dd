"""One process of a replay: its ranks, their lanes and files, and the loop that feeds the lanes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dxt_replay.replay.causal.explain import rank_model
from dxt_replay.replay.causal.ranks import PacedRanks
from dxt_replay.replay.engine.clock import StartGate, StopFlag
from dxt_replay.replay.engine.descriptors import allow_open_files, require_descriptors
from dxt_replay.replay.engine.issue import lanes_to_feed
from dxt_replay.replay.engine.items import MAX_TIME_NS
from dxt_replay.replay.engine.threads import require_threads
from dxt_replay.replay.plan.collectives import Collectives
from dxt_replay.replay.plan.lane_plan import batch_items_of, process_file_slots, record_items_of
from dxt_replay.replay.plan.pacing import Pace
from dxt_replay.replay.plan.row_queue import SpillFile
from dxt_replay.replay.ranks.stopping import StopRelay
from dxt_replay.replay.ranks.time_limit import TimeLimit
from dxt_replay.replay.run.context import RunContext
from dxt_replay.replay.run.options import RunOptions
from dxt_replay.replay.run.prepared import Prepared
from dxt_replay.replay.run.process_files import ProcessFiles, per_operation_ns
from dxt_replay.replay.run.rank_lanes import LOOP_PACE, FedLane, LaneBuffers, ProcessLanes, ReplayedRank
from dxt_replay.replay.run.recording import Tally, TimeCollector, rank_rows
from dxt_replay.replay.run.result import Overhead
from dxt_replay.replay.run.standing import Standing, hung, standing_of, stuck
from dxt_replay.replay.target import page_cache
from dxt_replay.traces.errors import ReplayError
from dxt_replay.traces.schema import SPANS_SCHEMA
from dxt_replay.traces.store.writer import OpsWriter
from dxt_replay.traces.units import NS_PER_MS, NS_PER_S, format_count, format_counted

REPORT_PERIOD_NS = 50 * NS_PER_MS
"""ns between two reports of progress, each of which looks at every lane."""

FEED_PERIOD_S, MOST_FEED_PERIOD_S = 0.004, 0.1
"""Least and most seconds between two rounds of the feeder. At a million operations a second a full ring lasts 60 ms."""

STUCK_NS = 10 * NS_PER_S
"""Time after which lanes that all wait for each other end the run."""

STOP_PATIENCE_NS = 10 * NS_PER_S
"""How long (ns) the operations in flight may take to end after a stop. Beyond it they hang, and are left alone."""

LAST_JOIN_S = 1.0
"""Seconds in which the lanes may end where the run ends by an error."""

FEEDER_SHARE = 0.25
"""Most of a processor that the feeder takes while it can choose: with thousands of lanes a round lasts tens of ms."""

REPORT_SHARE = 0.02
"""Most of a processor that reports of progress take."""

MOST_TURN_S = 0.001
"""Seconds after which the feeder sleeps within a round: Linux was seen to keep lanes that wait for its processor
waiting until it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of this process.

    `done`, `total`: operations.
    `elapsed_ns`: time since the start.
    `expected_ns`: recorded duration at the speed of the replay.
    `lag_ns`: lag of the next operation of the lane that is furthest behind; None without due times.
    """

    done: int
    total: int
    elapsed_ns: int
    expected_ns: int
    lag_ns: int | None = None


class _Rest:
    """The sleeps of the feeder in and after one round, MOST_FEED_PERIOD_S at most: FEED_PERIOD_S, or what FEEDER_SHARE
    leaves to others."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._left_s = MOST_FEED_PERIOD_S

    def within_round(self) -> None:
        """Sleep if the feeder has worked for MOST_TURN_S."""
        if time.monotonic() - self._began > MOST_TURN_S and self._left_s > 0:
            self._sleep(0)

    def after_round(self) -> None:
        """Sleep until the next round."""
        self._sleep(min(FEED_PERIOD_S, self._left_s))

    def _sleep(self, least_s: float) -> None:
        owed_s = (time.monotonic() - self._began) * (1 / FEEDER_SHARE - 1)
        pause_s = max(least_s, min(owed_s, self._left_s))
        time.sleep(pause_s)
        self._left_s -= pause_s
        self._began = time.monotonic()


class ReplayProcess:
    """The ranks, lanes and files of one process of the replay."""

    def __init__(
        self,
        context: RunContext,
        prepared: Prepared,
        options: RunOptions,
        paced: PacedRanks | None,
        stop: StopFlag,
    ) -> None:
        capture, surveys = context.capture, context.surveys
        self._capture = capture
        self._options = options
        self.stop = stop
        self._gate = StartGate()
        self.surveys = surveys
        self.paced = paced
        lanes = sum(len(survey.lanes) for survey in self.surveys)
        # Queues of a lane: one for its plan, one for its results, and a third for dependency columns.
        queues = 3 if capture.info.dependencies == "known" else 2
        self._buffers = LaneBuffers(
            spill=SpillFile(prepared.working, queues=queues * lanes),
            times=TimeCollector(),
            batch_items=batch_items_of(lanes),
            record_items=record_items_of(lanes),
        )
        self._slots = process_file_slots(surveys, prepared.placements)
        # Each rank reads its own part of the capture through one more open file.
        allow_open_files(len(self._slots) + len(surveys))
        self.files = ProcessFiles(self._slots, options.io)
        require_descriptors(lanes + len(surveys))
        require_threads(lanes)
        shared = ProcessLanes(
            context=context,
            options=options,
            files=self.files,
            buffers=self._buffers,
            gate=self._gate,
            stop=stop,
            paced=paced,
        )
        self._ranks: list[ReplayedRank] = [
            ReplayedRank(survey, numbers, shared) for survey, numbers in zip(surveys, self._slots.numbers, strict=True)
        ]
        calls_python = {lane.calls_python for lane in self._lanes}
        self._cost_ns = {which: per_operation_ns(in_python=which) for which in calls_python}
        sizes = capture.files["size"].to_numpy()
        self.files.prepare_payload(max((int(sizes[each.writes].max(initial=0)) for each in surveys), default=0))
        read = np.unique(np.concatenate([np.empty(0, dtype=np.int32), *(survey.reads for survey in surveys)]))
        # Files that the run itself makes have no pages yet.
        self._placements = prepared.placements
        self._read = len(read)
        there = [not options.on_objects and os.path.exists(prepared.placements.path(file)) for file in read.tolist()]
        self._there = read[np.array(there, dtype=bool)]
        self._total = sum(survey.operations for survey in self.surveys)
        self.expected_ns = options.pacing.recorded_ns(context.recorded_ns)
        self._threads: list[threading.Thread] = []
        self._start_ns = 0
        self.hung: tuple[int, str] | None = None

    @property
    def left_out(self) -> int:
        """Recorded operations of these ranks that are not replayed."""
        return sum(survey.left_out for survey in self.surveys)

    @property
    def stopped(self) -> bool:
        """Whether the run was stopped before its end."""
        return self.stop.is_set()

    @property
    def _lanes(self) -> list[FedLane]:
        return [lane for rank in self._ranks for lane in rank.lanes]

    @property
    def lane_count(self) -> int:
        """Lanes with operations, of all ranks of this process."""
        return sum(len(survey.lanes) for survey in self.surveys)

    @property
    def io_warnings(self) -> tuple[str, ...]:
        """Warnings about the way in which operations were issued."""
        turns = "the MPI library lacks MPI_THREAD_MULTIPLE, so the lanes of a process called it one at a time"
        notes = dict.fromkeys(note for survey in self.surveys for note in survey.layers.chunks.notes(self._capture))
        model = () if self.paced is None else self.paced.steps.warnings
        refused = max((survey.layers.files.refused for survey in self.surveys), default=0)
        if refused:
            notes[f"the job's store refused {format_counted(refused, 'request')}: such requests are left out"] = None
        return (*((turns,) if self.files.turns else ()), *notes, *model, *self.files.close_warnings)

    @property
    def models(self) -> dict[int, dict[str, Any]] | None:
        """Rank -> its causal model in numbers; None for a pace without a model."""
        if self.paced is None:
            return None
        return {rank: rank_model(model) for rank, model in self.paced.steps.models.items()}

    @property
    def not_direct(self) -> int:
        """Writes of a direct replay that went through the page cache."""
        return sum(lane.lane.not_direct for lane in self._lanes)

    @property
    def python_lanes(self) -> int:
        """Number of lanes that call a back end in Python."""
        return sum(lane.calls_python for lane in self._lanes)

    @property
    def overhead(self) -> Overhead:
        """The engine's own cost, in the lane with the largest cost."""
        lanes = [(self._cost_ns[lane.calls_python], lane.lane.items_done) for lane in self._lanes]
        return max(
            (Overhead(per_operation_ns=cost, busiest_lane_ns=cost * items) for cost, items in lanes),
            key=lambda overhead: overhead.busiest_lane_ns,
            default=Overhead(),
        )

    def open_together(self, collectives: Collectives) -> None:
        """Open the files of collective operations. All processes must call this."""
        self.files.open_together(collectives.written[self._slots.uses["file_id"]])

    def _paths(self) -> Iterator[bytes]:
        """Paths of the files that this process reads and that existed before the run."""
        return map(self._placements.path, self._there.tolist())

    def drop_pages(self) -> page_cache.DropResult:
        """Drop the pages of the files that this process reads, and return which could not be dropped."""
        if self._options.on_objects:  # a client has no pages of them
            return page_cache.DropResult(files=0, bytes=0, skipped={})
        return page_cache.drop(self._paths())

    def residency(self) -> page_cache.Residency:
        """The share in the page cache of the files that this process reads."""
        return page_cache.resident(self._paths())

    def start(self) -> None:
        """Fill the lanes and start their threads, which wait for the gate.

        Raises: ReplayError when the system refuses a thread.
        """
        for lane in self._lanes:
            lane.pump()
        for lane in self._lanes:  # after all lanes are filled, because waiting threads would slow the filling
            thread = threading.Thread(target=lane.lane.run, name=f"lane-{lane.name}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                self.stop.set()  # let the started threads end
                raise ReplayError(
                    f"this process needs a thread for each of its {len(self._lanes)} lanes, and the system refused "
                    f"number {len(self._threads) + 1}: raise the limits (ulimit -u, pids.max), start more processes "
                    "or choose fewer ranks (--ranks)"
                ) from error
            self._threads.append(thread)

    def run(
        self,
        start_ns: int,
        report_progress: Callable[[Progress], None],
        relay: StopRelay,
        limit: TimeLimit,
        *,
        bound: bool = False,
        alone: bool = False,
    ) -> None:
        """Issue all operations; returns when every lane is done or stopped, or hangs (`hung`).

        `start_ns`: the start in ns of CLOCK_MONOTONIC.
        `bound`: lanes may wait for other processes in collective calls, which only the end of the processes can break
            off. Raises: ReplayError at once when such a run is stopped; the caller must then end the other processes.
        `alone`: no other process takes part, whose lanes could end a wait.
        """
        self._start_ns = start_ns
        self._gate.open(start_ns)
        try:
            self._feed(report_progress, relay, limit, bound=bound, alone=alone)
        except BaseException:
            self.stop.set()
            until = time.monotonic() + LAST_JOIN_S
            for thread in self._threads:
                if not bound:
                    thread.join(max(0.0, until - time.monotonic()))
            raise
        if self.hung is not None:
            return
        for lane in self._lanes:
            lane.end()  # after a stop, the rest of the plan is not read
        for lane in self._lanes:
            lane.source.close()  # of all lanes of its rank
        self.files.close_all()

    def _feed(
        self,
        report_progress: Callable[[Progress], None],
        relay: StopRelay,
        limit: TimeLimit,
        *,
        bound: bool,
        alone: bool,
    ) -> None:
        """Fill the lanes and take their results until all have ended, or one hangs (`hung`)."""
        next_report_ns, patient_until_ns = 0, None
        next_look_ns = self._start_ns + STUCK_NS if alone else MAX_TIME_NS
        lanes = self._lanes
        loops = [lane.lane for lane in lanes]
        while any(thread.is_alive() for thread in self._threads):
            rest = _Rest()
            for place in lanes_to_feed(loops):
                lanes[place].pump()
                rest.within_round()
            relay.heed()
            if (now_ns := time.monotonic_ns()) >= next_report_ns:
                report_progress(self._progress(now_ns - self._start_ns))
                took_ns = time.monotonic_ns() - now_ns
                next_report_ns = now_ns + max(REPORT_PERIOD_NS, round(took_ns / REPORT_SHARE))
            if bound and (self.stop.is_set() or limit.expired):
                ended = limit.message(self._where()[1]) if limit.expired else "the replay was stopped"
                raise ReplayError(f"{ended} during collective operations; its output was discarded")
            if limit.expired:
                self.stop.set()
                since_ns, sentence = self._where()
                self.hung = since_ns, limit.message(sentence)
                return
            if now_ns >= next_look_ns:
                next_look_ns = now_ns + STUCK_NS
                alive = [thread.is_alive() for thread in self._threads]
                if (cause := stuck(list(compress(self._standings(), alive)), STUCK_NS)) is not None:
                    self.stop.set()
                    self.hung = STUCK_NS, cause
                    return
            if self.stop.is_set():
                patient_until_ns = patient_until_ns or now_ns + STOP_PATIENCE_NS
                if now_ns > patient_until_ns:
                    since_ns, sentence = self._where()
                    self.hung = since_ns, f"the replay was stopped, but a call does not return: {sentence}"
                    return
            rest.after_round()

    def _where(self) -> tuple[int, str]:
        """Duration of the longest running operation, ns, and a sentence about it; 0 without one."""
        done = sum(rank.operations_done for rank in self._ranks)
        none = f"{format_count(done)} of {format_count(self._total)} operations were done, and none hangs"
        return hung(self._standings()) or (0, none)

    def standing(self) -> str | None:
        """The operation that hangs: the longest running one; None without one."""
        found = hung(self._standings())
        return None if found is None else found[1]

    def _standings(self) -> list[Standing | None]:
        now_ns, pace = time.monotonic_ns(), LOOP_PACE[self._options.pacing.pace]
        return [
            None
            if (row := lane.next_row()) is None
            else standing_of(
                lane.name,
                row,
                self._slots,
                opening=lane.lane.opening,
                last_end_ns=lane.lane.last_end_ns,
                now_ns=now_ns,
                t0_ns=self._start_ns,
                pace=pace,
            )
            for lane in self._lanes
        ]

    def _progress(self, elapsed_ns: int) -> Progress:
        timed = self._options.pacing.pace is Pace.TIMED
        return Progress(
            done=sum(rank.operations_done for rank in self._ranks),
            total=self._total,
            elapsed_ns=elapsed_ns,
            expected_ns=self.expected_ns,
            lag_ns=max((lane.behind_ns(elapsed_ns) for lane in self._lanes), default=0) if timed else None,
        )

    def write_operations(self, output: Path) -> int:
        """Write the operations of this process's ranks, and return how many."""
        # Close it in any case: NFS and FUSE keep a directory that has an open file without a name.
        with closing(self._buffers.spill), OpsWriter(output) as writer:
            for rank in self._ranks:
                for table in rank_rows(rank.survey.rank, [recorder.rows for recorder in rank.recorders]):
                    writer.write(table)
        return writer.rows

    def tally(self) -> Tally:
        """Totals over the ranks of this process. Call it after the files are closed."""
        own = self._buffers.times.tally() + Tally(close_errors=self.files.close_errors)
        return sum((rank.tally() for rank in self._ranks), own)

    def spans(self) -> pa.Table:
        """The spans of these ranks in the replay, rows of `SPANS_SCHEMA`."""
        tables = [rank.spans(self._options.pacing.of_compute) for rank in self._ranks]
        return pa.concat_tables([SPANS_SCHEMA.empty_table(), *tables])
