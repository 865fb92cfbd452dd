"""Estimates the size of a sample and the number of samples in a batch, from the first evidence that exists. Pure.

The bytes that a step reads show only the product of both. Each value states the evidence that splits it; without any, a
batch is one sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dxt_replay.workloads.fit.data_files import DataFiles
from dxt_replay.workloads.fit.observation import Observation, RankReads

IMAGES = ("jpeg", "png")
"""DLIO's formats with one sample per file."""

WHOLE_FILE = 0.98
"""Share of a file that is read between two reads of its beginning, from which it counts as read whole."""

MODAL_SHARE = 0.5
"""Least share of the samples that must agree in size, or in number per step."""

LIBRARY_GAP = 4096
"""Largest gap in bytes within a sample that an HDF5 library may have caused with the nodes of its index."""

REPEATED_SHARE = 0.8
"""Share of a batch's pieces that must be as long as those of the previous sample."""

ELEMENTS_OFF = 0.06
"""Largest deviation of the elements per step of an input pipeline from a whole number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSize:
    """Size of a sample and number of samples in a batch, with the evidence and its certainty.

    `distinct`: number of different samples that were read; 0 if unknown.
    """

    batch: int
    sample_bytes: float
    found: str
    error: str = ""
    one_file_each: bool = False
    distinct: int = 0


def sample_size(
    seen: Observation,
    data: DataFiles,
    step_bytes: float,
    elements: Mapping[str, float],
    overhead: int,
    batch: int | None,
) -> SampleSize:
    """Sample and batch, from the first evidence that exists."""
    if batch is not None:
        return SampleSize(batch=batch, sample_bytes=max(step_bytes / batch - overhead, 1), found="given with --batch")
    return (
        _whole_files(seen, data)
        or _images(seen, data)
        or (None if data.stream else _runs(seen, data))
        or _elements(step_bytes, elements, overhead)
        or SampleSize(
            batch=1,
            sample_bytes=max(step_bytes - overhead, 1),
            found="a step's bytes taken for one sample",
            error="only the product of batch size and record length is known: give --batch",
        )
    )


def _whole_files(seen: Observation, data: DataFiles) -> SampleSize | None:
    """One file per sample: most fetches read the same number of files, each completely."""
    numbers, whole, read = [], 0, 0
    for rank in seen.looked:
        chosen = rank.of_training & np.isin(rank.file_id, data.train)
        pair, place = np.unique(
            rank.fetch[chosen] * np.int64(len(seen.paths)) + rank.file_id[chosen], return_inverse=True
        )
        moved = np.bincount(place, weights=rank.length[chosen], minlength=len(pair))
        fetch, file_id = np.divmod(pair, len(seen.paths))
        numbers.append(np.unique(fetch, return_counts=True)[1])
        whole += int((moved >= WHOLE_FILE * seen.sizes[file_id]).sum())
        read += len(pair)
    counts = np.concatenate(numbers) if numbers else np.empty(0, dtype=np.int64)
    if not read or whole < MODAL_SHARE * read:
        return None
    most, share = modal(counts)
    if share < MODAL_SHARE:
        return None
    return SampleSize(
        batch=most,
        sample_bytes=float(seen.sizes[data.train].mean()),
        found=f"{100 * share:.3g} % of the batches read {most} whole files each",
        one_file_each=True,
    )


def _images(seen: Observation, data: DataFiles) -> SampleSize | None:
    """An image is one sample. With readers that run ahead, a batch is the mean number of images read per step."""
    if data.format not in IMAGES:
        return None
    images, steps = 0.0, sum(rank.steps for rank in seen.looked)
    for rank in seen.looked:
        chosen = ~rank.of_fetches(~rank.is_training) & np.isin(rank.file_id, data.train) & (rank.length > 0)
        images += float((rank.length[chosen] / seen.sizes[rank.file_id[chosen]]).sum())
    batch = round(images / max(steps, 1))
    if not batch:
        return None
    return SampleSize(
        batch=batch,
        sample_bytes=float(seen.sizes[data.train].mean()),
        found=f"each image is a sample, and {images:.0f} were read for {steps} steps",
        error=f"{images / steps:.4g} images a step on average: smaller last batches of an epoch do not show",
        one_file_each=True,
    )


def _runs(seen: Observation, data: DataFiles) -> SampleSize | None:
    """Runs of reads without a gap, one or several per sample: their lengths repeat within a batch.

    If they do not repeat, a batch is one sample, provided that most batches are equally large.
    """
    parts = [runs_of(rank, data.train) for rank in seen.looked]
    place, moved, fetch = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    rank = np.repeat(np.arange(len(parts)), [len(part[0]) for part in parts])
    if not len(place):
        return None
    first = np.flatnonzero(np.append(True, (np.diff(fetch) != 0) | (np.diff(rank) != 0)))
    count = np.diff(np.append(first, len(fetch)))
    most, share = modal(count)
    whole = first[count == most]
    table = np.stack([moved[whole + column] for column in range(most)], axis=1)
    period = next(width for width in range(1, most + 1) if most % width == 0 and _repeats(table, width))
    sizes = table.reshape(-1, period).sum(axis=1)
    size, agree = modal(sizes, weights=sizes)
    if agree < MODAL_SHARE:
        return None
    pieces = "one piece" if period == 1 else f"{period} pieces"
    return SampleSize(
        batch=most // period,
        sample_bytes=float(size),
        found=f"{most // period} times {size} B a step, in {pieces} without a gap each",
        error="" if share >= 0.9 else f"{100 * share:.3g} % of the steps have as many",
        distinct=round(_different_bytes(seen, data) / size),
    )


def _different_bytes(seen: Observation, data: DataFiles) -> int:
    """Bytes at distinct places of the data set that the examined ranks read."""
    places, lengths = [], []
    for rank in seen.looked:
        chosen = np.flatnonzero(rank.of_training & np.isin(rank.file_id, data.train) & (rank.length > 0))
        chosen = chosen[is_data(rank.length[chosen])]
        places.append(rank.file_id[chosen].astype(np.int64) << 44 | rank.offset[chosen])
        lengths.append(rank.length[chosen])
    _, first = np.unique(np.concatenate(places), return_index=True)
    return int(np.concatenate(lengths)[first].sum())


def _repeats(table: np.ndarray, width: int) -> bool:
    """Whether the columns of a table repeat with period `width`."""
    return width == table.shape[1] or float((table[:, width:] == table[:, :-width]).mean()) >= REPEATED_SHARE


def runs_of(rank: RankReads, files: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Runs of data reads of one batch without a gap: place (file and offset in one number), bytes and fetch of each.

    An HDF5 library's own reads have other lengths than the data, and begin no run.
    """
    chosen = np.flatnonzero(rank.of_training & np.isin(rank.file_id, files) & (rank.length > 0))
    chosen = chosen[is_data(rank.length[chosen])]
    chosen = chosen[np.lexsort((rank.start_ns[chosen], rank.lane[chosen], rank.fetch[chosen]))]
    file_id, offset, length, fetch = (column[chosen] for column in (rank.file_id, rank.offset, rank.length, rank.fetch))
    lane = rank.lane[chosen]
    gap = offset[1:] - offset[:-1] - length[:-1]
    joined = (file_id[1:] == file_id[:-1]) & (gap >= 0) & (gap <= LIBRARY_GAP)
    joined &= (fetch[1:] == fetch[:-1]) & (lane[1:] == lane[:-1])
    first = np.flatnonzero(np.concatenate(([True], ~joined))[: len(chosen)])
    moved = np.add.reduceat(length, first) if len(first) else length
    return file_id[first].astype(np.int64) << 44 | offset[first], moved, fetch[first]


def is_data(length: np.ndarray) -> np.ndarray:
    """bool (n,): reads of a length that carries at least 2 % of the bytes; all reads if there are many lengths."""
    values, place = np.unique(length, return_inverse=True)
    moved = np.bincount(place, weights=length, minlength=len(values))
    carrying = moved >= 0.02 * moved.sum()
    return carrying[place] if moved[carrying].sum() >= 0.8 * moved.sum() else np.ones(len(length), dtype=bool)


def _elements(step_bytes: float, elements: Mapping[str, float], overhead: int) -> SampleSize | None:
    """Elements per step of an input-pipeline stage as the number of samples, if it is whole."""
    for name, number in elements.items():
        nearest = round(number)
        if nearest >= 1 and abs(number - nearest) <= ELEMENTS_OFF * nearest:
            return SampleSize(
                batch=nearest,
                sample_bytes=max(step_bytes / nearest - overhead, 1),
                found=f"{number:.3g} spans {name} for each step",
            )
    return None


def modal(values: np.ndarray, weights: np.ndarray | None = None) -> tuple[int, float]:
    """The most frequent value, and its share; with `weights`, the value of the largest weight."""
    found, place = np.unique(values, return_inverse=True)
    if not len(found):
        return 0, 0.0
    weight = np.bincount(place, weights=weights)
    best = int(weight.argmax())
    return int(found[best]), float(weight[best] / weight.sum())
