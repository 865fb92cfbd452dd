"""How well rebuilt reads and writes meet the counters from which they were made: by module, counter and file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dxt_replay.profiler_merge.untraced.rank_counters import MODULES
from dxt_replay.profiler_merge.untraced.reconstruct import RebuiltData
from dxt_replay.profiler_merge.untraced.transfers import SIZES, TOP, WAYS, Transfers
from dxt_replay.traces.units import format_bytes, format_count

NAMES = {
    "count": "operations",
    "moved": "bytes",
    "sizes": "size_bins",
    "end": "highest_offset",
    "seq": "sequential",
    "consec": "consecutive",
    "access_count": "common_sizes",
    "stride_count": "strides",
}
"""Fields of `Transfers` that are compared -> their names in capture.json."""

_CONSTRAINTS = {
    "POSIX": tuple(NAMES),
    "STDIO": ("count", "moved", "end"),
}
"""The fields that a module counts."""

_BY_FILE = ("access_count", "stride_count")


MOST_LISTED = 1000
"""Most entries of the list; further ones are only counted."""


def counter_names(module: str, name: str, way: int) -> tuple[str, ...]:
    """Darshan's counters behind a field of `Transfers`; `way`: 0 for reads, 1 for writes."""
    direction, ways, done = WAYS[way]
    found = {
        "count": (ways,),
        "moved": (f"BYTES_{done}",),
        "sizes": tuple(f"SIZE_{direction}_{size}" for size in SIZES),
        "end": (f"MAX_BYTE_{done}",),
        "seq": (f"SEQ_{ways}",),
        "consec": (f"CONSEC_{ways}",),
        "access_count": tuple(f"ACCESS{place + 1}_COUNT" for place in range(TOP)),
        "stride_count": tuple(f"STRIDE{place + 1}_COUNT" for place in range(TOP)),
    }
    return tuple(f"{module}_{each}" for each in found[name])


@dataclass(slots=True)
class NotMet:
    """A list of counters with the counted value and that of the rebuilt operations."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    left_out: int = 0

    def room(self, wanted: int) -> int:
        """Number of `wanted` further entries that fit the list; counts the others."""
        kept = min(wanted, MOST_LISTED - len(self.entries))
        self.left_out += wanted - kept
        return kept

    def add(self, path: str, rank: int | None, counter: str, counted: int, rebuilt: int) -> None:
        """List an entry. `rank`: None for the sum over all ranks."""
        self.entries.append(
            {"file": path, "rank": rank, "counter": counter, "counted": counted, "rebuilt": rebuilt}
        )  # fmt: skip

    def add_all(self, other: NotMet) -> None:
        """Append another list; beyond the limit only count."""
        self.entries += other.entries[: self.room(len(other.entries))]
        self.left_out += other.left_out

    def example(self) -> str:
        """The first entry in words."""
        first = self.entries[0]
        whose = "of all ranks" if first["rank"] is None else f"of rank {first['rank']}"
        return f"{first['counter']} {whose} for {first['file']}: {first['counted']} counted, {first['rebuilt']} rebuilt"

    def as_json(self) -> dict[str, Any]:
        """The keys `not_met` and `not_met_left_out` of `rebuilt` in capture.json."""
        return {"not_met": list(self.entries), "not_met_left_out": self.left_out}


@dataclass(slots=True)
class RebuiltModule:
    """The rebuilt operations of one module.

    `streams`: (file, direction) pairs with rebuilt operations; `met`: those that meet all counters; `missed`: number
    that miss each counter.
    `dealt`: operations of reduced records."""

    operations: int = 0
    bytes: int = 0
    dealt: int = 0
    streams: int = 0
    met: int = 0
    missed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(NAMES.values(), 0))

    def add(self, other: RebuiltModule) -> None:
        """Add what was rebuilt of other ranks."""
        self.operations += other.operations
        self.bytes += other.bytes
        self.dealt += other.dealt
        self.streams += other.streams
        self.met += other.met
        self.missed = {name: count + other.missed[name] for name, count in self.missed.items()}

    def as_json(self) -> dict[str, Any]:
        """The object of one module in `rebuilt` of capture.json."""
        return {
            "operations": self.operations,
            "bytes": self.bytes,
            "dealt_to_ranks": self.dealt,
            "streams": self.streams,
            "streams_met": self.met,
            "missed": dict(self.missed),
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Reduced:
    """Reduced records of one log and module: the counted total over all ranks, and the total so far."""

    wanted: Transfers
    record_id: np.ndarray
    sums: dict[str, np.ndarray]

    def add(self, sums: Mapping[str, np.ndarray]) -> None:
        """Add what further ranks have."""
        for name, have in self.sums.items():
            by = np.maximum if name == "end" else np.add
            by(have, sums[name], out=have)


@dataclass(slots=True)
class Rebuilt:
    """Adds up the rebuilt operations and the counters that they meet.

    A reduced record is compared as a whole, when all ranks have been noted."""

    modules: dict[str, RebuiltModule] = field(default_factory=lambda: {name: RebuiltModule() for name in MODULES})
    not_met: NotMet = field(default_factory=NotMet)
    _reduced: dict[tuple[str, str], _Reduced] = field(default_factory=dict)

    @property
    def operations(self) -> int:
        """Reads and writes at all modules."""
        return sum(each.operations for each in self.modules.values())

    def note(self, log: str, ranks: np.ndarray, data: RebuiltData, names: Mapping[int, bytes]) -> None:
        """Note the rebuilt operations of some processes at one module.

        `ranks`: of the processes of `data.files`; `names`: paths of the log's records."""
        module, counted, files, again = data.module, data.counted, data.files, data.again
        of = self.modules[module]
        of.operations += len(data.length)
        of.bytes += int(data.length.sum())
        own = np.flatnonzero(counted.own)
        made = np.bincount(data.file, minlength=len(files)) > 0
        wanted, known = counted.wanted.select(own), again.select(own)
        values = {name: getattr(known, name) for name in _CONSTRAINTS[module]}
        place = ranks[files.process[own]], files.record_id[own]
        self._add(module, names, place, wanted, values, np.repeat(made[own], 2) & (wanted.count > 0))
        of.dealt += sum(part.dealt for part in counted.parts)
        if counted.parts[0].shared is None or (shared := counted.parts[0].reduced) is None:
            return
        rest = again.select(np.flatnonzero(~counted.own))
        sums = {}
        for name in _CONSTRAINTS[module]:
            values = getattr(rest, name)
            by = np.maximum if name == "end" else np.add
            sums[name] = by.reduce(values.reshape(len(counted.parts), -1, *values.shape[1:]), axis=0)
        none = {name: np.zeros_like(values) for name, values in sums.items()}
        reduced = _Reduced(wanted=shared, record_id=files.record_id[~counted.own][: len(shared)], sums=none)
        self._reduced.setdefault((log, module), reduced).add(sums)

    def add(self, other: Rebuilt) -> None:
        """Add the notes on the next ranks."""
        for name, of in self.modules.items():
            of.add(other.modules[name])
        self.not_met.add_all(other.not_met)
        for key, reduced in other._reduced.items():
            if key in self._reduced:
                self._reduced[key].add(reduced.sums)
            else:
                self._reduced[key] = reduced

    def finish(self, names: Mapping[str, Mapping[int, bytes]]) -> None:
        """Compare the reduced records, once. `names`: paths of the records of each log."""
        for (log, module), reduced in self._reduced.items():
            made = reduced.sums["count"] > 0
            self._add(module, names[log], (None, reduced.record_id), reduced.wanted, reduced.sums, made)
        self._reduced.clear()

    def _add(
        self,
        module: str,
        names: Mapping[int, bytes],
        place: tuple[np.ndarray | None, np.ndarray],
        wanted: Transfers,
        again: Mapping[str, np.ndarray],
        mask: np.ndarray,
    ) -> None:
        """Compare streams of `mask`. `place`: ranks, None for reduced records, and record ids of the files."""
        ranks = place[0]
        good = np.ones(len(mask), dtype=bool)
        of = self.modules[module]
        for name in _CONSTRAINTS[module]:
            asked, got = getattr(wanted, name), again[name]
            # Darshan merges the four most common values of each rank, so the counts of reduced records are lower
            # bounds.
            equal = got >= asked if ranks is None and name in _BY_FILE else got == asked
            if name == "sizes":
                equal |= (asked.sum(axis=1) != wanted.count)[:, np.newaxis]
            elif name in ("seq", "consec"):
                equal |= asked < 0
            wrong = ~equal if equal.ndim > 1 else ~equal[:, np.newaxis]
            if name in _BY_FILE:
                of_file = np.where(mask.reshape(-1, 2).any(axis=1), 2, 0)
                self._list(module, names, place, name, (asked, got), wrong & (of_file > 0)[:, np.newaxis])
                wrong = np.repeat(wrong, 2, axis=0)
            else:
                self._list(module, names, place, name, (asked, got), wrong & mask[:, np.newaxis])
            of.missed[NAMES[name]] += int(np.count_nonzero(mask & wrong.any(axis=1)))
            good &= ~wrong.any(axis=1)
        of.streams += int(mask.sum())
        of.met += int(np.count_nonzero(mask & good))

    def _list(
        self,
        module: str,
        names: Mapping[int, bytes],
        place: tuple[np.ndarray | None, np.ndarray],
        name: str,
        values: tuple[np.ndarray, np.ndarray],
        wrong: np.ndarray,
    ) -> None:
        """Put the counters where `wrong` (streams or files, values) on the list."""
        ranks, record_id = place
        rows, columns = np.nonzero(wrong)
        files = rows if name in _BY_FILE else rows // 2
        kept = self.not_met.room(len(rows))
        if not kept:
            return
        asked, got = (value.reshape(len(value), -1)[rows[:kept], columns[:kept]] for value in values)
        # The highest offset is counted as that of the last byte.
        less = name == "end"
        for row, column, file, counted, made in zip(
            rows[:kept].tolist(), columns[:kept].tolist(), files[:kept].tolist(), asked.tolist(), got.tolist(),
            strict=True,
        ):  # fmt: skip
            record = int(record_id[file])
            path = names.get(record, b"<record %d>" % record).decode("utf-8", "backslashreplace")
            counter = counter_names(module, name, row % 2)[column]
            rank = None if ranks is None else int(ranks[file])
            self.not_met.add(path, rank, counter, counted - less, made - less)

    def warnings(self) -> list[str]:
        """Warnings about the rebuilt operations."""
        posix = self.modules["POSIX"]
        if not posix.operations:
            return self._missed_warnings()
        found = [
            f"{format_count(posix.operations)} reads and writes ({format_bytes(posix.bytes)}) that no trace holds are "
            "rebuilt from counters and marked as reconstructed: their number and bytes are counted, their order, "
            "places and single times are inferred"
        ]
        if posix.dealt:
            found.append(
                f"{format_count(posix.dealt)} of these operations are of files whose counters Darshan added up over "
                "all ranks: it is inferred which rank issued them"
            )
        return found + self._missed_warnings()

    def _missed_warnings(self) -> list[str]:
        parts = self.modules.values()
        met, streams = sum(each.met for each in parts), sum(each.streams for each in parts)
        if met == streams:
            return []
        counts = {name: sum(each.missed[name] for each in parts) for name in NAMES.values()}
        missed = ", ".join(f"{name.replace('_', ' ')} in {count}" for name, count in counts.items() if count)
        return [
            f"the rebuilt operations have the counted values in {met} of {streams} cases (a case is everything that a "
            f"rank read, or wrote, of a file); they differ in: {missed} (for example {self.not_met.example()}; "
            "`rebuilt.not_met` of --json lists them)"
        ]

    def as_json(self) -> dict[str, Any]:
        """The object `rebuilt` of capture.json: of POSIX, then by module, and the counters that are not met."""
        return {
            **self.modules["POSIX"].as_json(),
            "modules": {name: each.as_json() for name, each in self.modules.items() if each.operations},
            **self.not_met.as_json(),
        }
