"""Invents order and offsets of accesses of known sizes that reproduce Darshan's counters. Pure.

A *run* begins at the start of the file, or goes back. Inside a run, an access continues where the previous one ended,
or jumps over a gap. The numbers of runs and jumps are counted (SEQ, CONSEC), and the gaps are those of STRIDE as far as
these suffice. Other gaps, and begins of runs that no open explains, are random, because they are unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dxt_replay.profiler_merge.untraced.access_sizes import SizedAccesses
from dxt_replay.profiler_merge.untraced.gap_runs import GapRuns, gap_runs
from dxt_replay.profiler_merge.untraced.passes import whole_passes
from dxt_replay.traces.row_order import distinct_rows

_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Patterns:
    """The known facts about the order in each stream; int64 (streams,), `gap` and `gap_count` (streams, TOP).

    `backward`: accesses at the start of the file or before the end of the previous one (READS - SEQ_READS).
    `apart`: accesses that do not continue where the previous one ended (READS - CONSEC_READS).
    `low`, `high`: their range in the file.
    `opens`: number of runs that may begin at the start of the file.
    """

    backward: np.ndarray
    apart: np.ndarray
    low: np.ndarray
    high: np.ndarray
    opens: np.ndarray
    gap: np.ndarray
    gap_count: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedAccesses:
    """Accesses (n,) by stream and in their order; `begins` (bool): a run begins here as after an open."""

    stream: np.ndarray
    offset: np.ndarray
    size: np.ndarray
    begins: np.ndarray


def place_accesses(accesses: SizedAccesses, patterns: Patterns, process: np.ndarray) -> PlacedAccesses:
    """Order and offsets of accesses, which are sorted by stream and falling size. Repeated calls give equal results.

    `process` (streams,), ascending: the random numbers of one process do not depend on the others.
    """
    if not len(accesses):
        none = np.empty(0, dtype=np.int64)
        return PlacedAccesses(stream=none, offset=none, size=none, begins=none.astype(bool))
    return _Placement(accesses, patterns, process).placed()


class _Placement:
    """The steps of `place_accesses`; `run` numbers the runs of all streams together."""

    def __init__(self, accesses: SizedAccesses, patterns: Patterns, process: np.ndarray) -> None:
        self.patterns, self.process = patterns, process
        streams = len(patterns.apart)
        counts = np.bincount(accesses.stream, minlength=streams)
        moved = accesses.moved(streams)
        room = np.maximum(patterns.high - patterns.low, 1)
        runs = np.maximum(np.maximum(patterns.backward, np.minimum(-(-moved // room), patterns.apart)), 1)
        self.runs = np.where(counts > 0, np.minimum(runs, np.maximum(counts, 1)), 0)
        self.first_run = np.cumsum(self.runs) - self.runs
        known = (patterns.gap, np.minimum(patterns.gap_count, np.maximum(patterns.apart - self.runs, 0)[:, np.newaxis]))
        wide = gap_runs(accesses, self.runs, room, known)
        run = self.first_run[accesses.stream] + self._of_run(accesses, wide, room)
        order = _mixed(run, accesses.size)
        self.run, self.size, self.stream = run[order], accesses.size[order], accesses.stream[order]
        self.in_gap_run, self.wide_gap, self.gap_count = wide.number[order] >= 0, wide.gap[order], wide.left
        self.begins = np.append(True, self.run[1:] != self.run[:-1])
        self.first_access = np.flatnonzero(self.begins)
        self.stream_of_run = self.stream[self.first_access]
        self.number_of_run = np.arange(len(self.first_access)) - self.first_run[self.stream_of_run]

    def _of_run(self, accesses: SizedAccesses, wide: GapRuns, room: np.ndarray) -> np.ndarray:
        """Number of each access's run within its stream: gap runs follow opens, the others follow each of them."""
        others = wide.number < 0
        rest = SizedAccesses(stream=accesses.stream[others], size=accesses.size[others])
        jumps = np.maximum(self.patterns.apart - self.runs - wide.runs, 0)
        of_run = np.empty(len(accesses), dtype=np.int64)
        of_run[others] = (
            whole_passes(rest, self.runs - wide.runs, np.where(jumps == 0, room, 0)) + wide.runs[rest.stream]
        )
        of_run[~others] = wide.number[~others]
        for stream in np.flatnonzero(wide.runs).tolist():
            number = np.arange(self.runs[stream])
            anew = self._begins_anew(np.full(len(number), stream), number)
            after = number - np.maximum.accumulate(np.where(anew, number, 0))
            first, last = np.searchsorted(accesses.stream, [stream, stream + 1])
            of_run[first:last] = np.lexsort((number, after))[of_run[first:last]]
        return of_run

    def placed(self) -> PlacedAccesses:
        jumps = self._jumps()
        start_is_free = self._free_starts()
        gap = self._gaps(jumps, start_is_free)
        place = np.cumsum(self.size + gap) - self.size
        place -= (place - gap)[self.first_access][self.run]
        offset = place + self._drawn(jumps & (gap == 0), start_is_free, place)
        offset += self.patterns.low[self.stream]
        self._go_back(offset, start_is_free)
        opened = self.begins.copy()
        opened[self.first_access[start_is_free & ~self._apart()]] = False
        return PlacedAccesses(stream=self.stream, offset=np.maximum(offset, 0), size=self.size, begins=opened)

    def _apart(self) -> np.ndarray:
        """bool by run: whether it begins with a gap, which only an open before it explains."""
        return self.number_of_run >= self.patterns.backward[self.stream_of_run]

    def _jumps(self) -> np.ndarray:
        """bool: the accesses that follow a gap: those of one size if exactly that many were counted, else evenly
        spread."""
        streams = len(self.runs)
        wide = self.wide_gap > 0
        wanted = np.maximum(self.patterns.apart - self.runs - np.bincount(self.stream[wide], minlength=streams), 0)
        # A read of 0 bytes is at the end of the file, where the previous one ended, unless all are.
        moves = np.bincount(self.stream, weights=self.size, minlength=streams)[self.stream] > 0
        able = ~self.begins & ((self.size > 0) | ~moves) & ~self.in_gap_run
        some, all_able = (np.bincount(self.process, weights=counts) for counts in (wanted, self._count(able)))
        picks = ((some > 0) & (some < all_able))[self.process]
        if picks.any():
            pairs, _, of_size = distinct_rows(self.stream, self.size)
            of = pairs[:, 0]
            counts = np.bincount(of_size, weights=able, minlength=len(of)).astype(np.int64)
            fits = (counts >= wanted[of]) & (counts <= wanted[of] + self.runs[of]) & picks[of]
            chosen = np.full(streams, -1)
            chosen[of[fits]] = np.flatnonzero(fits)
            able &= (chosen[self.stream] < 0) | (of_size == chosen[self.stream])
        total = np.bincount(self.stream[able], minlength=streams)
        stream = self.stream[able]
        number = np.arange(len(stream)) - (np.cumsum(total) - total)[stream]
        share = np.minimum(wanted, total)[stream]
        jumps = wide.copy()
        jumps[able] = (number + 1) * share // np.maximum(total[stream], 1) > number * share // np.maximum(
            total[stream], 1
        )
        return jumps

    def _gaps(self, jumps: np.ndarray, start_is_free: np.ndarray) -> np.ndarray:
        """int64: the counted stride of each jump; 0 if none is left, or if they would leave the file."""
        rows = np.flatnonzero(jumps & (self.wide_gap == 0))
        stream = self.stream[rows]
        number = np.arange(len(rows))
        mixed = np.lexsort((np.modf(_within(self.process[stream]) * _GOLDEN)[0], stream))
        total = np.bincount(stream, minlength=len(self.runs))
        place = number - (np.cumsum(total) - total)[stream]
        until = np.cumsum(self.gap_count, axis=1)[stream]
        which = (place[:, np.newaxis] >= until).sum(axis=1)
        gaps = np.append(self.patterns.gap, np.zeros((len(self.runs), 1), dtype=np.int64), axis=1)
        gap = self.wide_gap.copy()
        gap[rows[mixed]] = gaps[stream, which]
        used = np.add.reduceat(gap + self.size, self.first_access)
        room = (self.patterns.high - self.patterns.low)[self.stream_of_run]
        gap[(used > room)[self.run]] = 0
        return self._with_one_free(gap, jumps, start_is_free, used == room)

    def _with_one_free(
        self, gap: np.ndarray, jumps: np.ndarray, start_is_free: np.ndarray, reaches: np.ndarray
    ) -> np.ndarray:
        """A gap of each stream is left open if nothing else lets a run reach the highest offset."""
        free = np.logical_or.reduceat(jumps & (gap == 0), self.first_access)
        done = np.bincount(self.stream_of_run, weights=reaches | (~start_is_free & free), minlength=len(self.runs)) > 0
        rows = np.flatnonzero(jumps & ~start_is_free[self.run] & ~done[self.stream])
        last = rows[np.append(self.stream[rows[1:]] != self.stream[rows[:-1]], True)] if len(rows) else rows
        gap[last] = 0
        return gap

    def _free_starts(self) -> np.ndarray:
        """bool by run: whether it may begin anywhere: no open is left for it, or it begins with a gap."""
        return ~self._begins_anew(self.stream_of_run, self.number_of_run)

    def _begins_anew(self, stream: np.ndarray, number: np.ndarray) -> np.ndarray:
        """bool: whether runs begin at the start of the file: as many as there are opens, evenly spread, and the
        first."""
        backward = self.patterns.backward[stream]
        extra = self.runs[stream] - backward
        at_start = np.maximum(np.minimum(self.patterns.opens[stream] - extra, backward), backward > 0)
        runs = np.maximum(backward, 1)
        evenly = -(-number * at_start // runs) < -(-(number + 1) * at_start // runs)
        return np.asarray(evenly & (number < backward))

    def _drawn(self, free: np.ndarray, start_is_free: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Random additions to each offset from unknown gaps and free starts; one run reaches the highest offset."""
        # A stretch has at least one byte, except for the start of a run that goes back.
        starts = start_is_free & (self.number_of_run >= self.patterns.backward[self.stream_of_run])
        starts &= self.patterns.low[self.stream_of_run] == 0
        least = free.astype(np.int64)
        least[self.first_access[starts]] = 1
        weight = np.zeros(len(self.size))
        drawn = free.copy()
        drawn[self.first_access[start_is_free]] = True
        chance, beyond = self._chances(drawn)
        weight[drawn] = chance + 1e-9
        used = np.maximum.reduceat(place + self.size, self.first_access)
        low, high = self.patterns.low[self.stream_of_run], self.patterns.high[self.stream_of_run]
        room = np.maximum(high - low - used - np.add.reduceat(least, self.first_access), 0)
        beyond[self._reaching(np.add.reduceat(free.astype(np.int64), self.first_access), start_is_free)] = 0
        total = np.cumsum(weight)
        before = (total - weight)[self.first_access]
        within = total - before[self.run]
        whole = np.add.reduceat(weight, self.first_access) + beyond
        share = np.where(whole[self.run] > 0, within / np.where(whole > 0, whole, 1.0)[self.run], 0.0)
        added = np.cumsum(least)
        added -= (added - least)[self.first_access][self.run]
        last = np.append(self.begins[1:], True) & (beyond[self.run] == 0) & (whole[self.run] > 0)
        # The last gap of the run that reaches the end, and all behind it, are not left to rounding.
        share = np.where((share > 1 - 1e-9) | (last & (weight > 0)), np.where(beyond[self.run] == 0, 1.0, share), share)
        fits = (high - low - used >= np.add.reduceat(least, self.first_access))[self.run]
        drawn_bytes = np.floor(np.minimum(share, 1.0) * room[self.run]).astype(np.int64)
        result: np.ndarray = np.where(fits, added + drawn_bytes, 0)
        return result

    def _chances(self, drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Random numbers for the accesses that are `drawn`, and for all runs. Each process has the same sequence."""
        of_access, of_run = self.process[self.stream[drawn]], self.process[self.stream_of_run]
        before = np.bincount(of_access, minlength=int(self.process[-1]) + 1)
        place, place_of_run = _within(of_access), before[of_run] + _within(of_run)
        most = max(int(place.max(initial=-1)), int(place_of_run.max(initial=-1))) + 1
        sequence = np.random.default_rng(0).exponential(size=most)
        return sequence[place], sequence[place_of_run]

    def _count(self, accesses: np.ndarray) -> np.ndarray:
        """Number of accesses of a bool mask in each stream."""
        return np.bincount(self.stream[accesses], minlength=len(self.runs))

    def _reaching(self, free_gaps: np.ndarray, start_is_free: np.ndarray) -> np.ndarray:
        """The run of each stream that ends at its highest offset: one with a known begin if there is any."""
        able = np.flatnonzero((free_gaps > 0) | start_is_free)
        able = able[np.lexsort((self.number_of_run[able], start_is_free[able], self.stream_of_run[able]))]
        stream = self.stream_of_run[able]
        return able[np.flatnonzero(np.append(True, stream[1:] != stream[:-1]))] if len(able) else able

    def _go_back(self, offset: np.ndarray, start_is_free: np.ndarray) -> None:
        """Move runs that begin anywhere, in place, so that they begin behind the last byte of the previous run."""
        streams = np.unique(self.stream_of_run[start_is_free & (self.number_of_run > 0)])
        ends = np.append(self.first_access[1:], len(offset)) - 1
        for stream in streams.tolist():
            first = int(self.first_run[stream])
            runs = np.arange(first, first + int(min(self.runs[stream], self.patterns.backward[stream])))
            if len(runs) < 2:
                continue
            start = offset[self.first_access[runs]]
            reach = offset[ends[runs]] + self.size[ends[runs]] - 1 - start
            before = np.append(0, np.cumsum(np.maximum(reach[:-1], 0)))
            moved = np.minimum.accumulate(start - before) + before - start
            for_access = np.repeat(moved, ends[runs] - self.first_access[runs] + 1)
            offset[self.first_access[runs[0]] : ends[runs[-1]] + 1] += for_access


def _within(groups: np.ndarray) -> np.ndarray:
    """Index of each item within its group; the groups are ascending."""
    return np.arange(len(groups)) - np.searchsorted(groups, groups)


def _mixed(run: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Order of accesses by run. Within a run, many of one size are spread evenly among the others, and single small
    ones come last."""
    by_size = np.lexsort((-size, run))
    of_run, of_size = run[by_size], size[by_size]
    new = np.append(True, (of_run[1:] != of_run[:-1]) | (of_size[1:] != of_size[:-1]))
    first = np.flatnonzero(new)
    count = np.diff(np.append(first, len(run)))
    largest = np.append(True, of_run[first[1:]] != of_run[first[:-1]])
    tail = ~largest & (count < 3)
    number = np.arange(len(run)) - np.repeat(first, count)
    key = np.repeat(tail, count) + (number + 0.5) / np.repeat(count, count)
    key[np.repeat(tail, count)] = 1.0
    key[of_size == 0] = 2.0
    return by_size[np.lexsort((np.arange(len(run)), key, of_run))]
