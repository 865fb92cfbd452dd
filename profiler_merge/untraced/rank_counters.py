"""Darshan's counters of the files of one rank: the evidence that operations are reconstructed from.

A record that Darshan reduced over all ranks is shared out among them: in proportion to the operations that each rank's
trace has of the file, so that sums stay exact. Streams without a file, and files of the tracing itself, are left out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields

import numpy as np

from profiler_merge.darshan.counters import SHARED_RANK, CounterTable, read_counters
from profiler_merge.darshan.dxt import SegmentCounts, count_segments
from profiler_merge.darshan.log import DarshanLog
from traces.recorder_files import is_recorder_file
from traces.units import seconds_to_ns

NOT_SEEN = int(np.iinfo(np.int64).min)
"""A time of `CountedFiles` that never came, or that this version of Darshan does not record."""

MODULES = ("POSIX", "STDIO", "MPI-IO")
"""Modules whose operations are made."""

TRACES = {"POSIX": "DXT_POSIX", "MPI-IO": "DXT_MPIIO"}
"""Module of counters -> module that traces the same calls."""

_MOST_COUNTED = 1 << 40
_LATEST_S = 1e9
_LONGEST_S = 1e8
_STREAM = re.compile(rb"<STD(IN|OUT|ERR)>")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CountedFiles:
    """Files of one rank at one layer; arrays (n,), int64 but for the record ids (uint64) and `own` (bool).

    renamed_from: record id of the file that got this name, 0 where none did.
    own: the record is of this rank alone, so that its times are exact; otherwise they are the first start and the last
        end over all ranks.
    syncs: fsync and fdatasync, or flushes of a stream.
    *_ns: time spent; longest_*: in one operation, of any rank where the record is reduced.
    *_start, *_end: the first start and the last end in ns, or NOT_SEEN.
    """

    record_id: np.ndarray
    renamed_from: np.ndarray
    own: np.ndarray
    opens: np.ndarray
    stats: np.ndarray
    seeks: np.ndarray
    syncs: np.ndarray
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
_ROUNDS = 16
"""Rounds of the search for the weight of one open: each finds ranks below it that the round before did not."""


def is_application_file(path: bytes) -> bool:
    """Whether a recorded name is that of a file of the application, not of a stream or of the recording itself."""
    return not (_STREAM.fullmatch(path) or is_recorder_file(path.decode("utf-8", "replace")))


def counted_files(log: DarshanLog, module: str, excluded: Collection[int] = ()) -> tuple[np.ndarray, CountedFiles]:
    """Ranks int64 and files of all records of POSIX, MPI-IO or STDIO that are of the application; log's clock.

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
    left_out = {int(record) for record in table.record_ids if not is_application_file(log.names.get(int(record), b""))}
    left_out.update(excluded)
    kept: np.ndarray = ~np.isin(table.record_ids, np.fromiter(left_out, dtype=np.uint64, count=len(left_out)))
    return kept


def _counted(table: CounterTable, module: str, kept: np.ndarray) -> CountedFiles:
    prefix = module.replace("-", "")

    def count(*names: str) -> np.ndarray:
        known = [table.counters[f"{prefix}_{name}"][kept] for name in names if f"{prefix}_{name}" in table.counters]
        return sum((np.clip(values, 0, _MOST_COUNTED) for values in known), np.zeros(int(kept.sum()), dtype=np.int64))

    def time(name: str) -> np.ndarray:
        seconds = table.fcounters[f"{prefix}_F_{name}_TIMESTAMP"][kept]
        seen = np.isfinite(seconds) & (seconds > 0) & (seconds < _LATEST_S)
        return np.where(seen, seconds_to_ns(np.where(seen, seconds, 0.0)), NOT_SEEN)

    def spent(name: str) -> np.ndarray:
        seconds = table.fcounters.get(f"{prefix}_F_{name}_TIME", np.zeros(len(kept)))[kept]
        return seconds_to_ns(np.where((seconds > 0) & (seconds < _LONGEST_S), seconds, 0.0))

    times = {name: time(name.upper()) for name in COUNTED_TIMES}
    # Old versions lack the inner ends of the two windows.
    times["open_end"] = np.where(times["open_end"] == NOT_SEEN, times["open_start"], times["open_end"])
    times["close_start"] = np.where(times["close_start"] == NOT_SEEN, times["close_end"], times["close_start"])
    opens = count("OPENS", "INDEP_OPENS") - count("FILENOS", "DUPS", "FDOPENS")
    return CountedFiles(
        record_id=table.record_ids[kept].astype(np.uint64),
        renamed_from=_renamed_from(table, kept),
        own=table.ranks[kept] != SHARED_RANK,
        opens=np.maximum(opens, 0),
        stats=count("STATS"),
        seeks=count("SEEKS"),
        syncs=count("FSYNCS", "FDSYNCS", "FLUSHES"),
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


class SharedFiles:
    """Shares reduced records out among the ranks of a job. Ask for the ranks in ascending order, once each.

    `uses`: rank -> (record ids, traced operations). Every rank opened the file, else the record would not be reduced:
    so nobody has less than one open where there are enough. Sums over the ranks are exact.
    """

    def __init__(self, files: CountedFiles, ranks: int, uses: Mapping[int, tuple[np.ndarray, np.ndarray]]) -> None:
        self._files = files
        self._ranks = ranks
        self._uses = uses
        self._order = np.argsort(files.record_id)
        self._least = self._least_weights()
        self._whole = self._totals(self._least)
        self._reached = {name: np.zeros(len(files)) for name in self._least}
        self._given = {name: np.zeros(len(files), dtype=np.int64) for name in _SHARED_OUT}

    def _least_weights(self) -> dict[str, np.ndarray]:
        """By the kind of count: what a rank counts at least, in operations of one file.

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
        """By file: operations of the ranks that have more than `least`, and how many these are."""
        traced, users = np.zeros(len(self._files)), np.zeros(len(self._files))
        for rank in self._uses:
            place, operations = self._used_by(rank)
            more = operations > least[place]
            traced[place] += np.where(more, operations, 0)
            users[place] += more
        return traced, users

    def _totals(self, least: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        totals = {}
        for name, weights in least.items():
            above, users = self._above(weights)
            totals[name] = above + weights * (self._ranks - users)
        return totals

    def _used_by(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        records, operations = self._uses.get(rank, (np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)))
        known = self._files.record_id[self._order]
        place = np.minimum(np.searchsorted(known, records), max(len(known) - 1, 0))
        found = known[place] == records if len(known) else np.zeros(len(records), dtype=bool)
        return self._order[place[found]], operations[found]

    def of_rank(self, rank: int) -> CountedFiles:
        """This rank's share of every file."""
        place, operations = self._used_by(rank)
        share = {}
        for kind, least in self._least.items():
            weight = least.copy()
            weight[place] = np.maximum(weight[place], operations)
            self._reached[kind] += weight
            part = np.minimum(self._reached[kind] / self._whole[kind], 1.0)
            share[kind] = part if rank < self._ranks - 1 else np.ones(len(self._files))
        columns = {each.name: getattr(self._files, each.name) for each in fields(CountedFiles)}
        if rank:
            columns["renamed_from"] = np.zeros_like(columns["renamed_from"])
        for name in _SHARED_OUT:
            part = share["opens" if name in _PER_OPEN else "rest"]
            total, given = columns[name], self._given[name]
            # rounding alone can cost a rank its one open, or the ranks after it theirs
            each = (name == "opens") & (total >= self._ranks)
            until = np.rint(total * part).astype(np.int64)
            until = np.clip(until, given + each, total - each * (self._ranks - 1 - rank))
            columns[name] = until - given
            self._given[name] = until
        return CountedFiles(**columns)


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
    """Counters of the MODULES of one log, by rank. Ask for the ranks in ascending order, once each.

    `fixed_rank`: the rank of the log's only process, None for the log of a whole job of `ranks` ranks.
    `traced`: how much of each record the trace holds, by module, where records are sums over all ranks.
    """

    def __init__(
        self, log: DarshanLog, ranks: int, *, fixed_rank: int | None = None, excluded: Collection[int] = ()
    ) -> None:
        self.traced: dict[str, tuple[SegmentCounts, ...]] = {}
        self._own: dict[str, tuple[np.ndarray, CountedFiles]] = {}
        self._shared: dict[str, SharedFiles] = {}
        for module in MODULES:
            of_rank, files = counted_files(log, module, excluded)
            shared = ~files.own & (fixed_rank is None)
            if fixed_rank is not None:
                of_rank = np.full(len(of_rank), fixed_rank)
            if shared.any():
                reduced = files.select(shared)
                if module in TRACES and TRACES[module] in log.modules:
                    self.traced[module] = tuple(count_segments(log, TRACES[module]))
                uses = traced_uses(self.traced.get(module, ()), reduced.record_id) if module == "POSIX" else {}
                self._shared[module] = SharedFiles(reduced, ranks, uses)
            order = np.flatnonzero(~shared)[np.argsort(of_rank[~shared], kind="stable")]
            self._own[module] = of_rank[order], files.select(order)

    @property
    def ranks_of_records(self) -> frozenset[int]:
        """Ranks that have records of their own."""
        return frozenset(int(rank) for ranks, _ in self._own.values() for rank in np.unique(ranks))

    @property
    def has_shared(self) -> bool:
        """Whether any record was reduced, so that every rank has a share."""
        return bool(self._shared)

    def of_rank(self, rank: int, module: str) -> CountedFiles:
        """The files of one rank at one layer, times on the log's clock."""
        ranks, files = self._own[module]
        first, last = np.searchsorted(ranks, [rank, rank + 1])
        own = files.select(slice(first, last))
        return joined([own, self._shared[module].of_rank(rank)]) if module in self._shared else own
