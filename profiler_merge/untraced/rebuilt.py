"""How well rebuilt reads and writes meet the counters that they were made from: by counter, over all files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from profiler_merge.untraced.data_rows import CountedData
from profiler_merge.untraced.rank_counters import CountedFiles
from profiler_merge.untraced.reconstruct import ReconstructedRows
from profiler_merge.untraced.transfers import Transfers
from traces.schema import APIS, READ, WRITE
from traces.units import format_bytes, format_count

CONSTRAINTS = ("count", "moved", "sizes", "end", "seq", "consec")
"""Fields of `Transfers` that are compared, as they are named in capture.json by `_NAMES`."""

_NAMES = {
    "count": "operations",
    "moved": "bytes",
    "sizes": "size_bins",
    "end": "highest_offset",
    "seq": "sequential",
    "consec": "consecutive",
}
_POSIX = APIS.index("POSIX")


@dataclass(slots=True)
class Rebuilt:
    """Adds up, rank by rank, what was rebuilt at POSIX and which counters it meets.

    `streams`: (file, direction) pairs with rebuilt operations, `met` those that meet all counters, `missed` how many
    miss which. A reduced record is compared as a whole, when all ranks have been noted.
    """

    operations: int = 0
    bytes: int = 0
    dealt_operations: int = 0
    streams: int = 0
    met: int = 0
    missed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_NAMES.values(), 0))
    _wanted: dict[str, Transfers] = field(default_factory=dict)
    _sums: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)

    def expect_shared(self, log: str, wanted: Transfers | None) -> None:
        """What all ranks of a log together should have of its reduced records."""
        if wanted is not None:
            self._wanted[log] = wanted

    def note(self, log: str, found: ReconstructedRows, counted: CountedData, posix: CountedFiles) -> None:
        """The rows of one process, with what was asked of them."""
        again = found.again
        if again is None or len(again) != len(posix):
            return
        data = (found.api == _POSIX) & ((found.op == READ) | (found.op == WRITE))
        self.operations += int(data.sum())
        self.bytes += int(found.length[data].sum())
        own = len(counted.own)
        made = np.unique(found.record_id[data])
        of_file = np.isin(posix.record_id, made)
        self._compare(counted.own, again.select(np.arange(own)), np.repeat(of_file[:own], 2))
        if counted.shared is None or log not in self._wanted:
            return
        self.dealt_operations += len(counted.shared)
        rest = again.select(np.arange(own, len(again)))
        sums = self._sums.setdefault(log, {name: np.zeros_like(getattr(rest, name)) for name in CONSTRAINTS})
        for name in CONSTRAINTS:
            by = np.maximum if name == "end" else np.add
            by(sums[name], getattr(rest, name), out=sums[name])

    def finish(self) -> None:
        """Compare the reduced records, once."""
        for log, sums in self._sums.items():
            wanted = self._wanted[log]
            values = {name: sums[name] for name in CONSTRAINTS}
            made = values["count"] > 0
            self._add(wanted, values, made)
        self._sums.clear()

    def _compare(self, wanted: Transfers, again: Transfers, mask: np.ndarray) -> None:
        self._add(wanted, {name: getattr(again, name) for name in CONSTRAINTS}, mask & (wanted.count > 0))

    def _add(self, wanted: Transfers, again: dict[str, np.ndarray], mask: np.ndarray) -> None:
        good = np.ones(len(mask), dtype=bool)
        for name in CONSTRAINTS:
            asked, got = getattr(wanted, name), again[name]
            equal = (asked == got) if asked.ndim == 1 else (asked == got).all(axis=1)
            if name in ("seq", "consec"):
                equal |= asked < 0
            self.missed[_NAMES[name]] += int(np.count_nonzero(mask & ~equal))
            good &= equal
        self.streams += int(mask.sum())
        self.met += int(np.count_nonzero(mask & good))

    def warnings(self) -> list[str]:
        """What a user should know of the rebuilt operations."""
        if not self.operations:
            return []
        found = [
            f"{format_count(self.operations)} reads and writes ({format_bytes(self.bytes)}) that no trace holds are "
            "rebuilt from counters and marked as reconstructed: their number and bytes are counted, their order, "
            "places and single times are inferred"
        ]
        if self.dealt_operations:
            found.append(
                f"{format_count(self.dealt_operations)} of these operations are of files whose counters Darshan added "
                "up over all ranks: it is inferred which rank issued them"
            )
        if self.met < self.streams:
            missed = ", ".join(f"{name.replace('_', ' ')} in {count}" for name, count in self.missed.items() if count)
            found.append(
                f"the rebuilt operations have the counted values in {self.met} of {self.streams} cases (a case is "
                f"everything that a rank read, or wrote, of a file); they differ in: {missed}"
            )
        return found

    def as_json(self) -> dict[str, Any]:
        """The object `rebuilt` of capture.json."""
        return {
            "operations": self.operations,
            "bytes": self.bytes,
            "dealt_to_ranks": self.dealt_operations,
            "streams": self.streams,
            "streams_met": self.met,
            "missed": dict(self.missed),
        }
