"""Runs one trial of a probe: issues its requests on files, and removes the files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from dxt_replay.replay.calibration.issued import MAX_ITEMS, Issued, LaneItems, issue
from dxt_replay.replay.calibration.probe_plan import Kind, Probe, spread_offsets
from dxt_replay.replay.calibration.scratch import Scratch
from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files
from dxt_replay.replay.engine.items import CLOSE, OPEN, READ_AT, RENAME, STAT, SYNC, WRITE_AT
from dxt_replay.replay.engine.link_free import unlink_link_free
from dxt_replay.replay.target import page_cache
from dxt_replay.traces.units import MIB

MANY_USES = 1 << 40
"""Uses of a file that stays open until a trial is over."""

OFF_PAGE_BYTES = 57
"""Offset of the first write to a file, so that no write consists of whole pages."""

FILL_BYTES = MIB
"""Bytes of the reads that fill the page cache."""

FILL_SLICES = 4
"""Most time for filling the cache, in times of a trial. On slow storage fewer pages are cached then."""

MOST_WRITTEN_BYTES = 256 * MIB
"""Most bytes that a trial writes."""


@dataclass(slots=True, kw_only=True)
class DropOutcome:
    """Success of dropping pages before cold reads: bytes that stayed, of bytes in all, and warnings."""

    stayed_bytes: int = 0
    total_bytes: int = 0
    warnings: dict[str, None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The files of trials.

    data: a file of `data_bytes` that is read cold. cached: one of `cached_bytes` whose pages stay.
    pool: small files, opened in turn.
    """

    scratch: Scratch
    data: bytes
    data_bytes: int
    cached: bytes
    cached_bytes: int
    pool: tuple[bytes, ...]
    random: np.random.Generator
    names: count[int] = field(default_factory=count)
    turns: count[int] = field(default_factory=count)
    dropped: DropOutcome = field(default_factory=DropOutcome)

    def run(self, probe: Probe, *, seconds: float, pause_ns: int = 0) -> Issued | None:
        """The requests of one trial; None where the probe does not fit into the data or the free space.

        pause_ns: pause of each lane between two requests. Raises: TargetError.
        """
        return _TRIALS[probe.kind](self, probe, seconds, pause_ns)

    def drop(self) -> None:
        """Drop the pages of the data, and note what stayed."""
        result = page_cache.drop([self.data])
        self.dropped.warnings |= dict.fromkeys(result.warnings)
        residency = page_cache.resident([self.data])
        self.dropped.stayed_bytes += residency.resident_bytes
        self.dropped.total_bytes += residency.total_bytes

    def fill_cache(self, files: Files, seconds: float) -> int:
        """Read the cached file, the only one of `files`, from its begin for `seconds`, and leave it open: its pages may
        not outlast a close. Returns how many bytes of it are in the page cache. Raises: TargetError."""
        count = self.cached_bytes // FILL_BYTES
        lane = LaneItems(kind=READ_AT, slot=0, offset=np.arange(count) * FILL_BYTES, length=FILL_BYTES, count=count)
        return FILL_BYTES * len(issue(files, [lane], seconds=seconds, doing=f"measure {self.scratch.path.parent}"))

    def issue(self, files: Files, lanes: list[LaneItems], seconds: float) -> Issued:
        """Issue the items of `lanes`, as `issued.issue`, and close the files."""
        try:
            return issue(files, lanes, seconds=seconds, doing=f"measure {self.scratch.path.parent}")
        finally:
            files.close_all()


def _cold_read(bench: Bench, probe: Probe, seconds: float, pause_ns: int) -> Issued | None:
    offsets = spread_offsets(bench.data_bytes, probe.size, bench.random)
    if len(offsets) < 2 * probe.in_flight:
        return None
    bench.drop()
    lanes = _reads(np.array_split(offsets, probe.in_flight), probe.size, pause_ns)
    return bench.issue(_reading(bench.data), lanes, seconds)


def _cached_read(bench: Bench, probe: Probe, seconds: float, pause_ns: int) -> Issued | None:
    files = _reading(bench.cached)
    places = bench.fill_cache(files, FILL_SLICES * seconds) // probe.size
    if places < 1:
        files.close_all()
        return None
    offsets = [probe.size * bench.random.integers(0, places, MAX_ITEMS // 4) for _ in range(probe.in_flight)]
    return bench.issue(files, _reads(offsets, probe.size, pause_ns), seconds)


def _sequential_read(bench: Bench, probe: Probe, seconds: float, pause_ns: int) -> Issued | None:
    bench.drop()
    offsets = np.arange(bench.data_bytes // probe.size) * probe.size
    return bench.issue(_reading(bench.data), _reads([offsets], probe.size, pause_ns), seconds)


def _reading(path: bytes) -> Files:
    return Files([FileSlot(path=path, uses=MANY_USES)])


def _reads(offsets: list[np.ndarray], size: int, pause_ns: int) -> list[LaneItems]:
    lanes = [lane[:MAX_ITEMS] for lane in offsets]
    return [
        LaneItems(kind=READ_AT, slot=0, offset=lane, length=size, pause_ns=pause_ns, count=len(lane)) for lane in lanes
    ]


def _write(bench: Bench, probe: Probe, seconds: float, pause_ns: int) -> Issued | None:
    """Append to new files, one of each lane. Requests share pages, as in most written files, because some file systems
    send such parts one by one."""
    each = _requests_that_fit(bench, probe)
    return None if not each else _on_new_files(
        bench,
        probe.in_flight,
        lambda lane: LaneItems(
            kind=WRITE_AT,
            slot=lane,
            offset=OFF_PAGE_BYTES + np.arange(each) * probe.size,
            length=probe.size,
            pause_ns=pause_ns,
            count=each,
        ),
        seconds,
    )  # fmt: skip


def _sync(bench: Bench, probe: Probe, seconds: float, pause_ns: int) -> Issued | None:
    """Append to new files, with a sync after each request."""
    each = _requests_that_fit(bench, probe)
    return None if not each else _on_new_files(
        bench,
        probe.in_flight,
        lambda lane: LaneItems(
            kind=np.tile(np.array([WRITE_AT, SYNC], dtype=np.uint8), each),
            slot=lane,
            offset=OFF_PAGE_BYTES + np.repeat(np.arange(each) * probe.size, 2),
            length=np.tile(np.array([probe.size, 0]), each),
            pause_ns=pause_ns,
            count=2 * each,
        ),
        seconds,
    )  # fmt: skip


def _requests_that_fit(bench: Bench, probe: Probe) -> int:
    most = min(MOST_WRITTEN_BYTES, bench.scratch.room_bytes // 4)
    return min(most // max(probe.bytes_in_flight, 1), MAX_ITEMS // 2)


def _on_new_files(bench: Bench, lanes: int, items: Callable[[int], LaneItems], seconds: float) -> Issued:
    paths = [bench.scratch.file(f"written-{next(bench.names)}") for _ in range(lanes)]
    slots = [FileSlot(path=path, writable=True, create=True, uses=MANY_USES) for path in paths]
    files = Files(slots)
    made = [items(lane) for lane in range(lanes)]
    files.prepare_payload(int(max(np.max(lane.length) for lane in made)))
    try:
        return bench.issue(files, made, seconds)
    finally:
        _remove(paths)


def _open_stat_close(bench: Bench, probe: Probe, seconds: float, pause_ns: int) -> Issued | None:
    """Open, stat and close files of the pool, the least recently used first."""
    lanes = [
        [bench.pool[next(bench.turns) % len(bench.pool)] for _ in range(max(len(bench.pool) // probe.in_flight, 1))]
        for _ in range(probe.in_flight)
    ]
    kinds = np.array([OPEN, STAT, CLOSE], dtype=np.uint8)
    files = Files([FileSlot(path=path, uses=len(kinds)) for lane in lanes for path in lane])
    return bench.issue(files, _calls([len(lane) for lane in lanes], kinds, pause_ns), seconds)


def _create_close_rename(bench: Bench, probe: Probe, seconds: float, pause_ns: int) -> Issued | None:
    each = max(len(bench.pool) // probe.in_flight // 2, 1)
    paths = [bench.scratch.file(f"made-{next(bench.names)}") for _ in range(2 * each * probe.in_flight)]
    kinds = np.array([OPEN, CLOSE, RENAME], dtype=np.uint8)
    files = Files([FileSlot(path=path, writable=True, create=True, uses=len(kinds)) for path in paths])
    half = each * probe.in_flight
    try:
        # The file of slot n gets the name of slot n + half.
        return bench.issue(files, _calls([each] * probe.in_flight, kinds, pause_ns, renamed_by=half), seconds)
    finally:
        _remove(paths)


def _calls(counts: list[int], kinds: np.ndarray, pause_ns: int, renamed_by: int = 0) -> list[LaneItems]:
    """For each lane the calls `kinds` on each of its own slots."""
    firsts = np.cumsum([0, *counts])
    lanes = []
    for first, each in zip(firsts, counts, strict=False):
        slots = np.repeat(np.arange(first, first + each), len(kinds))
        lanes.append(
            LaneItems(
                kind=np.tile(kinds, each), slot=slots, offset=slots + renamed_by, pause_ns=pause_ns, count=len(slots)
            )
        )
    return lanes


def _remove(paths: list[bytes]) -> None:
    for path in paths:
        with suppress(FileNotFoundError):
            unlink_link_free(path)


_TRIALS: Mapping[Kind, Callable[[Bench, Probe, float, int], Issued | None]] = {
    Kind.COLD_READ: _cold_read,
    Kind.CACHED_READ: _cached_read,
    Kind.SEQUENTIAL_READ: _sequential_read,
    Kind.WRITE: _write,
    Kind.SYNC: _sync,
    Kind.FILES: _open_stat_close,
    Kind.CREATE: _create_close_rename,
}
