"""Sizes of the requests: exact sizes and bins, per direction and interface."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.analysis.collect import Collector, collect
from dxt_replay.profiler_merge.analysis.table_formats import table_of
from dxt_replay.profiler_merge.analysis.tables import TABLES
from dxt_replay.traces.measures._passes import add_to_bins
from dxt_replay.traces.measures.distribution import Distribution, DistributionCollector
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.part import INTERFACES
from dxt_replay.traces.schema import APIS, ORIGINS, WRITE
from dxt_replay.traces.store.reader import Capture

DARSHAN_BOUNDS = (100, 1 << 10, 10 << 10, 100 << 10, 1 << 20, 4 << 20, 10 << 20, 100 << 20, 1 << 30)
"""Largest size of each of Darshan's bins but the last, inclusive (DARSHAN_BUCKET_INC in darshan-common.h)."""

DARSHAN_BINS = ("0_100", "100_1K", "1K_10K", "10K_100K", "100K_1M", "1M_4M", "4M_10M", "10M_100M", "100M_1G", "1G_PLUS")
"""Darshan's names of its bins, as in POSIX_SIZE_READ_0_100."""

TOP_SIZES = 20
POWERS = 64
_POWER_BOUNDS = [(1 << power) - 1 for power in range(POWERS - 1)]

BINS_SCHEMA = TABLES["sizes"].schema
"""One row per bin that is not empty. Sizes from least_bytes to most_bytes, both inclusive; null for no limit."""

EXACT_SCHEMA = TABLES["exact-sizes"].schema
"""The most frequent sizes first; the row with a null size stands for all others."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SizeClass:
    """Requests of one interface, direction (read or write) and origin (traced or reconstructed).

    distribution: of the sizes.
    power_counts, power_bytes: int64 (64,), entry 0 for size 0, entry k for 2**(k-1) <= size < 2**k.
    darshan_counts, darshan_bytes: int64 (10,), as `DARSHAN_BINS`.
    """

    interface: str
    op: str
    origin: str
    distribution: Distribution
    power_counts: np.ndarray
    power_bytes: np.ndarray
    darshan_counts: np.ndarray
    darshan_bytes: np.ndarray

    @property
    def operations(self) -> int:
        """Requests."""
        return int(self.power_counts.sum())

    @property
    def bytes(self) -> int:
        """Bytes that they moved."""
        return int(self.power_bytes.sum())

    def histogram(self, bins: int = 100, *, least_share: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """(counts int64 (n,), edges float64 (n + 1,)) in equal steps from the smallest to the largest size.

        Bins with less than `least_share` of the operations are set to 0 (VaniDL's AUTO threshold is 0.001).
        """
        counts, edges = np.histogram(self.distribution.values, bins=bins, weights=self.distribution.counts)
        whole = counts.astype(np.int64)
        whole[whole < least_share * self.operations] = 0
        return whole, edges


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestSizes:
    """Sizes by interface, direction and origin, as far as they occur. Interfaces overlap, so their sums are
    meaningless."""

    classes: tuple[SizeClass, ...]

    def powers(self) -> pa.Table:
        """Bins by powers of two (`BINS_SCHEMA`)."""
        return table_of((row for found in self.classes for row in _power_rows(found)), BINS_SCHEMA)

    def darshan_bins(self) -> pa.Table:
        """Darshan's bins (`BINS_SCHEMA`)."""
        return table_of((row for found in self.classes for row in _darshan_rows(found)), BINS_SCHEMA)

    def exact(self, top: int = TOP_SIZES) -> pa.Table:
        """The `top` most frequent sizes of each class and the rest of them (`EXACT_SCHEMA`).

        If a class has more than a million distinct sizes they are rounded to 12 bits.
        """
        return table_of((row for found in self.classes for row in _exact_rows(found, top)), EXACT_SCHEMA)


class SizeCollector(Collector):
    """Collects `RequestSizes` from selected rows; operations other than reads and writes are ignored."""

    takes_several_ranks = True

    def __init__(self) -> None:
        cells = len(INTERFACES) * 2 * len(ORIGINS)
        self._interface = np.zeros(len(APIS), dtype=np.int64)
        for number, apis in enumerate(INTERFACES.values()):
            self._interface[[APIS.index(api) for api in apis]] = number
        self._sizes: dict[int, DistributionCollector] = {}
        self._powers = np.zeros((2, cells, POWERS), dtype=np.int64)
        self._darshan = np.zeros((2, cells, len(DARSHAN_BINS)), dtype=np.int64)

    def add(self, rows: OperationRows) -> None:
        """Add selected rows of all layers and origins."""
        rows = rows.where(rows.data)
        if not len(rows):
            return
        cell = (self._interface[rows.api] * 2 + (rows.op == WRITE)) * len(ORIGINS) + rows.origin
        for number in np.flatnonzero(np.bincount(cell)).tolist():
            self._add(number, rows.length[cell == number])

    def _add(self, cell: int, lengths: np.ndarray) -> None:
        self._sizes.setdefault(cell, DistributionCollector()).add(lengths)
        for bins, bounds in ((self._powers, _POWER_BOUNDS), (self._darshan, DARSHAN_BOUNDS)):
            add_to_bins(bins[0, cell], bins[1, cell], bounds, lengths)

    def merge(self, later: SizeCollector) -> None:
        """As `Sums.merge`."""
        for cell, sizes in later._sizes.items():
            self._sizes.setdefault(cell, DistributionCollector()).merge(sizes)
        self._powers += later._powers
        self._darshan += later._darshan

    def sizes(self) -> RequestSizes:
        """Sizes of all that was added."""
        return RequestSizes(classes=tuple(self._class(cell) for cell in sorted(self._sizes)))

    def _class(self, cell: int) -> SizeClass:
        rest, origin = divmod(cell, len(ORIGINS))
        interface, written = divmod(rest, 2)
        return SizeClass(
            interface=list(INTERFACES)[interface],
            op="write" if written else "read",
            origin=ORIGINS[origin],
            distribution=self._sizes[cell].distribution(),
            power_counts=self._powers[0, cell],
            power_bytes=self._powers[1, cell],
            darshan_counts=self._darshan[0, cell],
            darshan_bytes=self._darshan[1, cell],
        )


def request_sizes(capture: Capture) -> RequestSizes:
    """Sizes of the reads and writes, each at the layer that it was recorded at. Raises: CaptureError when damaged."""
    return collect(capture, lambda part, layers: SizeCollector(), without=("lane", "step")).sizes()


def _power_rows(found: SizeClass) -> Iterable[dict[str, object]]:
    for power in np.flatnonzero(found.power_counts).tolist():
        least, most = (0, 0) if power == 0 else (1 << (power - 1), (1 << power) - 1)
        counts = found.power_counts[power], found.power_bytes[power]
        yield _bin_row(found, f"2^{power - 1}" if power else "0", least, most, counts)


def _darshan_rows(found: SizeClass) -> Iterable[dict[str, object]]:
    for place in np.flatnonzero(found.darshan_counts).tolist():
        least = DARSHAN_BOUNDS[place - 1] + 1 if place else 0
        most = DARSHAN_BOUNDS[place] if place < len(DARSHAN_BOUNDS) else None
        counts = found.darshan_counts[place], found.darshan_bytes[place]
        yield _bin_row(found, DARSHAN_BINS[place], least, most, counts)


def _bin_row(
    found: SizeClass, name: str, least: int, most: int | None, counts: tuple[np.int64, np.int64]
) -> dict[str, object]:
    row: dict[str, object] = {"interface": found.interface, "op": found.op, "origin": found.origin, "bin": name}
    return {
        **row,
        "least_bytes": least,
        "most_bytes": most,
        "operations": int(counts[0]),
        "bytes": int(counts[1]),
    }


def _exact_rows(found: SizeClass, top: int) -> Iterable[dict[str, object]]:
    values, counts = found.distribution.values.astype(np.int64), found.distribution.counts
    order = np.lexsort((values, -counts))[:top]
    pairs = zip(values[order].tolist(), counts[order].tolist(), strict=True)
    shown = [(size, count, size * count) for size, count in pairs]
    left = found.operations - sum(count for _, count, _ in shown)
    rest = [(None, left, found.bytes - sum(moved for _, _, moved in shown))] if left else []
    for size, count, moved in [*shown, *rest]:
        yield {
            "interface": found.interface,
            "op": found.op,
            "origin": found.origin,
            "size_bytes": size,
            "operations": count,
            "bytes": moved,
            "share": count / found.operations,
        }
