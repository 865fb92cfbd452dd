"""Reads of mapped files, from the page faults that `dxt-replay record` collected, as operations with interface MMAP.

Each fault becomes a read of the pages that the thread then used: to the next fault, if that is one of the next 16 pages
(the kernel maps up to 16 cached pages with one fault, and nobody sees the use of these), else of the one page. Since
Linux 6.18 a fault maps all of a large folio, as read-ahead makes them, each up to four times as large as the one
before: a run whose steps grow so goes on. Steps of such a size that grew from nothing may be cached folios, or strides,
and what was read is not known. A run that begins with the next 16 pages after a lone one goes back to that. Faults at
most `JOINED_NS` apart become one read. A mapping that was read becomes an open, and a close of the process's earlier
mapping of that file, because a new mapping begins the kernel's read-ahead anew. That PyTorch announces sequential reads
of the files that it maps is no record of the kernel: it is inferred from how the file was mapped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from dxt_replay.profiler_merge.files import shown
from dxt_replay.profiler_merge.recorded_job import MAIN, THREAD, LaneFacts
from dxt_replay.profiler_merge.rows import in_order, joined, rows_of
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.output import PAGE_FAULTS
from dxt_replay.traces.row_order import distinct_rows
from dxt_replay.traces.schema import APIS, OPEN_FLAGS, OPS, READ, TRACED, Unseen
from dxt_replay.traces.unseen import recording_of

PAGE_BYTES = 4096
AROUND_BYTES = 16 * PAGE_BYTES
"""What one fault maps at most of pages that are cached (`fault_around_bytes`), aligned to its size."""

_OVERLOOKED = 0.01
"""Share of a file's resident bytes that may lie outside of all faults."""

_GROWTH = 4
"""Read-ahead makes folios that are at most so many times as large as those before (`page_cache_ra_order`)."""

JOINED_NS = 5_000
MOST_BYTES = 1 << 20
"""Longest read that is made of several faults."""

MINOR, MAJOR, MAPPING, TORCH_MAPPING = range(4)
"""Kinds of rows: a fault that did not wait, one that did, a mapping that was made, and one as PyTorch makes them."""

FAULT_ROW = np.dtype(
    [(name, "<i8") for name in ("start_ns", "end_ns", "offset", "length")]
    + [(name, "<i4") for name in ("pid", "tid", "file", "kind")]
)
"""As `recorder._page_faults` writes it."""

_NEAR_PAGES, _LEAST_NEAR = 8, 0.25
"""Pages that every read of a fault reaches around it, and the share of the faults that nothing read for."""

_RANDOM = sum(1 << OPEN_FLAGS.index(flag) for flag in ("read", "random"))
_ANNOUNCED = sum(1 << OPEN_FLAGS.index(flag) for flag in ("read", "sequential"))
_NEVER = int(np.iinfo(np.int64).min)
_MMAP, _OPEN, _CLOSE = APIS.index("MMAP"), OPS.index("open"), OPS.index("close")


@dataclass(frozen=True, kw_only=True, eq=False)
class MappedReads:
    """The faults of a recording.

    paths, sizes: of the files by number; a size of 0 is not known. faults: `FAULT_ROW`, CLOCK_REALTIME.
    complete: whether the kernel kept every record.
    """

    paths: Sequence[bytes] = ()
    sizes: Sequence[int] = ()
    faults: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=FAULT_ROW))
    complete: bool = True

    @cached_property
    def _by_process(self) -> Mapping[int, np.ndarray]:
        order = np.argsort(self.faults["pid"], kind="stable")
        pids, first = np.unique(self.faults["pid"][order], return_index=True)
        return dict(zip(pids.tolist(), np.split(order, first[1:]), strict=True)) if len(order) else {}

    def of_process(self, pid: int | None) -> np.ndarray:
        """The operations of a process as `ROW` with its `thread` ids, in order of start; times are CLOCK_REALTIME."""
        places = None if pid is None else self._by_process.get(pid)
        if places is None:
            return rows_of({}, 0)
        rows = self.faults[places]
        sizes = np.array(self.sizes, dtype=np.int64)[rows["file"]]
        rows = rows[(rows["kind"] >= MAPPING) | (sizes <= 0) | (rows["offset"] < sizes)]
        faults = rows[rows["kind"] < MAPPING]
        threads = (faults[faults["tid"] == tid] for tid in np.unique(faults["tid"]).tolist())
        done = joined([_mappings(rows), *map(_reads, threads)])
        sizes = np.array(self.sizes, dtype=np.int64)[done["file"]]
        done["length"] = np.where(sizes > 0, np.minimum(done["length"], sizes - done["offset"]), done["length"])
        done["length"][done["op"] != READ] = 0
        return done[np.lexsort((done["op"] == READ, -done["op"], done["start_ns"]))]

    @property
    def inferred(self) -> Mapping[str, int]:
        """What capture.json says of it: how many mappings count as PyTorch's."""
        count = int(np.count_nonzero(self.faults["kind"] == TORCH_MAPPING))
        return {"torch_mappings": count} if count else {}

    def still_unseen(self, unseen: Iterable[Unseen], placed: Collection[int]) -> tuple[Unseen, ...]:
        """Without the mapped bytes that these reads hold: 0 for a file whose reads they all are.

        placed: ids of the processes whose reads are in the capture."""
        known, left = self._reached(), []
        unsure = self._unsure(known)
        elsewhere = np.unique(self.faults["file"][~np.isin(self.faults["pid"], list(placed))]).tolist()
        lost = {shown(self.paths[file]) for file in elsewhere}
        known = {name: most for name, most in known.items() if self.complete and name not in lost}
        for each in unseen:
            most = known.get(each.name) if each.kind == "mapped" else None
            if most:  # without any fault the kernel filled the mapping itself (MAP_POPULATE), or nobody read it
                rest = 0 if each.bytes is None else max(each.bytes - most, 0)
                rest = rest if rest > _OVERLOOKED * (each.bytes or 0) else 0
                each = replace(each, bytes=rest or (None if each.name in unsure else 0))
            left.append(each)
        return tuple(left)

    def _reached(self) -> dict[str, int]:
        """Path as captures show it -> bytes that the faults may have mapped, which the size of the file bounds."""
        data = self.faults[self.faults["kind"] < MAPPING]
        windows = distinct_rows(data["file"], data["offset"] // AROUND_BYTES).values
        count = np.bincount(windows[:, 0], minlength=len(self.paths)) * AROUND_BYTES
        for steps in self._steps:
            np.add.at(count, steps.file[steps.folios], steps.ahead[steps.folios] - AROUND_BYTES)
        return {shown(path): int(most) for path, most in zip(self.paths, count, strict=True)}

    @cached_property
    def _steps(self) -> Sequence[_Steps]:
        data = self.faults[self.faults["kind"] < MAPPING]
        return [_Steps(data[data["tid"] == tid]) for tid in np.unique(data["tid"]).tolist()]

    def _unsure(self, reached: Mapping[str, int]) -> set[str]:
        """Files of which steps that may be folios are more than what may be overlooked."""
        between = np.zeros(len(self.paths))
        for steps in self._steps:
            np.add.at(between, steps.file[steps.unsure], steps.ahead[steps.unsure])
        names = map(shown, self.paths)
        return {name for name, size in zip(names, between, strict=True) if size > _OVERLOOKED * (size + reached[name])}

    def found_among(self, paths: Sequence[bytes]) -> list[int]:
        """The index in `paths` of each file, by its name or where a link leads; -1 for none."""
        named = {path: number for number, path in enumerate(paths)}
        if any(path not in named for path in self.paths):
            for path, number in list(named.items()):
                named.setdefault(os.path.realpath(path), number)
        return [named.get(path, -1) for path in self.paths]


class _Steps:
    """From each fault of a thread to the next: bytes `ahead`; whether the read `goes_on`, in `folios` or within the
    pages around, or whether that is `unsure`."""

    def __init__(self, faults: np.ndarray) -> None:
        self.file, self.ahead = faults["file"][:-1], np.diff(faults["offset"])
        onward = (np.diff(faults["file"]) == 0) & (self.ahead > 0)
        self.goes_on = onward & (self.ahead <= AROUND_BYTES)
        whole = onward & ~self.goes_on & (self.ahead & (self.ahead - 1) == 0)
        whole &= faults["offset"][:-1] % np.maximum(self.ahead, 1) == 0
        self.folios = np.zeros(len(whole), dtype=bool)
        for step in np.flatnonzero(whole).tolist():
            self.folios[step] = (
                step > 0 and self.goes_on[step - 1] and self.ahead[step] <= _GROWTH * self.ahead[step - 1]
            )
            self.goes_on[step] = self.folios[step]
        self.unsure = whole & ~self.folios


def _mappings(rows: np.ndarray) -> np.ndarray:
    """Opens and closes of a process's mappings that were read before the file was mapped again."""
    found = []
    for file in np.unique(rows["file"]).tolist():
        mine = rows[rows["file"] == file]
        made = np.flatnonzero(mine["kind"] >= MAPPING)
        read = np.diff(np.append(made, len(mine))) > 1
        opens = _operations(mine[made[read]], _OPEN)
        closes = opens[1:].copy()
        opens["open_flags"][mine["kind"][made[read]] == TORCH_MAPPING] = _ANNOUNCED
        if _reads_no_further(mine):
            opens["open_flags"] = _RANDOM
        closes["op"] = _CLOSE
        found += [opens, closes]
    return joined(found)


def _reads_no_further(faults: np.ndarray) -> bool:
    """Whether faults on a file read their page alone (MADV_RANDOM, as LMDB asks): else the pages next to one that
    was waited for are there already, and none of them is waited for right after it."""
    waited = faults[faults["kind"] == MAJOR]
    waited = waited[np.argsort(waited["tid"], kind="stable")]
    near = (np.diff(waited["tid"]) == 0) & np.isin(np.diff(waited["offset"]), np.arange(1, _NEAR_PAGES) * PAGE_BYTES)
    return len(near) > _NEAR_PAGES and bool(near.mean() > _LEAST_NEAR)


def _reads(faults: np.ndarray) -> np.ndarray:
    """The reads of one thread."""
    found = _operations(faults, READ)
    steps = _Steps(faults)
    ahead, goes_on = steps.ahead, steps.goes_on
    after = np.append(goes_on, False)
    before = np.insert(goes_on, 0, False)
    found["length"] = PAGE_BYTES
    found["length"][:-1][goes_on] = ahead[goes_on]
    last = np.flatnonzero(before & ~after)
    found["length"][last] = np.where(steps.folios[last - 1], ahead[last - 1], faults["length"][last])
    _begin_at_first_use(found, np.flatnonzero(after & ~before))
    near = goes_on & (faults["start_ns"][1:] - faults["end_ns"][:-1] <= JOINED_NS)
    first = np.insert(~near | (np.diff(found["offset"] // MOST_BYTES) != 0), 0, True)
    begin = np.flatnonzero(first)
    last = np.append(begin[1:], len(found)) - 1
    whole = found[begin]
    whole["end_ns"] = found["end_ns"][last]
    whole["length"] = found["offset"][last] + found["length"][last] - whole["offset"]
    return whole


def _begin_at_first_use(reads: np.ndarray, begins: np.ndarray) -> None:
    """Let a run that begins with a window go back to the page of the window before that the thread used earlier.

    A program that looks at the first page of an array and then reads all of it faults on the next window."""
    pages: dict[tuple[int, int], int] = {}
    begin_at = set(begins.tolist())
    for row, (file, offset) in enumerate(zip(reads["file"].tolist(), reads["offset"].tolist(), strict=True)):
        window, within = divmod(offset, AROUND_BYTES)
        used = pages.get((file, window - 1))
        if row in begin_at and within == 0 and used is not None:
            reads["length"][row] += offset - used
            reads["offset"][row] = used
        pages[file, window] = offset + PAGE_BYTES


def _operations(rows: np.ndarray, op: int) -> np.ndarray:
    """`ROW` of faults or mappings (`FAULT_ROW`)."""
    columns = {name: rows[name] for name in ("start_ns", "end_ns", "length", "file")}
    columns |= {"thread": rows["tid"], "offset": rows["offset"] if op == READ else np.full(len(rows), -1)}
    return rows_of(columns, len(rows), op=op, api=_MMAP, origin=TRACED)


def mapped_reads(logs: Iterable[Path]) -> MappedReads:
    """The page faults beside the logs of a recording; none if nothing collected them. Raises: LogError for damage."""
    folders = dict.fromkeys(filter(None, map(recording_of, logs)))
    for path in (folder / PAGE_FAULTS for folder in folders):
        try:
            with path.open("rb") as file:
                head = json.loads(file.readline())
                faults = np.frombuffer(file.read(), dtype=FAULT_ROW).copy()
            programs, ahead_ns = set(head["programs"]), int(head["realtime_ahead_ns"][0])
            keep = ~np.isin(faults["file"], list(programs))
            faults = faults[keep]
            for name in ("start_ns", "end_ns"):
                faults[name] += ahead_ns
            return MappedReads(
                paths=[name.encode("utf-8", "surrogateescape") for name in head["files"]],
                sizes=list(map(int, head["sizes"])),
                faults=faults,
                complete=not head["lost"],
            )
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise LogError(f"{path} is damaged ({error!r}): remove it, or record again") from error
    return MappedReads()


def mapped_rows(
    rows: np.ndarray,
    own: np.ndarray,
    *,
    rank: int,
    lanes: Mapping[int, int],
    facts: LaneFacts,
    next_lane: int,
    file: np.ndarray,
    zero_ns: int,
) -> tuple[np.ndarray, list[LaneFacts]]:
    """The `rows` (of `MappedReads.of_process`) beside the process's `own`, and the facts of the lanes that they add.

    lanes: the lane of each thread id that has one. A read that overlaps an operation there, as one inside a system call
    does, is in an added lane; so are all reads of other threads. facts: of the process. file: number of each row's.
    zero_ns: CLOCK_REALTIME of the capture's zero.
    """
    found = rows.copy()
    found["rank"], found["file"] = rank, file
    for name in ("start_ns", "end_ns"):
        found[name] -= zero_ns
    added: list[LaneFacts] = []
    for tid in np.unique(rows["thread"]).tolist():
        mine = np.flatnonzero(rows["thread"] == tid)
        apart = np.ones(len(mine), dtype=bool)
        if tid in lanes:
            taken = own[own["lane"] == lanes[tid]]
            apart = _overlaps(found["start_ns"][mine], found["end_ns"][mine], taken["start_ns"], taken["end_ns"])
            found["lane"][mine[~apart]] = lanes[tid]
        if apart.any():
            found["lane"][mine[apart]] = next_lane + len(added)
            role = facts.role if facts.role is not None else MAIN if tid == facts.pid else THREAD
            added.append(LaneFacts(host=facts.host, pid=facts.pid, thread=tid, role=role))
    return found, added


def open_before_mapping(own: np.ndarray, mapped: np.ndarray, each_ns: Mapping[int, int]) -> np.ndarray:
    """The rows of a process with the opens and closes of its mapped files right before and after the mappings, which
    the kernel dated: counters say only how many there were, and how long one lasted, each_ns by number of the file. A
    file that was read by calls too, or mapped more often than opened, keeps its rows."""
    own = own.copy()
    ends = np.sort(np.concatenate((own["end_ns"][own["origin"] == TRACED], mapped["end_ns"])))
    mappings, moved = mapped[mapped["op"] == _OPEN], np.zeros(len(own), dtype=bool)
    for file in np.unique(mappings["file"]).tolist():
        mine, made = own["file"] == file, mappings[mappings["file"] == file]
        opens, closes = (np.flatnonzero(mine & (own["op"] == op)) for op in (_OPEN, _CLOSE))
        if (mine & (own["origin"] == TRACED)).any() or len(opens) < len(made) or file not in each_ns:
            continue
        until = made["start_ns"]
        free = np.append(_NEVER, ends)[np.searchsorted(ends, until, side="left")]  # what ended before the mapping
        begin, behind = np.maximum(until - each_ns[file], free), until + 1
        for rows, start, end in ((opens[: len(made)], begin, until), (closes[: len(made)], behind, behind)):
            own["start_ns"][rows], own["end_ns"][rows] = start[: len(rows)], end[: len(rows)]
            own["lane"][rows] = made["lane"][: len(rows)]
            moved[rows] = True
    return in_order(own) if moved.any() else own


def _overlaps(start: np.ndarray, end: np.ndarray, own_start: np.ndarray, own_end: np.ndarray) -> np.ndarray:
    """bool: which intervals overlap one of others that do not overlap each other, in any order."""
    order = np.argsort(own_start, kind="stable")
    own_start, own_end = own_start[order], np.maximum.accumulate(own_end[order])
    place = np.searchsorted(own_start, np.maximum(end, start + 1))
    found: np.ndarray = (place > 0) & (np.append(own_end, 0)[place - 1] > start)
    return found
