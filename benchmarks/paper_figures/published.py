"""Values printed in the paper for Figures 9 to 15, and in its authors' notebooks for single runs.

Source of the pages (sweep_pages.csv): the notebooks of github.com/hariharan-devarajan/vanidl (commit 8bad713), runs of
DLIO on 8 ranks of Theta. `job_s` are whole seconds. `io_s` is the sum of the durations of a rank's operations, mean
over ranks, in which VaniDL counted an operation below 0.1 ms as 1 ms: it follows the number of operations.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class PagePoint:
    """One run of a sweep as its notebook printed it: times in s, GiB of all ranks, mean bytes of an operation."""

    at: str
    job_s: float
    io_s: float
    gib: float
    mean_bytes: int

    @property
    def operations(self) -> int:
        """Reads of all ranks: the printed bytes divided by the printed mean, good to about 3 digits."""
        return round(self.gib * GIB / self.mean_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """Claims of the paper's text or figure: the best point, its gain, and the base of the gain."""

    best_at: str
    gain: float | None
    text: str


PRINTED: Mapping[str, Printed] = {
    "9a": Printed(best_at="1048576", gain=1.25, text="best at 1 MB (2 GB/s), 1.25x over 256 KB, falls beyond"),
    "9b": Printed(best_at="8", gain=1.2, text="best at 8 readers, 1.2x over 1"),
    "9c": Printed(best_at="8", gain=1.66, text="flat from 8 preprocessing threads, 66 % over 1"),
    "10a": Printed(best_at="1048576", gain=1.32, text="best at 1 MB (1.8 GB/s), 1.32x over 256 KB"),
    "10b": Printed(best_at="8", gain=1.2, text="best at 8 readers, 1.2x over 1"),
    "10c": Printed(best_at="8", gain=1.04, text="flat from 8 preprocessing threads, 4 % over 1"),
    "11a": Printed(best_at="65536", gain=96.0, text='jump at 64 KB, then constant; "almost 96x"'),
    "11b": Printed(best_at="gzip 4", gain=1.35, text="gzip 4 best, 1.35x over no compression"),
    "11c": Printed(
        best_at="65536", gain=None, text="set larger than memory, shuffled: above 64 KB slower, 6.7x at 4 MB"
    ),
    "12a": Printed(best_at="32768", gain=96.0, text="text: jump at 32 KB; caption: 128 KB; 96x"),
    "12b": Printed(best_at="gzip 4", gain=1.35, text="gzip 4 (or 5) best, 1.35x over no compression"),
    "13a": Printed(best_at="1048576", gain=1.33, text="CosmoFlow: 1 MB transfers 1.33x over 256 KB"),
    "13b": Printed(best_at="8", gain=1.12, text="CosmoFlow: 8 readers 12 % over 4"),
    "13c": Printed(best_at="8", gain=1.07, text="CosmoFlow: 8 preprocessing threads 7 % (caption: 8 %)"),
    "13d": Printed(best_at="1048576", gain=8.0, text="Cosmic Tagger: chunks of 1 MB 8x over 4 KB"),
    "13e": Printed(best_at="gzip 4", gain=1.35, text="Cosmic Tagger: gzip 4 1.35x over no compression"),
    "14": Printed(
        best_at="2048", gain=None, text="Imagenet, CosmoFlow, FRNN (many files): time falls with nodes, (sub)linearly"
    ),
    "15": Printed(
        best_at="2048",
        gain=None,
        text="Cosmic Tagger, FFN, CANDLE (shared file): falls less than ideal at scale, for metadata reads",
    ),
}
"""By figure. Figures 11c and 13 to 15 have no page."""


def sweep_pages() -> dict[str, tuple[PagePoint, ...]]:
    """The runs of each figure, in the order of the varied parameter."""
    found: dict[str, list[PagePoint]] = {}
    with (Path(__file__).parent / "sweep_pages.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            point = PagePoint(
                at=row["at"],
                job_s=float(row["job_s"]),
                io_s=float(row["io_s"]),
                gib=float(row["gib"]),
                mean_bytes=int(row["mean_bytes"]),
            )
            found.setdefault(row["figure"], []).append(point)
    return {figure: tuple(points) for figure, points in found.items()}
