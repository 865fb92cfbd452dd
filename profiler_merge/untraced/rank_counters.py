"""Darshan's counters of the files of each rank: the evidence for reconstruction.

A record that Darshan reduced over all ranks is divided among them in proportion to the operations in each rank's trace
of the file; sums stay exact. Streams without a file, and the tracing's own files, are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np

from dxt_replay.profiler_merge.darshan.counters import SHARED_RANK, CounterTable, read_counters
from dxt_replay.profiler_merge.darshan.dxt import SegmentCounts, count_segments
from dxt_replay.profiler_merge.darshan.log import DarshanLog
from dxt_replay.profiler_merge.untraced.timeline_slots import numbered
from dxt_replay.traces.files import STANDARD_STREAMS, is_recorder_file
from dxt_replay.traces.units import seconds_to_ns

NOT_SEEN = int(np.iinfo(np.int64).min)
"""A time of `CountedFiles` that never came, or that this version of Darshan does not record."""

MODULES = ("POSIX", "STDIO")
"""Modules whose operations are rebuilt. Those of MPI-IO are not: they stand for the same data as POSIX."""

TRACE = "DXT_POSIX"
"""The module that traces the calls that POSIX counts; none traces those of STDIO."""

_MOST_COUNTED = 1 << 40
_LATEST_S = 1e9
_LONGEST_S = 1e8
_KEPT_NAMES = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CountedFiles:
    """Files of ranks at one layer, one rank after the other; (n,), int64 but for record ids (uint64) and `own` (bool).

    process: index of the file's rank among these ranks, ascending from 0.
    renamed_from: record id of the file that got this name, 0 if none did.
    own: the record is of this rank alone, so that its times are exact; otherwise they are the first start and the last
    end over all ranks.
    syncs: fsync and fdatasync, or flushes of a stream.
    *_ns: time spent; longest_*: in one operation, of any rank where the record is reduced.
    *_start, *_end: the first start and the last end in ns, or NOT_SEEN.
    """

    process: np.ndarray
    record_id: np.ndarray
    renamed_from: np.ndarray
    own: np.ndarray
    opens: np.ndarray
    stats: np.ndarray
    seeks: np.ndarray
    syncs: np.ndarray
    reads: np.ndarray
    writes: np.ndarray
    meta_ns: np.ndarray
    read_ns: np.ndarray
    write_ns: np.ndarray
    longest_read_ns: np.ndarray
    longest_write_ns: np.ndarray
    open_start: np.ndarray
    open_end: np.ndarray
    close_start: np.ndarray
    close_end: np.ndarray
    read_start: np.ndarray
    read_end: np.ndarray
    write_start: np.ndarray
    write_end: np.ndarray

    def __len__(self) -> int:
        """Number of files."""
        return len(self.record_id)

    def select(self, rows: np.ndarray | slice) -> CountedFiles:
        """The files of a boolean mask, an index array or a slice."""
        return CountedFiles(**{each.name: getattr(self, each.name)[rows] for each in fields(self)})


COUNTED_TIMES = ("open_start", "open_end", "close_start", "close_end", "read_start", "read_end", "write_start",
                 "write_end")  # fmt: skip
_SHARED_OUT = ("opens", "stats", "seeks", "syncs", "writes", "meta_ns", "read_ns", "write_ns")  # fmt: skip

_PER_OPEN = ("opens", "stats", "meta_ns")
_MOST_SKIPPED = 1 << 17
"""Shares that are computed together by default."""

_MOST_RANKS = 1 << 20
"""Most ranks: a job record that claims more is damaged, and ranks that nobody requests get no shares there."""

_ROUNDS = 16
"""Rounds of the search for the weight of one open: each finds ranks below it that the round before did not."""


@lru_cache(maxsize=_KEPT_NAMES)
def is_application_file(path: bytes) -> bool:
    """Whether a recorded name is that of an application's file, not of a stream or of the recording itself."""
    name = path.decode("utf-8", "replace")
    return name not in STANDARD_STREAMS and not is_recorder_file(name)


def counted_files(log: DarshanLog, module: str, excluded: Collection[int] = ()) -> tuple[np.ndarray, CountedFiles]:
    """Ranks int64 and files of all records of POSIX or STDIO that are of the application; log's clock.

    `opens` are those that opened a file: Darshan adds fileno() and dup() to POSIX_OPENS, and fdopen() to STDIO_OPENS.
    Raises: LogError as `read_counters`.
    """
    table = read_counters(log, module)
    if table is None:
        return np.empty(0, dtype=np.int64), _empty()
    kept = application_records(log, table, excluded)
    return table.ranks[kept], _counted(table, module, kept)


def application_records(log: DarshanLog, table: CounterTable, excluded: Collection[int] = ()) -> np.ndarray:
    """bool: which records are of files of the application, without the `excluded` ones."""
    names = log.names
    left_out = {
        record for record in np.unique(table.record_ids).tolist() if not is_application_file(names.get(record, b""))
    }
    left_out.update(excluded)
    kept: np.ndarray = ~np.isin(table.record_ids, np.fromiter(left_out, dtype=np.uint64, count=len(left_out)))
    return kept


def _counted(table: CounterTable, module: str, kept: np.ndarray) -> CountedFiles:
    def count(*names: str) -> np.ndarray:
        known = [table.counters[f"{module}_{name}"][kept] for name in names if f"{module}_{name}" in table.counters]
        return sum((np.clip(values, 0, _MOST_COUNTED) for values in known), np.zeros(int(kept.sum()), dtype=np.int64))

    def time(name: str) -> np.ndarray:
        seconds = table.fcounters[f"{module}_F_{name}_TIMESTAMP"][kept]
        seen = np.isfinite(seconds) & (seconds > 0) & (seconds < _LATEST_S)
        return np.where(seen, seconds_to_ns(np.where(seen, seconds, 0.0)), NOT_SEEN)

    def spent(name: str) -> np.ndarray:
        seconds = table.fcounters.get(f"{module}_F_{name}_TIME", np.zeros(len(kept)))[kept]
        return seconds_to_ns(np.where((seconds > 0) & (seconds < _LONGEST_S), seconds, 0.0))

    times = {name: time(name.upper()) for name in COUNTED_TIMES}
    # Old versions lack the inner ends of the two windows.
    times["open_end"] = np.where(times["open_end"] == NOT_SEEN, times["open_start"], times["open_end"])
    times["close_start"] = np.where(times["close_start"] == NOT_SEEN, times["close_end"], times["close_start"])
    opens = count("OPENS") - count("FILENOS", "DUPS", "FDOPENS")
    return CountedFiles(
        process=np.zeros(int(kept.sum()), dtype=np.int64),
        record_id=table.record_ids[kept].astype(np.uint64),
        renamed_from=_renamed_from(table, kept),
        own=table.ranks[kept] != SHARED_RANK,
        opens=np.maximum(opens, 0),
        stats=count("STATS"),
        seeks=count("SEEKS"),
        syncs=count("FSYNCS", "FDSYNCS", "FLUSHES"),
        reads=count("READS"),
        writes=count("WRITES"),
        meta_ns=spent("META"),
        read_ns=spent("READ"),
        write_ns=spent("WRITE"),
        longest_read_ns=spent("MAX_READ"),
        longest_write_ns=spent("MAX_WRITE"),
        **times,
    )


def _renamed_from(table: CounterTable, kept: np.ndarray) -> np.ndarray:
    if "POSIX_RENAMED_FROM" not in table.counters:
        return np.zeros(int(kept.sum()), dtype=np.uint64)
    source = table.counters["POSIX_RENAMED_FROM"][kept].view(np.uint64)
    return np.where(table.counters["POSIX_RENAME_TARGETS"][kept] > 0, source, np.uint64(0))


def _empty() -> CountedFiles:
    none = np.empty(0, dtype=np.int64)
    columns = {each.name: none for each in fields(CountedFiles)}
    ids = {name: none.astype(np.uint64) for name in ("record_id", "renamed_from")}
    return CountedFiles(**{**columns, **ids, "own": none.astype(bool)})


def joined(parts: list[CountedFiles]) -> CountedFiles:
    """The files of all parts, one after the other."""
    names = [each.name for each in fields(CountedFiles)]
    return CountedFiles(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def _operations(files: CountedFiles) -> np.ndarray:
    """float64: how many operations of each file are counted, a close for each open."""
    counts = (files.opens, files.opens, files.stats, files.seeks, files.syncs, files.reads, files.writes)
    return np.sum([each.astype(np.float64) for each in counts], axis=0)


class SharedFiles:
    """Divides reduced records among the ranks of a job. Request runs of ranks; ascending ones cost least.

    `uses`: rank -> (record ids, traced operations). Every rank opened the file, else the record would not be reduced,
    so each rank has at least one open if there are enough. Sums over the ranks are exact.
    """

    def __init__(self, files: CountedFiles, ranks: int, uses: Mapping[int, tuple[np.ndarray, np.ndarray]]) -> None:
        self._files = files
        self._ranks = ranks
        order = np.argsort(files.record_id)
        known = files.record_id[order]
        self._uses: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for rank, (records, operations) in uses.items():
            place = np.minimum(np.searchsorted(known, records), len(known) - 1)
            found = known[place] == records
            self._uses[rank] = order[place[found]], operations[found]
        self._least = self._least_weights()
        self._whole = self._totals(self._least)
        self._begin()

    def _begin(self) -> None:
        self._next = 0
        self._reached = {name: np.zeros(len(self._files)) for name in self._least}
        self._given = np.zeros((len(_SHARED_OUT), len(self._files)), dtype=np.int64)

    def __len__(self) -> int:
        """Number of files."""
        return len(self._files)

    @property
    def operations_of_rank(self) -> float:
        """Approximate number of operations in a rank's share."""
        return float(_operations(self._files).sum()) / max(self._ranks, 1)

    def _least_weights(self) -> dict[str, np.ndarray]:
        """Least count of a rank by kind of count, in operations of one file.

        For opens it is what stands for one open: with n opens, r ranks and least weight m, sum(max(w, m)) = n * m.
        """
        traced, _ = self._above(np.zeros(len(self._files)))
        alike = np.where(traced == 0, 1.0, 0.0)
        opens = self._files.opens
        least = np.where(traced == 0, 1.0, traced / np.maximum(opens, 1))
        for _ in range(_ROUNDS):
            above, users = self._above(least)
            rest = opens - (self._ranks - users)
            least = np.where((users > 0) & (rest > 0), np.maximum(above / np.maximum(rest, 1), least), least)
        return {"opens": np.where(opens >= self._ranks, least, alike), "rest": alike}

    def _above(self, least: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """By file: operations of the ranks that have more than `least`, and the number of these ranks."""
        traced, users = np.zeros(len(self._files)), np.zeros(len(self._files))
        if self._uses:
            place, operations = (np.concatenate(column) for column in zip(*self._uses.values(), strict=True))
            more = operations > least[place]
            np.add.at(traced, place[more], operations[more])
            np.add.at(users, place[more], 1)
        return traced, users

    def _totals(self, least: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        totals = {}
        for name, weights in least.items():
            above, users = self._above(weights)
            totals[name] = above + weights * (self._ranks - users)
        return totals

    def of_rank(self, rank: int) -> CountedFiles:
        """This rank's share of every file."""
        return self.of_ranks(np.array([rank]))

    def of_ranks(self, ranks: np.ndarray) -> CountedFiles:
        """The shares of some ranks (one after the other), of every file for each of them."""
        self._go_to(int(ranks[0]))
        counts = self._shares(ranks).reshape(len(ranks), len(_SHARED_OUT), -1)
        columns = {each.name: np.tile(getattr(self._files, each.name), len(ranks)) for each in fields(CountedFiles)}
        columns["process"] = np.repeat(np.arange(len(ranks)), len(self._files))
        columns["renamed_from"] *= np.repeat(ranks == 0, len(self._files)).astype(np.uint64)
        columns |= {name: counts[:, place].reshape(-1) for place, name in enumerate(_SHARED_OUT)}
        return CountedFiles(**columns)

    def _go_to(self, rank: int) -> None:
        """Advance to a rank. Its share depends on all earlier ranks, so theirs are computed, too."""
        if rank < self._next:
            self._begin()
        last = min(rank, self._ranks) if self._ranks <= _MOST_RANKS else 0
        most = max(1, _MOST_SKIPPED // max(len(self._files), 1))
        while self._next < last:
            self._shares(np.arange(self._next, min(self._next + most, last)))

    def _shares(self, ranks: np.ndarray) -> np.ndarray:
        """int64 (ranks, counts of _SHARED_OUT, files): what the next ranks have."""
        self._next = int(ranks[-1]) + 1
        share = {}
        for kind, least in self._least.items():
            weight = np.tile(least, (len(ranks) + 1, 1))
            weight[0] = self._reached[kind]
            for row, rank in enumerate(ranks.tolist(), start=1):
                if rank in self._uses:
                    place, operations = self._uses[rank]
                    weight[row, place] = np.maximum(weight[row, place], operations)
            reached = np.cumsum(weight, axis=0)[1:]
            self._reached[kind] = reached[-1]
            part = np.minimum(reached / self._whole[kind], 1.0)
            share[kind] = np.where((ranks < self._ranks - 1)[:, np.newaxis], part, 1.0)
        return self._counts(ranks, share)

    def _counts(self, ranks: np.ndarray, share: Mapping[str, np.ndarray]) -> np.ndarray:
        """int64 (ranks, counts of _SHARED_OUT, files): `share` is the part of each file that ranks up to each have."""
        total = np.stack([getattr(self._files, name) for name in _SHARED_OUT])
        parts = np.stack([share["opens" if name in _PER_OPEN else "rest"] for name in _SHARED_OUT], axis=1)
        until = np.rint(total * parts).astype(np.int64)
        # rounding must not cost a rank its only open, or that of later ranks
        each = np.where((np.array(_SHARED_OUT) == "opens")[:, np.newaxis] & (total >= self._ranks), 1, 0)
        given = self._given
        for row, rank in enumerate(ranks.tolist()):
            np.clip(until[row], given + each, total - each * (self._ranks - 1 - rank), out=until[row])
            given = until[row]
        counts = np.diff(until, axis=0, prepend=self._given[np.newaxis])
        self._given = given.copy()
        return counts


def traced_uses(traced: Iterable[SegmentCounts], record_ids: np.ndarray) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """rank -> (record ids uint64, traced operations int64) of those files."""
    found: dict[int, dict[int, int]] = {}
    for part in traced:
        mine = np.isin(part.record_ids, record_ids)
        counts = part.writes + part.reads
        for rank, record, count in zip(
            part.ranks[mine].tolist(), part.record_ids[mine].tolist(), counts[mine].tolist(), strict=True
        ):
            of_rank = found.setdefault(rank, {})
            of_rank[record] = of_rank.get(record, 0) + count
    return {
        rank: (np.fromiter(uses, dtype=np.uint64), np.fromiter(uses.values(), dtype=np.int64))
        for rank, uses in found.items()
    }


class RankCounters:
    """Counters of the MODULES of one log, by rank. Request runs of ranks; ascending ones cost least.

    `fixed_rank`: the rank of the log's only process, None for the log of a whole job of `ranks` ranks.
    `traced`: how much of each record the trace holds, by module, where records are sums over all ranks; it is counted
    where it is not given.
    """

    def __init__(
        self,
        log: DarshanLog,
        ranks: int,
        *,
        fixed_rank: int | None = None,
        excluded: Collection[int] = (),
        traced: Mapping[str, tuple[SegmentCounts, ...]] | None = None,
    ) -> None:
        self.traced: dict[str, tuple[SegmentCounts, ...]] = dict(traced or {})
        self._own: dict[str, tuple[np.ndarray, CountedFiles]] = {}
        self._shared: dict[str, SharedFiles] = {}
        for module in MODULES:
            of_rank, files = counted_files(log, module, excluded)
            shared = ~files.own & (fixed_rank is None)
            if fixed_rank is not None:
                of_rank = np.full(len(of_rank), fixed_rank)
            if shared.any():
                reduced = files.select(shared)
                if module == "POSIX" and TRACE in log.modules and traced is None:
                    self.traced[module] = tuple(count_segments(log, TRACE))
                uses = traced_uses(self.traced.get(module, ()), reduced.record_id)
                self._shared[module] = SharedFiles(reduced, ranks, uses)
            order = np.flatnonzero(~shared)[np.argsort(of_rank[~shared], kind="stable")]
            self._own[module] = of_rank[order], files.select(order)

    @property
    def ranks_of_records(self) -> np.ndarray:
        """int64: ranks that have records of their own, ascending."""
        return np.unique(np.concatenate([ranks for ranks, _ in self._own.values()]))

    def operations(self, ranks: np.ndarray) -> np.ndarray:
        """float64 (r,): approximate number of operations in the counters of some ranks (ascending) over all modules."""
        found = np.zeros(len(ranks))
        for of_rank, files in self._own.values():
            reached = np.append(0.0, np.cumsum(_operations(files)))
            first, last = (np.searchsorted(of_rank, ranks, side=side) for side in ("left", "right"))
            found += reached[last] - reached[first]
        return found + sum(shared.operations_of_rank for shared in self._shared.values())

    @property
    def shared_files(self) -> int:
        """Number of reduced records of the module with the most: every rank has a share of each."""
        return max((len(shared) for shared in self._shared.values()), default=0)

    def of_ranks(self, ranks: np.ndarray, module: str) -> CountedFiles:
        """The files of some ranks (ascending) at one layer, on the log's clock: each rank's own, then its shares."""
        of_rank, files = self._own[module]
        first, last = (np.searchsorted(of_rank, ranks, side=side) for side in ("left", "right"))
        process, number = numbered(last - first)
        own = replace(files.select(first[process] + number), process=process)
        if module not in self._shared:
            return own
        both = joined([own, self._shared[module].of_ranks(ranks)])
        return both.select(np.argsort(both.process, kind="stable"))
